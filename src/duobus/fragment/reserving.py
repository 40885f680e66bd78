"""Scheduled messages of a transaction: their sequence numbers are told at once, the messages come with the commit.

A ``Reserve`` uses counts up and is durable before anybody hears of it, so that no crash gives one of them to another
message (I7). The ``ReservedRun`` of the discharge puts its messages there. Whatever becomes of the transaction, nobody
else gets the counts: a rollback leaves a gap (contract 10.6, 12.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.errors import ServiceBusError, TransactionRolledBack
from duobus.fragment import admission
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.commands import Command, Run
from duobus.fragment.message import SCHEDULED, Slot, stored_state
from duobus.model.metadata import Special
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.source import Source
    from duobus.model.batches import Mailbox, SendBatch


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


def check(source: Source, run: ReservedRun, now_ms: int, elsewhere: int) -> ServiceBusError | None:
    """Say why the messages cannot be taken in, or None; ``elsewhere`` as of ``admission.check``."""
    reserved = run.reserve
    if reserved.error is not None or not reserved.first_count:
        return TransactionRolledBack(f"The sequence numbers of its messages could not be reserved: {reserved.error}")
    return admission.check(source, run, now_ms, elsewhere)


def apply(source: Source, run: ReservedRun, now_ms: int, commit: CommitBatch) -> None:
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
        slot = Slot(run.first_count + index, payload, now_ms)
        slot.special = special = extra.get(index) or Special()
        slot.state = SCHEDULED
        run.slots.append(slot)
        run.size += len(payload)
        row = (stored_state(SCHEDULED, special), 0, special.encode())
        put = Put(source.source_key, slot.count, now_ms, [payload], {0: row})
        put.is_reserved = True
        commit.puts.append(put)
        source.counted(SCHEDULED, 1)
    source.bytes += run.size
