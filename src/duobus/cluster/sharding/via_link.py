"""Transactions across entities whose first entity is sharded: they send by way of the shard of their other work.

A session that began with a coordinator works on the first entity that it attaches to, and what its transactions send to
others is stored there with them. Which shard that is, each message says by its via partition key, or the work that its
transaction has done before. So a client's link to another entity has one beside it to the owner of each shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duobus.amqp import DETACHED
from duobus.cluster.sharding.link import ShardedLink, ShardLink
from duobus.cluster.sharding.sender import ShardedSender
from duobus.gateway.amqp.attach import VIA_SESSION
from duobus.gateway.amqp.links.link import first_of, second_entity
from duobus.model.address import Address

if TYPE_CHECKING:
    from duobus.amqp import Link, Session
    from duobus.cluster.shards import ShardedEntityMap
    from duobus.gateway.amqp.peer import Peer


class ViaShardLink(ShardLink):
    """The link to the owner of one shard of the first entity; only transactions use it."""

    __slots__ = ()

    def answered(self) -> None:
        """The owner has answered: credit follows, or a refusal."""

    def owner_flow(self) -> None:
        """The owner takes messages."""
        if not self.is_open and self.uplink is not None and self.uplink.credit:
            super().answered()
        super().owner_flow()


class ShardedViaLink(ShardedSender):
    """The links beside a client's own, to the owners of the shards of its session's first entity.

    Args:
        first: The client's link on that entity.
        link: That on which it sends to another one.
        path: Of the other one.
        again: Called when they can be used: the client's own link is answered then.
    """

    __slots__ = ("_again", "_destination")

    def __init__(self, first: ShardedLink, link: Link, path: str, again: Callable[[], None]) -> None:
        sharded = first.sharded_entity
        super().__init__(first.peer, link, Address(sharded.row.path), sharded, first.owners, first.connect)
        self._destination = path
        self._again = again
        # So the shard of a message is that of its via partition key.
        self.asked_properties = {VIA_SESSION: True}

    def target_of(self, index: int) -> str:
        """See ShardedLink: the other entity."""
        del index
        return self._destination

    def properties_of(self, index: int) -> dict[str, Any]:
        """See ShardedLink: which shard the owner is to keep messages in."""
        return {VIA_SESSION: self.sharded_entity.shares[index].path}

    def shard_link_of(self, index: int, address: str) -> ShardLink:
        """See ShardedLink."""
        return ViaShardLink(self, index, address)

    def _accept(self, *, is_late: bool) -> None:
        there = self.open_branches
        if there and (len(there) == len(self.branches) or is_late):
            self._is_accepted = True
            if self.link.state != DETACHED and not self.peer.is_gone:
                self._again()
                self.peer.write_soon()

    def tick(self, monotonic_ms: int) -> None:
        """See ShardedLink."""
        if self.link.state == DETACHED:
            self._close()
        super().tick(monotonic_ms)

    def top_up(self) -> None:
        """See ShardedSender: whoever answers the client's own link gives it credit."""

    def end(self) -> None:
        """The client's own link is gone."""
        self._close()


def demand_beside(peer: Peer, session: Session, path: str, sharded: ShardedEntityMap) -> None:
    """Refuse to receive from a sharded entity when the session's first one is another sharded entity.

    Raises:
        OperationCancelled: It is neither the same one nor a subscription of the same topic.
    """
    first = first_of(peer, session)
    if isinstance(first, ShardedLink) and not first.sharded_entity.is_beside(sharded):
        raise second_entity(first.path, path)
