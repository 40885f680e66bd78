"""SessionLink: a client receives the messages of one session; and how a link comes to one (Azure: message sessions)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from duobus.amqp import ATTACHED, DeliveryState, Link, Rejected, Source, Target
from duobus.broker import Queue, SessionHolder, SessionReceiver, SettleBatch, session_lock_lost
from duobus.codec import Described, Symbol, ULong
from duobus.errors import ArgumentInvalid, NotAllowed, OperationTimeout, ServiceBusError
from duobus.gateway.amqp.arguments import demand, is_integer, map_of
from duobus.gateway.amqp.entity_status import demand_receiving
from duobus.gateway.amqp.links.link import Claim, Endpoint, about_entity
from duobus.gateway.amqp.links.outgoing_link import COUNTED_FROM, OutgoingLink
from duobus.gateway.amqp.links.session_writer import leave, session_writer_of
from duobus.gateway.amqp.mapping import ID_LENGTH_MAX
from duobus.model.batches import DeliveryBatch
from duobus.model.descriptions import Right

if TYPE_CHECKING:
    from duobus.gateway.amqp.deliveries import Deliveries, DeliveryRun
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.address import Address

SESSION_FILTER = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TIMEOUT = "com.microsoft:timeout"
#: Go describes the filter's value, and reads no answer whose value is bare: it closes the connection. Python, JS and
#: .NET read bare ones only, as they ask (Azure: message sessions).
_DESCRIPTORS = (ULong(0x000000137000000C), SESSION_FILTER)
#: How long an attach waits for a session when the client does not say, and at most (Azure: message sessions).
WAIT_DEFAULT_MS, WAIT_MAX_MS = 65_000, 3_600_000
#: How long before the time that the client gives it is told that there is none: Go's own timer ends then, at once or
#: up to 100 ms later, and a client that gives up first learns nothing of the reason.
AHEAD_MS = 20
#: Ticks of .NET: 100 ns since the year 1.
_TICKS_EPOCH, _TICKS_PER_MS = 621_355_968_000_000_000, 10_000


def wanted_session(filters: object) -> tuple[bool, str | None]:
    """Whether a source's filter asks for a session, and which; None: the next available (Azure: message sessions).

    Raises:
        ArgumentInvalid: It asks for something that is no session id.
    """
    is_there, _, value = _session_filter(filters)
    if value is None:
        return is_there, None
    session_id = demand(value, str, f"{SESSION_FILTER} is a string or null, not a {type(value).__name__}.")
    if len(session_id) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The session id has {len(session_id)} characters; at most {ID_LENGTH_MAX} are allowed.")
    return is_there, str(session_id)


def needs_session(kind: str, path: str) -> NotAllowed:
    """Why an entity that requires sessions has no receiver without one."""
    return NotAllowed(
        "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
        f"Attach to the {kind} '{path}' with the filter com.microsoft:session-filter, which names a session or is null "
        "for the next available."
    )


def _session_filter(filters: object) -> tuple[bool, ULong | Symbol | None, object]:
    """Whether the filter is there, the descriptor of its value if it has one of ours, and the value."""
    for key, value in map_of(filters).items():
        if str(key) == SESSION_FILTER:
            if isinstance(value, Described) and value.descriptor in _DESCRIPTORS:
                return True, value.descriptor, value.value
            return True, None, value
    return False, None, None


def attach_session(
    peer: Peer, link: Link, queue: Queue, address: Address, session_id: str | None, *, is_removing: bool
) -> None:
    """Give a link the session that it names, or let it wait for the next available one.

    Raises:
        SessionCannotBeLocked: Somebody has the session.
        StoreUnavailable: The store where it belongs is away.
    """
    pending = PendingSession(peer, link, queue, address, is_removing=is_removing)
    if session_id is not None:
        queue.accept_session(session_id, pending.receiver)
        pending.accepted()
        return
    peer.add_endpoint(link, pending)
    try:
        pending.wait()
    except ServiceBusError:
        peer.drop_endpoint(link)
        raise


class PendingSession(Endpoint):
    """A link whose attach is not answered yet, because it has no session.

    Attributes:
        receiver: What the link will receive with.
    """

    __slots__ = (
        "_descriptor",
        "_link",
        "_peer",
        "_source",
        "_target",
        "_timer",
        "_wait_ms",
        "queue",
        "receiver",
        "segments",
    )

    queue: Queue
    is_entity = True
    # Those that wait for a session must not get one that the same lost connection frees.
    closes_first = True

    def __init__(self, peer: Peer, link: Link, queue: Queue, address: Address, *, is_removing: bool) -> None:
        self._peer = peer
        self._link = link
        self.segments = address.segments()
        self.queue = queue
        self.receiver = SessionReceiver(removing=is_removing)
        self._timer: asyncio.TimerHandle | None = None
        remote = link.remote
        assert remote is not None  # it is the peer's attach that brought us here
        # Of the peer's words only what the answer repeats is kept; the rest may be large.
        _, self._descriptor, _ = _session_filter(getattr(remote.source, "filter", None))
        self._source = _small(Source, remote.source)
        self._target = _small(Target, remote.target)
        wait_ms: Any = (remote.properties or {}).get(TIMEOUT)
        given_ms = min(int(wait_ms), WAIT_MAX_MS) if is_integer(wait_ms) else WAIT_DEFAULT_MS
        self._wait_ms = max(0, given_ms - AHEAD_MS)

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint."""
        return ((self.segments, (Right.LISTEN,)),)

    def wait(self) -> None:
        """Stand in the queue of those who want any session, until the client's time is up."""
        self._timer = self._peer.server.loop.call_later(self._wait_ms / 1000, self._time_is_up)
        self.queue.wait_for_session(self)

    def _time_is_up(self) -> None:
        error = OperationTimeout(
            f"No session of '{self.queue.path}' with messages became free within {self._wait_ms} ms. Try again."
        )
        self._peer.detach(self._link, error, self.queue.path)

    def accepted(self) -> bool:
        """The receiver has a session: answer the attach; False when nobody waits for that any more."""
        self._stop()
        peer, link, receiver = self._peer, self._link, self.receiver
        session_id = receiver.lock.session_id
        described = session_id if self._descriptor is None else Described(self._descriptor, session_id)
        self._source.filter = {SESSION_FILTER: described}
        ticks = _TICKS_EPOCH + receiver.lock.until_ms * _TICKS_PER_MS
        is_there = not peer.is_gone and link.accept(
            source=self._source,
            target=self._target,
            max_message_size=self.queue.description.max_message_size_bytes,
            properties={LOCKED_UNTIL: ticks, **about_entity(self.queue.kind)},
        )
        if is_there:
            deliveries = peer.deliveries_of(link.session)
            kind = peer.server.link_kinds.session
            endpoint = kind(peer, link, self.queue, self.segments, receiver=receiver, deliveries=deliveries)
            peer.add_endpoint(link, endpoint)
            if link.credit or link.drain:
                # Given without waiting for the answer.
                endpoint.flow()
            peer.write_soon()
        return is_there

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def demand_enabled(self) -> None:
        """Raise EntityDisabled when the queue's status forbids this link."""
        demand_receiving(self.queue)

    def close(self) -> None:
        """The client gave up, or its time did."""
        self._stop()
        if self.queue.acceptor is not None:
            self.queue.acceptor.leave(self)


