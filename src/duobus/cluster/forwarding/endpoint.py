"""The node at which servers that share a catalog hand each other forwarded messages (``protocol.py``).

Two links of one connection: the other server attaches to receive, and hears a challenge; it attaches to send with the
answer, which only a server that reads the same catalog can give: a keyed digest by a key of the namespace that has
Manage. So nothing secret travels, nothing can be replayed, and no clock is asked. A server that has that key may do
everything in the namespace anyway.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duobus.amqp import ACCEPTED, Link, Transfers
from duobus.cluster.forwarding.protocol import (
    ForwardReply,
    ForwardRequest,
    OriginQuery,
    ReceivedQuery,
    RegisterOrigin,
    decode_request,
    encode,
    refusal,
)
from duobus.cluster.forwarding.receiver import OriginRegistration
from duobus.cluster.moves.protocol import BeginCopy, CopyRequest, ReadCopy, WriteCopy
from duobus.codec import DecodeError, scan
from duobus.errors import InternalError, ServerBusy, ServiceBusError, StoreUnavailable, Unauthorized, Undecodable
from duobus.gateway.amqp.management.request_node import CREDIT, ReplyLink, RequestLink, RequestNode
from duobus.gateway.amqp.router import FORWARDING_NODE
from duobus.model.descriptions import AccessRule, Right

if TYPE_CHECKING:
    from duobus.cluster.forwarding.receiver import ForwardReceiver
    from duobus.cluster.moves.copies import IncomingCopies
    from duobus.gateway.amqp.links.link import Claim
    from duobus.gateway.amqp.peer import Peer

#: A request that is worked on while others are read.
Asked = TypeVar("Asked", ForwardRequest, ReceivedQuery, CopyRequest)

#: Properties of the attaches.
CHALLENGE: Final = "com.duobus:challenge"
PROOF: Final = "com.duobus:proof"
_CHALLENGE_BYTES: Final = 32
#: Largest request: the largest message of the Premium profile, the messages beside it, and the metadata of all.
REQUEST_BYTES_MAX: Final = 192 << 20
#: Registrations of one connection, with those that have ended.
LANDINGS_MAX: Final = 100_000


class ForwardingEndpoint:
    """What the node of every connection needs.

    Attributes:
        receiver: Accepts the messages.
        rules: A namespace's access rules, as the catalog has them.
        copies: Accepts copies of fragments that are moved here.
    """

    def __init__(
        self, receiver: ForwardReceiver, rules: Callable[[str], Iterable[AccessRule]], copies: IncomingCopies
    ) -> None:
        self.receiver = receiver
        self.rules = rules
        self.copies = copies

    def attach(self, peer: Peer, link: Link) -> None:
        """See ``attach_forwarding``."""
        attach_forwarding(peer, link, self)


def proof_of(key: str, challenge: bytes) -> bytes:
    """The answer to a challenge."""
    return hmac.new(key.encode(), b"duobus crossing\0" + challenge, hashlib.sha256).digest()


def signing_key(rules: Iterable[AccessRule]) -> str | None:
    """The key with which a server answers challenges; None when no rule of the namespace has Manage."""
    return next((rule.primary_key for rule in rules if rule.rights & Right.MANAGE), None)


def attach_forwarding(peer: Peer, link: Link, forwarding: ForwardingEndpoint) -> None:
    """Accept a link of another server.

    Raises:
        Unauthorized: It has not shown that it reads the catalog.
    """
    node = next((link.node for link in peer.reply_links() if isinstance(link.node, ForwardingNode)), None)
    if link.is_sender:
        if node is not None:
            raise Unauthorized("This connection has a challenge already. Answer it.")
        node = ForwardingNode(peer, forwarding, peer.server.entropy.token(_CHALLENGE_BYTES))
        link.accept(properties={CHALLENGE: node.challenge})
        peer.add_endpoint(link, ReplyLink(peer, link, node, ()))
        return
    properties = {} if link.remote is None else link.remote.properties or {}
    proof = next((value for name, value in properties.items() if str(name) == PROOF), None)
    if node is None or not node.accepts(proof):
        raise Unauthorized("Only servers that share this one's catalog attach here. Compare --join of both.")
    endpoint = ForwardingLink(peer, link, node, ())
    link.accept(max_message_size=REQUEST_BYTES_MAX)
    peer.add_endpoint(link, endpoint)
    peer.now_known()
    endpoint.start()


class ForwardingNode(RequestNode):
    """The node of one connection.

    Attributes:
        challenge: What its other server has to answer.
    """

    def __init__(self, peer: Peer, forwarding: ForwardingEndpoint, challenge: bytes) -> None:
        super().__init__(peer, FORWARDING_NODE)
        self.challenge = challenge
        self._forwarding = forwarding
        self._is_used = False
        self._proof = b""
        self._last = 0
        self._registrations: dict[int, OriginRegistration] = {}

    def accepts(self, proof: Any) -> bool:
        """Whether the challenge was answered, which may be tried once."""
        if self._is_used or not isinstance(proof, bytes):
            return False
        self._is_used = True
        self._proof = proof
        return self.is_proved()

    def is_proved(self) -> bool:
        """Whether the challenge was answered with a key that is still good, or was not answered yet."""
        if not self._is_used:
            return True
        is_good = False
        for rule in self._forwarding.rules(self.peer.namespace or ""):
            for key in (rule.primary_key, rule.secondary_key):
                is_right = hmac.compare_digest(proof_of(key, self.challenge), self._proof)
                is_good |= is_right and bool(rule.rights & Right.MANAGE)
        return is_good

    def needs(self, segments: tuple[str, ...]) -> tuple[Claim, ...]:
        """See RequestNode: the answer to the challenge is what counts here."""
        del segments
        return ()

    def take_in(self, payload: bytes) -> None:
        """Do what another server asks for, and answer it."""
        request = decode_request(payload)
        if isinstance(request, ForwardRequest):
            _demand_messages(request)
        try:
            if isinstance(request, RegisterOrigin):
                self._answer(self._register(request))
            elif isinstance(request, OriginQuery):
                gone = self._forwarding.receiver.gone(request.origin, request.counts)
                self._answer(ForwardReply(request.number, gone=gone))
            elif isinstance(request, ReceivedQuery):
                self.peer.spawn(self._answer_with(self._asked, request), len(payload))
            elif isinstance(request, (BeginCopy, WriteCopy, ReadCopy)):
                self.peer.spawn(self._answer_with(self._copied, request), len(payload))
            else:
                self.peer.spawn(self._answer_with(self._accepted, request), len(payload))
        except ServiceBusError as error:
            self._answer(refusal(request.number, error))

    def _register(self, request: RegisterOrigin) -> ForwardReply:
        if len(self._registrations) >= LANDINGS_MAX:
            is_current = self._forwarding.receiver.is_current
            self._registrations = {
                number: registration for number, registration in self._registrations.items() if is_current(registration)
            }
            if len(self._registrations) >= LANDINGS_MAX:
                raise ServerBusy(f"This connection has {LANDINGS_MAX} landings, which is the limit.")
        registration = self._forwarding.receiver.register(
            self.peer.namespace or "", request.path, request.origin, request.epoch
        )
        self._last += 1
        self._registrations[self._last] = registration
        return ForwardReply(request.number, registration_no=self._last)

    async def _answer_with(self, work: Callable[[Asked], Awaitable[ForwardReply]], request: Asked) -> None:
        """Answer a request with what comes of it; a fault of ours is told to the other server, too."""
        try:
            self._answer(await work(request))
        except ServiceBusError as refused:
            self._answer(refusal(request.number, refused))
        except Exception as fault:
            self._answer(refusal(request.number, InternalError("The server ran into a fault of its own.")))
            raise fault

    async def _accepted(self, request: ForwardRequest) -> ForwardReply:
        error = await self._forwarding.receiver.take(
            self._registration(request.registration_no), request.counts, request.payloads, request.all_metadata
        )
        return ForwardReply(request.number) if error is None else refusal(request.number, error)

    async def _asked(self, request: ReceivedQuery) -> ForwardReply:
        taken = await self._forwarding.receiver.ask(self._registration(request.registration_no), request.first)
        return ForwardReply(request.number, taken=taken)

    async def _copied(self, request: CopyRequest) -> ForwardReply:
        return ForwardReply(
            request.number, data=await self._forwarding.copies.answer(self.peer.namespace or "", request)
        )

    def _registration(self, registration_no: int) -> OriginRegistration:
        registration = self._registrations.get(registration_no)
        if registration is None:
            raise StoreUnavailable("This registration of an origin is over. Register again.")
        return registration

    def _answer(self, reply: ForwardReply) -> None:
        found = next((link for link in self.peer.reply_links() if link.node is self), None)
        if found is not None:
            found.send(encode(reply))


def _demand_messages(request: ForwardRequest) -> None:
    """Raise Undecodable when anything of it is no message, which nothing could be done with later."""
    try:
        for payload in request.payloads:
            scan(payload)
    except DecodeError as error:
        raise Undecodable(f"A forward request of another server holds something that is no message: {error}") from error


class ForwardingLink(RequestLink):
    """The link on which another server sends; its requests are not AMQP messages."""

    __slots__ = ()

    node: ForwardingNode

    def transfers(self, event: Transfers) -> None:
        """See RequestLink."""
        for payload in event.payloads:
            try:
                self.node.take_in(payload)
            except Undecodable as error:
                self.peer.detach(self.link, error, FORWARDING_NODE)
                return
        if not event.settled:
            last = (event.first_delivery_id + len(event.payloads) - 1) & 0xFFFFFFFF
            self.link.settle(event.first_delivery_id, last, ACCEPTED)
        if self.link.credit <= CREDIT // 2:
            self.link.grant(CREDIT)
