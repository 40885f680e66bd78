"""The connection: bytes in, events and bytes out. No input or output of its own, no clock, no callbacks.

    socket bytes --> receive() --> events          accept, grant, settle, send_run ... --> take_output() --> socket

The engine answers protocol headers, begin, detach, end and close by itself. The owner answers SaslInit, OpenReceived
and AttachReceived. Whatever a peer sends ends in events, at worst in Closed with our close in the output; it never
raises. Bounded are frames, sessions, links, unfinished deliveries and unread input; the output is not, because only
the owner knows how fast the socket takes it: read less while ``output_size`` is large.

How a connection starts:

    acceptor   header -> SASL -> second header -> frames       (without SASL: header -> frames)
    initiator  the same, having sent all of its own part in advance

Sources: AMQP 1.0 part 2, sections 2.2 to 2.4, 2.7; part 5, section 5.3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from duobus.amqp import errors as conditions
from duobus.amqp import sasl
from duobus.amqp.delivery_states import DeliveryState, TransactionalState, state_from
from duobus.amqp.errors import EngineMisuse, Error, ProtocolViolation
from duobus.amqp.events import Closed, Event, OpenReceived, SaslInitReceived, WorkDropped
from duobus.amqp.fields import Performative
from duobus.amqp.frame_reader import FrameReader
from duobus.amqp.frames import (
    AMQP_HEADER,
    EARLY_FRAME_MAX,
    FRAME_SIZE_MIN,
    HEARTBEAT,
    MASK,
    SASL_HEADER,
    TYPE_AMQP,
    TYPE_SASL,
    frame,
    read_flow_fields,
)
from duobus.amqp.link import DETACHING, Link
from duobus.amqp.performatives import (
    PERFORMATIVES,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from duobus.amqp.session import ENDING, Session
from duobus.amqp.settings import ConnectionSettings
from duobus.codec import DecodeError, Described, decode_outline

# Phases of the conversation; each says what may come next.
HEADER: Final = 0  # The first protocol header.
SASL: Final = 1  # SASL frames.
SECOND_HEADER: Final = 2  # The AMQP header behind SASL.
FRAMES: Final = 3  # AMQP frames, the first of which is open.

_U32: Final = struct.Struct(">I").unpack_from

#: States of deliveries carry what the broker keeps: properties to modify, reasons.
_WHOLE: Final = frozenset({0x14, 0x15, "amqp:transfer:list", "amqp:disposition:list"})


# What is dropped because its link or session has ended: its transaction must not be committed without it (I34).


def note_dropped(connection: FrameReader, performative: Performative, events: list[Event]) -> None:
    """A frame that came in is not looked at any more; say so if it is part of a transaction."""
    if isinstance(performative, (Transfer, Disposition)) and performative.state is not None:
        note_lost(connection, state_from(performative.state), events)


def note_lost(connection: FrameReader, state: DeliveryState | None, events: list[Event]) -> None:
    """What has this state is not done; say so if it is part of a transaction."""
    if isinstance(state, TransactionalState):
        # What comes after it in this read, such as the discharge of its transaction, is told after it.
        connection.generation += 1
        events.append(WorkDropped(state))


def take_transfer(session: Session, transfer: Transfer, payload: bytes, events: list[Event]) -> None:
    """Have a session take one transfer frame of any kind, or drop it if its link has ended.

    Raises:
        ProtocolViolation: See ``Session.on_transfer``; it is not taken then.
    """
    connection = session.connection
    link = session.link_of(transfer.handle)
    if link is not None and link.state == DETACHING:
        session.count_incoming(1)
        note_dropped(connection, transfer, events)
        # The first frame of a delivery says what it is part of, and may have come while the link still was there.
        note_lost(connection, link.cut, events)
        link.cut = None
        return
    try:
        session.on_transfer(transfer, payload, events, connection.generation)
    except ProtocolViolation:
        note_dropped(connection, transfer, events)
        raise


#: How much may pile up while an answer of the owner is awaited; the answer comes within the same turn.
_HALTED_INPUT_MAX: Final = 1 << 20
#: No peer makes us send heartbeats more often.
_HEARTBEAT_MIN_MS: Final = 250
#: The largest frame that we send, whatever the peer takes: links share the connection.
_FRAME_OUT_MAX: Final = 1 << 20

_U16: Final = struct.Struct(">H").unpack_from


class Connection(FrameReader):
    """One end of an AMQP connection, acceptor or initiator.

    Attributes:
        settings: As given.
        is_acceptor: Whether the peer connected to us.
        is_closed: Nothing more will be read: write what is left and close the socket.
        dropped: Counts what waited for a peer's window, or for output, and was dropped with its link or session.
        output_size: Bytes that ``take_output`` would give.
        out: What was written since the last ``take_output``; for the links' use only.
        phase: One of the four above.
        held_back: Sessions with large deliveries that wait for ``take_output``; only the sessions change it.
        peer_frame_max: The largest frame that we may send.
        link_count: Links of all sessions.
        partial_bytes: What unfinished deliveries hold.
        reopened: Sessions on which more can be sent since output was taken, where that was waited for.
        running: Links that got deliveries in the read under way; for the links' use only.
    """

    __slots__ = (
        "_close_sent",
        "_last_read_ms",
        "_last_write_ms",
        "_local",
        "_now_ms",
        "_open_received",
        "_open_sent",
        "_peer_channel_max",
        "_peer_idle_ms",
        "_pending",
        "dropped",
        "held_back",
        "is_acceptor",
        "is_closed",
        "link_count",
        "out",
        "output_size",
        "partial_bytes",
        "peer_frame_max",
        "phase",
        "reopened",
        "running",
        "settings",
    )

    def __init__(self, settings: ConnectionSettings, *, acceptor: bool) -> None:
        super().__init__(EARLY_FRAME_MAX)
        self.settings = settings
        self.is_acceptor = acceptor
        self.is_closed = False
        self.dropped = 0
        self.output_size = 0
        self.out: list[bytes] = []
        self.phase = HEADER
        self.peer_frame_max = FRAME_SIZE_MIN
        self.link_count = 0
        self.partial_bytes = 0
        self.running: list[Link] = []
        self._pending = bytearray()
        self.reopened: list[Session] = []
        self.held_back: list[Session] = []
        self._local: dict[int, Session] = {}
        self._open_sent = False
        self._open_received = False
        self._close_sent = False
        self._peer_channel_max = 65535
        self._peer_idle_ms: int | None = None
        self._now_ms = 0
        self._last_read_ms = 0
        self._last_write_ms = 0

    # How the connection starts: protocol headers and SASL.

    def read_handshake(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Take one protocol header or SASL frame; return the offset behind it, or ``pos`` if it is not whole."""
        if len(data) - pos < 8:
            self.needed = 8
            return pos
        if self.phase != SASL:
            self._on_header(data[pos : pos + 8], events)
            return pos + 8
        size = int(_U32(data, pos)[0])
        if not 8 <= size <= EARLY_FRAME_MAX:
            self.give_up(Error(conditions.FRAMING_ERROR, f"a SASL frame of {size} bytes"), events)
            return pos
        if pos + size > len(data):
            self.needed = size
            return pos
        try:
            self._on_sasl_frame(data, pos, pos + size, events)
        except DecodeError as error:
            self.give_up(Error(conditions.DECODE_ERROR, str(error)), events)
        except ProtocolViolation as violation:
            self.give_up(violation.error, events)
        return pos + size

    def _on_header(self, header: bytes, events: list[Event]) -> None:
        if self.is_acceptor:
            self._answer_header(header, events)
        elif self.phase == HEADER and header == SASL_HEADER and self.settings.mechanisms:
            self.phase = SASL
        elif header == AMQP_HEADER and (self.phase == SECOND_HEADER or not self.settings.mechanisms):
            self.phase = FRAMES
        else:
            self.give_up(Error(conditions.NOT_IMPLEMENTED, f"the server answered with the header {header!r}"), events)

    def _answer_header(self, header: bytes, events: list[Event]) -> None:
        if header == SASL_HEADER and self.phase == HEADER:
            self.write_raw(SASL_HEADER)
            body = SaslMechanisms(mechanisms=list(self.settings.mechanisms)).to_bytes()
            self.write_raw(frame(0, body, TYPE_SASL))
            self.phase = SASL
        elif header == AMQP_HEADER and (self.phase == SECOND_HEADER or not self.settings.require_sasl):
            self.write_raw(AMQP_HEADER)
            self.phase = FRAMES
        else:
            # The specification has us say what we support, then close (part 2, section 2.2).
            self.write_raw(AMQP_HEADER if self.phase == SECOND_HEADER else SASL_HEADER)
            self.give_up(Error(conditions.NOT_IMPLEMENTED, f"unsupported protocol header {header!r}"), events)

    def _on_sasl_frame(self, data: bytes, pos: int, stop: int, events: list[Event]) -> None:
        descriptor, fields, end = self.read_body(data, pos, stop, TYPE_SASL)
        if end != stop:
            raise DecodeError("bytes follow a SASL frame's body")
        if self.is_acceptor and descriptor in (SaslInit.CODE, "amqp:sasl-init:list"):
            init = SaslInit.read(fields)
            self.halted = True
            if init.mechanism not in self.settings.mechanisms:
                self._write_outcome(sasl.OUTCOME_AUTH)
                text = f"SASL mechanism {init.mechanism:.100} is not offered"
                raise ProtocolViolation(conditions.UNAUTHORIZED_ACCESS, text)
            events.append(SaslInitReceived(init.mechanism, init.initial_response or b"", init.hostname))
        elif not self.is_acceptor and descriptor in (SaslMechanisms.CODE, "amqp:sasl-mechanisms:list"):
            SaslMechanisms.read(fields)
        elif not self.is_acceptor and descriptor in (SaslOutcome.CODE, "amqp:sasl-outcome:list"):
            outcome = SaslOutcome.read(fields)
            if outcome.code != sasl.OUTCOME_OK:
                text = f"authentication failed with SASL code {outcome.code}"
                raise ProtocolViolation(conditions.UNAUTHORIZED_ACCESS, text)
            self.phase = SECOND_HEADER
        else:
            raise ProtocolViolation(conditions.NOT_ALLOWED, f"unexpected SASL frame {descriptor!r:.50}")

    def read_body(self, data: bytes, pos: int, stop: int, frame_type: int) -> tuple[Any, Any, int]:
        """Return (descriptor, fields, offset behind them) of a frame; (None, None, stop) when it is empty."""
        body = pos + 4 * data[pos + 4]
        if not pos + 8 <= body <= stop or data[pos + 5] != frame_type:
            text = f"frame of type {data[pos + 5]} with data offset {data[pos + 4]}"
            raise ProtocolViolation(conditions.FRAMING_ERROR, text)
        if body == stop:
            return None, None, stop
        value, end = decode_outline(data, body, stop, _WHOLE)
        if not isinstance(value, Described) or end > stop:
            raise DecodeError("a frame's body is a described list that ends within the frame")
        return value.descriptor, value.value, end

    def sasl_outcome(self, ok: bool) -> None:
        """Answer a SaslInit; a refusal closes the connection.

        Raises:
            EngineMisuse: There was no SaslInit, or it was answered.
        """
        if self.phase != SASL or not self.halted or self.is_closed:
            raise EngineMisuse("no SaslInit waits for an outcome")
        self._write_outcome(sasl.OUTCOME_OK if ok else sasl.OUTCOME_AUTH)
        if ok:
            self.phase = SECOND_HEADER
            self.halted = False
        else:
            self.finish()

    def _write_outcome(self, code: int) -> None:
        self.write_raw(frame(0, SaslOutcome(code=code).to_bytes(), TYPE_SASL))

    def write_raw(self, data: bytes) -> None:
        """Append to the output, whatever the state."""
        self.out.append(data)
        self.output_size += len(data)

    @property
    def is_open(self) -> bool:
        """Whether both opens were exchanged and no close."""
        return self._open_sent and self._open_received and not self._close_sent and not self.is_closed

    @property
    def is_closing(self) -> bool:
        """Whether our close was sent and the peer's is awaited."""
        return self._close_sent and not self.is_closed

    @property
    def is_cut(self) -> bool:
        """Whether frames are left for the next ``receive``: these were work enough, or an answer was awaited."""
        return not self.halted and len(self._pending) >= max(self.needed, 8)

    # Input.

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Take what the socket gave, however it was cut, and return what happened, in order.

        Args:
            data: Any number of bytes. After a SaslInit or, as acceptor, an OpenReceived, what follows it stays
                unread until the owner has answered and calls again, with ``b""`` if there is nothing new.
            now_ms: The present; only differences count.
        """
        events: list[Event] = []
        if self.is_closed:
            return events
        self._now_ms = now_ms
        if data:
            self._last_read_ms = now_ms
        if self._pending or self.halted:
            size = len(self._pending) + len(data)
            if self.halted or size < self.needed:
                self._pending += data
                if size > max(_HALTED_INPUT_MAX, self.needed):
                    self.give_up(Error(conditions.RESOURCE_LIMIT_EXCEEDED, "too much was sent in advance"), events)
                return events
            data = b"".join((self._pending, data))
            self._pending.clear()
        self.needed = 0
        self.work_left = self.settings.work_max
        pos = 0 if self.phase == FRAMES else self._read_handshakes(data, events)
        if self.phase == FRAMES and not self.halted:
            pos = self.read_frames(data, pos, events)
        if pos < len(data) and not self.is_closed:
            self._pending += memoryview(data)[pos:]
        self.generation += 1
        for link in self.running:
            # Its messages are the owner's alone now, who may be done with them long before the next read.
            link.run = None
        self.running.clear()
        return events

    def _read_handshakes(self, data: bytes, events: list[Event]) -> int:
        """Take what comes before the frames; return the offset behind it."""
        pos = 0
        while self.phase != FRAMES and not self.halted:
            after = self.read_handshake(data, pos, events)
            if after == pos:
                break
            pos = after
        return pos

    def frame_too_large(self, size: int, events: list[Event]) -> None:
        """Close: after a frame that is too large, or too small to be one, nothing can be understood."""
        text = f"a frame of {size} bytes; 8 to {self.frame_max} are allowed"
        self.give_up(Error(conditions.FRAMING_ERROR, text), events)

    def control(self, data: bytes, pos: int, stop: int, events: list[Event]) -> None:
        """Take one AMQP frame of any kind; what it breaks ends in the scope where it belongs."""
        try:
            fields = read_flow_fields(data, pos, stop)
            flow = None if fields is None else Flow.of(fields)
            session = None if flow is None else self.sessions.get(int(_U16(data, pos + 6)[0]))
            if flow is not None and session is not None and session.is_open:
                session.on_flow(flow, events)
            else:
                self._dispatch(data, pos, stop, events)
        except DecodeError as error:
            self.give_up(Error(conditions.DECODE_ERROR, str(error)), events)
        except ProtocolViolation as violation:
            if violation.endpoint is None:
                self.give_up(violation.error, events)
            else:
                violation.endpoint.fail(violation.error, events)

    def _dispatch(self, data: bytes, pos: int, stop: int, events: list[Event]) -> None:
        descriptor, fields, end = self.read_body(data, pos, stop, TYPE_AMQP)
        if descriptor is None:
            return  # A heartbeat; that it came is all it says.
        kind = PERFORMATIVES.get(descriptor) if isinstance(descriptor, (int, str)) else None
        if kind is None:
            raise DecodeError(f"unknown performative {descriptor!r:.50}")
        if end != stop and kind is not Transfer:
            raise DecodeError(f"bytes follow {kind.__name__.lower()}")
        performative = kind.read(fields)
        channel = int(_U16(data, pos + 6)[0])
        if isinstance(performative, Close):
            self._on_close(performative, events)
        elif self._close_sent:
            return  # Whatever was under way before the peer knew.
        elif isinstance(performative, Open):
            self._on_open(performative, events)
        elif not self._open_received:
            raise ProtocolViolation(conditions.ILLEGAL_STATE, f"{kind.__name__.lower()} came before open")
        elif isinstance(performative, Begin):
            self._on_begin(channel, performative, events)
        else:
            self._on_session_frame(channel, performative, data[end:stop], events)

    def _on_session_frame(self, channel: int, performative: Performative, payload: bytes, events: list[Event]) -> None:
        session = self.sessions.get(channel)
        if session is None:
            text = f"{type(performative).__name__.lower()} on channel {channel}, which has no session"
            raise ProtocolViolation(conditions.NOT_ALLOWED, text)
        if isinstance(performative, End):
            self.generation += 1
            session.on_end(performative, events)
        elif session.state == ENDING:
            note_dropped(self, performative, events)
        elif isinstance(performative, Transfer):
            take_transfer(session, performative, payload, events)
        elif isinstance(performative, Flow):
            session.on_flow(performative, events)
        elif isinstance(performative, Disposition):
            self._on_disposition(session, performative, events)
        elif isinstance(performative, Attach):
            self.generation += 1
            session.on_attach(performative, events)
        elif isinstance(performative, Detach):
            self.generation += 1
            session.on_detach(performative, events)

    def _on_disposition(self, session: Session, disposition: Disposition, events: list[Event]) -> None:
        first = disposition.first
        # Null means the first, and so does the 0 of clients that never set it (AMQP 1.0 part 2, 2.7.6).
        last = disposition.last or first
        if (last - first) & MASK > MASK // 2:
            text = f"a disposition's last {last} is before its first {first}"
            raise ProtocolViolation(conditions.INVALID_FIELD, text, session)
        state = state_from(disposition.state)
        if isinstance(state, TransactionalState):
            # Told in the order of the wire: the discharge of the transaction may be in the same read.
            self.generation += 1
        session.on_disposition(disposition.role, first, last, bool(disposition.settled), state, events, self.generation)

    def _on_open(self, opened: Open, events: list[Event]) -> None:
        if self._open_received:
            raise ProtocolViolation(conditions.ILLEGAL_STATE, "open came twice")
        frame_max = MASK if opened.max_frame_size is None else opened.max_frame_size
        if frame_max < FRAME_SIZE_MIN:
            text = f"max-frame-size {frame_max} is below {FRAME_SIZE_MIN}"
            raise ProtocolViolation(conditions.INVALID_FIELD, text)
        self._open_received = True
        self.peer_frame_max = min(frame_max, _FRAME_OUT_MAX)
        self.frame_max = max(self.settings.max_frame_size, FRAME_SIZE_MIN)
        self._peer_channel_max = 65535 if opened.channel_max is None else opened.channel_max
        self._peer_idle_ms = opened.idle_time_out or None
        self._last_write_ms = self._now_ms
        self.halted = self.is_acceptor
        events.append(
            OpenReceived(opened.container_id, opened.hostname, frame_max, self._peer_idle_ms, opened.properties or {})
        )

    def _on_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        self.generation += 1
        if channel in self.sessions:
            raise ProtocolViolation(conditions.NOT_ALLOWED, f"channel {channel} has a session already")
        if begin.remote_channel is not None:
            session = self._local.get(begin.remote_channel)
            if session is None or session.remote_channel is not None:
                text = f"begin answers channel {begin.remote_channel}, which asked for nothing"
                raise ProtocolViolation(conditions.NOT_ALLOWED, text)
        else:
            if channel > self.settings.channel_max:
                text = f"channel {channel} is above {self.settings.channel_max}"
                raise ProtocolViolation(conditions.NOT_ALLOWED, text)
            if len(self._local) >= self.settings.sessions_max:
                text = f"the connection has {self.settings.sessions_max} sessions, which is the limit"
                raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, text)
            session = self._new_session(channel)
        self.sessions[channel] = session
        session.on_begin(begin, channel, events)

    def _new_session(self, wanted: int) -> Session:
        channel = wanted
        if channel in self._local or channel > self._peer_channel_max:
            channel = 0
            while channel in self._local:
                channel += 1
        if channel > self._peer_channel_max:
            raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, "no channel is left for the answer")
        session = Session(self, channel)
        self._local[channel] = session
        return session

    def forget_session(self, session: Session) -> None:
        """Free the channels of a session that both sides have ended."""
        self._local.pop(session.channel, None)
        if session.remote_channel is not None:
            self.sessions.pop(session.remote_channel, None)

    def _on_close(self, close: Close, events: list[Event]) -> None:
        if not self._close_sent:
            self._write_close(None)
        self.finish()
        events.append(Closed(close.error, by_peer=True))

    def give_up(self, error: Error, events: list[Event]) -> None:
        """End the connection at once, for the peer cannot be understood or trusted any more."""
        if self.is_closed:
            return
        if not self._close_sent and self.phase == FRAMES:
            self._write_close(error)
        self.finish()
        events.append(Closed(error, by_peer=False))

    def finish(self) -> None:
        """Forget unread input and read no more."""
        self.is_closed = True
        self.halted = True
        self._pending.clear()

    # What the owner does.

    def open(self, now_ms: int, hostname: str | None = None, properties: Mapping[str, Any] | None = None) -> None:
        """Open the connection.

        As acceptor: the answer to OpenReceived. As initiator: the first call of all; protocol headers, SASL and open
        go out at once, for nothing the server can answer would change them.

        Args:
            now_ms: The present; only differences count.
            hostname: In place of that in the settings.
            properties: In place of those in the settings.

        Raises:
            EngineMisuse: Open was sent already, or the acceptor's peer has not sent its own.
        """
        if self._open_sent or (self.is_acceptor and not self._open_received):
            raise EngineMisuse("open is sent once, by an acceptor after the peer's")
        self._now_ms = self._last_read_ms = now_ms
        settings = self.settings
        if not self.is_acceptor:
            if settings.mechanisms:
                init = SaslInit(
                    mechanism=settings.mechanisms[0],
                    initial_response=settings.sasl_response,
                    hostname=hostname or settings.hostname,
                )
                self.write_raw(SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL))
            self.write_raw(AMQP_HEADER)
        self._write_open(hostname or (None if self.is_acceptor else settings.hostname), properties)
        self.halted = self.is_closed

    def _write_open(self, hostname: str | None, properties: Mapping[str, Any] | None) -> None:
        settings = self.settings
        self._open_sent = True
        opening = Open(
            container_id=settings.container_id,
            hostname=hostname,
            max_frame_size=settings.max_frame_size,
            channel_max=settings.channel_max,
            idle_time_out=settings.idle_time_out_ms or None,
            properties=settings.properties if properties is None else properties,
        )
        self.write_raw(frame(0, opening.to_bytes()))

    def begin(self) -> Session:
        """Begin a session; SessionBegun comes with the peer's answer, but links may be attached at once.

        Raises:
            EngineMisuse: The connection is not opened by us, is closing, or the peer allows no more channels.
        """
        if not self._open_sent or self._close_sent or self.is_closed:
            raise EngineMisuse("a session needs an open connection")
        try:
            session = self._new_session(0)
        except ProtocolViolation as full:
            raise EngineMisuse(f"the peer allows no channel above {self._peer_channel_max}") from full
        session.write_begin()
        return session

    def close(
        self, condition: str | None = None, description: str | None = None, info: Mapping[str, Any] | None = None
    ) -> None:
        """Close the connection; Closed comes with the peer's answer. All sessions and links are gone at once.

        Before AMQP has started there is nothing to say, and the connection is closed without an event.
        """
        if self._close_sent or self.is_closed:
            return
        if self.phase != FRAMES and not self._open_sent:
            self.finish()
            return
        self._write_close(None if condition is None else Error(condition, description, info))
        self.halted = False

    def _write_close(self, error: Error | None) -> None:
        if not self._open_sent:
            # A close needs an open before it (AMQP 1.0 part 2, 2.7.1).
            self._write_open(None, None)
        for session in list(self._local.values()):
            session.connection_gone()
        self.write_raw(frame(0, Close(error=error).to_bytes()))
        self._close_sent = True

    # Output.

    def write(self, data: bytes) -> None:
        """Append a whole frame to the output; after our close it is dropped."""
        if not self._close_sent:
            self.out.append(data)
            self.output_size += len(data)

    def write_frame(self, channel: int, body: bytes) -> None:
        """Append a frame with this body to the output; after our close it is dropped."""
        if not self._close_sent:
            self.write_raw(frame(channel, body))

    def take_output(self, large_max: int = MASK) -> bytes:
        """Return everything to write since the last call; empty when there is nothing. One socket write a turn.

        Args:
            large_max: Large deliveries are cut into frames until the output has this many bytes. When some are left,
                the next call gives more; whoever limits it has to look at ``take_reopened`` afterwards.
        """
        if self.held_back:
            self._fill_output(large_max)
        out = self.out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self.output_size = 0
        # The time of the last input is not later than now, so that heartbeats come rather too early.
        self._last_write_ms = self._now_ms
        return data

    def _fill_output(self, output_max: int) -> None:
        sessions, self.held_back = self.held_back, []
        for session in sessions:
            if not session.fill_output(output_max):
                self.held_back.append(session)
            elif session.take_starved():
                self.reopened.append(session)

    def take_reopened(self) -> list[Session]:
        """Return the sessions in ``reopened``, and forget them."""
        reopened, self.reopened = self.reopened, []
        return reopened

    # Time.

    def _heartbeat_due(self) -> int | None:
        # At most half of what the peer tolerates (AMQP 1.0 part 2, 2.4); two fifths leave room for late timers.
        if self._peer_idle_ms is None or not self._open_sent or self._close_sent:
            return None
        return self._last_write_ms + max(self._peer_idle_ms * 2 // 5, _HEARTBEAT_MIN_MS)

    def _silence_ends(self) -> int | None:
        if not self.settings.idle_time_out_ms or not self._open_sent:
            return None
        return self._last_read_ms + 2 * self.settings.idle_time_out_ms

    def tick(self, now_ms: int) -> list[Event]:
        """Do what is due: send a heartbeat, or give up a peer that was silent for too long, which gives Closed."""
        events: list[Event] = []
        if self.is_closed:
            return events
        self._now_ms = now_ms
        ends = self._silence_ends()
        if ends is not None and now_ms >= ends:
            text = f"nothing was received for {now_ms - self._last_read_ms} ms"
            self.give_up(Error(conditions.CONNECTION_FORCED, text), events)
            return events
        due = self._heartbeat_due()
        if due is not None and now_ms >= due:
            self._last_write_ms = now_ms
            if not self.out:
                self.write_raw(HEARTBEAT)
        return events

    def next_deadline(self) -> int | None:
        """Return when ``tick`` has something to do at the earliest, on the clock of ``now_ms``; None for never."""
        if self.is_closed:
            return None
        moments = [moment for moment in (self._heartbeat_due(), self._silence_ends()) if moment is not None]
        return min(moments, default=None)
