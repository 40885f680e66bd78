"""Removing messages that nobody received: batch delete, purge, and taking back what is scheduled.

A command of batch delete and purge removes a bounded number.

Both take only what nobody holds. What a lock or another command of the same commit has is left as it is, and
counted, so that whoever asked can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import ServiceBusError
from duobus.fragment.commands import RemovalCommand
from duobus.fragment.message import (
    ACTIVE,
    DELAYED,
    FORWARDING,
    GONE,
    MAIN,
    SCHEDULED,
    QueuedMessage,
    kind_of,
    state_of,
)

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source, SubQueue
    from duobus.model.batches import Mailbox
    from duobus.storage.interface import CommitBatch

#: Messages that one command removes, so that the commit it rides in stays as short as others (I62). While 100,000 were
#: purged, 99 of 100 sends to another queue took up to 21 ms; with 500 it was 77 ms, and the purge no faster.
REMOVED_MAX = 200

_AVAILABLE: Final = state_of(MAIN, ACTIVE)


class PurgeCommand(RemovalCommand):
    """Parent of the commands that remove without delivering.

    Attributes:
        messages: After apply: what was removed.
        busy: After apply: messages that were left because a command under way disposes of them.
    """

    __slots__ = ("busy",)

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None) -> None:
        super().__init__(handle, source_no, reply)
        self.busy = 0

    def weight(self) -> tuple[int, int]:
        """The messages that are removed."""
        return len(self.messages), 0


class PurgeAvailable(PurgeCommand):
    """Remove messages that a receiver would get next, in that order.

    Attributes:
        limit: Most that are removed.
        before_ms: Only what was enqueued earlier.
        end: Only counts below it.
    """

    __slots__ = ("before_ms", "end", "limit", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        sub_queue: int,
        limit: int,
        before_ms: int,
        end: int,
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.sub_queue = sub_queue
        self.limit = min(limit, REMOVED_MAX)
        self.before_ms = before_ms
        self.end = end

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Remove what is next."""
        self.remove(source, self._next(source.sub_queues[self.sub_queue]), commit)

    def _next(self, sub_queue: SubQueue) -> list[QueuedMessage]:
        """Counts and times of enqueueing ascend together, so the first that is too young ends it."""
        messages: list[QueuedMessage] = []
        returned, ready = sub_queue.returned, sub_queue.ready
        while len(messages) < self.limit and (returned or ready):
            is_returned = bool(returned) and (not ready or returned[0][0] < ready[0].count)
            message = returned[0][1] if is_returned else ready[0]
            is_gone = message.state == GONE
            if not is_gone and (message.enqueued_ms >= self.before_ms or message.count >= self.end):
                break
            if is_returned:
                heappop(returned)
            else:
                ready.popleft()
            if is_gone:
                sub_queue.stale -= 1
            else:
                messages.append(message)
        return messages


class PurgeCounts(PurgeCommand):
    """Remove whichever of these messages nobody holds.

    Attributes:
        before_ms: Only what is available in the main sub-queue and was enqueued earlier; None: whatever the state.
    """

    __slots__ = ("before_ms", "counts")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        counts: Sequence[int],
        before_ms: int | None = None,
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.counts = counts
        self.before_ms = before_ms

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Remove those that are free."""
        self.remove(source, self._free(source), commit)

    def _free(self, source: Source) -> list[QueuedMessage]:
        messages: list[QueuedMessage] = []
        for count in self.counts:
            message = source.by_count.get(count)
            if message is None or is_held(source, message):
                continue
            if self.before_ms is not None and not is_available(message, self.before_ms):
                continue
            if message.lock not in (0, DELAYED):
                self.busy += 1
            else:
                # Only what stands in a list has to leave it.
                is_listed = kind_of(message.state) == ACTIVE and not message.lock
                messages.append(source.withdraw(message) if is_listed else message)
        return messages


class CancelScheduled(RemovalCommand):
    """Remove scheduled messages by number; all of them or none."""

    __slots__ = ("counts",)

    def __init__(self, handle: Any, source_no: int, counts: Sequence[int], reply: Mailbox | None) -> None:
        super().__init__(handle, source_no, reply)
        self.counts = counts

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say which of them is not scheduled, or None."""
        return fragment.find_fault(source, self.counts, SCHEDULED, "scheduled", now_ms)

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Remove them."""
        self.remove(source, [source.by_count[count] for count in self.counts], commit)


def is_held(source: Source, message: QueuedMessage) -> bool:
    """Whether somebody has a message, or it is being forwarded; one that is being completed is not held any more."""
    return message.lock == FORWARDING or (message.lock > 0 and message.lock in source.locks)


def is_available(message: QueuedMessage, before_ms: int) -> bool:
    """Whether a message of the main sub-queue could be handed out, and was enqueued before an instant."""
    return message.state == _AVAILABLE and not message.lock and message.enqueued_ms < before_ms
