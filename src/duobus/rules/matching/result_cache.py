"""ResultCache: what rules gave for messages that were seen before, so that a stream of like messages is read once.

Two messages are alike when they differ only in what no rule asks for: the message-id, the value of an order number. So
the head of a message, which is everything up to the end of its application properties, is taken as one large number,
and a mask clears in it whatever does not matter. Names, kinds, lengths and the values that rules ask for stay in. Of a
text that no rule asks for, the highest bit of each byte stays, which tells that the text is ASCII. What is left is
looked up, for a whole run of messages in calls of the interpreter's own, without a line of Python for each.

The quick reader (``property_reader.py``) reads two messages with the same number left to the same values, as far as
rules go, since everything by which the reader decides how to go on is in that number. Only messages that the quick
reader has read are kept; so a result of the one is a result of the other.

The numbers' hashes are no secret, so a publisher can choose values that meet in a table. All tables together hold some
600 entries (``BYTES_MAX``), too few for that to cost more than some 25 microseconds a message.
"""

from __future__ import annotations

from itertools import repeat
from operator import and_, itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

from duobus.codec import MADE_ID_SIZE, has_made_id
from duobus.rules.message_view import casefold_name
from duobus.rules.property_reader import NO_PROPERTIES, PROPERTIES
from duobus.rules.system_properties import APPLICATION_SECTION, PROPERTIES_SECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from duobus.rules.rule import Match

K = TypeVar("K")
#: By mask: what is left of a head to its match.
Masks = dict[int, dict[int, "Match"]]

#: Bytes that the cache of one topic takes, about; what goes beyond makes it start again.
BYTES_MAX: Final = 262_144
#: Of an entry, beside its number and its sources: the match, the tuple, and room in the tables.
ENTRY_BYTES: Final = 320
#: Of a source in a match.
SOURCE_BYTES: Final = 8
#: Masks for heads of one length; beyond, they start again.
MASKS_MAX: Final = 4

#: After so many look-ups the cache is judged: with less than a quarter of them found it costs more than it saves.
JUDGED_AFTER: Final = 512
#: So many of them.
WORTH_FROM: Final = JUDGED_AFTER // 4
#: Messages for which it then rests, so that those with ever new properties hardly pay for it.
REST: Final = 16_384

#: Bytes of a value with its code, of the kinds that the quick reader can always read.
_WIDTHS: Final = {0x40: 1, 0x41: 1, 0x42: 1, 0x54: 2, 0x55: 2, 0x71: 5, 0x81: 9, 0x82: 9, 0x83: 9}
#: Bytes of a section before its first property or field.
_START_BYTES: Final = 6
#: What tells whether a message begins with properties, and how many bytes these take.
_START_OF: Final = itemgetter(slice(5))


