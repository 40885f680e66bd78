"""The node at which servers that share a catalog hand each other forwarded messages (``broker/crossing.py``).

Two links of one connection: the other server attaches to receive, and hears a challenge; it attaches to send with the
answer, which only who reads the same catalog can give: a keyed digest by a key of the namespace that has Manage. So
nothing secret travels, nothing can be replayed, and no clock is asked. Who has that key may do everything in the
namespace anyway.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

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
from duobus.codec import DecodeError, scan
from duobus.errors import InternalError, ServerBusy, ServiceBusError, StoreUnavailable, Unauthorized, Undecodable
from duobus.gateway.amqp.management.request_node import CREDIT, ReplyLink, RequestLink, RequestNode
from duobus.model.descriptions import AccessRule, Right

if TYPE_CHECKING:
    from duobus.cluster.forwarding.receiver import ForwardReceiver
    from duobus.gateway.amqp.peer import Peer

#: Address of the node; no entity can have this name.
FORWARDING_NODE: Final = "$crossing"
#: Properties of the attaches.
CHALLENGE: Final = "com.duobus:challenge"
PROOF: Final = "com.duobus:proof"
_CHALLENGE_BYTES: Final = 32
#: Largest freight: the largest message of the Premium profile, what is taken beside it, and what is rare about all.
FREIGHT_BYTES_MAX: Final = 192 << 20
#: Landings of one connection; of those that are over, nobody needs to know.
LANDINGS_MAX: Final = 100_000


class ForwardingEndpoint:
    """What the node of every connection needs.

    Attributes:
        intake: Takes the messages in.
        rules: A namespace's access rules, as the catalog has them.
    """

    def __init__(self, intake: ForwardReceiver, rules: Callable[[str], Iterable[AccessRule]]) -> None:
        self.intake = intake
        self.rules = rules


def proof_of(key: str, challenge: bytes) -> bytes:
    """The answer to a challenge."""
    return hmac.new(key.encode(), b"duobus crossing\0" + challenge, hashlib.sha256).digest()


def signing_key(rules: Iterable[AccessRule]) -> str | None:
    """The key with which a server answers challenges; None when no rule of the namespace has Manage."""
    return next((rule.primary_key for rule in rules if rule.rights & Right.MANAGE), None)


def attach_forwarding(peer: Peer, link: Link, desk: ForwardingEndpoint | None) -> None:
    """Accept a link of another server.

    Raises:
        Unauthorized: It has not shown that it reads the catalog, or there are no other servers.
    """
    node = next((link.node for link in peer.reply_links() if isinstance(link.node, ForwardingNode)), None)
    if desk is None:
        raise Unauthorized("This server shares its catalog with no others, which alone could attach here.")
    if link.is_sender:
        if node is not None:
            raise Unauthorized("This connection has a challenge already. Answer it.")
        node = ForwardingNode(peer, desk, peer.door.entropy.token(_CHALLENGE_BYTES))
        link.accept(properties={CHALLENGE: node.challenge})
        peer.add_endpoint(link, ReplyLink(peer, link, node, ()))
        return
    properties = {} if link.remote is None else link.remote.properties or {}
    proof = next((value for name, value in properties.items() if str(name) == PROOF), None)
    if node is None or not node.accepts(proof):
        raise Unauthorized("Only servers that share this one's catalog attach here. Compare --join of both.")
    endpoint = ForwardingLink(peer, link, node, ())
    link.accept(max_message_size=FREIGHT_BYTES_MAX)
    peer.add_endpoint(link, endpoint)
    peer.now_known()
    endpoint.start()


class ForwardingNode(RequestNode):
    """The node of one connection.

    Attributes:
        challenge: What its other server has to answer.
    """

    def __init__(self, peer: Peer, desk: ForwardingEndpoint, challenge: bytes) -> None:
        super().__init__(peer, FORWARDING_NODE)
        self.challenge = challenge
        self._desk = desk
        self._is_used = False
        self._proof = b""
        self._last = 0
        self._visits: dict[int, OriginRegistration] = {}

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
        for rule in self._desk.rules(self.peer.namespace or ""):
            for key in (rule.primary_key, rule.secondary_key):
                is_right = hmac.compare_digest(proof_of(key, self.challenge), self._proof)
                is_good |= is_right and bool(rule.rights & Right.MANAGE)
        return is_good

    def take_in(self, payload: bytes) -> None:
        """Do what another server asks for, and answer it."""
        request = decode_request(payload)
        if isinstance(request, ForwardRequest):
            _demand_messages(request)
        try:
            if isinstance(request, RegisterOrigin):
                self._answer(self._land(request))
            elif isinstance(request, OriginQuery):
                gone = self._desk.intake.gone(request.origin, request.counts)
                self._answer(ForwardReply(request.number, gone=gone))
            elif isinstance(request, ReceivedQuery):
                self.peer.spawn(self._tell(request), len(payload))
            else:
                self.peer.spawn(self._unload(request), len(payload))
        except ServiceBusError as error:
            self._answer(refusal(request.number, error))

    def _land(self, request: RegisterOrigin) -> ForwardReply:
        if len(self._visits) >= LANDINGS_MAX:
            is_current = self._desk.intake.is_current
            self._visits = {number: visit for number, visit in self._visits.items() if is_current(visit)}
            if len(self._visits) >= LANDINGS_MAX:
                raise ServerBusy(f"This connection has {LANDINGS_MAX} landings, which is the limit.")
        visit = self._desk.intake.land(self.peer.namespace or "", request.path, request.origin, request.epoch)
        self._last += 1
        self._visits[self._last] = visit
        return ForwardReply(request.number, landing=self._last)

    async def _unload(self, request: ForwardRequest) -> None:
        try:
            visit = self._visit(request.landing)
            error = await self._desk.intake.take(visit, request.counts, request.payloads, request.specials)
        except ServiceBusError as refused:
            error = refused
        except Exception as fault:
            self._answer(refusal(request.number, InternalError("The server ran into a fault of its own.")))
            raise fault
        self._answer(ForwardReply(request.number) if error is None else refusal(request.number, error))

    async def _tell(self, request: ReceivedQuery) -> None:
        try:
            taken = await self._desk.intake.ask(self._visit(request.landing), request.first)
        except ServiceBusError as refused:
            self._answer(refusal(request.number, refused))
        except Exception as fault:
            self._answer(refusal(request.number, InternalError("The server ran into a fault of its own.")))
            raise fault
        else:
            self._answer(ForwardReply(request.number, taken=taken))

    def _visit(self, landing: int) -> OriginRegistration:
        visit = self._visits.get(landing)
        if visit is None:
            raise StoreUnavailable("There is no such landing any more. Land again.")
        return visit

    def _answer(self, reply: ForwardReply) -> None:
        found = next((link for link in self.peer.reply_links() if link.node is self), None)
        if found is not None:
            found.send(encode(reply))


def _demand_messages(freight: ForwardRequest) -> None:
    """Raise Undecodable when anything of it is no message, which nothing could be done with later."""
    try:
        for payload in freight.payloads:
            scan(payload)
    except DecodeError as error:
        raise Undecodable(f"The freight of another server holds what is no message: {error}") from error


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
