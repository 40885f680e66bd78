"""The configuration file: the emulator's ``Config.json`` and what goes beyond it (the emulator's documentation).

Comments and trailing commas are allowed, any number of namespaces, every property of the cloud. Members that are
unknown warn; a value that cannot be meant is an error that names its JSON path. Topics, and what else this version
cannot run, are kept whole and named in a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, ConfigurationError
from duobus.model.descriptions import (
    ACTIVE,
    DEFAULT_RULE,
    AccessRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_access_rules,
    check_queue,
    check_topic,
)
from duobus.model.durations import parse_duration
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC, Form, Surface, properties_of
from duobus.model.relay.description import ANY, HybridConnectionDescription, check_relay
from duobus.model.tiers import ALL, EMULATOR

# JSON with comments and trailing commas, as the emulator's sample file has them (the emulator's documentation).
#
# Both are replaced by blanks of the same length, so that the standard parser reads the rest and its line and column
# in an error are the file's own.

# A string, a comment, or a comma that only blanks and comments part from the closing bracket. The groups are atomic:
# a comment ends at its first "*/" for good, else two comments could be taken for one with a value inside.
_TOKENS = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"|//[^\n]*|(?>/\*.*?\*/)|,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[\]}])',
    re.DOTALL,
)


def parse_json_with_comments(text: str) -> object:
    """Return the value that ``text`` describes.

    Raises:
        ConfigurationError: It is no JSON, an object names a member twice, or it is nested too deeply. The text
            names line and column.
    """
    plain = _TOKENS.sub(_blank, text)
    try:
        value: object = json.loads(plain, object_pairs_hook=_members, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise ConfigurationError("The configuration is nested too deeply.") from None
    except ValueError as error:
        # Python refuses to read numbers of thousands of digits.
        raise ConfigurationError(f"{error}.") from None
    return value


def _blank(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] == '"':
        return token
    return "".join(character if character == "\n" else " " for character in token)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"The member {twice!r} stands twice in one object.")
    return found


def _no_number(name: str) -> object:
    raise ConfigurationError(f"{name} is no JSON number.")


#: Largest configuration file: 10,000 entities with all their properties are about 5 MiB.
FILE_BYTES_MAX = 32 * 1024 * 1024

#: Highest rate that a namespace may be held to; faster than any server of this kind.
RATE_MAX = 10_000_000

_NAME_LENGTH_MAX = 50
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")

_EMULATOR_TIER = msgspec.structs.replace(ALL, profile=EMULATOR)

_Value = TypeVar("_Value")
_Described = TypeVar("_Described", bound=msgspec.Struct)


class NamespaceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One namespace of the file.

    Attributes:
        name: Lower case; clients reach it by a host name that is it, or begins with it and a dot.
        hosts: Further host names, lower case.
        rules: Access rules that the file gives; the default rule is made by the server where it is not among them.
        queues: What the file describes; those that ask for more than this version does are among them.
        topics: Kept whole, with subscriptions and rules.
        relays: Those of a section that the emulator does not have.
        messages_per_second: What its clients may send and receive together, or None for no bound.
    """

    name: str
    hosts: tuple[str, ...] = ()
    rules: tuple[AccessRule, ...] = ()
    queues: tuple[QueueDescription, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    relays: tuple[HybridConnectionDescription, ...] = ()
    messages_per_second: int | None = None


class ConfigContents(msgspec.Struct, frozen=True):
    """What a file says, and what its author should be told."""

    namespaces: tuple[NamespaceConfig, ...]
    warnings: tuple[str, ...]


def read_config_file(path: Path) -> ConfigContents:
    """Read and check a file.

    Raises:
        ConfigurationError: It cannot be read, is no JSON, or holds a wrong value; the text names file and place.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(f"The configuration {path} is larger than {FILE_BYTES_MAX} bytes.")
    try:
        return parse_config(data.decode("utf-8-sig"))
    except (ConfigurationError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse_config(text: str) -> ConfigContents:
    """Return what the text of a file says; raises ConfigurationError with the JSON path or line of the fault."""
    warnings: list[str] = []
    root = _Node(parse_json_with_comments(text), "$", warnings)
    user = root.child("UserConfig", required=True)
    namespaces = user.children("Namespaces", required=True)
    logging = user.child("Logging")
    logging.take("Type", str, "")
    logging.finish()
    found: list[NamespaceConfig] = []
    for node in namespaces:
        namespace = _namespace(node)
        if any(namespace.name == other.name for other in found):
            raise node.error(f"a second namespace is called {namespace.name!r}")
        found.append(namespace)
    user.finish()
    root.finish()
    return ConfigContents(tuple(found), tuple(warnings))


class _Node:
    """A JSON object that knows its path and what has been read of it."""

    __slots__ = ("_members", "_path", "_read", "_warnings")

    def __init__(self, value: object, path: str, warnings: list[str]) -> None:
        self._path = path
        if not isinstance(value, dict):
            raise self.error(f"an object is needed, not {_named(value)}")
        self._members: dict[str, Any] = value
        self._read: set[str] = set()
        self._warnings = warnings

    def error(self, what: str, name: str = "") -> ConfigurationError:
        return ConfigurationError(f"{self._path}{name and f'.{name}'}: {what}.")

    def warn(self, what: str) -> None:
        self._warnings.append(f"{self._path}: {what}.")

    def has(self, name: str) -> bool:
        return self._members.get(name) is not None

    def take(self, name: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """Return a member of this type; without a default it has to be there."""
        self._read.add(name)
        value = self._members.get(name, default)
        if value is None:
            raise self.error("this member is needed", name)
        # JSON tells true from 1; Python's bool is an int.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(f"{_TYPE_NAMES[kind]} is needed, not {_named(value)}", name)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a text, or None when it is absent or empty, as the emulator writes what is not set."""
        return self.take(name, str, "") or None

    def duration(self, name: str, default: int | None) -> int | None:
        if not self.has(name):
            self._read.add(name)
            return default
        try:
            return parse_duration(self.take(name, str), calendar_parts=True)
        except ArgumentInvalid as error:
            raise self.error(str(error).rstrip("."), name) from error

    def finite_duration(self, name: str, default: int) -> int:
        value = self.duration(name, default)
        if value is None:
            raise self.error("this duration cannot be infinite", name)
        return value

    def child(self, name: str, *, required: bool = False) -> _Node:
        """Return a member that is an object; an absent one reads as an empty object."""
        value = self.take(name, dict, None if required else {})
        return _Node(value, f"{self._path}.{name}", self._warnings)

    def children(self, name: str, *, required: bool = False) -> list[_Node]:
        value = self.take(name, list, None if required else [])
        return [_Node(item, f"{self._path}.{name}[{index}]", self._warnings) for index, item in enumerate(value)]

    def checked(self, check: Callable[[_Described], _Described], description: _Described) -> _Described:
        """Return ``description`` checked; what it breaks is reported at this node."""
        try:
            return check(description)
        except (ArgumentInvalid, ArgumentOutOfRange) as error:
            raise self.error(str(error).rstrip(".")) from error

    def finish(self) -> None:
        """Warn about members that nobody read."""
        for name in self._members.keys() - self._read:
            self.warn(f"the member {name!r} is not known and has no effect")


_TYPES: dict[Form, type] = {Form.FLAG: bool, Form.NUMBER: int, Form.SIZE: int, Form.STATUS: str}
_TYPE_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    dict: "an object",
}


