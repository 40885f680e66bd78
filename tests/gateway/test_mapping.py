"""Messages in and out: what is taken off, what is put in front, and that both ways of doing it agree."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload

from duobus.broker import COUNT_BITS, DEAD_LETTER, Slot, string_key
from duobus.broker.fragment.slot import DEFERRED, SCHEDULED, state_of
from duobus.codec import (
    Symbol,
    Timestamp,
    UInt,
    application_properties,
    build_message,
    encode,
    header_section,
    scan,
)
from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.gateway.amqp.mapping import HeadMaker, plain_offset, take_apart
from duobus.model.special import Special

FRAGMENT, LOCKED_MS, ENQUEUED_MS = 5, 1_700_000_060_000, 1_700_000_000_000
PING = Symbol("application/vnd.ms-servicebus-ping")


def slot(payload: bytes, **special: Any) -> Slot:
    """A message as the broker keeps it."""
    found = Slot(77, payload, ENQUEUED_MS)
    if special:
        found.special = Special(**special)
    return found


def out(made: HeadMaker, found: Slot, locked_ms: int = LOCKED_MS) -> Any:
    """The message as pyamqp reads it."""
    (head,), (payload,) = made.heads([found], FRAGMENT, locked_ms)
    return decode_payload(memoryview(head + payload))


BARE = build_message(["id"], {"k": 1}, data=b"body")


@pytest.mark.parametrize("default_ttl_ms", [None, 60_000, 1 << 40])
@pytest.mark.parametrize("locks", [True, False])
def test_an_ordinary_head_says_what_the_thorough_one_says(default_ttl_ms: int | None, locks: bool) -> None:
    made = HeadMaker(default_ttl_ms, locks=locks)
    found = slot(BARE)
    message = out(made, found, LOCKED_MS if locks else 0)
    head, payload = made.rare(found, FRAGMENT, LOCKED_MS if locks else 0)
    other = decode_payload(memoryview(head + payload))
    assert (message.header, message.message_annotations) == (other.header, other.message_annotations)
    number = FRAGMENT << COUNT_BITS | 77
    wanted = {
        b"x-opt-enqueued-time": ENQUEUED_MS,
        b"x-opt-sequence-number": number,
        b"x-opt-enqueue-sequence-number": number,
    }
    if locks:
        wanted[b"x-opt-locked-until"] = LOCKED_MS
    assert message.message_annotations == wanted
    assert message.header.delivery_count == 0
    assert message.header.durable is True
    assert message.header.ttl == (default_ttl_ms if default_ttl_ms == 60_000 else None)
    assert (message.properties.message_id, message.data) == (b"id", [b"body"])


@pytest.mark.parametrize("default_ttl_ms", [None, 60_000])
@pytest.mark.parametrize("locks", [True, False])
def test_an_ordinary_message_that_comes_again_gets_the_head_of_the_thorough_way(
    default_ttl_ms: int | None, locks: bool
) -> None:
    made = HeadMaker(default_ttl_ms, locks=locks)
    until_ms = LOCKED_MS if locks else 0
    for deliveries in (1, 2, 300, *range(3, 100), 1 << 31):
        found = slot(BARE)
        found.deliveries = deliveries

        message = out(made, found, until_ms)

        head, payload = made.rare(found, FRAGMENT, until_ms)
        other = decode_payload(memoryview(head + payload))
        assert (message.header, message.message_annotations) == (other.header, other.message_annotations)
        assert message.header.delivery_count == deliveries
        assert message.data == other.data


def test_annotations_of_rare_messages_are_all_there() -> None:
    pairs = encode(Symbol("x-mine")) + encode("v")
    found = slot(
        BARE,
        partition_key="p",
        via_partition_key="v",
        scheduled_ms=ENQUEUED_MS - 5,
        enqueued_sequence_number=9,
        dead_letter_source="q0",
        annotations=pairs,
        annotations_count=2,
        priority=7,
        ttl_ms=1000,
    )
    found.deliveries = 3
    message = out(HeadMaker(5000, locks=True), found)
    assert message.message_annotations == {
        b"x-opt-enqueued-time": ENQUEUED_MS,
        b"x-opt-sequence-number": FRAGMENT << COUNT_BITS | 77,
        b"x-opt-locked-until": LOCKED_MS,
        b"x-opt-partition-key": b"p",
        b"x-opt-via-partition-key": b"v",
        b"x-opt-scheduled-enqueue-time": ENQUEUED_MS - 5,
        b"x-opt-enqueue-sequence-number": 9,
        b"x-opt-deadletter-source": b"q0",
        b"x-mine": b"v",
    }
    assert (message.header.ttl, message.header.priority, message.header.delivery_count) == (1000, 7, 3)
    assert message.header.first_acquirer is False


@pytest.mark.parametrize(("kind", "number"), [(DEFERRED, 1), (SCHEDULED, 2)])
def test_the_state_of_a_message_is_told_where_it_is_not_active(kind: int, number: int) -> None:
    found = slot(BARE)
    found.state = state_of(0, kind)
    head, payload = HeadMaker(None, locks=False).rare(found, FRAGMENT, 0)
    message = decode_payload(memoryview(head + payload))
    assert message.message_annotations[b"x-opt-message-state"] == number


def test_a_lock_token_stands_between_the_header_and_the_annotations() -> None:
    token = uuid.UUID(int=7)
    head, payload = HeadMaker(None, locks=True).rare(slot(BARE), FRAGMENT, LOCKED_MS, token)
    message = decode_payload(memoryview(head + payload))
    assert message.delivery_annotations == {b"x-opt-lock-token": token}
    # The specification's order of sections, which the scan insists on.
    assert scan(head + payload).annotations is not None


def test_the_overlay_and_the_reason_are_laid_over_the_bytes() -> None:
    found = slot(BARE, overlay=encode({"k": 2, "new": True}), reason="r", description="d")
    found.state = state_of(DEAD_LETTER, 0)
    message = out(HeadMaker(None, locks=True), found)
    assert message.application_properties == {
        b"k": 2,
        b"new": True,
        b"DeadLetterReason": b"r",
        b"DeadLetterErrorDescription": b"d",
    }
    assert (message.properties.message_id, message.data) == (b"id", [b"body"])
    assert found.payload == BARE


# -- in -----------------------------------------------------------------------------------------------------------


def test_header_and_annotations_are_taken_off_and_the_rest_stays_as_it_came() -> None:
    whole = build_message(
        ["id"],
        data=b"body",
        header=header_section(True, 9, 4000),
        annotations={"x-opt-partition-key": "p", "x-mine": 1, "x-opt-sequence-number": 4, "x-opt-locked-until": 5},
    )
    found = take_apart(whole)
    assert found.bare == build_message(["id"], data=b"body")
    assert found.key == string_key("p")
    assert found.special is not None
    assert (found.special.ttl_ms, found.special.priority, found.special.partition_key) == (4000, 9, "p")
    # What is the broker's to give is dropped, however a sender put it.
    assert found.special.annotations == encode(Symbol("x-mine")) + encode(1)


def test_everything_that_is_kept_can_be_written_to_a_store() -> None:
    """The codec's own types are no plain ones, and a store knows plain ones only (a bug once: the send hung)."""
    special = take_apart(
        build_message(
            data=b"m",
            header=header_section(True, 9, 4000),
            annotations={
                "x-opt-partition-key": Symbol("p"),
                "x-opt-via-partition-key": Symbol("v"),
                "x-opt-scheduled-enqueue-time": Timestamp(5),
            },
        )
    ).special
    assert special is not None
    assert Special.decode(special.encode()) == special
    assert {type(special.ttl_ms), type(special.priority), type(special.scheduled_ms)} == {int}
    assert {type(special.partition_key), type(special.via_partition_key)} == {str}


