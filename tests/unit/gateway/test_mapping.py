"""Messages in and out: what is taken off, what is put in front, and that both ways of doing it agree."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload

from duobus.broker import COUNT_BITS, DEAD_LETTER, QueuedCopy, QueuedMessage, string_key
from duobus.codec import (
    Symbol,
    Timestamp,
    UInt,
    application_properties,
    build_message,
    encode,
    header_section,
    scan,
    tag_of,
)
from duobus.codec.sections import DATA, find_section
from duobus.errors import ArgumentInvalid, NotAllowed, ServiceBusError
from duobus.fragment.message import DEFERRED, SCHEDULED, state_of
from duobus.gateway.amqp.mapping import (
    CopyHeadMaker,
    HeadMaker,
    envelope_key,
    plain_offset,
    plain_session_batch,
    take_apart,
    take_session_apart,
)
from duobus.model.assigned_ids import MessageIds
from duobus.model.batches import Mailbox
from duobus.model.metadata import ClaimMetadata, MessageMetadata, SessionMetadata

FRAGMENT, LOCKED_MS, ENQUEUED_MS = 5, 1_700_000_060_000, 1_700_000_000_000
PREFIX, LOCK = bytes.fromhex("0005000000098cff"), 2**40 + 200
TOKEN = uuid.UUID(bytes_le=tag_of(PREFIX, LOCK))
#: As pyamqp reads the name of the sequence number that a message had first.
FIRST_NUMBER = b"x-opt-enqueue-sequence-number"
PING = Symbol("application/vnd.ms-servicebus-ping")


def queued(payload: bytes, **metadata: Any) -> QueuedMessage:
    """A message as the broker keeps it."""
    found = QueuedMessage(77, payload, ENQUEUED_MS)
    if metadata:
        found.metadata = MessageMetadata(**metadata)
    return found


def out(made: HeadMaker, found: QueuedMessage, locked_ms: int = LOCKED_MS) -> Any:
    """The message as pyamqp reads it."""
    (head,), (payload,) = made.heads([found], FRAGMENT, PREFIX, LOCK, locked_ms)
    return decode_payload(memoryview(head + payload))


BARE = build_message(["id"], {"k": 1}, data=b"body")


@pytest.mark.parametrize("default_ttl_ms", [None, 60_000, 1 << 40])
@pytest.mark.parametrize("locks", [True, False])
def test_an_ordinary_head_says_what_the_thorough_one_says(default_ttl_ms: int | None, locks: bool) -> None:
    made = HeadMaker(default_ttl_ms, locks=locks)
    found = queued(BARE)
    message = out(made, found, LOCKED_MS if locks else 0)
    head, payload = made.with_metadata(found, FRAGMENT, LOCKED_MS if locks else 0, TOKEN if locks else None)
    assert message == decode_payload(memoryview(head + payload))
    assert message.delivery_annotations == ({b"x-opt-lock-token": TOKEN} if locks else {})
    number = FRAGMENT << COUNT_BITS | 77
    wanted = {
        b"x-opt-enqueued-time": ENQUEUED_MS,
        b"x-opt-sequence-number": number,
    }
    if locks:
        wanted[b"x-opt-locked-until"] = LOCKED_MS
    assert message.message_annotations == wanted
    assert message.header.delivery_count == 0
    assert (message.header.durable, message.header.priority, message.header.first_acquirer) == (None, None, None)
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
        found = queued(BARE)
        found.deliveries = deliveries

        message = out(made, found, until_ms)

        head, payload = made.with_metadata(found, FRAGMENT, until_ms, TOKEN if locks else None)
        assert message == decode_payload(memoryview(head + payload))
        assert message.header.delivery_count == deliveries


def test_annotations_of_rare_messages_are_all_there() -> None:
    pairs = encode(Symbol("x-mine")) + encode("v")
    found = queued(
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
    assert (message.header.durable, message.header.first_acquirer) == (None, None)


@pytest.mark.parametrize(("kind", "number"), [(DEFERRED, 1), (SCHEDULED, 2)])
def test_the_state_of_a_message_is_told_where_it_is_not_active(kind: int, number: int) -> None:
    found = queued(BARE)
    found.state = state_of(0, kind)
    head, payload = HeadMaker(None, locks=False).with_metadata(found, FRAGMENT, 0)
    message = decode_payload(memoryview(head + payload))
    assert message.message_annotations[b"x-opt-message-state"] == number


@pytest.mark.parametrize("kind", [DEFERRED, SCHEDULED])
@pytest.mark.parametrize("deferred_in", [None, 3])
def test_only_of_a_deferred_message_is_it_told_under_which_lock_it_was_deferred(
    kind: int, deferred_in: int | None
) -> None:
    """Decision 0038."""
    found = queued(BARE, deferred_in=deferred_in)
    found.state = state_of(0, kind)
    head, payload = HeadMaker(None, locks=False).with_metadata(found, FRAGMENT, 0)
    told = decode_payload(memoryview(head + payload)).message_annotations.get(b"x-opt-duobus-deferred-in")
    assert told == (deferred_in if kind == DEFERRED else None)


@pytest.mark.parametrize(("default_ttl_ms", "told"), [((1 << 32) - 1, (1 << 32) - 1), (1 << 32, None)])
def test_a_life_that_does_not_fit_the_header_is_not_told_there(default_ttl_ms: int, told: int | None) -> None:
    """AMQP 1.0 part 3, 3.2.4."""
    assert out(HeadMaker(default_ttl_ms, locks=True), queued(BARE)).header.ttl == told


def test_a_link_keeps_only_so_many_headers_of_repeated_deliveries() -> None:
    made = HeadMaker(None, locks=True)
    for deliveries in range(1, 200):
        found = queued(BARE)
        found.deliveries = deliveries
        assert out(made, found).header.delivery_count == deliveries
        assert len(made._again) <= 64


def test_a_lock_token_stands_between_the_header_and_the_annotations() -> None:
    token = uuid.UUID(int=7)
    head, payload = HeadMaker(None, locks=True).with_metadata(queued(BARE), FRAGMENT, LOCKED_MS, token)
    message = decode_payload(memoryview(head + payload))
    assert message.delivery_annotations == {b"x-opt-lock-token": token}
    # The specification's order of sections, which the scan insists on.
    assert scan(head + payload).annotations is not None


def test_the_overlay_and_the_reason_are_laid_over_the_bytes() -> None:
    found = queued(BARE, overlay=encode({"k": 2, "new": True}), reason="r", description="d")
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
    assert found.metadata is not None
    assert (found.metadata.ttl_ms, found.metadata.priority, found.metadata.partition_key) == (4000, 9, "p")
    # What is the broker's to give is dropped, however a sender put it.
    assert found.metadata.annotations == encode(Symbol("x-mine")) + encode(1)


def test_everything_that_is_kept_can_be_written_to_a_store() -> None:
    """The codec's own types are no plain ones, and a store knows plain ones only (a bug once: the send hung)."""
    metadata = take_apart(
        build_message(
            data=b"m",
            header=header_section(True, 9, 4000),
            annotations={
                "x-opt-partition-key": Symbol("p"),
                "x-opt-via-partition-key": Symbol("v"),
                "x-opt-scheduled-enqueue-time": Timestamp(5),
            },
        )
    ).metadata
    assert metadata is not None
    assert MessageMetadata.decode(metadata.encode()) == metadata
    assert {type(metadata.ttl_ms), type(metadata.priority), type(metadata.scheduled_ms)} == {int}
    assert {type(metadata.partition_key), type(metadata.via_partition_key)} == {str}


def test_a_message_without_anything_rare_has_no_special() -> None:
    found = take_apart(BARE)
    assert (found.bare, found.metadata, found.key, found.is_ping) == (BARE, None, None, False)
    assert plain_offset(BARE, True) == 0


def of_session(session_id: str, message_id: str | None, **more: Any) -> bytes:
    """A plain message of a session."""
    return build_message([message_id, *[None] * 9, session_id], data=b"m", **more)


@pytest.mark.parametrize("message_id", ["id", None])
@pytest.mark.parametrize("header", [b"", header_section()])
def test_messages_of_a_session_share_what_is_kept_of_it(header: bytes, message_id: str | None) -> None:
    whole = header + of_session("s", message_id)
    first, second = (take_session_apart(whole) for _ in range(2))
    assert (first.bare, first.key, first.is_ping) == (of_session("s", message_id), string_key("s"), False)
    assert type(first.metadata) is SessionMetadata
    assert first.metadata.session_id == "s"
    assert second.metadata is first.metadata
    thorough = take_apart(whole)
    assert (thorough.bare, thorough.key, thorough.is_ping) == (first.bare, first.key, first.is_ping)


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_read_of_one_session_is_one_batch_however_its_messages_are_laid_out(*, with_keys: bool) -> None:
    whole = [of_session("s", "id"), header_section() + of_session("t", "other id"), of_session("s", None)]
    reply = Mailbox()
    batch = plain_session_batch(7, whole, True, reply, with_keys=with_keys, ids=MessageIds(uuid.uuid4))
    assert batch is not None
    assert [metadata.session_id for metadata in batch.sessions or ()] == ["s", "t", "s"]
    assert batch.keys == ([string_key(name) for name in "sts"] if with_keys else None)
    assert batch.payloads[:2] == [of_session("s", "id"), of_session("t", "other id")]
    # Who has no id gets one.
    assert scan(batch.payloads[2]).message_id is not None
    other = of_session("s", "id", annotations={"x-opt-partition-key": "s"})
    assert plain_session_batch(7, [*whole, other], True, reply, with_keys=with_keys) is None


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
    metadata = take_apart(whole).metadata
    assert (metadata.ttl_ms if metadata is not None else None) == life


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


