"""Several whole servers over one catalog, in virtual time: killed, stopped, drained, cut off, with clocks that jump.

Each server is the product's own: its AMQP server, the links that it passes on, its unit of owned stores, its beats; the
table of leases, the catalog and the stores are in a simulated database (``world/database.py``). Clients are those of
``run.py``, each connection to another server, and the checkers are those of the delivery core: acknowledged
messages are not lost (I1), locks are exclusive (I2, I3), sessions keep their order (I4, I36). Beside them: who hands
messages out is the owner, by the epoch that the database has (I55); a jump of a wall clock changes none of that (I58);
and when all is well again every store is served, evenly, within a lease and a few beats (I64).

In two of three worlds the last stores lie in another database than the catalog, each lease is in the database of its
store, and either database may be cut off from a server or from all (decision 0067). In one of four the clock of a
server that starts again is ten minutes behind; a store that it takes over goes on at the time that it was there
(decision 0076).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest import mock

from msgspec import structs

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker import MessageBroker, Queue
from duobus.broker.fragment_handle import FragmentHandle
from duobus.clock import BrokerTime
from duobus.cluster.directory import Directory
from duobus.cluster.lease_database import LeaseDatabase
from duobus.cluster.leases import BEAT_MS, CATALOG, LEASE_MS
from duobus.cluster.node import ClusterNode, OpenStore
from duobus.cluster.router import ClusterRouter
from duobus.cluster.scale_unit import ClusteredScaleUnit, LeasedTime
from duobus.errors import ServiceBusError, StoreUnavailable
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import QueuedMessage
from duobus.gateway.amqp.server import AmqpServer
from duobus.model.descriptions import QueueDescription
from duobus.model.quotas import Quotas
from duobus.server.cluster_server import open_cluster_forwarding
from duobus.storage.catalog.leases import MemoryLeases, NodeDetails, NodeEntry
from duobus.storage.catalog_rows import StoreRow
from duobus.storage.interface import StoreContents
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_log import MeteringCounts
from simulation.checkers import CHECKERS, Violation, check
from simulation.history import events as h
from simulation.history.events import FragmentsLate
from simulation.parts.forwarding import ForwardingClients
from simulation.run import RUN_LIMIT_S, Scenario, SimulatedRun
from simulation.world.clock import SeededEntropy, SimulatedClock
from simulation.world.database import DATABASE, OTHER_DATABASE, DatabaseLink, SharedDisk, SharedStore
from simulation.world.disk import AMBIGUOUS, REFUSED, find_fragment
from simulation.world.loop import SimulationLoop
from simulation.world.world import NAMESPACE, World

SERVERS: Final = 3
#: Within which everything is served again when all is well: a lease, some beats, and what opening the stores takes.
PEACE_MS: Final = LEASE_MS + 6 * BEAT_MS
#: At the beginning, in seconds, when servers share the stores out and create the entities.
QUIET_S: Final = 3.0
#: Spans of a fault, in seconds: shorter than a lease, and longer.
SPANS_S: Final = (0.3, 1.0, 3.0, 6.0)
#: Other servers do what it asks for, and it is killed before it hears of that.
DEAFEN_AND_KILL: Final = "deafen-and-kill"
DEAF_S: Final = 0.5
STRIKES: Final = ("kill", "pause", "cut-database", "cut-peer", "jump", "drain", "reset", "away")
#: How far the clock of a server that starts again is behind, and in how many of the seeds.
BEHIND_MS: Final = 600_000
BEHIND_CHANCE: Final = 0.25
#: Jumps of a wall clock (I58): an hour, seconds, 400 days.
JUMPS_MS: Final = (-3_600_000, -2_000, 2_000, 3_600_000, 34_560_000_000)
#: Of twenty seeds the one that forwards messages which may expire on their way, and how long these live.
MORTAL_SEEDS: Final = 19
LIFE_MS: Final = 2_000
#: What forwards to another store, by its name.
MORTAL: Final = "hop-mid"
#: Not asked here. Down and up of fragments are not in these histories (I9, I25 to I28 of outages); a connection that is
#: lost to a client may live on between two servers for as long as a cut lasts (I20). What came back goes out first by
#: milliseconds, and those of two servers differ (I19).
NOT_ASKED: Final = frozenset({9, 19, 20, 28})


class _Beating(ClusterNode):
    """Waits for beats without asking the table meanwhile: virtual time would be spent on that."""

    async def _await_news(self, database: LeaseDatabase, limit_s: float) -> bool:
        del database
        await asyncio.sleep(limit_s)
        return False


class _WatchedClusterUnit(ClusteredScaleUnit):
    """Tells the history when stores come and go."""

    world: ServersWorld

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        if broker.generation == self.world.disks[broker.store_id].seen.generation:
            # What a former owner has in memory, nobody misses.
            self.world.forgotten(broker)
        super().store_failed(broker, error)

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        super().store_opened(broker, contents)
        self.world.forgotten(broker)


class SimulatedServerProcess:
    """One server.

    Attributes:
        host: Its node in the network.
        clock: Its own; the wall clock of it jumps.
        unit, cluster: Of its present life, None before the first.
    """

    def __init__(self, world: ServersWorld, host: str) -> None:
        self.world = world
        self.host = host
        self.machine = world.network.node(host)
        self.clock = SimulatedClock(world.loop)
        self.node_id = ""
        self.unit: ClusteredScaleUnit | None = None
        self.cluster: ClusterNode | None = None
        self.time: BrokerTime | None = None
        self.is_draining = False
        self._life = 0
        self._listener: Any = None
        self._stores = 0

    @property
    def is_well(self) -> bool:
        """Whether it runs and is wanted."""
        return self.machine.alive and self.machine.life.held is None and not self.is_draining

    def start(self) -> None:
        """Begin a life; its machine has set its clock, which may be behind unless it is the first."""
        self.clock = SimulatedClock(self.world.loop)
        if self._life:
            self.clock.jump(-self.world.behind_ms)
        self.unit = self.cluster = self.time = None
        self.is_draining = False
        self._life += 1
        self.machine.start()
        self.machine.spawn(self._serve())

    def kill(self) -> None:
        """SIGKILL."""
        self.machine.kill()

    async def drain(self) -> None:
        """SIGTERM: as JoinedServer.stop."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        if self.cluster is not None:
            await self.cluster.stop()

    def _link(self, name: str, **options: Any) -> DatabaseLink:
        world = self.world
        rng = random.Random(f"{world.seed}:{self.host}:{self._life}:{name}")
        return DatabaseLink(world.loop, world.network, self.host, rng, **options)

    async def _serve(self) -> None:
        world = self.world
        entropy = SeededEntropy(f"{world.seed}:{self.host}:{self._life}")
        self.time = time = BrokerTime(self.clock, 0)
        self.unit = unit = _WatchedClusterUnit(world.catalog, world.told, Quotas(), entropy.uuid, time)
        unit.world = world
        unit.namespace(NAMESPACE)
        unit.directory = Directory(world.catalog.read())
        rules = NamespaceRules(NAMESPACE, world.catalog.read().namespaces[0].rules, [world.HOST])
        metering = MeteringCounts("sim")
        amqp = AmqpServer(
            unit, Authorizer([rules]), clock=self.clock, entropy=entropy, log=Log("simulation"), metering=metering
        )
        self.node_id = str(entropy.uuid())
        details = NodeDetails("simulated", keeps_own=True, moves_fragments=True)
        me = NodeEntry(self.node_id, f"{self.host}:{world.PORT}", self.host, is_leaving=False, details=details)
        self.cluster = cluster = _Beating(
            me,
            unit,
            world.catalog,
            world.leases,
            make=partial(self._make, entropy),
            created=self._create_in,
            clock=self.clock,
            context=None,
            thread=lambda _loop, name: self._link(
                name, database=OTHER_DATABASE if name.startswith("leases-") else DATABASE
            ),
            home_of=lambda row: CATALOG if world.place_of(row.store_id) == DATABASE else OTHER_DATABASE,
            table_of=lambda _name: world.other_leases,
        )
        unit.sharded_entities.is_understood = lambda _placement: world.is_spreading
        world.hosts[me.node_id] = self
        amqp.router_of = partial(ClusterRouter, owners=cluster)
        open_cluster_forwarding(amqp, unit, cluster, self.clock)
        self._listener = await world.loop.create_server(amqp, self.host, world.PORT)
        await cluster.start()

    def _make(self, entropy: SeededEntropy, row: StoreRow) -> OpenStore:
        world, store_id = self.world, row.store_id
        assert self.unit is not None
        assert self.cluster is not None
        assert self.time is not None
        ownership, clock = self.cluster.ownership, self.clock
        disk = world.disks[store_id]
        assert isinstance(disk, SharedDisk)
        store = SharedStore(disk, lambda: ownership.may_act(store_id, clock.monotonic_ms()))
        self._stores += 1
        writer = self._link(
            f"store-{self._stores}",
            database=world.place_of(store_id),
            before=store.look,
            is_stuck=world.is_striking,
        )
        leased = LeasedTime(self.time, clock, lambda: ownership.ends_ms(store_id))
        broker = MessageBroker(store_id, store, writer, time=leased, entropy=entropy, watcher=self.unit)
        return OpenStore(broker, partial(_stop, writer))

    async def _create_in(self, store_id: int) -> None:
        """As JoinedServer._create_in."""
        unit, world = self.unit, self.world
        assert unit is not None
        for description in world.queues:
            home = unit.namespace(NAMESPACE)
            if unit.directory.store_for_new(NAMESPACE, description.name.lower()) != store_id:
                continue
            if unit.directory.store_of(NAMESPACE, description.name.lower()) is not None or home.is_taken(
                description.name.lower()
            ):
                continue
            try:
                await unit.create_queue(NAMESPACE, description, demand_targets=False)
                world.leases.revision += 1
            except ServiceBusError as error:
                world.log.append(f"{description.name} not created: {error}")