def test_a_message_without_anything_rare_has_no_special() -> None:
    found = take_apart(BARE)
    assert (found.bare, found.special, found.key, found.is_ping) == (BARE, None, None, False)
    assert plain_offset(BARE, True) == 0


@pytest.mark.parametrize(
    ("ttl", "created", "expires", "life"),
    [
        (None, None, None, None),
        (1000, None, None, 1000),
        ((1 << 32) - 1, 1000, 1000 + (1 << 33), 1 << 33),
        (5000, 1000, 2000, 5000),
        (None, 1000, 2000, None),
    ],
)
def test_a_long_life_is_told_by_two_instants(
    ttl: int | None, created: int | None, expires: int | None, life: int | None
) -> None:
    stamps = [None if value is None else Timestamp(value) for value in (expires, created)]
    whole = build_message([None] * 8 + stamps, data=b"m", header=header_section(True, None, ttl))
    special = take_apart(whole).special
    assert (special.ttl_ms if special is not None else None) == life


@pytest.mark.parametrize("name", ["message id", "session id", "partition key"])
@pytest.mark.parametrize("length", [128, 129])
def test_ids_have_128_characters_at_most_on_every_path(name: str, length: int) -> None:
    text = "i" * length
    fields: list[Any] = [None] * 13
    annotations = None
    if name == "partition key":
        annotations = {"x-opt-partition-key": text}
    else:
        fields[0 if name == "message id" else 10] = text
    for whole in (build_message(fields, data=b"m", annotations=annotations), build_message(["i" * length], data=b"m")):
        if length == 128:
            take_apart(whole)
            continue
        # The quick look must leave them to the thorough one.
        assert plain_offset(whole, False) == -1
        with pytest.raises(ArgumentInvalid, match="129"):
            take_apart(whole)


@pytest.mark.parametrize("body", [None, b""])
def test_an_empty_message_of_the_ping_type_is_a_ping(body: bytes | None) -> None:
    fields = [None] * 6 + [PING]
    whole = build_message(fields, data=body)
    assert plain_offset(whole, False) == -1
    assert take_apart(whole).is_ping
    assert not take_apart(build_message(fields, data=b"x")).is_ping


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"\x00\x53\x99\x40",
        BARE[:-1],
        BARE + b"\x00",
        b"\xff" * 20,
        build_message(["a"], data=b"m", annotations={"x-opt-partition-key": UInt(1)}),
        build_message(["a"], data=b"m", annotations={"x-opt-scheduled-enqueue-time": "soon"}),
        build_message([None] * 10 + ["s"], data=b"m", annotations={"x-opt-partition-key": "p"}),
    ],
)
def test_what_cannot_be_meant_is_refused_for_good(whole: bytes) -> None:
    if not whole:
        assert take_apart(whole).bare == b""
        return
    with pytest.raises(ServiceBusError) as caught:
        take_apart(whole)
    assert not caught.value.transient
    assert plain_offset(whole, True) == -1


def test_typed_ids_and_properties_pass_untouched_through_the_broker() -> None:
    token = uuid.uuid4()
    whole = build_message([token], {"k": UInt(7)}, body_value=[1, "two"])
    found = take_apart(whole)
    assert found.bare == whole
    assert application_properties(found.bare) == {"k": 7}
