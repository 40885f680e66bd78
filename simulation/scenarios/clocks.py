"""Starts with a clock that is ahead or behind, in virtual time: nothing expires or comes due early.

Messages with an hour to live and scheduled ones are sent; the broker is killed, and the machine's clock is moved before
it is started again, by hours or by more than a year, and set right some time later. The simulation knows how much time
has really passed, and sees that broker time never goes back (I15, I22, I58). In some seeds the disks refuse and delay
operations, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from duobus import clock
from duobus.clock import AHEAD_MAX_MS, BrokerTime
from duobus.model.batches import SendBatch
from duobus.model.descriptions import QueueDescription
from duobus.model.metadata import MessageMetadata
from simulation.world.clock import WALL_START_MS
from simulation.world.disk import AMBIGUOUS, REFUSED, SLOW
from simulation.world.world import NAMESPACE, World

NAME: Final = "hours"
LIFE_MS: Final = 3_600_000
#: Of the clock at a start. One of a few hours is told from time that has passed only while the machine runs.
JUMPS_MS: Final = (0, 2 * 3_600_000, 9 * 3_600_000, 400 * 86_400_000, -3_600_000)
STEPS: Final = (4, 8)
_UNCOUNTED_JUMPS_MS: Final = (0, 400 * 86_400_000, -3_600_000)
_LIMIT_S: Final = 36_000.0
_TIMEOUT_S: Final = 60.0


class _Reply:
    """Where answers to a send come."""

    def __init__(self) -> None:
        self.ready: list[Any] = []

    def wake(self) -> None:
        """See ``ready``; nobody is woken."""


class _Part:
    """The machine with its clock, and whoever sends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"clocks:{world.seed}:steps")
        self.wrong: list[str] = []
        #: When each that was accepted was sent, and when it is due, in broker time.
        self.accepted: list[tuple[int, int]] = []
        self._last_ms = 0
        self._off_ms = 0

    def true_ms(self) -> int:
        """What a right clock would say."""
        return WALL_START_MS + self.world.loop.time_ms()

    def look(self) -> None:
        """Compare broker time with what has passed."""
        now_ms, true_ms = self.world.broker_ms(), self.true_ms()
        if now_ms < self._last_ms:
            self.wrong.append(f"broker time went back by {self._last_ms - now_ms} ms (I58)")
        if now_ms - true_ms > AHEAD_MAX_MS:
            self.wrong.append(f"broker time is {now_ms - true_ms} ms ahead of the time that has passed (I58)")
        self._last_ms = max(self._last_ms, now_ms)

    async def send(self) -> None:
        """Send a message, half of them scheduled, and wait for the answer."""
        unit = self.world.unit
        queue = None if unit is None else unit.namespace(NAMESPACE).queues.get(NAME)
        if queue is None:
            return
        batch = SendBatch(0, [b"m"], True, _Reply())  # type: ignore[arg-type]
        wait_ms = self.rng.choice((0, 20 * 60_000))
        if wait_ms:
            batch.extra = {0: MessageMetadata(scheduled_ms=self.world.broker_ms() + wait_ms)}
        # Both times are broker time's, which may be behind, and catch up with the clock.
        at_ms = self.world.broker_ms()
        due_ms = at_ms + wait_ms
        # As part of the broker's process: what this begins there has to end with it.
        self.world.node.call(queue.send, batch)
        for _ in range(int(_TIMEOUT_S)):
            await asyncio.sleep(1.0)
            if batch.reply.ready:
                if batch.reply.ready[0].error is None:
                    self.accepted.append((at_ms, due_ms))
                return

    async def restart(self) -> None:
        """Kill the broker, move the clock, and start it."""
        world, rng = self.world, self.rng
        self.look()
        has_counted = rng.random() < 0.7
        assert world._time is not None
        if world._time.is_begun:
            # Of two stores, the one that recorded something may be away at the start.
            is_kept = has_counted or len(world.disks) > 1 or rng.random() < 0.7
            world.witness = world._time.witness() if is_kept else None
        world.kill(power=not has_counted)
        if not has_counted:
            world.clock.boot_name = f"boot-{world.lives}"
        await asyncio.sleep(rng.uniform(0.1, 900.0))
        # Set right for a moment, or the same fault would add up.
        world.clock.jump(-self._off_ms)
        is_counted = world.witness is not None and world.witness.boot == world.clock.boot_name
        self._off_ms = rng.choice(JUMPS_MS if is_counted else _UNCOUNTED_JUMPS_MS)
        world.clock.jump(self._off_ms)
        world.start()
        await asyncio.sleep(5.0)
        self.look()

    def set_right(self) -> None:
        """Somebody sets the clock."""
        self.world.clock.jump(-self._off_ms)
        self._off_ms = 0

    def count(self) -> None:
        """Look whether what was accepted, and may not have expired, is there, and is not due before its time."""
        unit = self.world.unit
        queue = None if unit is None else unit.namespace(NAMESPACE).queues.get(NAME)
        if queue is None or any(not handle.online for handle in queue.fragments):
            return
        now_ms = self.true_ms()
        living = [due for at, due in self.accepted if now_ms - at < LIFE_MS - AHEAD_MAX_MS - 60_000]
        (active, _, _, _, scheduled), _ = queue.numbers()
        if active + scheduled < len(living):
            self.wrong.append(
                f"{len(living)} messages have not lived for an hour, and {active + scheduled} are left (I22)"
            )
        early = sum(due > now_ms + AHEAD_MAX_MS for due in living)
        if scheduled < early:
            self.wrong.append(f"{early} messages are not due, and {scheduled} are scheduled (I15)")


