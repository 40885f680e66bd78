"""A simulation in which one disk is slow, and sometimes hangs, while the others are well (PE4, I27, I9, I29).

The simulation of ``run.py`` has faults of many kinds that strike all disks now and then. Here everything that
store 1 is told takes nearly as long as a store may take, again and again, so that it is not given up, or takes longer,
so that it is. A message without a key has to be stored elsewhere soon, which ``keyless_sends.py`` watches, and
who takes messages for good gets those of the other stores soon, which ``waiting.py`` watches.

In every fifth seed all disks are lost for a while: then nothing is stored, and whoever sends is told so in time (I38).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import msgspec

from duobus.broker.message_broker import MessageBroker
from duobus.broker.protocols import LateRefusal
from duobus.broker.store_lifecycle import StoreLifecycle
from duobus.fragment.receive import TakeAndRemove
from duobus.model.quotas import STORE_TIMEOUT_S
from duobus.storage import writer_pool
from duobus.storage.writer_pool import COMMIT_TIMEOUTS, ENDLESS_S, LONG_S, REFUSAL_S
from simulation.checkers import Violation, check
from simulation.history.events import FragmentsLate
from simulation.parts.keyless_sends import watches
from simulation.run import RUN_LIMIT_S, Scenario, SimulatedRun
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW
from simulation.world.world import World

#: What a call of the sick store takes, seconds: slow, and in every second seed sometimes too long.
SLOW_S: Final = (0.7 * STORE_TIMEOUT_S, 0.97 * STORE_TIMEOUT_S)
HANGING_S: Final = (0.7 * STORE_TIMEOUT_S, 1.5 * STORE_TIMEOUT_S)
SICK: Final = 1
SECONDS: Final = 40.0
#: In every fifth seed all disks are lost for so long: later than a client waits for an answer.
LOST_S: Final = 25.0
#: How long a sender may wait: for a commit that its message just missed, for its own, and for the refusal.
ANSWER_MS: Final = round(2000 * COMMIT_TIMEOUTS * STORE_TIMEOUT_S + 1000 * REFUSAL_S)


class _SickDiskRun(SimulatedRun):
    async def _nemesis(self) -> None:
        await asyncio.sleep(0.5)
        faults = self.world.disks[SICK].faults
        faults.chances, faults.slow_s = {SLOW: 1.0}, HANGING_S if self.world.seed % 2 else SLOW_S
        if self.world.seed % 5 == 3:
            await self._lose_all()
        await asyncio.sleep(max(0.0, self.stop_at - self.world.loop.time()))

    async def _lose_all(self) -> None:
        """Let every store fail or hang in the midst of it, perhaps with its last commit on disk."""
        rng = random.Random(f"lost:{self.world.seed}")
        await asyncio.sleep(rng.uniform(1.0, 5.0))
        for disk in self.world.disks.values():
            how = rng.choice((REFUSED, AMBIGUOUS, SLOW))
            disk.faults.chances, disk.faults.slow_s = {how: 1.0}, (LOST_S, LOST_S)
            disk.faults.open_refused = 1.0
        await asyncio.sleep(LOST_S)
        for disk in self.world.disks.values():
            disk.faults.calm()


def run(seed: int) -> tuple[list[Violation], int]:
    """Run one seed; what is wrong, and how often the store was late."""
    scenario = Scenario(seed)
    scenario.stores = 2 + seed % 3
    scenario.seconds = SECONDS
    scenario.messages *= 4
    scenario.queues = [msgspec.structs.replace(scenario.queues[0], enable_partitioning=True)]
    with ExitStack() as stack:
        world = World(seed, scenario.all_queues, scenario.stores)
        stack.enter_context(world.watched())
        world.loop.on_rest = watches(world)
        try:
            world.loop.run(_SickDiskRun(world, scenario).play(), time_limit_s=RUN_LIMIT_S)
        finally:
            world.loop.close()
    setup = scenario.setup(frozenset(world.removed_uids))
    setup.answer_ms = ANSWER_MS
    wrong = check(world.history, setup)
    return wrong, sum(isinstance(event, FragmentsLate) for event in world.history)


# -- planted bugs -----------------------------------------------------------------------------------------------


@contextmanager
def slow_store_waited_for() -> Iterator[None]:
    """A store that takes its time is waited for by everything that was sent to it, however long it takes."""
    with mock.patch.object(writer_pool, "LATE_S", LONG_S):
        yield


@contextmanager
def what_waits_stays() -> Iterator[None]:
    """A store that is late is passed over, and what waits for it already goes on waiting."""
    with mock.patch.object(StoreLifecycle, "see_late"):
        yield


@contextmanager
def commit_waits_behind_reads() -> Iterator[None]:
    """A commit has its whole timeout, however long it waited behind a read."""
    with mock.patch.object(writer_pool, "COMMIT_TIMEOUTS", ENDLESS_S):
        yield


@contextmanager
def late_store_chosen() -> Iterator[None]:
    """What waits for a store that is late is sent elsewhere, and what comes meanwhile is sent there."""
    with mock.patch.object(MessageBroker, "is_late", False):
        yield


@contextmanager
def credit_stays_with_late_store() -> Iterator[None]:
    """Who takes messages for good and has asked a store that is late is not served by the others meanwhile."""

    def keep(self: StoreLifecycle, takes: list[TakeAndRemove]) -> None:
        self._broker.commit_loop.pending.extend(takes)

    with mock.patch.object(StoreLifecycle, "_give_back", keep):
        yield


@contextmanager
def all_lost_unanswered() -> Iterator[None]:
    """What was under way when all stores were lost waits until one of them is back."""
    with mock.patch.object(LateRefusal, "give_up"):
        yield


BUGS: dict[str, Callable[[], Any]] = {
    "slow-store-waited-for": slow_store_waited_for,
    "what-waits-stays": what_waits_stays,
    "commit-waits-behind-reads": commit_waits_behind_reads,
    "late-store-chosen": late_store_chosen,
    "credit-stays-with-late-store": credit_stays_with_late_store,
    "all-lost-unanswered": all_lost_unanswered,
}
