"""AMQP message sections and the broker's columns: the only place that knows both.

In: header and annotations are taken off and understood as far as the broker needs; the bare message stays the
bytes that came (design 3.12). Out: a new header and annotations in front of those bytes.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final, NamedTuple

from duobus.broker import COUNT_BITS, DEFERRED, MAIN, CopySlot, Slot, kind_of, string_key, sub_queue_of
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
    encode,
    header_section,
    plain_group_id,
    scan,
    scan_plain,
    with_application_properties,
    without_trailing_annotations,
)
from duobus.codec import Int as AmqpInt
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, Undecodable
from duobus.model.columns import Mailbox, SendBatch
from duobus.model.overlay import Overlay
from duobus.model.special import SessionOnly, Special, is_ordinary

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
#: Contract chapter 15.
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

#: Annotations that are the broker's to give; whatever a sender puts there is dropped (contract 8.3).
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
    special: Special | None
    key: bytes | None
    is_ping: bool


#: ``plain_offset(payload, is_partitioned)``: offset of the bare message when there is nothing else to know of it,
#: else -1: then ``take_apart``. The codec's own function, without a call in between on the hot path.
plain_offset = scan_plain


def take_session_apart(payload: bytes) -> Incoming:
    """``take_apart`` for a queue with sessions, where an ordinary message has a session id and nothing else.

    Raises:
        Undecodable, ArgumentInvalid: See ``take_apart``.
    """
    bare = scan_plain(payload, False)
    if bare >= 0:
        session_id = plain_group_id(payload, bare)
        if session_id is not None:
            found = _SESSIONS.get(session_id) or _of_session(session_id)
            if found is not None:
                return Incoming(payload[bare:] if bare else payload, found[0], found[1], False)
    return take_apart(payload)


#: Session ids of late, with what goes with each: most messages belong to a session that others belong to, too.
_SESSIONS_MAX: Final = 4096
_SESSIONS: Final[dict[bytes, tuple[SessionOnly, bytes]]] = {}


def _of_session(raw: bytes) -> tuple[SessionOnly, bytes] | None:
    """The special and the placement key of an ordinary message of a session; None when the id is no text."""
    try:
        session_id = raw.decode()
    except UnicodeDecodeError:
        return None
    if len(_SESSIONS) >= _SESSIONS_MAX:
        _SESSIONS.clear()
    found = _SESSIONS[raw] = SessionOnly(session_id=session_id), string_key(session_id)
    return found


def plain_session_batch(
    first_delivery_id: int, payloads: list[bytes], unsettled: bool, reply: Mailbox, *, with_keys: bool
) -> SendBatch | None:
    """Messages of one read that have a session id and nothing else that is rare; None when one of them is different."""
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
                raw = plain_group_id(payload, offset) if offset >= 0 else None
                if raw is None:
                    return None
            bare.append(payload[offset:] if offset else payload)
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


def take_apart(payload: bytes) -> Incoming:
    """Look properly at a message that is not plain.

    Raises:
        Undecodable: It is not AMQP.
        ArgumentInvalid: A key is too long, properties are too large, or session id and partition key differ (PE11).
        ArgumentOutOfRange: It is scheduled for an instant that never comes.
    """
    payload, found = _scanned(payload)
    bare = payload[found.bare :] if found.bare else payload
    is_ping = found.content_type == PING_CONTENT_TYPE and found.body_bytes_empty
    special = _special_of(found)
    _check_lengths(found, special)
    key = None
    if found.group_id is not None:
        key = string_key(found.group_id)
    elif special.partition_key is not None:
        key = string_key(special.partition_key)
    return Incoming(bare, None if special == _ORDINARY else special, key, is_ping)


def _scanned(payload: bytes) -> tuple[bytes, Scan]:
    try:
        return payload, scan(payload)
    except TooLargeError as error:
        raise ArgumentInvalid(f"The message is not taken: {error}. Put large contents into the body.") from error
    except DecodeError as error:
        shorter = without_trailing_annotations(payload)
        if shorter is payload:
            raise Undecodable(f"The message cannot be decoded: {error}") from error
    return _scanned(shorter)


_ORDINARY: Final = Special()


def envelope_key(found: Scan) -> bytes | None:
    """The placement key that a batch's envelope names (contract 7.3)."""
    key = _text(found.annotations, PARTITION_KEY) if found.annotations else None
    return None if key is None else string_key(key)


