"""What is asked of a server's knowledge of the others: who has an entity or a store. ``ClusterNode`` answers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ssl import SSLContext

    from duobus.cluster.shards import ShardedEntityMap


class EntityOwners(Protocol):
    """Who has which entity, among servers that share a catalog."""

    def where(self, namespace: str, key: str) -> str:
        """HERE, MOVING, UNKNOWN, or the address ``host:port`` of the server that has the entity."""

    def refresh(self) -> Awaitable[None]:
        """Read the catalog again; several that ask at a time are answered at once."""

    @property
    def knows_catalog(self) -> bool:
        """Whether the catalog's database is reached: what is unknown does not exist."""


class StoreOwners(EntityOwners, Protocol):
    """Who has which entity, and which store."""

    def owner_of(self, store_id: int) -> str:
        """HERE, MOVING, or the address of the server that has the store."""


class OwnerDirectory(EntityOwners, Protocol):
    """Who has which entity, and what links of clients to other servers need beside that.

    Attributes:
        node_id: This server's name among the others.
        context: For TLS connections to others, or None for plain ones.
        proxied_links, proxied_messages: Counted, for the metrics.
    """

    node_id: str
    context: SSLContext | None
    proxied_links: int
    proxied_messages: int

    def sharded_entity_of(self, namespace: str, key: str) -> ShardedEntityMap | None:
        """A queue, topic or subscription that lies in several stores, by its lower-case path; or None."""

    def home_of(self, namespace: str, key: str) -> tuple[int, str] | None:
        """The number of an entity, and ``address_of`` its store; None when this server knows no such entity."""

    def address_of(self, store_id: int) -> str:
        """MOVING, or the address ``host:port`` of the server that has a store, this one too."""

    def numbers(self) -> Iterable[tuple[str, float]]:
        """Name and value of each metric of this server among the others."""
