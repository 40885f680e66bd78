"""PiggybackWrites: what a message broker's next commit writes beside the decisions of its own fragments.

A fragment that is moved here from another store comes in such pieces (``fragment_moves/move.py``): they share the
commits of all others, so that they cost no sync of their own and the numbers of commits stay in one hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duobus.storage.interface import CommitBatch

#: Puts rows into a commit.
Fill = Callable[["CommitBatch"], None]


class PiggybackWrites:
    """What waits for a commit, and what is in the one under way."""

    __slots__ = ("_aboard", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Fill, asyncio.Future[CommitBatch]]] = []
        self._aboard: list[asyncio.Future[CommitBatch]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fill: Fill) -> asyncio.Future[CommitBatch]:
        """Have ``fill`` called with the next commit; the future gets that commit when it is durable."""
        future: asyncio.Future[CommitBatch] = asyncio.get_running_loop().create_future()
        self._waiting.append((fill, future))
        return future

    def load(self, commit: CommitBatch) -> None:
        """A commit is about to be written."""
        waiting, self._waiting = self._waiting, []
        for fill, future in waiting:
            if not future.cancelled():
                fill(commit)
                self._aboard.append(future)

    def delivered(self, commit: CommitBatch) -> None:
        """It is durable."""
        aboard, self._aboard = self._aboard, []
        for future in aboard:
            if not future.cancelled():
                future.set_result(commit)

    def lost(self, error: Exception) -> None:
        """The store has failed: nothing of all this counts."""
        lost = self._aboard + [future for _, future in self._waiting]
        self._aboard, self._waiting = [], []
        for future in lost:
            if not future.cancelled():
                future.set_exception(error)
