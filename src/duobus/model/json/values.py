"""AMQP values as JSON and back, without losing their types.

Text, true, false, null, lists and maps with text as keys are what they are in JSON; a whole number is an AMQP long, one
with a fraction a double. Every other type is an object with one member whose name begins with a dollar sign, as in
``{"$uint": 5}``; a map that could be mistaken for one, or has other keys, is ``{"$map": [[key, value], ...]}``.
"""

from __future__ import annotations

import base64
import binascii
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from duobus.codec import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from duobus.errors import ArgumentInvalid

#: Lists in lists, and so on: as deep as a message's values may be.
DEPTH_MAX: Final = 64

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONG: Final = 1 << 63

#: Name of a type of whole numbers to its class, lowest and highest value.
_WHOLE: Final[dict[str, tuple[type[int], int, int]]] = {
    "ubyte": (UByte, 0, (1 << 8) - 1),
    "ushort": (UShort, 0, (1 << 16) - 1),
    "uint": (UInt, 0, (1 << 32) - 1),
    "ulong": (ULong, 0, (1 << 64) - 1),
    "byte": (Byte, -(1 << 7), (1 << 7) - 1),
    "short": (Short, -(1 << 15), (1 << 15) - 1),
    "int": (Int, -(1 << 31), (1 << 31) - 1),
    "long": (int, -_LONG, _LONG - 1),
}
_WHOLE_NAMES: Final = {kind: name for name, (kind, _, _) in _WHOLE.items()}
_RAW: Final[dict[str, tuple[type[bytes], int]]] = {
    "decimal32": (Decimal32, 4),
    "decimal64": (Decimal64, 8),
    "decimal128": (Decimal128, 16),
}
_RAW_NAMES: Final = {kind: name for name, (kind, _) in _RAW.items()}
#: Element types of arrays by name.
_KINDS: Final[dict[str, type]] = {
    **{name: kind for name, (kind, _, _) in _WHOLE.items()},
    **{name: kind for name, (kind, _) in _RAW.items()},
    "null": type(None),
    "boolean": bool,
    "string": str,
    "symbol": Symbol,
    "char": Char,
    "double": float,
    "float": Float32,
    "timestamp": Timestamp,
    "uuid": uuid.UUID,
    "binary": bytes,
    "list": list,
    "map": dict,
    "array": Array,
    "described": Described,
}
_KIND_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def to_json(value: Any) -> Any:
    """Return a decoded AMQP value as JSON has it."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$double": repr(value)}
    if kind is list:
        return [to_json(item) for item in value]
    if kind is dict:
        return _map_to_json(value)
    return {f"${name}": inside for name, inside in [_tagged(kind, value)]}


def _tagged(kind: type, value: Any) -> tuple[str, Any]:
    if kind in _WHOLE_NAMES:
        return _WHOLE_NAMES[kind], int(value)
    if kind in _RAW_NAMES:
        return _RAW_NAMES[kind], bytes(value).hex()
    if kind is Float32:
        return "float", float(value) if math.isfinite(value) else repr(float(value))
    if kind is Timestamp:
        return "timestamp", time_text(int(value))
    if kind is uuid.UUID:
        return "uuid", str(value)
    if kind is Described:
        return "described", [to_json(value.descriptor), to_json(value.value)]
    if kind is Array:
        return "array", [_KIND_NAMES[value.kind], [to_json(item) for item in value.items]]
    if isinstance(value, bytes | bytearray | memoryview):
        return "binary", base64.b64encode(bytes(value)).decode()
    assert kind in (Symbol, Char)
    return _KIND_NAMES[kind], str(value)


def _map_to_json(value: dict[Any, Any]) -> Any:
    if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {key: to_json(item) for key, item in value.items()}
    return {"$map": [[to_json(key), to_json(item)] for key, item in value.items()]}


def time_text(instant_ms: int) -> str | int:
    """A time as ISO 8601 with milliseconds; one that no calendar has as milliseconds."""
    try:
        return (_EPOCH + timedelta(milliseconds=instant_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return instant_ms


def time_of(value: Any) -> int:
    """Milliseconds since the epoch of what ``time_text`` made.

    Raises:
        ArgumentInvalid: It is no time.
    """
    if isinstance(value, int) and not isinstance(value, bool) and -_LONG <= value < _LONG:
        return value
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ArgumentInvalid(f"{value!r:.60} is no time; write it like 2026-01-31T12:00:00Z.") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def from_json(value: Any, depth: int = 0) -> Any:
    """Return the AMQP value that ``to_json`` was given.

    Raises:
        ArgumentInvalid: There is none; the text says what is wrong.
    """
    if depth > DEPTH_MAX:
        raise ArgumentInvalid(f"A value is nested deeper than {DEPTH_MAX} levels.")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return _whole("long", value)
    if isinstance(value, float):
        return value
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"{value!r:.60} is no JSON value.")
    if len(value) == 1:
        ((name, inside),) = value.items()
        if name.startswith("$"):
            return _untagged(name[1:], inside, depth)
    return {str(key): from_json(item, depth + 1) for key, item in value.items()}


def _untagged(name: str, inside: Any, depth: int) -> Any:
    if name in _WHOLE:
        return _whole(name, inside)
    if name in _RAW:
        return _raw(name, inside)
    reader = _READERS.get(name)
    if reader is not None:
        try:
            return reader(inside)
        except ArgumentInvalid:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError, binascii.Error):
            raise ArgumentInvalid(f"{inside!r:.60} is no {name}.") from None
    if name in ("list", "map", "array", "described"):
        return _compound(name, inside, depth)
    raise ArgumentInvalid(f"'${name:.40}' is no AMQP type. A map with such a key is written with $map.")


def _whole(name: str, value: Any) -> int:
    kind, low, high = _WHOLE[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ArgumentInvalid(f"{value!r:.60} is no {name}: a whole number from {low} to {high} is needed.")
    return kind(value)


def _raw(name: str, value: Any) -> bytes:
    kind, size = _RAW[name]
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        found = b""
    if len(found) != size:
        raise ArgumentInvalid(f"{value!r:.60} is no {name}: {2 * size} hexadecimal digits are needed.")
    return kind(found)


def _text(kind: type[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or (kind is Char and len(value) != 1) or (kind is Symbol and not value.isascii()):
            raise ValueError(value)
        return kind(value)

    return read


def _number(kind: type[float]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError(value)
        return kind(float(value))

    return read


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "string": _text(str),
    "symbol": _text(Symbol),
    "char": _text(Char),
    "double": _number(float),
    "float": _number(Float32),
    "timestamp": lambda value: Timestamp(time_of(value)),
    "uuid": uuid.UUID,
    "binary": lambda value: base64.b64decode(value, validate=True),
}


def _compound(name: str, inside: Any, depth: int) -> Any:
    if not isinstance(inside, list):
        raise ArgumentInvalid(f"'${name}' needs a list.")
    if name == "list":
        return [from_json(item, depth + 1) for item in inside]
    if name == "map":
        return _pairs(inside, depth)
    if len(inside) != 2:
        raise ArgumentInvalid(f"'${name}' needs a list of two.")
    if name == "described":
        return Described(from_json(inside[0], depth + 1), from_json(inside[1], depth + 1))
    kind = _KINDS.get(inside[0]) if isinstance(inside[0], str) else None
    if kind is None or not isinstance(inside[1], list):
        raise ArgumentInvalid("'$array' needs the name of a type and a list.")
    return Array(kind, [from_json(item, depth + 1) for item in inside[1]])


def _pairs(inside: list[Any], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in inside:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ArgumentInvalid("'$map' needs a list of pairs.")
        key = from_json(pair[0], depth + 1)
        try:
            found[key] = from_json(pair[1], depth + 1)
        except TypeError:
            raise ArgumentInvalid("A key of a map cannot be a list, a map or an array.") from None
    return found
