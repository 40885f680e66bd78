"""Waits of the gateway: of a call for a few results, where no link lives on, and between slices of long work."""

from __future__ import annotations

import asyncio
from typing import Any

from duobus.model.batches import Mailbox

#: Between two slices of one connection. The loop's clock ticks in milliseconds when there is nothing else to do.
REST_S = 0.001


class ResultWaiter(Mailbox):
    """Collects what the broker releases until there is enough of it."""

    __slots__ = ("_expected", "_future")

    def __init__(self) -> None:
        super().__init__()
        self._expected = 0
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """See Mailbox."""
        if self._future is not None and not self._future.done() and len(self.ready) >= self._expected:
            self._future.set_result(None)

    async def results(self, expected: int) -> list[Any]:
        """Wait until ``expected`` results are there and return them in the order of their release."""
        if len(self.ready) < expected:
            self._expected = expected
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        return self.ready


class StepBudget:
    """Lets everybody else have their turns while somebody looks through much.

    Args:
        size: Steps of one slice; so many take half a millisecond.
    """

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    async def spend(self, steps: int = 1) -> None:
        """Say how many steps were done."""
        self._left -= steps
        if self._left <= 0:
            self._left = self._size
            await asyncio.sleep(REST_S)
