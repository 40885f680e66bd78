"""The topology document: everything of a namespace that can be made again, as one JSON document.

Pure: between the SDK's objects, the document, and the emulator's ``Config.json``. Properties have the names that the
other commands print, durations are ISO 8601. Keys of access rules are in it only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from duobus.cli.entity_commands import camel, plain
from duobus.errors import ConfigurationError, ServiceBusError
from duobus.model.json.values import from_json, to_json
from duobus.model.properties import Form, Surface, properties_of
from duobus.model.tiers import SIZES_MIB
from duobus.model.topology.forms import Described, described, rule_described
from duobus.server.config_file import NamespaceConfig, parse_config

KIND: Final = "duobus-topology"
VERSION: Final = 1
#: The name that the emulator's own configuration has.
NAMESPACE: Final = "sbemulatorns"

#: A partitioned entity tells the size of all its partitions, and is made with that of one: 16, or 2 in a namespace that
#: is partitioned as a whole, where every entity takes messages of at least this size (Azure: partitioned entities).
_PARTITIONS: Final = 16
_PARTITIONS_PREMIUM: Final = 2
_MESSAGE_KIB_PREMIUM: Final = 1024
_USUAL_MESSAGE_KIB: Final = 256

_CORRELATION: Final = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


def entity_form(kind: str, entity: Any, *, with_keys: bool) -> dict[str, Any]:
    """An entity of the SDK as the document has it."""
    found: dict[str, Any] = {"name": entity.name}
    for item in properties_of(kind, Surface.SDK):
        value = plain(getattr(entity, item.sdk_name, None))
        if value is not None:
            found[item.json_name] = _target(value) if item.form is Form.TARGET else value
    size = found.get("maxSizeInMegabytes")
    if found.get("enablePartitioning") and size:
        found["maxSizeInMegabytes"] = _of_one(size, found.get("maxMessageSizeInKilobytes") or 0)
    rules = getattr(entity, "authorization_rules", None)
    if with_keys and rules:
        found["authorizationRules"] = [
            {
                "keyName": rule.key_name,
                "primaryKey": rule.primary_key,
                "secondaryKey": rule.secondary_key,
                "rights": sorted(str(plain(right)) for right in rule.rights or ()),
            }
            for rule in rules
        ]
    return found


def _of_one(size: int, message_kib: int) -> int:
    """The size of one partition. That of all belongs to 16 of them or to 2; where to either, the messages tell."""
    counts = [count for count in (_PARTITIONS, _PARTITIONS_PREMIUM) if size % count == 0 and size // count in SIZES_MIB]
    if not counts:
        return size
    return size // (counts[-1] if message_kib >= _MESSAGE_KIB_PREMIUM else counts[0])


def _target(value: str) -> str:
    """The path of an entity that is forwarded to: it is told with the address of its namespace."""
    return value.split("://", 1)[1].split("/", 1)[1] if "://" in value else value


def rule_form(rule: Any) -> dict[str, Any]:
    """A rule of the SDK as the document has it."""
    kind = type(rule.filter).__name__.removesuffix("RuleFilter").lower()
    condition: dict[str, Any] = {"type": kind}
    if kind == "sql":
        condition["sqlExpression"] = rule.filter.sql_expression
        if rule.filter.parameters:
            condition["parameters"] = _typed(rule.filter.parameters)
    elif kind == "correlation":
        for name in _CORRELATION:
            if getattr(rule.filter, name, None) is not None:
                condition[camel(name)] = getattr(rule.filter, name)
        if rule.filter.properties:
            condition["properties"] = _typed(rule.filter.properties)
    found: dict[str, Any] = {"name": rule.name, "filter": condition}
    expression = getattr(rule.action, "sql_expression", None)
    if expression:
        found["action"] = {"sqlExpression": expression}
        if rule.action.parameters:
            found["action"]["parameters"] = _typed(rule.action.parameters)
    return found


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(name): to_json(value) if isinstance(value, bool | int | float | str) else plain(value)
        for name, value in values.items()
    }


def sdk_rule(form: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords with which the SDK makes a rule."""
    from azure.servicebus.management import (
        CorrelationRuleFilter,
        FalseRuleFilter,
        SqlRuleAction,
        SqlRuleFilter,
        TrueRuleFilter,
    )

    condition = form.get("filter") or {"type": "true"}
    kind = condition.get("type")
    made: Any
    if kind == "sql":
        made = SqlRuleFilter(condition["sqlExpression"], _values(condition.get("parameters")) or None)
    elif kind == "correlation":
        fields = {name: condition[camel(name)] for name in _CORRELATION if camel(name) in condition}
        made = CorrelationRuleFilter(**fields, properties=_values(condition.get("properties")))
    else:
        made = FalseRuleFilter() if kind == "false" else TrueRuleFilter()
    found: dict[str, Any] = {"filter": made}
    action = form.get("action")
    if action:
        found["action"] = SqlRuleAction(action["sqlExpression"], _values(action.get("parameters")) or None)
    return found


