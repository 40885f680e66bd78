"""SessionLink: a client receives the messages of one session; and how a link comes to one (contract chapter 11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from duobus.amqp import Link, Rejected, Source, Target
from duobus.broker import Holder, Queue, SessionReceiver, session_lock_lost
from duobus.codec import Described, Symbol, ULong
from duobus.errors import ArgumentInvalid, OperationTimeout, ServiceBusError
from duobus.gateway.amqp.mapping import ID_LENGTH_MAX
from duobus.gateway.amqp.outgoing_link import OutgoingLink

if TYPE_CHECKING:
    from duobus.gateway.amqp.deliveries import Deliveries
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.address import Address

SESSION_FILTER = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TIMEOUT = "com.microsoft:timeout"
#: Go describes the filter's value (contract 11.1).
_DESCRIPTORS = (ULong(0x000000137000000C), SESSION_FILTER)
#: How long an attach waits for a session when the client does not say, and at most (contract 11.2).
WAIT_DEFAULT_MS, WAIT_MAX_MS = 65_000, 3_600_000
#: Ticks of .NET: 100 ns since the year 1.
_TICKS_EPOCH, _TICKS_PER_MS = 621_355_968_000_000_000, 10_000


def wanted_session(filters: object) -> tuple[bool, str | None]:
    """Whether a source's filter asks for a session, and which; None: the next available (contract 11.1).

    Raises:
        ArgumentInvalid: It asks for something that is no session id.
    """
    if not isinstance(filters, dict):
        return False, None
    for key, value in filters.items():
        if str(key) != SESSION_FILTER:
            continue
        if isinstance(value, Described) and value.descriptor in _DESCRIPTORS:
            value = value.value
        if value is not None and not isinstance(value, str):
            raise ArgumentInvalid(f"{SESSION_FILTER} is a string or null, not a {type(value).__name__}.")
        if value is not None and len(value) > ID_LENGTH_MAX:
            raise ArgumentInvalid(f"The session id has {len(value)} characters; at most {ID_LENGTH_MAX} are allowed.")
        return True, None if value is None else str(value)
    return False, None


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


class PendingSession:
    """A link whose attach is not answered yet, because it has no session.

    Attributes:
        receiver: What the link will receive with.
    """

    __slots__ = ("_address", "_link", "_peer", "_source", "_target", "_timer", "_wait_ms", "queue", "receiver")

    def __init__(self, peer: Peer, link: Link, queue: Queue, address: Address, *, is_removing: bool) -> None:
        self._peer = peer
        self._link = link
        self._address = address
        self.queue = queue
        self.receiver = SessionReceiver(removing=is_removing)
        self._timer: asyncio.TimerHandle | None = None
        remote = link.remote
        assert remote is not None  # it is the peer's attach that brought us here
        # Of the peer's words only what the answer repeats is kept; the rest may be large.
        self._source = _small(Source, remote.source)
        self._target = _small(Target, remote.target)
        wait_ms = (remote.properties or {}).get(TIMEOUT)
        is_given = isinstance(wait_ms, int) and not isinstance(wait_ms, bool)
        self._wait_ms = max(0, min(int(wait_ms), WAIT_MAX_MS)) if is_given else WAIT_DEFAULT_MS  # type: ignore[arg-type]

    @property
    def segments(self) -> tuple[str, ...]:
        """Of the entity's address."""
        return self._address.segments()

    def wait(self) -> None:
        """Stand in the queue of those who want any session, until the client's time is up."""
        self._timer = self._peer.door.loop.call_later(self._wait_ms / 1000, self._time_is_up)
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
        self._source.filter = {SESSION_FILTER: receiver.lock.session_id}
        ticks = _TICKS_EPOCH + receiver.lock.until_ms * _TICKS_PER_MS
        is_there = not peer.is_gone and link.accept(
            source=self._source,
            target=self._target,
            max_message_size=self.queue.description.max_message_size_bytes,
            properties={LOCKED_UNTIL: ticks},
        )
        if is_there:
            deliveries = peer.deliveries_of(link.session)
            endpoint = SessionLink(peer, link, self.queue, self.segments, receiver=receiver, deliveries=deliveries)
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

    def deliver_answers(self) -> None:
        """Nothing comes from the broker while there is no session."""

    def pump(self) -> None:
        """Nothing waits for the socket."""

    def close(self) -> None:
        """The client gave up, or its time did."""
        self._stop()
        if self.queue.acceptor is not None:
            self.queue.acceptor.leave(self)


class SessionLink(OutgoingLink, Holder):
    """One link on which a client receives the messages of one session, as long as it holds its lock."""

    __slots__ = ("receiver",)

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
        self.receiver = receiver
        receiver.mailbox = self

    @property
    def session_id(self) -> str:
        """Of the session."""
        return self.receiver.lock.session_id

    def session_lost(self) -> None:
        """See Holder: the client learns by a detach (contract 11.5).

        What it has not settled is refused before that: settlements may be on their way, and clients wait for answers.
        """
        error = session_lock_lost(self.session_id)
        self._answer(self._deliveries.take(self), Rejected(self._peer.error(error, self.queue.path)))
        self._peer.detach(self._link, error, self.queue.path)

    def lost_error(self, error: ServiceBusError) -> ServiceBusError:
        """A lock that went with its session's."""
        return session_lock_lost(self.session_id) if self.receiver.lock.is_over else error

    def close(self) -> None:
        """The link is gone, and its session free at once: what the client has of it goes back, in order.

        Deliveries count when the connection died, not when the client closed the link (contract 11.5).
        """
        super().close()
        self.receiver.give_back(counted=self._peer.is_gone)


def _small(kind: type[Any], terminus: object) -> Any:
    """What an attach says of a terminus, without what may be large."""
    if terminus is None:
        return kind()
    return kind(
        address=getattr(terminus, "address", None),
        durable=getattr(terminus, "durable", None),
        timeout=getattr(terminus, "timeout", None),
    )