def _special_of(found: Scan) -> Special:
    # int() and str(): the codec's own types stay out of what is stored, which knows plain ones only.
    special = Special(session_id=None if found.group_id is None else str(found.group_id))
    special.ttl_ms = _time_to_live(found)
    if found.priority != 4:
        special.priority = int(found.priority)
    if found.annotations:
        special.partition_key = _text(found.annotations, PARTITION_KEY)
        special.via_partition_key = _text(found.annotations, VIA_PARTITION_KEY)
        scheduled = found.annotations.get(SCHEDULED_TIME)
        if scheduled is not None:
            if not isinstance(scheduled, Timestamp):
                raise ArgumentInvalid(f"{SCHEDULED_TIME} is a timestamp, not a {type(scheduled).__name__}.")
            if scheduled > SCHEDULED_MS_MAX:
                raise ArgumentOutOfRange(f"{SCHEDULED_TIME} is beyond the year 9999. Give an instant that can come.")
            special.scheduled_ms = int(scheduled)
        pairs = [(key, value) for key, value in found.annotations.items() if key not in _OWN]
        if pairs:
            special.annotations = b"".join(encode(key) + encode(value) for key, value in pairs)
            special.annotations_count = 2 * len(pairs)
    return special


def _time_to_live(found: Scan) -> int | None:
    """Contract 7.5: a life beyond 49.7 days does not fit the header, so SDKs tell it by two instants."""
    ttl = found.ttl_ms
    if ttl is not None and found.creation_time_ms is not None and found.absolute_expiry_ms is not None:
        ttl = max(ttl, found.absolute_expiry_ms - found.creation_time_ms)
    return None if ttl is None else int(ttl)


def _text(annotations: dict[Any, Any], key: Symbol) -> str | None:
    value = annotations.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(f"{key} is a string, not a {type(value).__name__}.")
    return None if value is None else str(value)


def _check_lengths(found: Scan, special: Special) -> None:
    for name, value in (
        ("message id", found.message_id),
        ("session id", found.group_id),
        ("partition key", special.partition_key),
    ):
        if isinstance(value, (str, bytes)) and len(value) > ID_LENGTH_MAX:
            raise ArgumentInvalid(f"The {name} has {len(value)} characters; at most {ID_LENGTH_MAX} are allowed.")
    if found.group_id is not None and special.partition_key not in (None, found.group_id):
        raise ArgumentInvalid("The session id and the partition key of a message must be equal when both are given.")


# -- out --------------------------------------------------------------------------------------------------------

#: Header with durable, no priority, no ttl, first-acquirer, delivery-count 0: what an ordinary first delivery has.
_FIRST_HEADER: Final = header_section(durable=True, first_acquirer=True, delivery_count=0)


def _map_start(pairs: int, size: int) -> bytes:
    return b"\x00\x53\x72\xc1" + bytes((size + 1, pairs * 2))


def _symbol(key: Symbol) -> bytes:
    return b"\xa3" + bytes((len(key),)) + key.encode()


_ENQUEUED: Final = _symbol(ENQUEUED_TIME) + b"\x83"
_SEQUENCE: Final = _symbol(SEQUENCE_NUMBER) + b"\x81"
_ORIGIN: Final = _symbol(ENQUEUE_SEQUENCE_NUMBER) + b"\x81"
_LOCKED: Final = _symbol(LOCKED_UNTIL) + b"\x83"


#: Headers that a link keeps, by delivery count.
_HEADERS_MAX = 64


