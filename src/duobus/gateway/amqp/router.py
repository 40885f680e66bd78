"""LinkRouter: where the links of one connection are answered, here or by another server.

A connection asks its router and nobody else about other servers. A server without any gives each connection the
``LocalRouter``, which answers everything here; several servers give another router, by ``AmqpServer.router_of``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.errors import DetachForced, Unauthorized

if TYPE_CHECKING:
    from duobus.amqp import Link, OpenReceived, Session, SessionEnded, Transfers
    from duobus.broker import Queue
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.address import Address


#: Address of the node at which servers that share a catalog attach to each other; no entity can have this name.
FORWARDING_NODE: Final = "$crossing"


class RouterListener(Protocol):
    """What a router wants to hear of its connection."""

    def opened(self, event: OpenReceived) -> None:
        """The client has opened its connection."""

    def logged_in(self, name: str, key: str) -> None:
        """The client's login was good."""

    def token_put(self, audience: str, token: str) -> None:
        """A token of the client was good."""

    def dispositions(self, session: Session, ranges: list[tuple[int, int, bool, Any]]) -> None:
        """The client settles what it has received."""

    def session_ended(self, event: SessionEnded) -> None:
        """A session of the client is gone, and all its links."""

    def resume(self) -> None:
        """The client's socket takes more again."""

    def tick(self, monotonic_ms: int) -> None:
        """See to heartbeats; called about twice a second."""

    def close(self) -> None:
        """The client is gone."""


class LinkRouter(Protocol):
    """Where the links of one connection are answered.

    Attributes:
        is_proxied: Another server has made the connection, for a client of its own.
        has_others: Other servers may have created entities that this one has not heard of yet.
        listener: Hears what becomes of the connection; None when there is nothing to hear.
    """

    is_proxied: bool
    has_others: bool
    listener: RouterListener | None

    def route(self, link: Link, address: Address, again: Callable[[], None], *, is_last: bool) -> bool:
        """Whether a link is answered by somebody else, or later by ``again``; ``is_last``: it is not asked again.

        Raises:
            DetachForced: The entity moves just now.
            Unauthorized: The client has no right there.
        """

    def knows(self, address: Address) -> bool:
        """Whether another server has the entity of an address, as far as this one knows."""

    async def learn(self) -> None:
        """Look for entities that others have created meanwhile."""

    def coordinate(self, start: Callable[[], None]) -> None:
        """The client has attached to the coordinator: call ``start`` when every owner can do transactions."""

    def send_via(self, link: Link, event: Transfers) -> bool:
        """Have a transaction send something by way of its session's first entity; False when that is the link's own."""

    def demand_first(self, session: Session, shard: str | None) -> Queue:
        """The entity of this server by way of which another server's client sends.

        Args:
            session: That of the client.
            shard: The path of the shard that is meant; None when the entity is not sharded.

        Raises:
            DetachForced: The entity is not here, or not any more.
        """

    def named(self, first: int, last: int) -> int:
        """How many of the deliveries that the client names in a transaction at this moment are other servers'."""


class LocalRouter:
    """Everything is answered here: the server has no others. See LinkRouter for the methods."""

    __slots__ = ()

    is_proxied = False
    has_others = False
    listener: RouterListener | None = None

    def route(self, link: Link, address: Address, again: Callable[[], None], *, is_last: bool) -> bool:  # noqa: D102
        return False

    def knows(self, address: Address) -> bool:  # noqa: D102
        return False

    async def learn(self) -> None:  # noqa: D102
        return

    def coordinate(self, start: Callable[[], None]) -> None:  # noqa: D102
        start()

    def send_via(self, link: Link, event: Transfers) -> bool:  # noqa: D102
        return False

    def demand_first(self, session: Session, shard: str | None) -> Queue:  # noqa: D102
        raise DetachForced("This server has no others. Attach again.")

    def named(self, first: int, last: int) -> int:  # noqa: D102
        return 0


#: The only one that is needed: there is nothing that it would remember.
_LOCAL = LocalRouter()


def local_router_of(peer: Peer) -> LinkRouter:
    """The router of a connection to a server without others."""
    del peer
    return _LOCAL


def refuse_forwarding(peer: Peer, link: Link) -> None:
    """Refuse a link to the node of servers that share a catalog, where there are no others.

    Raises:
        Unauthorized: Always.
    """
    del peer, link
    raise Unauthorized("This server shares its catalog with no others, which alone could attach here.")
