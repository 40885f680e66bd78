"""The operations of ``$management`` that add, remove and list a subscription's rules."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.broker import Subscription
from duobus.codec import Described, Int, Timestamp, ULong
from duobus.errors import ArgumentInvalid, NotImplementedYet, ServiceBusError
from duobus.gateway.amqp.arguments import demand, map_of
from duobus.model.descriptions import Right, RuleDescription
from duobus.telemetry.audit_log import CREATE, DELETE, DONE, Change, differences

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.address import Address

#: Rules of one reply.
RULES_PAGE_MAX: Final = 100

_RULE: Final = 0x0000013700000004
_SQL_FILTER: Final = 0x000001370000006
_TRUE_FILTER: Final = 0x000001370000007
_FALSE_FILTER: Final = 0x000001370000008
_CORRELATION_FILTER: Final = 0x000001370000009
_NO_ACTION: Final = 0x0000013700000005
_SQL_ACTION: Final = 0x0000013700000006
_COMPATIBILITY: Final = Int(20)

_PAGE: Final = (("skip", 0), ("top", RULES_PAGE_MAX))
_NO_PAGE: Final = "'skip' must be at least 0, 'top' at least 1."

#: Members of a correlation filter: on the wire, and in a description; in the order of the described list.
_MEMBERS: Final = (
    ("correlation-id", "CorrelationId"),
    ("message-id", "MessageId"),
    ("to", "To"),
    ("reply-to", "ReplyTo"),
    ("label", "Label"),
    ("session-id", "SessionId"),
    ("reply-to-session-id", "ReplyToSessionId"),
    ("content-type", "ContentType"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_TOPIC_OPERATIONS: Final = ("com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message")
_RULE_OPERATIONS: Final = ("com.microsoft:add-rule", "com.microsoft:remove-rule", "com.microsoft:enumerate-rules")


class RuleNode(Protocol):
    """The management node of a subscription, on a connection."""

    peer: Peer
    queue: Queue
    address: Address


def demand_known(queue: Queue, name: str, *, is_sub_queue: bool) -> None:
    """Refuse operations that an entity of this kind has not (Azure: AMQP protocol guide).

    Raises:
        ArgumentInvalid: It is peek, at a topic (Azure: AMQP request-response operations).
        NotImplementedYet: It is any other.
    """
    if queue.kind == "topic" and name == "com.microsoft:peek-message":
        raise ArgumentInvalid(f"The topic '{queue.path}' cannot be peeked. Peek a subscription.")
    has_rules = queue.kind == "subscription" and not is_sub_queue
    if queue.kind == "topic":
        is_known = name in _TOPIC_OPERATIONS
    elif queue.kind == "subscription":
        is_known = name not in _TOPIC_OPERATIONS and (has_rules or name not in _RULE_OPERATIONS)
    else:
        is_known = name not in _RULE_OPERATIONS
    if not is_known:
        raise NotImplementedYet(f"'{name}' is no operation of the {queue.kind} '{queue.path}'.")


async def add_rule(node: RuleNode, body: dict[Any, Any]) -> tuple[int, Any]:
    """Make a rule; it is in force for the next message."""
    description: dict[Any, Any] = demand(body.get("rule-description"), dict, "'rule-description' must be a map.")
    rule = _rule_of(_name(body), description)
    await _audited(node, CREATE, rule, lambda: node.peer.server.unit.topics.add_rule(_subscription(node), rule))
    return 200, None


async def remove_rule(node: RuleNode, body: dict[Any, Any]) -> tuple[int, Any]:
    """Remove a rule by name."""
    rule = RuleDescription(name=_name(body))
    await _audited(node, DELETE, rule, lambda: node.peer.server.unit.topics.remove_rule(_subscription(node), rule.name))
    return 200, None


def _origin_of(peer: Peer) -> str:
    """The network address of a client."""
    transport = peer._transport
    found = None if transport is None else transport.get_extra_info("peername")
    return str(found[0]) if isinstance(found, tuple) and found else ""


async def _audited(node: RuleNode, operation: str, rule: RuleDescription, work: Callable[[], Awaitable[None]]) -> None:
    """Change a rule between the two lines that the audit log has of it."""
    peer, subscription = node.peer, _subscription(node)
    server, now_ms = peer.server, peer.server.clock.now_ms
    change = Change(
        operation,
        "rule",
        subscription.namespace,
        f"{subscription.path}/Rules/{rule.name}",
        who=peer.grants.who(node.address.segments(), Right.MANAGE, now_ms()),
        origin=_origin_of(peer),
        interface="amqp",
    )
    server.audit.begin(change, now_ms())
    try:
        await work()
    except ServiceBusError as error:
        server.audit.end(change, now_ms(), str(error))
        raise
    server.audit.end(change, now_ms(), DONE, differences(None, rule) if operation == CREATE else None)


async def enumerate_rules(node: RuleNode, body: dict[Any, Any]) -> tuple[int, Any]:
    """List rules, by pages."""
    skip, top = (demand(body.get(name, default), int, _NO_PAGE) for name, default in _PAGE)
    if skip < 0 or top < 1:
        raise ArgumentInvalid(_NO_PAGE)
    page = _subscription(node).about.rules[skip : skip + min(top, RULES_PAGE_MAX)]
    if not page:
        return 204, None
    return 200, {"rules": [{"rule-description": _described(rule)} for rule in page]}


def _subscription(node: RuleNode) -> Subscription:
    assert isinstance(node.queue, Subscription)  # demand_known has seen to it
    return node.queue


def _name(body: Mapping[Any, Any]) -> str:
    return str(demand(body.get("rule-name"), str, "'rule-name' must be a string."))


# -- in ---------------------------------------------------------------------------------------------------------


def _rule_of(name: str, description: Mapping[Any, Any]) -> RuleDescription:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    action = description.get("sql-rule-action")
    # Clients without an action send null, an empty map, or a map without an expression.
    has_action = action is not None and action != {} and action != {"expression": None}
    sql_action = _expression(action, "sql-rule-action") if has_action else None
    if (sql is None) == (correlation is None):
        raise ArgumentInvalid("A rule has a 'sql-filter' or a 'correlation-filter', and not both.")
    if sql is not None:
        text = _expression(sql, "sql-filter")
        return RuleDescription(name=name, filter_type="Sql", sql_filter=text, sql_action=sql_action)
    members = _correlation_of(correlation)
    return RuleDescription(name=name, filter_type="Correlation", correlation_filter=members, sql_action=sql_action)


def _expression(value: object, what: str) -> str:
    return str(demand(map_of(value).get("expression"), str, f"'{what}' must be a map with an 'expression'."))


def _correlation_of(value: object) -> dict[str, Any]:
    members: dict[Any, Any] = demand(value, dict, "'correlation-filter' must be a map.")
    found: dict[str, Any] = {}
    for key, member in _MEMBERS:
        text = members.get(key)
        if text is not None:
            found[member] = str(demand(text, str, f"'{key}' of a correlation filter must be a string."))
    properties = map_of(members.get("properties"))
    stored = {str(key): _stored(one) for key, one in properties.items()}
    if stored:
        found["Properties"] = stored
    return found


def _stored(value: Any) -> Any:
    """A value as descriptions keep it, with its type where a text of JSON would lose it."""
    for kind, stored in _STORED:
        if isinstance(value, kind):
            return stored(value)
    raise ArgumentInvalid(f"A property of a correlation filter cannot be of the type {type(value).__name__}.")


def _stored_time(value: Timestamp) -> dict[str, str]:
    text = (_EPOCH + timedelta(milliseconds=int(value))).isoformat().replace("+00:00", "Z")
    return {"type": "dateTime", "value": text}


#: Types of AMQP to what descriptions keep of a value; a type before those that it is one of.
_STORED: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    # Null is no value to compare with, yet clients expect a property that they have sent as null in the list.
    (type(None), lambda _: None),
    (bool, bool),
    (str, str),
    (Timestamp, _stored_time),
    (float, lambda value: {"type": "double", "value": repr(float(value))}),
    (Int, lambda value: {"type": "int", "value": str(int(value))}),
    (int, lambda value: {"type": "long", "value": str(int(value))}),
    (uuid.UUID, lambda value: {"type": "guid", "value": str(value)}),
)


# -- out --------------------------------------------------------------------------------------------------------


def _described(rule: RuleDescription) -> Described:
    action = Described(ULong(_NO_ACTION), [])
    if rule.sql_action is not None:
        action = Described(ULong(_SQL_ACTION), [rule.sql_action, _COMPATIBILITY])
    created = Timestamp(rule.created_at_ms)
    return Described(ULong(_RULE), [_described_filter(rule), action, rule.name, created])


def _described_filter(rule: RuleDescription) -> Described:
    if rule.filter_type == "Correlation":
        members = rule.correlation_filter or {}
        values = [members.get(member) for _, member in _MEMBERS]
        properties = {key: _on_the_wire(one) for key, one in (members.get("Properties") or {}).items()}
        return Described(ULong(_CORRELATION_FILTER), [*values, properties])
    if rule.filter_type == "Sql":
        return Described(ULong(_SQL_FILTER), [rule.sql_filter, _COMPATIBILITY])
    return Described(ULong(_TRUE_FILTER if rule.filter_type == "True" else _FALSE_FILTER), [])


def _on_the_wire(value: Any) -> Any:
    """The inverse of ``_stored``; what was declared with another type comes as its text."""
    if not isinstance(value, dict):
        return value
    kind, text = str(value.get("type")), str(value.get("value"))
    try:
        if kind in ("int", "short", "byte", "unsignedByte", "unsignedShort"):
            return Int(int(text))
        if kind in ("long", "unsignedInt"):
            return int(text)
        if kind in ("double", "float", "decimal"):
            return float(text)
        if kind == "boolean":
            return text in ("true", "1")
        if kind == "guid":
            return uuid.UUID(text)
        if kind == "dateTime":
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return Timestamp((moment - _EPOCH) // timedelta(milliseconds=1))
    except ValueError:
        return text
    return text


__all__ = ["RULES_PAGE_MAX", "add_rule", "demand_known", "enumerate_rules", "remove_rule"]
