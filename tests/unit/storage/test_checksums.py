"""Rows of messages by themselves: each value of a wrong type is named, whatever the sums say."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.storage.checksums import body_sum, message_row_fault, state_sum

ID, AT, PAYLOAD = (5 << 48) | 3, 1_700_000_000_000, b"payload"
BODY = body_sum(ID, AT, PAYLOAD)


def row(**changed: Any) -> tuple[object, ...]:
    """A whole row with a state of its own, and with these columns instead of its own."""
    columns: dict[str, Any] = {
        "message_id": ID,
        "enqueued_ms": AT,
        "state": 2,
        "deliveries": 3,
        "metadata": b"m",
        "payload": PAYLOAD,
        "body": BODY,
        "state_check": state_sum(ID, 2, 3, b"m"),
    }
    return tuple((columns | changed).values())


def ordinary(**changed: Any) -> tuple[object, ...]:
    """A whole row that never was exceptional, and with these columns instead of its own."""
    return row(**({"state": 0, "deliveries": 0, "metadata": None, "state_check": None} | changed))


def test_whole_rows_have_no_fault() -> None:
    assert message_row_fault(row()) is None
    assert message_row_fault(row(metadata=None, state_check=state_sum(ID, 2, 3, None))) is None
    assert message_row_fault(ordinary()) is None


@pytest.mark.parametrize(
    "changed", [{"message_id": str(ID)}, {"enqueued_ms": None}, {"enqueued_ms": float(AT)}, {"payload": "payload"}]
)
def test_a_column_of_the_body_that_has_another_type_is_a_fault(changed: dict[str, Any]) -> None:
    assert message_row_fault(row(**changed)) == "body: a column has the wrong type"
    assert message_row_fault(ordinary(**changed)) == "body: a column has the wrong type"


@pytest.mark.parametrize("changed", [{"state": 2.0}, {"deliveries": 3.0}, {"deliveries": None}, {"metadata": "m"}])
def test_a_column_of_the_state_that_has_another_type_is_a_fault(changed: dict[str, Any]) -> None:
    assert message_row_fault(row(**changed)) == "state: a column has the wrong type"


@pytest.mark.parametrize(
    "changed", [{"state": 1}, {"state": 0.0}, {"deliveries": 1}, {"deliveries": 0.0}, {"metadata": b""}]
)
def test_a_state_without_its_sum_is_a_fault(changed: dict[str, Any]) -> None:
    assert message_row_fault(ordinary(**changed)) == "state: the checksum is missing"


def test_values_that_the_sums_do_not_hold_for_are_a_fault() -> None:
    assert message_row_fault(row(payload=b"another")) == "body: the checksum does not hold"
    assert message_row_fault(row(enqueued_ms=AT + 1)) == "body: the checksum does not hold"
    for changed in ({"state": 1}, {"deliveries": 4}, {"metadata": b"n"}, {"metadata": None}):
        assert message_row_fault(row(**changed)) == "state: the checksum does not hold"
