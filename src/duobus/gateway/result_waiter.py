"""Waiting: a mailbox for a call that waits for a few results instead of a link that lives on."""

from __future__ import annotations

import asyncio
from typing import Any

from duobus.model.batches import Mailbox


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
