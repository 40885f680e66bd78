"""Deterministic simulation of the whole broker: ``python -m simulation.campaign --seed 7``.

A seed draws a scenario: queues, stores, clients and which faults may strike how often (swarm). Two phases: faults on,
then everything is healed and drained. The history is checked for the invariants of the delivery core. The same seed
gives the same run, to the byte; a campaign runs every fiftieth seed twice to see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import ExitStack
from typing import Any

from duobus.model.descriptions import QueueDescription
from simulation.checkers import EntityRules, Setup, Violation, check
from simulation.history import events as h
from simulation.mutants.queues import MUTANTS
from simulation.parts.forwarding import ForwardingClients, forwarding_queues, sub_queues_of, teach
from simulation.parts.keyless_sends import watches
from simulation.parts.sessions import SessionClients
from simulation.parts.survey import survey
from simulation.parts.transactions import transact
from simulation.world.client import SimulatedClient
from simulation.world.disk import FAULTS
from simulation.world.duplicate_sends import Repeats, window_of, with_detection
from simulation.world.message import Message
from simulation.world.receiver_actions import (
    has_releaser,
    has_unanswered,
    release_everything,
    settle_unanswered,
    use,
)
from simulation.world.world import World

LOCK_MS = 3_000
PHASE_S = (6.0, 14.0)
#: Virtual seconds, four times what the drains of three hundred seeds took at the most. A broker that never comes to
#: rest is found so late.
DRAIN_LIMIT_S = 130.0
#: Share of the seeds that have a queue with sessions, too.
SESSIONS_SHARE = 0.4
RUN_LIMIT_S = 3_600.0


class Scenario:
    """What a seed has drawn.

    Attributes:
        queues: Entities with their properties.
        stores: Number of messaging stores.
        senders, receivers, transactors: How many clients of each.
        messages: Messages per sender.
        kills, power_cuts: How often the broker's process or machine dies.
        cuts: How often a connection is reset or goes silent.
        chances: Probability of each disk fault per durable operation.
        seconds: Length of the first phase.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"scenario:{seed}")
        self.stores = rng.choice((1, 2, 3, 4))
        lock = rng.choice((LOCK_MS, LOCK_MS, 1_500))
        self.queues = [
            QueueDescription(name="plain", lock_duration_ms=lock, max_delivery_count=rng.choice((2, 5, 10, 10))),
        ]
        if rng.random() < 0.8:
            self.queues.append(
                QueueDescription(
                    name="parted",
                    lock_duration_ms=lock,
                    enable_partitioning=True,
                    max_delivery_count=10,
                    default_message_time_to_live_ms=rng.choice((None, None, 4_000)),
                    dead_lettering_on_message_expiration=rng.random() < 0.5,
                )
            )
        self.senders = rng.randint(1, 3)
        self.receivers = rng.randint(1, 3)
        self.messages = rng.randint(8, 40)
        self.kills = rng.choice((0, 0, 1, 2))
        self.power_cuts = rng.choice((0, 0, 1, 2))
        self.cuts = rng.choice((0, 0, 2, 4))
        self.chances: dict[str, float] = {}
        for fault in FAULTS:
            if rng.random() < 0.3:
                self.chances[fault] = rng.choice((0.01, 0.05, 0.15))
        self.seconds = rng.uniform(*PHASE_S)
        self.removing = rng.random() < 0.4
        self.management = rng.random() < 0.6
        self.queues = with_detection(self.queues, seed)
        # Drawn apart, so that the rest of a seed's scenario stays what it was.
        self.transactors = random.Random(f"transactors:{seed}").randint(1, 3) if seed % 4 == 3 else 0
        apart = random.Random(f"sessions:{seed}")
        self.sessions: QueueDescription | None = None
        if apart.random() < SESSIONS_SHARE:
            self.sessions = QueueDescription(
                name="in-sessions",
                requires_session=True,
                lock_duration_ms=apart.choice((LOCK_MS, 1_500)),
                enable_partitioning=apart.random() < 0.5,
                max_delivery_count=apart.choice((3, 10)),
            )
        self.session_receivers = apart.randint(2, 4)
        self.forwarding = forwarding_queues(seed, lock)

    def __repr__(self) -> str:
        queues = ", ".join(queue.name for queue in self.all_queues)
        return (
            f"{queues} over {self.stores} stores; {self.senders} senders of {self.messages} messages, "
            f"{self.receivers} receivers, {self.transactors} transactors; "
            f"{self.kills} kills, {self.power_cuts} power cuts, {self.cuts} cuts, "
            f"disk faults {self.chances or 'none'}; {self.seconds:.1f} s"
        )

    @property
    def all_queues(self) -> list[QueueDescription]:
        """Those with sessions and forwarding included, if there are any."""
        return [*self.queues, *([] if self.sessions is None else [self.sessions]), *self.forwarding]

    def setup(self, removed: frozenset[str]) -> Setup:
        """What the checkers have to know."""
        rules = {
            queue.name: EntityRules(
                max_delivery_count=queue.max_delivery_count,
                lock_ms=queue.lock_duration_ms,
                ttl_ms=queue.default_message_time_to_live_ms,
                dead_letter_on_expiry=queue.dead_lettering_on_message_expiration,
                fragments=tuple(range(16)) if queue.enable_partitioning else (0,),
                window_ms=window_of(queue),
            )
            for queue in self.all_queues
        }
        teach(rules)
        return Setup(rules, purged=removed, concurrent_senders=self.senders + self.transactors)


