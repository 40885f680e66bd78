"""AMQP message sections and the broker's columns: the only place that knows both.

In: header and annotations are taken off and understood as far as the broker needs; the bare message stays the
bytes that came. Out: a new header and annotations in front of those bytes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from duobus.broker import COUNT_BITS, DEFERRED, MAIN, QueuedCopy, QueuedMessage, kind_of, string_key, sub_queue_of
from duobus.codec import (
    DecodeError,
    GroupShape,
    Scan,
    Symbol,
    Timestamp,
    TooLargeError,
    annotations_section,
    decode,
    delivery_annotations_section,
    digit_runs,
    encode,
    has_made_id,
    header_section,
    in_guid_order,
    plain_group_id,
    plain_start,
    scan,
    scan_plain,
    timed_front,
    trailing_annotations,
    with_application_properties,
    with_made_id,
    with_own_id,
    with_symbols_in_footer,
    without_trailing_annotations,
)
from duobus.codec import Int as AmqpInt
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, NotAllowed, Undecodable
from duobus.model import batches
from duobus.model.assigned_ids import MessageIds
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.metadata import ClaimMetadata, MessageMetadata, SessionMetadata, has_session_only
from duobus.model.overlay import Overlay

PING_CONTENT_TYPE: Final = batches.CONTENT_TYPE
#: What a client is told at most (Azure: quotas).
ID_LENGTH_MAX: Final = 128

ENQUEUED_TIME: Final = Symbol("x-opt-enqueued-time")
SEQUENCE_NUMBER: Final = Symbol("x-opt-sequence-number")
LOCKED_UNTIL: Final = Symbol("x-opt-locked-until")
MESSAGE_STATE: Final = Symbol("x-opt-message-state")
PARTITION_KEY: Final = Symbol("x-opt-partition-key")
VIA_PARTITION_KEY: Final = Symbol("x-opt-via-partition-key")
SCHEDULED_TIME: Final = Symbol("x-opt-scheduled-enqueue-time")
ENQUEUE_SEQUENCE_NUMBER: Final = Symbol("x-opt-enqueue-sequence-number")
DEAD_LETTER_SOURCE: Final = Symbol("x-opt-deadletter-source")
LOCK_TOKEN: Final = Symbol("x-opt-lock-token")
#: Of what is deferred: bytes 2 to 5 of the lock token by which it was, as a number, where a restart since it came may
#: have forgotten deliveries (decision 0038).
DEFERRED_IN: Final = Symbol("x-opt-duobus-deferred-in")

#: The end of the last year that clients can tell, as Python's SDK rounds it: a message that waits for later would wait
#: for ever, and break whoever reads the time of it.
SCHEDULED_MS_MAX: Final = 253_402_300_800_000

#: Annotations that are the broker's to give; whatever a sender puts there is dropped (Azure: AMQP protocol guide).
_OWN: Final = frozenset(
    {
        ENQUEUED_TIME,
        SEQUENCE_NUMBER,
        LOCKED_UNTIL,
        MESSAGE_STATE,
        PARTITION_KEY,
        VIA_PARTITION_KEY,
        SCHEDULED_TIME,
        ENQUEUE_SEQUENCE_NUMBER,
        DEAD_LETTER_SOURCE,
        DEFERRED_IN,
    }
)


class Incoming(NamedTuple):
    """One received message, taken apart as far as the broker needs."""

    bare: bytes
    metadata: MessageMetadata | None
    key: bytes | None
    is_ping: bool


#: ``plain_offset(payload, is_partitioned)``: offset of the bare message when there is nothing else to know of it;
#: ``-2 - offset`` when it has no message-id besides; else -1: then ``take_apart``. The codec's own function, without a
#: call in between on the hot path.
plain_offset = scan_plain


def plain_bare(payload: bytes, quick: int, ids: MessageIds | None) -> bytes:
    """The bare message of one of which ``plain_offset`` said ``quick``, not -1; with one of ``ids`` if it has none."""
    if quick >= 0:
        return payload[quick:] if quick else payload
    return payload[-2 - quick :] if ids is None else with_made_id(payload, -2 - quick, ids.next())


def take_session_apart(payload: bytes, ids: MessageIds | None = None) -> Incoming:
    """``take_apart`` for a queue with sessions, where a plain message has a session id and nothing else.

    Raises:
        Undecodable, ArgumentInvalid: See ``take_apart``.
    """
    quick = scan_plain(payload, False)
    if quick != -1:
        session_id = plain_group_id(payload, plain_start(quick))
        if session_id is not None:
            found = _SESSIONS.get(session_id) or _of_session(session_id)
            if found is not None:
                return Incoming(plain_bare(payload, quick, ids), found[0], found[1], False)
    return take_apart(payload, ids)


#: Session ids of late, with what goes with each: most messages belong to a session that others belong to, too.
_SESSIONS_MAX: Final = 4096
_SESSIONS: Final[dict[bytes, tuple[SessionMetadata, bytes]]] = {}


def _of_session(raw: bytes) -> tuple[SessionMetadata, bytes] | None:
    """The metadata and the placement key of a plain message of a session; None when the id is no text."""
    try:
        session_id = raw.decode()
    except UnicodeDecodeError:
        return None
    if len(_SESSIONS) >= _SESSIONS_MAX:
        _SESSIONS.clear()
    found = _SESSIONS[raw] = SessionMetadata(session_id=session_id), string_key(session_id)
    return found


def plain_session_batch(
    first_delivery_id: int,
    payloads: list[bytes],
    unsettled: bool,
    reply: Mailbox,
    *,
    with_keys: bool,
    ids: MessageIds | None = None,
) -> SendBatch | None:
    """Messages of one read that have a session id and no other metadata; None when one of them is different.

    Those without an id get one of ``ids``.
    """
    offset = scan_plain(payloads[0], False)
    # What one client sends in one go is mostly alike.
    shape = GroupShape(payloads[0], offset)
    raws = shape.group_ids(payloads)
    if raws is not None:
        bare = [payload[offset:] for payload in payloads] if offset else payloads
    else:
        bare, raws = [], []
        for payload in payloads:
            raw = shape.group_id(payload)
            offset = shape.bare
            if raw is None:
                offset = scan_plain(payload, False)
                raw = plain_group_id(payload, plain_start(offset)) if offset != -1 else None
                if raw is None:
                    return None
            bare.append(plain_bare(payload, offset, ids))
            raws.append(raw)
    found = list(map(_SESSIONS.get, raws))
    known = [pair for pair in found if pair is not None]
    if len(known) < len(found):
        found = [_SESSIONS.get(raw) or _of_session(raw) for raw in raws]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            return None
    batch = SendBatch(first_delivery_id, bare, unsettled, reply)
    batch.sessions = [pair[0] for pair in known]
    if with_keys:
        batch.keys = [pair[1] for pair in known]
    return batch


def take_apart(payload: bytes, ids: MessageIds | None = None) -> Incoming:
    """Look properly at a message that is not plain; without an id it gets one of ``ids``, if there are any.

    Raises:
        Undecodable: It is not AMQP.
        ArgumentInvalid: A key is too long, or properties are too large, the id that it gets included.
        NotAllowed: Session id and partition key differ (PE11).
        ArgumentOutOfRange: It is scheduled for an instant that never comes.
    """
    payload, found = _scanned(payload)
    is_ping = found.content_type == PING_CONTENT_TYPE and found.body_bytes_empty
    if found.message_id is None and ids is not None and not is_ping:
        bare = ids.name(payload, found.bare)
    else:
        bare = payload[found.bare :] if found.bare else payload
        if has_made_id(bare):
            # A client writes it so: then it is the client's, and what clients write in short means the same.
            bare = with_own_id(bare)
    if found.has_footer:
        bare = with_symbols_in_footer(bare)
    metadata = _metadata_of(found)
    _check_lengths(found, metadata)
    key = None
    if found.group_id is not None:
        key = string_key(found.group_id)
    elif metadata.partition_key is not None:
        key = string_key(metadata.partition_key)
    return Incoming(bare, None if metadata == _ORDINARY else metadata, key, is_ping)


def _scanned(payload: bytes) -> tuple[bytes, Scan]:
    try:
        return payload, scan(payload)
    except TooLargeError as error:
        raise ArgumentInvalid(f"The message is not taken: {error}. Put large contents into the body.") from error
    except DecodeError as error:
        shorter = without_trailing_annotations(payload)
        if shorter is payload:
            raise Undecodable(f"The message cannot be decoded: {error}") from error
    shorter, found = _scanned(shorter)
    try:
        found.delivery_annotations = trailing_annotations(payload, len(shorter)) or found.delivery_annotations
    except TooLargeError as error:
        raise ArgumentInvalid(f"The message is not taken: {error}.") from error
    except DecodeError as error:
        raise Undecodable(f"The message cannot be decoded: {error}") from error
    return shorter, found


_ORDINARY: Final = MessageMetadata()


def envelope_key(found: Scan) -> bytes | None:
    """The placement key that a batch's envelope names."""
    key = _text(found.annotations, PARTITION_KEY) if found.annotations else None
    return None if key is None else string_key(key)