class ServersWorld(World):
    """Several servers, the network between them, and the database that they share.

    Attributes:
        servers: All of them.
        leases: The table.
        is_trouble: Whether faults strike.
        is_spreading: Whether partitioned queues are spread over all stores.
        peace_ms: How long after the last fault every store has to be served again.
        stale: What was handed out by somebody who was not the owner any more (I55).
        moved: How often a store was opened.
        behind_ms: How far the clock of a server that starts again is behind (decision 0076).
    """

    is_spreading = False
    peace_ms = PEACE_MS

    def __init__(self, seed: int, queues: list[Any], stores: int) -> None:
        super().__init__(seed, queues, stores)
        self.loop.call_exception_handler = self._unhandled  # type: ignore[method-assign]
        self.disks = {number: SharedDisk(f"{seed}:{number}") for number in range(1, stores + 1)}
        for number in self.disks:
            self.catalog.add_store(number, f"store-{number}")
        self.network.node(DATABASE)
        self.network.node(OTHER_DATABASE)
        self.elsewhere = () if seed % 3 == 0 else tuple(range(stores // 2 + 1, stores + 1))
        self.other_leases = MemoryLeases((), lambda: self.clock.now_ms(), self._has_session)
        self.leases = MemoryLeases(self.disks, lambda: self.clock.now_ms(), self._has_session)
        self.hosts: dict[str, SimulatedServerProcess] = {}
        self.is_trouble = True
        self.stale: list[str] = []
        self.log: list[str] = []
        self.moved = 0
        self.servers = [SimulatedServerProcess(self, f"server-{number}") for number in range(1, SERVERS + 1)]
        self._draw = random.Random(f"door:{seed}")
        self.behind_ms = BEHIND_MS if random.Random(f"behind:{seed}").random() < BEHIND_CHANCE else 0

    def told(self, _store_id: int, what: str, _why: str) -> None:
        """A line of the log of one of them."""
        self.on_event(what)

    def place_of(self, store_id: int) -> str:
        """The database of a store."""
        return OTHER_DATABASE if store_id in self.elsewhere else DATABASE

    def _has_session(self, node_id: str) -> bool:
        """Whether a process lives: a database learns of its end at once, however the network is."""
        server = self.hosts.get(node_id)
        return server is not None and server.machine.alive and server.node_id == node_id

    def _unhandled(self, context: dict[str, Any]) -> None:
        """A callback that meets the end of a lease ends there, which asyncio logs (``LeasedTime``)."""
        if not isinstance(context.get("exception"), StoreUnavailable):
            SimulationLoop.call_exception_handler(self.loop, context)

    def start(self) -> None:
        """Start what does not run."""
        for server in self.servers:
            if not server.machine.alive:
                server.start()

    def is_striking(self) -> bool:
        """Whether faults may strike: not before everything was created."""
        return self.is_trouble and self.loop.time() > QUIET_S

    def mend(self) -> None:
        """End every fault."""
        self.is_trouble = False
        for disk in self.disks.values():
            disk.faults.calm()
        self.network.heal()
        for server in self.servers:
            server.machine.resume()
        self.start()

    def amqp(self) -> tuple[str, int]:
        """Any server."""
        return self._draw.choice(self.servers).host, self.PORT

    def broker_ms(self) -> int:
        """The latest of the servers' times; it never goes back."""
        times = [server.time.now_ms() for server in self.servers if server.time is not None and server.machine.alive]
        self._last_broker_ms = max([self._last_broker_ms, *times])
        return self._last_broker_ms

    def queue(self, entity: str) -> Queue | None:
        """A queue where it is served."""
        found = (s.unit.namespace(NAMESPACE).queues.get(entity) for s in self.servers if s.is_well and s.unit)
        return next((queue for queue in found if queue is not None), None)

    def forgotten(self, broker: MessageBroker) -> None:
        """The memory of a store is gone, or another owner has made its own."""
        fragments = self.fragments_of(broker)
        if fragments:
            self.history.append(h.Crash(self.broker_ms(), fragments))
            # Each owner begins anew with the turns of what it has (I26).
            self.history.append(FragmentsLate(fragments))

    def _note_grants(
        self, fragment: Fragment, first: int, messages: list[QueuedMessage], now_ms: int, until_ms: int
    ) -> None:
        handle = fragment.handle
        assert isinstance(handle, FragmentHandle)
        # By the time of the server that grants.
        super()._note_grants(fragment, first, messages, handle.broker.now_ms(), until_ms)
        state = self.disks[handle.store.store_id].seen
        key = find_fragment(state, handle.entity_id, fragment.number)
        epoch = 0 if key is None else state.fragments[key][2]
        if epoch != fragment.epoch:
            self.stale.append(
                f"I55: at {self.loop.time_ms()} ms fragment {fragment.number} of {self.path_of(handle)} is handed out "
                f"in epoch {fragment.epoch}, and the database is at {epoch}"
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """As World, and which locks end with the way to their client: that may be one between two servers (I2)."""
        unlock = Fragment.unlock

        def unlocked(fragment: Fragment, source_no: int, ranges: Any, now_ms: int, *, counted: bool) -> Any:
            held, found = fragment.sources[source_no].locks, list(ranges)
            for lock in (one for first, number in found for one in range(first, first + number) if one in held):
                token = fragment.prefix + lock.to_bytes(8, "big")
                self.history.append(h.LockEnded(token, "link", now_ms))
            return unlock(fragment, source_no, found, now_ms, counted=counted)

        with super().watched(), mock.patch.object(Fragment, "unlock", unlocked):
            yield

    def unevenly(self) -> str | None:
        """What is wrong with who serves what; None: all stores are open, evenly."""
        shares = [sum(b.state == "open" for b in s.unit.brokers.values()) if s.unit else 0 for s in self.servers]
        if sum(shares) != len(self.disks) or max(shares) - min(shares) > 1:
            return f"I64: {shares} of {len(self.disks)} stores are served"
        return None


def _stop(writer: DatabaseLink) -> None:
    writer.stop()


def mortal(queue: QueueDescription) -> QueueDescription:
    """A queue that forwards, whose messages may run out of life before, and are its dead letters then."""
    if queue.name != MORTAL:
        return queue
    return structs.replace(queue, default_message_time_to_live_ms=LIFE_MS, dead_lettering_on_message_expiration=True)


class ServersScenario(Scenario):
    """What a seed has drawn for several servers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = random.Random(f"servers:{seed}")
        self.stores = rng.choice((2, 3, 4))
        if self.forwarding and self.stores == 3:
            # There the names of these queues pick one and the same store.
            self.stores = 2
        if seed % 20 == MORTAL_SEEDS:
            self.forwarding = [mortal(queue) for queue in self.forwarding]
        self.messages = rng.randint(40, 120)
        self.seconds = rng.uniform(8.0, 18.0)
        self.chances = {kind: 0.01 for kind in (REFUSED, AMBIGUOUS) if rng.random() < 0.2}
        self.strikes = [(rng.uniform(QUIET_S, self.seconds), rng.choice(STRIKES)) for _ in range(rng.randint(2, 7))]
        if self.forwarding and seed % 20 == MORTAL_SEEDS:
            self.strikes += [(rng.uniform(QUIET_S, self.seconds), DEAFEN_AND_KILL) for _ in range(3)]


class ServersForwarding(ForwardingClients):
    """Senders and receivers of queues that forward, from server to server."""

    def jobs(self) -> list[Any]:
        """See ForwardingPart; they go on while faults strike, which is not at once here."""
        self._messages *= 4
        return [self._sender("hop-in"), self._sender("circle"), self._receiver()]


class ServersRun(SimulatedRun):
    """The clients of one run, and what befalls the servers."""

    world: ServersWorld
    scenario: ServersScenario
    forwarding_part = ServersForwarding

    async def _nemesis(self) -> None:
        world, scenario, rng = self.world, self.scenario, self.rng
        began = world.loop.time()
        jobs = []
        for at, strike in sorted(scenario.strikes):
            await asyncio.sleep(max(0.0, began + at - world.loop.time()))
            for disk in world.disks.values():
                disk.faults.chances = dict(scenario.chances)
            server = rng.choice(world.servers)
            if server.is_well:
                jobs.append(asyncio.ensure_future(self._strike(strike, server, rng.choice(SPANS_S))))
        await asyncio.sleep(max(0.0, self.stop_at - world.loop.time()))
        await asyncio.gather(*jobs)

    async def _strike(self, strike: str, server: SimulatedServerProcess, span_s: float) -> None:
        network, rng = self.world.network, self.rng
        if strike == "kill":
            server.kill()
            await asyncio.sleep(span_s)
            server.start()
        elif strike == DEAFEN_AND_KILL:
            await self._deafen_and_kill(server, span_s)
        elif strike == "pause":
            server.machine.pause()
            await asyncio.sleep(span_s)
            server.machine.resume()
        elif strike in ("cut-database", "cut-peer"):
            others = [other.host for other in self.world.servers if other is not server]
            database = rng.choice((DATABASE, OTHER_DATABASE)) if self.world.elsewhere else DATABASE
            await self._cut_off(server.host, database if strike == "cut-database" else rng.choice(others), span_s)
        elif strike == "away":
            database = rng.choice((DATABASE, OTHER_DATABASE)) if self.world.elsewhere else DATABASE
            await asyncio.gather(*(self._cut_off(one.host, database, span_s) for one in self.world.servers))
        elif strike == "jump":
            server.clock.jump(rng.choice(JUMPS_MS))
        elif strike == "drain":
            await asyncio.wait([server.machine.spawn(server.drain())], timeout=span_s)
            server.kill()
            server.start()
        elif strike == "reset" and (connections := network.connections(server.host)):
            rng.choice(connections).reset()

    async def _deafen_and_kill(self, server: SimulatedServerProcess, span_s: float) -> None:
        """The owner of what forwards, if it is well, else whoever was drawn."""
        for other in self.world.servers:
            if other.is_well and other.unit and MORTAL in other.unit.namespace(NAMESPACE).queues:
                server = other
        ways = [(other.host, server.host) for other in self.world.servers if other is not server]
        await asyncio.gather(*(self._cut_connections([route], server.host, DEAF_S) for route in ways))
        # Others strike, too.
        if server.is_well:
            server.kill()
            await asyncio.sleep(span_s)
            server.start()

    async def _cut_off(self, host: str, other: str, span_s: float) -> None:
        # In one direction only, at times: what is asked arrives, and the answer does not.
        ways = self.rng.choice((((host, other), (other, host)), ((host, other),), ((other, host),)))
        await self._cut_connections(ways, host, span_s)

    async def _cut_connections(self, ways: Sequence[tuple[str, str]], host: str, span_s: float) -> None:
        network = self.world.network
        for route in ways:
            network.route(*route).cut = True
        await asyncio.sleep(span_s)
        for route in ways:
            network.route(*route).cut = False
        for connection in network.connections(host):
            connection.heal()

    async def _come_to_rest(self) -> None:
        await asyncio.sleep(self.world.peace_ms / 1000)
        wrong = self.world.unevenly()
        if wrong is not None:
            self.world.stale.append(wrong)
        await asyncio.sleep(6.0)


class Outcome:
    """How a run of several servers ended.

    Attributes:
        wrong: What must not be and was.
        moved: How often a store was taken over.
        events, digest: Of the history.
    """

    def __init__(self, wrong: list[Violation | str], moved: int, events: int, digest: int) -> None:
        self.wrong = wrong
        self.moved = moved
        self.events = events
        self.digest = digest


def run(seed: int) -> Outcome:
    """Run one seed."""
    scenario = ServersScenario(seed)
    return play(scenario, ServersWorld(seed, scenario.all_queues, scenario.stores))


def play(
    scenario: ServersScenario,
    world: ServersWorld,
    not_asked: frozenset[int] = NOT_ASKED,
    made: type[ServersRun] = ServersRun,
) -> Outcome:
    """Run a scenario in a world, and judge it."""
    with world.watched():
        try:
            world.loop.run(made(world, scenario).play(), time_limit_s=RUN_LIMIT_S)
        finally:
            world.loop.close()
    found = check(world.history, scenario.setup(frozenset(world.removed_uids)), CHECKERS.keys() - not_asked)
    moved = sum(disk.seen.generation for disk in world.disks.values())
    return Outcome([*world.stale, *found], moved, len(world.history), world.history.digest())
