"""Bodies that are AMQP values are read with their types, and hostile ones are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from hypothesis import given
from hypothesis import strategies as st

from duobus.spark.sink.body_decoder import sequences_of, value_of

LEAVES = (
    st.none() | st.booleans() | st.text(max_size=20) | st.binary(max_size=20) | st.floats(allow_nan=False) | st.uuids()
)


def section(value: Any) -> bytes:
    """As the SDK encodes a value section."""
    output = bytearray()
    encode_payload(output, Message(value=value))
    return bytes(output)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_what_the_sdk_encodes_is_read_and_encoded_again_the_same(value: Any) -> None:
    encoded = b"\x00\x53\x77" + _encoded(value)
    read = value_of(encoded)
    if read:
        assert section(read) == encoded


def _encoded(value: Any) -> bytes:
    from azure.servicebus._pyamqp._encode import encode_value

    output = bytearray()
    encode_value(output, {"TYPE": None, "VALUE": value})
    return bytes(output)


def test_text_and_bytes_are_told_apart() -> None:
    assert value_of(section("a")) == "a"
    assert value_of(section(b"a")) == b"a"


def test_types_inside_a_map_are_kept() -> None:
    value = {"n": {"TYPE": "LONG", "VALUE": 5}, "u": UUID(int=3), "l": [{"TYPE": "UBYTE", "VALUE": 2}, None]}
    assert value_of(section(value)) == value


def test_a_timestamp_is_a_time() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert value_of(section(moment)) == moment


def test_sequences_are_lists_of_each_section() -> None:
    output = bytearray()
    encode_payload(output, Message(sequence=[["a", 1.5], [b"b"]]))
    assert sequences_of(bytes(output)) == [["a", 1.5], [b"b"]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x53\x75\xa0\x01a",
        b"\x00\x53\x77",
        b"\x00\x53\x77\xa1\x05ab",
        b"\x00\x53\x77\xa1\x01\xff",
        b"\x00\x53\x77\x40\x40",
        b"\x00\x53\x77\xff",
        b"\x00\x53\x77\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\x00\x53\x77\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\x00\x53\x77\xc1\x02\x01\x40",
        b"\x00\x53\x77" + b"\x00" * 200,
    ],
)
def test_what_is_no_section_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="body"):
        value_of(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (value_of, sequences_of):
        try:
            read(b"\x00\x53\x77" + data)
        except ValueError:
            continue


def test_a_whole_number_that_the_sdk_cannot_send_by_itself_is_refused() -> None:
    assert value_of(b"\x00\x53\x77" + b"\x55\x05") == 5
    with pytest.raises(ValueError, match="the SDK cannot send"):
        value_of(b"\x00\x53\x77" + b"\x81" + (2**40).to_bytes(8, "big"))
