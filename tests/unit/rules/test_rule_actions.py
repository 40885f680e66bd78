"""SET and REMOVE: what they change on a copy, and when they fail."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from duobus.codec import (
    Byte,
    Described,
    Float32,
    Int,
    Symbol,
    Timestamp,
    UByte,
    build_message,
    scan,
)
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import TypedValue
from duobus.model.metadata import MessageMetadata
from duobus.rules.values import EvaluationError
from kits.rules import VECTOR_MESSAGE, VECTOR_PROPERTIES, WHEN_MS, acted, overlay_of, rule


def test_the_documented_examples() -> None:
    payload = build_message([None] * 6, {"quantity": 9, "priority": "low"}, data=b"body")
    overlay = overlay_of("SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';", payload)
    expected = build_message([None, None, None, None, None, "low"], {"quantity": 4, "RuleName": "r"}, data=b"body")
    assert overlay.apply_to(payload) == expected
    assert scan(overlay_of("SET sys.To = 'Entity'").apply_to(VECTOR_MESSAGE)).to == "Entity"


def test_the_original_stays_as_it_is_and_the_body_byte_by_byte() -> None:
    before = bytes(VECTOR_MESSAGE)
    changed = overlay_of("SET qty = 1").apply_to(VECTOR_MESSAGE)
    assert before == VECTOR_MESSAGE
    assert changed.endswith(VECTOR_MESSAGE[-9:])


@pytest.mark.parametrize(
    ("existing", "value", "expected"),
    [
        (Int(1), "7", Int(7)),
        (Int(1), "3000000000", 3_000_000_000),
        (UByte(1), "255", UByte(255)),
        (UByte(1), "256", 256),
        (Byte(1), "-1", Byte(-1)),
        (1, "7", 7),
        (2.5, "7", 7.0),
        (Float32(2.5), "7", Float32(7)),
        (Int(1), "7.5", 7.5),
        ("a", "7", 7),
        (True, "'x'", "x"),
        (1, "NULL", None),
        (1, "missing", None),
        (1, "(1 = 1)", True),
        ("text", "@g", "aaaaaaaa-0000-4000-8000-00000000000a"),
        (1, "@g", uuid.UUID("aaaaaaaa-0000-4000-8000-00000000000a")),
        (1, "@t", Timestamp(WHEN_MS)),
        (1, "@d", Described(Symbol("com.microsoft:timespan"), 6_048_000_000_000)),
    ],
)
def test_a_value_takes_the_existing_type_where_it_fits(existing: Any, value: str, expected: Any) -> None:
    parameters = {
        "g": TypedValue("guid", "aaaaaaaa-0000-4000-8000-00000000000a"),
        "t": TypedValue("dateTime", "2026-01-02T00:00:00Z"),
        "d": TypedValue("duration", "P7D"),
    }
    payload = build_message(None, {"p": existing}, data=b"body")
    found = overlay_of(f"SET p = {value}", payload, parameters=parameters).application["p"]
    assert type(found) is type(expected)
    assert found == expected


def test_statements_run_in_order_and_see_what_came_before() -> None:
    found = acted("SET a = 1; SET b = a + 1; REMOVE a, SET c = a SET a = b")
    assert (found["a"], found["b"], found["c"]) == (2, 2, None)


def test_a_name_in_another_case_changes_the_property_that_is_there() -> None:
    found = acted("SET COLOR = 'blue'; SET Color = color + '!'; REMOVE VIP; REMOVE no")
    assert found["color"] == "blue!"
    assert "vip" not in found
    assert len(found) == len(VECTOR_PROPERTIES) - 1
    found = acted("SET color = 3; REMOVE COLOR; SET x = cOLOR", {"Color": 1, "COLOR": 2})
    assert found == {"Color": 3, "x": 3}


def test_a_property_removed_and_set_again_has_the_new_name() -> None:
    assert acted("REMOVE color; SET Color = 1", {"color": "x"}) == {"Color": 1}
    assert acted("SET color = 1; REMOVE color", {"color": "x"}) == {}
    assert acted("SET new = 1; REMOVE NEW", {"color": "x"}) == {"color": "x"}


def test_system_properties_are_set_where_the_wire_has_them() -> None:
    action = (
        "SET sys.MessageId = 'i'; SET sys.To = 't'; SET sys.Label = 'l'; SET sys.ReplyTo = 'r';"
        "SET sys.CorrelationId = newid(); SET sys.ContentType = 'c'; SET sys.SessionId = 's';"
        "SET sys.ReplyToSessionId = 'rs'; SET sys.PartitionKey = 's'; SET sys.ViaPartitionKey = 'v';"
        "SET sys.TimeToLive = 1.5; SET sys.ScheduledEnqueueTimeUtc = when; SET sys.ForcePersistence = TRUE"
    )
    overlay = overlay_of(action)
    found = scan(overlay.apply_to(VECTOR_MESSAGE))
    assert (found.message_id, found.to, found.subject, found.reply_to) == ("i", "t", "l", "r")
    assert found.correlation_id == "00000000-0000-0000-0000-000000000001"
    assert (found.group_id, found.reply_to_group_id) == ("s", "rs")
    assert type(found.content_type) is Symbol
    metadata = overlay.metadata(MessageMetadata(priority=7))
    assert metadata == MessageMetadata(
        ttl_ms=1500, scheduled_ms=WHEN_MS, partition_key="s", via_partition_key="v", session_id="s", priority=7
    )


def test_system_properties_are_removed() -> None:
    original = MessageMetadata(ttl_ms=5, partition_key="p", priority=7)
    overlay = overlay_of("REMOVE sys.Label; REMOVE sys.TimeToLive; SET sys.PartitionKey = missing", metadata=original)
    assert scan(overlay.apply_to(VECTOR_MESSAGE)).subject is None
    assert overlay.metadata(original) == MessageMetadata(priority=7)
    assert original == MessageMetadata(ttl_ms=5, partition_key="p", priority=7)


def test_an_action_reads_system_properties() -> None:
    found = overlay_of(
        "SET a = sys.TimeToLive; SET sys.TimeToLive = sys.TimeToLive + sys.TimeToLive; SET b = sys.Label + '!'",
        metadata=MessageMetadata(ttl_ms=1000),
    )
    assert found.metadata(MessageMetadata(ttl_ms=1000)) == MessageMetadata(ttl_ms=2000)
    assert found.application["a"] == Described(Symbol("com.microsoft:timespan"), 10_000_000)
    assert found.application["b"] == "Order-7!"


@pytest.mark.parametrize("name", ["SequenceNumber", "EnqueuedTimeUtc", "Size", "DeliveryCount", "State", "LockToken"])
@pytest.mark.parametrize("statement", ["SET sys.{} = 1", "REMOVE sys.{}"])
def test_what_the_broker_gives_cannot_be_changed(name: str, statement: str) -> None:
    with pytest.raises(ArgumentInvalid, match=f"'sys.{name}' is the broker's to give"):
        rule(action=statement.format(name))


def test_an_unknown_system_property_is_refused() -> None:
    with pytest.raises(ArgumentInvalid, match=r"'sys.Nope' is no system property"):
        rule(action="SET sys.Nope = 1")


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("SET a = qty / 0", "division by zero"),
        ("SET sys.To = 5", "takes a string, not an integer"),
        ("SET sys.MessageId = color + ' " + "x" * 126 + "'", "130 characters; at most 128"),
        ("SET sys.SessionId = ' " + "x" * 128 + "'", "at most 128"),
        ("SET sys.ContentType = 'é'", "ASCII"),
        ("SET sys.TimeToLive = 'x'", "takes a time span"),
        ("SET sys.TimeToLive = 0", "positive"),
        ("SET sys.TimeToLive = -5", "positive"),
        ("SET sys.TimeToLive = 1e300", "positive"),
        ("SET sys.TimeToLive = 0.0000001", "positive"),
        ("SET sys.ScheduledEnqueueTimeUtc = 5", "takes a date"),
        ("SET sys.ForcePersistence = 1", "takes a boolean"),
        ("SET sys.SessionId = 'a'; SET sys.PartitionKey = 'b'", "must be equal"),
    ],
)
def test_an_action_that_fails_on_a_message(action: str, text: str) -> None:
    with pytest.raises(EvaluationError, match=text):
        overlay_of(action)


def test_the_copy_obeys_the_limits_of_a_message() -> None:
    payload = build_message(None, {"big": "x" * 30_000, "too": "x" * 20_000}, data=b"body")
    overlay_of("SET more = 'x'; SET big = big + 'y'", payload)
    with pytest.raises(EvaluationError, match="at most 32768"):
        overlay_of("SET big = big + big", payload)
    with pytest.raises(EvaluationError, match="at most 65536"):
        overlay_of("SET more = big", payload)
    # What is replaced makes room.
    overlay_of("SET too = big", payload)
