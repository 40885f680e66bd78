"""RuleDescription and its XML: filters and actions of every kind (HTTP contract A.5.4)."""

from __future__ import annotations

from typing import Final

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom import xml_writer as xml
from duobus.gateway.rest.atom.fields import Fields
from duobus.gateway.rest.atom.typed_values import TypedValue, read_values, write_values
from duobus.gateway.rest.atom.xml_reader import Element

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


class RuleBody(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as its XML tells it.

    Attributes:
        name: Its name; None where the XML has none.
        kind: SQL, CORRELATION, TRUE or FALSE.
        sql: Expression of an SQL filter, else empty.
        parameters: Of an SQL filter, by their names as written (``@x``).
        correlation: System property of CORRELATED to its text.
        properties: Application properties of a correlation filter.
        action: Expression of the action; None without one.
        action_parameters: Of the action.
        created_at_ms: 0 in requests.
    """

    name: str | None = None
    kind: str = TRUE
    sql: str = ""
    parameters: dict[str, TypedValue] = {}
    correlation: dict[str, str] = {}
    properties: dict[str, TypedValue] = {}
    action: str | None = None
    action_parameters: dict[str, TypedValue] = {}
    created_at_ms: int = 0


def read_rule(node: Element) -> RuleBody:
    """Return the rule that an element holds; whether its expressions are SQL is not looked at.

    Raises:
        ArgumentInvalid: The type of the filter or action is unknown, or something of it is missing or wrong.
    """
    filtering = node.find("Filter")
    body = RuleBody() if filtering is None else _read_filter(filtering)
    action, parameters = _read_action(node.find("Action"))
    name = Fields(node).text("Name")
    return msgspec.structs.replace(body, name=name, action=action, action_parameters=parameters)


def _read_filter(node: Element) -> RuleBody:
    kind = _KINDS.get(node.type_name or "")
    if kind is None:
        raise ArgumentInvalid(
            f"The filter's i:type is {(node.type_name or '')[:64]!r}; it must be one of {', '.join(_KINDS)}."
        )
    if kind == CORRELATION:
        correlation = {name: text for name in CORRELATED if (text := node.text_of(name))}
        properties = read_values(node.find("Properties"), "the filter's Properties")
        if not correlation and not properties:
            raise ArgumentInvalid("A correlation filter needs at least one property to compare.")
        return RuleBody(kind=kind, correlation=correlation, properties=properties)
    if kind != SQL:
        return RuleBody(kind=kind)
    sql = (node.text_of("SqlExpression") or "").strip()
    if not sql:
        raise ArgumentInvalid("The SQL filter has no SqlExpression.")
    return RuleBody(kind=kind, sql=sql, parameters=read_values(node.find("Parameters"), "the filter's Parameters"))


def _read_action(node: Element | None) -> tuple[str | None, dict[str, TypedValue]]:
    if node is None or node.type_name == "EmptyRuleAction":
        return None, {}
    if node.type_name != "SqlRuleAction":
        raise ArgumentInvalid(
            f"The action's i:type is {(node.type_name or '')[:64]!r}; it must be SqlRuleAction or EmptyRuleAction."
        )
    sql = (node.text_of("SqlExpression") or "").strip()
    if not sql:
        raise ArgumentInvalid("The rule's action has no SqlExpression. Leave the action out, or give one.")
    return sql, read_values(node.find("Parameters"), "the action's Parameters")


def write_rule(rule: RuleBody) -> str:
    """Return the elements of a rule, in the cloud's order."""
    if rule.action is None:
        action = '<Action i:type="EmptyRuleAction"></Action>'
    else:
        inside = xml.element("SqlExpression", rule.action) + _LEVEL + write_values("Parameters", rule.action_parameters)
        action = f'<Action i:type="SqlRuleAction">{inside}</Action>'
    return (
        f'<Filter i:type="{_TYPES[rule.kind]}">{_filter_inside(rule)}</Filter>'
        + action
        + xml.instant("CreatedAt", rule.created_at_ms)
        + xml.element("Name", rule.name or "")
    )


def _filter_inside(rule: RuleBody) -> str:
    if rule.kind == CORRELATION:
        texts = "".join(xml.optional(name, rule.correlation.get(name)) for name in CORRELATED)
        return texts + write_values("Properties", rule.properties)
    sql = _FIXED.get(rule.kind, rule.sql)
    return xml.element("SqlExpression", sql) + _LEVEL + write_values("Parameters", rule.parameters)
