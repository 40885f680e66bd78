"""How a connection starts: protocol headers and SASL (part 2, section 2.2; part 5; wire contract 1.2 and 1.3).

acceptor   header -> SASL -> second header -> frames       (without SASL: header -> frames)
initiator  the same, having sent all of its own part in advance
"""

from __future__ import annotations

import struct
from typing import Any, Final

from duobus.amqp import errors as conditions
from duobus.amqp import sasl
from duobus.amqp.errors import EngineMisuse, Error, ProtocolViolation
from duobus.amqp.events import Event, SaslInitReceived
from duobus.amqp.frame_reader import FrameReader
from duobus.amqp.frames import AMQP_HEADER, EARLY_FRAME_MAX, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import SaslInit as SaslInitFrame
from duobus.amqp.performatives import SaslMechanisms, SaslOutcome
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


class Handshake(FrameReader):
    """The part of a connection that comes before its open.

    Attributes:
        settings: As given.
        is_acceptor: Whether the peer connected to us.
        is_closed: Nothing more will be read: write what is left and close the socket.
        dropped: Counts what waited for a peer's window, or for output, and was dropped with its link or session.
        output_size: Bytes that ``take_output`` would give.
        out: What was written since the last ``take_output``; for the links' use only.
        phase: One of the four above.
    """

    __slots__ = ("dropped", "is_acceptor", "is_closed", "out", "output_size", "phase", "settings")

    def __init__(self, settings: ConnectionSettings, is_acceptor: bool) -> None:
        super().__init__(EARLY_FRAME_MAX)
        self.settings = settings
        self.is_acceptor = is_acceptor
        self.is_closed = False
        self.dropped = 0
        self.output_size = 0
        self.out: list[bytes] = []
        self.phase = HEADER

    def give_up(self, error: Error, events: list[Event]) -> None:
        """End the connection at once, for the peer cannot be understood or trusted any more."""
        raise NotImplementedError

    def finish(self) -> None:
        """Forget unread input and read no more."""
        raise NotImplementedError

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
        if self.is_acceptor and descriptor in (SaslInitFrame.CODE, "amqp:sasl-init:list"):
            init = SaslInitFrame.read(fields)
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
