"""Queues that are deleted when nobody uses them, under faults and over the wire (I42).

Somebody uses the queue now and then, in ways that count, with pauses up to the edge of its window; the broker is killed
meanwhile, and its stores fail. Then nobody does, and the queue has to go.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from duobus.amqp import ACCEPTED, Link
from duobus.errors import ServiceBusError
from duobus.model.descriptions import QueueDescription
from simulation.checkers.idle import RECEIVER, IdleHistory, IdleUse, auto_delete
from simulation.scenarios.entity_life import LifeClient
from simulation.world.client import SimulatedClient
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW
from simulation.world.message import Message
from simulation.world.world import NAMESPACE, World

NAME: Final = "fading"
LIMIT_MS: Final = 300_000
#: What a use takes with a failing store, at most; the pauses leave so much of the window.
MARGIN_S: Final = 40.0
#: Below the idle time after which the broker closes a connection.
KEEP_ALIVE_MS: Final = 60_000
USES: Final = (3, 9)
RUN_LIMIT_S: Final = 36_000.0


class _Part:
    """The queue and whoever uses it."""

    def __init__(self, world: World, description: QueueDescription) -> None:
        self.world = world
        self.description = description
        self.rng = random.Random(f"idle:{world.seed}:uses")
        self.history = IdleHistory(LIMIT_MS)
        self._number = 0

    def now_ms(self) -> int:
        return self.world.loop.time_ms()

    def exists(self) -> bool | None:
        """Whether it is there; None while nobody can say."""
        unit = self.world.unit
        if unit is None or not self.world.node.alive:
            return None
        return NAME in unit.namespace(NAMESPACE).queues

    async def make(self) -> None:
        while not self.exists():
            await asyncio.sleep(0.2)
            unit = self.world.unit
            if unit is not None and self.world.node.alive:
                task = self.world.node.spawn(_quietly(unit.create_queue(NAMESPACE, self.description)))
                await asyncio.wait({task}, timeout=3.0)
        self.history.made_ms = self.now_ms()

    async def restart(self) -> None:
        self.world.kill(power=self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.uniform(0.1, 30.0))
        self.world.start()
        # While it is away, and until its stores are recovered, nobody counts.
        self.history.starts.append(self.now_ms() + 5_000)

    # -- uses ---------------------------------------------------------------------------------------------------

    async def use(self) -> None:
        """Use it once in a way that counts."""
        what = self.rng.choice(("a send", "a peek", RECEIVER))
        self._number += 1
        begin_ms = self.now_ms()
        with contextlib.suppress(OSError, TimeoutError):
            kind = SimulatedClient if what == "a peek" else LifeClient
            client = await kind.connect(self.world, f"{what}-{self._number}")
            try:
                if isinstance(client, LifeClient):
                    answered = await (self._send(client) if what == "a send" else self._receive(client))
                else:
                    answered = (await client.request(NAME, "peek-message", _FIRST))[0] in (200, 204)
            finally:
                client.close()
            if answered:
                self.history.uses.append(IdleUse(what, begin_ms, self.now_ms()))
        self.history.tried_ms = self.now_ms()

    async def _send(self, client: LifeClient) -> bool:
        link = await client.sender(NAME)
        return await client.put(link, Message(f"m{self._number}", b"x").encode()) is ACCEPTED

    async def _receive(self, client: LifeClient) -> bool:
        link: Link = await client.receiver(NAME)
        client.grant(link, 1)
        use = IdleUse(RECEIVER, self.now_ms(), self.now_ms())
        self.history.uses.append(use)
        # Longer than the window, now and then.
        heard_ms = self.now_ms()
        close_ms = heard_ms + self.rng.choice((1_000, 20_000, 400_000))
        while client.alive and link.is_attached and self.now_ms() < close_ms:
            use.end_ms = self.now_ms()
            if use.end_ms - heard_ms > KEEP_ALIVE_MS:
                heard_ms = use.end_ms
                client.grant(link, 1)
            await asyncio.sleep(0.5)
        return False

    async def ask_after(self) -> None:
        """Attach to what is not there any more."""
        for sends in (True, False):
            with contextlib.suppress(OSError, TimeoutError):
                client: LifeClient = await LifeClient.connect(self.world, f"late-{self._number}-{sends}")
                with contextlib.suppress(ConnectionError):
                    link = await (client.sender(NAME) if sends else client.receiver(NAME))
                    await asyncio.sleep(0.1)
                    if link.is_attached:
                        self.history.answers.append("ok")
                if client.alive and client.last_condition():
                    self.history.answers.append(client.last_condition())
                client.close()

    # -- the end ------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Note when it is gone, and what is left of it a little later."""
        while self.exists() is not False:  # noqa: ASYNC110 - the broker tells nobody, and time costs nothing here
            await asyncio.sleep(0.5)
        self.history.gone_ms = self.now_ms()

    def look_what_is_left(self) -> None:
        if any(row.path == NAME for row in self.world.catalog.read().entities):
            self.history.left.append("the catalog still has it")
        for number, disk in self.world.disks.items():
            rows = sum(len(source) for source in disk.held().messages.values())
            if disk.held().fragments or rows:
                self.history.left.append(f"store {number} keeps {len(disk.held().fragments)} fragments and {rows} rows")


_FIRST: Final = {"from-sequence-number": 1, "message-count": 1}


async def _quietly(work: object) -> None:
    with contextlib.suppress(ServiceBusError):
        await work  # type: ignore[misc]


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    rng = random.Random(f"idle:{seed}")
    about = QueueDescription(
        name=NAME, auto_delete_on_idle_ms=LIMIT_MS, enable_partitioning=rng.random() < 0.6, lock_duration_ms=5_000
    )
    world = World(seed, [], rng.choice((1, 2, 4)))
    part = _Part(world, about)

    async def whole() -> None:
        world.start()
        await part.make()
        chances = {REFUSED: 0.02, AMBIGUOUS: 0.02, SLOW: 0.05} if rng.random() < 0.5 else {}
        for disk in world.disks.values():
            disk.faults.chances = dict(chances)
        watching = asyncio.ensure_future(part.watch())
        for _ in range(rng.randint(*USES)):
            await asyncio.sleep(rng.choice((1.0, 60.0, rng.uniform(200.0, LIMIT_MS / 1000 - MARGIN_S))))
            if rng.random() < 0.2:
                await part.restart()
            await part.use()
            if watching.done():
                break
        for disk in world.disks.values():
            disk.faults.calm()
        await asyncio.wait({watching}, timeout=2.5 * LIMIT_MS / 1000)
        if watching.done():
            await asyncio.sleep(10.0)
            part.look_what_is_left()
            await part.ask_after()
        else:
            watching.cancel()
        part.history.over_ms = part.now_ms()

    try:
        world.loop.run(whole(), time_limit_s=RUN_LIMIT_S)
    finally:
        world.loop.close()
    return list(auto_delete(part.history))