def _named(value: object) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), "a number")


def _namespace(node: _Node) -> NamespaceConfig:
    name = node.take("Name", str).lower()
    if not 0 < len(name) <= _NAME_LENGTH_MAX or not _NAME_CHARACTERS.issuperset(name) or "-" in (name[0], name[-1]):
        raise node.error(
            f"{name!r} is no namespace name; use 1 to {_NAME_LENGTH_MAX} letters, digits and hyphens", "Name"
        )
    hosts = node.take("HostNames", list, [])
    if not all(isinstance(host, str) and host for host in hosts):
        raise node.error("a list of host names is needed", "HostNames")
    rate = node.take("MessagesPerSecond", int) if node.has("MessagesPerSecond") else None
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise node.error(f"{rate} is no rate; use 1 to {RATE_MAX}, or leave it out for no bound", "MessagesPerSecond")
    rules = _access_rules(node)
    queue_nodes = node.children("Queues")
    queues = [_queue(queue) for queue in queue_nodes]
    topics = [_topic(topic) for topic in node.children("Topics")]
    relays = [_relay(relay) for relay in node.children("Relays")]
    taken: set[str] = set()
    names = [*(queue.name for queue in queues), *(topic.name for topic in topics), *(relay.name for relay in relays)]
    for entity_name in names:
        if entity_name.lower() in taken:
            raise node.error(f"two entities are called {entity_name!r}; case makes no difference")
        taken.add(entity_name.lower())
    for queue_node, queue in zip(queue_nodes, queues, strict=True):
        for member, target in (
            ("ForwardTo", queue.forward_to),
            ("ForwardDeadLetteredMessagesTo", queue.forward_dead_lettered_messages_to),
        ):
            if target is not None and target.lower() not in taken:
                queue_node.warn(f"{member} is {target!r}, which this file does not create")
    node.finish()
    return NamespaceConfig(
        name=name,
        hosts=tuple(host.lower() for host in hosts),
        rules=rules,
        queues=tuple(queues),
        topics=tuple(topics),
        relays=tuple(relays),
        messages_per_second=rate,
    )


def _queue(node: _Node) -> QueueDescription:
    properties = node.child("Properties")
    queue = QueueDescription(
        name=node.take("Name", str), authorization_rules=_access_rules(properties), **_properties(QUEUE, properties)
    )
    properties.finish()
    node.finish()
    node.checked(lambda queue: check_queue(queue, EMULATOR), queue)
    return queue


