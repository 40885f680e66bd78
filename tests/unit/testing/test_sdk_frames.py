"""The SDK's receiver pairs a message with another one's frame when two threads read; what the broker wrote tells it."""

from __future__ import annotations

import uuid
from typing import Any
from unittest.mock import Mock, patch

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp import receiver as sdk_receiver
from azure.servicebus._pyamqp._decode import decode_payload

from duobus.codec import Symbol, build_message
from kits.sdk_frames import is_mispaired, token_of

TAGS = tuple(uuid.UUID(int=number).bytes_le for number in (1, 2))


def _frame(number: int, *, is_told: bool = True) -> list[Any]:
    """A transfer as the SDK decodes it, with the token in the message, too."""
    annotations = {Symbol("x-opt-lock-token"): uuid.UUID(bytes_le=TAGS[number])} if is_told else None
    payload = build_message([f"m{number}"], data=b"m", delivery_annotations=annotations)
    return [0, number + 1, TAGS[number], 0, True, False, None, None, None, None, False, payload]


def _received(frame: list[Any], payload: bytes) -> ServiceBusReceivedMessage:
    message = decode_payload(memoryview(payload))
    return ServiceBusReceivedMessage(message, ServiceBusReceiveMode.PEEK_LOCK, frame=frame, receiver=Mock())


def test_a_message_of_its_own_frame_has_one_token() -> None:
    frame = _frame(0)
    message = _received(frame, frame[11])
    assert token_of(message) == str(message.lock_token) == str(uuid.UUID(int=1))
    assert not is_mispaired(message)


def test_a_message_of_another_frame_is_told_by_the_token_in_it() -> None:
    message = _received(_frame(1), _frame(0)[11])
    assert token_of(message) == str(uuid.UUID(int=1))
    assert is_mispaired(message)


def test_a_message_without_the_token_has_that_of_its_frame() -> None:
    frame = _frame(0, is_told=False)
    assert not is_mispaired(_received(frame, frame[11]))


def test_the_sdk_pairs_a_message_with_the_frame_that_another_thread_reads_meanwhile() -> None:
    """When this fails, the SDK has been mended, and ``is_mispaired`` has no reason any more."""
    first, second = _frame(0), _frame(1)
    found: list[tuple[bytes, bytes]] = []
    link = sdk_receiver.ReceiverLink.__new__(sdk_receiver.ReceiverLink)
    link.network_trace, link.network_trace_params = False, {}
    link._received_payload, link._first_frame, link._received_delivery_tags = bytearray(), None, set()
    link.current_link_credit, link.delivery_count = 10, 0
    link._on_transfer = lambda frame, message: found.append((frame[2], message.properties[0]))

    def decode(payload: bytes) -> Any:
        if payload is first[11] and not found:
            # At this moment the other thread has its turn.
            link._incoming_transfer(second)
        return decode_payload(memoryview(payload))

    with patch.object(sdk_receiver, "decode_payload", decode):
        link._incoming_transfer(first)
    assert found == [(TAGS[1], b"m1"), (TAGS[1], b"m0")]
