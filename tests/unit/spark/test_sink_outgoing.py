"""Rows become messages, and a row that cannot is named."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from duobus.spark.sink.messages import FOREVER_MS, Outgoing, RowError, check_columns, messages_of, property_of


def one(entity: str | None = "q", message_id: str | None = None, **row: Any) -> Outgoing:
    columns = {name: [value] for name, value in {"body": b"x", **row}.items()}
    (made,) = messages_of(columns, [message_id], entity, lambda index: f"w/0/{index}")
    return made


def test_a_row_of_a_body_is_a_message_of_data() -> None:
    made = one(body=b"\x00\xff")
    assert list(made.message.body) == [b"\x00\xff"]
    assert (made.entity, made.key) == ("q", None)


def test_a_body_of_text_is_its_utf_8() -> None:
    assert list(one(body="für").message.body) == ["für".encode()]


def test_a_body_that_is_null_is_empty() -> None:
    assert list(one(body=None).message.body) == [b""]


def test_every_column_finds_its_field() -> None:
    made = one(
        message_id="m",
        session_id="s",
        correlation_id="c",
        subject="sub",
        content_type="text/plain",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
    )
    properties = made.message.properties
    assert properties is not None
    assert properties.message_id == "m"
    assert properties.group_id == "s"
    assert properties.correlation_id == "c"
    assert properties.subject == "sub"
    assert properties.content_type == "text/plain"
    assert properties.to == "t"
    assert properties.reply_to == "r"
    assert properties.reply_to_group_id == "rs"
    assert made.key == "s"


def test_a_time_to_live_is_kept_to_the_millisecond() -> None:
    header = one(time_to_live_ms=1_500).message.header
    assert header is not None
    assert header.time_to_live == 1_500


def test_a_time_to_live_without_end_is_left_out() -> None:
    assert one(time_to_live_ms=FOREVER_MS).message.header is None


def test_a_scheduled_time_and_a_partition_key_are_annotations() -> None:
    made = one(scheduled_enqueue_time=1_700_000_000_123_456, partition_key="k")
    assert made.message.annotations == {
        "x-opt-partition-key": "k",
        "x-opt-scheduled-enqueue-time": {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_123},
    }
    assert made.key == "k"


def test_the_entity_of_the_row_counts_where_no_option_says_one() -> None:
    columns = {"body": [b"", b""], "entity": ["a", "b"]}
    made = list(messages_of(columns, [None, None], None, str))
    assert [out.entity for out in made] == ["a", "b"]
    assert [out.entity for out in messages_of(columns, [None, None], "c", str)] == ["c", "c"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (None, "t", "t"),
        ("string", "t", "t"),
        ("boolean", "true", True),
        ("double", "0.5", 0.5),
        ("float", "0.5", {"TYPE": "FLOAT", "VALUE": 0.5}),
        ("long", "-7", {"TYPE": "LONG", "VALUE": -7}),
        ("ubyte", "255", {"TYPE": "UBYTE", "VALUE": 255}),
        ("timestamp", "1700000000123", {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_123}),
        ("timestamp", "2023-11-14T22:13:20.123+00:00", {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_123}),
        ("uuid", "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        ("binary", "AP8=", {"TYPE": "BINARY", "VALUE": b"\x00\xff"}),
        ("symbol", "s", {"TYPE": "SYMBOL", "VALUE": b"s"}),
        ("decimal", "1.50", Decimal("1.50")),
        ("null", "", None),
    ],
)
def test_a_property_has_the_type_that_is_noted(kind: str | None, text: str, value: Any) -> None:
    found = property_of("p", text, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("long", "x"), ("ubyte", "256"), ("long", str(2**63)), ("boolean", "1"), ("binary", "*"), ("uuid", "u"),
     ("timestamp", "2023-11-14T22:13:20"), ("list", "[]"), ("double", "a"), ("decimal", "a")],
)  # fmt: skip
def test_a_property_that_is_none_of_its_type_names_itself(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"its property 'p' is no {kind}"):
        property_of("p", text, kind)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"session_id": "s" * 129}, "its session_id has 129 characters; 128 are the most"),
        ({"session_id": "a", "partition_key": "b"}, "have to be equal"),
        ({"time_to_live_ms": 0}, "time_to_live_ms has to be positive"),
        ({"body_type": "text"}, "body_type has to be data, value or sequence"),
        ({"body_type": "value", "body": b"no"}, "no AMQP section"),
        ({"application_properties": [("n", "x")], "application_property_types": [("n", "int")]}, "'n' is no int"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError, match=f"Row w/0/0 cannot be sent: .*{said}"):
        one(**row)


def test_a_misspelt_column_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"no column 'sessionid'\. Did you mean 'session_id'\?"):
        check_columns({"body": "binary", "sessionid": "string"}, has_entity=True)


def test_what_a_broker_assigned_is_taken_and_not_sent() -> None:
    check_columns({"body": "binary", "sequence_number": "bigint", "enqueued_time": "timestamp"}, has_entity=True)


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'body' has to be binary or string, not int"):
        check_columns({"body": "int"}, has_entity=True)
    with pytest.raises(ValueError, match="'scheduled_enqueue_time' has to be timestamp, not timestamp_ntz"):
        check_columns({"body": "string", "scheduled_enqueue_time": "timestamp_ntz"}, has_entity=True)


def test_rows_that_go_nowhere_are_refused() -> None:
    with pytest.raises(ValueError, match="Say where to"):
        check_columns({"body": "binary"}, has_entity=False)
    with pytest.raises(ValueError, match="needs a column 'body'"):
        check_columns({"subject": "string"}, has_entity=True)
