"""IncomingLink: a client sends. Deliveries become SendBatches, what the broker releases becomes dispositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duobus.amqp import ACCEPTED, Link, Rejected, TransactionalState, TransferRefused, Transfers
from duobus.broker import Queue, Throttle, address
from duobus.codec import BATCH_FORMAT, DecodeError, sent_size, split_batch
from duobus.errors import MessageTooLarge, NotImplementedYet, ServerBusy, ServiceBusError, Undecodable
from duobus.gateway.amqp.entity_status import demand_sending
from duobus.gateway.amqp.links.link import Claim, Endpoint, via_entity
from duobus.gateway.amqp.mapping import (
    Incoming,
    envelope_key,
    plain_bare,
    plain_offset,
    plain_session_batch,
    take_apart,
    take_session_apart,
)
from duobus.model.address import are_shards_of_one
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import Right
from duobus.model.metering import OPERATION_BYTES, PING, SEND, operations_of

if TYPE_CHECKING:
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.assigned_ids import MessageIds

#: Credit of a sending client: above what one client keeps in flight in the reference workloads (1,000), so that
#: credit is not what it waits for.
CREDIT = 2000
#: How long a client that was refused for its namespace's rate gets no further credit: less than the second after which
#: JavaScript gives up.
HELD_BACK_S = 0.5


class IncomingLink(Mailbox, Endpoint):
    """One link on which a client sends to a queue."""

    __slots__ = (
        "_credit",
        "_ids",
        "_is_held",
        "_is_stopping",
        "_link",
        "_low",
        "_owed",
        "_peer",
        "_throttle",
        "is_waiting",
        "queue",
        "segments",
    )

    queue: Queue
    is_entity = True
    #: What it brings is for another entity, and is stored by this one first.
    is_via = False

    def __init__(self, peer: Peer, link: Link, queue: Queue, segments: tuple[str, ...]) -> None:
        super().__init__()
        self._peer = peer
        self._link = link
        self.queue = queue
        self.segments = segments
        self.is_waiting = False
        # Messages whose outcome is owed: credit is given again as they are answered.
        self._owed = 0
        self._is_stopping = False
        self._ids = peer.server.unit.message_ids
        self._throttle = peer.throttle
        # No more than can be admitted in a second: what is refused has cost its reading, and a line in the log.
        self._credit = CREDIT if self._throttle is None else min(CREDIT, self._throttle.rate)
        self._low = max(self._credit // 2, 1)
        self._is_held = False

    @property
    def owes(self) -> bool:
        """Whether messages are on their way to a store, and their outcomes not told yet."""
        return self._owed > 0

    def start(self) -> None:
        """Give the first credit, at once."""
        self._link.grant(self._credit)

    def stop(self) -> None:
        """Take the credit back and give none again; what was sent before the client knows is still taken."""
        self._is_stopping = True
        self._link.grant(0)

    def demand_enabled(self) -> None:
        """Raise EntityDisabled when the queue's status forbids this link."""
        demand_sending(self.queue)

    def entity_changed(self) -> None:
        """The queue has other properties: what is too large is told from now on by the new limit."""
        self._link.max_message_size = self.queue.description.max_message_size_bytes

    def wake(self) -> None:
        """See Mailbox."""
        if not self.is_waiting:
            self.is_waiting = True
            self._peer.schedule(self)

    # -- in -----------------------------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """Hand the deliveries of one read to the broker."""
        if self._throttle is not None and event.state is None and not self._admit(event, self._throttle):
            return
        if event.state is not None:
            if self._peer.router.send_via(self._link, event):
                self._top_up()
            else:
                self._in_state(event)
        elif event.message_format == BATCH_FORMAT:
            for index, payload in enumerate(event.payloads):
                self._batch(event.first_delivery_id + index, payload, event.settled)
        else:
            self._singles(event)

    def _admit(self, event: Transfers, throttle: Throttle) -> bool:
        """Refuse what is beyond the namespace's rate; False when that is all of it. Batches are counted when opened."""
        number = len(event.payloads)
        if event.message_format == BATCH_FORMAT:
            return True
        admitted = throttle.admit(number)
        if admitted < number:
            event.payloads = event.payloads[:admitted]
            first = (event.first_delivery_id + admitted) & 0xFFFFFFFF
            self._throttled(first, number - admitted, event.settled, throttle)
        return admitted > 0

    def _throttled(self, first_delivery_id: int, number: int, settled: bool, throttle: Throttle) -> None:
        """Refuse what is beyond the rate; credit comes again a little later."""
        if not self._is_held:
            self._is_held = True
            self._peer.server.loop.call_later(HELD_BACK_S, self._let_go)
        self._reject(first_delivery_id, number, settled, throttle.refusal())

    def _let_go(self) -> None:
        self._is_held = False
        self._top_up()
        self._peer.write_soon()

    def refused(self, event: TransferRefused) -> None:
        """A delivery that the engine did not take in: too large."""
        limit = self.queue.description.max_message_size_bytes
        error: ServiceBusError
        if event.size <= limit:
            # The engine had no room for it beside the connection's other unfinished deliveries.
            error = ServerBusy("Too many large messages are under way on this connection. Please wait 2 seconds.")
        else:
            error = self._too_large(limit)
        if isinstance(event.state, TransactionalState):
            self._peer.transactions.doom(event.state.txn_id, error)
        self._reject(event.delivery_id, 1, event.settled, error)

    def _too_large(self, limit: int) -> MessageTooLarge:
        return MessageTooLarge(f"The message has more than the {limit} bytes that '{self.queue.path}' allows.")

    def _in_state(self, event: Transfers) -> None:
        """One delivery with a state.

        Part of a transaction, which keeps it until its discharge (AMQP 1.0 part 4, 4.4).
        """
        delivery_id, (payload,), state = event.first_delivery_id, event.payloads, event.state
        transactions = self._peer.transactions
        try:
            if not isinstance(state, TransactionalState):
                raise NotImplementedYet("Deliveries are not resumed: send without a state, or in a transaction.")
            try:
                is_batch = event.message_format == BATCH_FORMAT
                batch = self._atomic(delivery_id, payload, is_batch=is_batch)
                throttle = self._throttle
                if batch is not None and throttle is not None and not throttle.admit_whole(batch.n):
                    raise throttle.refusal()
            except ServiceBusError as error:
                transactions.doom(state.txn_id, error)
                raise
            self._send_in(state.txn_id, batch)
        except ServiceBusError as error:
            self._reject(delivery_id, 1, event.settled, error)
            return
        if not event.settled:
            self._link.settle(delivery_id, delivery_id, TransactionalState(state.txn_id, ACCEPTED))
        self._top_up()

    def _send_in(self, txn_id: bytes, batch: SendBatch | None) -> None:
        """Add messages to a transaction.

        On a session for transactions across entities those to another than its first go via that one (Azure:
        transaction processing).
        """
        via = via_entity(self._peer, self._link.session)
        if via is None or via is self.queue or batch is None or are_shards_of_one(via.path, self.queue.path):
            self._peer.transactions.send(txn_id, self.queue, batch)
        else:
            address(batch, via, self.queue.path)
            self._peer.transactions.send(txn_id, via, batch, is_via=True)

    def _singles(self, event: Transfers) -> None:
        if self.queue.description.requires_session:
            self._of_sessions(event)
            return
        looks_for_keys = self.queue.looks_for_keys
        bare: list[bytes] = []
        for payload in event.payloads:
            offset = plain_offset(payload, looks_for_keys)
            if offset < 0:
                if offset == -1:
                    self._singles_with_metadata(event)
                    return
                bare.append(plain_bare(payload, offset, self._ids))
                continue
            bare.append(payload[offset:] if offset else payload)
        self._send(SendBatch(event.first_delivery_id, bare, not event.settled, self))

    def _of_sessions(self, event: Transfers) -> None:
        batch = plain_session_batch(
            event.first_delivery_id,
            event.payloads,
            not event.settled,
            self,
            with_keys=self.queue.is_partitioned,
            ids=self._ids,
        )
        if batch is None:
            self._singles_with_metadata(event)
        else:
            self._send(batch)

    def _singles_with_metadata(self, event: Transfers) -> None:
        """The same for a read in which at least one message is not plain; refused ones and pings part the run."""
        take = take_session_apart if self.queue.description.requires_session else take_apart
        run: list[Incoming] = []
        first = event.first_delivery_id
        for index, payload in enumerate(event.payloads):
            delivery_id = event.first_delivery_id + index
            try:
                incoming = take(payload, self._ids)
                self._demand_session(incoming)
            except ServiceBusError as error:
                self._send_parts(first, run, not event.settled)
                self._reject(delivery_id, 1, event.settled, error)
            else:
                if not incoming.is_ping:
                    run.append(incoming)
                    continue
                self._send_parts(first, run, not event.settled)
                ping = SendBatch(delivery_id, [incoming.bare], not event.settled, self)
                ping.ping = True
                metadata = incoming.metadata
                if self.queue.is_partitioned and metadata is not None and metadata.partition_key is not None:
                    # It asks for the fragment of that key. Its session id is a made-up one, so that it is taken at all.
                    ping.keys = [incoming.key]
                self._send(ping)
            run, first = [], delivery_id + 1
        self._send_parts(first, run, not event.settled)

    def _demand_session(self, incoming: Incoming) -> None:
        self.queue.demand_session(incoming.metadata, is_ping=incoming.is_ping)

    def _send_parts(self, first_delivery_id: int, parts: list[Incoming], unsettled: bool) -> None:
        if parts:
            self._send(self._columns(first_delivery_id, parts, unsettled=unsettled))

    def _columns(self, first_delivery_id: int, parts: list[Incoming], *, unsettled: bool) -> SendBatch:
        batch = SendBatch(first_delivery_id & 0xFFFFFFFF, [part.bare for part in parts], unsettled, self)
        extra = {index: part.metadata for index, part in enumerate(parts) if part.metadata is not None}
        if extra:
            batch.extra = extra
        if self.queue.is_partitioned and any(part.key is not None for part in parts):
            batch.keys = [part.key for part in parts]
        return batch

    def _batch(self, delivery_id: int, payload: bytes, settled: bool) -> None:
        """One batch transfer: its inner messages are stored as a whole or not at all."""
        try:
            batch = self._atomic(delivery_id, payload, is_batch=True)
        except ServiceBusError as error:
            self._reject(delivery_id, 1, settled, error)
            return
        if batch is None:
            # Nothing to store; the empty batch is accepted all the same.
            if not settled:
                self._link.settle(delivery_id, delivery_id, ACCEPTED)
            self._top_up(1)
            return
        if self._throttle is not None and not self._throttle.admit_whole(batch.n):
            self._throttled(delivery_id, 1, settled, self._throttle)
            return
        batch.unsettled = not settled
        self._send(batch)

    def _atomic(self, delivery_id: int, payload: bytes, *, is_batch: bool) -> SendBatch | None:
        """One transfer as something that is stored as a whole; None when nothing of it is to be stored.

        Raises:
            ServiceBusError: A message of it cannot be taken.
        """
        take = take_session_apart if self.queue.description.requires_session else take_apart
        parts = runs_of(payload, take, self._ids) if is_batch else [take(payload, self._ids)]
        limit = self.queue.description.max_message_size_bytes
        is_large = len(payload) > limit
        for part in parts:
            if is_large and sent_size(part.bare) > limit:
                # The envelope may pass the limit, a message within may not.
                raise self._too_large(limit)
            self._demand_session(part)
        parts = [part for part in parts if not part.is_ping]
        if not parts:
            return None
        batch = self._columns(delivery_id, parts, unsettled=True)
        batch.atomic = True
        return batch

    def _send(self, batch: SendBatch) -> None:
        self._owed += 1 if batch.atomic else batch.n
        self._peer.note_bytes(batch.bytes_total)
        if self.is_via and not batch.ping:
            self.queue.send_via(batch)
        else:
            self.queue.send(batch)

    # -- out ----------------------------------------------------------------------------------------------------

    def deliver_answers(self) -> None:
        """Turn what the broker released into dispositions, in ranges; called once a turn."""
        self.is_waiting = False
        answers, self.ready = self.ready, []
        accepted: list[tuple[int, int]] = []
        # What is in parts of batches, of which a queue of many fragments makes many.
        parts: list[int] = []
        sent = sent_bytes = sent_operations = freed = 0
        for answer in answers:
            batch, indices, error = answer.batch, answer.indices, answer.error
            if indices is None and batch.bytes_total <= OPERATION_BYTES:
                number, size, operations = batch.n, batch.bytes_total, batch.n
            else:
                number, size, operations = _weight_of(batch, indices)
            freed += size
            self._owed -= 1 if batch.atomic else number
            if error is not None:
                if batch.unsettled:
                    self._refuse(_delivery_ids(batch, indices), error)
                continue
            if batch.ping:
                self._peer.meter(self.queue, PING, number, size, operations)
            else:
                sent += number
                sent_bytes += size
                sent_operations += operations
            if not batch.unsettled:
                continue
            first = batch.first_delivery_id
            if indices is None or batch.atomic:
                accepted.append((first, first if batch.atomic else first + batch.n - 1))
            else:
                parts += [first + index for index in indices]
        self._peer.note_bytes(-freed)
        if sent:
            self._peer.meter(self.queue, SEND, sent, sent_bytes, sent_operations)
        if not self._peer.is_gone and not self.queue.has_moved:
            self._accept(accepted + _ranges(parts) if parts else accepted)

    def _accept(self, ranges: list[tuple[int, int]]) -> None:
        """Tell the client what is stored, and give credit again."""
        for first, last in _merged(ranges) if len(ranges) > 1 else ranges:
            self._link.settle(first & 0xFFFFFFFF, last & 0xFFFFFFFF, ACCEPTED)
        if self._link.credit <= self._low:
            self._top_up()

    def _refuse(self, ranges: list[tuple[int, int]], error: ServiceBusError) -> None:
        state = Rejected(self._peer.error(error, self.queue.path))
        # What was under way to a store that has another owner now may be stored or not: nobody may be told either.
        if not self._peer.is_gone and not self.queue.has_moved:
            for first, last in ranges:
                self._link.settle(first & 0xFFFFFFFF, last & 0xFFFFFFFF, state)

    def _reject(self, first_delivery_id: int, number: int, settled: bool, error: ServiceBusError) -> None:
        """Refuse deliveries that never reached the broker."""
        if not settled:
            self._refuse([(first_delivery_id, first_delivery_id + number - 1)], error)
        self._top_up()

    def _top_up(self, low: int | None = None) -> None:
        """Give credit again, when ``low`` (half of all) is left: what is promised and owed stays within its credit."""
        if self._is_stopping or self._is_held:
            return
        if self._link.credit <= (self._low if low is None else low) and self._credit - self._owed > self._link.credit:
            self._link.grant(self._credit - self._owed)

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint."""
        return ((self.segments, (Right.SEND,)),)

    def close(self) -> None:
        """The link is gone; what it sent is stored all the same, and nobody is told."""
        self._is_stopping = True


def runs_of(
    payload: bytes, take: Callable[[bytes, MessageIds | None], Incoming], ids: MessageIds | None = None
) -> list[Incoming]:
    """The messages of a batch transfer, each taken apart, and with an id if there are ``ids``."""
    try:
        envelope, messages = split_batch(payload)
    except DecodeError as error:
        raise Undecodable(f"The batch cannot be decoded: {error}") from error
    parts = [take(message, ids) for message in messages]
    if not any(part.key is not None for part in parts):
        # An envelope speaks for messages that say nothing themselves.
        key = envelope_key(envelope)
        parts = [part._replace(key=key) for part in parts]
    return parts


def _delivery_ids(batch: SendBatch, indices: list[int] | None) -> list[tuple[int, int]]:
    first = batch.first_delivery_id
    if batch.atomic:
        return [(first, first)]
    if indices is None:
        return [(first, first + batch.n - 1)]
    return _ranges([first + index for index in indices])


def _weight_of(batch: SendBatch, indices: list[int] | None) -> tuple[int, int, int]:
    """Number, bytes and operations of the messages with these indices; None: of all."""
    payloads = batch.payloads
    if indices is None:
        number, size = batch.n, batch.bytes_total
    else:
        payloads = [payloads[index] for index in indices]
        number, size = len(indices), sum(map(len, payloads))
    if size > OPERATION_BYTES and max(map(len, payloads)) > OPERATION_BYTES:
        return number, size, sum(operations_of(len(payload)) for payload in payloads)
    return number, size, number


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers as ranges of neighbours."""
    if not numbers:
        return []
    numbers.sort()
    first = last = numbers[0]
    if numbers[-1] - first == len(numbers) - 1:
        return [(first, numbers[-1])]
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if number > last + 1:
            ranges.append((first, last))
            first = number
        last = number
    ranges.append((first, last))
    return ranges


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring ranges as one; never over ids that are not in them (AMQP 1.0 part 2, 2.7.6: keep ranges tight)."""
    ranges.sort()
    merged = [ranges[0]]
    for first, last in ranges[1:]:
        if first == merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged
