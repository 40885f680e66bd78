"""Shapes: what rules gave for messages in a row that are alike but for values which no rule asks for.

A publisher's messages have the same properties in the same order; an order's number or a time differs, and nothing
asks for it. So a section of application properties is read as one large number, and a mask takes out of it what does
not matter: the values that nobody asks for, of texts all but the highest bit of each byte, which tells that it is
ASCII. Names, kinds, lengths and the values that rules name stay in. What is left is looked up for a whole run of
messages in calls of the interpreter's own, without a line of Python for each.

The promise is that of ``result_cache.py``: messages with the same number left are read by the quick reader
(``property_reader.py``) to the same values as far as rules go. Sections of the same length and number of properties
have their masks together, since more cannot be told before a mask is tried.

The numbers' hashes are no secret, so a publisher can choose values that meet in a table. All tables together hold some
300 entries (``BYTES_MAX``), by far not enough for that to cost more than a look at the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import and_
from typing import TYPE_CHECKING, Final

from duobus.rules.matching.property_cache import WIDTHS
from duobus.rules.matching.result_cache import BYTES_MAX, ENTRY_BYTES, JUDGED_AFTER, REST, SOURCE_BYTES, WORTH_FROM
from duobus.rules.message_view import casefold_name
from duobus.rules.property_reader import APPLICATION, NO_PROPERTIES, PROPERTIES

if TYPE_CHECKING:
    from duobus.rules.rule import Match

#: Masks for sections of one length and number of properties; beyond, they start again.
MASKS_MAX: Final = 4
#: Bytes of a section before its first property.
_HEAD_BYTES: Final = 6

#: By mask: what is left of a section to its match.
Masks = dict[int, dict[int, "Match"]]


class Shapes:
    """Matches by what is left of application properties, for one state of the rules that look at nothing else.

    Args:
        names: Folded names that rules look at; its owner changes it, and calls ``start`` then.

    Attributes:
        is_on: The rules look at application properties by their names, and at nothing else.
        rest: For how many messages more it is not asked, because it found too little.
    """

    __slots__ = ("_asked", "_bytes", "_found", "_masks", "_names", "is_on", "rest")

    def __init__(self, names: Mapping[str | None, int]) -> None:
        self._names = names
        self.is_on = False
        # By the two bytes that tell a section's length and its number of names and values.
        self._masks: dict[bytes, Masks] = {}
        self._bytes = 0
        self._asked = self._found = self.rest = 0

    def start(self, *, is_on: bool) -> None:
        """Forget everything: the rules are others now."""
        self.is_on = is_on
        if self._masks:
            self._forget()

    def _forget(self) -> None:
        self._masks = {}
        self._bytes = 0

    def fill(self, payloads: Sequence[bytes], found: list[Match | None]) -> int:
        """Put what is known into a run's places that are None; returns how many it was."""
        if not self.is_on or not (self._masks or self.rest):
            # Nothing is known, which says nothing of what may become known.
            return 0
        if self.rest:
            self.rest = max(0, self.rest - found.count(None))
            return 0
        # Matches are true, and quicker asked for that than compared with None.
        if not any(found):
            wanted = len(found)
            found[:] = self._known(payloads)
            filled = wanted if all(found) else wanted - found.count(None)
        else:
            places = [place for place, match in enumerate(found) if match is None]
            wanted, filled = len(places), 0
            for place, match in zip(places, self._known([payloads[place] for place in places]), strict=True):
                if match is not None:
                    found[place] = match
                    filled += 1
        self._judge(wanted, filled)
        return filled

    def _known(self, payloads: Sequence[bytes]) -> list[Match | None]:
        """What is known for each of several messages."""
        heads = {payload[:5] for payload in payloads}
        if len(heads) == 1:
            middle = _middle(heads.pop())
            lengths = {payload[middle + 4 : middle + 6] for payload in payloads}
            if len(lengths) == 1:
                return self._alike(payloads, middle, lengths.pop())
        found: list[Match | None] = [None] * len(payloads)
        groups: dict[tuple[int, bytes], list[int]] = {}
        for place, payload in enumerate(payloads):
            middle = _middle(payload[:5])
            groups.setdefault((middle, payload[middle + 4 : middle + 6]), []).append(place)
        for (middle, length), places in groups.items():
            for place, match in zip(
                places, self._alike([payloads[place] for place in places], middle, length), strict=True
            ):
                found[place] = match
        return found

    def _alike(self, payloads: Sequence[bytes], middle: int, length: bytes) -> list[Match | None]:
        """The same, for messages whose sections begin at the same place and have the same length."""
        masks = self._masks.get(length)
        end = middle + 5 + length[0] if masks else 0
        if not masks or min(map(len, payloads)) < end:
            return [None] * len(payloads)
        numbers = [*map(int.from_bytes, [payload[middle:end] for payload in payloads])]
        found: list[Match | None] = [None] * len(payloads)
        for mask, known in masks.items():
            more = [*map(known.get, map(and_, numbers, repeat(mask)))]
            found = more if not any(found) else [old or new for old, new in zip(found, more, strict=True)]
            if all(found):
                break
        return found

    def learn(self, payload: bytes, match: Match) -> None:
        """Note the match of a message, unless it holds what has to be looked at in each message."""
        if not self.is_on or self.rest or match.errors is not None or match.altered:
            return
        middle = _middle(payload[:5])
        length = payload[middle + 4 : middle + 6]
        if len(length) < 2:
            return
        section = payload[middle : middle + 5 + length[0]]
        try:
            mask = mask_of(section, self._names)
        except (IndexError, UnicodeDecodeError):
            return
        if mask is None:
            return
        size = ENTRY_BYTES + 2 * len(section) + SOURCE_BYTES * len(match.sources)
        if self._bytes + size > BYTES_MAX:
            self._forget()
        masks = self._masks.setdefault(length, {})
        if mask not in masks and len(masks) >= MASKS_MAX:
            masks.clear()
        masks.setdefault(mask, {})[int.from_bytes(section, "big") & mask] = match
        self._bytes += size

    def _judge(self, asked: int, found: int) -> None:
        self._asked += asked
        self._found += found
        if self._asked >= JUDGED_AFTER:
            if self._found * JUDGED_AFTER < WORTH_FROM * self._asked:
                self.rest = REST
                self._forget()
            self._asked = self._found = 0


