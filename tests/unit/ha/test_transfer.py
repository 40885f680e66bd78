"""Messages to a backlog queue and back, through the SDK's own encoder and decoder (I10, I47, PN10)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from duobus.ha.transfer import (
    DIVERTED_AT,
    INVALID_TYPE,
    NO_PATH,
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    Undeliverable,
    from_backlog,
    ping,
    to_backlog,
)

NOW_MS = 1_790_000_000_000
MOMENT = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def wire(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """What the SDK sends."""
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw)))


def handed_out(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """The same as a receiver gets it, with what a broker adds."""
    decoded = decode_payload(memoryview(wire(message)))
    noted = {
        **(decoded.message_annotations or {}),
        b"x-opt-sequence-number": 7,
        b"x-opt-enqueued-time": NOW_MS,
        b"x-opt-locked-until": NOW_MS + 60_000,
    }
    return AmqpAnnotatedMessage(message=Message(**{**decoded._asdict(), "message_annotations": noted}))


def there_and_back(message: ServiceBusMessage | AmqpAnnotatedMessage, **how: Any) -> AmqpAnnotatedMessage:
    restored = from_backlog(handed_out(to_backlog(message, "orders", NOW_MS)), **how)
    assert restored.path == "orders"
    return restored.message


def test_a_partition_key_comes_back_as_the_text_that_it_was() -> None:
    restored = there_and_back(ServiceBusMessage("x", partition_key="größe"))
    assert restored.annotations == {"x-opt-partition-key": "größe"}, "a broker takes no key of bytes"


def plain(message: ServiceBusMessage | AmqpAnnotatedMessage) -> tuple[Any, ...]:
    """What of a message its receiver sees, of one that was never diverted or of one that was."""
    decoded = decode_payload(memoryview(wire(message)))
    # Both are written by the SDK at the moment of each send.
    properties = (
        decoded.properties._replace(creation_time=None, absolute_expiry_time=None) if decoded.properties else None
    )
    if properties is not None and all(value is None for value in properties):
        properties = None
    return (
        decoded.header,
        properties,
        decoded.application_properties or None,
        decoded.message_annotations or None,
        decoded.data,
        decoded.sequence,
        decoded.value,
        decoded.footer,
    )


def full_message() -> ServiceBusMessage:
    return ServiceBusMessage(
        b"body",
        session_id="s-1",
        partition_key="s-1",
        message_id="m-1",
        correlation_id="c-1",
        subject="label",
        reply_to="answers",
        reply_to_session_id="r-1",
        to="somewhere",
        content_type="application/json",
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=MOMENT,
        application_properties={
            "text": "grün",
            "number": 42,
            "truth": True,
            "half": 0.5,
            "id": UUID(int=7),
            "when": MOMENT,
            "short": {"TYPE": "SHORT", "VALUE": 3},
            "long": {"TYPE": "LONG", "VALUE": 2**40},
        },
    )


def test_session_life_schedule_and_path_are_moved_aside_under_their_documented_names() -> None:
    decoded = decode_payload(memoryview(wire(to_backlog(full_message(), "orders", NOW_MS))))
    aside = {key.decode(): value for key, value in decoded.application_properties.items()}
    assert (aside[SESSION_ID], aside[PATH]) == (b"s-1", b"orders")
    assert aside[SCHEDULED] == int(MOMENT.timestamp() * 1000)
    assert aside[TIME_TO_LIVE] == 300_000 * 10_000
    assert aside[TIME_TO_LIVE].descriptor == b"com.microsoft:timespan"
    assert decoded.properties.group_id is None
    assert decoded.header is None or decoded.header.ttl is None
    assert b"x-opt-scheduled-enqueue-time" not in (decoded.message_annotations or {})
    assert decoded.properties.message_id == b"m-1"
    assert decoded.properties.subject == b"label"


def test_a_diverted_message_comes_back_with_every_property() -> None:
    assert plain(there_and_back(full_message())) == plain(full_message())


def test_the_message_of_the_application_stays_as_it_is() -> None:
    message = full_message()
    before = plain(message)
    to_backlog(message, "orders", NOW_MS)
    assert plain(message) == before


def test_a_plain_message_carries_the_path_and_nothing_else() -> None:
    decoded = decode_payload(memoryview(wire(to_backlog(ServiceBusMessage("x"), "orders", NOW_MS))))
    assert decoded.application_properties == {PATH.encode(): b"orders"}


def test_user_properties_called_like_ours_come_back_to_their_names() -> None:
    message = ServiceBusMessage(
        "x",
        application_properties={PATH: "mine", SESSION_ID: "mine too", "x-duobus-user-a": "b", DIVERTED_AT: 3},
    )
    assert plain(there_and_back(message)) == plain(message)


def test_a_decimal_comes_back_though_the_sdk_cannot_read_its_own() -> None:
    message = ServiceBusMessage("x", application_properties={"price": Decimal("12.50")})
    assert wire(there_and_back(message)) == wire(message)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.uuids()
    | st.just(MOMENT)
    | st.just(Decimal("1.5")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_body_that_is_a_value_comes_back_as_the_same_bytes(value: Any) -> None:
    message = AmqpAnnotatedMessage(value_body=value)
    assert wire(there_and_back(message)) == wire(message)


@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=2))
def test_a_body_of_sequences_comes_back_as_the_same_bytes(sequence: list[list[Any]]) -> None:
    message = AmqpAnnotatedMessage(sequence_body=sequence)
    assert wire(there_and_back(message)) == wire(message)


def test_a_body_of_several_data_sections_keeps_them() -> None:
    message = AmqpAnnotatedMessage(data_body=[b"one", b"two"])
    assert wire(there_and_back(message)) == wire(message)


def test_the_clock_of_a_life_starts_anew_or_goes_on_as_asked() -> None:
    message = ServiceBusMessage("x", time_to_live=timedelta(seconds=60))
    diverted = handed_out(to_backlog(message, "orders", NOW_MS))
    header = from_backlog(diverted).message.header
    assert header is not None
    assert header.time_to_live == 60_000
    remaining = from_backlog(diverted, now_ms=NOW_MS + 45_000)
    assert remaining.message.header is not None
    assert remaining.message.header.time_to_live == 15_000
    assert not remaining.is_expired
    assert from_backlog(diverted, now_ms=NOW_MS + 60_000).is_expired


@pytest.mark.parametrize(
    ("value", "ms"), [(90_000, 90_000), ("PT1M30S", 90_000), ("P1DT2H", 93_600_000), ("PT0.5S", 500)]
)
def test_a_life_is_read_in_the_forms_that_other_programs_write(value: Any, ms: int) -> None:
    message = ServiceBusMessage("x", application_properties={PATH: "orders", TIME_TO_LIVE: value})
    header = from_backlog(handed_out(message)).message.header
    assert header is not None
    assert header.time_to_live == ms


@pytest.mark.parametrize("value", ["soon", "P", "PT", 1.5, True])
def test_a_life_of_another_type_is_undeliverable(value: Any) -> None:
    message = ServiceBusMessage("x", application_properties={PATH: "orders", TIME_TO_LIVE: value})
    with pytest.raises(Undeliverable) as caught:
        from_backlog(handed_out(message))
    assert caught.value.reason == INVALID_TYPE


@pytest.mark.parametrize("properties", [None, {}, {PATH: 5}, {PATH: ""}])
def test_a_message_without_a_destination_is_undeliverable(properties: dict[str | bytes, Any] | None) -> None:
    with pytest.raises(Undeliverable) as caught:
        from_backlog(handed_out(ServiceBusMessage("x", application_properties=properties)))
    assert caught.value.reason == NO_PATH


@pytest.mark.parametrize(
    "marks",
    [
        {SESSION_ID: 5},
        {SCHEDULED: "tomorrow"},
        {"x-duobus-types": "[]"},
        {"x-duobus-types": 5},
        {"x-duobus-types": "{"},
        {"x-duobus-body": "value"},
        {"x-duobus-body": "other"},
    ],
)
def test_marks_of_the_wrong_type_are_undeliverable(marks: dict[str, Any]) -> None:
    message = ServiceBusMessage("not json", application_properties={PATH: "orders", **marks})
    with pytest.raises(Undeliverable) as caught:
        from_backlog(handed_out(message))
    assert caught.value.reason == INVALID_TYPE


def test_a_ping_is_empty_lives_a_second_and_has_a_session() -> None:
    decoded = decode_payload(memoryview(wire(ping("a session"))))
    assert decoded.data in ([b""], None)
    assert decoded.header.ttl == 1000
    assert decoded.properties.content_type == b"application/vnd.ms-servicebus-ping"
    assert decoded.properties.group_id == b"a session"


def test_a_ping_asks_for_any_fragment_unless_it_is_for_one() -> None:
    assert not decode_payload(memoryview(wire(ping("s")))).message_annotations
    of_one = decode_payload(memoryview(wire(ping("s", is_key=True))))
    assert of_one.message_annotations == {b"x-opt-partition-key": b"s"}