def _metadata_of(found: Scan) -> MessageMetadata:
    # int() and str(): the codec's own types stay out of what is stored, which knows plain ones only.
    metadata = MessageMetadata(session_id=None if found.group_id is None else str(found.group_id))
    metadata.ttl_ms = _time_to_live(found)
    metadata.priority = None if found.priority is None else int(found.priority)
    metadata.durable = found.durable
    metadata.has_expiry = found.absolute_expiry_ms is not None
    if found.delivery_annotations:
        # A message that was received brings along the lock token that it had.
        pairs = [(key, value) for key, value in found.delivery_annotations.items() if key != LOCK_TOKEN]
        metadata.delivery_annotations = _pairs(pairs) if pairs else None
    if found.annotations:
        metadata.partition_key = _text(found.annotations, PARTITION_KEY)
        metadata.via_partition_key = _text(found.annotations, VIA_PARTITION_KEY)
        scheduled = found.annotations.get(SCHEDULED_TIME)
        if scheduled is not None:
            if not isinstance(scheduled, Timestamp):
                raise ArgumentInvalid(f"{SCHEDULED_TIME} is a timestamp, not a {type(scheduled).__name__}.")
            if scheduled > SCHEDULED_MS_MAX:
                raise ArgumentOutOfRange(f"{SCHEDULED_TIME} is beyond the year 9999. Give an instant that can come.")
            metadata.scheduled_ms = int(scheduled)
        pairs = [(key, value) for key, value in found.annotations.items() if key not in _OWN]
        if pairs:
            metadata.annotations = _pairs(pairs)
            metadata.annotations_count = 2 * len(pairs)
    return metadata


