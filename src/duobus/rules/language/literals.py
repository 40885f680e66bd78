"""Values with a declared type, as they come with a rule: parameters and properties of correlation filters."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from duobus.codec import Byte, Float32, Int, Short, Timestamp, UByte, UInt, ULong, UShort
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import TypedValue
from duobus.rules.language.parser import check_text
from duobus.rules.values import (
    TICKS_PER_MS,
    TICKS_PER_SECOND,
    DateTime,
    EvaluationError,
    TimeSpan,
    checked_int,
    checked_span,
    from_amqp,
    to_amqp,
)

#: Characters of one value; a rule's text has no more either.
VALUE_LENGTH_MAX: Final = 1024
#: Parameters of one filter or action, and properties of one correlation filter.
VALUES_MAX: Final = 128

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DATE_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):(\d\d))?", re.ASCII
)
_DURATION: Final = re.compile(
    r"(-)?P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})D)?"
    r"(T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?",
    re.ASCII,
)
#: A year is 365 days and a month 30, as .NET has it.
_DAYS: Final = (365, 30, 1)


def _fraction(digits: str | None) -> int:
    return int((digits or "0").ljust(7, "0")[:7])


def _date_time(text: str) -> DateTime:
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    instant = datetime.datetime(*(int(part) for part in found.groups()[:6]), tzinfo=datetime.UTC)  # type: ignore[misc, arg-type]
    seconds = (instant - _EPOCH) // datetime.timedelta(seconds=1)
    if found[9]:
        # Without a zone it is UTC.
        offset = 60 * (60 * int(found[10]) + int(found[11]))
        seconds -= -offset if found[9] == "-" else offset
    return DateTime(seconds * TICKS_PER_SECOND + _fraction(found[7]))


def _duration(text: str) -> TimeSpan:
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError(text)
    days = sum(int(part or 0) * factor for part, factor in zip(found.groups()[1:4], _DAYS, strict=True))
    hours, minutes, seconds = (int(found[index] or 0) for index in (6, 7, 8))
    ticks = (days * 86_400 + hours * 3600 + minutes * 60 + seconds) * TICKS_PER_SECOND + _fraction(found[9])
    return checked_span(-ticks if found[1] else ticks)


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text]


def _integer(text: str) -> int:
    # int() takes more than a number's digits.
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise ValueError(text)
    return checked_int(int(text))


def _number(text: str) -> float:
    if text in ("INF", "-INF", "NaN"):
        return float(text)
    if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text):
        raise ValueError(text)
    return float(text)


def _binary(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        ("byte", "short", "int", "long", "integer", "unsignedByte", "unsignedShort", "unsignedInt", "unsignedLong"),
        _integer,
    ),
    **dict.fromkeys(("double", "float", "decimal"), _number),
    "boolean": _boolean,
    "dateTime": _date_time,
    "duration": _duration,
    "guid": uuid.UUID,
    "base64Binary": _binary,
}


def parse_typed(name: str, value: TypedValue) -> Any:
    """Return the value as expressions see it; a type that is not known is a string.

    Raises:
        ArgumentInvalid: The text is none of its type, or too long; the error names what it is the value of.
    """
    if len(value.value) > VALUE_LENGTH_MAX:
        raise ArgumentInvalid(
            f"The value of {name[:64]!r} has {len(value.value)} characters; at most {VALUE_LENGTH_MAX} are allowed."
        )
    parse = _PARSERS.get(value.type)
    if parse is None:
        check_text(value.value, f"The value of {name[:64]!r}")
        return value.value
    try:
        return parse(value.value.strip())
    except (ValueError, KeyError, OverflowError, binascii.Error, EvaluationError):
        raise ArgumentInvalid(
            f"The value of {name[:64]!r} is no {value.type}: {value.value[:64]!r}. Write it as XML schema does."
        ) from None


def parse_parameters(values: Mapping[str, TypedValue] | None) -> dict[str, Any]:
    """Return parameters by lower-case name without ``@``; raises ArgumentInvalid as ``parse_typed``."""
    if values is None:
        return {}
    if len(values) > VALUES_MAX:
        raise ArgumentInvalid(f"{len(values)} parameters are given; at most {VALUES_MAX} are allowed.")
    return {name.removeprefix("@").lower(): parse_typed(name, value) for name, value in values.items()}


# -- from and to AMQP -------------------------------------------------------------------------------------------------

_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "long",
    Int: "int",
    Short: "short",
    Byte: "byte",
    UByte: "unsignedByte",
    UShort: "unsignedShort",
    UInt: "unsignedInt",
    ULong: "unsignedLong",
    float: "double",
    Float32: "float",
}
_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": Int,
    "short": Short,
    "byte": Byte,
    "unsignedByte": UByte,
    "unsignedShort": UShort,
    "unsignedInt": UInt,
    "unsignedLong": ULong,
    "float": Float32,
}


def typed_value(raw: Any) -> TypedValue:
    """Return a value of the codec with its type declared, as ``add-rule`` brings it.

    Raises:
        ArgumentInvalid: It has no such form.
    """
    value = from_amqp(raw)
    kind = type(value)
    if kind is bool:
        return TypedValue("boolean", "true" if value else "false")
    if kind in (int, float):
        return TypedValue(_TYPE_NAMES.get(type(raw), "long" if kind is int else "double"), _number_text(value))
    if kind is str:
        return TypedValue("string", value)
    if kind is uuid.UUID:
        return TypedValue("guid", str(value))
    if kind is DateTime:
        return TypedValue("dateTime", _date_text(value))
    if kind is TimeSpan:
        return TypedValue("duration", _duration_text(value))
    if kind is bytes:
        return TypedValue("base64Binary", base64.b64encode(value).decode())
    raise ArgumentInvalid(
        f"A value of type {kind.__name__} cannot stand in a rule; use a text, number, boolean or date."
    )


def amqp_value(name: str, value: TypedValue) -> Any:
    """Return a typed value as the codec writes it; raises ArgumentInvalid as ``parse_typed``."""
    parsed = parse_typed(name, value)
    if type(parsed) in (DateTime, TimeSpan):
        return Timestamp(parsed.ticks // TICKS_PER_MS) if type(parsed) is DateTime else to_amqp(parsed)
    make = _KINDS.get(value.type)
    return parsed if make is None else make(parsed)


def _number_text(value: float) -> str:
    text = repr(value)
    return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(text, text)


def _date_text(value: DateTime) -> str:
    seconds, ticks = divmod(value.ticks, TICKS_PER_SECOND)
    try:
        instant = _EPOCH + datetime.timedelta(seconds=seconds)
    except OverflowError:
        raise ArgumentInvalid("A date is outside the years 1 to 9999.") from None
    fraction = f".{ticks:07d}".rstrip("0").rstrip(".")
    return f"{instant:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + fraction + "Z"


def _duration_text(value: TimeSpan) -> str:
    seconds, ticks = divmod(abs(value.ticks), TICKS_PER_SECOND)
    fraction = f".{ticks:07d}".rstrip("0").rstrip(".")
    days, seconds = divmod(seconds, 86_400)
    return f"{'-' if value.ticks < 0 else ''}P{days}DT{seconds}{fraction}S"
