"""Reading the elements of a description: text to values, with an error that names the element."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.model.durations import parse_duration
from duobus.model.tiers import SIZES_MIB

#: Longest part of a wrong value that an error quotes, in characters.
_SHOWN: Final = 64
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_FRACTION: Final = re.compile(r"(\.\d{6})\d+", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


class Fields:
    """The elements of one description, whatever their order; unknown ones are never asked for (rule 0.13)."""

    __slots__ = ("node",)

    def __init__(self, node: Element) -> None:
        self.node = node

    def flag(self, name: str, default: bool) -> bool:
        """A boolean.

        Raises:
            ArgumentInvalid: It is another text; so for all of these.
        """
        text = (self.node.text_of(name) or "").strip()
        if not text:
            return default
        if text.lower() not in _FLAGS:
            raise _wrong(name, text, "true or false")
        return _FLAGS[text.lower()]

    def number(self, name: str, default: int) -> int:
        """A whole number."""
        text = (self.node.text_of(name) or "").strip()
        if not text:
            return default
        if not _NUMBER.fullmatch(text):
            raise _wrong(name, text, "a whole number")
        return int(text)

    def duration(self, name: str, default: int | None) -> int | None:
        """A duration in ms; None is for ever."""
        text = (self.node.text_of(name) or "").strip()
        if not text:
            return default
        try:
            return parse_duration(text)
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"{name}: {error}") from None

    def finite(self, name: str, default: int) -> int:
        """A duration that must end."""
        value = self.duration(name, default)
        if value is None:
            raise ArgumentInvalid(f"{name} cannot be infinite.")
        return value

    def instant(self, name: str) -> int:
        """A time in ms since the epoch; 0 when it is left out, or before that, which is how clients write none."""
        text = (self.node.text_of(name) or "").strip()
        if not text:
            return 0
        try:
            # Clients write up to seven digits of a second; six are understood.
            moment = datetime.fromisoformat(_FRACTION.sub(r"\1", text))
        except ValueError:
            raise _wrong(name, text, "a time like 2026-11-21T00:20:27Z") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        try:
            return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
        except OverflowError:
            return 0

    def text(self, name: str) -> str | None:
        """A text; an empty one reads as none, which is how some clients clear it (rule 0.27)."""
        return self.node.text_of(name) or None

    def word(self, name: str, default: str) -> str:
        """A text without blanks around it."""
        return (self.node.text_of(name) or "").strip() or default


def _wrong(name: str, text: str, wanted: str) -> ArgumentInvalid:
    return ArgumentInvalid(f"{name} is {text[:_SHOWN]!r}; it must be {wanted}.")


def size_of_one(asked: int, partitions: int, kept_mib: int | None) -> int:
    """Return the MaxSizeInMegabytes of one partition that a request asks for (Azure: quotas).

    A client that changes something else sends back what it has read, which is the size of all partitions together:
    taken for what it is.
    """
    if kept_mib is not None and asked == kept_mib * partitions:
        return kept_mib
    if asked not in SIZES_MIB and asked % partitions == 0 and asked // partitions in SIZES_MIB:
        return asked // partitions
    return asked