def _relay(node: _Node) -> HybridConnectionDescription:
    properties = node.child("Properties")
    relay = HybridConnectionDescription(
        name=node.take("Name", str),
        requires_client_authorization=properties.take("RequiresClientAuthorization", bool, True),
        user_metadata=properties.optional_text("UserMetadata"),
        status=properties.take("Status", str, ACTIVE),
        senders=properties.take("Senders", str, ANY),
        authorization_rules=_access_rules(properties) if properties.has("AuthorizationRules") else (),
    )
    properties.finish()
    node.finish()
    return node.checked(check_relay, relay)


def _topic(node: _Node) -> TopicDescription:
    properties = node.child("Properties")
    topic = TopicDescription(
        name=node.take("Name", str),
        authorization_rules=_access_rules(properties),
        subscriptions=tuple(_subscription(child) for child in node.children("Subscriptions")),
        **_properties(TOPIC, properties),
    )
    properties.finish()
    node.finish()
    node.checked(lambda topic: check_topic(topic, EMULATOR), topic)
    if topic.authorization_rules:
        node.warn(f"topic {topic.name!r} asks for AuthorizationRules, which has no effect in this version")
    return topic


def _subscription(node: _Node) -> SubscriptionDescription:
    properties = node.child("Properties")
    # Without rules of its own a subscription takes every message; with them, only what they take.
    rules = tuple(_rule(rule) for rule in node.children("Rules")) or (DEFAULT_RULE,)
    subscription = SubscriptionDescription(
        name=node.take("Name", str), rules=rules, **_properties(SUBSCRIPTION, properties)
    )
    properties.finish()
    node.finish()
    return subscription


def _rule(node: _Node) -> RuleDescription:
    name = node.take("Name", str)
    properties = node.child("Properties", required=True)
    filter_type = properties.take("FilterType", str)
    sql = correlation = action = None
    if properties.has("SqlFilter"):
        sql_node = properties.child("SqlFilter")
        sql = sql_node.take("SqlExpression", str)
        sql_node.finish()
    if properties.has("CorrelationFilter"):
        correlation = properties.take("CorrelationFilter", dict)
    if properties.has("Action"):
        action_node = properties.child("Action")
        action = action_node.take("SqlExpression", str)
        action_node.finish()
    needed = {"Sql": sql, "Correlation": correlation}
    if filter_type not in needed:
        raise properties.error(f"{filter_type!r} is no filter type; use Sql or Correlation", "FilterType")
    if not needed[filter_type]:
        raise properties.error(f"FilterType is {filter_type}, so {filter_type}Filter has to be there and not be empty")
    properties.finish()
    node.finish()
    return RuleDescription(
        name=name,
        filter_type=filter_type,
        sql_filter=sql if filter_type == "Sql" else None,
        correlation_filter=correlation if filter_type == "Correlation" else None,
        sql_action=action,
    )


@cache
def _rows(kind: str) -> list[tuple[str, str, Form, Any]]:
    """Field, name, form and default of each property that a file may have."""
    rows = properties_of(kind, Surface.CONFIG)
    return [(item.field, item.element, item.form, item.default_in(_EMULATOR_TIER)) for item in rows]


def _properties(kind: str, node: _Node) -> dict[str, Any]:
    """All properties of an entity but its rules, with the emulator's defaults (the emulator's documentation)."""
    return {field: _value(node, name, form, default) for field, name, form, default in _rows(kind)}


def _value(node: _Node, name: str, form: Form, default: Any) -> Any:
    if form in _TYPES:
        return None if default is None and not node.has(name) else node.take(name, _TYPES[form], default)
    if form is Form.DURATION:
        return node.duration(name, default)
    if form is Form.FINITE:
        return None if default is None and not node.has(name) else node.finite_duration(name, default)
    if form is Form.MESSAGE_SIZE:
        return node.take(name, int, default // 1024) * 1024
    return node.optional_text(name)


def _access_rules(node: _Node) -> tuple[AccessRule, ...]:
    rules = []
    for child in node.children("AuthorizationRules"):
        primary_key = child.take("PrimaryKey", str)
        rights = 0
        for right in child.take("Rights", list):
            if not isinstance(right, str) or right not in _RIGHTS:
                raise child.error(f"{json.dumps(right)} is no right; use Listen, Send or Manage", "Rights")
            rights |= _RIGHTS[right]
        rules.append(
            AccessRule(
                name=child.take("KeyName", str),
                primary_key=primary_key,
                secondary_key=child.take("SecondaryKey", str, primary_key),
                rights=rights,
            )
        )
        child.finish()
    try:
        check_access_rules(tuple(rules))
    except ArgumentInvalid as error:
        raise node.error(str(error).rstrip("."), "AuthorizationRules") from error
    return tuple(rules)


_RIGHTS: dict[str, int] = {"Listen": int(Right.LISTEN), "Send": int(Right.SEND), "Manage": int(Right.MANAGE)}
