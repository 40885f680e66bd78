"""Values to bytes, always in the smallest encoding (AMQP 1.0 part 1; AMQP 1.0 part 1, 1.6)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from duobus.codec.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Encoded,
    EncodeError,
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

#: Both caps are those of the weakest official decoder (AMQP 1.0 part 1, 1.6).
DEPTH_MAX: Final = 64
COUNT_MAX: Final = 65_536

_SIZE_MAX: Final = 0xFFFFFFFF

_U16: Final = struct.Struct(">BH").pack
_I16: Final = struct.Struct(">Bh").pack
_U32: Final = struct.Struct(">BI").pack
_I32: Final = struct.Struct(">Bi").pack
_U64: Final = struct.Struct(">BQ").pack
_I64: Final = struct.Struct(">Bq").pack
_F32: Final = struct.Struct(">Bf").pack
_F64: Final = struct.Struct(">Bd").pack
_BYTE: Final = struct.Struct(">Bb").pack
_COMPOUND32: Final = struct.Struct(">BII").pack
_SIZE_COUNT: Final = struct.Struct(">II").pack


def encode(value: Any) -> bytes:
    """Return the AMQP encoding of one value.

    Raises:
        EncodeError: The value, or something in it, has no encoding.
    """
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any, depth: int = 0) -> None:
    """Append the AMQP encoding of one value to ``out``.

    Args:
        out: Where the bytes go. After an error it may hold a part of the value.
        value: Python's own types or those of ``values``; subclasses encode as their nearest known parent.
        depth: How many compound values this one lies in.

    Raises:
        EncodeError: The value, or something in it, has no encoding.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        encoder = _ENCODERS[_known_type(type(value))]
    try:
        encoder(out, value, depth)
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise EncodeError(f"{value!r:.100} is out of range for {type(value).__name__}: {error}") from error


def _known_type(kind: type) -> type:
    for parent in kind.__mro__:
        if parent in _ENCODERS:
            return parent
    raise EncodeError(f"a value of type {kind.__name__} has no AMQP encoding")


def encode_named(name: str, values: Sequence[tuple[bytes, bytes | memoryview]]) -> Encoded:
    """A list of maps, each with one binary under the same name, encoded in one go: an answer may have hundreds of them.

    Args:
        name: The key of each map.
        values: The two halves of each binary.

    Raises:
        EncodeError: There are too many.
    """
    _check(len(values), 0)
    key = encode(name)
    parts: list[bytes | memoryview] = []
    size = 0
    for first, second in values:
        length = len(first) + len(second)
        front = bytes((0xA0, length)) if length < 256 else _U32(0xB0, length)
        inside = len(key) + len(front) + length
        head = bytes((0xC1, inside + 1, 2)) if inside < 255 else _COMPOUND32(0xD1, inside + 4, 2)
        parts += (head, key, front, first, second)
        size += len(head) + inside
    if not parts:
        return Encoded(b"\x45")
    is_short = size < 255 and len(values) < 256
    start = bytes((0xC0, size + 1, len(values))) if is_short else _COMPOUND32(0xD0, size + 4, len(values))
    return Encoded(b"".join((start, *parts)))


def _null(out: bytearray, value: None, depth: int) -> None:
    out.append(0x40)