class HeadMaker:
    """Makes what stands in front of the bare message, for one link.

    An ordinary message's head is one fixed template with a few numbers in it.
    """

    __slots__ = ("_again", "_default_ttl_ms", "_locks", "_ordinary", "_pack", "_pack_map", "_start")

    def __init__(self, default_ttl_ms: int | None, *, locks: bool) -> None:
        self._default_ttl_ms = default_ttl_ms
        self._locks = locks
        header = _FIRST_HEADER
        if default_ttl_ms is not None:
            header = header_section(True, None, _wire_ttl(default_ttl_ms), True, 0)
        size = len(_ENQUEUED) + 8 + len(_SEQUENCE) + 8 + len(_ORIGIN) + 8
        if locks:
            size += len(_LOCKED) + 8
        first = header + _map_start(4 if locks else 3, size) + _ENQUEUED
        rest = f"sq{len(_SEQUENCE)}sq{len(_ORIGIN)}sq" + (f"{len(_LOCKED)}sq" if locks else "")
        self._pack = struct.Struct(f">{len(first)}{rest}").pack
        self._ordinary = first
        # The same without its header, which differs by delivery count for what was delivered before.
        self._start = first[len(header) :]
        self._pack_map = struct.Struct(f">{len(self._start)}{rest}").pack
        self._again: dict[int, bytes] = {}

    def heads(self, slots: list[Slot], fragment_number: int, locked_until_ms: int) -> tuple[list[bytes], list[bytes]]:
        """Heads and bare messages of these slots, for one peek-locked or removed batch."""
        base = fragment_number << COUNT_BITS
        pack, first, locks = self._pack, self._ordinary, self._locks
        heads: list[bytes] = []
        payloads: list[bytes] = []
        for slot in slots:
            payload = slot.payload
            special = slot.special
            if slot.deliveries and special is None and not slot.state:
                number = base | slot.count
                head = self._repeated(slot, number, number, locked_until_ms)
            elif slot.deliveries or not is_ordinary(special):
                head, payload = self.rare(slot, fragment_number, locked_until_ms)
            elif locks:
                number = base | slot.count
                head = pack(first, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, number, _LOCKED, locked_until_ms)
            else:
                number = base | slot.count
                head = pack(first, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, number)
            heads.append(head)
            payloads.append(payload)
        return heads, payloads

    def heads_until(
        self, slots: list[Slot], fragment_number: int, untils: list[int]
    ) -> tuple[list[bytes], list[bytes]]:
        """``heads`` of peek-locked messages of several sessions: the locks of each end at a time of their own."""
        base = fragment_number << COUNT_BITS
        pack, first = self._pack, self._ordinary
        heads: list[bytes] = []
        payloads: list[bytes] = []
        for slot, until_ms in zip(slots, untils, strict=True):
            if slot.deliveries or (type(slot.special) is not SessionOnly and not is_ordinary(slot.special)):
                head, payload = self.rare(slot, fragment_number, until_ms)
                heads.append(head)
                payloads.append(payload)
                continue
            number = base | slot.count
            heads.append(pack(first, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, number, _LOCKED, until_ms))
            payloads.append(slot.payload)
        return heads, payloads

    def _repeated(self, slot: Slot, number: int, origin: int, locked_until_ms: int) -> bytes:
        """Head of an ordinary message that was delivered before."""
        header = self._again.get(slot.deliveries)
        if header is None:
            if len(self._again) >= _HEADERS_MAX:
                self._again.clear()
            header = header_section(True, None, _wire_ttl(self._default_ttl_ms), False, slot.deliveries)
            self._again[slot.deliveries] = header
        if self._locks:
            return header + self._pack_map(
                self._start, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, origin, _LOCKED, locked_until_ms
            )
        return header + self._pack_map(self._start, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, origin)

    def rare(
        self, slot: Slot, fragment_number: int, locked_until_ms: int, lock_token: uuid.UUID | None = None
    ) -> tuple[bytes, bytes]:
        """Head and bare message of any slot; an overlay is merged into the application properties.

        ``lock_token`` is for messages that come without a delivery tag, through ``$management`` (contract 8.3): the Go
        SDK knows no other.
        """
        special = slot.special or _ORDINARY
        ttl = self._default_ttl_ms
        if special.ttl_ms is not None:
            ttl = special.ttl_ms if ttl is None else min(ttl, special.ttl_ms)
        header = header_section(
            durable=True,
            priority=special.priority,
            ttl_ms=_wire_ttl(ttl),
            first_acquirer=slot.deliveries == 0,
            delivery_count=slot.deliveries,
        )
        number = fragment_number << COUNT_BITS | slot.count
        annotations: dict[Any, Any] = {ENQUEUED_TIME: Timestamp(slot.enqueued_ms), SEQUENCE_NUMBER: number}
        origin = fragment_number << COUNT_BITS | (slot.origin if isinstance(slot, CopySlot) else slot.count)
        annotations[ENQUEUE_SEQUENCE_NUMBER] = special.enqueued_sequence_number or origin
        if locked_until_ms:
            annotations[LOCKED_UNTIL] = Timestamp(locked_until_ms)
        if kind_of(slot.state):
            annotations[MESSAGE_STATE] = AmqpInt(kind_of(slot.state))
            if kind_of(slot.state) == DEFERRED and special.deferred_in is not None:
                annotations[DEFERRED_IN] = special.deferred_in
        for key, value in (
            (PARTITION_KEY, special.partition_key),
            (VIA_PARTITION_KEY, special.via_partition_key),
            (DEAD_LETTER_SOURCE, special.dead_letter_source),
        ):
            if value is not None:
                annotations[key] = value
        if special.scheduled_ms is not None:
            annotations[SCHEDULED_TIME] = Timestamp(special.scheduled_ms)
        token = b"" if lock_token is None else delivery_annotations_section({LOCK_TOKEN: lock_token})
        head = header + token + _with_pairs(annotations, special)
        return head, _with_overlay(slot, special)


