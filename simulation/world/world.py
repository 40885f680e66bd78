"""World: a whole broker in virtual time - disks, stores, scale unit, AMQP server, network - from one seed.

The broker is the product's own code from the socket to the store interface; only the disk, the network, the clock and
randomness are simulated. What only the broker's side can know (when a lock was granted, what expired, which fragment a
turn chose) is noted by small wrappers around it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker import MessageBroker, Queue, ScaleUnit, slot_of, string_key
from duobus.broker.delivery import session_groups
from duobus.broker.entities.placement import Placement
from duobus.broker.fragment_handle import FragmentHandle
from duobus.broker.store_lifecycle import StoreLifecycle
from duobus.clock import BrokerTime, Witness
from duobus.errors import ServiceBusError
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.commands import RemovalCommand
from duobus.fragment.fragment import Fragment
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import DEFERRED, QueuedMessage, kind_of
from duobus.fragment.receive import TakeAndRemove
from duobus.fragment.send import Run
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.sessions import SessionLock
from duobus.fragment.source import Source
from duobus.gateway.amqp.server import AmqpServer
from duobus.model.descriptions import ALL_RIGHTS, AccessRule, QueueDescription
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog_rows import NamespaceRow
from duobus.storage.interface import CommitBatch, StoreContents
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_log import MeteringCounts
from simulation.history import events as h
from simulation.history.events import FragmentsLate
from simulation.history.session_events import SessionReleased
from simulation.parts.journal_stores import JournalDisk, JournaledStore, has_journal
from simulation.world.clock import SeededEntropy, SimulatedClock
from simulation.world.disk import Disk, DiskFaults
from simulation.world.loop import SimulationLoop
from simulation.world.network import SimulatedNetwork
from simulation.world.stores import CrashingStore, SimulatedWriter

NAMESPACE = "sim"


class Grant:
    """What the broker knows of a delivery: when it was made, in which epoch, under which token."""

    __slots__ = ("broker_ms", "epoch", "token")

    def __init__(self, broker_ms: int, epoch: int, token: bytes | None) -> None:
        self.broker_ms = broker_ms
        self.epoch = epoch
        self.token = token


class World:
    """Everything that one run consists of.

    Attributes:
        seed: Of everything.
        history: What happened.
        queues: What there is.
        disks: Store id to disk; they and the catalog outlive the broker's process.
        unit: The scale unit of the broker's present life, or None.
        amqp_server: Of the broker's present life, or None.
        on_event: Told what happens to stores.
        removed_uids: Messages that receive-and-delete took: gone, whether the transfer arrived or not (TL7).
    """

    HOST, PORT = "broker", 5672
    #: Whether some seeds have stores with a journal; not where the scenario changes what is on the disks.
    may_have_journals = True

    def __init__(self, seed: int, queues: list[QueueDescription], stores: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"world:{seed}")
        self.loop = SimulationLoop(seed)
        self.network = SimulatedNetwork(self.loop, seed)
        self.clock = SimulatedClock(self.loop)
        self.history = h.History(self.loop.time_ms)
        self.queues = queues
        self.disks = {number: self._disk(number) for number in range(1, stores + 1)}
        self.rule, self.key = "Root", "secret"
        self.catalog = MemoryCatalog()
        rule = AccessRule(name=self.rule, primary_key=self.key, secondary_key=self.key, rights=int(ALL_RIGHTS))
        self.catalog.identify(1 + abs(seed))
        self.catalog.put_namespace(NamespaceRow(NAMESPACE, (rule,)))
        self.node = self.network.node(self.HOST)
        self.unit: ScaleUnit | None = None
        self.amqp_server: AmqpServer | None = None
        self.lives = 0
        self.removed_uids: set[str] = set()
        self.on_event: Callable[[str], None] = _ignore
        self._time: BrokerTime | None = None
        #: What the next life knows of time, beside what its stores recorded.
        self.witness: Witness | None = None
        self._last_broker_ms = self.clock.now_ms()
        self._grants: dict[tuple[int, int, int], list[Grant]] = {}
        self._removed: dict[tuple[int, int], Grant] = {}
        # Runs with ids that a commit under way has decided.
        self._decided_ms: dict[int, int] = {}
        # Locks of sessions, by what tells them apart in this run, to the time of their grant.
        self._accepted: dict[SessionLock, int] = {}

    # -- the broker's process -----------------------------------------------------------------------------------

    def _disk(self, number: int) -> Disk:
        made = JournalDisk if self.may_have_journals and has_journal(self.seed, number) else Disk
        return made(f"{self.seed}:{number}", DiskFaults())

    def _store(self, number: int, disk: Disk) -> CrashingStore | JournaledStore:
        return JournaledStore(disk, number, self.clock) if isinstance(disk, JournalDisk) else CrashingStore(disk)

    def start(self) -> None:
        """Start the broker's process; it listens when its stores are recovered."""
        self.lives += 1
        self.node.start()
        self.node.spawn(self._serve(self.lives))

    async def _serve(self, life: int) -> None:
        entropy = SeededEntropy(f"{self.seed}:{life}")
        self._time = time = BrokerTime(self.clock, 0, witness=self.witness)
        self.unit = unit = _WatchedUnit(self, self.catalog)
        contents = self.catalog.read()
        known = {row.store_id for row in contents.stores}
        for number, disk in self.disks.items():
            store = self._store(number, disk)
            writer = SimulatedWriter(self.loop, store, random.Random(f"{self.seed}:{life}:{number}"))
            unit.brokers[number] = MessageBroker(number, store, writer, time=time, entropy=entropy, watcher=unit)
            if number not in known:
                self.catalog.add_store(number, f"store-{number}")
        await unit.start(self.catalog.read())
        for description in self.queues:
            while description.name.lower() not in unit.namespace(NAMESPACE).queues:
                try:
                    await unit.create_queue(NAMESPACE, description)
                except ServiceBusError:
                    await _pause(0.2)
        rules = NamespaceRules(NAMESPACE, self.catalog.read().namespaces[0].rules, [self.HOST])
        self.amqp_server = amqp = AmqpServer(
            unit,
            Authorizer([rules]),
            clock=self.clock,
            entropy=entropy,
            log=Log("simulation"),
            metering=MeteringCounts("sim"),
        )
        await self.loop.create_server(amqp, self.HOST, self.PORT)

    def kill(self, *, power: bool) -> None:
        """SIGKILL the broker's process, or cut the power of its machine, disks included."""
        self.history.append(h.Crash(self.broker_ms()))
        self.node.kill(power=power)
        for disk in self.disks.values():
            if power:
                disk.power_cut()
            else:
                disk.kill()
        self.unit = self.amqp_server = None

    def mend(self) -> None:
        """End every fault; the broker runs afterwards."""
        for disk in self.disks.values():
            disk.faults.calm()
        self.network.heal()
        if not self.node.alive:
            self.start()

    def amqp(self) -> tuple[str, int]:
        """Host and port for the next connection of a client."""
        return self.HOST, self.PORT

    # -- what the history wants to know -------------------------------------------------------------------------

    def broker_ms(self) -> int:
        """Broker time; between two lives that of the last."""
        if self._time is not None and self._time.is_begun and self.node.alive:
            self._last_broker_ms = max(self._last_broker_ms, self._time.now_ms())
        return self._last_broker_ms

    def queue(self, entity: str) -> Queue | None:
        """A queue of the present life."""
        return None if self.unit is None else self.unit.namespace(NAMESPACE).queues.get(entity)

    def fragment_of(self, entity: str, key: str | None) -> int | None:
        """The fragment where a key belongs; None for none, or for an entity of one fragment."""
        count = 16 if next(q for q in self.queues if q.name == entity).enable_partitioning else 1
        return None if key is None or count == 1 else slot_of(string_key(key), count)

    def placing_key(self, entity: str, key: str | None, uid: str, *, ping: bool) -> str | None:
        """What places a message: its key, or under duplicate detection its id where there are fragments (PE10)."""
        queue = next(q for q in self.queues if q.name == entity)
        by_id = queue.requires_duplicate_detection and queue.enable_partitioning and not ping
        return uid if key is None and by_id else key

    def path_of(self, handle: object) -> str:
        """The entity of a fragment."""
        assert isinstance(handle, FragmentHandle)
        return next(row.path for row in self.catalog.read().entities if row.entity_id == handle.entity_id)

    def fragments_of(self, broker: MessageBroker) -> frozenset[tuple[str, int]]:
        """All (entity, fragment) of a store."""
        return frozenset((self.path_of(plan.handle), plan.handle.number) for plan in broker.plans.values())

    def grant(self, entity: str, seq: int, until_ms: int) -> Grant:
        """The broker's side of a delivery that a client has just seen."""
        row = next(row for row in self.catalog.read().entities if row.path == entity)
        if not until_ms:
            return self._removed.get((row.entity_id, seq)) or Grant(self.broker_ms(), 0, None)
        return self._grants[row.entity_id, seq, until_ms].pop(0)

    # -- wrappers around the broker -----------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what only the broker's side can know, while the context lasts."""
        with ExitStack() as stack:
            stack.enter_context(_wrapped(Fragment, "_lock_messages", self._locked))
            stack.enter_context(_wrapped(sessions, "accept", self._session_acceptors))
            stack.enter_context(_wrapped(sessions, "lock_messages", self._locked_in_session))
            stack.enter_context(_wrapped(session_groups, "take_for_sessions", self._placement_turn))
            stack.enter_context(_wrapped(sessions, "end", self._ending))
            stack.enter_context(_wrapped(Housekeeping, "apply", self._kept_house))
            stack.enter_context(_wrapped(RemovalCommand, "remove", self._removing))
            stack.enter_context(_wrapped(Placement, "commit_started", self._turned))
            stack.enter_context(_wrapped(duplicates, "admit", self._deciding))
            stack.enter_context(_wrapped(Run, "release", self._releasing))
            stack.enter_context(_wrapped(StoreLifecycle, "see_late", self._seeing_late))
            yield

    def _locked(
        self, original: Any, fragment: Fragment, source: Source, messages: list[QueuedMessage], now_ms: int
    ) -> Any:
        first, until_ms = original(fragment, source, messages, now_ms)
        self._note_grants(fragment, first, messages, now_ms, until_ms)
        return first, until_ms

    def _note_grants(
        self, fragment: Fragment, first: int, messages: list[QueuedMessage], now_ms: int, until_ms: int
    ) -> None:
        handle = fragment.handle
        assert isinstance(handle, FragmentHandle)
        for offset, message in enumerate(messages):
            token = fragment.prefix + (first + offset).to_bytes(8, "big")
            key = (handle.entity_id, fragment.number << 48 | message.count, until_ms)
            self._grants.setdefault(key, []).append(Grant(now_ms, fragment.epoch, token))

    def _session_acceptors(
        self, original: Any, fragment: Fragment, source: Source, session_id: str, owner: Any, now_ms: int
    ) -> Any:
        lock = original(fragment, source, session_id, owner, now_ms)
        if lock is not None:
            self._accepted[lock] = now_ms
        return lock

    def _locked_in_session(
        self, original: Any, fragment: Fragment, source: Source, lock: SessionLock, messages: list[QueuedMessage]
    ) -> Any:
        first, _ = original(fragment, source, lock, messages)
        self._note_grants(fragment, first, messages, self.broker_ms(), lock.until_ms)
        return first, messages

    def _placement_turn(self, original: Any, fragment: Fragment, source: Source, asked: Any) -> Any:
        first, messages = original(fragment, source, asked)
        at = 0
        for _, number, until_ms in asked:
            self._note_grants(fragment, first + at, messages[at : at + number], self.broker_ms(), until_ms)
            at += number
        return first, messages

    def _ending(
        self,
        original: Any,
        fragment: Fragment,
        source: Source,
        lock: SessionLock,
        now_ms: int,
        keeping: Any,
        counted: bool,
    ) -> Any:
        # One that is renewed in its grace ends once more.
        accepted_ms = self._accepted.get(lock)
        if accepted_ms is not None and not lock.is_over:
            cause = "expired" if counted else "closed"
            for number in sorted(lock.unsettled(source.locks)):
                token = fragment.prefix + number.to_bytes(8, "big")
                self.history.append(h.LockEnded(token, cause, now_ms))
            entity = self.path_of(fragment.handle)
            self.history.append(SessionReleased(entity, lock.session_id, accepted_ms, now_ms))
        return original(fragment, source, lock, now_ms, keeping, counted)

    def _removing(
        self, original: Any, command: Any, source: Source, messages: list[QueuedMessage], commit: CommitBatch
    ) -> None:
        original(command, source, messages, commit)
        handle = command.handle
        for message in messages:
            seq = handle.number << 48 | message.count
            self._removed[handle.entity_id, seq] = Grant(commit.broker_ms, handle.fragment.epoch, None)
            if isinstance(command, TakeAndRemove):
                self.removed_uids.add(_uid_of(message.payload))

    def _kept_house(
        self,
        original: Any,
        command: Housekeeping,
        fragment: Fragment,
        source: Source,
        now_ms: int,
        commit: CommitBatch,
    ) -> None:
        deferred = {message.count for message in command.expired if kind_of(message.state) == DEFERRED}
        original(command, fragment, source, now_ms, commit)
        entity = self.path_of(command.handle)
        moved = source.settings.dead_letter_on_expiration
        for message in command.expired:
            uid = _uid_of(message.payload)
            seq, was_deferred = fragment.number << 48 | message.count, message.count in deferred
            event = h.Expired(entity, seq, uid, now_ms, dead_lettered=moved, was_deferred=was_deferred)
            self.history.append(event)

    def _deciding(self, original: Any, source: Source, run: Run, now_ms: int, commit: CommitBatch) -> Any:
        self._decided_ms[id(run)] = now_ms
        return original(source, run, now_ms, commit)

    def _releasing(self, original: Any, run: Run, fragment: Fragment, source: Source, now_ms: int) -> None:
        original(run, fragment, source, now_ms)
        at_ms = self._decided_ms.pop(id(run), None)
        if at_ms is None or run.batch.ids is None:
            return
        entity = self.path_of(run.handle)
        keys = run.batch.keys if self.fragment_of(entity, "any") is not None else None
        dropped = set(run.dropped or ())
        for index in range(run.batch.n) if run.indices is None else run.indices:
            uid = _uid_of(run.batch.payloads[index])
            # What is placed by its own id has no key of its own.
            key = None if keys is None or keys[index] == string_key(uid) else (keys[index] or b"").decode()
            self.history.append(h.Admitted(entity, uid, key, at_ms, stored=index not in dropped))

    def _turned(self, original: Any, placement: Placement, handle: FragmentHandle) -> None:
        is_turn = len(placement.fragments) > 1 and placement.current is handle
        # Late ones are passed over; see FragmentsLate.
        is_turn = is_turn and not any(one.store.is_late for one in placement.fragments)
        original(placement, handle)
        if is_turn:
            self.history.append(h.PlacementTurn(self.path_of(handle), handle.number, 1))

    def _seeing_late(self, original: Any, lifecycle: StoreLifecycle) -> None:
        self.history.append(FragmentsLate(self.fragments_of(lifecycle._broker)))
        original(lifecycle)


