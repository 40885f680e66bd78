"""Bytes to values (AMQP 1.0 part 1). Whatever the bytes are, the only thing raised is DecodeError.

Time is linear in the input. So is memory: no element is made that has not at least one byte of its own in the
input (arrays of zero-width elements are refused for this reason), nesting and counts are capped.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from duobus.codec.encoder import COUNT_MAX, DEPTH_MAX
from duobus.codec.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_U32: Final = struct.Struct(">I").unpack_from
_SIZE_COUNT: Final = struct.Struct(">II").unpack_from

_UINT_ZERO: Final = UInt(0)
_ULONG_ZERO: Final = ULong(0)

# The shape of a value follows from its constructor byte: a fixed width, or one of these.
_SIZE8: Final = 0xF1
_SIZE32: Final = 0xF4
_DESCRIBED: Final = 0xFE
_UNKNOWN: Final = 0xFF

_CODES: Final = (
    "00 40 41 42 43 44 45 50 51 52 53 54 55 56 60 61 70 71 72 73 74 80 81 82 83 84 94 98 "
    "a0 a1 a3 b0 b1 b3 c0 c1 d0 d1 e0 f0"
)


def _shapes() -> bytes:
    by_class = {0: _DESCRIBED, 4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
    by_class.update({high: _SIZE32 if high & 1 else _SIZE8 for high in range(0xA, 0x10)})
    known = bytes.fromhex(_CODES)
    return bytes(by_class[code >> 4] if code in known else _UNKNOWN for code in range(256))


_SHAPES: Final = _shapes()


def decode(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Any, int]:
    """Decode the value at ``offset`` and return it with the offset behind it.

    Nothing in the value refers to ``data`` afterwards.

    Raises:
        DecodeError: Truncated, unknown constructor, sizes that contradict each other, more than 64 levels or
            65,536 elements, duplicate or unhashable map keys, text that is not valid.
    """
    raw = data if type(data) is bytes else bytes(data)
    return decode_value(raw, offset, len(raw), 0)


def decode_value(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    """Decode the value at ``pos`` that must end at or before ``end``; see ``decode``.

    Args:
        data: The bytes.
        pos: Where the value starts.
        end: Where the enclosing value ends; at most ``len(data)``.
        depth: How many compound values this one lies in.
    """
    if pos >= end:
        raise DecodeError(f"truncated: a value is missing at offset {pos}")
    decoder = _DECODERS[data[pos]]
    if decoder is None:
        raise DecodeError(f"unknown constructor 0x{data[pos]:02x} at offset {pos}")
    return decoder(data, pos + 1, end, depth)


def skip(data: bytes, offset: int = 0) -> int:
    """Return the offset behind the value at ``offset`` by its sizes alone; what is inside is not looked at.

    Raises:
        DecodeError: Truncated, or an unknown constructor.
    """
    pos = offset
    end = len(data)
    pending = 1
    while pending:
        if pos >= end:
            raise DecodeError(f"truncated: a value is missing at offset {pos}")
        shape = _SHAPES[data[pos]]
        pos += 1
        if shape <= 16:
            pos += shape
        elif shape == _SIZE8:
            if pos >= end:
                raise DecodeError(f"truncated: a size is missing at offset {pos}")
            pos += 1 + data[pos]
        elif shape == _SIZE32:
            if pos + 4 > end:
                raise DecodeError(f"truncated: a size is missing at offset {pos}")
            pos += 4 + int(_U32(data, pos)[0])
        elif shape == _DESCRIBED:
            # Descriptor and value still to come; a loop, because descriptors may be described without end.
            pending += 1
            continue
        else:
            raise DecodeError(f"unknown constructor 0x{data[pos - 1]:02x} at offset {pos - 1}")
        pending -= 1
    if pos > end:
        raise DecodeError(f"truncated: a value of {pos - offset} bytes at offset {offset} passes the end")
    return pos


def _truncated(pos: int) -> DecodeError:
    return DecodeError(f"truncated: the value at offset {pos} passes the end of what holds it")


def _null(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return None, pos


def _true(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return True, pos


def _false(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return False, pos


def _uint_zero(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return _UINT_ZERO, pos


def _ulong_zero(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return _ULONG_ZERO, pos


def _list_empty(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return [], pos


def _bool(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _truncated(pos)
    if data[pos] > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {data[pos]}, at offset {pos}")
    return data[pos] == 1, pos + 1


def _ubyte(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _truncated(pos)
    return UByte(data[pos]), pos + 1


def _uint_small(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _truncated(pos)
    return UInt(data[pos]), pos + 1


def _ulong_small(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _truncated(pos)
    return ULong(data[pos]), pos + 1


def _signed8(data: bytes, pos: int, end: int) -> int:
    if pos >= end:
        raise _truncated(pos)
    value = data[pos]
    return value - 256 if value > 127 else value


def _byte(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return Byte(_signed8(data, pos, end)), pos + 1


def _int_small(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return Int(_signed8(data, pos, end)), pos + 1


def _long_small(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    return _signed8(data, pos, end), pos + 1


class _Fixed:
    """Decoder of one fixed-width number type: a callable object, because closures are barred from this path."""

    __slots__ = ("_kind", "_unpack", "_width")

    def __init__(self, layout: str, kind: Callable[[Any], Any] | None) -> None:
        packer = struct.Struct(layout)
        self._unpack = packer.unpack_from
        self._width = packer.size
        self._kind = kind

    def __call__(self, data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
        after = pos + self._width
        if after > end:
            raise _truncated(pos)
        value = self._unpack(data, pos)[0]
        return (value if self._kind is None else self._kind(value)), after


def _to_char(code_point: int) -> Char:
    if code_point > 0x10FFFF or 0xD800 <= code_point < 0xE000:
        raise DecodeError(f"0x{code_point:x} is not a Unicode character")
    return Char(chr(code_point))


def _to_uuid(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)


def _binary8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _truncated(pos)
    after = pos + 1 + data[pos]
    if after > end:
        raise _truncated(pos)
    return data[pos + 1 : after], after


def _binary32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos + 4 > end:
        raise _truncated(pos)
    after = pos + 4 + int(_U32(data, pos)[0])
    if after > end:
        raise _truncated(pos)
    return data[pos + 4 : after], after


def _string8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raw, after = _binary8(data, pos, end, depth)
    return _text(raw, pos), after


def _string32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raw, after = _binary32(data, pos, end, depth)
    return _text(raw, pos), after


def _symbol8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raw, after = _binary8(data, pos, end, depth)
    return _name(raw, pos), after


def _symbol32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    raw, after = _binary32(data, pos, end, depth)
    return _name(raw, pos), after


def _text(raw: bytes, pos: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the string at offset {pos} is not UTF-8: {error.reason}") from error


def _name(raw: bytes, pos: int) -> Symbol:
    try:
        return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError as error:
        raise DecodeError(f"the symbol at offset {pos} is not ASCII") from error


def _open8(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int, int]:
    """Check a compound value's size and count of one byte each; return (count, first element, end)."""
    if pos + 2 > end:
        raise _truncated(pos)
    return _checked(data[pos + 1], pos + 2, pos + 1 + data[pos], end, depth)


