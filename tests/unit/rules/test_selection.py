"""Which messages a selection takes: SQL over what a receiver sees, conditions over JSON bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.codec import build_message, encode
from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.model.metadata import MessageMetadata
from duobus.rules.language.json_path import JsonCondition
from duobus.rules.selection import Selection

BODY = (
    b"""{"order": {"id": 7, "open": true, "lines": [{"price": 5, "name": "a'b"}, {"price": 15.5}]}, "odd name": null}"""
)


def takes(sql: str | None = None, condition: str | None = None, **metadata: Any) -> bool:
    bare = build_message(["id", None, None, "subject"], {"n": 5}, data=BODY)
    return Selection(sql, condition).takes(
        bare, MessageMetadata(**metadata), enqueued_ms=1_700_000_000_000, sequence_number=3, deliveries=4
    )


@pytest.mark.parametrize(
    ("condition", "is_taken"),
    [
        ("$.order.id = 7", True),
        ("$.order.id == 7.0", True),
        ("$.order.id != 7", False),
        ("$.order.lines[*].price > 15", True),
        ("$.order.lines[0].price > 15", False),
        ("$.order.lines[1].price >= 15.5 && $.order.open = true", True),
        ("$.order.lines[*].name = 'a\\'b'", True),
        ('$["odd name"] = null', True),
        ("$.order.*", True),
        ("$.none", False),
        ("$.order.id > '5'", False),
        ("$.order.open > 0", False),
        ("$.order.lines[9]", False),
    ],
)
def test_a_json_condition_holds_where_it_says(condition: str, is_taken: bool) -> None:
    assert takes(condition=condition) is is_taken


@pytest.mark.parametrize("text", ["", "a", "$.", "$ = ", "$.a = b", "$.a > null", "$.a = 1 && ", "$[", "$.a 5"])
def test_what_is_no_condition_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="position"):
        JsonCondition(text)


@given(st.text(alphabet="$.[]*'\"ab1 &<>=!-", max_size=30), st.binary(max_size=20))
def test_any_text_is_a_condition_or_refused_and_any_body_fulfils_it_or_not(text: str, body: bytes) -> None:
    try:
        condition = JsonCondition(text)
    except ArgumentInvalid:
        return
    assert condition.holds(body) in (True, False)
    assert condition.holds(BODY) in (True, False)


def test_a_filter_sees_what_was_laid_over_and_why_a_message_died() -> None:
    assert takes("n = 5 AND sys.Label = 'subject' AND sys.DeliveryCount = 4 AND sys.SequenceNumber = 3")
    assert takes("DeadLetterReason = 'r' AND laid = 'over'", reason="r", overlay=encode({"laid": "over"}))
    assert not takes("DeadLetterReason = 'r'")
    # One that cannot be worked out takes nothing.
    assert not takes("n / 0 = 1")
    with pytest.raises(ServiceBusError):
        Selection("n = (")


def test_both_have_to_hold() -> None:
    assert takes("n = 5", "$.order.id = 7")
    assert not takes("n = 6", "$.order.id = 7")
    assert not takes("n = 5", "$.order.id = 8")


def test_a_body_that_is_no_json_fulfils_no_condition() -> None:
    for body in ({"data": b"x"}, {"body_value": [1]}, {}):
        bare = build_message(["id"], **body)
        assert not Selection(None, "$").takes(bare, None, enqueued_ms=0, sequence_number=1, deliveries=0)
    bare = build_message(["id"], body_value='{"a": 1}')
    assert Selection(None, "$.a = 1").takes(bare, None, enqueued_ms=0, sequence_number=1, deliveries=0)
