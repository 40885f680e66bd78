"""Sends: new messages on their way into a fragment, at once, at their time, or under numbers that were reserved.

Most of the messages with metadata have a session and nothing else.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, Any

from duobus.errors import ServiceBusError, TransactionRolledBack
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.commands import Command
from duobus.fragment.message import MAIN, SCHEDULED, TRANSFER, QueuedMessage, stored_state
from duobus.fragment.sessions.delivery_batches import place_new
from duobus.fragment.source import check_room
from duobus.fragment.topics import fanout
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.metadata import MessageMetadata, encoded_all
from duobus.storage.interface import CommitBatch, Put, Tombstone

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.rules import Match


class Run(Command):
    """Enqueue those messages of a batch that go to this fragment.

    Attributes:
        batch: The messages.
        indices: Which of them; None for all.
        placement: The entity's placement when the run is keyless and may go elsewhere; None when it is keyed.
        first_count: After apply: count of the first message, the others follow by one.
        messages: Between apply and release: the messages.
        size: After apply: their payload bytes.
        share: Their number, and about their bytes: adding up those of each part would cost more than it is worth.
        dropped: After apply: indices of the duplicates that were accepted and dropped; None when there are none.
        tombstones: Earlier attempts whose commit was ambiguous (I27).
        beside: Bytes that its group stores before it: they are no part yet of what its entity holds.
        copies: Of a run to a topic, between apply and release: what each subscription gets of it;
            ``messages`` are those that stay at the topic until their time.
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
        "messages",
        "placement",
        "share",
        "size",
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
        self.messages: list[QueuedMessage] = []
        self.dropped: list[int] | None = None
        self.tombstones: list[Tombstone] = []
        self.copies: list[fanout.Copies] = []
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

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why the run cannot be taken in, or None."""
        topic = fragment.topic
        if topic is not None:
            return fanout.check(fragment, topic, self, now_ms)
        return check_room(source, self, now_ms)

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Take the messages in: those of a topic are copied, those of a queue stay here."""
        topic = fragment.topic
        if topic is not None:
            fanout.publish(fragment, topic, self, now_ms, commit)
            return
        batch = self.batch
        if batch.ping:
            return
        indices = self.indices
        if batch.ids is not None:
            indices = duplicates.admit(source, self, now_ms, commit)
            fragment.note_history(source)
        self.size = batch.bytes_total if indices is None else sum([len(batch.payloads[i]) for i in indices])
        payloads = batch.payloads if indices is None else [batch.payloads[i] for i in indices]
        count = self.first_count = source.next_count
        messages = self.messages
        for payload in payloads:
            messages.append(QueuedMessage(count, payload, now_ms))
            count += 1
        source.next_count = count if self.dropped is None else count + len(self.dropped)
        if not messages:
            return
        source.bytes += self.size
        put = Put(source.source_key, self.first_count, now_ms, payloads)
        if batch.extra is None and batch.sessions is None:
            source.numbers[MAIN] += len(messages)
        else:
            attach_metadata(source, self, indices, now_ms, put)
        commit.puts.append(put)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Make the messages available, and what subscriptions got of them."""
        messages = self.messages
        if messages:
            self.messages = []
            batch = self.batch
            if batch.sessions is not None and source.sessions is not None:
                into_sessions(fragment, source, messages, self.size)
            elif batch.extra is not None or source.sessions is not None:
                fragment.release_with_metadata(source, messages)
            else:
                fragment.release_plain(source, messages, self.size)
        if self.copies:
            fanout.release(fragment, self.copies)

    def weight(self) -> tuple[int, int]:
        """Its messages, or the copies of them, with what the rules of a topic did for them; and its bytes."""
        if self.copies:
            number = sum([len(part.put.payloads) for part in self.copies])
        else:
            number = self.batch.n if self.indices is None else len(self.indices)
        return number + self.effort, self.size

    def effort_spent(self) -> int:
        """What the rules of a topic did before it was refused."""
        return self.effort

    def written_ranges(self, fragment: Fragment) -> list[tuple[int, int, int]]:
        """See Command; of a topic, those of all copies too."""
        key = fragment.sources[self.source_no].source_key
        if fragment.topic is None:
            return [(key, self.first_count, self.first_count + len(self.messages) - 1)] if self.messages else []
        if not self.first_count:
            return []
        number = self.batch.n if self.indices is None else len(self.indices)
        copies = [
            (put.source_key, put.first_count, put.first_count + len(put.payloads) - 1)
            for put in [part.put for part in self.copies]
        ]
        return [(key, self.first_count, self.first_count + number - 1), *copies]


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


# Scheduled messages of a transaction: their sequence numbers are told at once, the messages come with the commit.
#
# A ``Reserve`` uses counts up and is durable before anybody hears of it, so that no crash gives one of them to another
# message (I7). The ``ReservedRun`` of the discharge puts its messages there. Whatever becomes of the transaction,
# nobody else gets the counts: a rollback leaves a gap.


class Reserve(Command):
    """Use up counts for messages that may come later.

    Attributes:
        number: How many.
        first_count: After apply: the first of them, the others follow by one.
    """

    __slots__ = ("first_count", "number")

    def __init__(self, handle: Any, source_no: int, number: int, reply: Mailbox | None) -> None:
        super().__init__(handle, source_no, reply)
        self.number = number
        self.first_count = 0

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Use the counts up; the source's row of this commit says so."""
        self.first_count = source.next_count
        source.next_count += self.number


