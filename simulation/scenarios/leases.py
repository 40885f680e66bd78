"""Several servers over one table of leases, as objects: killed, paused, cut off, with clocks that jump (I55, I58).

Each server runs the real ``StoreLeases`` with its own monotonic and wall clock; the table is the reference one, on the
clock of its database. Every message between them takes its time, as does every commit to a store. A store takes a
commit from its latest generation only; a server hands messages out while ``StoreLeases`` allows it. What must never be:

- a store takes a commit of an earlier generation behind one of a later, or loses what was acknowledged;
- two servers hand out messages of one store at the same time;
- when everything is well again, a store without a holder, or an uneven spread, for longer than a lease and three beats.

The mistakes that a design of this kind lives by not making are planted by ``BUGS``, and have to be found.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final
from unittest import mock

from duobus.cluster.leases import BEAT_MS, LEASE_MS, Heartbeat, StoreLeases
from duobus.storage.catalog.leases import Exchange, MemoryLeases, NodeEntry, Table

STORES: Final = 4
NODES: Final = 3
#: Of trouble, and of peace afterwards, in which everything has to come right again.
TROUBLE_MS: Final = 60_000
PEACE_MS: Final = LEASE_MS + 8 * BEAT_MS
#: How long a message to the table or a commit may take.
LATENCY_MS: Final = (1, 30)
#: How long a server that takes a store over reads it before it serves.
RECOVERY_MS: Final = (20, 400)


class SimStore:
    """A messaging store: numbers in order, each with the generation that wrote it."""

    def __init__(self) -> None:
        self.generation = 0
        self.log: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []

    def begin_generation(self) -> int:
        """A new life: earlier ones are refused from now on."""
        self.generation += 1
        return self.generation

    def takes(self, generation: int) -> bool:
        """Whether a commit of this generation is taken."""
        return generation == self.generation

    def commit(self, generation: int, number: int) -> bool:
        """Write one message; False: refused."""
        if not self.takes(generation):
            return False
        self.log.append((generation, number))
        return True


class SimNode:
    """One server: a ``StoreLeases`` and what hangs on it."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.ownership = StoreLeases(NodeEntry(name, name, name, is_leaving=False))
        self.is_dead = False
        self.paused_until = 0
        self.cut_until = 0
        self.skew_ms = world.random.randrange(10**9)
        self.wall_jump_ms = 0
        # Store id to the generation with which it is open here.
        self.serving: dict[int, int] = {}
        self.world.at(0, self, self.send_beat)

    def monotonic_ms(self) -> int:
        """Runs with true time, from a zero of its own."""
        return self.world.now_ms + self.skew_ms

    def wall_ms(self) -> int:
        """Jumps."""
        return self.world.now_ms + self.wall_jump_ms

    def may_act(self, store_id: int) -> bool:
        """Whether it may hand out messages of a store now."""
        return self.ownership.may_act(store_id, self.monotonic_ms())

    # -- beats --------------------------------------------------------------------------------------------------

    def send_beat(self) -> None:
        """Tell the table; the next beat goes out when this one was answered, or its time is over."""
        self.drop(self.ownership.is_expired(self.monotonic_ms()))
        beat = self.ownership.beat(self.monotonic_ms())
        world = self.world
        if world.now_ms >= self.cut_until:
            world.at(world.latency(), None, lambda: self._at_the_table(beat))
        if world.is_trouble and world.random.random() < 0.01:
            # Stopped while it waits for the answer.
            self.paused_until = world.now_ms + world.random.choice((2_000, 4_000))
        world.at(BEAT_MS, self, self.send_beat)

    def _at_the_table(self, beat: Heartbeat) -> None:
        if self.is_dead:
            return
        seen = self.world.table.exchange(beat.told)
        if self.world.now_ms >= self.cut_until:
            self.world.at(self.world.latency(), self, lambda: self._answered(beat, seen))

    def _answered(self, beat: Heartbeat, seen: Table) -> None:
        moves = self.ownership.seen(beat, seen, self.monotonic_ms())
        self.drop(moves.lost)
        for store_id in moves.gained:
            self.world.at(self.world.latency(), self, partial(self._open, store_id))
        for store_id in moves.leave:
            self._leave(store_id)
        if self.ownership.wants_soon:
            self._again()

    def _again(self) -> None:
        beat = self.ownership.beat(self.monotonic_ms())
        self.world.at(self.world.latency(), None, lambda: self._at_the_table(beat))

    def _open(self, store_id: int) -> None:
        if not self.may_act(store_id):
            return
        generation = self.world.stores[store_id].begin_generation()
        low, high = RECOVERY_MS
        delay = self.world.random.randint(low, high)
        self.world.at(delay, self, lambda: self._opened(store_id, generation))

    def _opened(self, store_id: int, generation: int) -> None:
        if self.may_act(store_id):
            self.serving[store_id] = generation

    def _leave(self, store_id: int) -> None:
        self.serving.pop(store_id, None)
        self.ownership.left(store_id)

    def drop(self, lost: list[int]) -> None:
        """Serve these no more."""
        for store_id in lost:
            self.serving.pop(store_id, None)

    def drain(self) -> None:
        """Leave in good order."""
        for store_id in self.ownership.drain():
            self._leave(store_id)
        self._again()

    # -- work ---------------------------------------------------------------------------------------------------

    def write(self, store_id: int) -> None:
        """Take a message and commit it; the commit may reach the store late."""
        generation = self.serving.get(store_id)
        if generation is None:
            return
        number = self.world.next_number()
        delay = self.world.latency()
        if self.world.random.random() < 0.02:
            # Stuck on its way, as the commit of a server that was stopped in the middle of it.
            delay += self.world.random.randint(0, 3 * LEASE_MS)
        self.world.at(delay, None, lambda: self._at_the_store(store_id, generation, number))

    def _at_the_store(self, store_id: int, generation: int, number: int) -> None:
        store = self.world.stores[store_id]
        if store.commit(generation, number):
            store.acknowledged.append(number)
        elif self.serving.get(store_id) == generation:
            # Refused: its memory is thrown away, and it opens the store again if it may.
            del self.serving[store_id]
            self.world.at(self.world.latency(), self, lambda: self._open(store_id))

    def hand_out(self, store_id: int) -> None:
        """Hand out a message, if it may."""
        if store_id in self.serving and self.may_act(store_id):
            self.world.handed_out(self, store_id)