class _WatchedUnit(ScaleUnit):
    """The scale unit, telling the history of store failures."""

    def __init__(self, world: World, catalog: MemoryCatalog) -> None:
        super().__init__(catalog, self._tell)
        self._world = world

    def _tell(self, _store_id: int, what: str, _why: str) -> None:
        self._world.on_event(what)

    def store_failed(self, broker: MessageBroker, error: BaseException) -> None:
        """See Watcher."""
        super().store_failed(broker, error)
        fragments = self._world.fragments_of(broker)
        if fragments:
            self._world.history.append(h.Crash(self._world.broker_ms(), fragments))
            self._world.history.append(h.FragmentsDown(fragments))

    def store_opened(self, broker: MessageBroker, contents: StoreContents) -> None:
        """See Watcher."""
        super().store_opened(broker, contents)
        fragments = self._world.fragments_of(broker)
        if fragments:
            self._world.history.append(h.FragmentsUp(fragments))


@contextmanager
def _wrapped(owner: Any, name: str, wrapper: Any) -> Iterator[None]:
    """Put ``wrapper(original, ...)`` in the place of a function."""
    raw = owner.__dict__[name]
    original = raw.__func__ if isinstance(raw, staticmethod) else raw

    def call(*arguments: Any) -> Any:
        return wrapper(original, *arguments)

    setattr(owner, name, staticmethod(call) if isinstance(raw, staticmethod) else call)
    try:
        yield
    finally:
        setattr(owner, name, raw)


def _ignore(_what: str) -> None:
    """Nobody listens."""


def _uid_of(payload: bytes) -> str:
    start = payload.find(b"uid=")
    return payload[start + 4 : payload.find(b";", start)].decode() if start >= 0 else ""


async def _pause(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