def _middle(start: bytes) -> int:
    """Where the application properties of a message begin that begins with these five bytes, if it has any."""
    if start[:4] == PROPERTIES and len(start) > 4:
        return 5 + start[4]
    return 4 if start[:4] == NO_PROPERTIES else 0


def mask_of(section: bytes, names: Mapping[str | None, int]) -> int | None:
    """Return what matters of a section of application properties; None when it is the codec's to read, all of it.

    Raises:
        IndexError: The section ends within a property.
        UnicodeDecodeError: A name, or a text that rules ask for, is none.
    """
    if section[:4] != APPLICATION or len(section) != 5 + section[4]:
        return None
    mask = bytearray(b"\xff" * len(section))
    seen: set[bytes] = set()
    pos = _HEAD_BYTES
    end = len(section)
    while pos < end:
        if section[pos] != 0xA1:
            return None
        first = pos + 2
        pos = first + section[pos + 1]
        name = section[first:pos]
        seen.add(name)
        is_asked_for = casefold_name(name.decode()) in names
        code = section[pos]
        if code == 0xA1:
            first = pos + 2
            pos = first + section[pos + 1]
            if is_asked_for:
                section[first:pos].decode()
            elif section[first:pos].isascii():
                mask[first:pos] = b"\x80" * (pos - first)
            else:
                return None
        elif code in WIDTHS:
            first = pos + 1
            pos += WIDTHS[code]
            if not is_asked_for:
                mask[first:pos] = bytes(pos - first)
        else:
            return None
    if pos != end or section[5] != 2 * len(seen):
        return None
    return int.from_bytes(mask, "big")
