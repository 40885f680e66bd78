"""What expressions compute with, and how it comes from AMQP and goes back (Azure: SQL filter syntax, "Types").

Unknown is None. Boolean, Int64, double, string and GUID are Python's own types, exactly (``type(x) is int``); instants
and spans of time are the two classes here. Whatever else a message holds (binary, lists, ...) stays as the codec gave
it: there is nothing to be done with it but to ask whether it is there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from duobus.codec import (
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

INT64_LOWEST: Final = -(1 << 63)
INT64_HIGHEST: Final = (1 << 63) - 1
#: Beyond it doubles have gaps, so that "equal" depends on which side is converted.
EXACT_BELOW: Final = 1 << 53

#: .NET counts time in ticks of 100 ns.
TICKS_PER_MS: Final = 10_000
TICKS_PER_SECOND: Final = 10_000_000
#: Ticks from 0001-01-01 to the Unix epoch, and the range of a DateTime counted from there.
EPOCH_TICKS: Final = 621_355_968_000_000_000
_DATE_TICKS_MIN: Final = -EPOCH_TICKS
_DATE_TICKS_MAX: Final = 3_155_378_975_999_999_999 - EPOCH_TICKS


class EvaluationError(Exception):
    """A rule cannot be evaluated on this message (FilterException, RuleActionException); the text says why."""


class _Ticks:
    """A number of ticks that compares with its own kind only."""

    __slots__ = ("ticks",)

    def __init__(self, ticks: int) -> None:
        self.ticks = ticks

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.ticks == self.ticks

    def __lt__(self, other: Any) -> bool:
        return bool(self.ticks < other.ticks)

    def __le__(self, other: Any) -> bool:
        return bool(self.ticks <= other.ticks)

    def __gt__(self, other: Any) -> bool:
        return bool(self.ticks > other.ticks)

    def __ge__(self, other: Any) -> bool:
        return bool(self.ticks >= other.ticks)

    def __hash__(self) -> int:
        return hash((type(self), self.ticks))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ticks})"


class DateTime(_Ticks):
    """An instant, UTC: ticks since the Unix epoch."""

    __slots__ = ()

    @classmethod
    def of_ms(cls, ms: int) -> DateTime:
        """Return the instant of an AMQP timestamp."""
        return cls(ms * TICKS_PER_MS)


class TimeSpan(_Ticks):
    """A span of time, of either sign."""

    __slots__ = ()

    @classmethod
    def of_ms(cls, ms: int) -> TimeSpan:
        """Return the span of so many milliseconds."""
        return cls(ms * TICKS_PER_MS)


def checked_int(value: int) -> int:
    """Return an Int64; raises EvaluationError for what is none."""
    if INT64_LOWEST <= value <= INT64_HIGHEST:
        return value
    raise EvaluationError("a number is beyond 64 bits")


def checked_date(ticks: int) -> DateTime:
    """Return the instant; raises EvaluationError for one before the year 1 or after the year 9999."""
    if _DATE_TICKS_MIN <= ticks <= _DATE_TICKS_MAX:
        return DateTime(ticks)
    raise EvaluationError("a time is outside the years 1 to 9999")


def checked_span(ticks: int) -> TimeSpan:
    """Return the span; raises EvaluationError for one beyond 64 bits of ticks."""
    if INT64_LOWEST <= ticks <= INT64_HIGHEST:
        return TimeSpan(ticks)
    raise EvaluationError("a span of time is beyond 64 bits")


# -- from AMQP --------------------------------------------------------------------------------------------------------

TIMESPAN: Final = Symbol("com.microsoft:timespan")
_DATETIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
_URI: Final = Symbol("com.microsoft:uri")

#: (coefficient bits, exponent bias) of the decimals, in AMQP's binary integer encoding.
_DECIMALS: Final = {4: (23, 101), 8: (53, 398), 16: (113, 6176)}


def _decimal(raw: bytes) -> Any:
    coefficient_bits, bias = _DECIMALS[len(raw)]
    width = 8 * len(raw)
    number = int.from_bytes(raw, "big")
    sign = -1 if number >> (width - 1) else 1
    # A combination field that starts 11 has its exponent two bits further right; 1111 is infinity or no number.
    if (number >> (width - 3)) & 3 != 3:
        exponent = (number >> coefficient_bits) & ((1 << (width - 1 - coefficient_bits)) - 1)
        coefficient = number & ((1 << coefficient_bits) - 1)
    elif (number >> (width - 5)) & 15 == 15:
        return sign * float("inf") if not (number >> (width - 6)) & 1 else float("nan")
    else:
        exponent = (number >> (coefficient_bits - 2)) & ((1 << (width - 1 - coefficient_bits)) - 1)
        coefficient = (number & ((1 << (coefficient_bits - 2)) - 1)) | (1 << coefficient_bits)
    return float(f"{'-' if sign < 0 else ''}{coefficient}e{exponent - bias}")


def _described(raw: Described) -> Any:
    value = raw.value
    if raw.descriptor == TIMESPAN and isinstance(value, int):
        return TimeSpan(int(value))
    if raw.descriptor == _DATETIME_OFFSET and isinstance(value, int):
        return DateTime(int(value) - EPOCH_TICKS)
    if raw.descriptor == _URI and isinstance(value, str):
        return str(value)
    return raw


def _timestamp(raw: int) -> DateTime:
    return DateTime(int(raw) * TICKS_PER_MS)


_FROM_AMQP: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys((Byte, Short, Int, UByte, UShort, UInt, ULong), int),
    Float32: float,
    Symbol: str,
    Char: str,
    Timestamp: _timestamp,
    Decimal32: _decimal,
    Decimal64: _decimal,
    Decimal128: _decimal,
    Described: _described,
}
#: ``from_amqp_table(type(raw))`` gives the converter, or None where the value stands for itself.
from_amqp_table: Final = _FROM_AMQP.get


def from_amqp(raw: Any) -> Any:
    """Return what expressions see of a value of the codec."""
    convert = from_amqp_table(type(raw))
    return raw if convert is None else convert(raw)


def id_text(raw: Any) -> str | None:
    """Return the text of a message or correlation id, which may be of four types (AMQP 1.0 part 3, 3.2.4)."""
    if raw is None:
        return None
    if isinstance(raw, bytes):
        return raw.hex()
    return str(raw)


# -- to AMQP ----------------------------------------------------------------------------------------------------------

_WIDTHS: Final[dict[type, tuple[int, int]]] = {
    Byte: (-(1 << 7), (1 << 7) - 1),
    Short: (-(1 << 15), (1 << 15) - 1),
    Int: (-(1 << 31), (1 << 31) - 1),
    UByte: (0, (1 << 8) - 1),
    UShort: (0, (1 << 16) - 1),
    UInt: (0, (1 << 32) - 1),
    ULong: (0, (1 << 64) - 1),
}


def to_amqp(value: Any, existing: Any = None) -> Any:
    """Return a value as it is written over ``existing``, the property's present value.

    It becomes of that one's type where it converts to it without a loss, otherwise it has its own.
    """
    kind = type(value)
    if kind is int:
        return _integer_to_amqp(value, existing)
    if kind is DateTime:
        return Timestamp(max(INT64_LOWEST, min(INT64_HIGHEST, value.ticks // TICKS_PER_MS)))
    if kind is TimeSpan:
        return Described(TIMESPAN, value.ticks)
    if kind is uuid.UUID and isinstance(existing, str):
        return str(value)
    return value


def _integer_to_amqp(value: int, existing: Any) -> Any:
    kind = type(existing)
    if kind in (float, Float32):
        return kind(value)
    low, high = _WIDTHS.get(kind, (1, 0))
    if low <= value <= high:
        return kind(value)
    if value > INT64_HIGHEST:
        return ULong(value)
    return value
