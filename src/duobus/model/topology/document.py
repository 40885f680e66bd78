"""The topology document: everything of a namespace that can be made again, as one JSON document.

Pure: between the document and the emulator's ``Config.json``. Properties have the names that commands print, durations
are ISO 8601. Keys of access rules are in it only when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from duobus.errors import ConfigurationError, ServiceBusError
from duobus.model.json.values import from_json
from duobus.model.properties import Surface, properties_of
from duobus.model.relay.description import check_relay, relay_document, relay_form, relay_of_form
from duobus.model.topology.config_file import NamespaceConfig, parse_config
from duobus.model.topology.forms import Described, described, rule_described

KIND: Final = "duobus-topology"
VERSION: Final = 1
#: The name that the emulator's own configuration has.
NAMESPACE: Final = "sbemulatorns"
#: The largest message where an entity does not say, in KiB.
_USUAL_MESSAGE_KIB: Final = 256
#: What a correlation filter may compare beside properties of the application.
_CORRELATION: Final = (
    "contentType",
    "correlationId",
    "label",
    "messageId",
    "replyTo",
    "replyToSessionId",
    "sessionId",
    "to",
)
#: What an access rule has beside its rights.
_KEY: Final = ("keyName", "primaryKey", "secondaryKey")


def document(
    queues: list[dict[str, Any]], topics: list[dict[str, Any]], relays: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The whole document; entities by name, so that two of the same namespace are equal.

    ``relays``: None for a namespace that has none because only a duobus has relays.
    """
    found = {"kind": KIND, "version": VERSION, "queues": _sorted(queues), "topics": _sorted(topics)}
    return found if relays is None else found | {"relays": _sorted(relays)}


