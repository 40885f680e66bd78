"""NamedMemo: a memo by those user properties alone that rules look at, for messages whose others are ever new.

An order's number or a time makes every message another one, and no rule asks for it. The key is made in one walk over
the application properties that decodes nothing: names and values stand in it as they are written. The walk makes sure
of what the quick reader (``quick.py``) would find out about the rest: that it can be read, and that no name comes
twice. So the promise of ``memo.py`` holds: messages with the same key give the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duobus.rules.memo import Memo, properties_part
from duobus.rules.message import fold
from duobus.rules.quick import APPLICATION, NO_PROPERTIES, PROPERTIES
from duobus.rules.system import APPLICATION_SECTION, PROPERTIES_SECTION

#: Names of which it is remembered whether a rule asks for them; beyond, the table starts anew.
NAMES_MAX: Final = 1024

#: Bytes of a value with its code: what the quick reader reads of these kinds cannot fail.
_WIDTHS: Final = {0x40: 1, 0x41: 1, 0x42: 1, 0x54: 2, 0x55: 2, 0x71: 5, 0x81: 9, 0x82: 9, 0x83: 9}


class NamedMemo(Memo):
    """See the module's docstring.

    Args:
        names: Folded names that rules look at; its owner changes it, and calls ``start`` then.
    """

    __slots__ = ("_asked_for", "_names")

    def __init__(self, names: Mapping[str | None, int]) -> None:
        super().__init__()
        self._names = names
        # By the bytes of a name.
        self._asked_for: dict[bytes, bool] = {}

    def start(self, sections: int, *, with_id: bool) -> None:
        """See ``Memo.start``. Without application properties in it, the key would be that of the other memo."""
        super().start(sections if sections & APPLICATION_SECTION else 0, with_id=with_id)
        if self._asked_for:
            self._asked_for = {}

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

    def _walk(self, payload: bytes) -> bytes | None:
        """The properties that rules ask for, each telling its own length, and a byte with which none begins."""
        start = payload[:4]
        pos = 5 + payload[4] if start == PROPERTIES else 4 if start == NO_PROPERTIES else 0
        if payload[pos : pos + 4] != APPLICATION:
            return None
        end = pos + 5 + payload[pos + 4]
        pairs = payload[pos + 5]
        pos += 6
        asked_for = self._asked_for
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
            elif code in _WIDTHS:
                pos += _WIDTHS[code]
            else:
                return None
            if asked_for[name] if name in asked_for else self._asks_for(name):
                key += payload[begin:pos]
        if pos != end or end > len(payload) or pairs != 2 * len(seen):
            return None
        return key + b"\x00"

    def _asks_for(self, name: bytes) -> bool:
        found = fold(name.decode()) in self._names
        if len(self._asked_for) >= NAMES_MAX:
            self._asked_for.clear()
        self._asked_for[name] = found
        return found
