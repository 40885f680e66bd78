"""Telling by its layout that a message is plain: whatever is told so, the thorough scan says too."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.codec import DecodeError, GroupShape, build_message, plain_group_id, scan, scan_plain

_TEXT = st.text("ab\u00e9", max_size=3)
_FIELDS = st.lists(st.one_of(st.none(), _TEXT), max_size=13)
_MESSAGES = st.builds(
    lambda fields, named, data: build_message(fields, named, data=data),
    st.one_of(
        _FIELDS, st.builds(lambda a, b, c: [a, *[None] * 9, b, *c], _TEXT, _TEXT, st.lists(st.none(), max_size=2))
    ),
    st.one_of(st.none(), st.dictionaries(_TEXT, _TEXT, max_size=2)),
    st.one_of(st.binary(max_size=4), st.just(bytes(300))),
)


def plain(message_id: str, group_id: str | None, data: bytes = b"x" * 300, named: Any = None) -> bytes:
    """A message that has an id and a session and nothing else."""
    return build_message([message_id, *[None] * 9, group_id], named, data=data)


def shape_of(payload: bytes) -> GroupShape:
    return GroupShape(payload, scan_plain(payload, False))


@settings(max_examples=600, deadline=None)
@given(_MESSAGES, _MESSAGES)
def test_a_group_id_that_the_layout_tells_is_the_one_that_the_thorough_scan_finds(first: bytes, other: bytes) -> None:
    shape = shape_of(first)
    if not shape.is_known:
        return
    for payload in (first, other):
        found = shape.group_id(payload)
        if found is not None:
            assert scan_plain(payload, False) == shape.bare
            assert plain_group_id(payload, shape.bare) == found
            assert scan(payload).group_id == found.decode()
    assert shape.group_id(first) is not None


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_byte_that_differs_is_either_a_value_or_noticed(at: int, byte: int) -> None:
    payload = plain("message", "group", named={"a": "b"})
    shape = shape_of(payload)
    changed = bytearray(payload)
    changed[at % len(payload)] = byte
    found = shape.group_id(bytes(changed))
    if found is not None:
        # It is no text perhaps, which whoever takes it finds out.
        assert scan_plain(bytes(changed), False) == shape.bare
        assert plain_group_id(bytes(changed), shape.bare) == found


def test_messages_of_one_sender_are_told_whatever_their_ids_and_bodies() -> None:
    shape = shape_of(plain("id-1", "one", named={"key": "value 1"}))
    assert shape.is_known
    assert shape.group_id(plain("id-2", "two", b"y" * 300, named={"key": "value 2"})) == b"two"


def test_another_layout_is_not_told() -> None:
    shape = shape_of(plain("id-1", "one"))
    for other in (
        plain("id-1", None),
        plain("id-10", "one"),
        plain("id-1", "four"),
        plain("id-1", "one", b"x" * 301),
        build_message(["id-1", *[None] * 5, "a", *[None] * 3, "one"], data=b"x" * 297),
        b"",
    ):
        assert shape.group_id(other) is None


def test_what_is_not_plain_has_no_known_layout() -> None:
    for payload in (build_message(["id"], data=b"x"), plain("", None), plain("id", "x" * 129), b"\x00\x53\x73\xc0"):
        assert not shape_of(payload).is_known


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40), st.binary(max_size=40))
def test_torn_messages_raise_nothing(size: int, tail: bytes) -> None:
    payload = plain("id-1", "one", b"x")[:size] + tail
    assert shape_of(payload).group_id(payload) is None or scan_is_fine(payload)


def scan_is_fine(payload: bytes) -> bool:
    """Whether the thorough scan takes it, or finds fault with a text only."""
    try:
        scan(payload)
    except DecodeError as error:
        return "text" in str(error) or "UTF-8" in str(error) or "utf-8" in str(error)
    return True


@settings(max_examples=400, deadline=None)
@given(_MESSAGES, st.lists(_MESSAGES, max_size=3))
def test_of_many_messages_the_group_ids_are_those_of_each_or_none_at_all(first: bytes, others: list[bytes]) -> None:
    shape = shape_of(first)
    payloads = [first, *others]
    singly = [shape.group_id(payload) for payload in payloads]
    found = shape.group_ids(payloads)
    assert found is None if None in singly else found is not None and list(found) == singly


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_among_many_a_byte_that_differs_is_noticed_as_it_is_in_one(at: int, byte: int) -> None:
    payload = plain("message", "group", named={"a": "b"})
    shape = shape_of(payload)
    changed = bytearray(payload)
    changed[at % len(payload)] = byte
    one = shape.group_id(bytes(changed))
    many = shape.group_ids([payload, bytes(changed)])
    assert many == (None if one is None else (b"group", one))