class Result:
    """How one run ended."""

    def __init__(
        self, seed: int, violations: list[Violation], digest: int, history: h.History, scenario: Scenario
    ) -> None:
        self.seed = seed
        self.violations = violations
        self.digest = digest
        self.history = history
        self.scenario = scenario


class SimulatedRun:
    """The clients and the nemesis of one run; ``fragment_moves.py`` adds to it."""

    forwarding_part = ForwardingClients

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.rng = random.Random(f"run:{world.seed}")
        self.stop_at = 0.0
        self.deferred: list[tuple[str, int]] = []
        self.scheduled: list[tuple[str, int]] = []
        self.sending = 0
        self._number = 0
        self._sessions: SessionClients | None = None

    @property
    def in_phase(self) -> bool:
        """Whether faults still strike."""
        return self.world.loop.time() < self.stop_at

    async def play(self) -> None:
        """Both phases."""
        world, scenario = self.world, self.scenario
        world.start()
        self.stop_at = world.loop.time() + scenario.seconds
        jobs = [self._sender(number) for number in range(scenario.senders)]
        jobs += [self._receiver(number) for number in range(scenario.receivers)]
        if scenario.management:
            jobs.append(self._manager())
        for number in range(scenario.transactors):
            entity = scenario.queues[number % len(scenario.queues)].name
            jobs.append(transact(world, entity, number, self._client, lambda: self.in_phase))
        if scenario.sessions is not None:
            part = self._sessions = SessionClients(world, scenario.sessions, self.stop_at, scenario.messages)
            jobs += [part.sender(number) for number in range(2)]
            jobs += [part.receiver(number) for number in range(scenario.session_receivers)]
        if has_releaser(world.seed):
            entity = scenario.queues[world.seed % len(scenario.queues)].name
            jobs.append(release_everything(world, entity, self._client, lambda: self.in_phase))
        if has_unanswered(world.seed):
            entity = scenario.queues[(world.seed + 1) % len(scenario.queues)].name
            jobs.append(settle_unanswered(world, entity, self._client, lambda: self.in_phase))
        if scenario.forwarding:
            jobs += self.forwarding_part(world, self._client, lambda: self.in_phase, scenario.messages).jobs()
        jobs += self.more_jobs()
        tasks = [asyncio.ensure_future(job) for job in jobs]
        await self._nemesis()
        world.mend()
        await asyncio.gather(*tasks)
        await self._drain()

    def more_jobs(self) -> list[Any]:
        """What else runs during the first phase, in worlds that have more."""
        return []

    # -- clients ------------------------------------------------------------------------------------------------

    async def _client(self, kind: str, made: type[SimulatedClient] = SimulatedClient) -> Any:
        """A connected client, or None when the phase ended first."""
        self._number += 1
        name = f"{kind}-{self._number}"
        while True:
            try:
                return await made.connect(self.world, name)
            except OSError:
                await asyncio.sleep(0.2)
                if not self.in_phase and kind != "drain":
                    return None

    async def _sender(self, number: int) -> None:
        rng = random.Random(f"sender:{self.world.seed}:{number}")
        left = self.scenario.messages
        queue = rng.choice(self.scenario.queues)
        entity = queue.name
        again: list[Message] = []
        repeats = Repeats(f"repeats:{self.world.seed}:{number}", queue)
        while (left > 0 or again) and self.in_phase:
            client = await self._client("sender")
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(entity)
                await asyncio.sleep(0.05)
                while (left > 0 or again) and self.in_phase and client.alive:
                    size = rng.choice((1, 1, 3, 8))
                    messages = again or [self._message(rng, number, left - i) for i in range(min(size, left))]
                    left -= 0 if again else len(messages)
                    batch = len(messages) > 1 and rng.random() < 0.3 and self._go_together(entity, messages)
                    plain = not any(m.ping or m.scheduled_ms for m in messages)
                    settled = plain and rng.random() < 0.05
                    ok = await client.send(link, entity, messages, batch=batch and plain, settled=settled)
                    again = [] if ok or rng.random() < 0.3 else messages
                    await repeats.repeat(client, link, entity, messages)
                    await asyncio.sleep(rng.choice((0.0, 0.02, 0.3)))
            client.close()
            await asyncio.sleep(0.05)

    def _go_together(self, entity: str, messages: list[Message]) -> bool:
        """Whether a batch transfer of these belongs to one fragment for sure (I40)."""
        keys = {self.world.placing_key(entity, m.key, m.uid, ping=m.ping) for m in messages}
        return len(keys) == 1

    def _message(self, rng: random.Random, sender: int, number: int) -> Message:
        message = Message(f"{sender}-{number}", rng.randbytes(rng.choice((0, 20, 200))), None)
        if rng.random() < 0.3:
            message.key = f"key{rng.randint(0, 5)}"
        if rng.random() < 0.05:
            message.ping = True
            message.key = None
        elif rng.random() < 0.1:
            message.scheduled_ms = self.world.clock.now_ms() + rng.randint(100, 4_000)
        elif rng.random() < 0.1:
            message.ttl_ms = rng.choice((300, 2_000, 60_000))
        return message

    async def _receiver(self, number: int) -> None:
        rng = random.Random(f"receiver:{self.world.seed}:{number}")
        entity = rng.choice(self.scenario.queues).name
        removing = self.scenario.removing and rng.random() < 0.5
        while self.in_phase:
            client = await self._client("receiver")
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.receiver(entity, removing=removing)
                while self.in_phase and client.alive:
                    client.arrived.clear()
                    client.grant(link, rng.choice((1, 5, 20)), drain=rng.random() < 0.1)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(client.arrived.wait(), 0.5)
                    await use(client, rng, self.deferred, removing=removing)
                    if rng.random() < 0.03:
                        break
            client.close()
            await asyncio.sleep(0.1)

    async def _manager(self) -> None:
        rng = random.Random(f"manager:{self.world.seed}")
        number = 0
        while self.in_phase:
            client = await self._client("manager")
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                while self.in_phase and client.alive:
                    entity = rng.choice(self.scenario.queues).name
                    draw = rng.random()
                    if draw < 0.4:
                        await client.peek(entity)
                    elif draw < 0.6:
                        number += 1
                        message = Message(f"scheduled-{number}", b"x")
                        message.scheduled_ms = self.world.clock.now_ms() + rng.randint(200, 5_000)
                        seq = await client.schedule(entity, message)
                        if seq is not None:
                            self.scheduled.append((entity, seq))
                    elif draw < 0.8 and self.scheduled:
                        where, seq = self.scheduled.pop(rng.randrange(len(self.scheduled)))
                        await client.cancel(where, seq)
                    elif self.deferred:
                        where, seq = rng.choice(self.deferred)
                        item = await client.receive_deferred(where, seq)
                        if item is not None:
                            outcome = rng.choice((h.COMPLETE, h.ABANDON))
                            await client.settle(item, outcome, management=True)
                    await asyncio.sleep(rng.uniform(0.1, 0.8))
            client.close()
            await asyncio.sleep(0.1)

    # -- faults -------------------------------------------------------------------------------------------------

    async def _nemesis(self) -> None:
        scenario, rng, world = self.scenario, self.rng, self.world
        await asyncio.sleep(0.5)
        for disk in world.disks.values():
            disk.faults.chances = dict(scenario.chances)
        strikes = [(rng.uniform(0.3, scenario.seconds - 0.5), "kill") for _ in range(scenario.kills)]
        strikes += [(rng.uniform(0.3, scenario.seconds - 0.5), "power") for _ in range(scenario.power_cuts)]
        strikes += [(rng.uniform(0.3, scenario.seconds - 0.5), "cut") for _ in range(scenario.cuts)]
        began = world.loop.time()
        for at, strike in sorted(strikes):
            await asyncio.sleep(max(0.0, began + at - world.loop.time()))
            if strike == "cut":
                self._cut()
            elif world.node.alive:
                world.kill(power=strike == "power")
                await asyncio.sleep(rng.uniform(0.05, 1.0))
                world.start()
        await asyncio.sleep(max(0.0, self.stop_at - world.loop.time()))

    def _cut(self) -> None:
        connections = self.world.network.connections(self.world.HOST)
        if connections:
            self.rng.choice(connections).reset()

    # -- the end ------------------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        """Wait for locks to end, and look through the queues while nobody uses them."""
        await asyncio.sleep(6.0)
        await survey(self.world, self.scenario.all_queues, self.scenario.forwarding)

    async def _drain(self) -> None:
        """Receive and complete until nothing comes any more, from every sub-queue; then look what is left."""
        world = self.world
        await self._come_to_rest()
        async with asyncio.timeout(DRAIN_LIMIT_S):
            client = await self._client("drain")
            assert client is not None
            if self._sessions is not None:
                await self._sessions.drain()
            links = []
            for queue in self.scenario.all_queues:
                for subqueue in sub_queues_of(queue):
                    if subqueue == h.DEAD_LETTER or not queue.requires_session:
                        links.append(await client.receiver(queue.name, subqueue=subqueue))
            quiet = 0
            while quiet < 3:
                client.arrived.clear()
                for link in links:
                    client.grant(link, 50)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.arrived.wait(), LOCK_MS / 1000 + 1.5)
                quiet = 0 if client.received else quiet + 1
                for item in list(client.received):
                    await client.settle(item, h.COMPLETE)
                quiet = 0 if await self._drain_deferred(client) else quiet
            left = [uid for queue in self.scenario.all_queues for _, uid in await client.peek(queue.name, count=250)]
            client.close()
            world.history.append(h.Drained(world.broker_ms(), frozenset(left)))

    async def _drain_deferred(self, client: SimulatedClient) -> bool:
        found = False
        for where, seq in sorted(set(self.deferred)):
            item = await client.receive_deferred(where, seq)
            if item is not None:
                found = True
                await client.settle(item, h.COMPLETE, management=True)
        self.deferred = []
        return found


def run(seed: int, bug: str | None = None) -> Result:
    """Run one seed, with one planted bug or none, and check its history."""
    scenario = Scenario(seed)
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(MUTANTS[bug]())
        world = World(seed, scenario.all_queues, scenario.stores)
        stack.enter_context(world.watched())
        world.loop.on_rest = watches(world)
        try:
            world.loop.run(SimulatedRun(world, scenario).play(), time_limit_s=RUN_LIMIT_S)
        finally:
            world.loop.close()
    violations = check(world.history, scenario.setup(frozenset(world.removed_uids)))
    return Result(seed, violations, world.history.digest(), world.history, scenario)
