"""NamedMemo: a memo by those user properties alone that rules look at, for messages whose others are ever new.

An order's number or a time makes every message another one, and no rule asks for it. The key is made in one walk over
the application properties that decodes nothing: names and values stand in it as they are written. The walk makes sure
of what the quick reader (``property_reader.py``) would find out about the rest: that it can be read, and that no name
comes twice. So the promise of ``result_cache.py`` holds: messages with the same key give the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duobus.rules.matching.result_cache import Memo, properties_part
from duobus.rules.message_view import casefold_name
from duobus.rules.property_reader import APPLICATION, NO_PROPERTIES, PROPERTIES
from duobus.rules.system_properties import APPLICATION_SECTION, PROPERTIES_SECTION

#: Names of which it is remembered whether a rule asks for them; beyond, the table starts again.
NAMES_MAX: Final = 1024

#: Bytes of a value with its code: what the quick reader reads of these kinds cannot fail.
WIDTHS: Final = {0x40: 1, 0x41: 1, 0x42: 1, 0x54: 2, 0x55: 2, 0x71: 5, 0x81: 9, 0x82: 9, 0x83: 9}


class NamedMemo(Memo):
    """See the module's docstring.

    Args:
        names: Folded names that rules look at; its owner changes it, and calls ``start`` then.
    """

    __slots__ = ("_asked_for", "_kept", "_key", "_names", "_texts")

    def __init__(self, names: Mapping[str | None, int]) -> None:
        super().__init__()
        self._names = names
        # By the bytes of a name.
        self._asked_for: dict[bytes, bool] = {}
        # The message that was walked over last: stretches that make its key, the texts between that make none, each
        # by its place in the section, and the key. One with the same stretches differs in values that nobody asks for.
        self._kept: list[tuple[int, bytes]] = []
        self._texts: list[tuple[int, int]] = []
        self._key = b""

    def start(self, sections: int, *, with_id: bool) -> None:
        """See ``Memo.start``. Without application properties in it, the key would be that of the other memo."""
        super().start(sections if sections & APPLICATION_SECTION else 0, with_id=with_id)
        if self._asked_for:
            self._asked_for = {}
        self._kept = []

    def key(self, payload: bytes) -> bytes | None:
        """Return what the rules' result depends on; None when it rests, or the message is for the codec to read."""
        if self.rest:
            self.rest -= 1
            return None
        try:
            key = self._walk(payload)
            if key is not None and self.sections & PROPERTIES_SECTION:
                part = properties_part(payload, with_id=self.with_id)
                return None if part is None else key + part
        except (IndexError, UnicodeDecodeError):
            return None
        return key

    def _walk(self, payload: bytes) -> bytes | None:  # noqa: C901 - one walk without calls
        """The properties that rules ask for, each telling its own length, and a byte with which none begins."""
        start = payload[:4]
        pos = 5 + payload[4] if start == PROPERTIES else 4 if start == NO_PROPERTIES else 0
        if payload[pos : pos + 4] != APPLICATION:
            return None
        if self._kept and self._is_alike(payload, pos):
            return self._key
        middle = pos
        end = pos + 5 + payload[pos + 4]
        pairs = payload[pos + 5]
        pos += 6
        asked_for = self._asked_for
        kept: list[tuple[int, bytes]] = []
        texts: list[tuple[int, int]] = []
        same_from = middle
        # Every name, so that one that comes twice is noticed.
        seen: dict[bytes, None] = {}
        key = b""
        while pos < end:
            begin = pos
            if payload[pos] != 0xA1:
                return None
            pos += 2 + payload[pos + 1]
            name = payload[begin + 2 : pos]
            seen[name] = None
            code = payload[pos]
            if code == 0xA1:
                first = pos + 2
                pos = first + payload[pos + 1]
                if not payload[first:pos].isascii():
                    return None
            elif code in WIDTHS:
                pos += WIDTHS[code]
            else:
                return None
            if asked_for[name] if name in asked_for else self._asks_for(name):
                key += payload[begin:pos]
            else:
                # Everything up to the value, with its code and, of a text, its length.
                value = pos - (payload[begin + 3 + len(name)] if code == 0xA1 else WIDTHS[code] - 1)
                kept.append((same_from - middle, payload[same_from:value]))
                if code == 0xA1:
                    texts.append((value - middle, pos - middle))
                same_from = pos
        if pos != end or end > len(payload) or pairs != 2 * len(seen):
            return None
        kept.append((same_from - middle, payload[same_from:end]))
        self._kept, self._texts, self._key = kept, texts, key + b"\x00"
        return self._key

    def _is_alike(self, payload: bytes, middle: int) -> bool:
        """Whether the walk would come to the same key as the last time."""
        for place, stretch in self._kept:
            if not payload.startswith(stretch, middle + place):
                return False
        for first, last in self._texts:
            if not payload[middle + first : middle + last].isascii():
                return False
        return len(payload) >= middle + self._kept[-1][0] + len(self._kept[-1][1])

    def _asks_for(self, name: bytes) -> bool:
        found = casefold_name(name.decode()) in self._names
        if len(self._asked_for) >= NAMES_MAX:
            self._asked_for.clear()
        self._asked_for[name] = found
        return found