class SessionLink(OutgoingLink, SessionHolder):
    """One link on which a client receives the messages of one session, as long as it holds its lock."""

    __slots__ = ("_writer", "receiver")

    def __init__(
        self,
        peer: Peer,
        link: Link,
        queue: Queue,
        segments: tuple[str, ...],
        *,
        receiver: SessionReceiver,
        deliveries: Deliveries,
    ) -> None:
        self.receiver = receiver
        self._writer = session_writer_of(peer, link.session, queue, deliveries)
        super().__init__(
            peer,
            link,
            queue,
            segments,
            sub_queue=0,
            is_removing=receiver.removing,
            deliveries=deliveries,
            receiver=receiver,
        )
        receiver.mailbox = self
        self._pace = self._writer.pace

    @property
    def session_id(self) -> str:
        """Of the session."""
        return self.receiver.lock.session_id

    def entity_changed(self) -> None:
        """See OutgoingLink."""
        super().entity_changed()
        # Where messages may be large their bytes are counted, link by link; what is removed has waited already.
        is_shared = not self.is_removing and self._size_max <= COUNTED_FROM and self.receiver.gate is None
        self._writer.entity_changed()
        self.receiver.group = self._writer if is_shared else None

    @property
    def owes(self) -> bool:
        """See OutgoingLink."""
        return self.owed > 0 or self._writer.owes(self)

    # -- for the writer -----------------------------------------------------------------------------------------

    def takes(self, number: int) -> Link | None:
        """The link, if so many messages can be written to it at once, as far as it is concerned; they are, then."""
        link, receiver = self.link, self.receiver
        if self._unsent or link.credit < number or link.state != ATTACHED or receiver.is_closed:
            return None
        receiver.granted = granted = receiver.granted - number
        self._sent_since_drain += number
        asked = receiver.wanted + granted
        if self._draining or (asked <= self._pace.low and link.credit - number > asked):
            # The drain is to be answered; or there is more credit than was asked for at a time.
            self.wake()
        return link

    def keep(self, batch: DeliveryBatch) -> None:
        """Messages that cannot be written at once; of a link that is gone they are nobody's."""
        number = len(batch.messages)
        self.receiver.granted -= number
        if not self.receiver.is_closed:
            self._unsent.append((batch, 0))
            self._unsent_number += number
            self._give_back_surplus()
            self.wake()

    def is_even(self) -> None:
        """Outcomes that were owed have been told."""
        if self._draining:
            self.wake()
        if self.link.is_held and not self.owes:
            self.link.answer_detach()

    def settlements(
        self, found: list[tuple[DeliveryRun, int, int, int]], state: DeliveryState | None
    ) -> tuple[list[SettleBatch], DeliveryState]:
        """See OutgoingLink: the session, too, must be held when the transaction is discharged."""
        commands, answer = super().settlements(found, state)
        for command in commands:
            command.holder = self.receiver.lock
        return commands, answer

    def session_lost(self) -> None:
        """See Holder: the client learns by a detach (Azure: message sessions).

        What it has not settled is refused before that: settlements may be on their way, and clients wait for answers.
        """
        error = session_lock_lost(self.session_id)
        self._answer(self._deliveries.take(self), Rejected(self._peer.error(error, self.queue.path)))
        self._peer.detach(self.link, error, self.queue.path)

    def lost_error(self, error: ServiceBusError) -> ServiceBusError:
        """A lock that went with its session's."""
        return session_lock_lost(self.session_id) if self.receiver.lock.is_over else error

    def ask_no_more(self) -> None:
        """See OutgoingLink: what waits at the writer was never written, and goes back uncounted."""
        self._writer.distribute()
        super().ask_no_more()

    def close(self) -> None:
        """The link is gone, and its session free at once: what the client has of it goes back, in order.

        Deliveries count when the connection died, not when the client closed the link (Azure: message sessions).
        """
        super().close()
        self.receiver.give_back(counted=self._peer.is_gone)
        leave(self._writer, self._deliveries)


def _small(kind: type[Any], terminus: object) -> Any:
    """What an attach says of a terminus, without what may be large."""
    if terminus is None:
        return kind()
    return kind(
        address=getattr(terminus, "address", None),
        durable=getattr(terminus, "durable", None),
        timeout=getattr(terminus, "timeout", None),
    )
