"""Comparison and arithmetic on values (Azure: SQL filter syntax). None is unknown, in and out.

A comparison never fails: kinds that don't go together give unknown, because an error would dead-letter every message
that carries a property of an unexpected type. Arithmetic fails.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Callable
from typing import Any, Final

from duobus.rules.values import (
    DateTime,
    EvaluationError,
    TimeSpan,
    checked_date,
    checked_int,
    checked_span,
)

#: Longest text that an expression may make, in characters: what all properties of a message may have in bytes.
TEXT_LENGTH_MAX: Final = 65_536

#: Characters of a text that decide how it compares with a GUID: more than one has, all of them small.
_GUID_DECIDES: Final = 40

_ORDERED: Final = frozenset((int, float, str, DateTime, TimeSpan, uuid.UUID))

Comparison = Callable[[Any, Any], "bool | None"]


def _comparison(compare: Callable[[Any, Any], Any], *, for_bool: bool) -> Comparison:
    def compared(left: Any, right: Any) -> bool | None:
        kind, other = type(left), type(right)
        if kind is other:
            if kind in _ORDERED or (for_bool and kind is bool):
                return bool(compare(left, right))
            return None
        if kind is float and other is int:
            return bool(compare(left, float(right)))
        if kind is int and other is float:
            return bool(compare(float(left), right))
        if kind is uuid.UUID and other is str:
            return bool(compare(str(left), right[:_GUID_DECIDES].lower()))
        if kind is str and other is uuid.UUID:
            return bool(compare(left[:_GUID_DECIDES].lower(), str(right)))
        return None

    return compared


#: The comparisons by the tokens of the language. Strings compare ordinally and case-sensitively.
COMPARISONS: Final[dict[str, Comparison]] = {
    "=": _comparison(operator.eq, for_bool=True),
    "<>": _comparison(operator.ne, for_bool=True),
    "<": _comparison(operator.lt, for_bool=False),
    "<=": _comparison(operator.le, for_bool=False),
    ">": _comparison(operator.gt, for_bool=False),
    ">=": _comparison(operator.ge, for_bool=False),
}
equal: Final = COMPARISONS["="]

_KINDS: Final = {
    bool: "a boolean",
    int: "an integer",
    float: "a double",
    str: "a string",
    uuid.UUID: "a GUID",
    DateTime: "a date",
    TimeSpan: "a time span",
    bytes: "binary",
}


def kind_of(value: Any) -> str:
    """Return what a value is, in words."""
    return _KINDS.get(type(value), "a value of another type")


def _divide_int(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder_int(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_float(left: float, right: float) -> float:
    if right:
        return left / right
    if left != left or left == 0:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _remainder_float(left: float, right: float) -> float:
    try:
        return math.fmod(left, right)
    except ValueError:
        return math.nan


_ON_INT: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide_int,
    "%": _remainder_int,
}
_ON_FLOAT: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide_float,
    "%": _remainder_float,
}


def _concatenate(left: str, right: str) -> str:
    if len(left) + len(right) > TEXT_LENGTH_MAX:
        raise EvaluationError(f"a text is longer than {TEXT_LENGTH_MAX} characters")
    return left + right


#: What goes together besides numbers.
_OTHERS: Final[dict[tuple[str, type, type], Callable[[Any, Any], Any]]] = {
    ("+", str, str): _concatenate,
    ("-", DateTime, DateTime): lambda left, right: checked_span(left.ticks - right.ticks),
    ("+", DateTime, TimeSpan): lambda left, right: checked_date(left.ticks + right.ticks),
    ("-", DateTime, TimeSpan): lambda left, right: checked_date(left.ticks - right.ticks),
    ("+", TimeSpan, TimeSpan): lambda left, right: checked_span(left.ticks + right.ticks),
    ("-", TimeSpan, TimeSpan): lambda left, right: checked_span(left.ticks - right.ticks),
}


def calculate(sign: str, left: Any, right: Any) -> Any:
    """Return ``left sign right``.

    Raises:
        EvaluationError: Overflow, division by zero, or kinds that don't go together.
    """
    if left is None or right is None:
        return None
    kind, other = type(left), type(right)
    if kind is int and other is int:
        return checked_int(_ON_INT[sign](checked_int(left), checked_int(right)))
    if kind in (int, float) and other in (int, float):
        return _ON_FLOAT[sign](float(left), float(right))
    found = _OTHERS.get((sign, kind, other))
    if found is None:
        raise EvaluationError(f"{kind_of(left)} {sign} {kind_of(right)} has no meaning")
    return found(left, right)


def signed(sign: str, value: Any) -> Any:
    """Return ``+value`` or ``-value``; raises EvaluationError as ``calculate``."""
    kind = type(value)
    if value is None or (sign == "+" and kind in (int, float, TimeSpan)):
        return value
    if kind is int:
        return checked_int(-value)
    if kind is float:
        return -value
    if kind is TimeSpan:
        return checked_span(-value.ticks)
    raise EvaluationError(f"{sign} of {kind_of(value)} has no meaning")
