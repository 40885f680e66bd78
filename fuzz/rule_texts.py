"""Fuzz target of rules: filters, actions, and messages that they are applied to."""

from __future__ import annotations

from uuid import UUID

from duobus.codec import application_properties, build_message
from duobus.errors import ServiceBusError
from duobus.model.descriptions import RuleDescription, TypedValue
from duobus.rules import MessageView, RuleSet, compile_rule

_RULE_MESSAGE = build_message(["id", None, "to", "label"], {"a": 5, "b": "text", "c": 2.5, "d": True, "e": None})
_PARAMETERS = {"@t": TypedValue("dateTime", "2026-02-01T00:00:00"), "@d": TypedValue("duration", "P7D")}


def rules(data: bytes) -> None:
    """A filter, an action or a message: the first byte chooses, the rest is its text or bytes."""
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    payload = _RULE_MESSAGE
    sql, action = "a = 5 AND b LIKE '%t'", "SET a = a + 1; REMOVE B; SET sys.Label = b"
    if kind < b"\x55":
        sql = text
    elif kind < b"\xaa":
        action = text
    else:
        payload = data[1:]
    try:
        descriptions = [
            RuleDescription(name="f", filter_type="Sql", sql_filter=sql, sql_parameters=_PARAMETERS),
            RuleDescription(name="a", sql_action=action, action_parameters=_PARAMETERS),
        ]
        compiled = [compile_rule(description) for description in descriptions]
    except ServiceBusError:
        return
    found = RuleSet({1: compiled}, new_id=lambda: UUID(int=1)).match(MessageView(payload))
    for copy in found.altered:
        changed = application_properties(copy.overlay.apply_to(payload))
        if changed.get("RuleName") != "a":
            raise AssertionError("a copy does not tell its rule")
