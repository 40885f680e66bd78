"""The life of entities under faults, over the wire: statuses that change, a quota at its edge, deletion under traffic.

Three queues, each with a sender, a receiver and, but for the quota's, somebody who changes it: ``fickle`` changes its
status, ``small`` is full again and again, ``phoenix`` is deleted and made anew. One seed is one run; ``check_life``
looks at what clients were told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any, Final

import msgspec

from duobus.amqp import ACCEPTED, Link, Rejected, Transfers
from duobus.broker import ScaleUnit
from duobus.codec import scan
from duobus.errors import ServiceBusError
from duobus.model.descriptions import ACTIVE, DISABLED, RECEIVE_DISABLED, SEND_DISABLED, QueueDescription
from simulation.checkers.entity_life import GONE, OK, Change, LifeHistory, Use, check_life
from simulation.history import events as h
from simulation.world.client import SimulatedClient
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW
from simulation.world.message import Message, Received
from simulation.world.world import NAMESPACE, World

PHASE_S: Final = 12.0
MESSAGES: Final = 150
LIMIT: Final = 1 << 20
#: To change a status; a broker that is down comes back long before.
TRIES_MAX: Final = 500
RUN_LIMIT_S: Final = 3_600.0
_STATUSES: Final = (ACTIVE, DISABLED, SEND_DISABLED, RECEIVE_DISABLED)


class LifeClient(SimulatedClient):
    """A client that notes uids and what it was told, and leaves the checks of deliveries to others."""

    def condition(self, link: Link) -> str:
        """Why a link was detached; "" when nobody said."""
        error = self._errors.get(link)
        return "" if error is None else str(error.condition)

    def last_condition(self) -> str:
        """The same of the link that was attached last."""
        return self.condition(next(reversed(self._errors))) if self._errors else ""

    def _on_transfers(self, event: Transfers) -> None:
        for index, payload in enumerate(event.payloads):
            uid = str(scan(payload).message_id)
            delivery = h.Delivery("", 0, uid, b"", None, 0, 1, self.name, self.name, 0)
            delivery.at_ms = self.world.loop.time_ms()
            self.received.append(Received(event.link, event.first_delivery_id + index, delivery))
        self.arrived.set()

    async def put(self, link: Link, payload: bytes) -> Any:
        """Send; the outcome, or None when there is none."""
        await self._credit(link, 1)
        if not self.alive or not link.is_attached or link.sendable() < 1:
            return None
        self._tag += 1
        number = link.send_one(self._tag.to_bytes(4, "big"), payload, False)
        future = self._sends[number] = asyncio.get_running_loop().create_future()
        self._flush()
        # The client of a link that goes hears nothing about its messages.
        for _ in range(200):
            if future.done() or not link.is_attached:
                break
            await asyncio.wait({future}, timeout=0.05)
        return await future if future.done() else None

    async def complete(self, item: Received) -> bool:
        """Complete a delivery; whether the broker said yes."""
        session = self._session
        if not self.alive or session is None or not item.link.is_attached:
            return False
        future = self._settles[item.delivery_id] = asyncio.get_running_loop().create_future()
        session.disposition(True, item.delivery_id, item.delivery_id, ACCEPTED, False)
        self._flush()
        await asyncio.wait({future}, timeout=5.0)
        return future.done() and not isinstance(await future, Rejected)


class _Queue:
    """One queue with its users."""

    def __init__(self, world: World, description: QueueDescription, limit: int | None) -> None:
        self.world = world
        self.name = description.name
        self.description = description
        self.history = LifeHistory(limit)
        self.is_over = False
        self._sent = 0
        self._number = 0

    def now_ms(self) -> int:
        return self.world.loop.time_ms()

    async def connect(self, kind: str) -> LifeClient:
        while True:
            self._number += 1
            try:
                return await LifeClient.connect(self.world, f"{self.name}-{kind}-{self._number}")  # type: ignore[return-value,unused-ignore]
            except OSError:
                await asyncio.sleep(0.2)

    async def attach(self, client: LifeClient, *, sends: bool) -> Link | None:
        """A link, or None; what was answered is noted."""
        use = Use("attach to send" if sends else "attach to receive", self.now_ms())
        link: Link | None = None
        known = len(client._errors)
        with contextlib.suppress(ConnectionError, TimeoutError):
            link = await (client.sender(self.name) if sends else client.receiver(self.name))
            await asyncio.sleep(0.1)
        use.end_ms = self.now_ms()
        if link is not None and link.is_attached:
            use.outcome = OK
            use.end_ms -= 100
        elif client.alive and len(client._errors) > known:
            use.outcome = client.last_condition() or use.outcome
        self.history.uses.append(use)
        return link if use.outcome == OK else None

    # -- users --------------------------------------------------------------------------------------------------

    async def send(self) -> None:
        rng = random.Random(f"life:{self.world.seed}:{self.name}:send")
        while self._sent < MESSAGES and not self.is_over:
            client = await self.connect("send")
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await self.attach(client, sends=True)
                while link is not None and client.alive and link.is_attached and not self.is_over:
                    await self._send_one(client, link, rng)
                    await asyncio.sleep(rng.choice((0.0, 0.02, 0.2)))
            client.close()
            await asyncio.sleep(rng.uniform(0.05, 0.4))

    async def _send_one(self, client: LifeClient, link: Link, rng: random.Random) -> None:
        self._sent += 1
        size = rng.choice((60_000, 130_000, 200_000)) if self.history.limit is not None else 20
        payload = Message(f"{self.name}-{self._sent}", bytes(size)).encode()
        use = Use("send", self.now_ms(), f"{self.name}-{self._sent}", len(payload) - scan(payload).bare)
        self.history.uses.append(use)
        state = await client.put(link, payload)
        use.end_ms = self.now_ms()
        if isinstance(state, Rejected) and state.error is not None:
            use.outcome = str(state.error.condition)
        elif state is not None:
            use.outcome = OK

    async def receive(self, *, drains: bool = False) -> None:
        rng = random.Random(f"life:{self.world.seed}:{self.name}:receive")
        quiet = 0
        while quiet < 3 if drains else not self.is_over:
            client = await self.connect("receive")
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await self.attach(client, sends=False)
                while link is not None and client.alive and link.is_attached and (drains or not self.is_over):
                    client.arrived.clear()
                    client.grant(link, 5)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(client.arrived.wait(), 2.0 if drains else 0.4)
                    quiet = 0 if client.received else quiet + 1
                    if drains and quiet >= 3:
                        break
                    await self._use(client, rng, all_of_it=drains)
            client.close()
            await asyncio.sleep(rng.uniform(0.05, 0.3))

    async def _use(self, client: LifeClient, rng: random.Random, *, all_of_it: bool) -> None:
        items, client.received = client.received, []
        # A message may have lain here while an answer was waited for that never came, and its entity may be gone since.
        self.history.deliveries.extend((item.event.at_ms, item.event.uid) for item in items)
        for item in items:
            uid = item.event.uid
            if not all_of_it and rng.random() < 0.3:
                # Its lock runs out, or its connection goes.
                continue
            tried_ms, done_ms = self.history.settled.get(uid, (self.now_ms(), None))
            self.history.settled[uid] = (tried_ms, done_ms)
            if await client.complete(item) and done_ms is None:
                self.history.settled[uid] = (tried_ms, self.now_ms())
        if not all_of_it:
            await asyncio.sleep(rng.choice((0.0, 0.1, 0.6)))

    # -- changes ------------------------------------------------------------------------------------------------

    async def ask(self, what: str, *arguments: Any) -> bool:
        """Have the scale unit do something, as its management interfaces do; whether it said that it did."""
        unit = self.world.unit
        if unit is None or not self.world.node.alive:
            return False
        task = self.world.node.spawn(_quietly(unit, what, arguments))
        await asyncio.wait({task}, timeout=3.0)
        return task.done() and not task.cancelled() and task.result()

    async def become(self, status: str) -> None:
        """Have a status, sooner or later."""
        change = Change(status, self.now_ms())
        self.history.changes.append(change)
        wanted = msgspec.structs.replace(self.description, status=status)
        for _ in range(TRIES_MAX):
            if await self.ask("update_queue", NAMESPACE, wanted):
                change.end_ms = self.now_ms()
                return
            await asyncio.sleep(0.2)

    async def change_status(self) -> None:
        rng = random.Random(f"life:{self.world.seed}:{self.name}:change")
        while not self.is_over:
            await asyncio.sleep(rng.uniform(0.3, 2.0))
            await self.become(rng.choice(_STATUSES))

    async def die_and_rise(self) -> None:
        rng = random.Random(f"life:{self.world.seed}:{self.name}:change")
        while not self.is_over:
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            change = Change(GONE, self.now_ms())
            self.history.changes.append(change)
            while self.exists() or self.world.unit is None:
                change.last_ms = self.now_ms()
                await self.ask("delete_queue", NAMESPACE, self.name)
                await asyncio.sleep(0.1)
            change.end_ms = self.now_ms()
            await asyncio.sleep(rng.choice((0.0, 0.5, 1.5)))
            again = Change(ACTIVE, self.now_ms())
            self.history.changes.append(again)
            tries = 0
            while not self.exists():
                await self.ask("create_queue", NAMESPACE, self.description)
                await asyncio.sleep(0.1)
                tries += 1
                if tries % 30 == 0 and self.world.node.alive:
                    # A deletion whose store failed is finished at the next start, and holds the name until then.
                    self.world.kill(power=False)
                    self.world.start()
            again.end_ms = self.now_ms()

    def exists(self) -> bool:
        unit = self.world.unit
        return unit is not None and self.name in unit.namespace(NAMESPACE).queues


async def _quietly(unit: ScaleUnit, what: str, arguments: tuple[Any, ...]) -> bool:
    try:
        await getattr(unit, what)(*arguments)
    except (ServiceBusError, KeyError):
        return False
    return True


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    rng = random.Random(f"life:{seed}")
    lock_ms = 5_000

    def queue(name: str, **properties: Any) -> QueueDescription:
        return QueueDescription(name=name, lock_duration_ms=lock_ms, max_delivery_count=1_000, **properties)

    fickle = queue("fickle", enable_partitioning=rng.random() < 0.5)
    small = queue("small", max_size_in_megabytes=1)
    phoenix = queue("phoenix", enable_partitioning=rng.random() < 0.5)
    world = World(seed, [fickle, small], rng.choice((1, 2, 3)))
    users = [_Queue(world, fickle, None), _Queue(world, small, LIMIT), _Queue(world, phoenix, None)]
    first = users[2].history.changes
    first[0] = Change(GONE, 0)
    first[0].end_ms = 0
    first.append(Change(ACTIVE, 0))

    async def whole() -> None:
        world.start()
        while not users[2].exists():
            await users[2].ask("create_queue", NAMESPACE, phoenix)
            await asyncio.sleep(0.1)
        first[1].end_ms = users[2].now_ms()
        for disk in world.disks.values():
            disk.faults.chances = {REFUSED: 0.01, AMBIGUOUS: 0.01, SLOW: 0.02} if rng.random() < 0.6 else {}
        jobs = [job for one in users for job in (one.send(), one.receive())]
        tasks = [asyncio.ensure_future(job) for job in (*jobs, users[0].change_status(), users[2].die_and_rise())]
        for _ in range(rng.choice((0, 1, 2))):
            await asyncio.sleep(rng.uniform(1.0, PHASE_S / 2))
            world.kill(power=rng.random() < 0.5)
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            if not world.node.alive:
                world.start()
        await asyncio.sleep(PHASE_S / 2)
        for disk in world.disks.values():
            disk.faults.calm()
        for one in users:
            one.is_over = True
        await asyncio.gather(*tasks)
        await users[0].become(ACTIVE)
        # Locks end, and stores are reopened, within a few seconds.
        await asyncio.sleep(10.0)
        await asyncio.gather(*(one.receive(drains=True) for one in users))

    try:
        world.loop.run(whole(), time_limit_s=RUN_LIMIT_S)
    finally:
        world.loop.close()
    return [f"{one.name}: {problem}" for one in users for problem in check_life(one.history)]