def _values(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: from_json(value) for name, value in (values or {}).items()}


def sdk_properties(kind: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords with which the SDK makes or changes an entity."""
    from azure.servicebus.management import AuthorizationRule

    rows = properties_of(kind, Surface.SDK)
    found = {item.sdk_name: form[item.json_name] for item in rows if item.json_name in form}
    if form.get("authorizationRules"):
        found["authorization_rules"] = [
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                key_name=rule["keyName"],
                primary_key=rule["primaryKey"],
                secondary_key=rule["secondaryKey"],
                rights=rule["rights"],
            )
            for rule in form["authorizationRules"]
        ]
    return found


def document(queues: list[dict[str, Any]], topics: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole document; entities by name, so that two of the same namespace are equal."""
    return {"kind": KIND, "version": VERSION, "queues": _sorted(queues), "topics": _sorted(topics)}


def _sorted(forms: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(forms, key=lambda form: str(form["name"]).lower())


# -- checking ---------------------------------------------------------------------------------------------------


def checked(found: Any) -> dict[str, Any]:
    """A document that was read.

    Raises:
        click.ClickException: It is none.
    """
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("version") != VERSION:
        raise click.ClickException("The file is neither a topology of this version nor a Config.json of the emulator.")
    for kind, forms in (("queue", found.get("queues", [])), ("topic", found.get("topics", []))):
        _check_all(kind, forms, "$." + kind + "s")
    return found


def _check_all(kind: str, forms: Any, path: str) -> None:
    inner = {"topic": ("subscriptions", "subscription"), "subscription": ("rules", "rule")}.get(kind)
    known = {item.json_name for item in properties_of(kind, Surface.SDK)} | {"name", "authorizationRules"}
    if kind == "rule":
        known = {"name", "filter", "action"}
    if inner is not None:
        known.add(inner[0])
    if not isinstance(forms, list):
        raise click.ClickException(f"{path}: a list is needed.")
    for index, form in enumerate(forms):
        where = f"{path}[{index}]"
        if not isinstance(form, dict) or not isinstance(form.get("name"), str):
            raise click.ClickException(f"{where}: an object with a name is needed.")
        unknown = sorted(form.keys() - known)
        if unknown:
            raise click.ClickException(f"{where}: there is no property {unknown[0]!r} of a {kind}.")
        if inner is not None:
            _check_all(inner[1], form.get(inner[0], []), f"{where}.{inner[0]}")


# -- the emulator's file ----------------------------------------------------------------------------------------


def to_config(found: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The emulator's ``Config.json`` of a document."""
    config = {
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
        click.ClickException: It is wrong, or has several namespaces and none of them was named.
    """
    try:
        contents = parse_config(text)
    except (ConfigurationError, ServiceBusError) as error:
        raise click.ClickException(str(error)) from None
    names = [config.name for config in contents.namespaces]
    if namespace is None and len(names) == 1:
        namespace = names[0]
    config = next((one for one in contents.namespaces if one.name == (namespace or "").lower()), None)
    if config is None:
        raise click.ClickException(f"Say with --namespace which one is meant: {', '.join(names)}.")
    return _of_config(config), contents.warnings


def _of_config(config: NamespaceConfig) -> dict[str, Any]:
    topics = []
    for topic in config.topics:
        subscriptions = [
            _described("subscription", one) | {"rules": _sorted(map(rule_described, one.rules))}
            for one in topic.subscriptions
        ]
        topics.append(_described("topic", topic) | {"subscriptions": _sorted(subscriptions)})
    return document([_described("queue", queue) for queue in config.queues], topics)


def _described(kind: str, about: Described) -> dict[str, Any]:
    found = described(kind, about, Surface.SDK)
    if found.get("maxMessageSizeInKilobytes") == _USUAL_MESSAGE_KIB:
        # Azure takes it on Premium only, so the usual one is not asked for.
        del found["maxMessageSizeInKilobytes"]
    return found
