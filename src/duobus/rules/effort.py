"""Effort: what the rules of a topic may cost for one message, counted and not timed (I62, decision 0048).

What a rule does with short values is bounded by the rule itself, and is not counted. What grows with the message is:
matching, comparing and joining long texts, and actions on messages with many properties. It is counted in comparisons
of one character, about a nanosecond each, so that the same message costs the same everywhere and every time.
"""

from __future__ import annotations

from typing import Any, Final

from duobus.rules.like import SHORT, STEP, Letters, Pattern, PatternError
from duobus.rules.property_reader import APPLICATION, NO_PROPERTIES, PROPERTIES
from duobus.rules.values import EvaluationError

#: What the rules of a topic may do for one message, some 40 ms: 2,000 rules that look for something in 64 KB take half.
EFFORT_MAX: Final = 40_000_000
#: What counts as one message of a commit: then a commit's messages take as long together as one message may.
EFFORT_OF_A_MESSAGE: Final = EFFORT_MAX // 2000

#: Texts, patterns and results of one message that are kept; beyond, they start again.
_TEXTS_MAX: Final = 32
_PATTERNS_MAX: Final = 64
_RESULTS_MAX: Final = 1_024
#: Of each character of a pattern that comes out of a message: it is cut in Python.
_CUT_COST: Final = 200

#: Of each byte of properties that the codec has to read, and of how many bytes at most: longer ones are refused before.
READ_COST: Final = 100
READ_BYTES: Final = 1 << 16

_LONG_APPLICATION: Final = b"\x00\x53\x74\xd1"
_LONG_PROPERTIES: Final = b"\x00\x53\x73\xd0"


class EffortExceeded(Exception):
    """The rules would do more for one message than they may."""

    def __init__(self) -> None:
        super().__init__(
            f"the rules would do more with its properties than they may for one message ({EFFORT_MAX} comparisons)"
        )


class Meter:
    """Counts.

    Attributes:
        spent: Since somebody set it to 0.
        was_exceeded: A message has cost more than it may, since somebody set it to False.
    """

    __slots__ = ("_left", "spent", "was_exceeded")

    def __init__(self) -> None:
        self.spent = 0
        self.was_exceeded = False
        self._left = EFFORT_MAX

    def begin(self) -> None:
        """The next message."""
        self._left = EFFORT_MAX

    def spend(self, cost: int) -> None:
        """Count what is about to be done.

        Raises:
            EffortExceeded: It is too much for this message.
        """
        self.spent += cost
        self._left -= cost
        if self._left < 0:
            self.was_exceeded = True
            raise EffortExceeded


class LongTexts:
    """The long texts of one message, and what is known of them.

    Args:
        meter: Counts what is done.

    Attributes:
        raw: Its application properties as the codec gives them, or None: nobody has asked yet.
        spend: Counts what is about to be done; may raise EffortExceeded.
    """

    __slots__ = ("_known", "_letters", "_patterns", "raw", "spend")

    def __init__(self, meter: Meter) -> None:
        self.raw: dict[str, Any] | None = None
        self.spend = meter.spend
        meter.begin()
        self._letters: dict[str, Letters] = {}
        self._patterns: dict[tuple[str, str | None], Pattern | PatternError] = {}
        self._known: dict[tuple[str, str, str | None], bool] = {}

    def like(self, text: str, pattern: Pattern) -> bool:
        """Whether a long text is of a form."""
        letters = self._letters.get(text)
        if letters is None:
            if len(self._letters) >= _TEXTS_MAX:
                self._letters.clear()
            letters = self._letters[text] = Letters(text, self.spend)
        return pattern.matches_letters(letters)

    def like_computed(self, text: str, pattern: str, escape: str | None) -> bool:
        """Whether a text, long or short, is of a form that came out of the message as well.

        Raises:
            EvaluationError: That is no pattern.
        """
        key = text, pattern, escape
        known = self._known.get(key)
        if known is not None:
            return known
        ready = self._pattern(pattern, escape)
        found = ready.matches_short(text) if len(text) <= SHORT else self.like(text, ready)
        if len(self._known) >= _RESULTS_MAX:
            self._known.clear()
        self._known[key] = found
        return found

    def _pattern(self, text: str, escape: str | None) -> Pattern:
        ready = self._patterns.get((text, escape))
        if ready is None:
            if len(self._patterns) >= _PATTERNS_MAX:
                self._patterns.clear()
            self.spend(STEP + _CUT_COST * len(text))
            try:
                ready = Pattern(text, escape)
            except PatternError as error:
                ready = error
            self._patterns[text, escape] = ready
        if isinstance(ready, PatternError):
            raise EvaluationError(str(ready)) from None
        return ready


def head_size(payload: bytes) -> int:
    """Bytes of a message in which rules look for something, at most: up to the end of its application properties."""
    start = payload[:4]
    if start == PROPERTIES and len(payload) > 4:
        pos = 5 + payload[4]
    elif start == NO_PROPERTIES:
        pos = 4
    elif start == _LONG_PROPERTIES:
        pos = 8 + int.from_bytes(payload[4:8], "big")
    else:
        pos = 0
    following = payload[pos : pos + 4]
    if following == _LONG_APPLICATION:
        pos += 8 + int.from_bytes(payload[pos + 4 : pos + 8], "big")
    elif following == APPLICATION:
        pos += 5 + payload[pos + 4] if len(payload) > pos + 4 else 5
    elif following[:2] != b"\x00\x53" or following[2:3] == b"\x74":
        # Not as the SDKs write it.
        pos = len(payload)
    return min(pos, len(payload))