def _pairs(pairs: list[tuple[Any, Any]]) -> bytes:
    return b"".join(encode(key) + encode(value) for key, value in pairs)


def _time_to_live(found: Scan) -> int | None:
    """Contract 7.5: a life beyond 49.7 days does not fit the header, so SDKs tell it by two instants."""
    ttl = found.ttl_ms
    if ttl is not None and found.creation_time_ms is not None and found.absolute_expiry_ms is not None:
        ttl = max(ttl, found.absolute_expiry_ms - found.creation_time_ms)
    return None if ttl is None else int(ttl)


def _text(annotations: dict[Any, Any], key: Symbol) -> str | None:
    value = annotations.get(key)
    if isinstance(value, bytes):
        # The SDK for Python sends again as binary what it received as a string.
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ArgumentInvalid(f"{key} is binary, and no UTF-8. Give a string.") from None
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(f"{key} is a string, not a {type(value).__name__}.")
    return None if value is None else str(value)


def _check_lengths(found: Scan, metadata: MessageMetadata) -> None:
    for name, value in (
        ("message id", found.message_id),
        ("session id", found.group_id),
        ("partition key", metadata.partition_key),
    ):
        if isinstance(value, (str, bytes)) and len(value) > ID_LENGTH_MAX:
            raise ArgumentInvalid(f"The {name} has {len(value)} characters; at most {ID_LENGTH_MAX} are allowed.")
    if found.group_id is not None and metadata.partition_key not in (None, found.group_id):
        raise NotAllowed("The session id and the partition key of a message must be equal when both are given.")