def _open32(data: bytes, pos: int, end: int, depth: int) -> tuple[int, int, int]:
    """Check a compound value's size and count of four bytes each; return (count, first element, end)."""
    if pos + 8 > end:
        raise _truncated(pos)
    size, count = _SIZE_COUNT(data, pos)
    return _checked(count, pos + 8, pos + 4 + size, end, depth)


def _checked(count: int, first: int, after: int, end: int, depth: int) -> tuple[int, int, int]:
    if after > end or after < first:
        raise _truncated(first)
    if count > COUNT_MAX:
        raise DecodeError(f"{count} elements at offset {first} are more than {COUNT_MAX}")
    if count > after - first:
        raise DecodeError(f"{count} elements at offset {first} cannot fit into {after - first} bytes")
    if depth >= DEPTH_MAX:
        raise DecodeError(f"values are nested more than {DEPTH_MAX} deep at offset {first}")
    return count, first, after


def _list8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    count, first, after = _open8(data, pos, end, depth)
    return _items(data, count, first, after, depth), after


def _list32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    count, first, after = _open32(data, pos, end, depth)
    return _items(data, count, first, after, depth), after


def _items(data: bytes, count: int, pos: int, end: int, depth: int) -> list[Any]:
    start = pos
    depth += 1
    items = []
    for _ in range(count):
        item, pos = decode_value(data, pos, end, depth)
        items.append(item)
    if pos != end:
        raise DecodeError(f"{end - pos} bytes are left over in the compound value at offset {start}")
    return items


def _map8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    count, first, after = _open8(data, pos, end, depth)
    return _pairs(data, count, first, after, depth), after


def _map32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    count, first, after = _open32(data, pos, end, depth)
    return _pairs(data, count, first, after, depth), after


def _pairs(data: bytes, count: int, pos: int, end: int, depth: int) -> dict[Any, Any]:
    if count & 1:
        raise DecodeError(f"a map of {count} elements at offset {pos} has a key without a value")
    items = _items(data, count, pos, end, depth)
    try:
        pairs = dict(zip(items[::2], items[1::2], strict=True))
    except TypeError as error:
        raise DecodeError(f"a key of the map at offset {pos} is a compound value: {error}") from error
    if 2 * len(pairs) != count:
        raise DecodeError(f"the map at offset {pos} has a key twice")
    return pairs


