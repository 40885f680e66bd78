"""RequestNode: the request and response pattern over a pair of links, as ``$cbs`` and ``$management`` use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from duobus.amqp import ACCEPTED, Link, Rejected, Session, TransactionalState, TransferRefused, Transfers
from duobus.codec import DecodeError, application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, Scan, find_section
from duobus.errors import InternalError, MessageTooLarge, QuotaExceeded, ServiceBusError, Undecodable
from duobus.gateway.amqp.links.link import ANY_RIGHT, Claim, Endpoint
from duobus.gateway.amqp.transactions.transactions import txn_id_of

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.gateway.amqp.peer import Peer

_Result = TypeVar("_Result")

#: Requests that one link may have under way.
CREDIT = 100
#: Replies that wait for a client's credit; beyond it the client has forgotten to give any.
REPLIES_MAX = 1000
#: ... and their bytes; the largest reply may pass it.
REPLY_BYTES_MAX = 1 << 20
#: What a request holds while it is answered, as a multiple of its size: decoded, small values are objects.
DECODED_FACTOR = 8
#: Largest request: a batch of messages to schedule fills the largest message, and a little for its envelope.
REQUEST_BYTES_MAX = 1 << 20


class Request:
    """One request message, decoded.

    Attributes:
        link: The link it came on.
        scan: Its properties.
        properties: Its application properties.
        body: Its amqp-value, or None.
        weight: Bytes that it holds until it is answered, about.
        txn_id: The transaction that what it asks for is part of; None for none.
    """

    __slots__ = ("body", "link", "properties", "scan", "txn_id", "weight")

    def __init__(self, link: Link, payload: bytes, txn_id: bytes | None = None) -> None:
        """Decode a request.

        Raises:
            Undecodable: It is no AMQP message with an amqp-value body.
        """
        self.link = link
        self.txn_id = txn_id
        self.weight = DECODED_FACTOR * len(payload)
        try:
            self.scan: Scan = scan(payload)
            bare = payload[self.scan.bare :]
            self.properties: dict[str, Any] = application_properties(bare)
            start, value, _ = find_section(bare, VALUE)
            self.body: Any = None if start == value else decode(bare, value)[0]
        except DecodeError as error:
            raise Undecodable(f"The request cannot be decoded: {error}") from error

    def text(self, name: str) -> str | None:
        """An application property that is a string, or None."""
        value = self.properties.get(name)
        return value if isinstance(value, str) else None


class RequestLink(Endpoint):
    """The link on which a client sends requests to a node."""

    __slots__ = ("link", "node", "peer", "segments")

    node: RequestNode

    def __init__(self, peer: Peer, link: Link, node: RequestNode, segments: tuple[str, ...]) -> None:
        self.peer = peer
        self.link = link
        self.node = node
        self.segments = segments

    def start(self) -> None:
        """Give the first credit, at once (Azure: AMQP protocol guide)."""
        self.link.grant(CREDIT)

    def transfers(self, event: Transfers) -> None:
        """Answer each request and settle its delivery."""
        txn_id = txn_id_of(event.state)
        for index, payload in enumerate(event.payloads):
            delivery_id = (event.first_delivery_id + index) & 0xFFFFFFFF
            state: Any = ACCEPTED if txn_id is None else TransactionalState(txn_id, ACCEPTED)
            try:
                request = Request(self.link, payload, txn_id)
            except Undecodable as error:
                self.peer.transactions.doom(txn_id, error)
                state = Rejected(self.peer.error(error, self.node.name))
            else:
                self.node.handle(request, self)
            if not event.settled:
                self.link.settle(delivery_id, delivery_id, state)
        if self.link.credit <= CREDIT // 2:
            self.link.grant(CREDIT)

    def refused(self, event: TransferRefused) -> None:
        """A request that the engine did not take in: too large."""
        error = MessageTooLarge(f"A request to '{self.node.name}' may have {REQUEST_BYTES_MAX} bytes at most.")
        self.peer.transactions.doom(txn_id_of(event.state), error)
        if not event.settled:
            self.link.settle(event.delivery_id, event.delivery_id, Rejected(self.peer.error(error, self.node.name)))

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint."""
        return self.node.needs(self.segments)

    def is_proved(self) -> bool:
        """See Endpoint."""
        return self.node.is_proved()

    def entity_changed(self) -> None:
        """See Endpoint."""
        self.node.entity_changed()


