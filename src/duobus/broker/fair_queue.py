"""FairQueue: messages that wait for a store, a queue for each entity, so that none waits behind all of another's (I62).

What waits for a commit waits in order of its coming. Of one entity that is a quarter of a commit at most; whatever else
comes for it stands in a line of its own, and moves up as its messages are taken, the lines in turn. So a message of
another entity meets the rest of what waits before it in the next commit or the one after, however much is sent to its
neighbour, and an entity that has the store for itself fills its commits all the same.

Only messages stand in line. What settles, removes or moves messages is bounded by what was delivered, and the order
between that and new messages is nobody's: a message can be settled when it was stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from duobus.fragment.commands import Command
from duobus.fragment.send import Run

#: Messages and bytes of one entity that wait among those of others: a quarter of what a commit takes.
AHEAD_MESSAGES: Final = 500
AHEAD_BYTES: Final = 256 << 10


class _EntityQueue:
    """What waits for one entity: messages and bytes that are ahead, among those of others, and the runs behind."""

    __slots__ = ("ahead", "ahead_bytes", "runs")

    def __init__(self) -> None:
        self.ahead = 0
        self.ahead_bytes = 0
        self.runs: deque[Run] = deque()


class FairQueue:
    """The lines of one message broker.

    Attributes:
        number: Runs that stand behind, in all lines.
    """

    __slots__ = ("_behind", "_lines", "number")

    def __init__(self) -> None:
        self.number = 0
        self._lines: dict[int, _EntityQueue] = {}
        # Entities of which something is behind, in the order of their turns.
        self._behind: deque[int] = deque()

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[Run]:
        """What stands behind, those of an entity in their order."""
        for entity in self._behind:
            yield from self._lines[entity].runs

    @staticmethod
    def is_short(line: _EntityQueue) -> bool:
        """Whether another run may go ahead; the one that passes the bound may."""
        return line.ahead < AHEAD_MESSAGES and line.ahead_bytes < AHEAD_BYTES

    def join(self, run: Run) -> bool:
        """A run has come: whether it goes ahead at once; otherwise it stands behind now."""
        entity = run.handle.entity_id
        line = self._lines.get(entity)
        if line is None:
            line = self._lines[entity] = _EntityQueue()
        if not line.runs:
            if self.is_short(line):
                number, size = run.share
                line.ahead += number
                line.ahead_bytes += size
                return True
            self._behind.append(entity)
        line.runs.append(run)
        self.number += 1
        return False

    def left(self, run: Run) -> None:
        """A run that was ahead was taken, or given up."""
        entity = run.handle.entity_id
        line = self._lines.get(entity)
        if line is None:
            return
        number, size = run.share
        line.ahead -= number
        line.ahead_bytes -= size
        if not (line.runs or line.ahead > 0):
            del self._lines[entity]

    def move_up(self, pending: deque[Command]) -> None:
        """Let runs go ahead, one of each entity in turn, until none may."""
        behind = self._behind
        turns = len(behind)
        while turns:
            entity = behind.popleft()
            line = self._lines[entity]
            turns -= 1
            if not self.is_short(line):
                behind.append(entity)
                continue
            run = line.runs.popleft()
            self.number -= 1
            number, size = run.share
            line.ahead += number
            line.ahead_bytes += size
            pending.append(run)
            if line.runs:
                behind.append(entity)
                turns = len(behind)

    def clear(self) -> list[Run]:
        """Give up all lines; what stood behind, in order. What was ahead is not counted any more."""
        runs = list(self)
        self.number = 0
        self._lines.clear()
        self._behind.clear()
        return runs
