"""The AMQP types that Python has no type of its own for (AMQP 1.0 part 1, section 1.6).

Python's own types stand for null (None), boolean (bool), long (int), double (float), binary (bytes), string (str),
uuid (uuid.UUID), list and map (dict). The classes here are subclasses of the nearest Python type, so that a
decoded value compares and computes as one expects, and encodes again as the type that it came as.
"""

from __future__ import annotations

from typing import Any


class DecodeError(ValueError):
    """Bytes that are not what AMQP says they must be; the text says where and why. Sending them again never helps."""


class TooLargeError(DecodeError):
    """A part of a message in front of its body is larger than Service Bus allows."""


class EncodeError(ValueError):
    """A value that has no AMQP encoding: wrong type, out of range, or too deep."""


class Symbol(str):
    """An ASCII name from a limited vocabulary: keys of annotations, conditions, capabilities."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class UByte(int):
    """Unsigned, 8 bits."""

    __slots__ = ()


class UShort(int):
    """Unsigned, 16 bits."""

    __slots__ = ()


class UInt(int):
    """Unsigned, 32 bits."""

    __slots__ = ()


class ULong(int):
    """Unsigned, 64 bits."""

    __slots__ = ()


class Byte(int):
    """Signed, 8 bits."""

    __slots__ = ()


class Short(int):
    """Signed, 16 bits."""

    __slots__ = ()


class Int(int):
    """Signed, 32 bits; a plain ``int`` is an AMQP long: signed, 64 bits."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, UTC; signed, 64 bits."""

    __slots__ = ()


class Encoded(bytes):
    """A value that is encoded already; it stands in another one as it is."""

    __slots__ = ()


class Float32(float):
    """IEEE 754 binary32; a plain ``float`` is an AMQP double."""

    __slots__ = ()


class Decimal32(bytes):
    """IEEE 754 decimal32, kept as the four bytes that came: a broker passes it on and never computes with it."""

    __slots__ = ()


class Decimal64(bytes):
    """IEEE 754 decimal64, kept as the eight bytes that came."""

    __slots__ = ()


class Decimal128(bytes):
    """IEEE 754 decimal128, kept as the sixteen bytes that came."""

    __slots__ = ()


class Described:
    """A value with a descriptor that says what it means.

    Attributes:
        descriptor: ULong or Symbol by custom; any value by the specification.
        value: The described value.
    """

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return bool(self.descriptor == other.descriptor and self.value == other.value)

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array:
    """A real AMQP array: elements of one type behind one constructor. Typed decoders refuse a list in its place.

    Attributes:
        kind: The Python type that stands for the element type: ``Symbol``, ``int`` for long, ``Timestamp``,
            ``uuid.UUID``, ``dict``, ``Described`` (all with the same descriptor), and so on.
        items: The elements, in order.
    """

    __slots__ = ("items", "kind")
    __hash__ = None  # type: ignore[assignment]  # mutable, as lists are

    def __init__(self, kind: type, items: list[Any]) -> None:
        self.kind = kind
        self.items = items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return self.kind is other.kind and self.items == other.items

    def __repr__(self) -> str:
        return f"Array({self.kind.__name__}, {self.items!r})"
