"""Creation and expiry of a message on its way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.codec import Symbol, Timestamp, UInt, ULong, build_message, decode, scan, timed_front
from duobus.codec.sections import PROPERTIES, find_section

CREATED, EXPIRES = 1_700_000_000_000, 1_700_000_060_000
FIELDS = ["id", b"user", "to", "s", "r", ULong(7), Symbol("a/b"), Symbol("gzip"), Timestamp(1), Timestamp(2)]
MORE = ["session", UInt(7), "rg"]


def with_times(message: bytes, creation_ms: int, expiry_ms: int | None) -> bytes:
    """The message with both times in it."""
    front, end = timed_front(message, creation_ms, expiry_ms)
    return front + message[end:]


def properties_of(message: bytes) -> list[Any]:
    """The fields, with those that are left out."""
    start, value, _ = find_section(message, PROPERTIES)
    fields: list[Any] = [] if start == value else decode(message, value)[0]
    return fields + [None] * (13 - len(fields))


def other_sections(message: bytes) -> bytes:
    """What comes behind the properties."""
    return message[find_section(message, PROPERTIES)[2] :]


SHAPES = [
    None,
    [],
    ["id"],
    [None],
    ["id", *[None] * 12],
    ["x" * 200, *[None] * 9],
    ["x" * 230],
    [None] * 9 + [Timestamp(4)],
    ["id", *[None] * 9, "session"],
    [*FIELDS, *MORE],
    FIELDS,
    FIELDS[:9],
    ["x" * 400, b"y" * 300, *FIELDS[2:], *MORE],
]


@pytest.mark.parametrize("fields", SHAPES, ids=str)
@pytest.mark.parametrize("expires", [EXPIRES, None])
def test_both_times_are_replaced_and_nothing_else(fields: list[Any] | None, expires: int | None) -> None:
    message = build_message(fields, {"k": 1}, data=b"body")
    changed = with_times(message, CREATED, expires)
    scan(changed)
    before = properties_of(message)
    wanted = [*before[:8], expires, CREATED if expires else before[9], *before[10:]]
    assert properties_of(changed) == wanted
    assert other_sections(changed) == other_sections(message)


def test_an_expiry_beyond_the_year_9999_is_told_as_its_end() -> None:
    assert properties_of(with_times(build_message(["id"], data=b""), CREATED, 1 << 62))[8] == 253_402_300_799_999


@settings(deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\x00\x53\x73\xc0", b"\x00\x53\x73\xd0", b"\x00\x53\x73\xc0\x09\x0a"]),
)
def test_bytes_that_are_no_message_come_back_and_raise_nothing(data: bytes, start: bytes) -> None:
    for expires in (EXPIRES, None):
        assert isinstance(with_times(start + data, CREATED, expires), bytes)
