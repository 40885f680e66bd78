"""A topic under faults over the wire: ``topics`` with AMQP clients that publish and subscribe.

One subscription more, ``onward``, forwards to the queue ``out``: what comes out there came once (I14). One seed is one
run; ``check_fanout`` looks at its history (I24).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, Final

from duobus.amqp import Link, Transfers
from duobus.broker import ScaleUnit
from duobus.codec import Symbol, build_message, scan
from duobus.codec.sections import application_properties
from duobus.errors import ServiceBusError
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from simulation.checkers.fanout import FanoutHistory, Published, check_fanout
from simulation.history import events as h
from simulation.parts.subscribing import Reading, outcome_of
from simulation.scenarios.entity_life import LifeClient
from simulation.scenarios.topics import COMING, RULES, expected
from simulation.world.disk import AMBIGUOUS, SLOW
from simulation.world.disk import REFUSED as REFUSED_FAULT
from simulation.world.message import Received
from simulation.world.world import NAMESPACE, World

TOPIC: Final = "t"
ONWARD: Final = "onward"
OUT: Final = "out"
#: Numbers of messages: from below 60, where one of the rules begins to take them.
FIRST: Final = 50
END: Final = 170
PHASE_S: Final = 10.0
RUN_LIMIT_S: Final = 3_600.0
#: To create what is there from the beginning.
TRIES_MAX: Final = 500
_NAMES: Final = (*RULES, "changing")


def copies_of(number: int, *, has_rule: bool) -> frozenset[tuple[str, str]]:
    """Which copies a message has, the forwarded one included."""
    return expected(number, has_rule=has_rule) | {(ONWARD, "")}


def _at_once(change: Coroutine[Any, Any, None]) -> None:
    """Make a change that waits for nothing on a lone server: nobody publishes before it is noted."""
    try:
        change.send(None)
    except StopIteration:
        return
    raise AssertionError("the change of a rule waits for something")


class _Subscriber(LifeClient):
    """Notes numbers and rules of what arrives.

    Attributes:
        run: Whose history.
        subscription: What this connection receives from.
    """

    run: _Run
    subscription: str

    def _on_transfers(self, event: Transfers) -> None:
        for index, payload in enumerate(event.payloads):
            found = scan(payload)
            about = application_properties(payload[found.bare :])
            number = int(about["n"])
            self.run.history.seen.append((number, self.subscription, str(about.get("RuleName", ""))))
            self.run.ids.setdefault(number, set()).add(str(found.message_id))
            if self.subscription == ONWARD:
                seq = int((found.annotations or {})[Symbol("x-opt-sequence-number")])
                self.run.forwarded.setdefault(number, set()).add(seq)
            delivery = h.Delivery("", 0, str(number), b"", None, 0, 1, self.name, self.name, 0)
            self.received.append(Received(event.link, event.first_delivery_id + index, delivery))
        self.arrived.set()


class _Run:
    """The clients of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"wire-topics:{seed}")
        self.world = World(seed, [QueueDescription(name=OUT, max_delivery_count=1_000)], 3)
        self.history = FanoutHistory()
        self.history.versions = [False]
        self.forwarded: dict[int, set[int]] = {}
        # What the broker has called each message, all of which come without an id.
        self.ids: dict[int, set[str]] = {}
        self.is_over = False
        self._next = FIRST
        self._names = 0

    # -- the broker ---------------------------------------------------------------------------------------------

    async def create(self) -> None:
        """Make what is missing; stores may fail, so it may take several attempts."""
        for _ in range(TRIES_MAX):
            if await self._created():
                return
            await asyncio.sleep(0.2)

    async def _created(self) -> bool:
        unit = self.world.unit
        if unit is None or not unit.namespace(NAMESPACE).queues:
            return False
        task = self.world.node.spawn(self._create(unit))
        await asyncio.wait({task}, timeout=5.0)
        return task.done() and task.result()

    async def _create(self, unit: ScaleUnit) -> bool:
        try:
            if TOPIC not in unit.namespace(NAMESPACE).topics:
                about = TopicDescription(name=TOPIC, enable_partitioning=self.seed % 2 == 0)
                await unit.topics.create_topic(NAMESPACE, about)
            topic = unit.namespace(NAMESPACE).topics[TOPIC]
            for name in (*_NAMES, ONWARD):
                if name not in topic.subscriptions:
                    more: dict[str, Any] = {"forward_to": OUT, "rules": RULES["all"]} if name == ONWARD else {}
                    more = more or {"rules": RULES.get(name, ())}
                    one = SubscriptionDescription(name=name, max_delivery_count=1_000, **more)
                    await unit.topics.create_subscription(NAMESPACE, TOPIC, one)
        except ServiceBusError:
            return False
        return True

    async def change(self) -> None:
        """Somebody adds a rule and removes it."""
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            unit = self.world.unit
            if unit is None or not self.world.node.alive or TOPIC not in unit.namespace(NAMESPACE).topics:
                continue
            subscription = unit.topics.subscription(NAMESPACE, TOPIC, "changing")
            if subscription.about.rules:
                self.world.node.call(_at_once, unit.topics.remove_rule(subscription, COMING.name))
            else:
                self.world.node.call(_at_once, unit.topics.add_rule(subscription, COMING))
            self.history.versions.append(bool(subscription.about.rules))

    # -- clients ------------------------------------------------------------------------------------------------

    async def connect(self, kind: type[Any]) -> Any:
        """A connected client; whoever asks while the broker is away asks again."""
        while True:
            self._names += 1
            try:
                return await kind.connect(self.world, f"client-{self._names}")
            except OSError:
                await asyncio.sleep(0.2)

    async def publish(self) -> None:
        """Publish until there are enough."""
        while self._next < END and not self.is_over:
            client: LifeClient = await self.connect(LifeClient)
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(TOPIC)
                while self._next < END and not self.is_over and client.alive and link.is_attached:
                    await self._publish_one(client, link)
                    await asyncio.sleep(self.rng.choice((0.0, 0.02, 0.1)))
            client.close()
            await asyncio.sleep(0.1)

    async def _publish_one(self, client: LifeClient, link: Link) -> None:
        number, self._next = self._next, self._next + 1
        published = Published(number, len(self.history.versions) - 1)
        self.history.published.append(published)
        payload = build_message(None, {"n": number, "k": str(number % 3)}, data=b"%d" % number)
        state = await client.put(link, payload)
        if state is not None:
            published.outcome = outcome_of(state)
            published.until = len(self.history.versions) - 1

    async def subscribe(self, name: str, *, drains: bool = False) -> None:
        """Receive from a subscription, or from where it forwards to, and complete most of it."""
        path = OUT if name == ONWARD else f"{TOPIC}/Subscriptions/{name}"
        reading = Reading(self.rng, lambda: not self.is_over, drains=drains)
        while reading.goes_on:
            client: _Subscriber = await self.connect(_Subscriber)
            client.run, client.subscription = self, name
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.receiver(path)
                await reading.receive(client, link)
            client.close()
            await asyncio.sleep(0.1)

    # -- the whole ----------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Faults, then calm, then everything is received."""
        world, rng = self.world, self.rng
        world.start()
        await self.create()
        for disk in world.disks.values():
            disk.faults.chances = {REFUSED_FAULT: 0.02, AMBIGUOUS: 0.02, SLOW: 0.02}
        jobs = [
            self.publish(),
            self.publish(),
            self.publish(),
            self.change(),
            *(self.subscribe(name) for name in (*_NAMES, ONWARD)),
        ]
        tasks = [asyncio.ensure_future(job) for job in jobs]
        for _ in range(rng.choice((0, 1, 2))):
            await asyncio.sleep(rng.uniform(0.5, PHASE_S / 2))
            world.kill(power=rng.random() < 0.5)
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            world.start()
        await asyncio.sleep(PHASE_S / 2)
        for disk in world.disks.values():
            disk.faults.calm()
        self.is_over = True
        await asyncio.gather(*tasks)
        # Stores are reopened, and what was forwarded late has arrived.
        await asyncio.sleep(30.0)
        await asyncio.gather(*(self.subscribe(name, drains=True) for name in (*_NAMES, ONWARD)))

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        found = check_fanout(self.history, copies_of)
        for number, counts in self.forwarded.items():
            if len(counts) > 1:
                found.append(f"message {number} was forwarded to '{OUT}' {len(counts)} times (I14)")
        owners: dict[str, int] = {}
        for number, ids in self.ids.items():
            if len(ids) > 1:
                found.append(f"message {number} has {len(ids)} message ids")
            for one in ids:
                if owners.setdefault(one, number) != number or one == str(None):
                    found.append(f"message {number} has no message id of its own")
        return found


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    one = _Run(seed)
    try:
        one.world.loop.run(one.play(), time_limit_s=RUN_LIMIT_S)
    finally:
        one.world.loop.close()
    return one.problems()
