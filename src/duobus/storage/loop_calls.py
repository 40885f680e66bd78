"""LoopCall: a small commit that the event loop makes itself, at the end of a turn (decision 0078).

To hand a commit to a thread and to be told of its end takes some 0.1 ms, as long as the append and the sync of one
message. So a server's loop makes small commits itself, as long as the disk is quick; where one takes long all the same,
the loop goes on in another thread (``concurrency/spare_thread.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from duobus.storage.writers import outcome_of

#: Commits of less are made by the loop. Behind longer ones the disk has so much to do that the loop could read what
#: comes next; from YIELDS_BYTES on that is so if anything has come already.
LOOP_BYTES: Final = 128 << 10
YIELDS_BYTES: Final = 32 << 10
#: What a quick commit takes at the most, and what it takes for each of its bytes besides.
QUICK_S: Final = 0.0005
BYTE_S: Final = 10e-9
#: Of the mean of such parts: how much the last commit counts; more than what it is taken for at the most, so that one
#: that took long by chance does not decide; and with what a try begins.
SHARE: Final = 1 / 16
PART_MAX: Final = 4.0
FIRST_MEAN: Final = 0.5
#: How long threads make commits when the loop's were not quick, in seconds; twice as long after each try that shows the
#: same, up to PAUSE_MAX_S; behind one that has held up the loop itself, SLOW_PAUSE_S at least.
PAUSE_S: Final = 0.1
SLOW_PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 10.0


class TurnLoop(Protocol):
    """An event loop that makes calls of stores itself; that of a server (``server/turn_selector.py``)."""

    def may_block(self) -> bool:
        """Whether it would make one now."""

    def block(self, call: LoopCall) -> None:
        """Have a call made at the end of this turn."""


class LoopPace:
    """Whether the commits of a store are quick enough for the loop to make them.

    Attributes:
        paused_until_s: Until then threads make them; on the loop's clock.
    """

    __slots__ = ("_mean", "_pause_s", "paused_until_s")

    def __init__(self) -> None:
        self.paused_until_s = 0.0
        self._pause_s = PAUSE_S
        # Of what commits have taken, in parts of what a quick one takes at the most.
        self._mean = FIRST_MEAN

    def note(self, took_s: float, size: int, now_s: float, *, is_slow: bool) -> None:
        """Note a commit of ``size`` bytes that the loop has made; ``is_slow``: it held up the loop itself."""
        part = min(took_s / (QUICK_S + size * BYTE_S), PART_MAX)
        self._mean += SHARE * (part - self._mean)
        if is_slow:
            self._pause_s = max(self._pause_s, SLOW_PAUSE_S)
        elif self._mean < 1:
            if self._mean < FIRST_MEAN:
                self._pause_s = PAUSE_S
            return
        self.paused_until_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._mean = FIRST_MEAN


class LoopCall:
    """A commit that the loop makes; see ``concurrency.spare_thread.BlockingCall``.

    Args:
        call: Makes it.
        size: The bytes that it takes in.
        now_s: The loop's time.
        finish: Gets the outcome, in the loop: the result, the error, and how many seconds it took.
        pass_on: Called in the loop when a thread is to make it.

    Attributes:
        yields: A thread is to make it if the loop has anything else to do.
    """

    __slots__ = ("_call", "_error", "_finish", "_now_s", "_result", "_took_s", "pass_on", "yields")

    def __init__(
        self,
        call: Callable[[], Any],
        size: int,
        now_s: Callable[[], float],
        *,
        finish: Callable[[Any, BaseException | None, float], None],
        pass_on: Callable[[], None],
    ) -> None:
        self.yields = size >= YIELDS_BYTES
        self.pass_on = pass_on
        self._call = call
        self._now_s = now_s
        self._finish = finish

    def run(self) -> None:
        """Make the commit."""
        begun_s = self._now_s()
        self._result, self._error = outcome_of(self._call)
        self._took_s = self._now_s() - begun_s

    def finish(self) -> None:
        """Announce the outcome."""
        self._finish(self._result, self._error, self._took_s)