class ReplyLink(Endpoint):
    """The link on which a client receives the replies of a node."""

    __slots__ = ("_counter", "_size", "_waiting", "link", "node", "peer", "segments")

    node: RequestNode

    def __init__(self, peer: Peer, link: Link, node: RequestNode, segments: tuple[str, ...]) -> None:
        self.peer = peer
        self.link = link
        self.node = node
        self.segments = segments
        self._waiting: deque[bytes] = deque()
        self._counter = 0
        self._size = 0

    @property
    def names(self) -> Iterable[str | None]:
        """What a reply-to may call it: the link's name or its target address."""
        target = getattr(self.link.remote, "target", None)
        return (self.link.name, getattr(target, "address", None))

    def send(self, payload: bytes) -> None:
        """Send a reply as soon as the client has credit for it."""
        if len(self._waiting) >= REPLIES_MAX or self._size > REPLY_BYTES_MAX:
            number = len(self._waiting)
            error = QuotaExceeded(f"{number} replies wait for credit on this link. Grant some, then attach again.")
            self.peer.detach(self.link, error, self.node.name)
            return
        self._waiting.append(payload)
        self._size += len(payload)
        self.pump()

    def flow(self) -> None:
        """The client changed its credit or wants to drain."""
        self.pump()
        if self.link.drain:
            self.link.drained()
        elif self.link.echo:
            self.link.flow()

    def session_flow(self) -> None:
        """See Endpoint."""
        self.pump()

    def resume(self) -> None:
        """See Endpoint."""
        self.pump()

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint."""
        return self.node.needs(self.segments)

    def is_proved(self) -> bool:
        """See Endpoint."""
        return self.node.is_proved()

    def entity_changed(self) -> None:
        """See Endpoint."""
        self.node.entity_changed()

    def pump(self) -> None:
        """Send what waits, as far as credit goes."""
        while self._waiting and self.peer.has_room and self.link.sendable() > 0:
            self._counter += 1
            payload = self._waiting.popleft()
            self._size -= len(payload)
            self.link.send_one(self._counter.to_bytes(8, "big"), payload, True)
        self.peer.write_soon()

    def close(self) -> None:
        """The link is gone, and with it the replies that nobody took."""
        self._waiting.clear()
        self._size = 0


class RequestNode:
    """A node of one connection that answers requests; subclasses say how.

    Attributes:
        name: Its address, for errors.
        queue: The entity that it is a node of, or None.
        is_alone: A connection has one link at most on which it sends to such a node.
        request_bytes_max: Largest request.
    """

    queue: Queue | None = None
    is_alone: ClassVar[bool] = False
    request_bytes_max: ClassVar[int] = REQUEST_BYTES_MAX

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self.name = name

    def needs(self, segments: tuple[str, ...]) -> tuple[Claim, ...]:
        """What a client has to be allowed as long as it has links to the node at an address.

        Each operation is checked by itself, but some claim has to be there.
        """
        return ((segments, ANY_RIGHT),)

    def is_proved(self) -> bool:
        """See Endpoint."""
        return True

    def entity_changed(self) -> None:
        """The entity has other properties."""

    def handle(self, request: Request, link: RequestLink) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    async def guarded(self, operation: Awaitable[_Result]) -> _Result:
        """The result of an operation; a fault of ours is told, for who hears nothing waits as long as its client does.

        Raises:
            ServiceBusError: Why there is none; InternalError for a fault.
        """
        try:
            return await operation
        except ServiceBusError:
            raise
        except Exception as fault:
            self.peer.server.log.error("request failed", node=self.name, error=repr(fault))
            raise InternalError("The broker ran into a fault of its own. Try again; its log says more.") from fault

    def reply(self, request: Request, properties: dict[str, Any], body: Any) -> None:
        """Send the answer to a request; dropped when the client has no link for it."""
        target = self._reply_link(request)
        if target is None:
            self.peer.log_debug("reply without link", node=self.name)
            return
        # The correlation id is the request's message id with the same type.
        fields = [None, None, request.scan.reply_to, None, None, request.scan.message_id]
        target.send(build_message(fields, properties, body_value=body))

    def _reply_link(self, request: Request) -> ReplyLink | None:
        """Contract 10.1: a link named by reply-to, else the one on the request's session."""
        session: Session = request.link.session
        candidates = [link for link in self.peer.reply_links() if link.node.name.lower() == self.name.lower()]
        wanted = request.scan.reply_to
        # An address of the node itself names nobody: many clients share it.
        for link in candidates:
            if wanted is not None and wanted in link.names and link.link.session is session:
                return link
        for link in candidates:
            if wanted is not None and wanted in link.names and wanted.lower() != self.name.lower():
                return link
        for link in candidates:
            if link.link.session is session:
                return link
        return None
