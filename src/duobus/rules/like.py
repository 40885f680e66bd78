"""LIKE without regular expressions: no pattern and no text makes it slow (Azure: SQL filter syntax, decision 0048).

A pattern is cut at its ``%`` into segments, and each is looked for from where the one before ended; the leftmost place
is always good enough, so that nothing is ever tried twice. How a segment is found depends on the text:

- A segment without ``_`` is found by ``str.find``.
- One with ``_`` in a short text by a bit-parallel automaton: one step per character of the text (shift-and).
- Otherwise by the places of its characters. A long text knows for each character where it stands, as the bits of one
  large number (``Letters``); shifted by the character's offset in the segment and joined by "and", these numbers leave
  the places where the segment begins. That is one step for each character of the segment, begun with those that are
  rarest in the text, and it ends when nothing is left, after three or four as a rule. The numbers of a text are made
  once for all rules that look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: Stands for ``_`` in a segment; other members are characters.
_ANY: Final = None

#: Up to so many characters a text is short: a few microseconds for the automaton, whatever the pattern.
SHORT: Final = 64
#: What has no ``_`` is looked for by ``str.find`` in texts shorter than this, and by the first few patterns that look
#: at a text: numbers for its characters have to pay.
_FOUND_BELOW: Final = 4_096
_FOUND_FIRST: Final = 4
#: The characters of a segment that are joined before ``str.find`` goes on from the first place that is left.
_CANDIDATES_BEFORE_FIND: Final = 8
#: ``str.find`` compares each character with each of a segment, at worst, unless the text has this length: then it takes
#: an algorithm whose time is linear. A text is made longer where the worst would be more than this.
_LINEAR_FROM: Final = 30_000
_WORST_FIND: Final = 100_000
#: Characters of a text of which the places are kept: what rules ask for.
_PLACES_MAX: Final = 256

#: Costs, in comparisons of one character (about a nanosecond): of anything that is done at all, of joining the places
#: of one character (by the characters of the text), of finding these places, and of a look at one place.
STEP: Final = 100
_JOIN_SHARE: Final = 8
_PLACES_TIMES: Final = 2

#: Takes the cost of work that is about to be done; may raise to stop it.
Spend = Callable[[int], None]

_ZEROS: Final = b"0" * 256


class PatternError(ValueError):
    """A pattern or escape character that is none; the text says why."""


def _for_free(cost: int) -> None:
    """Whoever asks for one match by itself."""


class Letters:
    """A long text, ready for many patterns.

    Args:
        text: The text.
        spend: Takes the cost of all work on it.

    Attributes:
        text: The text.
        spend: See above.
        asked: How many patterns have looked at it.
    """

    __slots__ = ("_padded", "_places", "_planes", "asked", "spend", "text")

    def __init__(self, text: str, spend: Spend = _for_free) -> None:
        self.text = text
        self.spend = spend
        self.asked = 0
        self._padded = ""
        # By character: how often it is there, and where, as bits.
        self._places: dict[str, tuple[int, int]] = {}
        # The bytes of all characters, lowest first, from the end of the text; none: they are not made yet.
        self._planes: list[bytes] = []

    def places(self, character: str) -> tuple[int, int]:
        """How often a character is there, and where: bit by bit, the lowest for the beginning."""
        known = self._places.get(character)
        if known is not None:
            return known
        if not self._planes:
            self._planes = self._made_planes()
        self.spend(STEP + _PLACES_TIMES * len(self.text) * len(self._planes))
        code = ord(character)
        bits = 0 if code >> 8 * len(self._planes) else -1
        for shift, plane in enumerate(self._planes):
            byte = code >> 8 * shift & 0xFF
            if not bits or byte not in plane:
                bits = 0
                break
            table = _ZEROS[:byte] + b"1" + _ZEROS[byte + 1 :]
            bits &= int(plane.translate(table), 2)
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        found = self._places[character] = bits.bit_count(), bits
        return found

    def _made_planes(self) -> list[bytes]:
        text = self.text
        self.spend(STEP + 4 * len(text))
        if text.isascii():
            return [text.encode()[::-1]]
        wide = text.encode("utf-32-le", "surrogatepass")
        planes = [wide[shift::4][::-1] for shift in range(3)]
        while len(planes) > 1 and planes[-1].count(0) == len(text):
            planes.pop()
        return planes

    def find(self, part: str, start: int) -> int:
        """What ``str.find`` gives, in linear time."""
        text, size = self.text, len(part)
        room = len(text) - start
        if size < 2 or room * size <= _WORST_FIND or (room >= _LINEAR_FROM and size >= 6):
            found = text.find(part, start)
        else:
            if not self._padded:
                self._padded = text + "\0" * _LINEAR_FROM
            found = self._padded.find(part, start)
            if found + size > len(text):
                found = -1
        self.spend(STEP + (found - start if found >= 0 else max(room, 0)))
        return found


class _Segment:
    """Text without ``%``: found at a place, or from a place on."""

    __slots__ = ("_characters", "_final", "_masks", "_offsets", "_runs", "_text", "_wild", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self._characters = characters
        self.size = len(characters)
        self._text = None if _ANY in characters else "".join(filter(None, characters))
        # For the automaton, and for places, when they are asked for.
        self._masks: dict[str, int] | None = None
        self._wild = 0
        self._final = 0
        self._offsets: dict[str, list[int]] | None = None
        self._runs: list[tuple[int, str]] | None = None

    # -- at a place ---------------------------------------------------------------------------------------------

    def is_at(self, text: str, start: int) -> bool:
        """Whether it stands there."""
        if self._text is not None:
            return text.startswith(self._text, start)
        if start + self.size > len(text):
            return False
        return all(text.startswith(part, start + offset) for offset, part in self._made_runs())

    def _made_runs(self) -> list[tuple[int, str]]:
        """What stands between ``_``, each with its offset."""
        runs = self._runs
        if runs is None:
            runs = self._runs = []
            first = 0
            for index, character in enumerate([*self._characters, _ANY]):
                if character is _ANY:
                    if index > first:
                        runs.append((first, "".join(filter(None, self._characters[first:index]))))
                    first = index + 1
        return runs

    @property
    def looks(self) -> int:
        """How many comparisons of whole parts ``is_at`` makes at most."""
        return 1 if self._text is not None else len(self._made_runs())

    # -- from a place on ----------------------------------------------------------------------------------------

    def find(self, text: str, start: int) -> int:
        """Return the end of the leftmost occurrence in a short text from ``start`` on, or -1."""
        if self._text is not None:
            found = text.find(self._text, start)
            return -1 if found < 0 else found + self.size
        masks = self._masks
        if masks is None:
            masks = self._made_masks()
        wild, final = self._wild, self._final
        state = 0
        for index in range(start, len(text)):
            state = (state << 1 | 1) & masks.get(text[index], wild)
            if state & final:
                return index + 1
        return -1

    def _made_masks(self) -> dict[str, int]:
        self._final = 1 << max(0, self.size - 1)
        self._wild = sum(1 << index for index, character in enumerate(self._characters) if character is _ANY)
        masks = self._masks = {}
        for index, character in enumerate(self._characters):
            if character is not _ANY:
                masks[character] = masks.get(character, self._wild) | 1 << index
        return masks

    def find_among(self, letters: Letters, start: int) -> int:
        """Return the same for a long text."""
        text = letters.text
        part = self._text
        if part is not None and (len(text) < _FOUND_BELOW or self.size == 1 or letters.asked <= _FOUND_FIRST):
            found = letters.find(part, start)
        else:
            found = self._join(letters, start)
        return -1 if found < 0 else found + self.size

    def _join(self, letters: Letters, start: int) -> int:
        """Return where the segment begins for the first time from ``start`` on, by the places of its characters."""
        room = len(letters.text) - start - self.size
        if room < 0:
            return -1
        order = self._rarest_first(letters)
        if not order:
            # It consists of ``_``, or has a character that is nowhere.
            return start if not self._made_offsets() else -1
        spend, part = letters.spend, self._text
        cost = STEP + (room + self.size) // _JOIN_SHARE
        state = -1
        tried, look = 0, 4
        for character in order:
            _, bits = letters.places(character)
            for offset in self._made_offsets()[character]:
                spend(cost)
                state &= bits >> start + offset
                if not state:
                    return -1
                tried += 1
                if part is not None and tried >= _CANDIDATES_BEFORE_FIND:
                    return letters.find(part, start + _lowest(state))
                if tried == look:
                    # Where nearly everything fits, the first place does so as a rule.
                    look *= 2
                    spend(STEP * self.looks)
                    first = _lowest(state)
                    if self.is_at(letters.text, start + first):
                        return start + first
        first = _lowest(state)
        return start + first if first <= room else -1

    def _rarest_first(self, letters: Letters) -> list[str]:
        """The characters, those first that are in the fewest places; nothing when one of them is in none."""
        found = []
        letters.spend(STEP * len(self._made_offsets()))
        for character in self._made_offsets():
            number, _ = letters.places(character)
            if not number:
                return []
            found.append((number, character))
        found.sort()
        return [character for _, character in found]

    def _made_offsets(self) -> dict[str, list[int]]:
        """Each character with its offsets."""
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = {}
            for index, character in enumerate(self._characters):
                if character is not _ANY:
                    offsets.setdefault(character, []).append(index)
        return offsets


def _lowest(bits: int) -> int:
    """Place of the lowest bit."""
    return (bits & -bits).bit_length() - 1


class Pattern:
    """A pattern, ready to match.

    Args:
        text: The pattern.
        escape: The character that makes ``%``, ``_`` and itself literal, or None for none.

    Raises:
        PatternError: The escape is not one character, or stands before another than those.
    """

    __slots__ = ("_first", "_inner", "_last", "_least")

    def __init__(self, text: str, escape: str | None = None) -> None:
        segments = _cut(text, escape)
        self._first = _Segment(segments[0])
        self._last = None if len(segments) == 1 else _Segment(segments[-1])
        self._inner = [_Segment(segment) for segment in segments[1:-1] if segment]
        self._least = sum(map(len, segments))

    @property
    def strain(self) -> int:
        """By how much it makes a long text more work, at most: parts of a look at all of the text."""
        return 4 + self._least // _JOIN_SHARE

    def matches(self, text: str) -> bool:
        """Whether the whole text is of this form."""
        return self.matches_short(text) if len(text) <= SHORT else self.matches_letters(Letters(text))

    def matches_short(self, text: str) -> bool:
        """Whether a whole text of SHORT characters at most is of this form."""
        first, last = self._first, self._last
        if len(text) < self._least:
            return False
        if last is None:
            return len(text) == first.size and first.is_at(text, 0)
        end = len(text) - last.size
        if not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        position = first.size
        for segment in self._inner:
            position = segment.find(text, position)
            if position < 0 or position > end:
                return False
        return True

    def matches_letters(self, letters: Letters) -> bool:
        """Whether a whole long text is of this form."""
        text, first, last = letters.text, self._first, self._last
        if len(text) < self._least or (last is None and len(text) != first.size):
            return False
        letters.asked += 1
        letters.spend(STEP * (first.looks + (0 if last is None else last.looks)))
        if not first.is_at(text, 0):
            return False
        if last is None:
            return True
        end = len(text) - last.size
        if not last.is_at(text, end):
            return False
        position = first.size
        for segment in self._inner:
            position = segment.find_among(letters, position)
            if position < 0 or position > end:
                return False
        return True


def _cut(text: str, escape: str | None) -> list[list[str | None]]:
    if escape is not None and len(escape) != 1:
        raise PatternError(f"ESCAPE takes one character, not {len(escape)}")
    segments: list[list[str | None]] = [[]]
    characters = iter(text)
    for character in characters:
        if character == escape:
            literal = next(characters, "")
            if literal not in ("%", "_", escape):
                what = f"before {literal!r}" if literal else "at the end"
                raise PatternError(f"the escape character {escape!r} stands {what}; only %, _ and itself can follow it")
            segments[-1].append(literal)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(_ANY if character == "_" else character)
    return segments