# -- out --------------------------------------------------------------------------------------------------------


def _map_start(pairs: int, size: int) -> bytes:
    return b"\x00\x53\x72\xc1" + bytes((size + 1, pairs * 2))


def _symbol(key: Symbol) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode()


_ENQUEUED: Final = _symbol(ENQUEUED_TIME) + b"\x83"
_SEQUENCE: Final = _symbol(SEQUENCE_NUMBER) + b"\x81"
_ORIGIN: Final = _symbol(ENQUEUE_SEQUENCE_NUMBER) + b"\x81"
_LOCKED: Final = _symbol(LOCKED_UNTIL) + b"\x83"
#: Delivery annotations with a lock token, up to its 16 bytes.
_TOKEN: Final = delivery_annotations_section({LOCK_TOKEN: uuid.UUID(int=0)})[:-16]
#: What stands there under receive-and-delete.
_NO_TOKEN: Final = delivery_annotations_section({})

#: The rest of a message up to this size is copied where the front of it changes; of a larger one it is looked at where
#: it lies, so that a delivery of 100 MB takes no more memory than the message.
WHOLE_BYTES_MAX: Final = 1 << 20
#: What follows the head of a message. Compiled code takes nothing but what a type says, so a view has to be named.
Rest = bytes | memoryview

#: Numbers that occur in no head by themselves.
_SAMPLE_MS: Final = 0x7A5B7C5D7E5F7A5B
_SAMPLE_COUNT: Final = 0x6A4B6C4D6E4F6A4B
#: States of the main sub-queue in which all messages look alike: active and deferred.
_PLAIN_STATES: Final = (MAIN, MAIN + DEFERRED)
#: Headers that a link keeps, by delivery count.
_HEADERS_MAX: Final = 64

_PAYLOAD: Final = attrgetter("payload")
_METADATA: Final = attrgetter("metadata")
_DELIVERIES: Final = attrgetter("deliveries")
#: What ``QueuedMessage.metadata`` is of messages that have no metadata but, perhaps, a session.
_ORDINARY_TYPES: Final = frozenset({type(None), SessionMetadata})