class ReservedRun(Run):
    """Enqueue scheduled messages of a batch under counts that were reserved for them.

    Attributes:
        reserve: What reserved them; decided before this, for it was submitted before to the same message broker.
    """

    __slots__ = ("reserve",)

    def __init__(self, reserve: Reserve, batch: SendBatch) -> None:
        super().__init__(reserve.handle, reserve.source_no, batch, None, None)
        self.reserve = reserve

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why the messages cannot be taken in, or None."""
        error, topic = self.reserve.error, fragment.topic
        if error is not None or not self.reserve.first_count:
            return TransactionRolledBack(f"The sequence numbers of its messages could not be reserved: {error}")
        return check_room(source, self, now_ms, 0 if topic is None else topic.bytes)

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Put the messages where their numbers say.

        One whose time has come meanwhile waits like the others: the next housekeeping gives it a new number, behind
        all that is there (Azure: message sequencing). So nothing active ever has a count below what came before it.
        """
        batch = self.batch
        self.first_count = self.reserve.first_count
        dropped: set[int] = set()
        if batch.ids is not None:
            written = len(commit.histories)
            duplicates.admit(source, self, now_ms, commit)
            if len(commit.histories) > written:
                # A block of ids is kept under a count, and those blocks are in the order of their time.
                source.next_count += 1
            dropped = set(self.dropped or ())
        extra = batch.extra or {}
        for index, payload in enumerate(batch.payloads):
            if index in dropped:
                continue
            message = QueuedMessage(self.first_count + index, payload, now_ms)
            message.metadata = metadata = extra.get(index) or MessageMetadata()
            message.state = SCHEDULED
            self.messages.append(message)
            self.size += len(payload)
            row = (stored_state(SCHEDULED, metadata), 0, metadata.encode())
            put = Put(source.source_key, message.count, now_ms, [payload], {0: row})
            put.is_reserved = True
            commit.puts.append(put)
            source.counted(SCHEDULED, 1)
        source.bytes += self.size
        fragment.note_history(source)


def attach_metadata(source: Source, run: Run, indices: list[int] | None, now_ms: int, put: Put) -> None:
    """Attach the metadata of a batch to the run's messages, count them, and give the store its form of them."""
    every = run.batch.sessions
    if every is not None:
        found = every if indices is None else [every[index] for index in indices]
        for message, metadata in zip(run.messages, found, strict=True):
            message.metadata = metadata
        put.equal_metadata = encoded_all(found)
        source.numbers[MAIN] += len(run.messages)
        return
    put.all_metadata = _mixed(run.batch.extra or {}, run, indices, now_ms)
    for message in run.messages:
        source.counted(message.state, 1)


def _mixed(
    extra: dict[int, MessageMetadata], run: Run, indices: list[int] | None, now_ms: int
) -> dict[int, tuple[int, int, bytes | None]]:
    """By position in the run."""
    all_metadata: dict[int, tuple[int, int, bytes | None]] = {}
    for position, index in enumerate(range(run.batch.n) if indices is None else indices):
        metadata = extra.get(index)
        if metadata is None:
            continue
        message = run.messages[position]
        message.metadata = metadata
        if metadata.route is not None and metadata.route.to is not None:
            message.state = TRANSFER
        # A past or present time: enqueue at once.
        elif metadata.scheduled_ms is not None and metadata.scheduled_ms > now_ms:
            message.state = SCHEDULED
        all_metadata[position] = (stored_state(message.state, metadata), 0, metadata.encode())
    return all_metadata


def into_sessions(fragment: Fragment, source: Source, messages: list[QueuedMessage], size: int) -> None:
    """Make new messages available that have a session and nothing else: ``Fragment.place`` for all of them."""
    first = messages[0].count
    source.by_count.update(zip(range(first, first + len(messages)), messages, strict=True))
    source.memory_bytes += size
    life = source.settings.default_ttl_ms
    if life is not None:
        # ``Fragment.index_expiry``: they leave the order of the others, and came at the same time.
        expires_ms = messages[0].enqueued_ms + life
        expiring = source.expiring
        for message in messages:
            message.expires_ms = expires_ms
            heappush(expiring, (expires_ms, message.count))
        fragment.due_at(expires_ms)
    place_new(fragment, source, messages)
