"""The listeners of hybrid connections: who there is, whose turn it is, and who is to be dropped. Pure.

Time comes in as milliseconds, and randomness as a function.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from duobus.gateway.relay.refusals import RelayRefusal
from duobus.model.relay.limits import (
    LISTENERS_MAX,
    LISTENS_PER_S,
    MISSED_ANSWERS_MAX,
    MISSED_PINGS_MAX,
    PING_S,
    RATES_MAX,
)

ListenerT = TypeVar("ListenerT")

#: From a number of choices to one of them, 0 and up.
Draw = Callable[[int], int]

_PING_MS: Final = round(PING_S * 1000)


class Vigil:
    """Whether a listener is alive, by its pongs and its answers.

    Attributes:
        missed_answers: Requests in a row that were not answered in time.
    """

    __slots__ = ("_missed_pings", "_next_ms", "missed_answers")

    def __init__(self, now_ms: int) -> None:
        self._next_ms = now_ms + _PING_MS
        self._missed_pings = 0
        self.missed_answers = 0

    def ponged(self) -> None:
        """The listener has answered a ping, or said anything else."""
        self._missed_pings = 0

    def answered(self) -> None:
        """The listener has answered a request."""
        self._missed_pings = 0
        self.missed_answers = 0

    def left_unanswered(self) -> bool:
        """A request got no answer in time; return whether the listener is to be cut off."""
        self.missed_answers += 1
        return self.missed_answers >= MISSED_ANSWERS_MAX

    def is_ping_due(self, now_ms: int) -> bool:
        """Whether a ping is to be sent now, which is counted as missed until something comes."""
        if now_ms < self._next_ms or self.is_dead(now_ms):
            return False
        self._next_ms = now_ms + _PING_MS
        self._missed_pings += 1
        return True

    def is_dead(self, now_ms: int) -> bool:
        """Whether as many pings were missed as may be, and the time for the last one is over."""
        return self._missed_pings >= MISSED_PINGS_MAX and now_ms >= self._next_ms


class Listeners(Generic[ListenerT]):
    """The listeners of one hybrid connection."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: list[ListenerT] = []

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> list[ListenerT]:
        """Every one of them."""
        return list(self._all)

    def add(self, listener: ListenerT, path: str) -> None:
        """Register one more.

        Raises:
            RelayRefusal: There are as many as there may be.
        """
        if len(self._all) >= LISTENERS_MAX:
            raise RelayRefusal(503, f"The hybrid connection '{path}' has {LISTENERS_MAX} listeners, which is the most.")
        self._all.append(listener)

    def remove(self, listener: ListenerT) -> bool:
        """Forget one, so that no sender is sent to it; return whether it was there."""
        is_there = listener in self._all
        if is_there:
            self._all.remove(listener)
        return is_there

    def choose(self, draw: Draw, is_fit: Callable[[ListenerT], bool]) -> ListenerT | None:
        """One of those that are fit, at random; None when there is none."""
        fit = [listener for listener in self._all if is_fit(listener)]
        return fit[draw(len(fit))] if fit else None


class HandshakeRates:
    """How often each key has come within the last second; those that came least recently are forgotten."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def allows(self, key: Hashable, now_ms: int) -> bool:
        """Count one more handshake; return whether it is within the rate."""
        times = [at_ms for at_ms in self._seen.pop(key, []) if at_ms > now_ms - 1000]
        is_within = len(times) < LISTENS_PER_S
        self._seen[key] = [*times, now_ms] if is_within else times
        if len(self._seen) > RATES_MAX:
            self._seen.popitem(last=False)
        return is_within
