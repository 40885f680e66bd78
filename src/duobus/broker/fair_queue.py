"""FairQueue: messages that wait for a store, a queue for each entity, so that none waits behind all of another's (I62).

What waits for a commit waits in order of its coming. Of one entity that is a quarter of a commit at most; whatever else
comes for it stands in a line of its own, and moves up as its messages are taken, the lines in turn. So a message of
another entity meets the rest of what waits before it in the next commit or the one after, however much is sent to its
neighbour, and an entity that has the store for itself fills its commits all the same.

Only messages stand in line. What settles, removes or moves messages is bounded by what was delivered, and the order
between that and new messages is nobody's: a message can be settled when it was stored.

Beyond a bound on what waits for one fragment that fragment says "busy", while the others go on (PE17). Credit keeps
every single sender far below the bound; reaching it means that many send to one fragment, because it is the only one or
because they have one key, and faster than its store writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from duobus.broker.admission import busy
from duobus.errors import ServerBusy
from duobus.fragment.commands import Command
from duobus.fragment.send import Run

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle

#: Messages, and their bytes, that may wait for one fragment: one to two seconds of work at the measured rates
#: (docs/explanation/performance.md). For less than that it is better to let a sender wait. The run that passes the
#: bound is taken, so that the largest message always finds room.
FRAGMENT_MESSAGES_MAX = 50_000
FRAGMENT_BYTES_MAX = 64 << 20
#: Commands in waiting at one store; a sender's credit keeps their number far below, so reaching it means overload.
PENDING_MAX = 100_000

#: Messages and bytes of one entity that wait among those of others: a quarter of what a commit takes.
AHEAD_MESSAGES: Final = 500
AHEAD_BYTES: Final = 256 << 10


def is_full(handle: FragmentHandle) -> bool:
    """Whether a fragment takes no further run for now."""
    return handle.waiting >= FRAGMENT_MESSAGES_MAX or handle.waiting_bytes >= FRAGMENT_BYTES_MAX


class _EntityQueue:
    """What waits for one entity: messages and bytes that are ahead, among those of others, and the runs behind."""

    __slots__ = ("ahead", "ahead_bytes", "runs")

    def __init__(self, ahead: int, ahead_bytes: int) -> None:
        self.ahead = ahead
        self.ahead_bytes = ahead_bytes
        # One that nobody stands behind has no deque, which would be most of what there is to make for a message.
        self.runs: deque[Run] | None = None


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
            yield from self._lines[entity].runs or ()

    @staticmethod
    def is_short(line: _EntityQueue) -> bool:
        """Whether another run may go ahead; the one that passes the bound may."""
        return line.ahead < AHEAD_MESSAGES and line.ahead_bytes < AHEAD_BYTES

    def join(self, run: Run, pending: deque[Command]) -> ServerBusy | None:
        """A run has come: it goes ahead to ``pending`` or stands behind now, unless this says why it may not wait."""
        handle: FragmentHandle = run.handle
        waiting = handle.waiting
        if waiting >= FRAGMENT_MESSAGES_MAX or handle.waiting_bytes >= FRAGMENT_BYTES_MAX:
            return busy(f"{waiting} messages wait for fragment {handle.number} of this entity")
        if len(pending) + self.number >= PENDING_MAX:
            return busy("too many operations wait for this messaging store")
        number, size = run.share
        handle.waiting = waiting + number
        handle.waiting_bytes += size
        entity = handle.entity_id
        line = self._lines.get(entity)
        if line is None:
            self._lines[entity] = _EntityQueue(number, size)
            pending.append(run)
            return None
        if not line.runs:
            if self.is_short(line):
                line.ahead += number
                line.ahead_bytes += size
                pending.append(run)
                return None
            line.runs = deque()
            self._behind.append(entity)
        line.runs.append(run)
        self.number += 1
        return None

    def left(self, run: Run) -> None:
        """A run waits no longer: it was ahead and was taken, or was given up."""
        handle: FragmentHandle = run.handle
        number, size = run.share
        handle.waiting -= number
        handle.waiting_bytes -= size
        line = self._lines.get(handle.entity_id)
        if line is not None:
            line.ahead -= number
            line.ahead_bytes -= size
            if not (line.runs or line.ahead > 0):
                del self._lines[handle.entity_id]

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
            runs = line.runs
            assert runs is not None
            run = runs.popleft()
            self.number -= 1
            number, size = run.share
            line.ahead += number
            line.ahead_bytes += size
            pending.append(run)
            if runs:
                behind.append(entity)
                turns = len(behind)

    def clear(self) -> list[Run]:
        """Give up all lines; what stood behind, in order. What was ahead is not counted any more."""
        runs = list(self)
        self.number = 0
        self._lines.clear()
        self._behind.clear()
        return runs
