"""Transaction: work on one entity that is done together or not at all (Azure: transaction processing; I8, I34, I35).

A pure state machine: no clock, no I/O. It collects commands; nothing of them is seen by anybody until ``take`` gives
them away as one ``Group``, which a message broker checks as a whole and writes in one commit::

    OPEN --take--> DISCHARGED
     '--doom--> DOOMED (gives its work back; can only be rolled back)

Work that is refused dooms the transaction: a client that does not wait for outcomes before it discharges must not
get the rest of its work done without the refused piece (I34).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.broker.entities.queue import Queue
from duobus.errors import NotAllowed, QuotaExceeded, ServiceBusError, TransactionRolledBack
from duobus.fragment.commands import Command
from duobus.fragment.purge import CancelScheduled
from duobus.fragment.send import Reserve, ReservedRun, Run
from duobus.fragment.settlement import SettleBatch
from duobus.model.address import are_shards_of_one, sharded_entity_of

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.model.batches import SendBatch

#: Messages that one transaction may send (Azure: quotas).
MESSAGES_MAX: Final = 100
#: Messages that it may settle: far more than clients do, and little enough for one commit.
SETTLEMENTS_MAX: Final = 1_000
#: What a piece of work holds in memory beside its messages, about.
WORK_BYTES: Final = 512
#: How Service Bus refuses work on a second entity; tests of its older Java client look for this sentence.
ONE_ENTITY: Final = "Local transactions cannot span multiple top-level entities such as queue or topic."

OPEN: Final = "open"
DOOMED: Final = "doomed"
DISCHARGED: Final = "discharged"


class Transaction:
    """Work of one client, collected until its discharge.

    Attributes:
        txn_id: Its name on the wire.
        deadline_ms: When it is rolled back if it was not discharged; in the time of whoever declared it.
        state: OPEN, DOOMED or DISCHARGED.
        doom_error: Why it is doomed.
        queue: The one entity that it works on; None before its first work.
        handle: The one fragment of it; None before its first work.
        work: What it does, in order.
    """

    __slots__ = ("_key", "_locks", "_sent", "deadline_ms", "doom_error", "handle", "queue", "state", "txn_id", "work")

    def __init__(self, txn_id: bytes, deadline_ms: int) -> None:
        self.txn_id = txn_id
        self.deadline_ms = deadline_ms
        self.state = OPEN
        self.doom_error: ServiceBusError | None = None
        self.queue: Queue | None = None
        self.handle: FragmentHandle | None = None
        self.work: list[Command] = []
        self._key: bytes | None = None
        self._sent = 0
        self._locks: set[tuple[bytes, int]] = set()

    def send(self, queue: Queue, batch: SendBatch) -> None:
        """Add messages; they are numbered and placed when the transaction is discharged.

        Raises:
            NotAllowed: Another entity or fragment, no key, or another key than before (PE15).
            QuotaExceeded: MESSAGES_MAX is passed.
            StoreUnavailable: The store of the key's fragment is away.
            TransactionRolledBack: It is doomed already.
        """
        self._demand_open()
        try:
            self._add_send(queue, batch)
        except ServiceBusError as error:
            self.doom(error)
            raise

    def _add_send(self, queue: Queue, batch: SendBatch) -> None:
        self.work.append(Run(self._place(queue, batch), queue.source_no, batch, None, None))

    def schedule(self, queue: Queue, batch: SendBatch) -> Reserve:
        """Add messages under numbers that are reserved for them now: whoever asks has to submit what is returned.

        Raises:
            ServiceBusError: As ``send``.
        """
        self._demand_open()
        try:
            reserve = Reserve(self._place(queue, batch), queue.source_no, batch.n, batch.reply)
        except ServiceBusError as error:
            self.doom(error)
            raise
        self.work.append(ReservedRun(reserve, batch))
        return reserve

    def cancel(self, queue: Queue, commands: list[CancelScheduled]) -> None:
        """Add cancellations; the messages stay scheduled until the transaction is discharged, and must be so then.

        Raises:
            NotAllowed: Another entity or fragment, or a message that it cancels already.
            QuotaExceeded: SETTLEMENTS_MAX is passed.
            TransactionRolledBack: It is doomed already.
        """
        self._demand_open()
        try:
            self._demand_entity(queue)
            for command in commands:
                self._enter(queue, command.handle)
                named = {(b"", count) for count in command.counts}
                self._name(named, len(command.counts), "cancels")
                self.work.append(command)
        except ServiceBusError as error:
            self.doom(error)
            raise

    def _place(self, queue: Queue, batch: SendBatch) -> FragmentHandle:
        """Enter the fragment where messages belong."""
        self._demand_entity(queue)
        self._demand_room(batch.n)
        queue.prepare(batch)
        if queue.is_partitioned:
            key = self._key_of(batch)
            self._enter(queue, queue.placement.keyed(key))
            self._key = key
        else:
            self._enter(queue, queue.fragments[0])
        self._sent += batch.n
        assert self.handle is not None
        return self.handle

    def send_via(self, via: Queue, batch: SendBatch) -> None:
        """Add messages for another entity, which are stored in this one until they get there; see ``via.address``.

        Raises:
            ServiceBusError: As ``send``.
        """
        self._demand_open()
        try:
            self._add_via(via, batch)
        except ServiceBusError as error:
            self.doom(error)
            raise

    def _add_via(self, via: Queue, batch: SendBatch) -> None:
        self._demand_entity(via)
        self._demand_room(batch.n)
        if not via.is_partitioned:
            self._enter(via, via.fragments[0])
        elif batch.keys is None and self.handle is not None:
            # Whichever fragment the other work has chosen does: nobody looks for the message there.
            self._enter(via, self.handle)
        else:
            key = self._key_of(batch)
            self._enter(via, via.placement.keyed(key))
            self._key = key
        self._sent += batch.n
        assert self.handle is not None
        self.work.append(Run(self.handle, via.source_no, batch, None, None))

    def _demand_room(self, number: int) -> None:
        if self._sent + number > MESSAGES_MAX:
            raise QuotaExceeded(
                f"A transaction may send {MESSAGES_MAX} messages at most; this one has {self._sent} and would get "
                f"{number} more. Use several transactions."
            )

    def _key_of(self, batch: SendBatch) -> bytes:
        """The one key of all messages that a transaction sends to a partitioned entity (PE15)."""
        keys: set[bytes | None] = {None} if batch.keys is None else set(batch.keys)
        if self._key is not None:
            keys.add(self._key)
        (key, *others) = keys
        if others or key is None:
            what = "no key" if None in keys else "several keys"
            raise NotAllowed(
                f"The messages of this transaction have {what}. On a partitioned entity all messages of a transaction "
                "need the same session id or partition key, those that are sent via it the same via partition key. "
                "Roll it back, then send with one key."
            )
        return key

    def settle(self, queue: Queue, commands: list[SettleBatch]) -> None:
        """Add settlements; the locks stay held until the transaction is discharged, and must be held then.

        Raises:
            NotAllowed: Another entity or fragment, or a message that it settles already.
            QuotaExceeded: SETTLEMENTS_MAX is passed.
            TransactionRolledBack: It is doomed already.
        """
        self._demand_open()
        try:
            self._demand_entity(queue)
            for command in commands:
                self._add_settlement(queue, command)
        except ServiceBusError as error:
            self.doom(error)
            raise

    def _add_settlement(self, queue: Queue, command: SettleBatch) -> None:
        number = sum(number for _, number in command.ranges)
        self._demand_number(number)
        locks = {(command.prefix, lock) for first, count in command.ranges for lock in range(first, first + count)}
        self._name(locks, number, "settles")
        self._enter(queue, command.handle)
        # One lost lock refuses the whole group.
        command.strict = True
        command.reply = None
        self.work.append(command)

    def _name(self, named: set[tuple[bytes, int]], number: int, what: str) -> None:
        """Note which messages a piece of work settles or cancels: each of them once, and not too many."""
        self._demand_number(number)
        if len(named) < number or not named.isdisjoint(self._locks):
            raise NotAllowed(f"The transaction {what} this message already. Name each message once.")
        self._locks |= named

    def _demand_number(self, number: int) -> None:
        if len(self._locks) + number > SETTLEMENTS_MAX:
            raise QuotaExceeded(
                f"A transaction may settle {SETTLEMENTS_MAX} messages at most, cancelled ones included; this one has "
                f"{len(self._locks)} and would get {number} more. Use several transactions."
            )

    def _demand_open(self) -> None:
        if self.state == DOOMED:
            raise self.refusal()
        assert self.state == OPEN  # whoever keeps transactions forgets those that are discharged

    def _demand_entity(self, queue: Queue) -> None:
        if self.queue is not None and self.queue.top is not queue.top:
            if are_shards_of_one(self.queue.path, queue.path):
                raise _spans_fragments(queue)
            raise NotAllowed(
                f"{ONE_ENTITY} The transaction works on '{self.queue.path}' and cannot work on '{queue.path}', too. "
                "Use a transaction for each."
            )

    def _enter(self, queue: Queue, handle: FragmentHandle) -> None:
        if self.handle is not None and self.handle.home is not handle.home:
            raise _spans_fragments(queue)
        self.queue = queue
        self.handle = handle.home

    def refusal(self) -> ServiceBusError:
        """The answer to work on it, or to its discharge, when it is doomed."""
        return TransactionRolledBack(
            f"The transaction can only be rolled back, since part of it failed: {self.doom_error} Roll it back, then "
            "do all of it again in a new one."
        )

    def doom(self, error: ServiceBusError) -> None:
        """Give all work up: nothing of it will be done. The first reason stays."""
        if self.state == OPEN:
            self.state = DOOMED
            self.doom_error = error
            self.work = []
            self._locks = set()

    def take(self) -> list[Command]:
        """Give the work away, to be done together; the transaction is discharged."""
        assert self.state == OPEN
        self.state = DISCHARGED
        work, self.work = self.work, []
        size = 0
        for command in work:
            if isinstance(command, Run):
                # All of them are checked before the first is stored (I33).
                command.beside = size
                size += command.batch.bytes_total
        return work


def _spans_fragments(queue: Queue) -> NotAllowed:
    return NotAllowed(
        "The messages of this transaction belong to different fragments of the partitioned entity "
        f"'{sharded_entity_of(queue.path) or queue.path}', which no transaction can span. Use a transaction for each "
        "partition key."
    )