@pytest.mark.parametrize("deliveries", [0, 2])
@pytest.mark.parametrize("metadata", [None, {"session_id": "s"}, {"partition_key": "k"}, {"ttl_ms": 5}])
def test_heads_with_ends_of_their_own_say_what_the_thorough_ones_say(deliveries: int, metadata: Any) -> None:
    made = HeadMaker(None, locks=True)
    found = queued(BARE, **(metadata or {}))
    found.deliveries = deliveries
    (head,), (payload,) = made.heads_until([found], FRAGMENT, PREFIX, LOCK, [LOCKED_MS + 7])
    thorough, bare = made.with_metadata(found, FRAGMENT, LOCKED_MS + 7, TOKEN)
    assert decode_payload(memoryview(head + payload)) == decode_payload(memoryview(thorough + bare))


def test_the_envelope_of_a_batch_may_name_the_key() -> None:
    assert envelope_key(scan(build_message(annotations={Symbol("x-opt-partition-key"): "k"}))) == string_key("k")
    assert envelope_key(scan(build_message(annotations={Symbol("x-opt-other"): "k"}))) is None
    assert envelope_key(scan(build_message(data=b""))) is None


def test_annotations_of_a_sender_are_counted_by_keys_and_values() -> None:
    for number in (1, 2, 5):
        taken = take_apart(build_message(annotations={Symbol(f"my-{at}"): at for at in range(number)}))
        assert taken.metadata is not None
        assert taken.metadata.annotations_count == 2 * number


@pytest.mark.parametrize("name", ["x-opt-partition-key", "x-opt-via-partition-key"])
def test_a_binary_partition_key_that_is_utf_8_counts_as_the_string(name: str) -> None:
    as_text, as_bytes = (
        take_apart(build_message([None], data=b"m", annotations={name: value}))
        for value in ("k\u00e4", "k\u00e4".encode())
    )
    assert as_bytes == as_text
    with pytest.raises(ArgumentInvalid, match="no UTF-8"):
        take_apart(build_message([None], data=b"m", annotations={name: b"\xff"}))


def test_a_session_id_and_another_partition_key_are_an_operation_that_is_not_allowed() -> None:
    """PE11."""
    fields: list[Any] = [None] * 10 + ["session"]
    with pytest.raises(NotAllowed, match="must be equal"):
        take_apart(build_message(fields, data=b"m", annotations={"x-opt-partition-key": "another"}))
    take_apart(build_message(fields, data=b"m", annotations={"x-opt-partition-key": "session"}))


