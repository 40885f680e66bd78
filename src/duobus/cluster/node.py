"""One of several servers that share a catalog: beats, stores that come and go, and who has which entity.

The decisions are ``cluster/leases.py``'s; this carries them out. Each table of leases is asked by a thread of its own,
so that neither it nor the catalog can hold up the loop or another table; what a table says is acted upon in the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final

from duobus.broker import MessageBroker
from duobus.clock import Clock
from duobus.cluster.directory import Directory
from duobus.cluster.http.lists import Listed
from duobus.cluster.lease_database import LeaseDatabase, submitted
from duobus.cluster.leases import CATALOG, FRESH_MS, StoreLeases
from duobus.cluster.router import HERE, MOVING, UNKNOWN
from duobus.cluster.scale_unit import ClusteredScaleUnit
from duobus.cluster.shards import ShardedEntityMap
from duobus.cluster.status import FREE, HELD, displaced, server_named, status_of
from duobus.cluster.watch import ServerWatch
from duobus.errors import ArgumentInvalid, EntityNotFound, ServerBusy, ServiceBusError, StoreFailed, StoreTooNew
from duobus.model.address import sharded_entity_of
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.leases import LeaseTable, NodeEntry
from duobus.storage.catalog_rows import LIVE, StoreRow
from duobus.storage.writers import StoppableWriter, StoreWriter
from duobus.telemetry.logs import Log

#: How long the thread waits at a time for news of the table, in seconds; what this server wants itself waits as long.
_WAIT_S: Final = 0.05
#: Pauses after the table or a store could not be reached, and between two looks at leases that may have ended.
_RETRY_S: Final = 0.2
_EXPIRY_CHECK_S: Final = 0.1
#: How long whoever changes the table waits until this server has seen the change, in seconds.
_SEEN_S: Final = 5.0
#: The time over which a server's load is a mean.
_LOAD_MS: Final = 5_000
#: By how much time may go ahead with a store that is taken over before somebody should look at the clocks.
_APART_MS: Final = 5_000
#: A catalog is read at most so often because somebody asks for what is not in it, in seconds.
_LOOK_S: Final = 0.05


class OpenStore:
    """A store that this server runs: its message broker, and what ends with it."""

    def __init__(self, broker: MessageBroker, stop: Callable[[], None]) -> None:
        self.broker = broker
        self.stop = stop


class ClusterNode:
    """This server among the others.

    Attributes:
        node_id: Its name among them.
        ownership: Its leases.
        context: For TLS connections to the others, or None.
        proxied_links, proxied_messages: What it has proxied to others.
        failovers: Stores that it has lost without having given them back.

    Args:
        me: The server itself.
        unit: Where stores are adopted.
        reader: A catalog of its own to read, for a thread of its own.
        table: The leases in the catalog's database.
        make: Makes a message broker for a store that was got.
        created: Called when a store was adopted, to create what the configuration asks for in it.
        thread: Makes the thread of a table, and that of the catalog.
        home_of: What the database of a store is called, among those with leases.
        table_of: Makes the table of such a database.
        processor_seconds: What this process has used of processors.
    """

    def __init__(
        self,
        me: NodeEntry,
        unit: ClusteredScaleUnit,
        reader: Catalog,
        table: LeaseTable,
        *,
        make: Callable[[StoreRow], OpenStore],
        created: Callable[[int], Awaitable[None]],
        clock: Clock,
        context: SSLContext | None,
        thread: Callable[[asyncio.AbstractEventLoop, str], StoppableWriter] = StoreWriter,
        processor_seconds: Callable[[], float] = lambda: 0.0,
        home_of: Callable[[StoreRow], str] = lambda _row: CATALOG,
        table_of: Callable[[str], LeaseTable] | None = None,
    ) -> None:
        self.node_id = me.node_id
        self.ownership = StoreLeases(me)
        self.context = context
        self.proxied_links = 0
        self.proxied_messages = 0
        self.failovers = 0
        self.beats_missed = 0
        self._unit = unit
        self._reader = reader
        self._make = make
        self._created = created
        self._clock = clock
        self._log = Log("cluster")
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        self._home_of = home_of
        self._table_of = table_of
        self._tables = {CATALOG: LeaseDatabase(CATALOG, table, thread(self._loop, "leases"), self._loop)}
        self._catalog_thread = thread(self._loop, "catalog")
        self._watch = ServerWatch(
            self.node_id,
            lambda node_id: self.ownership.report_gone(node_id, clock.monotonic_ms()),
            self.ownership.report_back,
        )
        self._open: dict[int, OpenStore] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._revision = -1
        self._reading: asyncio.Future[None] | None = None
        self._read_next: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiry_check: asyncio.TimerHandle | None = None
        self._is_over = False
        self._seen_ms: int | None = None
        self._next_beat: asyncio.Future[None] = self._loop.create_future()
        self._processor_seconds = processor_seconds
        # When the load was taken last, and what had been used by then.
        self._load_from = (clock.monotonic_ms(), processor_seconds())
        unit.sharded_entities.is_understood = self._all_place
        unit.sharded_entities.is_served = lambda store_id: self.owner_of(store_id) != MOVING
        unit.entity_moves.is_understood = self._all_move_fragments

    # -- start and stop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join: on return the others know of this server.

        Raises:
            StoreFailed: The table cannot be reached.
        """
        catalog = self._tables[CATALOG]
        await self._beat(catalog)
        catalog.beating = self._loop.create_task(self._beat_on(catalog), name="leases")
        self._see_homes()
        self._check_expiry()

    async def stop(self) -> None:
        """Close every store in good order and give it back, then be forgotten."""
        for store_id in self.ownership.drain():
            self._spawn(self._leave(store_id))
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._is_over = True
        await self._watch.stop()
        await asyncio.gather(*(one.beating for one in self._tables.values() if one.beating is not None))
        if self._expiry_check is not None:
            self._expiry_check.cancel()
        await asyncio.gather(*(self._give_back(one) for one in self._tables.values()))
        self._catalog_thread.submit(self._reader.close, lambda _result, _error: None)
        await self._loop.run_in_executor(None, self._catalog_thread.stop)

    async def _give_back(self, database: LeaseDatabase) -> None:
        try:
            # What was given back has to be told, so that nobody waits for leases to end.
            await self._beat(database)
            await database.call(lambda table: table.forget(self.node_id))
        except StoreFailed as error:
            self._log.warning("not given back", reason=str(error))
        await database.close()

    def _all_place(self, placement: int) -> bool:
        """Whether no server is of a version that does not know entities of a placement."""
        nodes = self.ownership.nodes.values()
        return all(node.details is not None and node.details.placement >= placement for node in nodes)

    def _all_move_fragments(self) -> bool:
        """Whether no server is of a version that does not know of fragments that are set aside for a move."""
        return all(node.details is not None and node.details.moves_fragments for node in self.ownership.nodes.values())

    # -- beats --------------------------------------------------------------------------------------------------

    def _see_homes(self) -> None:
        """Ask the tables of all databases that have stores, from now on."""
        if self._table_of is None or self._is_over:
            return
        stores = self._unit.directory.contents.stores
        self.ownership.homes = {row.store_id: home for row in stores if (home := self._home_of(row)) != CATALOG}
        for name in self.ownership.databases:
            if name not in self._tables:
                thread = self._thread(self._loop, f"leases-{len(self._tables)}")
                database = self._tables[name] = LeaseDatabase(name, self._table_of(name), thread, self._loop)
                database.beating = self._loop.create_task(self._beat_on(database), name="leases")
                self.ownership.soon.add(name)

    async def _beat_on(self, database: LeaseDatabase) -> None:
        while not self._is_over:
            try:
                await self._rest(database)
                await self._beat(database)
            except StoreFailed as error:
                self.beats_missed += 1
                database.fault = str(error)
                where = database.name or "the catalog's database"
                self._log.error("table of leases not reached", database=where, reason=str(error))
                await asyncio.sleep(_RETRY_S)
            except Exception as fault:  # noqa: BLE001 - the top of a task: whatever it was, leases must be prolonged
                self._log.error("beat failed", error=repr(fault))
                await asyncio.sleep(_RETRY_S)

    async def _rest(self, database: LeaseDatabase) -> None:
        """Wait for the next beat: until its time, or news, or a wish of this server's own."""
        begun_ms = self._clock.monotonic_ms()
        while not self._is_over and database.name not in self.ownership.soon:
            now_ms = self._clock.monotonic_ms()
            left_ms = begun_ms + self.ownership.rest_ms(database.name, now_ms) - now_ms
            if left_ms <= 0 or await self._await_news(database, min(_WAIT_S, left_ms / 1000)):
                return

    async def _await_news(self, database: LeaseDatabase, limit_s: float) -> bool:
        return await database.call(lambda table: table.wait(limit_s))

    def _take_load(self) -> None:
        now_ms, used_s = self._clock.monotonic_ms(), self._processor_seconds()
        from_ms, from_s = self._load_from
        if now_ms - from_ms >= _LOAD_MS:
            # Rounded: a row of the table is written only when the number is another one.
            self.ownership.load = round((used_s - from_s) * 1000 / (now_ms - from_ms), 1)
            self._load_from = (now_ms, used_s)

    async def _beat(self, database: LeaseDatabase) -> None:
        self._take_load()
        self.ownership.broker_ms = self._unit.time.now_ms()
        beat = self.ownership.beat(self._clock.monotonic_ms(), database.name)
        table = await database.call(lambda table: table.exchange(beat.told))
        moves = self.ownership.seen(beat, table, self._clock.monotonic_ms())
        # At once: the next beat tells the table what time it is for the stores that are here.
        self._go_on_at(moves.time_ms)
        database.fault = None
        self._watch.see({} if self._is_over else self.ownership.nodes)
        self._drop(moves.lost)
        if database.name == CATALOG:
            self._seen_ms = beat.asked_ms
            beaten, self._next_beat = self._next_beat, self._loop.create_future()
            beaten.set_result(None)
        if database.name == CATALOG and table.revision != self._revision:
            self._revision = table.revision
            self._spawn(self._look())
        for store_id in moves.gained:
            self._spawn(self._open_store(store_id))
        for store_id in moves.leave:
            self._spawn(self._leave(store_id))

    def _go_on_at(self, former_ms: int) -> None:
        """Be no earlier than the former owner of a store: if that was idle, no commit says what time it was there."""
        ahead_ms = former_ms - self._unit.time.now_ms()
        if ahead_ms > _APART_MS:
            self._log.warning(
                "clocks apart",
                reason=f"a store comes from a server whose time was {ahead_ms / 1000:.0f} s ahead of the time here, and"
                " goes on there. One of both clocks is wrong: see docs/how-to/wrong-clock.md",
            )
        self._unit.time.raise_to(former_ms)

    def _check_expiry(self) -> None:
        """Drop leases that have expired; the time of leases stops their use anyway, this ends their links."""
        if not self._is_over:
            self._drop(self.ownership.is_expired(self._clock.monotonic_ms()))
            self._expiry_check = self._loop.call_later(_EXPIRY_CHECK_S, self._check_expiry)

    # -- stores -------------------------------------------------------------------------------------------------

    async def _open_store(self, store_id: int) -> None:
        """Open a store whose lease was got; tried again while the lease lasts."""
        term, told = self.ownership.term(store_id), ""
        while self.ownership.is_wanted(store_id, term):
            try:
                async with self._lock(store_id):
                    # It may have been left while this waited for its turn.
                    if self.ownership.is_wanted(store_id, term):
                        await self._try_to_open(store_id, term)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the store unserved for good
                is_expected = isinstance(error, (StoreFailed, StoreTooNew, ServiceBusError))
                reason = str(error) if is_expected else f"a fault of this program: {error!r}"
                if reason != told:
                    # Five times a second would bury everything else that is logged.
                    told = reason
                    self._log.error("store not opened", store=store_id, reason=told)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _lock(self, store_id: int) -> asyncio.Lock:
        return self._locks.setdefault(store_id, asyncio.Lock())

    async def _try_to_open(self, store_id: int, term: int | None) -> None:
        directory = await self._read_if_reached()
        row = next((row for row in directory.contents.stores if row.store_id == store_id), None)
        if row is None:
            raise StoreFailed("the catalog does not know it")
        opened = self._make(row)
        try:
            await self._unit.adopt(opened.broker, directory)
        except BaseException:
            await self._close(opened)
            raise
        now_ms = self._clock.monotonic_ms()
        if self.ownership.term(store_id) != term or not self.ownership.may_act(store_id, now_ms):
            self._unit.drop(store_id, "its lease has ended")
            await self._close(opened)
            raise StoreFailed("its lease has ended while it was opened")
        self._open[store_id] = opened
        self._log.info("store taken over", store=store_id, term=self.ownership.term(store_id))
        await self._created(store_id)

    async def _leave(self, store_id: int) -> None:
        async with self._lock(store_id):
            await self._unit.leave(store_id, "it moves to another server")
            opened = self._open.pop(store_id, None)
            if opened is not None:
                await self._close(opened)
        self.ownership.left(store_id)
        self._log.info("store given back", store=store_id)

    def _drop(self, lost: list[int]) -> None:
        for store_id in lost:
            self.failovers += 1
            self._log.error("store lost", store=store_id, reason="its lease has ended")
            self._unit.drop(store_id, "its lease has ended")
            opened = self._open.pop(store_id, None)
            if opened is not None:
                self._spawn(self._close(opened))

    async def _close(self, opened: OpenStore) -> None:
        await opened.broker.close()
        await self._loop.run_in_executor(None, opened.stop)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("a task of the cluster failed", error=repr(task.exception()))

    # -- owner directory --------------------------------------------------------------------------------------------

    def where(self, namespace: str, key: str) -> str:
        """See OwnerDirectory."""
        home = self._unit.namespaces.get(namespace.lower())
        if home is not None and home.is_taken(key):
            row = self._unit.directory.row_of(namespace, key)
            # What is sent while the store is being opened would be refused.
            return MOVING if row is not None and self._unit.is_opening(row.slots[0].store_id) else HERE
        if (namespace.lower(), key) in self._unit.directory.sharded:
            return MOVING
        row = self._unit.directory.row_of(namespace, key)
        if row is None:
            return UNKNOWN
        owner = self.owner_of(row.slots[0].store_id)
        return MOVING if owner == HERE and row.entity_id in self._unit.absent else owner

    def sharded_entity_of(self, namespace: str, key: str) -> ShardedEntityMap | None:
        """See OwnerDirectory."""
        return self._unit.directory.sharded.get((namespace.lower(), key))

    def nodes(self) -> Mapping[str, NodeEntry]:
        """See OtherNodes."""
        return self.ownership.nodes

    @property
    def knows_catalog(self) -> bool:
        """See EntityOwners; before the first beat the start itself has read it."""
        if self._seen_ms is None:
            return True
        return self._tables[CATALOG].fault is None and self._clock.monotonic_ms() - self._seen_ms <= FRESH_MS

    @property
    def own_http_address(self) -> str:
        """See HttpOwnerDirectory."""
        return self.ownership.me.http_address

    def http_addresses(self) -> Sequence[str]:
        """See HttpOwnerDirectory."""
        return sorted({node.http_address for node in self.ownership.nodes.values()} | {self.own_http_address})

    def http_address_at(self, store_id: int) -> str:
        """See HttpOwnerDirectory."""
        address = self._http_address(store_id)
        return self.ownership.me.http_address if address is None else address

    def home_of(self, namespace: str, key: str) -> tuple[int, str] | None:
        """See OwnerDirectory."""
        row = self._unit.directory.row_of(namespace, key)
        return None if row is None else (row.entity_id, self.address_of(row.slots[0].store_id))

    def address_of(self, store_id: int) -> str:
        """See OwnerDirectory; this server's own address for what is here."""
        address = self.owner_of(store_id)
        return self.ownership.me.address if address == HERE else address

    def owner_of(self, store_id: int, *, of_http: bool = False) -> str:
        """HERE, MOVING, or the address of the server that has a store."""
        if store_id in self._open:
            return HERE
        owner = self.ownership.owner_of(store_id)
        if owner is None or owner.node_id == self.node_id:
            return MOVING
        return owner.http_address if of_http else owner.address

    def http_address_of(self, namespace: str, lower: tuple[str, ...], *, may_be_new: bool) -> str | None:
        """See HttpOwnerDirectory; ``?`` when nothing is known of any part of the path."""
        home = self._unit.namespaces.get(namespace.lower())
        for length in range(len(lower), 0, -1):
            key = "/".join(lower[:length])
            if home is not None and home.is_taken(key):
                return None
            row = self._unit.directory.row_of(namespace, key)
            if row is not None:
                address = self._http_address(row.slots[0].store_id)
                return "" if address is None and row.entity_id in self._unit.absent else address
        store_id = self._unit.directory.store_for_new(namespace, "/".join(lower)) if may_be_new else None
        return "?" if store_id is None else self._http_address(store_id)

    def listed(self, namespace: str, kind: str) -> Sequence[Listed]:
        """See HttpOwnerDirectory."""
        own = self.ownership.me.http_address
        directory = self._unit.directory
        found = [
            (row.path, row.slots[0].store_id)
            for row in directory.contents.entities
            if row.kind == kind
            and row.state == LIVE
            and row.slots
            and row.namespace.lower() == namespace.lower()
            # Shares are no entities to clients.
            and sharded_entity_of(row.path) is None
        ]
        addresses = {store_id: self._http_address(store_id) for _, store_id in found}
        sharded = [
            Listed(one.row.path, own, is_everywhere=True)
            for (name, _), one in directory.sharded.items()
            if one.kind == kind and name == namespace.lower()
        ]
        return [
            Listed(path, own if (address := addresses[store_id]) is None else address) for path, store_id in found
        ] + sharded

    def _http_address(self, store_id: int) -> str | None:
        address = self.owner_of(store_id, of_http=True)
        return {HERE: None, MOVING: ""}.get(address, address)

    # -- for operators ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """See ClusterManagement."""
        return status_of(self.ownership.table, self._unit.directory.contents, self.node_id)

    def outline(self) -> dict[str, object]:
        """See ClusterManagement; what was known last, and how long ago that was."""
        table = self.ownership.table
        states = {
            str(lease.store_id): "here" if lease.store_id in self._open else HELD if holder else FREE
            for lease in table.leases
            for holder in [lease.node_id in self.ownership.nodes and lease.node_id != self.node_id]
        }
        now_ms = self._clock.monotonic_ms()
        away = set(self.ownership.away(now_ms))
        return {
            "isMember": self.is_member,
            "servers": len(table.nodes),
            "stores": states,
            "seenMs": None if self._seen_ms is None else now_ms - self._seen_ms,
            "catalog": "reached" if self.knows_catalog else "away",
            "databases": {name: "away" if name in away else "reached" for name in self.ownership.databases if name},
        }

    async def prefer(self, store_id: int, where: str | None) -> None:
        """See ClusterManagement."""
        table = self.ownership.table
        if store_id not in {lease.store_id for lease in table.leases}:
            known = ", ".join(str(lease.store_id) for lease in table.leases)
            raise EntityNotFound(f"There is no messaging store {store_id} in this cluster. Its stores are {known}.")
        if where is not None and "=" not in where:
            where = server_named(table, where)
        elif where is not None and not any(n.details and where in n.details.labels for n in table.nodes):
            raise ArgumentInvalid(f"No server has the label {where!r} now. duobus cluster status tells their labels.")
        await self._change(
            lambda table: table.prefer(store_id, where),
            lambda: self.ownership.table.preferences.get(store_id) == where,
        )

    async def drain(self, server: str, *, is_wanted: bool) -> str:
        """See ClusterManagement."""
        table = self.ownership.table
        # A server that is away can still be freed of its drain.
        address = server if not is_wanted and server in table.drained else server_named(table, server)
        await self._change(
            lambda table: table.drain(address, is_wanted=is_wanted),
            lambda: (address in self.ownership.table.drained) == is_wanted,
        )
        return address

    async def _change(self, change: Callable[[LeaseTable], None], is_seen: Callable[[], bool]) -> None:
        """Change the table, and return when this server has seen the change: what it tells then is not older."""
        try:
            await self._tables[CATALOG].call(change)
        except StoreFailed as error:
            raise ServerBusy(f"The catalog's database is not reached: {error}. Try again.") from error
        self.ownership.hurry()
        # It is durable by now. Whoever changes it back, or a database that goes away, must not keep the asker.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_S):
                while not is_seen():
                    await asyncio.shield(self._next_beat)

    def numbers(self) -> Iterable[tuple[str, float]]:
        """See OwnerDirectory."""
        details = self.ownership.me.details
        yield "duobus_cluster_drained", int(details is not None and details.is_drained)
        yield "duobus_cluster_stores_displaced", len(displaced(self.ownership.table))
        yield "duobus_cluster_nodes", len(self.ownership.nodes)
        yield "duobus_cluster_stores_owned", len(self._open)
        yield "duobus_cluster_stores_lost", self.failovers
        yield "duobus_cluster_beats_missed", self.beats_missed
        yield "duobus_cluster_passed_links", self.proxied_links
        yield "duobus_cluster_passed_messages", self.proxied_messages

    @property
    def is_member(self) -> bool:
        """Whether the others count this server among them, as far as it knows."""
        return self.node_id in self.ownership.nodes and any(one.fault is None for one in self._tables.values())

    async def refresh(self) -> None:
        """See OwnerDirectory: what is asked while a read is under way is answered by the next one."""
        if self._reading is None:
            await self._look()
            return
        if self._read_next is None:
            self._read_next = self._loop.create_future()
        await asyncio.shield(self._read_next)

    async def _look(self) -> None:
        if self._reading is not None:
            await self.refresh()
            return
        self._reading = self._loop.create_future()
        try:
            await self._unit.see(await self._read())
            self._see_homes()
        except (StoreFailed, StoreTooNew) as error:
            self._log.error("catalog not read", reason=str(error))
            self._revision = -1
        finally:
            self._reading.set_result(None)
            self._reading = None
        waiting, self._read_next = self._read_next, None
        if waiting is not None:
            await asyncio.sleep(_LOOK_S)
            await self._look()
            waiting.set_result(None)

    async def _read_if_reached(self) -> Directory:
        """The catalog; while it is away what it held last, which is good enough to serve stores elsewhere."""
        try:
            return await self._read() if self.knows_catalog else self._unit.directory
        except StoreFailed as error:
            self._log.warning("catalog not read", reason=str(error))
            return self._unit.directory

    async def _read(self) -> Directory:
        return Directory(await submitted(self._loop, self._catalog_thread, self._reader.read))
