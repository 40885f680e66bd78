"""What ends when a token has expired, or a key or a right was taken away (contract 4.5, T14).

An access rule changes with its entity or with the namespace. The connections that hold a grant by it are looked at
then, in slices, and no others: nobody looks over all links again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from duobus.cluster.forwarding.endpoint import ForwardingNode
from duobus.cluster.proxy.link import ProxiedLink
from duobus.errors import Unauthorized
from duobus.gateway.amqp.links.incoming_link import IncomingLink
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
from duobus.gateway.amqp.links.session_link import PendingSession
from duobus.gateway.amqp.links.via_link import ViaLink
from duobus.gateway.amqp.management.cbs_node import CbsNode
from duobus.gateway.amqp.management.request_node import ReplyLink, RequestLink
from duobus.gateway.amqp.pacing import CLOSING
from duobus.gateway.amqp.transactions.coordinator import CoordinatorLink
from duobus.model.descriptions import Right

if TYPE_CHECKING:
    from duobus.gateway.amqp.peer import Endpoint, Peer

_ANY = (Right.LISTEN, Right.SEND, Right.MANAGE)


def detach_unauthorized(peer: Peer, now_ms: int) -> None:
    """Detach the links whose token has expired."""
    for link, endpoint in peer.endpoints():
        if not _may_stay(peer, endpoint, now_ms):
            path = "/".join(endpoint.segments)
            peer.detach(link, Unauthorized("The token has expired. Put a fresh one and attach again."), path)


def revoking(peers: Iterable[Peer], path: tuple[str, ...] | None) -> Iterator[int]:
    """The steps by which connections lose what keys do not give any more; each says what it cost.

    ``path``: the entity whose access rules have changed; empty for those of the namespace, None for all keys.
    """
    for peer in peers:
        if not peer.is_gone:
            is_logged_in = peer.grants.has_login
            is_less = peer.grants.check_again(path)
            if is_less or not path:
                yield from _detaching(peer, is_less=is_less)
            if is_logged_in and peer.grants.is_empty and not peer.is_gone:
                peer.end_login()
        yield 1


def _detaching(peer: Peer, *, is_less: bool) -> Iterator[int]:
    now_ms = peer.door.clock.now_ms()
    for link, endpoint in peer.endpoints():
        if peer.is_gone:
            return
        if not peer.has_endpoint(link):
            # It has ended between two slices.
            continue
        node = getattr(endpoint, "node", None)
        if isinstance(node, ForwardingNode):
            is_over = not node.is_proved()
        elif isinstance(endpoint, CoordinatorLink):
            # What an open transaction has done it did with a right that is gone, and is rolled back.
            is_over = is_less
        else:
            is_over = is_less and not _may_stay(peer, endpoint, now_ms)
        if is_over:
            error = Unauthorized(
                "The key or the right that this link lives on was taken away. Put a token of a key that is good and "
                "attach again."
            )
            peer.detach(link, error, "/".join(endpoint.segments))
            yield CLOSING


def _may_stay(peer: Peer, endpoint: Endpoint, now_ms: int) -> bool:
    """Whether the grants of a connection give an endpoint the claim that it lives on."""
    rights: tuple[Right, ...]
    if isinstance(endpoint, CoordinatorLink):
        # Each use of an entity is authorised by itself.
        return True
    if isinstance(endpoint, (RequestLink, ReplyLink)):
        # Each operation is checked by itself, but some claim has to be there.
        if isinstance(endpoint.node, (CbsNode, ForwardingNode)):
            return True
        rights = _ANY
    elif isinstance(endpoint, ProxiedLink):
        # Its owner looks at it, too.
        rights = _ANY if not endpoint.is_entity else (Right.LISTEN if endpoint.link.is_sender else Right.SEND,)
    elif isinstance(endpoint, IncomingLink):
        rights = (Right.SEND,)
        if isinstance(endpoint, ViaLink):
            target = tuple(endpoint.destination.lower().split("/"))
            if not peer.grants.allows(target, Right.SEND, now_ms):
                return False
    else:
        assert isinstance(endpoint, (OutgoingLink, PendingSession))
        rights = (Right.LISTEN,)
    return any(peer.grants.allows(endpoint.segments, right, now_ms) for right in rights)