def test_a_message_that_gets_an_id_is_refused_when_nobody_could_read_its_properties_then() -> None:
    """The id is put in front of properties that are nearly as long as the broker reads them."""
    ids = MessageIds(uuid.uuid4)
    for room in (64, 30):
        whole = build_message(None, {f"k{n}": "v" * 16_000 for n in range(4)}, data=b"m" * 300)
        size = find_section(whole, DATA)[0]
        whole = build_message(
            None, {f"k{n}": "v" * 16_000 for n in range(4)} | {"l": "v" * (65_536 - room - size - 8)}, data=b"m" * 300
        )
        assert find_section(whole, DATA)[0] == 65_536 - room
        if room > 43:
            scan(take_apart(whole, ids).bare)
            continue
        with pytest.raises(ArgumentInvalid, match="together with the message id"):
            take_apart(whole, ids)


def test_a_ping_needs_no_id() -> None:
    whole = build_message([None] * 6 + [PING])
    assert take_apart(whole, MessageIds(uuid.uuid4)).bare == whole


def test_keys_of_a_footer_come_out_as_symbols_and_the_rest_as_it_was() -> None:
    front = build_message(["id"], {"n": 1}, data=b"m")
    for keys in ("text", "symbol"):
        made: dict[Any, Any] = {(Symbol(key) if keys == "symbol" else key): key * 3 for key in ("x-crc", "y")}
        whole = front + b"\x00\x53\x78" + encode(made)
        assert plain_offset(whole, False) == -1
        bare = take_apart(whole).bare
        assert bare == front + b"\x00\x53\x78" + encode({Symbol(key): value for key, value in made.items()})
        assert decode_payload(memoryview(bare)).footer == {b"x-crc": b"x-crc" * 3, b"y": b"yyy"}


# -- what Service Bus puts in front ---------------------------------------------------------------------------------


@pytest.mark.parametrize("default_ttl_ms", [None, 60_000])
def test_each_message_of_a_run_has_the_lock_token_of_its_tag(default_ttl_ms: int | None) -> None:
    made = HeadMaker(default_ttl_ms, locks=True)
    messages = [QueuedMessage(number, BARE, ENQUEUED_MS) for number in range(1, 301)]
    messages[7].metadata, messages[9].deliveries = MessageMetadata(priority=3), 2
    for some in (messages, messages[10:]):
        for prefix in (PREFIX, PREFIX[::-1]):
            heads, payloads = made.heads(some, FRAGMENT, prefix, LOCK, LOCKED_MS)
            for index, (head, payload) in enumerate(zip(heads, payloads, strict=True)):
                found = decode_payload(memoryview(head + payload))
                token = uuid.UUID(bytes_le=tag_of(prefix, LOCK + index))
                assert found.delivery_annotations == {b"x-opt-lock-token": token}
                assert found.message_annotations[b"x-opt-sequence-number"] == FRAGMENT << COUNT_BITS | some[index].count


@pytest.mark.parametrize("locks", [True, False])
def test_delivery_annotations_of_the_sender_come_through(locks: bool) -> None:
    sent = build_message(["id"], data=b"m", delivery_annotations={"mine": 3, "x-opt-lock-token": uuid.UUID(int=1)})
    taken = take_apart(sent)
    assert taken.metadata is not None
    found = queued(taken.bare)
    found.metadata = MessageMetadata.decode(taken.metadata.encode())
    message = out(HeadMaker(None, locks=locks), found)
    assert message.delivery_annotations == ({b"x-opt-lock-token": TOKEN} if locks else {}) | {b"mine": 3}


def test_a_lock_token_that_a_message_brings_along_makes_nothing_special_of_it() -> None:
    sent = build_message(["id"], data=b"m", delivery_annotations={"x-opt-lock-token": uuid.UUID(int=1)})
    assert take_apart(sent).metadata is None


