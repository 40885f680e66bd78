"""The message of the vectors, rules from their texts, and one rule's verdict on a message."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from duobus.codec import Int, Timestamp, application_properties, build_message
from duobus.model.descriptions import RuleDescription, TypedValue
from duobus.model.metadata import MessageMetadata
from duobus.rules import Match, MessageView, Overlay, Rule, RuleSet, compile_rule
from duobus.rules.values import EvaluationError

WHEN_MS = 1_767_312_000_000  # 2026-01-02T00:00Z
VECTOR_PROPERTIES = {
    "qty": Int(5),
    "price": 2.5,
    "color": "red",
    "vip": True,
    "when": Timestamp(WHEN_MS),
    "a b": 1,
    "nul": None,
}
VECTOR_MESSAGE = build_message(["m1", None, None, "Order-7"], VECTOR_PROPERTIES, data=b"body")
PARAMETERS = {"@t": TypedValue("dateTime", "2026-02-01T00:00:00"), "@d": TypedValue("duration", "P7D")}
#: Filters, and what each says of that message: true, false, unknown, an error, or that the text itself is refused.
VECTORS = [
    ("qty = 5", "T"),
    ("qty = 5.0", "T"),
    ("user.qty > 4 AND color = 'red'", "T"),
    ("COLOR = 'red'", "T"),
    ("color = 'RED'", "F"),
    ("color = red", "U"),
    ("missing = 1", "U"),
    ("NOT (missing = 1)", "U"),
    ("missing = 1 OR qty = 5", "T"),
    ("missing = 1 AND qty = 6", "F"),
    ("missing IS NULL", "T"),
    ("nul IS NULL", "T"),
    ("EXISTS(missing)", "F"),
    ("NOT EXISTS(qty)", "F"),
    ("qty IN (1, 5)", "T"),
    ("qty NOT IN (1, 2)", "T"),
    ("missing NOT IN (1)", "U"),
    ("qty IN (missing, 5)", "T"),
    ("sys.Label LIKE 'Order-%'", "T"),
    ("sys.label LIKE 'rder-%'", "F"),
    ("sys.Label LIKE 'Order!-_' ESCAPE '!'", "refused"),
    ("'50%' LIKE '50!%' ESCAPE '!'", "T"),
    ("[a b] = 1", "T"),
    ('"a b" = 1', "T"),
    ('color = "red"', "U"),
    ("qty / 2 = 2", "T"),
    ("qty / 2.0 = 2.5", "T"),
    ("qty % 3 = 2", "T"),
    ("qty / 0 = 1", "E"),
    ("-qty < 0", "T"),
    ("sys.Nope = 1", "refused"),
    ("vip = TRUE", "T"),
    ("vip", "T"),
    ("qty", "E"),
    ("qty > '4'", "U"),
    ("property('a b') = 1", "T"),
    ("when < @t", "T"),
    ("(@t - when) > @d", "T"),
    ("TRUE OR qty / 0 = 1", "T"),
    ("1=1", "T"),
    ("color = 'it''s'", "F"),
    ("sys.MessageId = 'm1' AND price * 2 = 5", "T"),
    ("color + 'dish' = 'reddish'", "T"),
    ("nul = NULL", "U"),
]


def rule(
    sql: str | None = None,
    action: str | None = None,
    *,
    name: str = "r",
    correlation: dict[str, Any] | None = None,
    parameters: dict[str, TypedValue] | None = None,
    filter_type: str | None = None,
) -> Rule:
    kind = "Correlation" if correlation is not None else "Sql" if sql is not None else "True"
    return compile_rule(
        RuleDescription(
            name=name,
            filter_type=filter_type or kind,
            sql_filter=sql,
            correlation_filter=correlation,
            sql_action=action,
            sql_parameters=parameters,
            action_parameters=parameters,
        )
    )


def counting_ids() -> Callable[[], uuid.UUID]:
    numbers = itertools.count(1)
    return lambda: uuid.UUID(int=next(numbers))


def rule_set(subscriptions: dict[int, list[Rule]]) -> RuleSet:
    return RuleSet(subscriptions, new_id=counting_ids())


def view(properties: dict[str, Any] | None = None, fields: list[Any] | None = None, **more: Any) -> MessageView:
    return MessageView(build_message(fields, properties, data=b"body"), **more)


def remembered(found: RuleSet, payload: bytes) -> list[Match]:
    """What a payload gives when nothing like it was seen, and what it gives then."""
    return [found.match_payload(payload, None, None, None) for _ in range(2)]


def matches(found: Rule, message: MessageView) -> bool:
    message.new_id = counting_ids()
    message.need(found.sections)
    return bool(found.test(message))


def verdict(sql: str, payload: bytes = VECTOR_MESSAGE, parameters: dict[str, TypedValue] | None = None) -> str:
    """T, F, U, or E for an error in the message; a mistake in the text is raised."""
    try:
        if matches(rule(sql, parameters=parameters), MessageView(payload)):
            return "T"
        # What is false is true when it is negated; what is unknown is not.
        return "F" if matches(rule(f"NOT ({sql})", parameters=parameters), MessageView(payload)) else "U"
    except EvaluationError:
        return "E"


def truth(sql: str, properties: dict[str, Any] | None = None, fields: list[Any] | None = None) -> str:
    return verdict(sql, build_message(fields, properties, data=b"body"))


def overlay_of(
    action: str, payload: bytes = VECTOR_MESSAGE, metadata: MessageMetadata | None = None, **more: Any
) -> Overlay:
    """What an action makes of a message; an error in the message is raised as EvaluationError."""
    match = rule_set({1: [rule(action=action, **more)]}).match(MessageView(payload, metadata))
    if match.errors:
        raise EvaluationError(match.errors[1])
    assert match.sources == ()
    return match.altered[0].overlay


def acted(action: str, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    """The application properties after an action, ``RuleName`` left out."""
    payload = VECTOR_MESSAGE if properties is None else build_message(None, properties, data=b"body")
    found = application_properties(overlay_of(action, payload).apply_to(payload))
    assert found.pop("RuleName") == "r"
    return found
