"""Frames of WebSockets: from bytes to pieces of messages, and back (RFC 6455, 5).

A piece is as much of a message as has come: a frame of a gigabyte goes through in pieces, and is nowhere held as a
whole. Text is not checked to be UTF-8: the end for which it is meant does that.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from duobus.model.relay.limits import CLOSE_REASON_BYTES_MAX

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

#: The largest frame that is taken, in bytes.
PAYLOAD_BYTES_MAX: Final = 1 << 40
#: Codes of close frames: of broken rules, and of what is too large.
PROTOCOL_ERROR: Final = 1002
NO_CODE: Final = 1005

_CONTROL_BYTES_MAX: Final = 125
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#: Codes that a close frame may carry (RFC 6455, 7.4).
_CODES: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))


class FrameError(ValueError):
    """The peer breaks a rule of the protocol.

    Attributes:
        code: The code to close with.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Piece(NamedTuple):
    """Part of a message: TEXT or BINARY, its bytes, and whether it is the first or the last of the message."""

    opcode: int
    data: bytes
    is_first: bool
    is_last: bool


class Control(NamedTuple):
    """A ping, a pong or a close frame."""

    opcode: int
    data: bytes


def accept_key(key: str) -> str:
    """The value of Sec-WebSocket-Accept for a client's key."""
    # What the standard prescribes; nothing is protected by it.
    digest = hashlib.sha1(key.encode("utf-8", "replace") + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def frame(opcode: int, data: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a server, which has no mask."""
    return head(opcode, len(data), is_last=is_last) + data


def masked_frame(opcode: int, data: bytes, key: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a client, whose data are masked with four bytes that nobody can guess."""
    start = bytearray(head(opcode, len(data), is_last=is_last))
    start[1] |= _MASKED
    return b"".join((start, key, _masked(data, key)))


def _masked(data: bytes | memoryview, key: bytes) -> bytes:
    """The data with a mask laid on, or taken off."""
    size = len(data)
    mask = (key * (size // 4 + 1))[:size]
    # As one number each: a hundred times as quick as byte by byte.
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")


def head(opcode: int, length: int, *, is_last: bool) -> bytes:
    """What stands before the data of a server's frame."""
    first = opcode | (_FIN if is_last else 0)
    if length < _TWO_BYTES:
        return bytes((first, length))
    if length < 1 << 16:
        return struct.pack("!BBH", first, _TWO_BYTES, length)
    return struct.pack("!BBQ", first, _EIGHT_BYTES, length)


def close_payload(code: int, reason: str) -> bytes:
    """The data of a close frame; one without a code where the code is none that may be sent."""
    if code not in _CODES:
        return b""
    data = reason.encode("utf-8", "replace")[:CLOSE_REASON_BYTES_MAX]
    return struct.pack("!H", code) + data.decode("utf-8", "ignore").encode()


def read_close(data: bytes) -> tuple[int, str]:
    """Code and reason of a close frame; NO_CODE when it has none.

    Raises:
        FrameError: The code is none that may be sent, or the reason is not UTF-8.
    """
    if not data:
        return NO_CODE, ""
    if len(data) == 1:
        raise FrameError(PROTOCOL_ERROR, "The close frame has half a code.")
    (code,) = struct.unpack("!H", data[:2])
    if code not in _CODES:
        raise FrameError(PROTOCOL_ERROR, "The close frame has a code that may not be sent.")
    try:
        return code, data[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(PROTOCOL_ERROR, "The reason of the close frame is not UTF-8.") from None


class FrameDecoder:
    """Takes the bytes of the other side and gives what they mean.

    Args:
        is_of_client: Whether the other side is a client, which masks its frames; a server does not.
    """

    __slots__ = ("_buffer", "_control", "_is_first", "_is_last", "_is_masked", "_key", "_left", "_message", "_opcode")

    def __init__(self, *, is_of_client: bool = True) -> None:
        self._is_masked = is_of_client
        # A head that has not come as a whole; never longer than one, as the rest is read at once.
        self._buffer = b""
        # Opcode of the frame under way, bytes of it that are still to come, its mask as the next byte needs it.
        self._opcode = -1
        self._left = 0
        self._key = b""
        self._is_last = False
        self._is_first = False
        # What has come of a control frame.
        self._control = bytearray()
        # TEXT or BINARY while a message is under way.
        self._message = 0

    def feed(self, data: bytes) -> Iterator[Piece | Control]:
        """Give what has come; the iterator must be run to its end, or never be used again.

        Raises:
            FrameError: The other side breaks a rule. What came before it was given.
        """
        view = memoryview(self._buffer + data if self._buffer else data)
        self._buffer = b""
        pos, end = 0, len(view)
        while pos < end or (self._opcode >= 0 and not self._left):
            if self._opcode < 0:
                size = self._begin(view[pos:])
                if not size:
                    self._buffer = bytes(view[pos:])
                    return
                pos += size
                if self._left and pos == end:
                    return
            taken = min(self._left, end - pos)
            part = self._unmasked(view[pos : pos + taken])
            pos += taken
            self._left -= taken
            event = self._take(part)
            if event is not None:
                yield event

    def _begin(self, view: memoryview) -> int:
        """Read the head of a frame; return how long it is, 0 while it is not whole."""
        if len(view) < 2:
            return 0
        first, second = view[0], view[1]
        opcode, short = first & _OPCODE, second & _LENGTH
        self._check(opcode, first, second)
        extra = 2 if short == _TWO_BYTES else 8 if short == _EIGHT_BYTES else 0
        size = 2 + extra + (4 if self._is_masked else 0)
        if len(view) < size:
            return 0
        length = int.from_bytes(view[2 : 2 + extra], "big") if extra else short
        if length > PAYLOAD_BYTES_MAX:
            raise FrameError(PROTOCOL_ERROR, "The frame is too long.")
        self._key = bytes(view[2 + extra : size])
        self._opcode, self._left, self._is_last = opcode, length, bool(first & _FIN)
        if opcode in (TEXT, BINARY):
            self._message = opcode
            self._is_first = True
        return size

    def _check(self, opcode: int, first: int, second: int) -> None:
        if first & _RESERVED:
            raise FrameError(PROTOCOL_ERROR, "The frame has reserved bits; no extension was agreed upon.")
        if bool(second & _MASKED) != self._is_masked:
            has = "of a client has no" if self._is_masked else "of a server has a"
            raise FrameError(PROTOCOL_ERROR, f"The frame {has} mask.")
        if opcode in (CLOSE, PING, PONG):
            if not first & _FIN or second & _LENGTH > _CONTROL_BYTES_MAX:
                raise FrameError(PROTOCOL_ERROR, "A control frame is cut in parts, or too long.")
        elif opcode == CONTINUATION:
            if not self._message:
                raise FrameError(PROTOCOL_ERROR, "Nothing is there to be continued.")
        elif opcode not in (TEXT, BINARY):
            raise FrameError(PROTOCOL_ERROR, "The frame has an unknown opcode.")
        elif self._message:
            raise FrameError(PROTOCOL_ERROR, "A message begins within another.")

    def _unmasked(self, part: memoryview) -> bytes:
        size = len(part)
        if not size:
            return b""
        if not self._is_masked:
            return bytes(part)
        key = self._key
        turn = size & 3
        self._key = key[turn:] + key[:turn]
        return _masked(part, key)

    def _take(self, part: bytes) -> Piece | Control | None:
        opcode, is_end = self._opcode, not self._left
        if is_end:
            self._opcode = -1
        if opcode >= CLOSE:
            self._control += part
            if not is_end:
                return None
            data = bytes(self._control)
            self._control.clear()
            return Control(opcode, data)
        is_last = is_end and self._is_last
        piece = Piece(self._message, part, self._is_first, is_last)
        if not part and not self._is_first and not is_last:
            # An empty part in the middle of a message is nothing.
            return None
        self._is_first = False
        if is_last:
            self._message = 0
        return piece
