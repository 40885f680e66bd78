"""From bytes to frames: cuts what the socket gave into frames and takes the short way for those that are many.

Transfers and dispositions in the layout that every client uses (small list, fields in their usual encodings) are
read in place, without decoding values and without a call each. What follows a transfer's tag, or a disposition's
ids, is nearly always the same few bytes; a dictionary remembers what they mean. Everything else goes through
``control``. One read gives one ``Transfers`` per run of deliveries and one ``Dispositions`` per session.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp.delivery_states import DeliveryState, TransactionalState, state_from
from duobus.amqp.frames import MASK
from duobus.codec import DecodeError, decode

if TYPE_CHECKING:
    from duobus.amqp.events import Event
    from duobus.amqp.link import Link
    from duobus.amqp.session import Session

# size, doff and type, channel, 00 53, code, constructor, list size, field count.
_FRAME: Final = struct.Struct(">IHHHBBBB").unpack_from
_FRAME_SIZE: Final = 14
_U32: Final = struct.Struct(">I").unpack_from

#: How many different tails are remembered; clients use one or two, and a hostile one only slows itself down.
_TAILS_MAX: Final = 64
#: Longer ones hold transaction ids and the like, which do not repeat; an empty one would also be found where the
#: ids already pass the end of the list.
_TAIL_SIZE_MAX: Final = 32

_UNLIMITED: Final = 1 << 62


class _Tail:
    """What the end of a performative's field list means.

    Attributes:
        count: Fields of the whole list; -1 when the thorough path must look.
        settled: The field of that name.
        message_format: Of transfers.
        state: Of dispositions.
    """

    __slots__ = ("count", "message_format", "settled", "state")

    def __init__(self, count: int, settled: bool, message_format: int, state: DeliveryState | None) -> None:
        self.count = count
        self.settled = settled
        self.message_format = message_format
        self.state = state


_COMPLEX: Final = _Tail(-1, False, 0, None)


class FrameReader:
    """The reading half of a connection.

    Attributes:
        generation: Counts reads, and frames that end something within one: what is collected into one event must
            not reach across either.
        work_left: How many more frames may be taken one at a time before the rest has to wait for the next call of
            ``receive``; those that begin or end something count several times.
    """

    __slots__ = (
        "_disposition_tails",
        "_transfer_tails",
        "frame_max",
        "generation",
        "halted",
        "needed",
        "sessions",
        "work_left",
    )

    def __init__(self, frame_max: int) -> None:
        self.generation = 0
        self.frame_max = frame_max
        # Set when no further frame may be looked at for now.
        self.halted = False
        # Bytes that the next frame takes, as far as known.
        self.needed = 0
        self.sessions: dict[int, Session] = {}
        self.work_left = MASK
        self._transfer_tails: dict[bytes, _Tail] = {}
        self._disposition_tails: dict[bytes, _Tail] = {}

    def control(self, data: bytes, pos: int, stop: int, events: list[Event]) -> None:
        """Take the frame between ``pos`` and ``stop``, whatever it is; never raises for what a peer sent."""
        raise NotImplementedError

    def frame_too_large(self, size: int, events: list[Event]) -> None:
        """Give up, for a frame of this size is not allowed."""
        raise NotImplementedError

    def read_frames(self, data: bytes, pos: int, events: list[Event]) -> int:  # noqa: C901 - hot path, one frame a round
        """Take all whole frames from ``pos`` on and return the offset of the first that is not whole, or not wanted."""
        end = len(data)
        frame_max = self.frame_max
        sessions = self.sessions
        transfer_tails = self._transfer_tails
        disposition_tails = self._disposition_tails

        # The run of transfers being collected: it belongs to ``link`` and lies in ``payloads`` from ``base`` on.
        # ``run_tail`` is None when there is no run.
        link: Link | None = None
        payloads: list[bytes] = []
        base = 0
        run_tail: _Tail | None = None
        tags: list[bytes] | None = None
        channel = handle = next_id = stop_id = run_max = 0

        # The range of dispositions being collected; none when ``range_tail`` is None.
        range_tail: _Tail | None = None
        range_session: Session | None = None
        range_channel = range_role = first = last = range_next = 0

        # Said, not inferred from what struct gives: compiled code computes with them as they are (decision 0008).
        kind: int
        ch: int
        descriptor: int
        code: int
        constructor: int
        list_size: int
        count: int
        delivery_id: int
        low: int
        high: int

        is_bad = False
        size = 0
        while end - pos >= 8:
            try:
                size, kind, ch, descriptor, code, constructor, list_size, count = _FRAME(data, pos)
                stop = pos + size
                if size > frame_max or size < 8:
                    is_bad = True
                    break
                if stop > end:
                    self.needed = size
                    break
                body = pos + 13 + list_size
                if kind == 0x0200 and descriptor == 0x0053 and constructor == 0xC0 and body <= stop:
                    if code == 0x14:
                        p = pos + 14
                        byte = data[p]
                        if byte == 0x52:
                            h = data[p + 1]
                            p += 2
                        elif byte == 0x43:
                            h = 0
                            p += 1
                        elif byte == 0x70:
                            h = _U32(data, p + 1)[0]
                            p += 5
                        else:
                            h = -1
                        byte = data[p]
                        if byte == 0x70:
                            delivery_id = _U32(data, p + 1)[0]
                            p += 5
                        elif byte == 0x52:
                            delivery_id = data[p + 1]
                            p += 2
                        elif byte == 0x43:
                            delivery_id = 0
                            p += 1
                        else:
                            h = -1
                            delivery_id = 0
                        if data[p] == 0xA0 and h >= 0:
                            tag_at = p + 2
                            p += 2 + data[p + 1]
                            # Compiled, a slice that ends before it starts is no empty one but an error (decision 0008).
                            tail = transfer_tails.get(data[p:body]) if p <= body else None
                            if tail is None and p <= body:
                                tail = self._learn_transfer(data[p:body], count)
                            if (
                                delivery_id == next_id
                                and tail is run_tail
                                and tail is not None
                                and h == handle
                                and ch == channel
                                and delivery_id != stop_id
                                and stop - body <= run_max
                                and count == tail.count
                            ):
                                payloads.append(data[body:stop])
                                if tags is not None:
                                    tags.append(data[tag_at:p])
                                next_id = (delivery_id + 1) & MASK
                                pos = stop
                                continue
                            if tail is not None and tail.count == count:
                                # Another link, a gap in the ids, or the first transfer of this read.
                                if link is not None:
                                    link.close_run(len(payloads) - base, next_id)
                                    link = run_tail = None
                                session = sessions.get(ch)
                                candidate = None if session is None else session.link_of(h)
                                if candidate is not None:
                                    room = candidate.run_room(stop - body)
                                    if room > 0:
                                        link = candidate
                                        payloads = link.open_run(
                                            delivery_id, tail.settled, tail.message_format, events, self.generation
                                        )
                                        base = len(payloads)
                                        run_tail = tail
                                        channel = ch
                                        handle = h
                                        stop_id = (delivery_id + room) & MASK
                                        run_max = _UNLIMITED if link.max_message_size is None else link.max_message_size
                                        payloads.append(data[body:stop])
                                        tags = link.tags
                                        if tags is not None:
                                            tags.append(data[tag_at:p])
                                        next_id = (delivery_id + 1) & MASK
                                        pos = stop
                                        continue
                    elif code == 0x15:
                        role = data[pos + 14]
                        p = pos + 15
                        if role == 0x56 and data[p] <= 1:
                            # The long form of a boolean, which pyamqp prefers.
                            role = 0x42 - data[p]
                            p += 1
                        byte = data[p]
                        if byte == 0x70:
                            low = _U32(data, p + 1)[0]
                            p += 5
                        elif byte == 0x52:
                            low = data[p + 1]
                            p += 2
                        elif byte == 0x43:
                            low = 0
                            p += 1
                        else:
                            low = -1
                        byte = data[p]
                        if byte == 0x40:
                            high = low
                            p += 1
                        elif byte == 0x70:
                            high = _U32(data, p + 1)[0]
                            p += 5
                        elif byte == 0x52:
                            high = data[p + 1]
                            p += 2
                        elif byte == 0x43:
                            high = 0
                            p += 1
                        else:
                            high = -1
                        tail = disposition_tails.get(data[p:body]) if p <= body else None
                        if tail is None and p <= body:
                            tail = self._learn_disposition(data[p:body], count)
                        if tail is not None and tail.count == count and 0 <= low <= high:
                            if low == range_next and tail is range_tail and role == range_role and ch == range_channel:
                                last = high
                                range_next = (high + 1) & MASK
                                pos = stop
                                continue
                            if 0x41 <= role <= 0x42 and ch in sessions:
                                if range_tail is not None and range_session is not None:
                                    range_session.on_disposition(
                                        range_role == 0x41,
                                        first,
                                        last,
                                        range_tail.settled,
                                        range_tail.state,
                                        events,
                                        self.generation,
                                    )
                                range_session = sessions[ch]
                                range_tail = tail
                                range_role = role
                                range_channel = ch
                                first = low
                                last = high
                                range_next = (high + 1) & MASK
                                pos = stop
                                continue
            except (IndexError, struct.error):
                # A frame of less than 14 bytes at the end of the data, or one whose fields pass the end.
                size = int(_U32(data, pos)[0])
                stop = pos + size
                if size > frame_max or size < 8:
                    is_bad = True
                    break
                if stop > end:
                    self.needed = size
                    break
            # Anything else is taken one at a time, after what was collected so far.
            if link is not None:
                link.close_run(len(payloads) - base, next_id)
                link = run_tail = None
            if range_tail is not None and range_session is not None:
                range_session.on_disposition(
                    range_role == 0x41, first, last, range_tail.settled, range_tail.state, events, self.generation
                )
                range_tail = None
            self.control(data, pos, stop, events)
            pos = stop
            self.work_left -= 1
            if self.halted or self.work_left <= 0:
                return pos
            frame_max = self.frame_max
        if link is not None:
            link.close_run(len(payloads) - base, next_id)
        if range_tail is not None and range_session is not None:
            range_session.on_disposition(
                range_role == 0x41, first, last, range_tail.settled, range_tail.state, events, self.generation
            )
        if is_bad:
            self.frame_too_large(size, events)
        return pos

    def _learn_transfer(self, raw: bytes, count: int) -> _Tail:
        """Find out what stands behind the tag: message-format, settled, more, mode, state, resume, aborted, ..."""
        tail = _COMPLEX
        fields = _fields(raw)
        if fields is not None and len(fields) + 3 == count <= 11:
            fields += [None] * (8 - len(fields))
            message_format, settled, more, _, state, resume, aborted, _ = fields
            if state is not None:
                # A transaction's, which does not repeat.
                return _COMPLEX
            simple = not more and not resume and not aborted
            if simple and _is_uint(message_format) and _is_flag(settled):
                tail = _Tail(count, bool(settled), message_format or 0, None)
        if len(self._transfer_tails) < _TAILS_MAX and 0 < len(raw) <= _TAIL_SIZE_MAX:
            self._transfer_tails[raw] = tail
        return tail

    def _learn_disposition(self, raw: bytes, count: int) -> _Tail:
        """Find out what stands behind the ids: settled, state, batchable."""
        tail = _COMPLEX
        fields = _fields(raw)
        if fields is not None and len(fields) + 3 == count <= 6:
            fields += [None] * (3 - len(fields))
            settled, state, _ = fields
            if _is_flag(settled):
                try:
                    known = state_from(state)
                    if isinstance(known, TransactionalState):
                        # Not collected, for its order among transfers matters; not remembered, for it does not repeat.
                        return _COMPLEX
                    tail = _Tail(count, bool(settled), 0, known)
                except DecodeError:
                    # Not a state: the thorough path says so to the peer.
                    tail = _COMPLEX
        if len(self._disposition_tails) < _TAILS_MAX and 0 < len(raw) <= _TAIL_SIZE_MAX:
            self._disposition_tails[raw] = tail
        return tail


def _is_uint(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MASK)


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _fields(raw: bytes) -> list[Any] | None:
    """Decode values that follow one another up to the end; None when they do not."""
    fields = []
    pos = 0
    try:
        while pos < len(raw):
            value, pos = decode(raw, pos)
            fields.append(value)
    except DecodeError:
        return None
    return fields
