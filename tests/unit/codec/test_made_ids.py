"""The message id that a message gets which came without one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.codec import (
    MADE_ID_ROOM,
    Symbol,
    annotations_section,
    build_message,
    data_section,
    decode,
    encode,
    has_made_id,
    header_section,
    plain_start,
    scan,
    scan_plain,
    sent_size,
    with_made_id,
    with_own_id,
)
from duobus.codec.sections import PROPERTIES, find_section

TEXT = b"0123456789abcdef0123456789abcdef"
FIELDS = (
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "absolute_expiry_ms",
    "creation_time_ms",
    "group_id",
    "reply_to_group_id",
)

_TEXTS = st.one_of(st.none(), st.text(max_size=40), st.just("x" * 230))
_FIELDS = st.lists(_TEXTS, max_size=4).map(lambda texts: [None, None, *texts] if texts else [])
_LIST32 = st.builds(
    lambda fields: (
        b"\x00\x53\x73\xd0"
        + (4 + len(fields)).to_bytes(4, "big")
        + len(fields).to_bytes(4, "big")
        + b"\x40" * len(fields)
    ),
    st.lists(st.none(), max_size=13),
)
_PROPERTIES = st.one_of(
    st.just(b""),
    st.just(b"\x00\x53\x73\x45"),
    st.just(b"\x00\x53\x73\xc0\x01\x00"),
    st.just(b"\x00\x53\x73\xc0\x0e\x0d" + b"\x40" * 13),
    st.just(bytes.fromhex("00800000000000000073") + encode([None, b"user"])),
    _LIST32,
    _FIELDS.map(build_message),
)
_BODIES = st.sampled_from([b"", data_section(b"x"), data_section(b"x" * 300), b"\x00\x53\x77\x40"])
_HEADS = st.sampled_from([b"", header_section(True), header_section(ttl_ms=5) + annotations_section({"a": 1})])


@settings(max_examples=100, deadline=None)
@given(_HEADS, _PROPERTIES, st.sampled_from([b"", build_message(None, {"k": "v"})]), _BODIES)
def test_a_message_in_whatever_form_gets_an_id_and_stays_the_same_otherwise(
    head: bytes, properties: bytes, named: bytes, body: bytes
) -> None:
    payload = head + properties + named + body
    before = scan(payload)
    quick = scan_plain(payload, True)
    assert quick < 0
    assert plain_start(quick) in (-1, len(head))
    made = with_made_id(payload, before.bare, TEXT)
    after = scan(made)
    assert after.message_id == TEXT.decode()
    assert [getattr(after, name) for name in FIELDS] == [getattr(before, name) for name in FIELDS]
    assert made.endswith(named + body)
    assert len(made) - (len(payload) - len(head)) <= MADE_ID_ROOM
    assert sent_size(made) <= len(payload) - len(head)
    assert has_made_id(made)
    assert not has_made_id(payload[before.bare :])
    own = with_own_id(made)
    assert scan(own).message_id == TEXT.decode()
    assert not has_made_id(own)
    assert decode(own, find_section(own, PROPERTIES)[1])[0] == decode(made, find_section(made, PROPERTIES)[1])[0]


@pytest.mark.parametrize("width", range(205, 260))
def test_properties_that_no_longer_fit_a_short_list_become_a_long_one(width: int) -> None:
    payload = build_message([None, None, "t" * width], data=b"body")
    made = with_made_id(payload, 0, TEXT)
    assert (scan(made).message_id, scan(made).to) == (TEXT.decode(), "t" * width)
    assert has_made_id(made)
    assert scan(with_own_id(made)).to == "t" * width


def test_a_large_body_follows_its_new_id_untouched() -> None:
    body = data_section(bytes(200_000))
    assert with_made_id(header_section(True) + body, len(header_section(True)), TEXT).endswith(body)


@pytest.mark.parametrize("message_id", ["id", "", b"id", TEXT.decode()])
def test_an_id_that_a_client_wrote_is_never_taken_for_the_brokers(message_id: Any) -> None:
    payload = build_message([message_id, None, None, None, None, None, Symbol("t")], data=b"x" * 20)
    assert not has_made_id(payload)
    assert scan_plain(build_message([message_id], data=b"x" * 20), True) == 0


def test_the_quick_scan_leaves_a_clients_id_of_the_brokers_form_to_the_thorough_one() -> None:
    assert scan_plain(with_made_id(data_section(b"x" * 20), 0, TEXT), True) == -1


def test_properties_of_no_field_but_some_bytes_are_left_to_the_thorough_scan() -> None:
    assert scan_plain(b"\x00\x53\x73\xc0\x03\x00\xa1\x00" + data_section(b"x" * 20), True) == -1
