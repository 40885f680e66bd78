"""The one place where time and randomness come in.

Everything stored or compared is ``int`` milliseconds since the Unix epoch, UTC (the unit of AMQP
timestamps). Engines never hold a clock: they get ``now_ms`` with the command. Simulation replaces
``Clock`` and ``Entropy`` and nothing else.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Final

# A 5 minute lock (the longest the service allows) may be off by at most 1 s while broker time is
# slewed towards the wall clock (I58): 300 s / 400 = 0.75 s.
SLEW_DIVISOR = 400


class Clock:
    """The operating system's clocks."""

    def now_ms(self) -> int:
        """Return wall clock time; it may jump in both directions."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return a time that only ever grows; its zero means nothing."""
        return time.monotonic_ns() // 1_000_000


#: Ids that are drawn at once.
_DRAWN_AHEAD: Final = 64


class Entropy:
    """The operating system's randomness."""

    # What ``uuid_text`` has drawn ahead.
    _drawn = b""

    def token(self, size: int) -> bytes:
        """Return ``size`` unguessable bytes."""
        return os.urandom(size)

    def number(self, bits: int) -> int:
        """Return an unguessable integer of at most ``bits`` bits."""
        return int.from_bytes(os.urandom((bits + 7) // 8), "big") >> (-bits % 8)

    def uuid(self) -> uuid.UUID:
        """Return a random UUID, version 4."""
        return uuid.UUID(bytes=self.token(16), version=4)

    def uuid_text(self) -> str:
        """Return the 32 digits of one, for what is made by the thousand and is no secret.

        The random bytes are drawn ahead: asking the operating system gives other threads the interpreter.
        """
        if not self._drawn:
            self._drawn = self.token(16 * _DRAWN_AHEAD)
        digits, self._drawn = self._drawn[-16:].hex(), self._drawn[:-16]
        return f"{digits[:12]}4{digits[13:16]}{'89ab'[int(digits[16], 16) & 3]}{digits[17:]}"


class BrokerTime:
    """Time as the broker counts it: never back, deaf to jumps of the wall clock (I58).

    It starts at the later of the last committed broker time and the wall clock, advances with the
    monotonic clock, and is slewed towards the wall clock by at most one part in SLEW_DIVISOR.
    """

    __slots__ = ("_clock", "_fraction", "_last_monotonic", "_now")

    def __init__(self, clock: Clock, committed_ms: int = 0) -> None:
        self._clock = clock
        self._now = max(clock.now_ms(), committed_ms)
        self._last_monotonic = clock.monotonic_ms()
        self._fraction = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing may happen any more, in what another server has by now."""
        return False

    def raise_to(self, committed_ms: int) -> None:
        """Never run behind what a store has recorded; called when one is opened."""
        self._now = max(self._now, committed_ms)

    def now_ms(self) -> int:
        """Return broker time; equal or later than every value returned before."""
        monotonic = self._clock.monotonic_ms()
        elapsed = monotonic - self._last_monotonic
        if elapsed <= 0:
            return self._now
        self._last_monotonic = monotonic
        now = self._now + elapsed
        ahead = now - self._clock.now_ms()
        if ahead:
            # Whole milliseconds of slew are paid out as the elapsed time earns them.
            self._fraction += elapsed
            budget, self._fraction = divmod(self._fraction, SLEW_DIVISOR)
            now -= max(-budget, min(budget, ahead))
        else:
            self._fraction = 0
        self._now = max(self._now, now)
        return self._now
