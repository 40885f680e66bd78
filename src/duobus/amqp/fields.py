"""Described lists from a table of fields: how they are read, checked and written (AMQP 1.0 part 1, 1.6).

A class names its fields with their types, the rest follows from that. Written are always all fields, nulls
included, under a descriptor of three bytes: weak decoders index past short lists and never look at the descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

from duobus.amqp.errors import Error, encode_error, error_from
from duobus.codec import Array, DecodeError, Described, PassedOver, Symbol, UByte, UInt, ULong, UShort, encode_into
from duobus.codec.outline import PART_BYTES_MAX

P = TypeVar("P", bound="Performative")

#: Name, type and whether it is mandatory, for each field in order.
Field = tuple[str, str, bool]


class Performative:
    """Parent of the frame bodies; keyword arguments set fields, the rest are None."""

    __slots__ = ()
    CODE: ClassVar[int]
    FIELDS: ClassVar[tuple[Field, ...]]
    #: For each field: its name, how it is read, what it is called in errors, and whether it is mandatory.
    READERS: ClassVar[tuple[tuple[str, Callable[[Any, str], Any], str, bool], ...]]

    def __init_subclass__(cls) -> None:
        prefix = cls.__name__.lower()
        cls.READERS = tuple(
            (name, _READ[kind], f"{prefix}.{name}", is_required) for name, kind, is_required in cls.FIELDS
        )

    def __init__(self, **values: Any) -> None:
        for name, _, _ in self.FIELDS:
            setattr(self, name, values.pop(name, None))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(values))}")

    @classmethod
    def read(cls: type[P], fields: Any) -> P:
        """Return the performative that a decoded list holds.

        Raises:
            DecodeError: Too many fields, a mandatory one missing, or one of the wrong type or range.
        """
        if not isinstance(fields, list) or len(fields) > len(cls.FIELDS):
            raise DecodeError(f"{cls.__name__.lower()} is a list of at most {len(cls.FIELDS)} fields")
        made = cls.__new__(cls)
        # Fields that are left out at the end of the list are null.
        for (name, read, full_name, is_required), value in zip_longest(cls.READERS, fields):
            found = None if value is None else read(value, full_name)
            if found is None and is_required:
                raise DecodeError(f"{full_name} is missing")
            setattr(made, name, found)
        return made

    def write(self, out: bytearray) -> None:
        """Append the encoding, with every field."""
        out += bytes((0, 0x53, self.CODE))
        body = bytearray()
        for name, kind, _ in self.FIELDS:
            value = getattr(self, name)
            if value is None:
                body.append(0x40)
            else:
                _WRITE[kind](body, value)
        if len(body) < 255:
            out += bytes((0xC0, len(body) + 1, len(self.FIELDS)))
        else:
            out += b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(self.FIELDS).to_bytes(4, "big")
        out += body

    def to_bytes(self) -> bytes:
        """Return the encoding, with every field."""
        out = bytearray()
        self.write(out)
        return bytes(out)

    def replace(self: P, **changes: Any) -> P:
        """Return a copy with some fields changed."""
        values = {name: getattr(self, name) for name, _, _ in self.FIELDS}
        values.update(changes)
        return type(self)(**values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Performative):
            return NotImplemented
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name, _, _ in self.FIELDS
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name, _, _ in self.FIELDS if getattr(self, name) is not None]
        return f"{type(self).__name__}({', '.join(given)})"


#: All that Service Bus knows of the maps in frames has keys that begin so (AMQP 1.0 part 2, 2.6.3).
_KNOWN_KEYS = b"com.microsoft:"
_MAPS = (0xC1, 0xD1)
_ARRAYS = (0xE0, 0xF0)


def _demand_unread(value: PassedOver, name: str, codes: tuple[int, ...]) -> None:
    """Raise DecodeError unless a large map or array may be taken as absent: nobody would have to read it."""
    if value.code not in codes:
        raise DecodeError(f"{name} may not be so large, or of constructor 0x{value.code:02x}")
    if _KNOWN_KEYS in value.raw:
        raise DecodeError(f"{name} has {len(value.raw)} bytes; with keys of ours {PART_BYTES_MAX} are allowed")


def _read_any(value: Any, name: str) -> Any:
    if isinstance(value, PassedOver):
        raise DecodeError(f"{name} may not have {len(value.raw)} bytes")
    return value


def _read_map(value: Any, name: str) -> dict[Any, Any] | None:
    if isinstance(value, PassedOver):
        _demand_unread(value, name, _MAPS)
        return None
    if not isinstance(value, dict):
        raise DecodeError(f"{name} may not be of type {type(value).__name__}")
    return value


def _instance_of(kind: type) -> Callable[[Any, str], Any]:
    def read(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise DecodeError(f"{name} may not be of type {type(value).__name__}")
        return value

    return read


def _unsigned(bits: int) -> Callable[[Any, str], int]:
    # The width is checked, not the exact type: some clients write a small number as another integer type.
    def read(value: Any, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << bits:
            raise DecodeError(f"{name} must be an unsigned integer of {bits} bits, not {value!r:.50}")
        return int(value)

    return read


def _read_symbols(value: Any, name: str) -> list[str] | None:
    if isinstance(value, PassedOver):
        _demand_unread(value, name, _ARRAYS)
        return None
    # "Multiple" fields: one symbol may stand without its array.
    items = value.items if isinstance(value, Array) else [value]
    if not all(isinstance(item, str) for item in items):
        raise DecodeError(f"{name} must hold symbols")
    return items


def _read_error(value: Any, name: str) -> Error | None:
    return error_from(value)


#: Termini by field name and descriptor, entered by their own module.
TERMINI: dict[Any, type[Performative]] = {}


def _terminus(value: Any, name: str) -> Performative:
    if not isinstance(value, Described) or not isinstance(value.descriptor, (int, str)):
        raise DecodeError(f"{name} must be a terminus, not {value!r:.50}")
    kind = TERMINI.get((name.rpartition(".")[2], value.descriptor))
    if kind is None:
        raise DecodeError(f"{name} may not be described as {value.descriptor!r:.50}")
    return kind.read(value.value)


_READ: dict[str, Callable[[Any, str], Any]] = {
    "any": _read_any,
    "bool": _instance_of(bool),
    "ubyte": _unsigned(8),
    "ushort": _unsigned(16),
    "uint": _unsigned(32),
    "ulong": _unsigned(64),
    "binary": _instance_of(bytes),
    "string": _instance_of(str),
    "symbol": _instance_of(str),
    "symbols": _read_symbols,
    "map": _read_map,
    "fields": _read_map,
    "error": _read_error,
    "source": _terminus,
    "target": _terminus,
}


def _write_as(kind: Callable[[Any], Any]) -> Callable[[bytearray, Any], None]:
    def write(out: bytearray, value: Any) -> None:
        encode_into(out, kind(value))

    return write


def symbol_keys(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the map with its plain string keys as symbols: what AMQP calls *fields*."""
    return {Symbol(key) if type(key) is str else key: value for key, value in values.items()}


def _symbols(values: list[str]) -> Array:
    return Array(Symbol, [Symbol(value) for value in values])


def _as_it_is(value: Any) -> Any:
    return value


def _write_performative(out: bytearray, value: Performative) -> None:
    value.write(out)


_WRITE: dict[str, Callable[[bytearray, Any], None]] = {
    "any": encode_into,
    "bool": _write_as(bool),
    "ubyte": _write_as(UByte),
    "ushort": _write_as(UShort),
    "uint": _write_as(UInt),
    "ulong": _write_as(ULong),
    "binary": _write_as(_as_it_is),
    "string": _write_as(str),
    "symbol": _write_as(Symbol),
    "symbols": _write_as(_symbols),
    "map": _write_as(_as_it_is),
    "fields": _write_as(symbol_keys),
    "error": encode_error,
    "source": _write_performative,
    "target": _write_performative,
}