def _bool(out: bytearray, value: bool, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _ubyte(out: bytearray, value: int, depth: int) -> None:
    out += struct.pack(">BB", 0x50, value)


def _ushort(out: bytearray, value: int, depth: int) -> None:
    out += _U16(0x60, value)


def _uint(out: bytearray, value: int, depth: int) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value < 256:
        out.append(0x52)
        out.append(value)
    else:
        out += _U32(0x70, value)


def _ulong(out: bytearray, value: int, depth: int) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value < 256:
        out.append(0x53)
        out.append(value)
    else:
        out += _U64(0x80, value)


def _byte(out: bytearray, value: int, depth: int) -> None:
    out += _BYTE(0x51, value)


def _short(out: bytearray, value: int, depth: int) -> None:
    out += _I16(0x61, value)


def _int(out: bytearray, value: int, depth: int) -> None:
    out += _BYTE(0x54, value) if -128 <= value < 128 else _I32(0x71, value)


def _long(out: bytearray, value: int, depth: int) -> None:
    out += _BYTE(0x55, value) if -128 <= value < 128 else _I64(0x81, value)


def _timestamp(out: bytearray, value: int, depth: int) -> None:
    out += _I64(0x83, value)


def _float(out: bytearray, value: float, depth: int) -> None:
    out += _F32(0x72, value)


def _double(out: bytearray, value: float, depth: int) -> None:
    out += _F64(0x82, value)


def _char(out: bytearray, value: str, depth: int) -> None:
    if len(value) != 1:
        raise EncodeError(f"a char is one character, not {len(value)}")
    out.append(0x73)
    out += value.encode("utf-32-be")


def _decimal(out: bytearray, value: bytes, depth: int) -> None:
    width, code = _DECIMALS[_known_type(type(value))]
    if len(value) != width:
        raise EncodeError(f"{type(value).__name__} is {width} bytes, not {len(value)}")
    out.append(code)
    out += value


def _uuid(out: bytearray, value: uuid.UUID, depth: int) -> None:
    out.append(0x98)
    out += value.bytes


def _variable(out: bytearray, code: int, raw: bytes) -> None:
    size = len(raw)
    if size < 256:
        out.append(code)
        out.append(size)
    else:
        out += _U32(code + 0x10, size)
    out += raw


def _binary(out: bytearray, value: bytes, depth: int) -> None:
    _variable(out, 0xA0, value)


def _string(out: bytearray, value: str, depth: int) -> None:
    _variable(out, 0xA1, value.encode())


def _as_it_is(out: bytearray, value: bytes, depth: int) -> None:
    out += value


def _symbol(out: bytearray, value: str, depth: int) -> None:
    _variable(out, 0xA3, value.encode("ascii"))


def _check(count: int, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise EncodeError(f"values are nested more than {DEPTH_MAX} deep")
    if count > COUNT_MAX:
        raise EncodeError(f"{count} elements are more than the {COUNT_MAX} that every decoder takes")


def _compound(out: bytearray, code: int, count: int, body: bytearray) -> None:
    size = len(body)
    if size < 255 and count < 256:
        out.append(code)
        out.append(size + 1)
        out.append(count)
    else:
        out += _COMPOUND32(code + 0x10, size + 4, count)
    out += body


def _list(out: bytearray, value: list[Any] | tuple[Any, ...], depth: int) -> None:
    if not value:
        out.append(0x45)
        return
    _check(len(value), depth)
    body = bytearray()
    for item in value:
        encode_into(body, item, depth + 1)
    _compound(out, 0xC0, len(value), body)


def _map(out: bytearray, value: dict[Any, Any], depth: int) -> None:
    _check(2 * len(value), depth)
    body = bytearray()
    for key, item in value.items():
        encode_into(body, key, depth + 1)
        encode_into(body, item, depth + 1)
    _compound(out, 0xC1, 2 * len(value), body)


def _described(out: bytearray, value: Described, depth: int) -> None:
    _check(1, depth)
    out.append(0)
    encode_into(out, value.descriptor, depth + 1)
    encode_into(out, value.value, depth + 1)


def _array(out: bytearray, value: Array, depth: int) -> None:
    _check(len(value.items), depth)
    body = _constructor(value, depth)
    element_kind = value.kind
    items = value.items
    if element_kind is Described:
        items = [item.value for item in items]
        element_kind = type(items[0]) if items else list
    known = _known_type(element_kind)
    element = _ELEMENTS[known][1]
    for item in items:
        if _known_type(type(item)) is known:
            element(body, item, depth + 1)
        elif issubclass(known, type(item)):
            # The array's kind says what a plain int, str, float or bytes is meant to be.
            element(body, known(item), depth + 1)
        else:
            raise EncodeError(f"an array of {element_kind.__name__} holds a {type(item).__name__}")
    _compound(out, 0xE0, len(items), body)


def _constructor(value: Array, depth: int) -> bytearray:
    body = bytearray()
    kind = value.kind
    if kind is Described:
        # An empty one has no descriptor to show; zero is as good as any and keeps the encoding well-formed.
        descriptor = value.items[0].descriptor if value.items else ULong(0)
        body.append(0)
        encode_into(body, descriptor, depth + 1)
        for item in value.items:
            if item.descriptor != descriptor:
                raise EncodeError("the elements of an array of described values share one descriptor")
        kind = type(value.items[0].value) if value.items else list
    known = _known_type(kind)
    if known not in _ELEMENTS:
        raise EncodeError(f"an array of {kind.__name__} has no encoding")
    body.append(_ELEMENTS[known][0])
    return body


# Elements of an array follow its one constructor, so each has the same, widest form.


def _strip_constructor(out: bytearray, value: Any, depth: int) -> None:
    # Types with a single encoding: what follows the constructor byte is the element.
    scratch = bytearray()
    encode_into(scratch, value, depth)
    out += memoryview(scratch)[1:]


def _null_element(out: bytearray, value: None, depth: int) -> None:
    # Decoders refuse it, for a few bytes could ask for any number of them.
    raise EncodeError("an array of null has no elements")


def _bool_element(out: bytearray, value: bool, depth: int) -> None:
    out.append(1 if value else 0)


def _uint_element(out: bytearray, value: int, depth: int) -> None:
    out += struct.pack(">I", value)


def _ulong_element(out: bytearray, value: int, depth: int) -> None:
    out += struct.pack(">Q", value)


def _int_element(out: bytearray, value: int, depth: int) -> None:
    out += struct.pack(">i", value)


def _long_element(out: bytearray, value: int, depth: int) -> None:
    out += struct.pack(">q", value)


def _variable_element(out: bytearray, value: Any, depth: int) -> None:
    raw = value if isinstance(value, bytes) else value.encode("ascii" if isinstance(value, Symbol) else "utf-8")
    out += struct.pack(">I", len(raw))
    out += raw


def _compound_element(out: bytearray, value: Any, depth: int) -> None:
    # Encode as usual, then widen: 8 bit sizes become 32 bit ones, the empty list gets both.
    scratch = bytearray()
    encode_into(scratch, value, depth)
    code = scratch[0]
    if code == 0x45:
        out += _SIZE_COUNT(4, 0)
    elif code & 0x10:
        out += memoryview(scratch)[1:]
    else:
        out += _SIZE_COUNT(scratch[1] + 3, scratch[2])
        out += memoryview(scratch)[3:]


_DECIMALS: Final[dict[type, tuple[int, int]]] = {Decimal32: (4, 0x74), Decimal64: (8, 0x84), Decimal128: (16, 0x94)}

_Encoder = Callable[[bytearray, Any, int], None]

_ENCODERS: Final[dict[type, _Encoder]] = {
    type(None): _null,
    bool: _bool,
    UByte: _ubyte,
    UShort: _ushort,
    UInt: _uint,
    ULong: _ulong,
    Byte: _byte,
    Short: _short,
    Int: _int,
    int: _long,
    Timestamp: _timestamp,
    Float32: _float,
    float: _double,
    Char: _char,
    Decimal32: _decimal,
    Decimal64: _decimal,
    Decimal128: _decimal,
    uuid.UUID: _uuid,
    bytes: _binary,
    bytearray: _binary,
    str: _string,
    Symbol: _symbol,
    list: _list,
    tuple: _list,
    dict: _map,
    Array: _array,
    Described: _described,
    Encoded: _as_it_is,
}

_ELEMENTS: Final[dict[type, tuple[int, _Encoder]]] = {
    type(None): (0x40, _null_element),
    bool: (0x56, _bool_element),
    UByte: (0x50, _strip_constructor),
    UShort: (0x60, _strip_constructor),
    UInt: (0x70, _uint_element),
    ULong: (0x80, _ulong_element),
    Byte: (0x51, _strip_constructor),
    Short: (0x61, _strip_constructor),
    Int: (0x71, _int_element),
    int: (0x81, _long_element),
    Timestamp: (0x83, _long_element),
    Float32: (0x72, _strip_constructor),
    float: (0x82, _strip_constructor),
    Char: (0x73, _strip_constructor),
    Decimal32: (0x74, _strip_constructor),
    Decimal64: (0x84, _strip_constructor),
    Decimal128: (0x94, _strip_constructor),
    uuid.UUID: (0x98, _strip_constructor),
    bytes: (0xB0, _variable_element),
    str: (0xB1, _variable_element),
    Symbol: (0xB3, _variable_element),
    list: (0xD0, _compound_element),
    dict: (0xD1, _compound_element),
    Array: (0xF0, _compound_element),
}
