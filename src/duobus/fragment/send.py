"""Sends: how new messages enter a fragment, and what is done for those with metadata.

Most of those with metadata have a session and nothing else.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, Any

from duobus.errors import ServiceBusError, TransactionRolledBack
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.commands import Command, Run
from duobus.fragment.message import MAIN, SCHEDULED, TRANSFER, QueuedMessage, stored_state
from duobus.fragment.sessions.delivery_batches import place_new
from duobus.fragment.source import check_room
from duobus.fragment.topics import fanout
from duobus.model.metadata import MessageMetadata, encoded_all
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.model.batches import Mailbox, SendBatch


# Scheduled messages of a transaction: their sequence numbers are answered at once, the messages come with the commit.
#
# A ``Reserve`` uses counts up and is durable before it is reported, so that no crash gives one of them to another
# message (I7). The ``ReservedRun`` of the discharge puts its messages there. Whatever becomes of the transaction,
# no other message gets the counts: a rollback leaves a gap (contract 10.6, 12.3).


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


class ReservedRun(Run):
    """Enqueue scheduled messages of a batch under counts that were reserved for them.

    Attributes:
        reserve: What reserved them; decided before this, for it was submitted before to the same message broker.
    """

    __slots__ = ("reserve",)

    def __init__(self, reserve: Reserve, batch: SendBatch) -> None:
        super().__init__(reserve.handle, reserve.source_no, batch, None, None)
        self.reserve = reserve


def reserve(source: Source, command: Reserve) -> None:
    """Use the counts up; the source's row of this commit says so."""
    command.first_count = source.next_count
    source.next_count += command.number


def check_reserved(source: Source, run: ReservedRun, now_ms: int, elsewhere: int) -> ServiceBusError | None:
    """Say why the messages cannot be taken in, or None; ``elsewhere`` as of ``check_room``."""
    reserved = run.reserve
    if reserved.error is not None or not reserved.first_count:
        return TransactionRolledBack(f"The sequence numbers of its messages could not be reserved: {reserved.error}")
    return check_room(source, run, now_ms, elsewhere)


def apply_reserved(source: Source, run: ReservedRun, now_ms: int, commit: CommitBatch) -> None:
    """Put the messages where their numbers say.

    One whose time has come meanwhile waits like the others: the next housekeeping gives it a new number, behind all
    that is there (contract 13.1). So nothing active ever has a count below what came before it.
    """
    batch = run.batch
    run.first_count = run.reserve.first_count
    dropped: set[int] = set()
    if batch.ids is not None:
        written = len(commit.histories)
        duplicates.admit(source, run, now_ms, commit)
        if len(commit.histories) > written:
            # A block of ids is kept under a count, and those blocks are in the order of their time.
            source.next_count += 1
        dropped = set(run.dropped or ())
    extra = batch.extra or {}
    for index, payload in enumerate(batch.payloads):
        if index in dropped:
            continue
        slot = QueuedMessage(run.first_count + index, payload, now_ms)
        slot.metadata = metadata = extra.get(index) or MessageMetadata()
        slot.state = SCHEDULED
        run.slots.append(slot)
        run.size += len(payload)
        row = (stored_state(SCHEDULED, metadata), 0, metadata.encode())
        put = Put(source.source_key, slot.count, now_ms, [payload], {0: row})
        put.is_reserved = True
        commit.puts.append(put)
        source.counted(SCHEDULED, 1)
    source.bytes += run.size


def check(fragment: Fragment, source: Source, run: Run, now_ms: int) -> ServiceBusError | None:
    """Say why a run cannot be taken in, or None."""
    topic = fragment.topic
    if isinstance(run, ReservedRun):
        return check_reserved(source, run, now_ms, 0 if topic is None else topic.bytes)
    if topic is not None:
        return fanout.check(fragment, topic, run, now_ms)
    return check_room(source, run, now_ms)


def apply_run(fragment: Fragment, source: Source, run: Run, now_ms: int, commit: CommitBatch) -> None:
    """Take a checked run in."""
    if isinstance(run, ReservedRun):
        apply_reserved(source, run, now_ms, commit)
        fragment.note_history(source)
    elif fragment.topic is None:
        fragment.apply_run(source, run, now_ms, commit)
    else:
        fanout.publish(fragment, fragment.topic, run, now_ms, commit)


def attach_metadata(source: Source, run: Run, indices: list[int] | None, now_ms: int, put: Put) -> None:
    """Attach the metadata of a batch to the run's messages, count them, and give the store its form of them."""
    every = run.batch.sessions
    if every is not None:
        found = every if indices is None else [every[index] for index in indices]
        for slot, metadata in zip(run.slots, found, strict=True):
            slot.metadata = metadata
        put.equal_metadata = encoded_all(found)
        source.numbers[MAIN] += len(run.slots)
        return
    put.all_metadata = _mixed(run.batch.extra or {}, run, indices, now_ms)
    for slot in run.slots:
        source.counted(slot.state, 1)


def _mixed(
    extra: dict[int, MessageMetadata], run: Run, indices: list[int] | None, now_ms: int
) -> dict[int, tuple[int, int, bytes | None]]:
    """By position in the run."""
    all_metadata: dict[int, tuple[int, int, bytes | None]] = {}
    for position, index in enumerate(range(run.batch.n) if indices is None else indices):
        metadata = extra.get(index)
        if metadata is None:
            continue
        slot = run.slots[position]
        slot.metadata = metadata
        if metadata.route is not None and metadata.route.to is not None:
            slot.state = TRANSFER
        # A past or present time: enqueue at once (contract 13.1).
        elif metadata.scheduled_ms is not None and metadata.scheduled_ms > now_ms:
            slot.state = SCHEDULED
        all_metadata[position] = (stored_state(slot.state, metadata), 0, metadata.encode())
    return all_metadata


def into_sessions(fragment: Fragment, source: Source, slots: list[QueuedMessage], size: int) -> None:
    """Make new messages available that have a session and nothing else: ``Fragment.place`` for all of them."""
    first = slots[0].count
    source.by_count.update(zip(range(first, first + len(slots)), slots, strict=True))
    source.memory_bytes += size
    life = source.settings.default_ttl_ms
    if life is not None:
        # ``Fragment.index_expiry``: they leave the order of the others, and came at the same time.
        expires_ms = slots[0].enqueued_ms + life
        expiring = source.expiring
        for slot in slots:
            slot.expires_ms = expires_ms
            heappush(expiring, (expires_ms, slot.count))
        fragment.due_at(expires_ms)
    place_new(fragment, source, slots)
