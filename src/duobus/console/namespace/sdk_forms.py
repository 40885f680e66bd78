"""Entities and rules of the SDK as plain forms, and plain forms as what the SDK makes entities and rules of.

Properties have the names that commands print, durations are ISO 8601.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Mapping
from typing import Any, Final

from duobus.model.durations import format_duration
from duobus.model.json.values import from_json, to_json
from duobus.model.properties import Form, Surface, properties_of
from duobus.model.tiers import SIZES_MIB

#: A partitioned entity tells the size of all its partitions, and is made with that of one: 16, or 2 in a namespace that
#: is partitioned as a whole, where every entity takes messages of at least this size (Azure: partitioned entities).
_PARTITIONS: Final = 16
_PARTITIONS_PREMIUM: Final = 2
_MESSAGE_KIB_PREMIUM: Final = 1024

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


def camel(name: str) -> str:
    """``lock_duration`` as ``lockDuration``, as ``az`` prints it."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def plain(value: Any) -> Any:
    """A value of the SDK as JSON has it."""
    if isinstance(value, datetime.timedelta):
        return format_duration(value // datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


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