def test_a_message_that_is_only_looked_at_has_no_delivery_annotations_but_its_sender_s() -> None:
    made = HeadMaker(None, locks=True)
    plain, with_own = queued(BARE), queued(BARE, delivery_annotations=encode(Symbol("mine")) + encode(3))
    for found, wanted in ((plain, None), (with_own, {b"mine": 3})):
        head, payload = made.with_metadata(found, FRAGMENT, 0)
        assert decode_payload(memoryview(head + payload)).delivery_annotations == wanted


@pytest.mark.parametrize("durable", [None, True, False])
@pytest.mark.parametrize("priority", [None, 0, 4, 9])
@pytest.mark.parametrize("deliveries", [0, 2])
def test_durable_and_priority_are_told_as_the_sender_gave_them(
    durable: bool | None, priority: int | None, deliveries: int
) -> None:
    sent = header_section(durable, priority) + BARE
    offset = plain_offset(sent, False)
    taken = take_apart(sent)
    assert (offset >= 0) == (durable is None and priority is None) == (taken.metadata is None)
    found = queued(taken.bare)
    found.metadata, found.deliveries = taken.metadata, deliveries
    header = out(HeadMaker(None, locks=True), found).header
    assert (header.durable, header.priority) == (durable, priority)
    assert (header.ttl, header.first_acquirer, header.delivery_count) == (None, None, deliveries)


@pytest.mark.parametrize("default_ttl_ms", [None, 50_000])
@pytest.mark.parametrize("own_ttl_ms", [None, 1_000, 1 << 40, 1 << 60])
@pytest.mark.parametrize("server", ["links", "peek"])
def test_the_expiry_that_is_told_is_that_of_the_broker(
    default_ttl_ms: int | None, own_ttl_ms: int | None, server: str
) -> None:
    """The sender's own clock says something else."""
    fields = ["id", None, "to", None, None, None, None, None, Timestamp(5_000), Timestamp(4_000), None, UInt(1)]
    taken = take_apart(build_message(fields, data=b"m"))
    assert taken.metadata is not None
    found = queued(taken.bare)
    found.metadata = taken.metadata
    found.metadata.ttl_ms = own_ttl_ms
    made = HeadMaker(default_ttl_ms, locks=True)
    if server == "links":
        message = out(made, found)
    else:
        head, payload = made.with_metadata(found, FRAGMENT, 0)
        message = decode_payload(memoryview(head + payload))
    lives = [ttl for ttl in (default_ttl_ms, own_ttl_ms) if ttl is not None]
    told = message.properties
    if lives:
        assert told.creation_time == ENQUEUED_MS
        assert told.absolute_expiry_time == min(ENQUEUED_MS + min(lives), 253_402_300_799_999)
    else:
        assert told.absolute_expiry_time is None
    assert (told.message_id, told.to, told.group_sequence, message.data) == (b"id", b"to", 1, [b"m"])


def test_of_ordinary_messages_the_header_tells_how_long_they_live_and_the_bytes_stay() -> None:
    for deliveries in (0, 1):
        found = queued(BARE)
        found.deliveries = deliveries
        ((head,), (payload,)) = HeadMaker(1_000, locks=True).heads([found], FRAGMENT, PREFIX, LOCK, LOCKED_MS)
        assert decode_payload(memoryview(head + payload)).header.ttl == 1_000
        assert payload is BARE


def test_the_body_of_a_large_message_is_not_copied_for_its_expiry() -> None:
    large = build_message(["id"], data=bytes(3 << 20))
    head, rest = HeadMaker(None, locks=True).with_metadata(queued(large, ttl_ms=5), FRAGMENT, LOCKED_MS, TOKEN)
    assert isinstance(rest, memoryview)
    assert rest.obj is large
    assert decode_payload(memoryview(head + rest)).properties.absolute_expiry_time == ENQUEUED_MS + 5


