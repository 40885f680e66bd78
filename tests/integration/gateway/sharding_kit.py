"""A sharded queue over two servers, and a third one in front, all in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from duobus.broker import Queue
from duobus.cluster.router import HERE, MOVING, UNKNOWN, ClusterRouter
from duobus.cluster.shards import SHARDED, ShardedEntityMap, assign_shards
from duobus.model.address import shard_path
from duobus.model.descriptions import QueueDescription, to_json
from duobus.server.composition import Server
from duobus.storage.catalog_rows import LIVE, EntityRow
from kits.gateway import Client, TcpStream, serving

FRAGMENTS = 16


class Front:
    """Says where shares are, to the server in front."""

    knows_catalog = True

    def __init__(self, here: Server, owners: dict[int, Server], sharded_entity: ShardedEntityMap | None) -> None:
        self.node_id = "front"
        self.context = None
        self.proxied_links = 0
        self.proxied_messages = 0
        self.sharded_entity: ShardedEntityMap | None = sharded_entity
        self.away: set[int] = set()
        self._here = here
        self._owners = owners

    def where(self, namespace: str, key: str) -> str:
        return HERE if self._here.unit.namespace(namespace).is_taken(key) else UNKNOWN

    def sharded_entity_of(self, namespace: str, key: str) -> ShardedEntityMap | None:
        return self.sharded_entity if (namespace, key) == ("ns", "q") else None

    def home_of(self, namespace: str, key: str) -> None:
        return None

    def address_of(self, store_id: int) -> str:
        return MOVING if store_id in self.away else f"127.0.0.1:{self._owners[store_id].port('amqp')}"

    async def refresh(self) -> None:
        await asyncio.sleep(0)

    def numbers(self) -> Iterable[tuple[str, float]]:
        return ()


class ShardedRoom:
    """The server in front, the owners of stores 1 and 2, and a client of the first."""

    def __init__(self, front: Server, owners: dict[int, Server], about: Front, client: Client) -> None:
        self.front = front
        self.owners = owners
        self.about = about
        self.client = client

    def share(self, number: int) -> Queue:
        """The share of a store."""
        return self.owners[number].unit.namespace("ns").queues[shard_path("q", number).lower()]

    def numbers(self, kind: int = 0) -> list[int]:
        """Messages of a kind in each share."""
        return [self.share(number).numbers()[0][kind] for number in self.owners]

    async def again(self) -> Client:
        """Another client."""
        return Client(await TcpStream.connect(self.front.port("amqp") or 0))


def names_in(room: ShardedRoom, index: int, number: int = 3) -> list[str]:
    """Session ids, or partition keys, that belong in a shard."""
    sharded = room.about.sharded_entity
    assert sharded is not None
    return [name for name in map(str, range(1000)) if sharded.of_key(b"s" + name.encode()) == index][:number]


@asynccontextmanager
async def sharded_entities(*, together: bool = False, **properties: Any) -> AsyncIterator[ShardedRoom]:
    """A queue of two shards; ``together``: one server has both."""
    slots = assign_shards(FRAGMENTS, [1, 2])
    rows = []
    async with (
        serving(QueueDescription(name="own")) as front,
        serving(QueueDescription(name="one")) as one,
        serving(QueueDescription(name="two")) as two,
    ):
        owners = {1: one, 2: one if together else two}
        for number, server in owners.items():
            (store_id,) = server.unit.brokers
            own = tuple(type(slot)(slot.slot, slot.fragment_no, store_id) for slot in slots[number - 1])
            server.unit.place = lambda *_args, own=own, **_options: own  # type: ignore[method-assign]
            about = QueueDescription(name=shard_path("q", number), enable_partitioning=True, **properties)
            await server.unit.create_queue("ns", about)
            # An owner knows by its own router that another server asks it.
            server.amqp.router_of = partial(ClusterRouter, owners=Front(server, {}, None))
            rows.append(EntityRow(number, "ns", "queue", about.name, b"", LIVE, 8, slots[number - 1]))
        whole = QueueDescription(name="q", enable_partitioning=True, **properties)
        sharded_entity = ShardedEntityMap(EntityRow(9, "ns", SHARDED, "q", to_json(whole), LIVE, 0, ()), rows)
        about = Front(front, owners, sharded_entity)
        front.amqp.router_of = partial(ClusterRouter, owners=about)
        client = Client(await TcpStream.connect(front.port("amqp") or 0))
        yield ShardedRoom(front, owners, about, client)
