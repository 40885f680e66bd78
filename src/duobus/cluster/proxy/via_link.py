"""Transactions across entities of several servers: they send by way of the session's first entity.

A session that began with a coordinator works on the first entity that it attaches to, and what its transactions send to
others is stored there with them. Three ways it can be when not all of these are this server's own:

- the first entity is here and the other is not: ``BorrowedViaLink`` takes what a transaction sends on the proxied link;
- the first is another server's: it gets a link beside the client's, ``RemoteViaLink``, for what transactions send;
- both are of the same other server, which does all of it: its session begins with a coordinator, too (``upstream.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duobus.amqp import DETACHED, Source, Target
from duobus.amqp import Error as AmqpError
from duobus.cluster.proxy.link import ProxiedLink
from duobus.gateway.amqp.attach import VIA_SESSION
from duobus.gateway.amqp.links.link import first_of, second_entity
from duobus.gateway.amqp.links.via_link import ViaLink

if TYPE_CHECKING:
    from duobus.amqp import Link, Session, Transfers
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.link import ProxiedSession
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer


class BorrowedViaLink(ViaLink):
    """What a transaction sends on a link that another server answers: the credit is that server's."""

    __slots__ = ()

    def take(self, event: Transfers) -> None:
        """Add one delivery to its transaction."""
        self._in_state(event)

    def _top_up(self, low: int | None = None) -> None:
        """Whoever passes the link gives credit."""


class RemoteViaLink(ProxiedLink):
    """The link beside a client's own, to the server of its session's first entity; only transactions use it.

    Args:
        again: Called when it can be used: the client's own link is answered then.
    """

    __slots__ = ("_again", "_is_used")

    def __init__(self, peer: Peer, link: Link, path: str, owners: OwnerDirectory, again: Callable[[], None]) -> None:
        super().__init__(peer, link, (path,), owners)
        self._again = again
        self._is_used = False

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """See ProxiedLink."""
        remote = self.link.remote
        if remote is None or self.uplink is not None:
            return
        self._upstream, self.session = upstream, session
        name, target = f"{remote.name}", Target(address=self.path)
        self.uplink = session.owner.attach_sender(name, Source(), target, properties={VIA_SESSION: True})
        self.uplink.context = self

    def answered(self) -> None:
        """See ProxiedLink: credit follows, or a refusal."""

    def owner_flow(self) -> None:
        """The owner takes messages: the client's own link can be answered."""
        if not self._is_used and self.uplink is not None and self.uplink.credit:
            self._is_used = self._is_accepted = True
            if self.link.remote is not None and not self._peer.is_gone:
                self._again()
                self._peer.write_soon()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or the client's own link has."""
        return self.link.state == DETACHED or (self._upstream is not None and self.uplink is None)

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """See ProxiedLink: the client's own link has to go as well."""
        super().owner_detached(error, closed=closed)
        self._peer.write_soon()

    def take(self, event: Transfers) -> None:
        """Pass one delivery of a transaction on."""
        self._in_state(event)

    def end(self) -> None:
        """The client's own link is gone."""
        self._end()


def demand_same(peer: Peer, session: Session, path: str, upstream: UpstreamConnection) -> None:
    """Refuse to receive from an entity of another server than the session's first one has.

    Raises:
        OperationCancelled: It is of another one; whether it is the same entity is for a common owner to say.
    """
    first = first_of(peer, session)
    if first is not None and not (isinstance(first, ProxiedLink) and first.is_of(upstream)):
        raise second_entity(first.path if first.queue is None else first.queue.path, path)