class HeadMaker:
    """Makes what stands in front of the bare message, for one link.

    A plain message's head is one fixed template with a few numbers in it:

        header | delivery annotations with the lock token | locked-until, enqueued time and sequence number

    Where a message brings its own time to live or expiry, the broker's ``creation-time`` and ``absolute-expiry-time``
    are put into its properties. Of others the header tells how long they live, and their bytes stay as they came.
    """

    __slots__ = (
        "_again",
        "_default_ttl_ms",
        "_header",
        "_lead",
        "_locks",
        "_looks",
        "_marks",
        "_origins",
        "_pack",
        "_pack_again",
        "_prefix",
        "_start",
    )

    def __init__(self, default_ttl_ms: int | None, *, locks: bool, origins: bool = False) -> None:
        """Make one.

        Args:
            default_ttl_ms: Time to live of the entity's messages, and upper bound for those that bring one.
            locks: What is handed out is locked; otherwise it is removed.
            origins: Each message has the number that a topic gave it beside its own.
        """
        self._default_ttl_ms = default_ttl_ms
        self._locks = locks
        self._origins = origins
        self._header = self._header_of(0)
        numbers = [_LOCKED, _ENQUEUED, _SEQUENCE] if locks else [_ENQUEUED, _SEQUENCE]
        if origins:
            numbers.append(_ORIGIN)
        marks = _map_start(len(numbers), sum(len(name) + 8 for name in numbers)) + numbers[0]
        rest = "".join(f"{len(name)}sq" for name in numbers[1:])
        if locks:
            form, start = f"Q{len(marks)}sq{rest}", _TOKEN + bytes(8)
        else:
            form, start, marks = f"q{rest}", _NO_TOKEN + marks, b""
        #: What the first of the numbers follows.
        self._marks = marks
        # With a header, and without one where it is put in front.
        self._pack = struct.Struct(f">{len(self._header) + len(start)}s{form}").pack
        self._pack_again = struct.Struct(f">{len(start)}s{form}").pack
        self._prefix = b""
        self._start = start
        self._lead = self._header + start
        self._again: dict[int, bytes] = {}
        self._looks: dict[tuple[int, int, int | None], tuple[Callable[..., bytes], bytes, bytes, bytes]] = {}

    def _header_of(self, deliveries: int) -> bytes:
        return header_section(None, None, _wire_ttl(self._default_ttl_ms), None, deliveries)

    def heads(
        self, messages: list[QueuedMessage], fragment_number: int, prefix: bytes, first_lock: int, locked_until_ms: int
    ) -> tuple[list[bytes], list[Rest]]:
        """Heads and bare messages of the given messages, for one peek-locked or removed batch.

        Args:
            messages: The messages.
            fragment_number: Of their fragment.
            prefix: First 8 bytes of their lock tokens; nothing, where they are removed.
            first_lock: Lock counter of the first; the others follow by one.
            locked_until_ms: End of the locks.
        """
        return self.heads_until(messages, fragment_number, prefix, first_lock, [locked_until_ms] * len(messages))

    def heads_until(
        self, messages: list[QueuedMessage], fragment_number: int, prefix: bytes, first_lock: int, untils: list[int]
    ) -> tuple[list[bytes], list[Rest]]:
        """``heads`` of peek-locked messages of several sessions: the locks of each end at a time of their own."""
        if self._locks and prefix != self._prefix:
            self._prefix = prefix
            self._start = _TOKEN + in_guid_order(prefix)
            self._lead = self._header + self._start
        counters = digit_runs(first_lock, len(messages))
        # All are of one sub-queue.
        is_dead = messages[0].state != 0
        if (
            is_dead
            or any(map(_DELIVERIES, messages))
            or not _ORDINARY_TYPES.issuperset(map(type, map(_METADATA, messages)))
        ):
            return self._mixed(messages, fragment_number, counters, untils)
        return self._firsts(messages, fragment_number << COUNT_BITS, counters, untils), list(map(_PAYLOAD, messages))

    def _firsts(
        self, messages: list[QueuedMessage], base: int, counters: Sequence[int], untils: list[int]
    ) -> list[bytes]:
        """Heads of plain messages that were never delivered before."""
        pack, lead = self._pack, self._lead
        if self._locks:
            marks = self._marks
            return [
                pack(lead, counter, marks, until_ms, _ENQUEUED, message.enqueued_ms, _SEQUENCE, base | message.count)
                for message, counter, until_ms in zip(messages, counters, untils, strict=True)
            ]
        return [pack(lead, message.enqueued_ms, _SEQUENCE, base | message.count) for message in messages]

    def _mixed(
        self, messages: list[QueuedMessage], fragment_number: int, counters: Sequence[int], untils: list[int]
    ) -> tuple[list[bytes], list[Rest]]:
        """Heads and bare messages of any messages: session, repeated delivery, and other metadata."""
        base = fragment_number << COUNT_BITS
        heads: list[bytes] = []
        payloads: list[Rest] = []
        payload: Rest
        for message, counter, until_ms in zip(messages, counters, untils, strict=True):
            metadata = message.metadata
            if message.state or (
                metadata is not None and type(metadata) is not SessionMetadata and not has_session_only(metadata)
            ):
                token = uuid.UUID(bytes=self._start[-8:] + counter.to_bytes(8, "big")) if self._locks else None
                head, payload = self.with_metadata(message, fragment_number, until_ms, token)
            else:
                payload = message.payload
                if message.deliveries:
                    pack, lead = self._pack_again, self._start
                else:
                    pack, lead = self._pack, self._lead
                number = base | message.count
                if not self._locks:
                    numbers: tuple[Any, ...] = (message.enqueued_ms, _SEQUENCE, number)
                else:
                    numbers = (counter, self._marks, until_ms, _ENQUEUED, message.enqueued_ms, _SEQUENCE, number)
                if self._origins:
                    numbers += (_ORIGIN, base | _origin_of(message))
                head = pack(lead, *numbers)
                if message.deliveries:
                    head = self._header_again(message.deliveries) + head
            heads.append(head)
            payloads.append(payload)
        return heads, payloads

    def _header_again(self, deliveries: int) -> bytes:
        """Header of a plain message that was delivered before."""
        header = self._again.get(deliveries)
        if header is None:
            if len(self._again) >= _HEADERS_MAX:
                self._again.clear()
            header = self._again[deliveries] = self._header_of(deliveries)
        return header

    def looked_at(self, message: QueuedMessage, fragment_number: int) -> tuple[bytes, Rest]:
        """Head and bare message of one that is looked at, as ``with_metadata`` makes them.

        Messages without metadata but, perhaps, a claim differ in two numbers only, which are put between bytes that are
        kept.
        """
        metadata = message.metadata
        if (
            (metadata is not None and type(metadata) is not ClaimMetadata)
            or message.state not in _PLAIN_STATES
            or type(message) is QueuedCopy
        ):
            return self.with_metadata(message, fragment_number, 0)
        kind = message.deliveries, message.state, None if metadata is None else metadata.deferred_in
        look = self._looks.get(kind)
        if look is None:
            if len(self._looks) >= _HEADERS_MAX:
                self._looks.clear()
            look = self._looks[kind] = self._new_look(message)
        pack, front, middle, end = look
        number = fragment_number << COUNT_BITS | message.count
        return pack(front, message.enqueued_ms, middle, number, end), message.payload

    def _new_look(self, message: QueuedMessage) -> tuple[Callable[..., bytes], bytes, bytes, bytes]:
        """What stands around the two numbers of such messages: one is made with numbers that are found again."""
        sample = QueuedMessage(_SAMPLE_COUNT, b"", _SAMPLE_MS)
        sample.deliveries, sample.state, sample.metadata = message.deliveries, message.state, message.metadata
        head, _ = self.with_metadata(sample, 0, 0)
        front, _, rest = head.partition(_SAMPLE_MS.to_bytes(8, "big"))
        middle, _, end = rest.partition(_SAMPLE_COUNT.to_bytes(8, "big"))
        return struct.Struct(f">{len(front)}sq{len(middle)}sq{len(end)}s").pack, front, middle, end

    def with_metadata(
        self, message: QueuedMessage, fragment_number: int, locked_until_ms: int, lock_token: uuid.UUID | None = None
    ) -> tuple[bytes, Rest]:
        """Head and bare message of any message; an overlay is merged into the application properties.

        Without ``lock_token``, where messages are locked, it is one that is looked at: it has no delivery annotations
        but its sender's.
        """
        metadata = message.metadata or _ORDINARY
        ttl = self._default_ttl_ms
        if metadata.ttl_ms is not None:
            ttl = metadata.ttl_ms if ttl is None else min(ttl, metadata.ttl_ms)
        header = header_section(metadata.durable, metadata.priority, _wire_ttl(ttl), None, message.deliveries)
        annotations = _annotations_of(message, metadata, fragment_number, locked_until_ms)
        about: dict[Any, Any] = {} if lock_token is None else {LOCK_TOKEN: lock_token}
        _add_pairs(about, metadata.delivery_annotations)
        delivery = delivery_annotations_section(about) if about or not self._locks else b""
        head, payload = header + delivery + annotations_section(annotations), _with_overlay(message, metadata)
        if metadata.ttl_ms is not None or metadata.has_expiry:
            return _timed(head, payload, message.enqueued_ms, ttl)
        return head, payload


