"""The commands of a fragment: one object per batch, which also carries its result back.

A command is checked and applied when a commit starts and released when that commit is durable
(design 3.1). ``reply`` is the mailbox in which the released command is left; ``error`` is None when it
was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import ServiceBusError
from duobus.fragment.message import QueuedMessage
from duobus.model.batches import Mailbox, SendBatch
from duobus.storage.interface import Put, Tombstone

if TYPE_CHECKING:
    from duobus.fragment.sessions.sessions import Session, SessionLock
    from duobus.fragment.source import Source
    from duobus.rules import Match

COMPLETE: Final = 0
ABANDON: Final = 1
DEFER: Final = 2
DEAD_LETTER_OUTCOME: Final = 3


class Command:
    """Parent of all commands.

    Attributes:
        handle: The fragment it is for (a FragmentHandle; opaque to the fragment).
        source_no: The source of that fragment.
        reply: Where the released command goes, or None when nobody waits.
        error: Why it was not done; None when it was.
    """

    __slots__ = ("error", "handle", "reply", "source_no")

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None) -> None:
        self.handle = handle
        self.source_no = source_no
        self.reply = reply
        self.error: ServiceBusError | None = None


class Copies:
    """New messages of one subscription with consecutive counts, all of them plain or not.

    Attributes:
        source: Of the subscription.
        put: What is written of them.
        size: Their payload bytes.
        slots: The messages; None when they are plain, since a message that is paged out at once needs no object.
    """

    __slots__ = ("put", "size", "slots", "source")

    def __init__(self, source: Source, put: Put, size: int, slots: list[QueuedMessage] | None = None) -> None:
        self.source = source
        self.put = put
        self.size = size
        self.slots = slots


class Run(Command):
    """Enqueue those messages of a batch that go to this fragment.

    Attributes:
        batch: The messages.
        indices: Which of them; None for all.
        placement: The entity's placement when the run is keyless and may go elsewhere; None when it is keyed.
        first_count: After apply: count of the first message, the others follow by one.
        slots: Between apply and release: the messages.
        size: After apply: their payload bytes.
        share: Their number, and about their bytes: adding up those of each part would cost more than it is worth.
        dropped: After apply: indices of the duplicates that were accepted and dropped; None when there are none.
        tombstones: Earlier attempts whose commit was ambiguous (I27).
        beside: Bytes that its group stores before it: they are no part yet of what its entity holds.
        copies: Of a run to a topic, between apply and release: what each subscription gets of it; ``slots`` are those
            that stay at the topic until their time.
        effort: What the rules of a topic did for it, in messages: what takes as long makes a commit as long.
        matches: Of a run to a topic, between check and apply: what its messages give, where that had to be tried.
    """

    __slots__ = (
        "batch",
        "beside",
        "copies",
        "dropped",
        "effort",
        "first_count",
        "indices",
        "matches",
        "placement",
        "share",
        "size",
        "slots",
        "tombstones",
    )

    def __init__(
        self, handle: Any, source_no: int, batch: SendBatch, indices: list[int] | None, placement: Any
    ) -> None:
        super().__init__(handle, source_no, batch.reply)
        self.batch = batch
        self.indices = indices
        if indices is None:
            self.share = batch.n, batch.bytes_total
        else:
            self.share = len(indices), batch.bytes_total * len(indices) // batch.n
        self.placement = placement
        self.beside = 0
        self.first_count = 0
        self.size = 0
        self.slots: list[QueuedMessage] = []
        self.dropped: list[int] | None = None
        self.tombstones: list[Tombstone] = []
        self.copies: list[Copies] = []
        self.effort = 0
        self.matches: dict[int, Match] | None = None

    def counts(self) -> list[int]:
        """After apply: the count of each message, in order. A duplicate uses one up that names nothing."""
        indices = list(range(self.batch.n)) if self.indices is None else self.indices
        if not self.dropped:
            return list(range(self.first_count, self.first_count + len(indices)))
        dropped = set(self.dropped)
        order = [index for index in indices if index not in dropped] + self.dropped
        count_of = {index: self.first_count + offset for offset, index in enumerate(order)}
        return [count_of[index] for index in indices]


class Rerun(Run):
    """A run that another store could not store, or perhaps did.

    Attributes:
        since_s: When it was first sent on, in the time of the loop.
    """

    __slots__ = ("since_s",)

    def __init__(self, run: Run, handle: Any, tombstones: list[Tombstone], since_s: float) -> None:
        super().__init__(handle, run.source_no, run.batch, run.indices, run.placement)
        self.tombstones = tombstones
        self.since_s = since_s


class SettleBatch(Command):
    """Settle locked messages: complete, abandon, defer or dead-letter.

    Attributes:
        prefix: First 8 bytes of the lock tokens; another epoch's prefix means that the locks are lost.
        outcome: COMPLETE, ABANDON, DEFER or DEAD_LETTER_OUTCOME.
        ranges: (first lock counter, number of locks) of each range.
        detail: SettleDetail, or None.
        answer_to: The caller's own note of whom to answer; one entry per range.
        strict: A lost lock refuses the whole command (members of a group, ``update-disposition``).
        holder: The lock of the session whose holder asks, for strict ones; None for none.
        is_claimed: Slots and lost locks were found when it was submitted.
        lost: After apply: lock counters that were no longer held.
        size: After apply of a completion: bytes of its messages.
        expected: Sessions that wait for what an abandon brings back, one entry per message.
    """

    __slots__ = (
        "answer_to",
        "detail",
        "expected",
        "holder",
        "is_claimed",
        "lost",
        "outcome",
        "prefix",
        "ranges",
        "size",
        "slots",
        "strict",
    )

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        *,
        prefix: bytes,
        outcome: int,
        ranges: list[tuple[int, int]],
    ) -> None:
        super().__init__(handle, source_no, reply)
        self.prefix = prefix
        self.outcome = outcome
        self.ranges = ranges
        self.detail: SettleDetail | None = None
        self.answer_to: list[Any] = []
        self.strict = False
        self.holder: SessionLock | None = None
        self.is_claimed = False
        self.lost: list[int] = []
        self.expected: list[Session] = []
        self.slots: list[QueuedMessage] = []
        self.size = 0


class SettleDetail:
    """What an abandon, defer or dead-letter says about its messages.

    Attributes:
        properties: Application properties to set; None for none.
        reason: DeadLetterReason; None when the application gave none.
        description: DeadLetterErrorDescription; None when the application gave none.
    """

    __slots__ = ("description", "properties", "reason")

    def __init__(self, properties: dict[str, Any] | None, reason: str | None, description: str | None) -> None:
        self.properties = properties
        self.reason = reason
        self.description = description


class TakeAndRemove(Command):
    """Receive-and-delete: take up to ``credit`` messages; they are removed before they are shown (I13).

    Attributes:
        receiver: The one that granted the credit; gets a DeliveryBatch, perhaps an empty one.
        holder: The lock of the session from which it takes; None for none.
        slots: After apply: what was taken.
    """

    __slots__ = ("credit", "holder", "receiver", "slots", "sub_queue")

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
        self.slots: list[QueuedMessage] = []


class TakeDeferred(Command):
    """Receive deferred messages by number, in receive-and-delete mode; all of them or none.

    Attributes:
        holder: The lock of the session to which they belong; None for none.
    """

    __slots__ = ("counts", "holder", "slots", "sub_queue")

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
        self.slots: list[QueuedMessage] = []


class CancelScheduled(Command):
    """Remove scheduled messages by number; all of them or none."""

    __slots__ = ("counts", "slots")

    def __init__(self, handle: Any, source_no: int, counts: Sequence[int], reply: Mailbox | None) -> None:
        super().__init__(handle, source_no, reply)
        self.counts = counts
        self.slots: list[QueuedMessage] = []


class SetSessionState(Command):
    """Set or clear (None) the state of a session that is held.

    Attributes:
        entry: After apply: (count of the row, bytes, time) of the new state; None: cleared.
    """

    __slots__ = ("entry", "lock", "state")

    def __init__(self, handle: Any, lock: SessionLock, state: bytes | None, reply: Mailbox) -> None:
        super().__init__(handle, lock.source_no, reply)
        self.lock = lock
        self.state = state
        self.entry: tuple[int, int, int] | None = None


class Housekeeping(Command):
    """What time has made of the messages of one source: the fragment itself asks for it.

    Attributes:
        expired: Ran out of life: removed, or dead-lettered with TTLExpiredException.
        exhausted: Reached MaxDeliveryCount: dead-lettered.
        due: Scheduled messages whose time has come.
        at_topic: They are messages of a topic, for its subscriptions.
        copies: After apply, at a topic: what each subscription gets of those.
        effort: As of a Run.
    """

    __slots__ = ("at_topic", "copies", "due", "due_slots", "effort", "exhausted", "expired")

    def __init__(self, handle: Any, source_no: int) -> None:
        super().__init__(handle, source_no, None)
        self.expired: list[QueuedMessage] = []
        self.exhausted: list[QueuedMessage] = []
        self.due: list[QueuedMessage] = []
        self.due_slots: list[QueuedMessage] = []
        self.at_topic = False
        self.copies: list[Copies] = []
        self.effort = 0


class Group(Command):
    """Commands of one message broker that are done together or not at all, in one commit."""

    __slots__ = ("members",)

    def __init__(self, members: list[Command], reply: Mailbox | None) -> None:
        super().__init__(None, 0, reply)
        self.members = members
