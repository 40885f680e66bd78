"""The open transactions of one connection: what they hold, and what becomes of it (AMQP 1.0 part 4).

A transaction lives in memory until its discharge, so whatever ends its connection or its coordinator link rolls it
back by doing nothing: its messages were never stored, its settlements never made, its locks still held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.amqp import DeliveryState, Rejected, TransactionalState
from duobus.broker import CancelScheduled, Queue, Reserve, Run, SettleBatch, Transaction, lock_lost
from duobus.broker.transaction import OPEN, WORK_BYTES
from duobus.errors import (
    DetachForced,
    NotAllowed,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    TransactionTimedOut,
    TransactionUnknown,
)
from duobus.gateway.amqp.deliveries import split
from duobus.gateway.amqp.transactions.participant import lost_with_its_owner, one_entity
from duobus.model.address import MAIN
from duobus.model.metering import OPERATION_BYTES, SEND, SETTLE, operations_of

if TYPE_CHECKING:
    from duobus.amqp import WorkDropped
    from duobus.gateway.amqp.deliveries import Deliveries, DeliveryRun
    from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
    from duobus.gateway.amqp.peer import Peer
    from duobus.gateway.amqp.transactions.coordinator import CoordinatorLink
    from duobus.gateway.amqp.transactions.participant import ParticipantTransaction, TransactionParticipant
    from duobus.model.batches import SendBatch

#: From its declaration to its discharge (AMQP 1.0 part 4, 4.3).
TRANSACTION_MS: Final = 120_000
#: Open transactions of one connection.
TRANSACTIONS_MAX: Final = 100
#: Bytes that the open transactions of a connection may hold: 100 messages of the Standard limit are 25 MiB.
KEPT_BYTES_MAX: Final = 32 << 20
#: Of a transaction's name: more than anybody can guess, so that no connection hits upon another's.
_ID_BYTES = 16


def txn_id_of(state: object) -> bytes | None:
    """The name of the transaction that a delivery with this state is part of; None for none."""
    return state.txn_id if isinstance(state, TransactionalState) else None


class OpenTransaction:
    """A transaction that is not discharged, with what its connection needs to know of it.

    Attributes:
        transaction: The state machine.
        coordinator: The link that declared it, and ends it.
        size: Bytes that it holds.
        named: Deliveries that it settles: they are settled on their session when it is committed, and not before.
        dead_letters: Settlements of it that are of dead letters, each with its sub-queue.
        remote: What another server does of it, which is all of it then; None as long as it works on nothing there.
        remote_path: The entity there; None when only deliveries of it are known.
    """

    __slots__ = ("coordinator", "dead_letters", "named", "remote", "remote_path", "size", "transaction")

    def __init__(self, transaction: Transaction, coordinator: CoordinatorLink) -> None:
        self.transaction = transaction
        self.coordinator = coordinator
        self.size = 0
        self.named: list[tuple[Deliveries, int, int]] = []
        self.dead_letters: dict[SettleBatch, int] = {}
        self.remote: ParticipantTransaction | None = None
        self.remote_path: str | None = None

    def give_up(self) -> None:
        """Have another server roll it back, if one does it."""
        if self.remote is not None:
            self.remote.coordinator.roll_back(self.transaction.txn_id)
            self.remote.ended(is_committed=False)


class Transactions:
    """The open transactions of one connection, by name."""

    __slots__ = ("_coordinators", "_kept", "_open", "_peer")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._coordinators: dict[CoordinatorLink, None] = {}
        self._open: dict[bytes, OpenTransaction] = {}
        self._kept = 0

    def declare(self, coordinator: CoordinatorLink, name: bytes | None = None) -> bytes:
        """Begin a transaction and return its name: the one that is given, or a new one.

        Raises:
            NotAllowed: There is one of this name.
            QuotaExceeded: The connection has TRANSACTIONS_MAX open ones.
        """
        if name in self._open:
            raise NotAllowed("There is an open transaction of this name. Name each transaction otherwise.")
        if len(self._open) >= TRANSACTIONS_MAX:
            # One that is over already makes room: its client has forgotten it, or will hear that it is unknown.
            over = next((name for name, entry in self._open.items() if entry.transaction.state != OPEN), None)
            if over is None:
                raise QuotaExceeded(
                    f"This connection has {TRANSACTIONS_MAX} open transactions. Discharge one, then declare another."
                )
            del self._open[over]
        server = self._peer.server
        name = name or server.entropy.token(_ID_BYTES)
        self._open[name] = OpenTransaction(Transaction(name, server.clock.monotonic_ms() + TRANSACTION_MS), coordinator)
        return name

    def take(self, name: bytes) -> OpenTransaction:
        """Take a transaction out, to discharge it.

        Raises:
            TransactionUnknown: There is none of this name.
        """
        found = self.find(name)
        del self._open[name]
        return found

    def find(self, name: bytes) -> OpenTransaction:
        """The open transaction of this name.

        Raises:
            TransactionUnknown: There is none; it may belong to another connection, or be discharged.
        """
        found = self._open.get(name)
        if found is None:
            raise TransactionUnknown(
                f"This connection has no open transaction '{name[:_ID_BYTES].hex()}'. It was discharged, or declared "
                "on another connection, or its coordinator link is gone. Declare a new one."
            )
        return found

    @property
    def has_coordinators(self) -> bool:
        """Whether the client may begin transactions."""
        return bool(self._coordinators)

    def begin(self, coordinator: CoordinatorLink) -> None:
        """There is a link to the coordinator."""
        self._coordinators[coordinator] = None

    # -- work on entities of other servers -----------------------------------------------------------------------

    def join(self, name: bytes, coordinator: TransactionParticipant | None, path: str | None) -> ParticipantTransaction:
        """Have a transaction done by the server of an entity, if it is not yet.

        Raises:
            ServiceBusError: It works on another server's entity, or cannot be done there; it can only be rolled back.
        """
        entry = self.find(name)
        transaction = entry.transaction
        if transaction.state != OPEN:
            raise transaction.refusal()
        if transaction.queue is not None:
            raise one_entity(transaction.queue.path, path or "an entity of another server")
        if entry.remote is not None and entry.remote.coordinator.is_gone:
            raise lost_with_its_owner()
        if entry.remote is None:
            if coordinator is None:
                raise ServerBusy("The server of the entity takes no transaction for now. Try again.")
            entry.remote, entry.remote_path = coordinator.declare(name), path
        elif entry.remote.coordinator is not coordinator:
            raise one_entity(entry.remote_path, path or "an entity of another server")
        return entry.remote

    # -- work ---------------------------------------------------------------------------------------------------

    def send(self, name: bytes, queue: Queue, batch: SendBatch | None, *, is_via: bool = False) -> None:
        """Add messages to a transaction; None for a transfer of which nothing is stored.

        ``is_via``: they are stored in the queue, and are for another.

        Raises:
            ServiceBusError: They cannot be part of it; it can only be rolled back now.
        """
        entry = self.find(name)
        if batch is None:
            return
        # What was unfinished until now is counted as such no more.
        self._peer.note_bytes(0)
        self._keep(entry, batch.bytes_total + WORK_BYTES * batch.n)
        with _Dooming(self, entry):
            transaction = entry.transaction
            (transaction.send_via if is_via else transaction.send)(queue, batch)

    def schedule(self, name: bytes, queue: Queue, batch: SendBatch) -> Reserve:
        """Add scheduled messages to a transaction; their numbers are reserved at once, and come to ``batch.reply``.

        Raises:
            ServiceBusError: They cannot be part of it; it can only be rolled back now.
        """
        entry = self.find(name)
        self._keep(entry, batch.bytes_total + WORK_BYTES * batch.n)
        with _Dooming(self, entry):
            reserve = entry.transaction.schedule(queue, batch)
        reserve.handle.submit(reserve)
        return reserve

    def cancel(self, name: bytes, queue: Queue, numbers: list[int]) -> None:
        """Add the cancellation of scheduled messages to a transaction; they must be there, and be so at its discharge.

        Raises:
            ServiceBusError: It cannot be part of it; it can only be rolled back now.
        """
        entry = self.find(name)
        self._keep(entry, WORK_BYTES * len(numbers))
        with _Dooming(self, entry):
            commands = queue.cancellations(numbers, None)
            for command in commands:
                fragment, now_ms = command.handle.present()
                error = fragment.check(command, now_ms)
                if error is not None:
                    raise error
            entry.transaction.cancel(queue, commands)

    def settle(
        self, deliveries: Deliveries, first: int, last: int, state: TransactionalState, *, settled: bool
    ) -> None:
        """Add the settlement of deliveries to a transaction and answer with the outcome that it will have."""
        # They stay unsettled: a rollback leaves them to be settled again, a lost connection gives them back at once.
        found = deliveries.settle(first, last, mark=False)
        known = sum(number for *_, number in found) + self._peer.router.named(first, last)
        if known <= (last - first) & 0xFFFFFFFF:
            # Their link is gone, or they are settled: nothing of this may be done without them (I34).
            self.doom(state.txn_id, lock_lost())
        for link, stretches in split(found).items():
            answer: DeliveryState
            try:
                answer = TransactionalState(state.txn_id, self._settle(state, link, deliveries, stretches))
            except ServiceBusError as error:
                answer = Rejected(self._peer.error(error, link.queue.path))
            if not settled:
                link.answer(stretches, answer)

    def _settle(
        self,
        state: TransactionalState,
        link: OutgoingLink,
        deliveries: Deliveries,
        stretches: list[tuple[DeliveryRun, int, int, int]],
    ) -> DeliveryState:
        entry = self.find(state.txn_id)
        with _Dooming(self, entry):
            commands, answer = link.settlements(stretches, state.outcome)
        self.add_settlements(state.txn_id, link.queue, commands, link.sub_queue)
        entry.named += [(deliveries, first, first + number - 1) for _, first, _, number in stretches]
        return answer

    def add_settlements(self, name: bytes, queue: Queue, commands: list[SettleBatch], sub_queue: int) -> None:
        """Add settlements in a sub-queue to a transaction; the locks must be held, and stay so until its discharge.

        Raises:
            ServiceBusError: They cannot be part of it; it can only be rolled back now.
        """
        entry = self.find(name)
        with _Dooming(self, entry):
            for command in commands:
                locks = [lock for first, number in command.ranges for lock in range(first, first + number)]
                if not command.handle.holds(command.source_no, command.prefix, locks):
                    raise lock_lost()
                self._keep(entry, WORK_BYTES * (1 + len(command.ranges)))
            entry.transaction.settle(queue, commands)
            if sub_queue:
                entry.dead_letters.update(dict.fromkeys(commands, sub_queue))

    def doom(self, name: bytes | None, error: ServiceBusError) -> None:
        """Work of a transaction, if it was part of one, could not be done: that can only be rolled back now."""
        entry = None if name is None else self._open.get(name)
        if entry is not None:
            entry.transaction.doom(error)
            self.let_go(entry)

    def dropped(self, event: WorkDropped) -> None:
        """Part of a transaction came on a link, or in a session, that was ended a moment ago."""
        self.doom(event.state.txn_id, DetachForced("A link was ended, so that part of it was not done."))

    # -- what it holds ------------------------------------------------------------------------------------------

    def _keep(self, entry: OpenTransaction, size: int) -> None:
        """Count bytes of a transaction in the server's budget, before it takes them."""
        with _Dooming(self, entry):
            if entry.remote is not None:
                raise one_entity(entry.remote_path, "one of this server")
            if self._kept + size > KEPT_BYTES_MAX:
                raise QuotaExceeded(
                    f"The open transactions of this connection would hold more than {KEPT_BYTES_MAX} bytes. Discharge "
                    "one first, or send large messages outside of transactions."
                )
            if not self._peer.server.budget.keep(size):
                raise ServerBusy("Open transactions fill the memory that the server has for them. Try again later.")
            self._kept += size
            entry.size += size

    def let_go(self, entry: OpenTransaction) -> int:
        """A transaction holds nothing any more; returns how many bytes it did."""
        size, entry.size = entry.size, 0
        self._kept -= size
        if size:
            self._peer.server.budget.drop(size)
        return size

    # -- the end ------------------------------------------------------------------------------------------------

    def tick(self, monotonic_ms: int) -> None:
        """Roll back what has taken too long; the name stays known, so that the client hears why."""
        if not self._coordinators:
            return
        for entry in self._open.values():
            transaction = entry.transaction
            if transaction.state == OPEN and monotonic_ms >= transaction.deadline_ms:
                seconds = TRANSACTION_MS // 1000
                transaction.doom(TransactionTimedOut(f"It was not discharged within {seconds} seconds."))
                self.let_go(entry)
                entry.give_up()
        for coordinator in list(self._coordinators):
            coordinator.tick(monotonic_ms)

    def end_all_of(self, coordinator: CoordinatorLink) -> None:
        """A coordinator link is gone: roll back everything that it declared (AMQP 1.0 part 4, 4.3)."""
        gone = [name for name, entry in self._open.items() if entry.coordinator is coordinator]
        for name in gone:
            entry = self._open.pop(name)
            self.let_go(entry)
            entry.give_up()

    def forget(self, coordinator: CoordinatorLink) -> None:
        """A coordinator link is gone, and nothing of it is under way any more: it needs no look at the clock."""
        self._coordinators.pop(coordinator, None)

    def committed(self, entry: OpenTransaction, work: list[Run | SettleBatch | CancelScheduled]) -> None:
        """What a transaction did is durable: its deliveries are settled, and its operations count."""
        for deliveries, first, last in entry.named:
            deliveries.settle(first, last)
        queue = entry.transaction.queue
        assert queue is not None  # it has done something
        for command in work:
            if isinstance(command, Run):
                batch = command.batch
                operations = batch.n
                if batch.bytes_total > OPERATION_BYTES:
                    operations = sum(operations_of(len(payload)) for payload in batch.payloads)
                self._peer.meter(queue, SEND, batch.n, batch.bytes_total, operations)
            elif isinstance(command, SettleBatch):
                number = sum(number for _, number in command.ranges)
                self._peer.meter(queue, SETTLE, number, 0, number, entry.dead_letters.get(command, MAIN))


class _Dooming:
    """Context in which an error means that a transaction can only be rolled back; what it holds is given up at once."""

    __slots__ = ("_entry", "_transactions")

    def __init__(self, transactions: Transactions, entry: OpenTransaction) -> None:
        self._transactions = transactions
        self._entry = entry

    def __enter__(self) -> None:
        """Nothing happens before an error."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ServiceBusError):
            self._entry.transaction.doom(error)
            self._transactions.let_go(self._entry)