class ResultCache:
    """Matches by what is left of a message's head, for one state of the rules.

    Args:
        names: Folded names of user properties that rules look at, None for any; its owner changes it, and calls
            ``start`` then.

    Attributes:
        rest: For how many messages more it is not asked, because it found too little.
    """

    __slots__ = ("_asked", "_bytes", "_found", "_masks", "_names", "_sections", "_with_id", "rest")

    def __init__(self, names: Mapping[str | None, int]) -> None:
        self._names = names
        self._sections = 0
        self._with_id = False
        # By the length of a head.
        self._masks: dict[int, Masks] = {}
        self._bytes = 0
        self._asked = self._found = self.rest = 0

    def start(self, sections: int, *, with_id: bool) -> None:
        """Forget everything: the rules are others now.

        Args:
            sections: Those that rules need decoded (bits of ``duobus.rules.system_properties``); 0: nothing is kept.
            with_id: A rule looks at the message-id.
        """
        self._sections = sections
        self._with_id = with_id
        if self._masks:
            self._forget()

    def _forget(self) -> None:
        self._masks = {}
        self._bytes = 0

    def find(self, payload: bytes) -> Match | None:
        """Return what is known for a message."""
        if not self._sections:
            return None
        if self.rest:
            self.rest -= 1
            return None
        begin, end = self._span(payload)
        head = payload[begin:end]
        # One that ends too soon tells of a length that no head of its length tells of.
        masks = self._masks.get(len(head))
        match = None if masks is None else _find_in(masks, head)
        self._asked += 1
        if match is not None:
            self._found += 1
        if self._asked >= JUDGED_AFTER:
            self._judge()
        return match

    def find_run(self, payloads: Sequence[bytes]) -> list[Match | None]:
        """Return for each of several messages, most of which are of one form, what is known; or None."""
        if self.rest or not self._masks or not payloads:
            return [None] * len(payloads)
        found = _in_groups([*map(_START_OF, payloads)], payloads, self._find_started)
        known = len(found) - found.count(None)
        # Those that are not known are asked for again, one by one, and counted then.
        self._asked += known
        self._found += known
        if self._asked >= JUDGED_AFTER:
            self._judge()
        return found

    def _find_started(self, start: bytes, payloads: Sequence[bytes]) -> list[Match | None]:
        """The same for messages whose properties take equally many bytes."""
        middle = _middle(start)
        begin = 0 if self._sections & PROPERTIES_SECTION else middle
        shortest = min(map(len, payloads))
        if not self._sections & APPLICATION_SECTION:
            return self._find_long(middle - begin, [payload[begin:middle] for payload in payloads])
        if shortest < middle + _START_BYTES:
            return [None] * len(payloads)

        def find_sized(size: int, part: Sequence[bytes]) -> list[Match | None]:
            end = middle + 5 + size
            return self._find_long(end - begin, [payload[begin:end] for payload in part])

        return _in_groups([*map(itemgetter(middle + 4), payloads)], payloads, find_sized)

    def _find_long(self, length: int, heads: list[bytes]) -> list[Match | None]:
        """What is known for heads of this length; some may be shorter, where a message ends too soon."""
        masks = self._masks.get(length)
        found: list[Match | None] = [None] * len(heads)
        if masks is None or min(map(len, heads)) < length:
            return found
        if heads.count(heads[0]) == len(heads):
            return [_find_in(masks, heads[0])] * len(heads)
        numbers = [*map(int.from_bytes, heads)]
        for mask, known in masks.items():
            more = [*map(known.get, map(and_, numbers, repeat(mask)))]
            # Matches are true.
            found = more if not any(found) else [old or new for old, new in zip(found, more, strict=True)]
            if all(found):
                break
        return found

    def _span(self, payload: bytes) -> tuple[int, int]:
        """Where the head of a message begins and ends, if the message is as it should be."""
        sections = self._sections
        start = payload[:4]
        middle = 5 + payload[4] if start == PROPERTIES and len(payload) > 4 else 4 if start == NO_PROPERTIES else 0
        end = middle
        if sections & APPLICATION_SECTION:
            end += 5 + payload[middle + 4] if len(payload) > middle + 4 else 5
        return 0 if sections & PROPERTIES_SECTION else middle, end

    def keep(self, payload: bytes, match: Match) -> None:
        """Note the match of a message of which the quick reader has read all that rules ask for.

        What has to be looked at in each message is not noted.
        """
        if not self._sections or self.rest or match.errors is not None or match.altered:
            return
        begin, end = self._span(payload)
        head = payload[begin:end]
        size = ENTRY_BYTES + 2 * len(head) + SOURCE_BYTES * len(match.sources)
        if self._bytes + size > BYTES_MAX:
            self._forget()
        mask = self._mask_of(head)
        masks = self._masks.setdefault(len(head), {})
        if mask not in masks and len(masks) >= MASKS_MAX:
            masks.clear()
        masks.setdefault(mask, {})[int.from_bytes(head) & mask] = match
        self._bytes += size

    def _mask_of(self, head: bytes) -> int:
        """Return what matters of a head that the quick reader has read."""
        mask = bytearray(b"\xff" * len(head))
        if self._sections & PROPERTIES_SECTION and not self._with_id:
            _mask_id(mask, head)
        if self._sections & APPLICATION_SECTION and None not in self._names:
            _mask_values(mask, head, _middle(head), self._names)
        return int.from_bytes(mask)

    def _judge(self) -> None:
        """Rest when too little was found since the last time."""
        if self._found * JUDGED_AFTER < WORTH_FROM * self._asked:
            self.rest = REST
            self._forget()
        self._asked = self._found = 0


def _middle(start: bytes) -> int:
    """Where the application properties of a message begin that begins with these bytes, if it has any."""
    if start[:4] == PROPERTIES and len(start) > 4:
        return 5 + start[4]
    return 4 if start[:4] == NO_PROPERTIES else 0


def _in_groups(
    keys: list[K], payloads: Sequence[bytes], find: Callable[[K, Sequence[bytes]], list[Match | None]]
) -> list[Match | None]:
    """Ask once for all messages with the same key, which as a rule are all."""
    if keys.count(keys[0]) == len(keys):
        return find(keys[0], payloads)
    groups: dict[K, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    found: list[Match | None] = [None] * len(keys)
    for key, places in groups.items():
        for place, match in zip(places, find(key, [payloads[place] for place in places]), strict=True):
            found[place] = match
    return found


def _find_in(masks: Masks, head: bytes) -> Match | None:
    number = int.from_bytes(head)
    for mask, known in masks.items():
        match = known.get(number & mask)
        if match is not None:
            return match
    return None


def _mask_id(mask: bytearray, head: bytes) -> None:
    """Take the text of a message-id out of a mask, all but what tells that it is ASCII."""
    first = last = _START_BYTES
    if has_made_id(head):
        first = 11
        last = first + MADE_ID_SIZE
    elif head[5] and head[6] == 0xA1:
        first = 8
        last = first + head[7]
    if head[first:last].isascii():
        mask[first:last] = b"\x80" * (last - first)


def _mask_values(mask: bytearray, head: bytes, middle: int, names: Mapping[str | None, int]) -> None:
    """Take the values out of a mask that no rule asks for; none behind one whose kind is not so common."""
    pos = middle + _START_BYTES
    while pos < len(head):
        first = pos + 2
        pos = first + head[pos + 1]
        is_asked_for = casefold_name(head[first:pos].decode()) in names
        code = head[pos]
        if code == 0xA1:
            first = pos + 2
            pos = first + head[pos + 1]
            if not is_asked_for and head[first:pos].isascii():
                mask[first:pos] = b"\x80" * (pos - first)
        elif code in _WIDTHS:
            first = pos + 1
            pos += _WIDTHS[code]
            if not is_asked_for:
                mask[first:pos] = bytes(pos - first)
        else:
            return
