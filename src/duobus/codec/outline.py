"""Described lists without their large parts: what a stranger may send at length and nobody reads is passed over.

A map of 8,000 symbols takes milliseconds to decode, in one piece, while everybody else waits; its size is known at
once. Lists that are not large are decoded as they are elsewhere.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from duobus.codec.decoder import decode_value, skip
from duobus.codec.values import DecodeError, Described

#: Where at most so many bytes are left, all is decoded: a few hundred elements, some tenths of a millisecond.
WHOLE_BYTES_MAX: Final = 4096
#: In a larger list lists, maps, arrays and described values of more bytes than this are passed over.
PART_BYTES_MAX: Final = 1024
#: No list of fields is longer; the longest that AMQP knows has 14.
FIELDS_MAX: Final = 32

_U32: Final = struct.Struct(">I").unpack_from
_DESCRIBED: Final = 0x00
_LIST32: Final = 0xD0


class PassedOver:
    """Stands for a large value that was not decoded: all that is known of it is that its size fits.

    Attributes:
        code: Its constructor: 00 when it is described.
        raw: Its encoding.
    """

    __slots__ = ("code", "raw")

    def __init__(self, code: int, raw: bytes) -> None:
        self.code = code
        self.raw = raw

    def __repr__(self) -> str:
        return f"<{len(self.raw)} bytes of 0x{self.code:02x}>"


def decode_outline(data: bytes, pos: int, end: int, whole: frozenset[Any]) -> tuple[Any, int]:
    """Decode the value at ``pos``, of a large described list only what is not large in it.

    Described lists among its elements, as the termini of an attach, are taken apart likewise.

    Args:
        data: The bytes.
        pos: Where the value starts.
        end: Where what encloses it ends; at most ``len(data)``.
        whole: Descriptors of lists that are decoded whole.

    Raises:
        DecodeError: As ``decode``; or a large value that is no described list, or has more than FIELDS_MAX fields.
            Inside of what is passed over nothing is looked at.
    """
    if end - pos <= WHOLE_BYTES_MAX:
        return decode_value(data, pos, end, 0)
    after = _after(data, pos, end)
    if after - pos <= WHOLE_BYTES_MAX:
        return decode_value(data, pos, end, 0)
    return _described(data, pos, after, 0, whole)


def _described(data: bytes, pos: int, end: int, depth: int, whole: frozenset[Any]) -> tuple[Any, int]:
    """Take the large described list apart that fills the bytes from ``pos`` to ``end``."""
    if data[pos] != _DESCRIBED:
        raise DecodeError(f"{end - pos} bytes at offset {pos} are no described list")
    descriptor, fields = decode_value(data, pos + 1, end, depth + 1)
    if isinstance(descriptor, (int, str)) and descriptor in whole:
        return decode_value(data, pos, end, depth)
    return Described(descriptor, _fields(data, fields, end, depth + 1)), end


def _after(data: bytes, pos: int, end: int) -> int:
    """Return the offset behind the value at ``pos``, which must not pass ``end``, by its sizes alone."""
    start = pos
    if pos + 1 < end and data[pos] == _DESCRIBED:
        if not 0x44 <= data[pos + 1] < 0xC0:
            raise DecodeError(f"a descriptor at offset {pos + 1} is neither a number nor a symbol")
        pos = skip(data, pos + 1)
    if pos < end and pos > start and data[pos] == _DESCRIBED:
        # Each of them would have to be gone through, however many there are.
        raise DecodeError(f"a described value at offset {pos} is described again")
    after = skip(data, pos)
    if after > end:
        raise DecodeError(f"truncated: the value at offset {start} passes the end of what holds it")
    return after


def _fields(data: bytes, pos: int, end: int, depth: int) -> list[Any]:
    """Decode what is not large in the large list from ``pos`` to ``end``."""
    if end - pos < 9 or data[pos] != _LIST32:
        raise DecodeError(f"{end - pos} bytes at offset {pos} are no list")
    count = int(_U32(data, pos + 5)[0])
    if count > FIELDS_MAX:
        raise DecodeError(f"{count} fields at offset {pos} are more than {FIELDS_MAX}")
    pos += 9
    fields: list[Any] = []
    for _ in range(count):
        after = _after(data, pos, end)
        code = data[pos]
        if after - pos <= PART_BYTES_MAX or 0xA0 <= code < 0xC0:
            field, _ = decode_value(data, pos, after, depth)
        elif code == _DESCRIBED and depth == 1:
            field, _ = _described(data, pos, after, depth, frozenset())
        else:
            field = PassedOver(code, data[pos:after])
        fields.append(field)
        pos = after
    if pos != end:
        raise DecodeError(f"{end - pos} bytes are left over in a list of {count} fields")
    return fields
