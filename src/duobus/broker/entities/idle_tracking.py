"""When queues were used: what AccessedAt tells, and AutoDeleteOnIdle, by which unused ones are deleted (I42).

A use is a send, an open receiver, a peek or another operation by number; a queue with scheduled messages is in use, and
so is one of which a store is away, since nobody can look. One timer serves all queues. After a restart the time begins
anew: an entity is never deleted early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from duobus.broker.entities.queue import LastUse, Queue
from duobus.errors import ServiceBusError

if TYPE_CHECKING:
    from duobus.clock import BrokerTime

#: Hears of a queue before it is deleted, and may refuse. What it returns hears what came of it: None when it is gone.
Journal = Callable[[Queue], Callable[[str | None], None]]

#: How soon the timer looks again at the earliest, and at the latest.
LOOK_MIN_S, LOOK_MAX_S = 1.0, 3600.0


def last_access_ms(queue: Queue) -> int:
    """When a queue was sent to, received from or looked into last (``AccessedAt``); 0 for never.

    Whoever has a receiver or a session open uses it now.
    """
    clock = queue.idle
    if clock is None:
        return 0
    if any(scheduler.receivers for scheduler in queue.schedulers.values()) or queue.has_session_users:
        clock.note()
    return clock.accessed_ms


class IdleDeletion:
    """Finds the queues that have been idle for too long.

    Attributes:
        journal: Hears of each deletion.

    Args:
        queues: Gives all queues that there are, topics behind their subscriptions.
        time: Gives broker time.
        delete: Begins the deletion of a queue; of a shard, hears that it is idle.
    """

    __slots__ = ("_delete", "_due_ms", "_queues", "_time", "_timer", "journal")

    def __init__(
        self, queues: Callable[[], Iterable[Queue]], time: Callable[[], BrokerTime], delete: Callable[[Queue], None]
    ) -> None:
        self._queues = queues
        self._time = time
        self.journal: Journal = lambda queue: lambda outcome: None
        self._delete = delete
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def begin(self, queue: Queue) -> None:
        """A queue is new, has new properties, or is there again after a start: its time begins.

        Raises:
            ServiceBusError: It is a shard that was told as idle, which cannot be taken back now.
        """
        about = queue.description
        # What forwards is never idle (Azure: autoforwarding).
        limit_ms = about.auto_delete_on_idle_ms if about.forward_to is None else None
        if queue.idle is not None:
            queue.idle.end()
        known = 0 if queue.idle is None else queue.idle.accessed_ms
        clock = queue.idle = LastUse(limit_ms, self._time(), known)
        for scheduler in queue.schedulers.values():
            scheduler.clock = clock
        if limit_ms is not None:
            self._arm(clock.last_ms + limit_ms)

    def check(self) -> None:
        """Delete what has been idle for too long, and set the timer for the next look."""
        now_ms = self._time().now_ms()
        earliest = None
        # First, so that the time of one that cannot be deleted now can start again.
        self.stop()
        for queue in list(self._queues()):
            clocks = [one for one in (queue.idle, queue.top.idle) if one is not None and one.limit_ms is not None]
            if clocks and _is_in_use(queue):
                # Whoever uses a subscription uses its topic.
                for one in clocks:
                    one.last_ms = now_ms
            elif queue.top is not queue and queue.idle is not None and queue.top.idle is not None:
                queue.top.idle.last_ms = max(queue.top.idle.last_ms, queue.idle.accessed_ms)
            clock = queue.idle
            if clock is None or clock.limit_ms is None:
                continue
            due_ms = clock.last_ms + clock.limit_ms
            if due_ms <= now_ms:
                self._end(queue)
            elif earliest is None or due_ms < earliest:
                earliest = due_ms
        if earliest is not None:
            self._arm(earliest)

    def _end(self, queue: Queue) -> None:
        if queue.is_shard:
            # It is deleted, and that is written down, when the other shards of the whole are idle, too.
            self._delete(queue)
            return
        try:
            told = self.journal(queue)
        except ServiceBusError:
            # What cannot be written down is not done; it is looked at again when the time has passed once more.
            self.begin(queue)
            return
        self._delete(queue)
        told(None if queue.is_deleted else "The catalog cannot be written; the time begins anew.")

    def _arm(self, due_ms: int) -> None:
        """Look again then, unless that is to be done earlier anyway."""
        if self._timer is not None and self._due_ms <= due_ms:
            return
        self.stop()
        self._due_ms = due_ms
        delay_s = min(max((due_ms - self._time().now_ms()) / 1000, LOOK_MIN_S), LOOK_MAX_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.check)

    def stop(self) -> None:
        """Look no more, until told to."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_in_use(queue: Queue) -> bool:
    """What no call tells: receivers that are there, users of sessions, scheduled messages, absent stores."""
    is_used = queue.sessions_were_used() or any(scheduler.receivers for scheduler in queue.schedulers.values())
    if is_used or not all(handle.online for handle in queue.fragments):
        return True
    counts, _ = queue.numbers()
    return counts[-1] > 0
