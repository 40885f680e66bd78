"""A queue over the stores of several servers that deletes itself when no shard of it is used (0069).

Somebody sends to one shard for a while, by a key, then to another or to none, at any server. The queue may be deleted
only when none of it was used for as long as it has to be: every send that was accepted had begun before that (I42).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Rejected
from duobus.codec import Symbol, build_message
from duobus.errors import ServiceBusError
from duobus.model.descriptions import QueueDescription
from simulation.scenarios.entity_life import LifeClient
from simulation.world.world import NAMESPACE

if TYPE_CHECKING:
    from simulation.scenarios.servers import ServersWorld

QUEUE: Final = "fleeting"
LIMIT_MS: Final = 2_000
#: Broker times of servers are not one, and a look at the time comes before the change.
MARGIN_S: Final = 0.1
KEYS: Final = 4
_ABOUT: Final = QueueDescription(name=QUEUE, enable_partitioning=True, auto_delete_on_idle_ms=LIMIT_MS)

#: Gives a connected client; None when the phase has ended.
Connect = Callable[[str, type[Any]], Coroutine[Any, Any, Any]]


class ShardedIdlenessClients:
    """Who sends to the queue, and makes it again when it is gone.

    Attributes:
        deleted: When it was deleted, in seconds of the world.
        created: When somebody began to make it, again above all.
        accepted: When each send had begun that was accepted, and when its sender heard that.
    """

    def __init__(self, world: ServersWorld, connect: Connect, in_phase: Callable[[], bool]) -> None:
        self.deleted: list[float] = []
        self.created: list[float] = []
        self.accepted: list[tuple[float, float]] = []
        self._world = world
        self._connect = connect
        self._in_phase = in_phase
        self._rng = random.Random(f"sharded-idleness:{world.seed}")
        begin_delete_while = world.catalog.begin_delete_while

        def noted(entity_id: int, description: bytes, live_ids: Any) -> bool:
            is_done = begin_delete_while(entity_id, description, live_ids)
            if is_done:
                self.deleted.append(world.loop.time())
            return is_done

        world.catalog.begin_delete_while = noted  # type: ignore[method-assign]

    def jobs(self) -> list[Any]:
        """What runs during the first phase."""
        return [self._keep(), self._send(0), self._send(1)]

    async def _keep(self) -> None:
        """Create it, and again some time after it has gone."""
        while self._in_phase():
            for server in self._world.servers:
                unit = server.unit
                if not server.is_well or unit is None or unit.namespace(NAMESPACE).is_taken(QUEUE):
                    continue
                self.created.append(self._world.loop.time())
                with contextlib.suppress(ServiceBusError):
                    task = server.machine.spawn(unit.create_queue(NAMESPACE, _ABOUT))
                    await asyncio.wait({task}, timeout=5.0)
                    if task.done() and not task.cancelled():
                        task.result()
            await asyncio.sleep(0.5)

    async def _send(self, number: int) -> None:
        while self._in_phase():
            client = await self._connect("fleeting", LifeClient)
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(QUEUE)
                while self._in_phase() and client.alive and link.is_attached:
                    key = f"k{self._rng.randrange(KEYS)}"
                    for _ in range(self._rng.randint(1, 8)):
                        await self._send_one(client, link, key)
                        await asyncio.sleep(self._rng.choice((0.1, 0.6, 1.5)))
                    await asyncio.sleep(self._rng.choice((0.0, 0.0, 2.5)))
            client.close()
            await asyncio.sleep(0.2 * (1 + number))

    async def _send_one(self, client: LifeClient, link: Any, key: str) -> None:
        begun = self._world.loop.time()
        payload = build_message(None, None, annotations={Symbol("x-opt-partition-key"): key}, data=b"x")
        state = await client.put(link, payload)
        if state is not None and not isinstance(state, Rejected):
            self.accepted.append((begun, self._world.loop.time()))

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        return [
            f"'{QUEUE}' was deleted at {at:.3f} s, and a send that began at {begun:.3f} s was accepted (I42)"
            for at in self.deleted
            for begun, heard in self.accepted
            # A send that lay with a server that paused may have come to the next queue of this name.
            if at - LIMIT_MS / 1000 + MARGIN_S < begun <= at and not any(at < again < heard for again in self.created)
        ]
