"""What ends when a token has expired, or a key or a right was taken away (Azure: AMQP protocol guide, T14).

An access rule changes with its entity or with the namespace. The connections that hold a grant by it are looked at
then, in slices, and no others: nobody looks over all links again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from duobus.errors import Unauthorized
from duobus.gateway.amqp.pacing import CLOSING

if TYPE_CHECKING:
    from duobus.gateway.amqp.links.link import Endpoint
    from duobus.gateway.amqp.peer import Peer


def detach_unauthorized(peer: Peer, now_ms: int) -> None:
    """Detach the links whose token has expired."""
    for link, endpoint in peer.endpoints():
        if not _may_stay(peer, endpoint, now_ms):
            error = Unauthorized("The token has expired. Put a fresh one and attach again.")
            peer.detach(link, error, endpoint.path)


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
    now_ms = peer.server.clock.now_ms()
    for link, endpoint in peer.endpoints():
        if peer.is_gone:
            return
        if not peer.has_endpoint(link):
            # It has ended between two slices.
            continue
        # A link may need any right that is lost: what an open transaction has done it did with a right that is gone.
        is_over = is_less and (endpoint.needs_every_right or not _may_stay(peer, endpoint, now_ms))
        if is_over or not endpoint.is_proved():
            error = Unauthorized(
                "The key or the right that this link lives on was taken away. Put a token of a key that is good and "
                "attach again."
            )
            peer.detach(link, error, endpoint.path)
            yield CLOSING


def _may_stay(peer: Peer, endpoint: Endpoint, now_ms: int) -> bool:
    """Whether the grants of a connection give a link everything that it lives on."""
    allows = peer.grants.allows
    return all(any(allows(segments, right, now_ms) for right in rights) for segments, rights in endpoint.needs())
