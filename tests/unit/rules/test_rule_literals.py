"""Values with a declared type: out of descriptions, and from AMQP and back."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from duobus.codec import Byte, Described, Float32, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import TypedValue
from duobus.rules import amqp_value, typed_value
from duobus.rules.language.literals import VALUE_LENGTH_MAX, VALUES_MAX, parse_parameters, parse_typed
from duobus.rules.values import DateTime, TimeSpan

SECOND = 10_000_000


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", " as it is ", " as it is "),
        ("anyURI", "http://x", "http://x"),
        ("int", " 7 ", 7),
        ("long", "-9223372036854775808", -(2**63)),
        ("unsignedByte", "255", 255),
        ("double", "2.5E3", 2500.0),
        ("double", "-INF", float("-inf")),
        ("decimal", "1.50", 1.5),
        ("boolean", "true", True),
        ("boolean", "0", False),
        ("dateTime", "1970-01-01T00:00:01", DateTime(SECOND)),
        ("dateTime", "1970-01-01T00:00:00.0000001Z", DateTime(1)),
        ("dateTime", "1970-01-01T02:00:00+02:00", DateTime(0)),
        ("dateTime", "1969-12-31T23:00:00-01:30", DateTime(1800 * SECOND)),
        ("duration", "P1DT2H3M4.5S", TimeSpan(937_845 * SECOND // 10)),
        ("duration", "-PT0.5S", TimeSpan(-SECOND // 2)),
        ("duration", "P1Y", TimeSpan(365 * 86_400 * SECOND)),
        ("guid", "{00000000-0000-0000-0000-00000000000A}", uuid.UUID(int=10)),
        ("base64Binary", "AQI=", b"\x01\x02"),
    ],
)
def test_a_text_is_read_as_its_type_says(kind: str, text: str, expected: Any) -> None:
    found = parse_typed("p", TypedValue(kind, text))
    assert type(found) is type(expected)
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "1.5"),
        ("int", "٣"),
        ("int", "1_000"),
        ("long", "9223372036854775808"),
        ("double", "nan"),
        ("double", "1_0.0"),
        ("boolean", "TRUE"),
        ("dateTime", "2026-02-30T00:00:00"),
        ("dateTime", "today"),
        ("dateTime", "2026-01-01"),
        ("duration", "P"),
        ("duration", "PT"),
        ("duration", "7 days"),
        ("duration", "P999999999Y"),
        ("guid", "x"),
        ("base64Binary", "?"),
        ("string", "x" * (VALUE_LENGTH_MAX + 1)),
    ],
)
def test_a_text_that_is_none_of_its_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ArgumentInvalid, match="The value of 'p'"):
        parse_typed("p", TypedValue(kind, text))


def test_parameters_are_found_with_and_without_their_sign() -> None:
    assert parse_parameters({"@A": TypedValue("int", "1"), "b": TypedValue("int", "2")}) == {"a": 1, "b": 2}
    assert parse_parameters(None) == {}
    with pytest.raises(ArgumentInvalid, match="129 parameters"):
        parse_parameters({f"p{n}": TypedValue("int", "1") for n in range(VALUES_MAX + 1)})


@pytest.mark.parametrize(
    "raw",
    [
        "text",
        True,
        7,
        2.5,
        float("inf"),
        Int(-7),
        Short(7),
        Byte(7),
        UByte(7),
        UShort(7),
        UInt(7),
        ULong(7),
        Float32(2.5),
        uuid.UUID(int=10),
        Timestamp(1_767_312_000_123),
        Timestamp(-1),
        Timestamp(-60_000_000_000_000),
        Described(Symbol("com.microsoft:timespan"), -6_048_000_000_001),
        b"\x00\xff",
    ],
)
def test_a_value_of_amqp_survives_the_way_to_a_description_and_back(raw: Any) -> None:
    again = amqp_value("p", typed_value(raw))
    assert type(again) is type(raw)
    assert again == raw


@pytest.mark.parametrize("raw", [None, [1], {"a": 1}, Described(Symbol("x"), 1), Timestamp(2**62)])
def test_what_cannot_stand_in_a_rule_is_refused(raw: Any) -> None:
    with pytest.raises(ArgumentInvalid):
        typed_value(raw)
