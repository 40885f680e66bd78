"""Delivery annotations behind the body: where the SDK for Python puts them, and nowhere else."""

from __future__ import annotations

import pytest
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from hypothesis import given
from hypothesis import strategies as st

from duobus.codec import Symbol, build_message, encode, scan, without_trailing_annotations
from duobus.errors import ArgumentInvalid, Undecodable
from duobus.gateway.amqp.mapping import take_apart

ANNOTATIONS = b"\x00\x53\x71" + encode({})
PLAIN = build_message(["id"], data=b"body")


def test_what_the_sdk_writes_is_taken_and_stored_without_them() -> None:
    output = bytearray()
    encode_payload(output, Message(delivery_annotations={b"x": b"y"}, data=[b"body"]))
    assert bytes(output)[-1:] == b"y"
    without = without_trailing_annotations(bytes(output))
    assert scan(without).bare == 0
    taken = take_apart(bytes(output))
    assert taken.bare == without
    assert taken.metadata is not None
    assert taken.metadata.delivery_annotations == encode(Symbol("x")) + encode(b"y")


@pytest.mark.parametrize(
    "payload",
    [
        PLAIN,
        ANNOTATIONS + PLAIN,
        ANNOTATIONS,
        PLAIN + ANNOTATIONS + PLAIN,
        PLAIN + b"\x00\x53\x71\x40",
        PLAIN + ANNOTATIONS[:-1],
        b"",
        b"\x00",
        b"\x00\x53",
    ],
)
def test_everything_else_stays_as_it_came(payload: bytes) -> None:
    assert without_trailing_annotations(payload) is payload


def test_twice_is_no_message() -> None:
    with pytest.raises(Undecodable):
        take_apart(PLAIN + ANNOTATIONS * 2)


@given(st.binary(max_size=200))
def test_no_bytes_lead_to_an_error(data: bytes) -> None:
    assert data.startswith(without_trailing_annotations(data))
    assert (PLAIN + data).startswith(without_trailing_annotations(PLAIN + data))


@pytest.mark.parametrize(("key", "size"), [(1.5, 1), ("mine", 70_000)])
def test_what_no_delivery_annotations_may_be_is_refused_behind_the_body_too(key: object, size: int) -> None:
    with pytest.raises((Undecodable, ArgumentInvalid)):
        take_apart(PLAIN + b"\x00\x53\x71" + encode({key: "x" * size}))