class SimWorld:
    """All of it, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"cluster:{seed}")
        self.now_ms = 0
        self.is_trouble = True
        self.violations: list[str] = []
        self.stores = {store_id: SimStore() for store_id in range(STORES)}
        self.table: MemoryLeases = MemoryLeases(range(STORES), lambda: 10**12 + self.now_ms)
        self.moved = 0
        self._events: list[tuple[int, int, SimNode | None, Callable[[], object]]] = []
        self._serial = 0
        self._number = 0
        # Store id to who handed out last, and under which term.
        self._last: dict[int, tuple[str, int]] = {}
        self._names = 0
        self.nodes: list[SimNode] = []
        for _ in range(NODES):
            self.add_node()

    def add_node(self) -> SimNode:
        """Start a server."""
        self._names += 1
        node = SimNode(self, f"n{self._names}")
        self.nodes.append(node)
        return node

    def latency(self) -> int:
        """Of one message."""
        return self.random.randint(*LATENCY_MS)

    def next_number(self) -> int:
        """Of a message."""
        self._number += 1
        return self._number

    def at(self, delay_ms: int, node: SimNode | None, call: Callable[[], object]) -> None:
        """Do something later; what is a server's waits while that is paused, and dies with it."""
        self._serial += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._serial, node, call))

    def handed_out(self, node: SimNode, store_id: int) -> None:
        """A message was handed out: nobody else may be doing so."""
        term = node.ownership.term(store_id) or 0
        name, last = self._last.get(store_id, (node.name, 0))
        if term < last:
            self.violations.append(f"{self.now_ms}: {node.name} hands out of store {store_id} behind {name}")
        elif name != node.name:
            self.moved += 1
        self._last[store_id] = (node.name, max(term, last))
        for other in self.nodes:
            if other is not node and not other.is_dead and store_id in other.serving and other.may_act(store_id):
                self.violations.append(f"{self.now_ms}: {node.name} and {other.name} both hand out of store {store_id}")

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Trouble, then peace; return what must not be and was."""
        self._until(TROUBLE_MS)
        self.is_trouble = False
        for node in self.nodes:
            node.cut_until = 0
            node.paused_until = min(node.paused_until, self.now_ms)
        self._until(TROUBLE_MS + PEACE_MS)
        self._judge()
        return self.violations

    def _until(self, end_ms: int) -> None:
        step = 0
        while self.now_ms < end_ms and not self.violations:
            self.now_ms += 5
            while self._events and self._events[0][0] <= self.now_ms:
                _, serial, node, call = heapq.heappop(self._events)
                if node is not None and node.is_dead:
                    continue
                if node is not None and node.paused_until > self.now_ms:
                    heapq.heappush(self._events, (node.paused_until, serial, node, call))
                    continue
                call()
            step += 1
            self._traffic()
            if self.is_trouble and step % 20 == 0 and self.random.random() < 0.12:
                self._strike()

    def _traffic(self) -> None:
        for node in self.nodes:
            if node.is_dead or node.paused_until > self.now_ms:
                continue
            for store_id in list(node.serving):
                if self.random.random() < 0.05:
                    node.write(store_id)
                if self.random.random() < 0.2:
                    node.hand_out(store_id)

    def _strike(self) -> None:
        alive = [node for node in self.nodes if not node.is_dead]
        if not alive:
            return
        node = self.random.choice(alive)
        kind = self.random.choice(("kill", "pause", "cut", "jump", "drain", "start"))
        span = self.random.choice((300, 1_000, 3_000, 8_000))
        if kind == "kill" and len(alive) > 1:
            node.is_dead = True
            self.at(self.random.randint(100, 6_000), None, lambda: self.add_node())
        elif kind == "pause":
            node.paused_until = self.now_ms + span
        elif kind == "cut":
            node.cut_until = self.now_ms + span
        elif kind == "jump":
            node.wall_jump_ms = self.random.choice((-3_600_000, -2_000, 2_000, 3_600_000, 34_560_000_000))
        elif kind == "drain" and len(alive) > 1:
            node.drain()
            self.at(2_000, None, lambda: self._stopped(node))
            self.at(2_500, None, lambda: self.add_node())
        elif kind == "start" and len(alive) < 2 * NODES:
            self.add_node()

    def _stopped(self, node: SimNode) -> None:
        node.is_dead = True

    def _judge(self) -> None:
        for store_id, store in self.stores.items():
            generations = [generation for generation, _ in store.log]
            if generations != sorted(generations):
                self.violations.append(f"store {store_id} took commits of a generation behind those of a later one")
            if not set(store.acknowledged) <= {number for _, number in store.log}:
                self.violations.append(f"store {store_id} lost what was acknowledged")
        alive = [node for node in self.nodes if not node.is_dead and not node.ownership.me.is_leaving]
        shares = [len(node.serving) for node in alive]
        if sum(shares) != STORES:
            self.violations.append(f"{sum(shares)} of {STORES} stores are served after the trouble")
        elif max(shares) - min(shares) > 1:
            self.violations.append(f"shares of {shares}")


def run(seed: int) -> SimWorld:
    """One run."""
    world = SimWorld(seed)
    world.run()
    return world


# -- planted bugs ---------------------------------------------------------------------------------------------------


@contextmanager
def stale_owner_writes() -> Iterator[None]:
    """A server that was paused or cut off goes on as if its leases had not ended."""
    with mock.patch.object(StoreLeases, "may_act", lambda self, store_id, _now_ms: self.term(store_id) is not None):
        yield


@contextmanager
def lease_judged_by_the_local_clock() -> Iterator[None]:
    """Whether another's lease is over is judged by the clock of whoever wants it."""
    original = MemoryLeases.exchange

    def exchange(self: MemoryLeases, told: Exchange) -> Table:
        node = next(node for node in _worlds[-1].nodes if node.name == told.me.node_id)
        jump = node.wall_jump_ms
        true_ms = self._now_ms
        self._now_ms = lambda: true_ms() + jump
        try:
            return original(self, told)
        finally:
            self._now_ms = true_ms

    _worlds: list[SimWorld] = []
    made = SimWorld.__init__

    def init(self: SimWorld, seed: int) -> None:
        _worlds.append(self)
        made(self, seed)

    with mock.patch.object(MemoryLeases, "exchange", exchange), mock.patch.object(SimWorld, "__init__", init):
        yield


@contextmanager
def epoch_not_checked() -> Iterator[None]:
    """A store takes whatever commit reaches it."""
    with mock.patch.object(SimStore, "takes", return_value=True):
        yield


@contextmanager
def lease_counted_from_the_answer() -> Iterator[None]:
    """A holder counts its lease from when it heard of it, which may be long after the table began to count."""
    original = StoreLeases.seen

    def seen(self: StoreLeases, beat: Heartbeat, table: Table, now_ms: int) -> object:
        beat.asked_ms = now_ms
        return original(self, beat, table, now_ms)

    with mock.patch.object(StoreLeases, "seen", seen):
        yield


BUGS: Final = {
    "stale-owner-writes": stale_owner_writes,
    "lease-judged-by-the-local-clock": lease_judged_by_the_local_clock,
    "epoch-not-checked": epoch_not_checked,
    "lease-counted-from-the-answer": lease_counted_from_the_answer,
}
