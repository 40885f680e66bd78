"""Receiving inside a fragment: messages that are taken and removed at once, and deferred ones by their numbers.

What is handed out under a lock needs no commit, so it is no command: see ``Fragment.lock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from duobus.errors import ServiceBusError
from duobus.fragment.commands import RemovalCommand
from duobus.fragment.message import DEFERRED, MAIN, state_of
from duobus.fragment.sessions import sessions
from duobus.model.batches import DeliveryBatch, Mailbox

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.sessions.session import SessionLock
    from duobus.fragment.source import Source
    from duobus.storage.interface import CommitBatch


class TakeAndRemove(RemovalCommand):
    """Receive-and-delete: take up to ``credit`` messages; they are removed before they are shown (I13).

    Attributes:
        receiver: Who granted the credit; gets a DeliveryBatch, perhaps an empty one.
        holder: The lock of the session from which it takes; None for none.
        messages: After apply: what was taken.
    """

    __slots__ = ("credit", "holder", "receiver", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        sub_queue: int,
        credit: int,
        receiver: Any,
        holder: SessionLock | None = None,
    ) -> None:
        super().__init__(handle, source_no, None)
        self.sub_queue = sub_queue
        self.credit = credit
        self.receiver = receiver
        self.holder = holder

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Take what there is, and remove it."""
        if self.holder is not None:
            self.remove(source, sessions.take_promised(source, self.holder, self.credit), commit)
            return
        sub_queue = source.sub_queues[self.sub_queue]
        sub_queue.promised -= self.credit
        self.remove(source, sub_queue.take(self.credit), commit)
        if self.messages and self.sub_queue == MAIN:
            source.highest_delivered = max(source.highest_delivered, self.messages[-1].count)

    def finish(self) -> None:
        """Give the receiver what was removed for it: nothing if that failed."""
        prefix, messages = (bytes(8), self.messages) if self.error is None else (b"", [])
        self.receiver.deliver(DeliveryBatch(self.handle, prefix, 0, messages, 0), self.credit)


class TakeDeferred(RemovalCommand):
    """Receive deferred messages by number, in receive-and-delete mode; all of them or none.

    Attributes:
        holder: The lock of the session to which they belong; None for none.
    """

    __slots__ = ("counts", "holder", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        sub_queue: int,
        counts: Sequence[int],
        reply: Mailbox,
        holder: SessionLock | None = None,
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.holder = holder
        self.sub_queue = sub_queue
        self.counts = counts

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say which of them cannot be had, or None."""
        if source.sessions is not None and self.sub_queue == MAIN:
            return sessions.deferred_fault(fragment, source, self.holder, self.counts, now_ms)
        state = state_of(self.sub_queue, DEFERRED)
        return fragment.find_fault(source, self.counts, state, "deferred", now_ms)

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Remove them."""
        self.remove(source, [source.by_count[count] for count in self.counts], commit)
