"""The body of a message that is an AMQP value or sequence: encoded sections, read into values that the SDK sends again.

The column ``body`` holds the bytes of the section where ``body_type`` is ``value`` or ``sequence``. The SDK accepts
only values, so this module decodes them, each with its AMQP type; the SDK's own decoder forgets which bytes were text.
The bytes come from files that anybody may have written, so no length is believed beyond the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

#: Nested deeper than any value that AMQP peers take from each other.
DEPTH_MAX: Final = 64

_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Format code to (SDK's name of the type, how its bytes are unpacked).
_FIXED: Final[dict[int, tuple[str, str]]] = {
    0x50: ("UBYTE", ">B"),
    0x51: ("BYTE", ">b"),
    0x52: ("UINT", ">B"),
    0x53: ("ULONG", ">B"),
    0x54: ("INT", ">b"),
    0x55: ("LONG", ">b"),
    0x56: ("BOOL", ">?"),
    0x60: ("USHORT", ">H"),
    0x61: ("SHORT", ">h"),
    0x70: ("UINT", ">I"),
    0x71: ("INT", ">i"),
    0x72: ("FLOAT", ">f"),
    0x80: ("ULONG", ">Q"),
    0x81: ("LONG", ">q"),
    0x82: ("DOUBLE", ">d"),
    0x83: ("TIMESTAMP", ">q"),
}
_CONSTANTS: Final[dict[int, tuple[str, Any]]] = {
    0x40: ("NULL", None),
    0x41: ("BOOL", True),
    0x42: ("BOOL", False),
    0x43: ("UINT", 0),
    0x44: ("ULONG", 0),
    0x45: ("LIST", []),
}
#: Format code to (type, bytes of its length).
_VARIABLE: Final[dict[int, tuple[str, int]]] = {
    0xA0: ("BINARY", 1),
    0xA1: ("STRING", 1),
    0xA3: ("SYMBOL", 1),
    0xB0: ("BINARY", 4),
    0xB1: ("STRING", 4),
    0xB3: ("SYMBOL", 4),
}
#: Types that the SDK gives by itself to the Python value.
_OWN: Final = frozenset({"NULL", "BOOL", "DOUBLE", "BINARY", "STRING", "LIST"})


def value_of(data: bytes) -> Any:
    """The value of an encoded amqp-value section, as the SDK takes a ``value_body``.

    Raises:
        ValueError: The bytes are no such section, or hold a value that the SDK cannot send.
    """
    reader = _Reader(data)
    if reader.section() != _VALUE:
        raise ValueError("the body is no amqp-value section")
    value = reader.value(0)
    reader.end()
    return _bare(value)


def sequences_of(data: bytes) -> list[list[Any]]:
    """The lists of encoded amqp-sequence sections, as the SDK takes a ``sequence_body``.

    Raises:
        ValueError: The bytes are no such sections, or hold a value that the SDK cannot send.
    """
    reader = _Reader(data)
    found = []
    while not reader.is_at_end:
        if reader.section() != _SEQUENCE:
            raise ValueError("the body is no amqp-sequence section")
        value = reader.value(0)
        if not isinstance(value, list):
            raise ValueError("the body is a sequence section without a list")
        found.append(value)
    if not found:
        raise ValueError("the body is no amqp-sequence section")
    return found


def _bare(value: Any) -> Any:
    """A value at the top of a body, where the SDK takes no type beside it: whole numbers go out as int."""
    if not (isinstance(value, dict) and set(value) == {"TYPE", "VALUE"}):
        return value
    kind, inside = value["TYPE"], value["VALUE"]
    if kind == "TIMESTAMP":
        return _EPOCH + timedelta(milliseconds=inside)
    if kind == "UUID" or (isinstance(inside, int) and -(2**31) <= inside < 2**31):
        return inside
    if kind == "MAP":
        # Pairs of typed forms cannot be keys of a dict; the plain ones can.
        return {_key(key): item for key, item in inside}
    raise ValueError(f"the SDK cannot send a body that is a {kind.lower()} of its own")


def _key(key: Any) -> Any:
    if isinstance(key, dict):
        return key.get("VALUE")
    return tuple(key) if isinstance(key, list) else key


class _Reader:
    """Reads values from bytes, strictly."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def end(self) -> None:
        if not self.is_at_end:
            raise ValueError(f"{len(self._data) - self._at} bytes stand behind the body")

    def section(self) -> int:
        """The code of the section that begins here."""
        if self._take(1) != b"\x00":
            raise ValueError("the body is no AMQP section")
        code = self.value(0)
        if not isinstance(code, dict) or code["TYPE"] != "ULONG":
            raise ValueError("the body is no AMQP section")
        return int(code["VALUE"])

    def value(self, depth: int, code: int | None = None) -> Any:
        """The value that begins here, with its type where the SDK would choose another."""
        if depth > DEPTH_MAX:
            raise ValueError(f"the body is nested deeper than {DEPTH_MAX} levels")
        if code is None:
            code = self._take(1)[0]
        if code == 0x00:
            return (self.value(depth + 1), self.value(depth + 1))
        if code in _CONSTANTS:
            kind, constant = _CONSTANTS[code]
            return [] if kind == "LIST" else self._typed(kind, constant)
        if code in _FIXED:
            kind, form = _FIXED[code]
            (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
            return self._typed(kind, number)
        if code in _VARIABLE:
            kind, width = _VARIABLE[code]
            return self._typed(kind, self._text(kind, self._take(self._length(width))))
        return self._other(code, depth)

    def _other(self, code: int, depth: int) -> Any:
        if code == 0x98:
            return UUID(bytes=self._take(16))
        if code in (0xC0, 0xD0, 0xC1, 0xD1):
            width = 1 if code < 0xD0 else 4
            values = self._items(width, lambda: self.value(depth + 1))
            if code in (0xC0, 0xD0):
                return values
            if len(values) % 2:
                raise ValueError("the body holds a map with a key that has no value")
            return {"TYPE": "MAP", "VALUE": list(zip(values[::2], values[1::2], strict=True))}
        if code in (0xE0, 0xF0):
            width = 1 if code == 0xE0 else 4
            return {"TYPE": "ARRAY", "VALUE": self._array(width, depth)}
        raise ValueError(f"the body holds a value of the AMQP type 0x{code:02x}, which the SDK cannot send")

    def _items(self, width: int, read: Callable[[], Any]) -> list[Any]:
        end = self._size(width)
        count = self._length(width)
        if count > end - self._at:
            raise ValueError("the body ends within a value")
        found = [read() for _ in range(count)]
        if self._at != end:
            raise ValueError("the body holds a list of another size than it says")
        return found

    def _array(self, width: int, depth: int) -> list[Any]:
        end = self._size(width)
        count = self._length(width)
        code = self._take(1)[0]
        # An element without bytes of its own would let a few bytes stand for billions.
        if count > end - self._at or code == 0x00:
            raise ValueError("the body holds an array that cannot be sent")
        found = [self.value(depth + 1, code) for _ in range(count)]
        if self._at != end:
            raise ValueError("the body holds an array of another size than it says")
        return found

    def _size(self, width: int) -> int:
        length = self._length(width)
        end = self._at + length
        if end > len(self._data) or length < width:
            raise ValueError("the body ends within a value")
        return end

    def _length(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the body ends within a value")
        self._at += count
        return taken

    def _text(self, kind: str, data: bytes) -> Any:
        if kind == "STRING":
            try:
                return data.decode()
            except UnicodeDecodeError:
                raise ValueError("the body holds a string that is no UTF-8") from None
        return data

    def _typed(self, kind: str, value: Any) -> Any:
        return value if kind in _OWN else {"TYPE": kind, "VALUE": value}
