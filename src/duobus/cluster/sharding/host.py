"""ShardHost: what the work on sharded entities needs of the scale unit whose stores have shards of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duobus.broker.entities.entity_host import EntityHost

if TYPE_CHECKING:
    from duobus.broker.entities.namespace import Namespace
    from duobus.broker.entities.queue import Queue
    from duobus.broker.entities.topic_management import TopicLife
    from duobus.clock import BrokerTime
    from duobus.cluster.directory import Directory
    from duobus.model.descriptions import QueueDescription, TopicDescription
    from duobus.storage.catalog_rows import EntityRow


class ShardHost(EntityHost, Protocol):
    """The attributes and methods are those of ``ClusteredScaleUnit``."""

    directory: Directory
    topics: TopicLife
    partitions: int

    @property
    def time(self) -> BrokerTime:
        """What gives broker time."""

    async def read_again(self) -> None:
        """Read the catalog, and act on it."""

    async def resume_queue(self, row: EntityRow) -> None:
        """Make a queue that the catalog has as an intent."""

    def demand_room(self, home: Namespace, name: str, *, is_partitioned: bool) -> None:
        """Raise QuotaExceeded when the namespace has as many entities as it may."""

    async def delete_queue(self, namespace: str, path: str) -> None:
        """Delete a queue with everything in it."""

    def report_one_store(self, entity: Queue, about: QueueDescription | TopicDescription) -> None:
        """Log why a partitioned entity lies in one store."""