class CopyHeadMaker(HeadMaker):
    """The same for copies of a topic's messages, which have the number that the topic gave them beside their own."""

    def heads(self, slots: list[Slot], fragment_number: int, locked_until_ms: int) -> tuple[list[bytes], list[bytes]]:
        """See HeadMaker."""
        base = fragment_number << COUNT_BITS
        heads: list[bytes] = []
        payloads: list[bytes] = []
        for slot in slots:
            payload = slot.payload
            special = slot.special
            if slot.state or not is_ordinary(special):
                head, payload = self.rare(slot, fragment_number, locked_until_ms)
            else:
                number = base | slot.count
                origin = base | slot.origin if isinstance(slot, CopySlot) else number
                if slot.deliveries:
                    head = self._repeated(slot, number, origin, locked_until_ms)
                elif self._locks:
                    head = self._pack(
                        self._ordinary, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, origin, _LOCKED, locked_until_ms
                    )
                else:
                    head = self._pack(self._ordinary, slot.enqueued_ms, _SEQUENCE, number, _ORIGIN, origin)
            heads.append(head)
            payloads.append(payload)
        return heads, payloads

    def heads_until(
        self, slots: list[Slot], fragment_number: int, untils: list[int]
    ) -> tuple[list[bytes], list[bytes]]:
        """See HeadMaker."""
        heads: list[bytes] = []
        payloads: list[bytes] = []
        for slot, until_ms in zip(slots, untils, strict=True):
            (head,), (payload,) = self.heads([slot], fragment_number, until_ms)
            heads.append(head)
            payloads.append(payload)
        return heads, payloads


def _wire_ttl(ttl_ms: int | None) -> int | None:
    # The header holds 32 bits; a longer life is not told (contract 7.5).
    return ttl_ms if ttl_ms is not None and ttl_ms < 1 << 32 else None


def _with_pairs(annotations: dict[Any, Any], special: Special) -> bytes:
    if special.annotations:
        pos = 0
        while pos < len(special.annotations):
            key, pos = decode(special.annotations, pos)
            annotations[key], pos = decode(special.annotations, pos)
    return annotations_section(annotations)


def _with_overlay(slot: Slot, special: Special) -> bytes:
    payload = slot.payload
    if special.changes is not None:
        payload = Overlay.decode(special.changes).apply_to(payload)
    changes: dict[str, Any] = {}
    if special.overlay is not None:
        changes.update(decode(special.overlay)[0])
    if sub_queue_of(slot.state) != MAIN:
        if special.reason is not None:
            changes["DeadLetterReason"] = special.reason
        if special.description is not None:
            changes["DeadLetterErrorDescription"] = special.description
    return with_application_properties(payload, changes) if changes else payload
