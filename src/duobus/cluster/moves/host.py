"""MoveHost: what moves of entities need of the scale unit whose entities they are; ``ClusteredScaleUnit`` is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duobus.broker.entities.entity_host import EntityHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from duobus.broker.entities.queue import Queue
    from duobus.cluster.directory import Directory
    from duobus.cluster.forwarding.sender import RemoteForwarder
    from duobus.cluster.moves.copies import IncomingCopies
    from duobus.storage.catalog_rows import CatalogContents, EntityRow


class MoveHost(EntityHost, Protocol):
    """The entities of the stores that a server owns now; attributes and methods are ``ClusteredScaleUnit``'s."""

    absent: set[int]
    adopted: set[int]
    copies: IncomingCopies
    directory: Directory
    remote: RemoteForwarder

    def follow(self, follower: Callable[[Queue], None]) -> None:
        """Have ``follower`` called with every queue that has changed or is deleted, at once."""

    async def read_again(self) -> None:
        """Read the catalog, and act on it."""

    async def take_leave(self, entity_id: int) -> None:
        """An entity is about to move: clients are to settle what they hold, and what was taken is committed."""

    def let_go(self, entity_id: int) -> None:
        """Serve an entity here no more: its links are detached, and attach again where it is."""

    def has(self, row: EntityRow) -> bool:
        """Whether a queue or topic of the catalog is served here."""

    def plan_entity(self, row: EntityRow, contents: CatalogContents) -> None:
        """Have what came into a store of this server by a move under its name."""

    async def begin_entity(self, row: EntityRow, contents: CatalogContents) -> None:
        """Its fragments are there: do what goes on in it by itself."""