@pytest.mark.parametrize("metadata", [None, {"reason": "r"}, {"enqueued_sequence_number": 9}])
@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("is_copy", [True, False])
def test_the_first_sequence_number_is_told_of_what_was_handed_on(
    metadata: dict[str, Any] | None, is_dead: bool, is_copy: bool
) -> None:
    found = QueuedCopy(77, BARE, ENQUEUED_MS, 55) if is_copy else QueuedMessage(77, BARE, ENQUEUED_MS)
    found.metadata = MessageMetadata(**metadata) if metadata else None
    found.state = state_of(DEAD_LETTER, 0) if is_dead else 0
    message = out((CopyHeadMaker if is_copy else HeadMaker)(None, locks=True), found)
    wanted = None
    if metadata and "enqueued_sequence_number" in metadata:
        wanted = 9
    elif is_copy or is_dead:
        wanted = FRAGMENT << COUNT_BITS | (55 if is_copy else 77)
    assert message.message_annotations.get(b"x-opt-enqueue-sequence-number") == wanted


@pytest.mark.parametrize("locks", [True, False])
def test_a_message_of_a_subscription_that_is_no_copy_of_the_topic_s_has_its_own_number_twice(locks: bool) -> None:
    """Beside a copy, in one run: what has been stored in the subscription by itself has no other number."""
    queued_messages = [QueuedMessage(77, BARE, ENQUEUED_MS), QueuedCopy(78, BARE, ENQUEUED_MS, 55)]
    heads, payloads = CopyHeadMaker(None, locks=locks).heads(
        queued_messages, FRAGMENT, PREFIX, LOCK, LOCKED_MS if locks else 0
    )
    messages = [decode_payload(memoryview(head + body)) for head, body in zip(heads, payloads, strict=True)]
    base = FRAGMENT << COUNT_BITS
    numbers = [
        (message.message_annotations[b"x-opt-sequence-number"], message.message_annotations[FIRST_NUMBER])
        for message in messages
    ]
    assert numbers == [(base | 77, base | 77), (base | 78, base | 55)]


@pytest.mark.parametrize("ttl_ms", [None, 60_000])
@pytest.mark.parametrize("deliveries", [0, 3])
@pytest.mark.parametrize(
    ("state", "metadata"),
    [
        (0, None),
        (DEFERRED, None),
        (DEFERRED, ClaimMetadata(claim="c")),
        (DEFERRED, ClaimMetadata(claim="c", deferred_in=9)),
        (DEFERRED, MessageMetadata(claim="c", partition_key="k")),
        (state_of(DEAD_LETTER, DEFERRED), ClaimMetadata(claim="c")),
        (0, SessionMetadata(session_id="s")),
    ],
)
def test_messages_that_are_looked_at_tell_what_others_with_their_metadata_do(
    ttl_ms: int | None, deliveries: int, state: int, metadata: MessageMetadata | None
) -> None:
    made = HeadMaker(ttl_ms, locks=True)
    for count, at_ms in ((1, ENQUEUED_MS), (77, 5), (2**47, ENQUEUED_MS + 1)):
        found = QueuedMessage(count, build_message(data=b"body"), at_ms)
        found.state, found.deliveries, found.metadata = state, deliveries, metadata
        quick = decode_payload(memoryview(b"".join(made.looked_at(found, FRAGMENT))))
        slow = decode_payload(memoryview(b"".join(made.with_metadata(found, FRAGMENT, 0))))
        assert quick == slow


def test_copies_that_are_looked_at_tell_the_number_that_their_topic_gave_them() -> None:
    made = CopyHeadMaker(None, locks=True)
    found = QueuedCopy(77, build_message(data=b"body"), ENQUEUED_MS, 5)
    assert made.looked_at(found, FRAGMENT) == made.with_metadata(found, FRAGMENT, 0)


def test_heads_of_messages_that_are_looked_at_are_kept_for_few_kinds() -> None:
    made = HeadMaker(None, locks=True)
    for deliveries in range(200):
        found = QueuedMessage(7, build_message(data=b"body"), ENQUEUED_MS)
        found.deliveries = deliveries
        head = decode_payload(memoryview(b"".join(made.looked_at(found, FRAGMENT))))
        assert head.header.delivery_count == deliveries
    assert len(made._looks) <= 64
