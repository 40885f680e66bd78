"""Memo: what rules gave for properties that were seen before, so that a stream of like messages is read once.

The key is bytes of the message, never more than rules look at: the application properties, and of the properties
section everything behind the message-id, which differs from message to message. Two messages with the same key are
decoded by the quick reader to the same values, or the key is None; so a result of the one is a result of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.codec import MADE_ID_SIZE, has_made_id
from duobus.rules.property_reader import APPLICATION, NO_PROPERTIES, PROPERTIES
from duobus.rules.system_properties import APPLICATION_SECTION, PROPERTIES_SECTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.rules.rule import Match

#: Bytes that the memo of one topic takes, about; what goes beyond makes it start again.
BYTES_MAX: Final = 131_072
#: Of an entry, beside its key and its sources: the key's head, the match, the tuple, and room in the table.
ENTRY_BYTES: Final = 320
#: Of a source in a match.
SOURCE_BYTES: Final = 8

#: After so many look-ups it is judged: with less than a quarter of them found it costs more than it saves.
JUDGED_AFTER: Final = 512
#: So many of them.
WORTH_FROM: Final = JUDGED_AFTER // 4
#: Messages for which it then rests, so that those with ever new properties hardly pay for it.
REST: Final = 16_384


class Memo:
    """Matches by key, for one state of the rules.

    Attributes:
        sections: Those that rules need decoded (bits of ``duobus.rules.system_properties``), or 0: nothing may be kept.
        with_id: A rule looks at the message-id.
        rest: For how many messages more it is not asked, because it found too little.
    """

    __slots__ = ("_asked", "_bytes", "_found", "_known", "rest", "sections", "with_id")

    def __init__(self) -> None:
        self.sections = 0
        self.with_id = False
        self._known: dict[bytes, Match] = {}
        self._bytes = 0
        self._asked = self._found = self.rest = 0

    def start(self, sections: int, *, with_id: bool) -> None:
        """Forget everything: the rules are others now."""
        self.sections = sections
        self.with_id = with_id
        if self._known:
            self._known = {}
            self._bytes = 0

    def key(self, payload: bytes) -> bytes | None:
        """Return what the rules' result depends on; None when it rests, or the message is for the codec to read."""
        if self.rest:
            self.rest -= 1
            return None
        sections = self.sections
        try:
            key = b""
            if sections & APPLICATION_SECTION:
                # First, because it tells its own length: then two keys are equal only part by part.
                start = payload[:4]
                middle = 5 + payload[4] if start == PROPERTIES else 4 if start == NO_PROPERTIES else 0
                if payload[middle : middle + 4] != APPLICATION:
                    return None
                end = middle + 5 + payload[middle + 4]
                if end > len(payload):
                    return None
                key = payload[middle:end]
            if sections & PROPERTIES_SECTION:
                part = properties_part(payload, with_id=self.with_id)
                return None if part is None else key + part
        except IndexError:
            return None
        return key

    def find(self, key: bytes) -> Match | None:
        """Return what is known for a key."""
        found = self._known.get(key)
        self.judge(1, found is not None)
        return found

    def find_run(self, payloads: Sequence[bytes]) -> list[Match | None]:
        """Return what is known for each of several messages, most of which are like the one before; or None."""
        if self.sections != APPLICATION_SECTION or self.rest:
            return [None] * len(payloads)
        find = self._known.get
        found: list[Match | None] = []
        add = found.append
        key = b""
        match: Match | None = None
        for payload in payloads:
            start = payload[:4]
            # Too short for what it begins with, it has no application properties there either.
            middle = 5 + payload[4] if start == PROPERTIES and len(payload) > 4 else 4 if start == NO_PROPERTIES else 0
            if match is None or not payload.startswith(key, middle):
                # The section tells its own length: who begins with the same bytes has the same one.
                key = payload[middle : middle + 5 + payload[middle + 4]] if len(payload) > middle + 4 else b""
                match = find(key)
            add(match)
        known = len(found) - found.count(None)
        if known:
            # Those that are not known are asked for again, one by one, and counted then.
            self.judge(known, known)
        return found

    def passed_over(self, number: int) -> None:
        """Count messages of a run that are known elsewhere."""
        if self.rest:
            self.rest = max(0, self.rest - number)
        else:
            self.judge(number, 0)

    def judge(self, asked: int, found: int) -> None:
        """Count look-ups, and rest when too little is found."""
        self._asked += asked
        self._found += found
        if self._asked >= JUDGED_AFTER:
            if self._found < WORTH_FROM:
                self.rest = REST
                self._known = {}
                self._bytes = 0
            self._asked = self._found = 0

    def keep(self, key: bytes, match: Match) -> None:
        """Note the match of a message with this key, all of which the quick reader has read."""
        size = ENTRY_BYTES + len(key) + SOURCE_BYTES * len(match.sources)
        if self._bytes + size > BYTES_MAX:
            self._known = {}
            self._bytes = 0
        self._known[key] = match
        self._bytes += size


def properties_part(payload: bytes, *, with_id: bool) -> bytes | None:
    """Return what a key holds of the properties section; None when the codec has to read it.

    Raises:
        IndexError: The message ends within it.
    """
    if payload[:4] != PROPERTIES:
        return None
    end = 5 + payload[4]
    if end > len(payload):
        return None
    first = 6
    if not with_id and payload[5]:
        # The id has to be one that cannot fail, since what it is won't be looked at.
        if payload[6] == 0xA1:
            first = 8 + payload[7]
            if first > end or not payload[8:first].isascii():
                return None
        elif payload[6] == 0x40:
            first = 7
        elif has_made_id(payload):
            # Always as long, and plain digits.
            first = 11 + MADE_ID_SIZE
            if first > end:
                return None
        else:
            return None
    return payload[5:6] + payload[first:end]
