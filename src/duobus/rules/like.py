"""LIKE without regular expressions: time grows with the text alone, whatever the pattern (HTTP contract E.4).

A pattern is cut at its ``%`` into segments, and each is looked for from where the one before ended; the leftmost place
is always good enough, so that nothing is ever tried twice. A segment without ``_`` is found by ``str.find``, one with
``_`` by a bit-parallel automaton (one step per character of the text: shift-and, one bit per place of the segment).
"""

from __future__ import annotations

from typing import Final

#: Stands for ``_`` in a segment; other members are characters.
_ANY: Final = None


class PatternError(ValueError):
    """A pattern or escape character that is none; the text says why."""


class _Segment:
    """Text without ``%``: found at a place, or from a place on."""

    __slots__ = ("_characters", "_final", "_masks", "_text", "_wild", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self._characters = characters
        self.size = len(characters)
        self._text = None if _ANY in characters else "".join(filter(None, characters))
        self._final = 1 << max(0, self.size - 1)
        self._wild = sum(1 << index for index, character in enumerate(characters) if character is _ANY)
        self._masks: dict[str, int] = {}
        for index, character in enumerate(characters):
            if character is not _ANY:
                self._masks[character] = self._masks.get(character, self._wild) | 1 << index

    def is_at(self, text: str, start: int) -> bool:
        if self._text is not None:
            return text.startswith(self._text, start)
        if start + self.size > len(text):
            return False
        return all(
            character is _ANY or character == text[start + index] for index, character in enumerate(self._characters)
        )

    def find(self, text: str, start: int) -> int:
        """Return the end of the leftmost occurrence from ``start`` on, or -1."""
        if self._text is not None:
            found = text.find(self._text, start)
            return -1 if found < 0 else found + self.size
        masks, wild, final = self._masks, self._wild, self._final
        state = 0
        for index in range(start, len(text)):
            state = (state << 1 | 1) & masks.get(text[index], wild)
            if state & final:
                return index + 1
        return -1


class Pattern:
    """A pattern, ready to match.

    Args:
        text: The pattern.
        escape: The character that makes ``%``, ``_`` and itself literal, or None for none.

    Raises:
        PatternError: The escape is not one character, or stands before another than those.
    """

    __slots__ = ("_first", "_inner", "_last")

    def __init__(self, text: str, escape: str | None = None) -> None:
        segments = _cut(text, escape)
        self._first = _Segment(segments[0])
        self._last = None if len(segments) == 1 else _Segment(segments[-1])
        self._inner = [_Segment(segment) for segment in segments[1:-1] if segment]

    def matches(self, text: str) -> bool:
        """Whether the whole text is of this form."""
        first, last = self._first, self._last
        if last is None:
            return len(text) == first.size and first.is_at(text, 0)
        end = len(text) - last.size
        if end < first.size or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        position = first.size
        for segment in self._inner:
            position = segment.find(text, position)
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