class CopyHeadMaker(HeadMaker):
    """The same for copies of a topic's messages, which have the number that the topic gave them beside their own."""

    def __init__(self, default_ttl_ms: int | None, *, locks: bool) -> None:
        super().__init__(default_ttl_ms, locks=locks, origins=True)

    def _firsts(
        self, messages: list[QueuedMessage], base: int, counters: Sequence[int], untils: list[int]
    ) -> list[bytes]:
        pack, lead, marks = self._pack, self._lead, self._marks
        # Of a copy that is no QueuedCopy both numbers are the same.
        numbers = [base | message.count for message in messages]
        origins = [
            base | message.origin if type(message) is QueuedCopy else base | message.count for message in messages
        ]
        if self._locks:
            return [
                pack(lead, counter, marks, until_ms, _ENQUEUED, message.enqueued_ms, _SEQUENCE, own, _ORIGIN, origin)
                for message, counter, until_ms, own, origin in zip(
                    messages, counters, untils, numbers, origins, strict=True
                )
            ]
        return [
            pack(lead, message.enqueued_ms, _SEQUENCE, own, _ORIGIN, origin)
            for message, own, origin in zip(messages, numbers, origins, strict=True)
        ]


def _annotations_of(
    message: QueuedMessage, metadata: MessageMetadata, fragment_number: int, locked_until_ms: int
) -> dict[Any, Any]:
    """Message annotations of any message."""
    number = fragment_number << COUNT_BITS | message.count
    annotations: dict[Any, Any] = {ENQUEUED_TIME: Timestamp(message.enqueued_ms), SEQUENCE_NUMBER: number}
    if metadata.enqueued_sequence_number is not None:
        annotations[ENQUEUE_SEQUENCE_NUMBER] = metadata.enqueued_sequence_number
    elif type(message) is QueuedCopy or sub_queue_of(message.state) != MAIN:
        # The topic has handed it on, or it was dead-lettered (Azure: AMQP protocol guide).
        annotations[ENQUEUE_SEQUENCE_NUMBER] = fragment_number << COUNT_BITS | _origin_of(message)
    if locked_until_ms:
        annotations[LOCKED_UNTIL] = Timestamp(locked_until_ms)
    if kind_of(message.state):
        annotations[MESSAGE_STATE] = AmqpInt(kind_of(message.state))
        if kind_of(message.state) == DEFERRED and metadata.deferred_in is not None:
            annotations[DEFERRED_IN] = metadata.deferred_in
    for key, value in (
        (PARTITION_KEY, metadata.partition_key),
        (VIA_PARTITION_KEY, metadata.via_partition_key),
        (DEAD_LETTER_SOURCE, metadata.dead_letter_source),
    ):
        if value is not None:
            annotations[key] = value
    if metadata.scheduled_ms is not None:
        annotations[SCHEDULED_TIME] = Timestamp(metadata.scheduled_ms)
    _add_pairs(annotations, metadata.annotations)
    return annotations


