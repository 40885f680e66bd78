"""Correlation filters: equality of every field that is given (Azure: topic filters)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.model.descriptions import TypedValue
from duobus.rules.language.closures import is_guid_like
from duobus.rules.language.literals import VALUE_LENGTH_MAX, VALUES_MAX, parse_typed
from duobus.rules.message_view import MessageView
from duobus.rules.system_properties import APPLICATION_SECTION, PLACES, section_of
from duobus.rules.values import DateTime, TimeSpan

#: A field of a message: place of a system property, or name of a user property.
Field = int | str

#: Characters of a property's name.
NAME_LENGTH_MAX: Final = 1024

#: Members of a correlation filter, in lower case; the label is called subject by newer SDKs.
_MEMBERS: Final = frozenset(
    (
        "contenttype",
        "correlationid",
        "label",
        "subject",
        "messageid",
        "replyto",
        "replytosessionid",
        "sessionid",
        "to",
    )
)
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{0,15}[1-9])?", re.ASCII)
_PLAIN: Final = (int, float, str, bool)
#: Characters of the texts that may have another key than themselves: booleans and GUIDs (``key_of``).
CASEFOLD_LENGTHS: Final = frozenset((4, 5, 36))


def read_field(message: MessageView, field: Field) -> Any:
    """Return the value of a field, None when the message has none."""
    if isinstance(field, int):
        return message.system[field]
    user = message.user
    found = user.get(field)
    return user.get(field.lower()) if found is None and field not in user else found


def parse_correlation(members: Mapping[str, Any]) -> dict[Field, Any]:
    """Return field to value of a correlation filter, as ``RuleDescription.correlation_filter`` holds it.

    Raises:
        ArgumentInvalid: A member is unknown or has the wrong type, or nothing is given.
        ArgumentOutOfRange: A text is too long, or there are too many properties.
    """
    fields: dict[Field, Any] = {}
    for member, value in members.items():
        low = member.lower()
        if value is None:
            continue
        if low == "properties":
            fields.update(_properties(value))
        elif low not in _MEMBERS:
            raise ArgumentInvalid(
                f"A correlation filter has no {member[:64]!r}; it has ContentType, CorrelationId, Label, MessageId, "
                "ReplyTo, ReplyToSessionId, SessionId, To, and Properties for everything else."
            )
        elif not isinstance(value, str):
            raise ArgumentInvalid(f"{member} of a correlation filter is a string, not a {type(value).__name__}.")
        else:
            _check_length(member, value)
            fields[PLACES[low]] = value
    if not fields:
        raise ArgumentInvalid(
            "A correlation filter has to name at least one property; for every message use a True filter."
        )
    return fields


def _check_length(name: str, text: str) -> None:
    if len(text) > VALUE_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"{name[:64]!r} of a correlation filter has {len(text)} characters; at most {VALUE_LENGTH_MAX} are allowed."
        )


def _properties(properties: Any) -> dict[Field, Any]:
    if not isinstance(properties, Mapping):
        raise ArgumentInvalid("Properties of a correlation filter map names to values.")
    if len(properties) > VALUES_MAX:
        raise ArgumentOutOfRange(
            f"A correlation filter names {len(properties)} properties; at most {VALUES_MAX} are allowed."
        )
    found: dict[Field, Any] = {}
    for name, value in properties.items():
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
            raise ArgumentInvalid(f"A property's name has 1 to {NAME_LENGTH_MAX} characters.")
        # Null is no value to compare with: such a property counts as left out, as a member that is null does.
        if value is not None:
            found[name] = _property(name, value)
    return found


def _property(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        # How a TypedValue comes back out of the catalog.
        try:
            value = msgspec.convert(value, TypedValue)
        except msgspec.ValidationError as error:
            raise ArgumentInvalid(f"The value of {name[:64]!r} is not understood: {error}.") from None
    if isinstance(value, TypedValue):
        value = parse_typed(name, value)
    elif type(value) not in _PLAIN:
        raise ArgumentInvalid(f"The value of {name[:64]!r} is a string, number or boolean.")
    if isinstance(value, str):
        _check_length(name, value)
    if isinstance(value, bytes) or value != value:
        raise ArgumentInvalid(f"The value of {name[:64]!r} is never equal to anything; leave it out.")
    return value


# -- equality ---------------------------------------------------------------------------------------------------------


def key_of(value: Any) -> object:
    """Return what values that may be equal have in common, for a hash table; None where nothing is ever equal.

    The key is coarser than equality: a candidate is still compared.
    """
    kind = type(value)
    if kind is str:
        if len(value) in CASEFOLD_LENGTHS:
            low = value.lower()
            if low in ("true", "false") or is_guid_like(value):
                return low
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return str(int(value)) if value.is_integer() else repr(value)
    if kind is uuid.UUID:
        return str(value)
    return value if kind in (DateTime, TimeSpan) else None


def correlates(wanted: Any, found: Any) -> bool:
    """Whether a filter's value equals a message's: strings exactly, numbers by value.

    A filter's string also equals a number, boolean or GUID of which it is the text: some clients can send strings
    only. The reverse does not hold: a filter's number never equals a string.
    """
    kind, other = type(wanted), type(found)
    if kind is other or (kind in (int, float) and other in (int, float)):
        return bool(wanted == found)
    if kind is not str:
        return False
    if other is bool:
        return bool(wanted.lower() == ("true" if found else "false"))
    if other in (int, float):
        return bool(_NUMBER.fullmatch(wanted)) and key_of(found) == wanted
    return other is uuid.UUID and wanted.lower() == str(found)


class CorrelationTest:
    """A correlation filter as a function of the message; an object, since there may be 100,000.

    Attributes:
        fields: Field to value.
        sections: What it needs decoded.
    """

    __slots__ = ("fields", "sections")

    def __init__(self, fields: dict[Field, Any]) -> None:
        self.fields = fields
        self.sections = 0
        for field in fields:
            self.sections |= section_of(field) if isinstance(field, int) else APPLICATION_SECTION

    def __call__(self, message: MessageView) -> bool:
        """Whether every field of the message is as wanted."""
        for field, wanted in self.fields.items():
            found = message.system[field] if isinstance(field, int) else message.user.get(field)
            if found is None:
                found = read_field(message, field)
            if type(found) is str is type(wanted):
                if found != wanted:
                    return False
            elif found is None or not correlates(wanted, found):
                return False
        return True
