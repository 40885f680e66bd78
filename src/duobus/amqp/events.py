"""What the engine tells its owner.

An event is a plain object; nothing in it changes once it was returned, except the links and sessions that it names.

A SessionEnded stands for all links of the session, a Closed for all sessions: no events of their own follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duobus.amqp.delivery_states import DeliveryState, TransactionalState
    from duobus.amqp.errors import Error
    from duobus.amqp.link import Link
    from duobus.amqp.session import Session


class Event:
    """Parent of all events."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # Compiled classes call it otherwise (decision 0008).
        names = getattr(self, "__slots__", ()) or getattr(self, "__mypyc_attrs__", ())
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({fields})"


class SaslInitReceived(Event):
    """A client wants to authenticate. Answer with ``Connection.sasl_outcome``, then call ``receive(b"", now_ms)``.

    Attributes:
        mechanism: One of those offered; the engine refuses any other.
        response: The initial response; empty when there is none. For PLAIN see ``sasl.parse_plain``.
        hostname: The namespace that the client means, or None.
    """

    __slots__ = ("hostname", "mechanism", "response")

    def __init__(self, mechanism: str, response: bytes, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


class OpenReceived(Event):
    """The peer's open.

    As acceptor: answer with ``Connection.open``, and ``close`` to refuse, then call ``receive(b"", now_ms)``.

    Attributes:
        container_id: The peer's name for itself.
        hostname: The namespace that it wants, or None.
        max_frame_size: The largest frame it takes, in bytes.
        idle_time_out_ms: After how much silence it closes; None for never.
        properties: Product, version and the like.
    """

    __slots__ = ("container_id", "hostname", "idle_time_out_ms", "max_frame_size", "properties")

    def __init__(
        self,
        container_id: str,
        hostname: str | None,
        max_frame_size: int,
        idle_time_out_ms: int | None,
        properties: dict[Any, Any],
    ) -> None:
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.idle_time_out_ms = idle_time_out_ms
        self.properties = properties


class SessionBegun(Event):
    """A session is open: the peer began it and was answered, or answered ours."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session


class SessionEnded(Event):
    """A session and all its links are gone; ``error`` is None for an orderly end. Comes once for each session."""

    __slots__ = ("error", "session")

    def __init__(self, session: Session, error: Error | None) -> None:
        self.session = session
        self.error = error


class AttachReceived(Event):
    """The peer wants a link, see ``link.remote``. Answer, now or later, with ``link.accept`` or ``link.refuse``."""

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class LinkAttached(Event):
    """The peer answered our attach. If it refused, ``link.remote`` has a null terminus and LinkDetached follows."""

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class LinkDetached(Event):
    """A link is gone, and its handle free. Comes once for each link, unless its session or connection ended first.

    Attributes:
        link: The link.
        closed: For good; False when the peer might come back.
        error: Why; None for an orderly detach. After a ``refuse`` or ``detach`` of ours: what the peer said.
    """

    __slots__ = ("closed", "error", "link")

    def __init__(self, link: Link, closed: bool, error: Error | None) -> None:
        self.link = link
        self.closed = closed
        self.error = error


class Transfers(Event):
    """Complete deliveries that arrived on one link within one ``receive``, with consecutive delivery ids.

    Attributes:
        link: The receiving link.
        first_delivery_id: Of the first payload; the others follow by one, modulo 2**32.
        settled: Settled by the sender: no disposition is awaited.
        message_format: 0, or the batch format.
        payloads: Encoded messages, all sections, in order; at least one.
        state: What the sender said of the delivery, such as a TransactionalState; then there is one payload only.
    """

    __slots__ = ("first_delivery_id", "link", "message_format", "payloads", "settled", "state")

    def __init__(
        self,
        link: Link,
        first_delivery_id: int,
        settled: bool,
        message_format: int,
        payloads: list[bytes],
        state: DeliveryState | None = None,
    ) -> None:
        self.link = link
        self.first_delivery_id = first_delivery_id
        self.settled = settled
        self.message_format = message_format
        self.payloads = payloads
        self.state = state


class TransferRefused(Event):
    """A delivery was too large, or could not be kept; it was thrown away. Answer it, if unsettled, with ``rejected``.

    Attributes:
        link: The receiving link.
        delivery_id: Of the delivery.
        settled: Settled by the sender: no disposition is awaited.
        size: Bytes of the whole delivery.
        reason: Text for people.
        state: What the sender said of the delivery, such as a TransactionalState.
    """

    __slots__ = ("delivery_id", "link", "reason", "settled", "size", "state")

    def __init__(
        self, link: Link, delivery_id: int, settled: bool, size: int, reason: str, state: DeliveryState | None = None
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.settled = settled
        self.size = size
        self.reason = reason
        self.state = state


class LinkFlow(Event):
    """Credit or drain of a link changed: see ``link.credit``, ``link.drain``, ``link.echo``.

    On a link that we send on: deliver, then answer a drain with ``link.drained()`` and an echo with ``link.flow()``.
    May come before the link was accepted, as clients pipeline; look at ``link.credit`` after ``accept``.
    On a link that we receive on: the peer has drained it, ``link.credit`` is what is left.
    """

    __slots__ = ("link",)

    def __init__(self, link: Link) -> None:
        self.link = link


class SessionFlow(Event):
    """The peer's window is open again after ``link.sendable()`` was limited by it: links of the session may send."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session


class Dispositions(Event):
    """What the peer said within one ``receive`` about deliveries of one session, in its order, neighbours merged.

    Attributes:
        session: The session.
        role: True when the peer is the receiver: about deliveries that we sent. False: about those we received.
        ranges: (first, last, settled, state). ``last`` is never before ``first``, counted modulo 2**32; the ids need
            not exist: the owner intersects them with what it knows.
    """

    __slots__ = ("ranges", "role", "session")

    def __init__(self, session: Session, role: bool, ranges: list[tuple[int, int, bool, DeliveryState | None]]) -> None:
        self.session = session
        self.role = role
        self.ranges = ranges


class WorkDropped(Event):
    """Part of a transaction came on a link or in a session that we have ended a moment ago, and was thrown away.

    Attributes:
        state: Names the transaction.
    """

    __slots__ = ("state",)

    def __init__(self, state: TransactionalState) -> None:
        self.state = state


class Closed(Event):
    """The connection is over: write what ``take_output`` gives, then close the socket. The last event.

    Attributes:
        error: Why; None for an orderly close.
        by_peer: The peer said so, or agreed to our close; False: it broke the protocol or was silent for too long.
    """

    __slots__ = ("by_peer", "error")

    def __init__(self, error: Error | None, by_peer: bool) -> None:
        self.error = error
        self.by_peer = by_peer