def _timed(head: bytes, payload: bytes, enqueued_ms: int, ttl: int | None) -> tuple[bytes, Rest]:
    """Put the properties, in which creation and expiry are the broker's, behind the head."""
    front, end = timed_front(payload, enqueued_ms, None if ttl is None else enqueued_ms + ttl)
    if len(payload) <= WHOLE_BYTES_MAX:
        return head + front, payload[end:]
    return head + front, memoryview(payload)[end:]


def _origin_of(message: QueuedMessage) -> int:
    return message.origin if type(message) is QueuedCopy else message.count


def _wire_ttl(ttl_ms: int | None) -> int | None:
    # The header holds 32 bits; a longer life is not told (AMQP 1.0 part 3, 3.2.4).
    return ttl_ms if ttl_ms is not None and ttl_ms < 1 << 32 else None


def _add_pairs(annotations: dict[Any, Any], pairs: bytes | None) -> None:
    pos = 0
    while pairs is not None and pos < len(pairs):
        key, pos = decode(pairs, pos)
        annotations[key], pos = decode(pairs, pos)


def _with_overlay(message: QueuedMessage, metadata: MessageMetadata) -> bytes:
    payload = message.payload
    if metadata.changes is not None:
        payload = Overlay.decode(metadata.changes).apply_to(payload)
    changes: dict[str, Any] = {}
    if metadata.overlay is not None:
        changes.update(decode(metadata.overlay)[0])
    if sub_queue_of(message.state) != MAIN:
        if metadata.reason is not None:
            changes["DeadLetterReason"] = metadata.reason
        if metadata.description is not None:
            changes["DeadLetterErrorDescription"] = metadata.description
    return with_application_properties(payload, changes) if changes else payload