def _array8(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos + 2 > end:
        raise _truncated(pos)
    return _array(data, data[pos + 1], pos + 2, pos + 1 + data[pos], end, depth)


def _array32(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos + 8 > end:
        raise _truncated(pos)
    size, count = _SIZE_COUNT(data, pos)
    return _array(data, count, pos + 8, pos + 4 + size, end, depth)


def _array(data: bytes, count: int, first: int, after: int, end: int, depth: int) -> tuple[Any, int]:
    _checked(0, first, after, end, depth)
    descriptor, code, pos = _array_constructor(data, first, after, depth)
    is_described = data[first] == 0
    # A width of zero counts as one byte: otherwise ten bytes could ask for 65,536 objects.
    shape = _SHAPES[code]
    width = 4 if shape == _SIZE32 else 1 if shape == _SIZE8 else max(shape, 1)
    if count > COUNT_MAX or count * width > after - pos:
        raise DecodeError(f"{count} array elements at offset {first} cannot fit into {after - pos} bytes")
    decoder = _DECODERS[code]
    assert decoder is not None  # the constructor's shape is known, so is its decoder
    items: list[Any] = []
    for _ in range(count):
        item, pos = decoder(data, pos, after, depth + 1)
        items.append(Described(descriptor, item) if is_described else item)
    if pos != after:
        raise DecodeError(f"{after - pos} bytes are left over in the array at offset {first}")
    return Array(Described if is_described else _KINDS[code], items), after


def _array_constructor(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int, int]:
    """Return (descriptor or None, element constructor, offset of the first element)."""
    descriptor = None
    if pos < end and data[pos] == 0:
        descriptor, pos = decode_value(data, pos + 1, end, depth + 1)
    if pos >= end:
        raise _truncated(pos)
    if _SHAPES[data[pos]] >= _DESCRIBED:
        raise DecodeError(f"0x{data[pos]:02x} at offset {pos} is no constructor of array elements")
    return descriptor, data[pos], pos + 1


def _described(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if depth >= DEPTH_MAX:
        raise DecodeError(f"values are nested more than {DEPTH_MAX} deep at offset {pos}")
    descriptor, pos = decode_value(data, pos, end, depth + 1)
    value, pos = decode_value(data, pos, end, depth + 1)
    return Described(descriptor, value), pos


_Decoder = Callable[[bytes, int, int, int], tuple[Any, int]]

_BY_CODE: Final[dict[int, tuple[type, _Decoder]]] = {
    0x00: (Described, _described),
    0x40: (type(None), _null),
    0x41: (bool, _true),
    0x42: (bool, _false),
    0x43: (UInt, _uint_zero),
    0x44: (ULong, _ulong_zero),
    0x45: (list, _list_empty),
    0x50: (UByte, _ubyte),
    0x51: (Byte, _byte),
    0x52: (UInt, _uint_small),
    0x53: (ULong, _ulong_small),
    0x54: (Int, _int_small),
    0x55: (int, _long_small),
    0x56: (bool, _bool),
    0x60: (UShort, _Fixed(">H", UShort)),
    0x61: (Short, _Fixed(">h", Short)),
    0x70: (UInt, _Fixed(">I", UInt)),
    0x71: (Int, _Fixed(">i", Int)),
    0x72: (Float32, _Fixed(">f", Float32)),
    0x73: (Char, _Fixed(">I", _to_char)),
    0x74: (Decimal32, _Fixed("4s", Decimal32)),
    0x80: (ULong, _Fixed(">Q", ULong)),
    0x81: (int, _Fixed(">q", None)),
    0x82: (float, _Fixed(">d", None)),
    0x83: (Timestamp, _Fixed(">q", Timestamp)),
    0x84: (Decimal64, _Fixed("8s", Decimal64)),
    0x94: (Decimal128, _Fixed("16s", Decimal128)),
    0x98: (uuid.UUID, _Fixed("16s", _to_uuid)),
    0xA0: (bytes, _binary8),
    0xA1: (str, _string8),
    0xA3: (Symbol, _symbol8),
    0xB0: (bytes, _binary32),
    0xB1: (str, _string32),
    0xB3: (Symbol, _symbol32),
    0xC0: (list, _list8),
    0xC1: (dict, _map8),
    0xD0: (list, _list32),
    0xD1: (dict, _map32),
    0xE0: (Array, _array8),
    0xF0: (Array, _array32),
}

_DECODERS: Final[list[_Decoder | None]] = [_BY_CODE[code][1] if code in _BY_CODE else None for code in range(256)]
_KINDS: Final[dict[int, type]] = {code: kind for code, (kind, _) in _BY_CODE.items()}
