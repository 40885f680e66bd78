"""TokenBucket: how much may still be done at a rate. Time is an argument; nothing is rounded away."""

from __future__ import annotations

#: Tokens are counted in thousandths: at a rate per second, each ms brings as many of them as the rate says.
_SCALE = 1000


class TokenBucket:
    """A bucket that fills at ``rate`` tokens a second up to ``size``.

    Attributes:
        rate: Tokens a second.
        size: Most that it holds.
    """

    __slots__ = ("_at_ms", "_level", "rate", "size")

    def __init__(self, rate: int, size: int, now_ms: int) -> None:
        """Make a full bucket."""
        self.rate = rate
        self.size = size
        self._level = size * _SCALE
        self._at_ms = now_ms

    def room(self, now_ms: int) -> int:
        """Whole tokens that are there; negative after more was taken than there was."""
        self._fill(now_ms)
        return self._level // _SCALE

    def take(self, number: int, now_ms: int) -> None:
        """Take tokens, whether they are there or not."""
        self._fill(now_ms)
        self._level -= number * _SCALE

    def put_back(self, number: int) -> None:
        """Give back what was taken and not used."""
        self._level = min(self.size * _SCALE, self._level + number * _SCALE)

    def wait_ms(self, number: int, now_ms: int) -> int:
        """How long it takes until there are ``number`` tokens, of which there cannot be more than ``size``."""
        self._fill(now_ms)
        missing = min(number, self.size) * _SCALE - self._level
        return max(0, -(-missing // self.rate))

    def _fill(self, now_ms: int) -> None:
        elapsed = now_ms - self._at_ms
        if elapsed > 0:
            self._at_ms = now_ms
            self._level = min(self.size * _SCALE, self._level + elapsed * self.rate)