def _sorted(forms: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(forms, key=lambda form: str(form["name"]).lower())


# -- checking ---------------------------------------------------------------------------------------------------


def checked(found: Any) -> dict[str, Any]:
    """A document that was read.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("version") != VERSION:
        raise ConfigurationError("The file is neither a topology of this version nor a Config.json of the emulator.")
    for kind, forms in (("queue", found.get("queues", [])), ("topic", found.get("topics", []))):
        _check_all(kind, forms, "$." + kind + "s")
    if "relays" in found:
        _check_relays(found["relays"], "$.relays")
    return found


def _check_relays(forms: Any, path: str) -> None:
    if not isinstance(forms, list):
        raise ConfigurationError(f"{path}: a list is needed.")
    for index, form in enumerate(forms):
        where = f"{path}[{index}]"
        if not isinstance(form, dict) or not isinstance(form.get("name"), str):
            raise ConfigurationError(f"{where}: an object with a name is needed.")
        if form.get("authorizationRules"):
            _check_access_rules(form["authorizationRules"], f"{where}.authorizationRules")
        try:
            check_relay(relay_of_form(form["name"], form))
        except ServiceBusError as error:
            raise ConfigurationError(f"{where}: {error}") from None


def _check_all(kind: str, forms: Any, path: str) -> None:
    inner = {"topic": ("subscriptions", "subscription"), "subscription": ("rules", "rule")}.get(kind)
    known = {item.json_name for item in properties_of(kind, Surface.SDK)} | {"name", "authorizationRules"}
    if kind == "rule":
        known = {"name", "filter", "action"}
    if inner is not None:
        known.add(inner[0])
    if not isinstance(forms, list):
        raise ConfigurationError(f"{path}: a list is needed.")
    for index, form in enumerate(forms):
        where = f"{path}[{index}]"
        if not isinstance(form, dict) or not isinstance(form.get("name"), str):
            raise ConfigurationError(f"{where}: an object with a name is needed.")
        unknown = sorted(form.keys() - known)
        if unknown:
            raise ConfigurationError(f"{where}: there is no property {unknown[0]!r} of a {kind}.")
        if inner is not None:
            _check_all(inner[1], form.get(inner[0], []), f"{where}.{inner[0]}")
        if kind == "rule":
            _check_rule(form, where)
        elif form.get("authorizationRules"):
            _check_access_rules(form["authorizationRules"], f"{where}.authorizationRules")


def _check_rule(form: Mapping[str, Any], where: str) -> None:
    condition = form.get("filter")
    if condition:
        path = where + ".filter"
        kind = _object(condition, path).get("type")
        if kind == "sql":
            _check_expression(condition, path, {"type"})
        elif kind == "correlation":
            _check_members(condition, path, {"type", "properties", *_CORRELATION})
            for name in _CORRELATION:
                if not isinstance(condition.get(name), str | None):
                    raise ConfigurationError(f"{path}.{name}: a text is needed.")
            _check_values(condition.get("properties"), path + ".properties")
        elif kind in ("true", "false"):
            _check_members(condition, path, {"type"})
        else:
            raise ConfigurationError(f"{path}.type: 'sql', 'correlation', 'true' or 'false' is needed.")
    action = form.get("action")
    if action:
        _check_expression(_object(action, where + ".action"), where + ".action", set())


def _check_expression(found: Mapping[str, Any], where: str, others: set[str]) -> None:
    """An SQL filter or action, of which ``others`` are the members that the two do not share."""
    _check_members(found, where, {"sqlExpression", "parameters", *others})
    if not isinstance(found.get("sqlExpression"), str):
        raise ConfigurationError(f"{where}.sqlExpression: a text is needed.")
    _check_values(found.get("parameters"), where + ".parameters")


def _check_values(values: Any, where: str) -> None:
    """Properties or parameters, each in its JSON form with its type."""
    if values is None:
        return
    for name, value in _object(values, where).items():
        try:
            from_json(value)
        except ServiceBusError as error:
            raise ConfigurationError(f"{where}.{name}: {error}") from None


def _check_access_rules(rules: Any, where: str) -> None:
    if not isinstance(rules, list):
        raise ConfigurationError(f"{where}: a list is needed.")
    for index, rule in enumerate(rules):
        path = f"{where}[{index}]"
        _check_members(_object(rule, path), path, {*_KEY, "rights"})
        for name in _KEY:
            if not isinstance(rule.get(name), str):
                raise ConfigurationError(f"{path}.{name}: a text is needed.")
        rights = rule.get("rights")
        if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
            raise ConfigurationError(f"{path}.rights: a list of texts is needed.")


def _object(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ConfigurationError(f"{where}: an object is needed.")
    return found


def _check_members(found: Mapping[str, Any], where: str, known: set[str]) -> None:
    unknown = sorted(found.keys() - known)
    if unknown:
        raise ConfigurationError(f"{where}: there is no member {unknown[0]!r}.")


# -- the emulator's file ----------------------------------------------------------------------------------------


def to_config(found: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The emulator's ``Config.json`` of a document."""
    config: dict[str, Any] = {
        "Name": namespace,
        "Queues": [_config_entity("queue", form) for form in found["queues"]],
        "Topics": [
            _config_entity("topic", form)
            | {
                "Subscriptions": [
                    _config_entity("subscription", one) | {"Rules": [_config_rule(rule) for rule in one["rules"]]}
                    for one in form["subscriptions"]
                ]
            }
            for form in found["topics"]
        ],
    }
    if found.get("relays"):
        # The emulator has no relays, so that a file for it is as before.
        config["Relays"] = [_config_relay(form) for form in found["relays"]]
    return {"UserConfig": {"Namespaces": [config], "Logging": {"Type": "File"}}}


def with_parameters(found: Mapping[str, Any]) -> list[str]:
    """Paths of the rules that have parameters, which the file has no place for."""
    return [
        f"{topic['name']}/{one['name']}/{rule['name']}"
        for topic in found["topics"]
        for one in topic["subscriptions"]
        for rule in one["rules"]
        if "parameters" in rule["filter"] or "parameters" in (rule.get("action") or {})
    ]


def _pascal(name: str) -> str:
    return name[0].upper() + name[1:]


def _config_entity(kind: str, form: Mapping[str, Any]) -> dict[str, Any]:
    rows = properties_of(kind, Surface.SDK)
    properties: dict[str, Any] = {item.element: form[item.json_name] for item in rows if item.json_name in form}
    if form.get("authorizationRules"):
        properties["AuthorizationRules"] = [
            {_pascal(name): value for name, value in rule.items()} for rule in form["authorizationRules"]
        ]
    return {"Name": form["name"], "Properties": properties}


def _config_relay(form: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {
        _pascal(name): value for name, value in form.items() if name not in ("name", "authorizationRules")
    }
    if form.get("authorizationRules"):
        properties["AuthorizationRules"] = [
            {_pascal(name): value for name, value in rule.items()} for rule in form["authorizationRules"]
        ]
    return {"Name": form["name"], "Properties": properties}


def _config_rule(form: Mapping[str, Any]) -> dict[str, Any]:
    condition = form["filter"]
    kind = condition["type"]
    if kind == "correlation":
        members = {_pascal(name): value for name, value in condition.items() if name != "type"}
        properties: dict[str, Any] = {"FilterType": "Correlation", "CorrelationFilter": members}
    else:
        # The file has no words for these two.
        expression = {"true": "1=1", "false": "1=0"}.get(kind) or condition["sqlExpression"]
        properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    if form.get("action"):
        properties["Action"] = {"SqlExpression": form["action"]["sqlExpression"]}
    return {"Name": form["name"], "Properties": properties}


def from_config(text: str, namespace: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The document of a ``Config.json``, and what its author should be told.

    Raises:
        ConfigurationError: It is wrong, or has several namespaces and none of them was named.
    """
    try:
        contents = parse_config(text)
    except (ConfigurationError, ServiceBusError) as error:
        raise ConfigurationError(str(error)) from None
    names = [config.name for config in contents.namespaces]
    if namespace is None and len(names) == 1:
        namespace = names[0]
    config = next((one for one in contents.namespaces if one.name == (namespace or "").lower()), None)
    if config is None:
        raise ConfigurationError(f"Say with --namespace which one is meant: {', '.join(names)}.")
    return _of_config(config), contents.warnings


def _of_config(config: NamespaceConfig) -> dict[str, Any]:
    topics = []
    for topic in config.topics:
        subscriptions = [
            _described("subscription", one) | {"rules": _sorted(map(rule_described, one.rules))}
            for one in topic.subscriptions
        ]
        topics.append(_described("topic", topic) | {"subscriptions": _sorted(subscriptions)})
    relays = [relay_document(relay_form(relay, with_keys=True)) for relay in config.relays]
    return document([_described("queue", queue) for queue in config.queues], topics, relays or None)


def _described(kind: str, about: Described) -> dict[str, Any]:
    found = described(kind, about, Surface.SDK)
    if found.get("maxMessageSizeInKilobytes") == _USUAL_MESSAGE_KIB:
        # Azure takes it on Premium only, so the usual one is not asked for.
        del found["maxMessageSizeInKilobytes"]
    return found


# -- files ------------------------------------------------------------------------------------------------------


def parse_document(data: bytes, namespace: str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The document of a file, which is one itself or a ``Config.json``, and what its author should be told.

    Raises:
        ConfigurationError: It is neither, it is wrong, or it has several namespaces and none of them was named.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("The file is not UTF-8.") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        # With comments, perhaps: the emulator's may have them.
        found = {"UserConfig": None}
    if isinstance(found, dict) and "UserConfig" in found:
        return from_config(text, namespace)
    return checked(found), ()
