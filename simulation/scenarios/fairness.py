"""A simulation of neighbours in one store: a client that saturates one queue, and one that uses another (I62).

Virtual time has no processor, so a latency in it would say nothing of what neighbours take from each other. What can be
counted is what a message waits for: commits that start without it although it was there, and bytes of others that are
written before it on a connection that it shares. Neither may grow with what the neighbour sends. What a turn costs in
time is measured by ``make neighbours``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.fair_queue import FairQueue
from duobus.broker.fragment_handle import FragmentHandle
from duobus.fragment.send import Run
from duobus.gateway.amqp import peer
from duobus.gateway.amqp.links.outgoing_link import WRITTEN_BYTES, OutgoingLink
from duobus.model.descriptions import QueueDescription
from simulation.checkers import Violation
from simulation.history import events as h
from simulation.world.client import SimulatedClient
from simulation.world.message import Message
from simulation.world.world import World

LOUD: Final = "loud"
QUIET: Final = "quiet"
#: Number of the invariant.
FAIRNESS: Final = 62
#: A message is in the next commit that starts, or in the one after.
COMMITS_MAX: Final = 2
#: Bytes that may lie before a delivery on the connection: what it may hold, and what is written between two looks.
BEFORE_MAX: Final = peer.OUTPUT_BYTES_MAX + WRITTEN_BYTES + (1 << 18)
SECONDS: Final = 0.15
RUN_LIMIT_S: Final = 600.0


class FairWatch:
    """Counts what the quiet neighbour waits for.

    Attributes:
        wrong: What was more than it may be.
        decided: Messages of the quiet neighbour.
        commits, before: The most commits that one of them waited for, and bytes before one of its deliveries.
        waiting: The most commands that waited for the store at a time, to see that it was busy.
    """

    def __init__(self, world: World) -> None:
        self.wrong: list[Violation] = []
        self.decided = self.commits = self.before = self.waiting = 0
        self._world = world
        self._since: dict[int, tuple[Run, int]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at message brokers and links while the context lasts."""
        submit, decide, write = CommitLoop.submit, CommitLoop._decide, OutgoingLink._write

        def submitted(loop: CommitLoop, command: Any) -> None:
            if isinstance(command, Run) and self._is_quiet(command.handle):
                self._since[id(command)] = command, loop.commit_no
            submit(loop, command)

        def decided(loop: CommitLoop, command: Any, now_ms: int, commit: Any) -> bool:
            self.waiting = max(self.waiting, len(loop.pending) + len(loop.lines))
            since = self._since.pop(id(command), None)
            if since is not None:
                self._decided(commit.commit_no - since[1])
            return decide(loop, command, now_ms, commit)

        def written(link: OutgoingLink, *rest: Any) -> None:
            if link.queue.path == QUIET:
                self._written(link._peer.engine.output_size)
            write(link, *rest)

        with (
            mock.patch.object(CommitLoop, "submit", submitted),
            mock.patch.object(CommitLoop, "_decide", decided),
            mock.patch.object(OutgoingLink, "_write", written),
        ):
            yield

    def _is_quiet(self, handle: FragmentHandle) -> bool:
        return self._world.path_of(handle) == QUIET

    def _decided(self, commits: int) -> None:
        self.decided += 1
        self.commits = max(self.commits, commits)
        if commits > COMMITS_MAX:
            self.wrong.append(Violation(FAIRNESS, f"a message of {QUIET} had to wait for {commits} commits"))

    def _written(self, before: int) -> None:
        self.before = max(self.before, before)
        if before > BEFORE_MAX:
            self.wrong.append(Violation(FAIRNESS, f"a delivery of {QUIET} is written behind {before} bytes of others"))


class _Neighbours:
    """The clients of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = rng = random.Random(f"neighbours:{world.seed}")
        self._until = 0.0
        # More than a commit takes, in few messages: each costs the simulation the same, however long it is.
        self._connections = rng.choice((2, 4, 8))
        self._size = rng.choice((60_000, 200_000))
        self._burst = rng.choice((1, 2))
        self._number = 0

    async def play(self) -> None:
        """Both at once, until the time is over."""
        world = self._world
        world.start()
        shared = await self._connected("shared")
        self._until = world.loop.time() + SECONDS
        jobs: list[Any] = [self._loud(number) for number in range(self._connections)]
        jobs += [self._quiet(), self._receive(shared)]
        await asyncio.gather(*jobs)

    async def _connected(self, name: str) -> SimulatedClient:
        while True:
            try:
                return await SimulatedClient.connect(self._world, name)
            except OSError:
                await asyncio.sleep(0.1)

    def _message(self, size: int) -> Message:
        self._number += 1
        return Message(f"n{self._number}", bytes(size), None)

    async def _loud(self, number: int) -> None:
        """Send without waiting for anything but credit, on several links of one connection."""
        client = await self._connected(f"loud-{number}")
        links = [await client.sender(LOUD) for _ in range(4)]
        while self._world.loop.time() < self._until:
            for link in links:
                messages = [self._message(self._size) for _ in range(min(self._burst, link.sendable()))]
                if messages:
                    await client.send(link, LOUD, messages, settled=True)
            await asyncio.sleep(0.003)
        client.close()

    async def _quiet(self) -> None:
        """Send one message at a time."""
        client = await self._connected("quiet")
        link = await client.sender(QUIET)
        while self._world.loop.time() < self._until:
            await client.send(link, QUIET, [self._message(100)])
            await asyncio.sleep(self._rng.uniform(0.001, 0.005))
        client.close()

    async def _receive(self, client: SimulatedClient) -> None:
        """Receive from both queues on one connection, with far more credit for the loud one."""
        loud, quiet = await client.receiver(LOUD, removing=True), await client.receiver(QUIET)
        while self._world.loop.time() < self._until:
            client.grant(loud, 100)
            client.grant(quiet, 10)
            client.arrived.clear()
            await asyncio.sleep(0.005)
            for item in list(client.received):
                if item.event.mode == h.PEEK_LOCK:
                    await client.settle(item, h.COMPLETE)
                else:
                    client.received.remove(item)
        client.close()


def run(seed: int) -> FairWatch:
    """Run one seed."""
    queues = [QueueDescription(name=name, lock_duration_ms=60_000) for name in (LOUD, QUIET)]
    queues[0] = QueueDescription(name=LOUD, lock_duration_ms=60_000, enable_partitioning=seed % 2 == 0)
    with ExitStack() as stack:
        world = World(seed, queues, 1)
        stack.enter_context(world.watched())
        watch = FairWatch(world)
        stack.enter_context(watch.watched())
        try:
            world.loop.run(_Neighbours(world).play(), time_limit_s=RUN_LIMIT_S)
        finally:
            world.loop.close()
    return watch


# -- planted bugs -----------------------------------------------------------------------------------------------


@contextmanager
def first_come_first_served() -> Iterator[None]:
    """Messages of all entities wait for a store in one line."""
    with mock.patch.object(FairQueue, "is_short", return_value=True):
        yield


BUGS: dict[str, Callable[[], Any]] = {
    "first-come-first-served": first_come_first_served,
}
