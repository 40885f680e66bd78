"""Planted bugs of transactions; see ``queues``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from duobus.broker import Queue
from duobus.broker.commit_loop import CommitLoop
from duobus.broker.store_lifecycle import InDoubtCommits
from duobus.broker.transaction import Transaction
from duobus.errors import ServiceBusError
from duobus.fragment.commands import Command, Group
from duobus.fragment.purge import CancelScheduled
from duobus.fragment.send import Reserve, ReservedRun
from duobus.fragment.settlement import SettleBatch
from duobus.fragment.source import Source
from duobus.gateway.amqp.transactions.transactions import Transactions
from duobus.model.batches import Mailbox, SendBatch
from duobus.storage.interface import CommitBatch


class _Then(Mailbox):
    """Submits the second half of a group when the first is done."""

    def __init__(self, loop: CommitLoop, rest: Group) -> None:
        super().__init__()
        self._commit_loop = loop
        self._rest = rest

    def wake(self) -> None:
        """See Mailbox."""
        for first in self.ready:
            if first.error is None:
                self._commit_loop.submit(self._rest)
            elif self._rest.reply is not None:
                self._rest.error = first.error
                self._rest.reply.ready.append(self._rest)
                self._rest.reply.wake()
        self.ready = []


@contextmanager
def transaction_in_two_commits() -> Iterator[None]:
    """A discharge is written in two commits, one half of the work after the other."""
    original = CommitLoop.submit

    def submit(self: CommitLoop, command: Command) -> None:
        if isinstance(command, Group) and len(command.members) > 1 and not isinstance(command.reply, _Then):
            half = len(command.members) // 2
            rest, command.members = command.members[half:], command.members[:half]
            first = Group(command.members, _Then(self, command))
            command.members = rest
            original(self, first)
            return
        original(self, command)

    with mock.patch.object(CommitLoop, "submit", submit):
        yield


@contextmanager
def settled_before_discharge() -> Iterator[None]:
    """A settlement in a transaction is done at once."""
    original = Transactions.add_settlements

    def add(self: Transactions, name: bytes, queue: Queue, commands: list[SettleBatch], sub_queue: int) -> None:
        original(self, name, queue, commands, sub_queue)
        for command in commands:
            ranges = command.ranges
            again = SettleBatch(
                command.handle, command.source_no, None, prefix=command.prefix, outcome=command.outcome, ranges=ranges
            )
            again.detail = command.detail
            queue.settle(again)
        # Nothing is left to check at the discharge, so nobody notices there.
        self.find(name).transaction.work = [
            found for found in self.find(name).transaction.work if not isinstance(found, SettleBatch)
        ]

    with mock.patch.object(Transactions, "add_settlements", add):
        yield


@contextmanager
def sent_before_discharge() -> Iterator[None]:
    """A message in a transaction is stored when it comes."""
    original = Transactions.send

    def send(self: Transactions, name: bytes, queue: Queue, batch: SendBatch | None) -> None:
        original(self, name, queue, batch)
        if batch is not None:
            self.find(name).transaction.work.pop()
            queue.send(batch)

    with mock.patch.object(Transactions, "send", send):
        yield


@contextmanager
def lost_lock_in_transaction() -> Iterator[None]:
    """A transaction whose lock has ended is committed without that settlement."""
    original = Transaction.take

    def take(self: Transaction) -> list[Command]:
        work = original(self)
        for command in work:
            if isinstance(command, SettleBatch):
                command.strict = False
        return work

    with mock.patch.object(Transaction, "take", take):
        yield


@contextmanager
def ambiguous_discharge_guessed() -> Iterator[None]:
    """A discharge whose commit failed is said to be rolled back, whatever the store holds."""
    original = InDoubtCommits.keep

    def keep(self: InDoubtCommits, command: Command, commit_no: int, error: ServiceBusError) -> None:
        original(self, command, 1 << 62, error)

    with mock.patch.object(InDoubtCommits, "keep", keep):
        yield


@contextmanager
def refused_piece_left_out() -> Iterator[None]:
    """Work that is refused leaves the rest of its transaction to be committed."""

    def doom(self: Transaction, error: ServiceBusError) -> None:
        """Nothing comes of it."""

    with mock.patch.object(Transaction, "doom", doom):
        yield


@contextmanager
def number_told_and_not_kept() -> Iterator[None]:
    """The numbers of a transaction's scheduled messages are told, and used up only when it is discharged."""

    def reserve(command: Reserve, fragment: Any, source: Source, now_ms: int, commit: CommitBatch) -> None:
        command.first_count = source.next_count

    original = ReservedRun.apply

    def apply(run: ReservedRun, fragment: Any, source: Source, now_ms: int, commit: CommitBatch) -> None:
        source.next_count = max(source.next_count, run.reserve.first_count + run.reserve.number)
        original(run, fragment, source, now_ms, commit)

    with mock.patch.object(Reserve, "apply", reserve), mock.patch.object(ReservedRun, "apply", apply):
        yield


@contextmanager
def scheduled_before_discharge() -> Iterator[None]:
    """A message that a transaction schedules is stored when its number is told."""
    original = Transactions.schedule

    def schedule(self: Transactions, name: bytes, queue: Queue, batch: SendBatch) -> Reserve:
        reserve = original(self, name, queue, batch)
        run = self.find(name).transaction.work.pop()
        run.reply = None
        run.handle.submit(run)
        return reserve

    with mock.patch.object(Transactions, "schedule", schedule):
        yield


@contextmanager
def cancelled_before_discharge() -> Iterator[None]:
    """A cancellation in a transaction is done at once."""
    original = Transactions.cancel

    def cancel(self: Transactions, name: bytes, queue: Queue, numbers: list[int]) -> None:
        original(self, name, queue, numbers)
        transaction = self.find(name).transaction
        for command in [found for found in transaction.work if isinstance(found, CancelScheduled)]:
            transaction.work.remove(command)
            command.handle.submit(command)

    with mock.patch.object(Transactions, "cancel", cancel):
        yield


TRANSACTION_BUGS: dict[str, Callable[[], Any]] = {
    "transaction-in-two-commits": transaction_in_two_commits,
    "settled-before-discharge": settled_before_discharge,
    "sent-before-discharge": sent_before_discharge,
    "lost-lock-in-transaction": lost_lock_in_transaction,
    "ambiguous-discharge-guessed": ambiguous_discharge_guessed,
    "refused-piece-left-out": refused_piece_left_out,
    "number-told-and-not-kept": number_told_and_not_kept,
    "scheduled-before-discharge": scheduled_before_discharge,
    "cancelled-before-discharge": cancelled_before_discharge,
}
