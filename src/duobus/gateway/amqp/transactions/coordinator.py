"""CoordinatorLink: the link on which a client declares and discharges transactions (AMQP 1.0 part 4, 4.3).

A discharge that commits is one ``Group``: a message broker checks all of it, writes all of it in one commit, and only
then it is answered. When that commit fails the store itself knows whether it holds it; the answer waits for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Link,
    Rejected,
    TransferRefused,
    Transfers,
)
from duobus.broker import Group
from duobus.broker.transaction import DOOMED
from duobus.codec import DecodeError, Described, decode, scan
from duobus.codec.sections import VALUE, find_section
from duobus.errors import (
    InternalError,
    MessageTooLarge,
    NotAllowed,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTimedOut,
    Undecodable,
)
from duobus.gateway.amqp.links.link import Endpoint
from duobus.gateway.amqp.transactions.participant import CREDIT as REMOTE_CREDIT
from duobus.gateway.amqp.transactions.participant import NAME_MAX, lost_with_its_owner, rolled_back_with
from duobus.gateway.amqp.transactions.transactions import OpenTransaction
from duobus.model.batches import Mailbox

if TYPE_CHECKING:
    from duobus.gateway.amqp.peer import Peer

#: What a coordinator offers (AMQP 1.0 part 4, 4.3).
LOCAL_TRANSACTIONS: Final = "amqp:local-transactions"
#: Declares and discharges that a link may have under way.
CREDIT: Final = 100
#: A declare or a discharge has some 50 bytes.
REQUEST_BYTES_MAX: Final = 4_096
#: How long a discharge may wait for a store that fell ill under it: as long as SDKs wait for an answer.
DISCHARGE_MS: Final = 60_000

_DECLARE = (0x31, "amqp:declare:list")
_DISCHARGE = (0x32, "amqp:discharge:list")


class Discharge:
    """A transaction whose work is on its way to its store.

    Attributes:
        entry: The transaction.
        delivery_id: Of the discharge; None when nobody waits for an answer.
        size: Bytes that it carries.
        until_ms: When its coordinator gives up waiting for the store.
    """

    __slots__ = ("delivery_id", "entry", "size", "until_ms")

    def __init__(self, entry: OpenTransaction, delivery_id: int | None, size: int, until_ms: int) -> None:
        self.entry = entry
        self.delivery_id = delivery_id
        self.size = size
        self.until_ms = until_ms


class CoordinatorLink(Mailbox, Endpoint):
    """One link to the coordinator; it ends, and rolls back, every transaction that it declared."""

    __slots__ = ("_discharges", "_in_progress", "_link", "_peer", "_remote", "is_waiting", "segments")

    is_coordinator = True
    # What an open transaction has done it did with a right that may be gone, and is rolled back.
    needs_every_right = True

    def __init__(self, peer: Peer, link: Link) -> None:
        super().__init__()
        self._peer = peer
        self._link = link
        link.holds_detach = True
        self.segments: tuple[str, ...] = ()
        self.is_waiting = False
        # What a store has not decided yet. A dict, for simulations must do the same every time.
        self._discharges: dict[Group, Discharge] = {}
        # Those among them that were not given up.
        self._in_progress: dict[Group, None] = {}
        # What other servers have not answered yet.
        self._remote: dict[OpenTransaction, int | None] = {}

    @property
    def owes(self) -> bool:
        """Whether discharges are on their way to a store, and their outcomes not told yet."""
        return bool(self._in_progress or self._remote)

    def start(self) -> None:
        """Give the first credit, as soon as other servers do what transactions on their entities need."""
        if not self._link.is_attached:
            return
        is_proxied = self._peer.router.is_proxied
        self._link.grant(REMOTE_CREDIT if is_proxied else CREDIT)
        self._peer.write_soon()

    def wake(self) -> None:
        """See Mailbox."""
        if not self.is_waiting:
            self.is_waiting = True
            self._peer.schedule(self)

    # -- in -----------------------------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """Declare and discharge, in order."""
        for index, payload in enumerate(event.payloads):
            delivery_id = (event.first_delivery_id + index) & 0xFFFFFFFF
            state: DeliveryState | None
            try:
                state = self._do(payload, delivery_id, settled=event.settled)
            except ServiceBusError as error:
                state = self._rejected(error)
            if state is not None and not event.settled:
                self._link.settle(delivery_id, delivery_id, state)
        if self._peer.router.is_proxied:
            if self._link.credit <= REMOTE_CREDIT // 2:
                self._link.grant(REMOTE_CREDIT)
        elif self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT - len(self._in_progress) - len(self._remote))

    def _do(self, payload: bytes, delivery_id: int, *, settled: bool) -> DeliveryState | None:
        """Do what a message to the coordinator asks for; None when its answer comes later."""
        code, fields = request_of(payload)
        transactions = self._peer.transactions
        if code in _DECLARE:
            if settled:
                raise NotAllowed("A declare has to be unsettled: its outcome is what names the transaction.")
            return Declared(transactions.declare(self, self._given_name(fields[0])))
        name, fail = fields[0], fields[1]
        if not isinstance(name, bytes) or not (fail is None or fail is True or fail is False):
            raise Undecodable("A discharge has the transaction's id, a binary, and whether it failed, a boolean.")
        entry = transactions.take(name)
        if fail:
            transactions.let_go(entry)
            entry.give_up()
            return ACCEPTED
        transaction = entry.transaction
        if transaction.state == DOOMED:
            entry.give_up()
            reason = transaction.doom_error
            raise reason if isinstance(reason, TransactionTimedOut) else transaction.refusal()
        if entry.remote is None:
            self._commit(entry, None if settled else delivery_id)
        else:
            if entry.remote.coordinator.is_gone:
                entry.give_up()
                raise lost_with_its_owner()
            self._remote[entry] = None if settled else delivery_id
            entry.remote.coordinator.commit(name, entry.remote, partial(self._answered, entry))
        return None

    def _given_name(self, name: Any) -> bytes | None:
        """The name that another server gives a transaction of its client; clients cannot."""
        if name is None or not self._peer.router.is_proxied:
            return None
        if not isinstance(name, bytes) or not 0 < len(name) <= NAME_MAX:
            raise Undecodable(f"The name of a transaction is a binary of {NAME_MAX} bytes at most.")
        return name

    def _answered(self, entry: OpenTransaction, state: DeliveryState | ServiceBusError | None) -> None:
        """The server that does a transaction has answered its discharge, or never will."""
        delivery_id = self._remote.pop(entry, None)
        if entry.remote is not None:
            entry.remote.ended(is_committed=state is not None and not rolled_back_with(state))
        if self._peer.is_gone:
            return
        if state is None:
            error = InternalError(
                "The way to the server of the entity has ended before it said what became of the transaction: all of "
                "it or nothing is done. Look before you do it again."
            )
            self._peer.detach(self._link, error, "$coordinator")
        elif delivery_id is not None and self._link.is_attached:
            answer = self._rejected(state) if isinstance(state, ServiceBusError) else state
            self._link.settle(delivery_id, delivery_id, answer)
        if not self.owes:
            self._rest()
        self._peer.write_soon()

    def _commit(self, entry: OpenTransaction, delivery_id: int | None) -> None:
        peer = self._peer
        group = Group(entry.transaction.take(), self)
        size = peer.transactions.let_go(entry)
        peer.note_bytes(size)
        until_ms = peer.server.clock.monotonic_ms() + DISCHARGE_MS
        self._discharges[group] = Discharge(entry, delivery_id, size, until_ms)
        self._in_progress[group] = None
        handle = entry.transaction.handle
        if handle is None:
            # It has done nothing, so there is nothing to write.
            self.ready.append(group)
            self.wake()
        else:
            handle.submit(group)

    def refused(self, event: TransferRefused) -> None:
        """A request that the engine did not take in: too large."""
        if not event.settled:
            error = MessageTooLarge(f"A request to the coordinator may have {REQUEST_BYTES_MAX} bytes at most.")
            self._link.settle(event.delivery_id, event.delivery_id, self._rejected(error))

    # -- out ----------------------------------------------------------------------------------------------------

    def deliver_answers(self) -> None:
        """Answer the discharges that are decided; called once a turn."""
        self.is_waiting = False
        answers, self.ready = self.ready, []
        for group in answers:
            discharge = self._discharges.pop(group)
            self._peer.note_bytes(-discharge.size)
            if group.error is None and group.members:
                self._peer.transactions.committed(discharge.entry, group.members)
            if self._in_progress.pop(group, self) is self:
                # Given up: the link was detached for it.
                continue
            delivery_id = discharge.delivery_id
            if delivery_id is not None and not self._peer.is_gone:
                state = ACCEPTED if group.error is None else self._rejected(_rolled_back(group.error))
                self._link.settle(delivery_id, delivery_id, state)
        if not self.owes:
            self._rest()

    def _rest(self) -> None:
        """Nothing is under way: answer a client that has detached, and be forgotten if the link is gone."""
        self._link.answer_detach()
        if not self._link.is_attached:
            self._peer.transactions.forget(self)

    def _rejected(self, error: ServiceBusError) -> Rejected:
        return Rejected(self._peer.error(error, "$coordinator"))

    # -- the end ------------------------------------------------------------------------------------------------

    def tick(self, monotonic_ms: int) -> None:
        """Give up on a discharge whose store fell ill and does not come back: nobody knows what became of it."""
        if any(monotonic_ms >= self._discharges[group].until_ms for group in self._in_progress):
            self._in_progress.clear()
            error = InternalError(
                "The messaging store failed while it wrote the transaction, and did not come back in time to tell "
                "whether it holds it: all of it or nothing is done. Look before you do it again."
            )
            self._peer.detach(self._link, error, "$coordinator")
            self._rest()

    def close(self) -> None:
        """The link is gone: what it declared and did not discharge is rolled back."""
        self._peer.transactions.end_all_of(self)
        if not self.owes:
            self._rest()


def request_of(payload: bytes) -> tuple[Any, list[Any]]:
    """The descriptor and the fields of a declare or a discharge.

    Raises:
        Undecodable: It is neither.
    """
    try:
        bare = payload[scan(payload).bare :]
        start, value, _ = find_section(bare, VALUE)
        body = None if start == value else decode(bare, value)[0]
    except DecodeError as error:
        raise Undecodable(f"The request to the coordinator cannot be decoded: {error}") from error
    if isinstance(body, Described) and isinstance(body.value, list) and body.descriptor in (*_DECLARE, *_DISCHARGE):
        return body.descriptor, [*body.value, None, None]
    raise Undecodable("The coordinator takes an amqp-value with a declare (0x31) or a discharge (0x32).")


def _rolled_back(error: ServiceBusError) -> ServiceBusError:
    return TransactionRolledBack(f"The transaction was rolled back, nothing of it was done: {error}")


# -- attaching --------------------------------------------------------------------------------------------------


def attach_coordinator(peer: Peer, link: Link) -> None:
    """Accept a link to the coordinator; it needs no right, for each use of an entity is authorised by itself."""
    endpoint = CoordinatorLink(peer, link)
    link.accept(target=Coordinator(capabilities=[LOCAL_TRANSACTIONS]), max_message_size=REQUEST_BYTES_MAX)
    peer.add_endpoint(link, endpoint)
    peer.transactions.begin(endpoint)
    peer.router.coordinate(endpoint.start)
