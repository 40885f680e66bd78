"""Throttle: the rate of a namespace. Sends beyond it are refused, receivers are served later.

A refused send was not looked at, so it may be repeated. Who receives sees nothing but time: messages come as fast as
the rate allows, because an error would cost a link, and on a session the session. Part of each second is for
receivers alone, so that a queue is emptied faster than it is filled.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from duobus.clock import Clock
from duobus.errors import ServerBusy
from duobus.model.token_bucket import TokenBucket

#: Out of a hundred messages, those that only receivers may have when there are no more.
RESERVED_PERCENT = 30
#: Receivers that wait for the rate are served again when this part of a second's messages is there.
SERVED_EACH = 20

#: What the cloud's clients look for in the text of a throttled operation.
BUSY_CODE = 50009
BUSY_WAIT_S = 2


class ThrottledWaiter(Protocol):
    """A receiver that was granted nothing."""

    def rate_allows(self) -> None:
        """There is something to grant again."""


def busy(what: str) -> ServerBusy:
    """The refusal of an operation that was not looked at; every SDK waits and tries again."""
    return ServerBusy(
        f"The request was terminated because {what}. Error code: {BUSY_CODE}. "
        f"Please wait {BUSY_WAIT_S} seconds and try again."
    )


class Throttle:
    """The messages a second that one namespace may send and receive together.

    Attributes:
        namespace: Its name.
        rate: Messages a second.
    """

    __slots__ = ("_bucket", "_clock", "_reserve", "_timer", "_waiting", "namespace", "rate")

    def __init__(self, namespace: str, rate: int, clock: Clock) -> None:
        self.namespace = namespace
        self.rate = rate
        self._clock = clock
        # A second's worth may come at once.
        self._bucket = TokenBucket(rate, rate, clock.monotonic_ms())
        self._reserve = rate * RESERVED_PERCENT // 100
        self._waiting: dict[ThrottledWaiter, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, number: int) -> int:
        """How many of so many messages may be sent now, each for itself; they are counted."""
        now_ms = self._clock.monotonic_ms()
        admitted = max(0, min(number, self._bucket.room(now_ms) - self._reserve))
        self._bucket.take(admitted, now_ms)
        return admitted

    def admit_whole(self, number: int) -> bool:
        """Whether so many messages may be sent now as one; they are counted.

        More than there can ever be at once may go when nothing else has; those behind them wait for as long.
        """
        now_ms = self._clock.monotonic_ms()
        if self._bucket.room(now_ms) - self._reserve < min(number, self.rate - self._reserve):
            return False
        self._bucket.take(number, now_ms)
        return True

    def refusal(self) -> ServerBusy:
        """What is said to those who are not admitted."""
        return busy(f"the namespace '{self.namespace}' has used up its {self.rate} messages a second")

    def grant(self, receiver: ThrottledWaiter, number: int) -> int:
        """How many of so many messages a receiver may have now; with 0 it is asked again by itself."""
        now_ms = self._clock.monotonic_ms()
        granted = min(number, self._bucket.room(now_ms))
        if granted > 0:
            self._bucket.take(granted, now_ms)
            return granted
        self._waiting[receiver] = None
        if self._timer is None:
            wait_ms = self._bucket.wait_ms(max(1, self.rate // SERVED_EACH), now_ms)
            self._timer = asyncio.get_running_loop().call_later(max(1, wait_ms) / 1000, self._serve)
        return 0

    def give_back(self, number: int) -> None:
        """So many of what was granted were not handed out."""
        self._bucket.put_back(number)

    def _serve(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, {}
        for receiver in waiting:
            receiver.rate_allows()
