"""Several servers over tables of leases, as objects: killed, paused, cut off, with clocks that jump (I55, I58).

Each server runs the real ``StoreLeases`` with its own monotonic and wall clock; a table is the reference one, on the
clock of its database. In two of three worlds half of the stores are in another database than the catalog, and each
database is away at times; in some of them the first server is of a version that knows the catalog's table only, so that
leases are handed over in the middle of the trouble. A server that is killed has no session any more, and the others
hear that it takes no connections. Every message between them takes its time, as does every commit to a store. A store
takes a commit from its latest generation only; a server hands messages out while ``StoreLeases`` allows it. What must
never be:

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

from msgspec import structs

from duobus.cluster.leases import BEAT_MS, CATALOG, LEASE_MS, Heartbeat, StoreLeases
from duobus.storage.catalog.leases import Exchange, MemoryLeases, NodeDetails, NodeEntry, Table

STORES: Final = 4
NODES: Final = 3
#: The database beside the catalog's, and the stores that may be in it.
OTHER: Final = "other"
OTHERS_STORES: Final = (2, 3)
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

    def __init__(self, world: SimWorld, name: str, *, is_old: bool = False) -> None:
        self.world = world
        self.name = name
        self.is_old = is_old
        details = None if is_old else NodeDetails(keeps_own=True)
        self.ownership = StoreLeases(NodeEntry(name, name, name, is_leaving=False, details=details))
        if len(world.tables) > 1 and not is_old:
            self.ownership.homes = dict.fromkeys(OTHERS_STORES, OTHER)
        self.is_dead = False
        self.paused_until = 0
        self.cut_until = 0
        self.skew_ms = world.random.randrange(10**9)
        self.wall_jump_ms = 0
        # Store id to the generation with which it is open here.
        self.serving: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        for database in self.ownership.databases:
            self.world.at(0, self, partial(self.send_beat, database))

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

    def send_beat(self, database: str) -> None:
        """Tell a table; the next beat goes out when this one was answered, or its time is over."""
        self.drop(self.ownership.is_expired(self.monotonic_ms()))
        beat = self.ownership.beat(self.monotonic_ms(), database)
        world = self.world
        if world.now_ms >= self.cut_until:
            world.at(world.latency(), None, lambda: self._at_the_table(beat))
        if world.is_trouble and world.random.random() < 0.01:
            # Stopped while it waits for the answer.
            self.paused_until = world.now_ms + world.random.choice((2_000, 4_000))
        world.at(self.ownership.rest_ms(database, self.monotonic_ms()), self, partial(self.send_beat, database))

    def _at_the_table(self, beat: Heartbeat) -> None:
        if self.is_dead or self.world.now_ms < self.world.away_until.get(beat.database, 0):
            return
        seen = self.world.tables[beat.database].exchange(beat.told)
        if self.world.now_ms >= self.cut_until:
            self.world.at(self.world.latency(), self, lambda: self._answered(beat, seen))

    def _answered(self, beat: Heartbeat, seen: Table) -> None:
        moves = self.ownership.seen(beat, seen, self.monotonic_ms())
        self.drop(moves.lost)
        for store_id in moves.gained:
            self.world.at(self.world.latency(), self, partial(self._open, store_id))
        for store_id in moves.leave:
            self._leave(store_id)
        self._again()

    def _again(self) -> None:
        for database in sorted(self.ownership.soon):
            beat = self.ownership.beat(self.monotonic_ms(), database)
            self.world.at(self.world.latency(), None, partial(self._at_the_table, beat))

    def hear_of_end(self, other: SimNode) -> None:
        """The connection to another server has ended, and it takes no other."""
        self.ownership.report_gone(other.name, self.monotonic_ms())
        self._again()

    def _open(self, store_id: int) -> None:
        if not self.may_act(store_id):
            return
        generation = self._begun[store_id] = self.world.stores[store_id].begin_generation()
        low, high = RECOVERY_MS
        delay = self.world.random.randint(low, high)
        self.world.at(delay, self, lambda: self._opened(store_id, generation))

    def _opened(self, store_id: int, generation: int) -> None:
        # One that was begun later has taken its place: a server opens a store once at a time.
        if self.may_act(store_id) and self._begun[store_id] == generation:
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
            self.world.handed_out(self, store_id, self.serving[store_id])


class SimWorld:
    """All of it, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"cluster:{seed}")
        self.now_ms = 0
        self.is_trouble = True
        self.violations: list[str] = []
        self.stores = {store_id: SimStore() for store_id in range(STORES)}
        self.tables = {CATALOG: MemoryLeases(range(STORES), lambda: 10**12 + self.now_ms, self._has_session)}
        if seed % 3:
            self.tables[OTHER] = MemoryLeases((), lambda: 5 * 10**11 + self.now_ms, self._has_session)
        # Database to when it is there again.
        self.away_until: dict[str, int] = {}
        self.moved = 0
        self._events: list[tuple[int, int, SimNode | None, Callable[[], object]]] = []
        self._serial = 0
        self._number = 0
        # Store id to who handed out last, and in which generation.
        self._last: dict[int, tuple[str, int]] = {}
        self._names = 0
        self.nodes: list[SimNode] = []
        for number in range(NODES):
            self.add_node(is_old=seed % 3 == 2 and number == 0)

    def add_node(self, *, is_old: bool = False) -> SimNode:
        """Start a server; one of an earlier version, if ``is_old``."""
        self._names += 1
        node = SimNode(self, f"n{self._names}", is_old=is_old)
        self.nodes.append(node)
        return node

    def _has_session(self, name: str) -> bool:
        return any(node.name == name and not node.is_dead for node in self.nodes)

    def end(self, node: SimNode) -> None:
        """A process is gone: its system closes what it had open."""
        node.is_dead = True
        for other in self.nodes:
            if not other.is_dead and not other.is_old and self.now_ms >= other.cut_until:
                self.at(self.latency(), other, partial(other.hear_of_end, node))

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

    def handed_out(self, node: SimNode, store_id: int, generation: int) -> None:
        """A message was handed out: nobody else may be doing so."""
        name, last = self._last.get(store_id, (node.name, 0))
        if generation < last:
            self.violations.append(f"{self.now_ms}: {node.name} hands out of store {store_id} behind {name}")
        elif name != node.name:
            self.moved += 1
        self._last[store_id] = (node.name, max(generation, last))
        for other in self.nodes:
            if other is not node and not other.is_dead and store_id in other.serving and other.may_act(store_id):
                self.violations.append(f"{self.now_ms}: {node.name} and {other.name} both hand out of store {store_id}")

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Trouble, then peace; return what must not be and was."""
        self._until(TROUBLE_MS)
        self.is_trouble = False
        self.away_until = {}
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
        kind = self.random.choice(("kill", "pause", "cut", "jump", "drain", "start", "away"))
        span = self.random.choice((300, 1_000, 3_000, 8_000))
        if kind == "kill" and len(alive) > 1:
            self.end(node)
            self.at(self.random.randint(100, 6_000), None, lambda: self.add_node())
        elif kind == "away":
            self.away_until[self.random.choice(sorted(self.tables))] = self.now_ms + span
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
        self.end(node)

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
        elif max(shares) - min(shares) > 1 and not any(node.is_old for node in alive):
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


@contextmanager
def paused_server_given_up() -> Iterator[None]:
    """A server that stands still counts as gone before its lease is over: two owners, once it goes on."""
    strike = SimWorld._strike

    def has_session(self: SimWorld, name: str) -> bool:
        return any(n.name == name and not n.is_dead and n.paused_until <= self.now_ms for n in self.nodes)

    def struck(self: SimWorld) -> None:
        strike(self)
        for node in self.nodes:
            if not node.is_dead and node.paused_until > self.now_ms:
                for other in self.nodes:
                    if other is not node and not other.is_dead:
                        self.at(self.latency(), other, partial(other.hear_of_end, node))

    with mock.patch.object(SimWorld, "_has_session", has_session), mock.patch.object(SimWorld, "_strike", struck):
        yield


@contextmanager
def leases_handed_over_beside_an_old_server() -> Iterator[None]:
    """A lease stays in the catalog's table, where an earlier version takes it, and goes to the store's database too."""

    def hand_over(self: MemoryLeases, told: Exchange) -> None:
        self._kept = {**getattr(self, "_kept", {}), **told.hand_over}  # type: ignore[attr-defined]

    exchange = MemoryLeases.exchange

    def shown(self: MemoryLeases, told: Exchange) -> Table:
        table = exchange(self, told)
        if told.me.details is None:
            return table
        kept = getattr(self, "_kept", {})
        return structs.replace(table, leases=tuple(lease for lease in table.leases if lease.store_id not in kept))

    with (
        mock.patch.object(MemoryLeases, "_hand_over", hand_over),
        mock.patch.object(MemoryLeases, "exchange", shown),
        mock.patch("duobus.cluster.leases._keeps_own", return_value=True),
    ):
        yield


BUGS: Final = {
    "stale-owner-writes": stale_owner_writes,
    "lease-judged-by-the-local-clock": lease_judged_by_the_local_clock,
    "epoch-not-checked": epoch_not_checked,
    "lease-counted-from-the-answer": lease_counted_from_the_answer,
    "paused-server-given-up": paused_server_given_up,
    "leases-handed-over-beside-an-old-server": leases_handed_over_beside_an_old_server,
}