def run(seed: int) -> list[str]:
    """Run one seed; returns what is wrong with it, in words."""
    rng = random.Random(f"clocks:{seed}")
    about = QueueDescription(name=NAME, default_message_time_to_live_ms=LIFE_MS, enable_partitioning=rng.random() < 0.5)
    world = World(seed, [about], rng.choice((1, 2)))
    part = _Part(world)
    is_sick = random.Random(f"clocks:{seed}:disks").random() < 0.4

    async def whole() -> None:
        world.start()
        for disk in world.disks.values() if is_sick else ():
            disk.faults.chances = {REFUSED: 0.05, AMBIGUOUS: 0.05, SLOW: 0.05}
        await asyncio.sleep(5.0)
        for _ in range(rng.randint(*STEPS)):
            for _ in range(rng.randint(1, 4)):
                await part.send()
            await asyncio.sleep(rng.choice((1.0, rng.uniform(1.0, 600.0))))
            part.look()
            part.count()
            # Where nothing was ever recorded, any clock is believed.
            if part.accepted and rng.random() < 0.7:
                await part.restart()
                await asyncio.sleep(rng.choice((1.0, 120.0)))
                part.count()
            if rng.random() < 0.5:
                part.set_right()

    try:
        world.loop.run(whole(), time_limit_s=_LIMIT_S)
    finally:
        world.loop.close()
    return part.wrong


@contextmanager
def clock_believed() -> Iterator[None]:
    """A start takes the machine's clock, however far ahead it is."""
    with mock.patch.multiple(clock, AHEAD_MAX_MS=1 << 60, AHEAD_UNCOUNTED_MAX_MS=1 << 60):
        yield


@contextmanager
def counted_time_forgotten() -> Iterator[None]:
    """The time that the machine has counted is not looked at: what passed and what is wrong look alike."""
    with mock.patch.object(clock, "AHEAD_MAX_MS", clock.AHEAD_UNCOUNTED_MAX_MS):
        yield


@contextmanager
def record_forgotten() -> Iterator[None]:
    """A start does not ask what was recorded: with a clock that is behind, time goes back."""
    original = BrokerTime.begin

    def begin(self: BrokerTime, recorded_ms: int) -> None:
        self._witness = None
        original(self, 0 * recorded_ms)

    with mock.patch.object(BrokerTime, "begin", begin), mock.patch.object(BrokerTime, "raise_to"):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "clock-believed": clock_believed,
    "counted-time-forgotten": counted_time_forgotten,
    "record-forgotten": record_forgotten,
}
