"""RuleDescription and its XML: filters and actions of every kind (Azure: Service Bus REST API)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.fields import Fields
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.gateway.rest.atom.xml.typed_values import STRING, read_values, write_values
from duobus.model.descriptions import DEFAULT_RULE, RuleDescription, TypedValue

SQL: Final = "Sql"
CORRELATION: Final = "Correlation"
TRUE: Final = "True"
FALSE: Final = "False"

_KINDS: Final = {"SqlFilter": SQL, "CorrelationFilter": CORRELATION, "TrueFilter": TRUE, "FalseFilter": FALSE}
_TYPES: Final = {kind: name for name, kind in _KINDS.items()}
#: What stands in a true or false filter: clients send and expect a text there, and nobody reads it.
_FIXED: Final = {TRUE: "1=1", FALSE: "1=0"}

#: System properties of a correlation filter, in the order in which they are written.
CORRELATED: Final = (
    "CorrelationId",
    "MessageId",
    "To",
    "ReplyTo",
    "Label",
    "SessionId",
    "ReplyToSessionId",
    "ContentType",
)
_LEVEL: Final = "<CompatibilityLevel>20</CompatibilityLevel>"


def read_rule(node: Element, name: str = "") -> RuleDescription:
    """Return the rule that an element holds; whether its expressions are SQL is not looked at.

    Args:
        node: The element.
        name: What it is called; empty where the element says it.

    Raises:
        ArgumentInvalid: The type of the filter or action is unknown, or something of it is missing or wrong.
    """
    name = name or Fields(node).text("Name") or DEFAULT_RULE.name
    filtering = node.find("Filter")
    rule = RuleDescription(name=name) if filtering is None else _read_filter(filtering, name)
    action, parameters = _read_action(node.find("Action"))
    return msgspec.structs.replace(rule, sql_action=action, action_parameters=parameters)


def _read_filter(node: Element, name: str) -> RuleDescription:
    kind = _KINDS.get(node.type_name or "")
    if kind is None:
        raise ArgumentInvalid(
            f"The filter's i:type is {(node.type_name or '')[:64]!r}; it must be one of {', '.join(_KINDS)}."
        )
    if kind == CORRELATION:
        found: dict[str, Any] = {member: text for member in CORRELATED if (text := node.text_of(member))}
        properties = read_values(node.find("Properties"), "the filter's Properties")
        if properties:
            found["Properties"] = {key: {"type": one.type, "value": one.value} for key, one in properties.items()}
        if not found:
            raise ArgumentInvalid("A correlation filter needs at least one property to compare.")
        return RuleDescription(name=name, filter_type=kind, correlation_filter=found)
    if kind != SQL:
        return RuleDescription(name=name, filter_type=kind)
    sql = (node.text_of("SqlExpression") or "").strip()
    if not sql:
        raise ArgumentInvalid("The SQL filter has no SqlExpression.")
    parameters = read_values(node.find("Parameters"), "the filter's Parameters")
    return RuleDescription(name=name, filter_type=kind, sql_filter=sql, sql_parameters=parameters or None)


def _read_action(node: Element | None) -> tuple[str | None, dict[str, TypedValue] | None]:
    if node is None or node.type_name == "EmptyRuleAction":
        return None, None
    if node.type_name != "SqlRuleAction":
        raise ArgumentInvalid(
            f"The action's i:type is {(node.type_name or '')[:64]!r}; it must be SqlRuleAction or EmptyRuleAction."
        )
    sql = (node.text_of("SqlExpression") or "").strip()
    if not sql:
        raise ArgumentInvalid("The rule's action has no SqlExpression. Leave the action out, or give one.")
    return sql, read_values(node.find("Parameters"), "the action's Parameters") or None


def write_rule(rule: RuleDescription) -> str:
    """Return the elements of a rule, in the cloud's order."""
    if rule.sql_action is None:
        action = '<Action i:type="EmptyRuleAction"></Action>'
    else:
        parameters = write_values("Parameters", rule.action_parameters or {})
        inside = xml.element("SqlExpression", rule.sql_action) + _LEVEL + parameters
        action = f'<Action i:type="SqlRuleAction">{inside}</Action>'
    return (
        f'<Filter i:type="{_TYPES[rule.filter_type]}">{_filter_inside(rule)}</Filter>'
        + action
        + xml.instant("CreatedAt", rule.created_at_ms)
        + xml.element("Name", rule.name)
    )


def _filter_inside(rule: RuleDescription) -> str:
    if rule.filter_type == CORRELATION:
        members = rule.correlation_filter or {}
        texts = "".join(xml.optional(name, _plain(members.get(name))) for name in CORRELATED)
        # A null, which AMQP can bring, is told over AMQP alone: this format's readers take it for no value.
        given = ((str(key), value) for key, value in (members.get("Properties") or {}).items() if value is not None)
        return texts + write_values("Properties", {key: _typed(value) for key, value in given})
    sql = _FIXED.get(rule.filter_type) or rule.sql_filter or ""
    return xml.element("SqlExpression", sql) + _LEVEL + write_values("Parameters", rule.sql_parameters or {})


def _plain(value: object) -> str | None:
    return None if value is None else str(value)


def _typed(value: object) -> TypedValue:
    """A property of a correlation filter: declared with its type, or a plain JSON value of a configuration file."""
    if isinstance(value, TypedValue):
        return value
    if isinstance(value, dict):
        return TypedValue(str(value.get("type", STRING)), str(value.get("value", "")))
    if isinstance(value, bool):
        return TypedValue("boolean", "true" if value else "false")
    if isinstance(value, int):
        return TypedValue("int" if -(1 << 31) <= value < 1 << 31 else "long", str(value))
    if isinstance(value, float):
        return TypedValue("double", repr(value))
    return TypedValue(STRING, str(value))
