"""ClusterServer: one of several servers over one catalog in PostgreSQL; made of the same parts as a lone one."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from duobus.auth.authorizer import Authorizer
from duobus.broker import MessageBroker, Namespace, subscription_path
from duobus.clock import Clock
from duobus.cluster.directory import Directory
from duobus.cluster.forwarding.connections import AmqpClusterConnections
from duobus.cluster.forwarding.endpoint import ForwardingEndpoint
from duobus.cluster.http.proxy import HttpProxy
from duobus.cluster.http.relays import ClusterRelays
from duobus.cluster.leases import CATALOG, NODES_MAX
from duobus.cluster.node import ClusterNode, OpenStore
from duobus.cluster.router import ClusterRouter
from duobus.cluster.scale_unit import ClusteredScaleUnit, LeasedTime
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed, StoreTooNew
from duobus.gateway.amqp.router import FORWARDING_NODE
from duobus.gateway.amqp.server import AmqpServer
from duobus.gateway.tls import client_context
from duobus.model.descriptions import SUBSCRIPTION, AccessRule, QueueDescription
from duobus.model.topology.config_file import NamespaceConfig
from duobus.server.catalog_wait import is_lasting
from duobus.server.composition import Server
from duobus.server.monitoring.metric_samples import running_version
from duobus.storage.catalog.leases import PLACEMENT, NodeDetails, NodeEntry
from duobus.storage.catalog.postgres import PostgresCatalog
from duobus.storage.catalog.postgres_leases import PostgresLeases, session_lock
from duobus.storage.catalog_identity import IDENTITY_BITS, demand_own
from duobus.storage.catalog_rows import LIVE, CatalogContents, NamespaceRow, StoreRow, rules_of_entity
from duobus.storage.drill import HEALTHY, DrillStore
from duobus.storage.interface import CommitBatch, StoreContents, Tombstone
from duobus.storage.offline.postgres_probe import held_or_unknown
from duobus.storage.offline.postgres_search import Finder
from duobus.storage.postgres.address import PostgresAddress, leases_schema, parse
from duobus.storage.postgres.store import PostgresStore
from duobus.storage.sqlite.checkpoint import CheckpointThread
from duobus.storage.writers import StoreWriter

# A store in PostgreSQL that is used only while its lease lasts (I55).


class LeasedStore(PostgresStore):
    """Refuses to begin what could end behind the lease; the generation in the database refuses the rest.

    Args:
        place, store_id, must_exist: As of PostgresStore.
        node_id: Of this server, whose session it is: one that is killed is known by the end of all of them.
        is_mine: Whether this server may act for the store now; asked in the store's thread.
    """

    def __init__(
        self, place: PostgresAddress, store_id: int, *, must_exist: bool, node_id: str, is_mine: Callable[[], bool]
    ) -> None:
        # Whoever had it before has lost its lease, though its session may last: it is ended.
        super().__init__(place, store_id, must_exist=must_exist, take_over=True)
        self._node_id = node_id
        self._is_mine = is_mine

    def _demand(self) -> None:
        if not self._is_mine():
            raise StoreFailed("the lease of this store has ended; another server has it")

    def open(self) -> StoreContents:
        """See MessagingStore."""
        self._demand()
        contents = super().open()
        with self._operation("say whose session this is") as link:
            link.run(session_lock(self._node_id))
        return contents

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """See MessagingStore."""
        self._demand()
        return super().begin_generation(deletions, counters)

    def commit(self, batch: CommitBatch) -> None:
        """See MessagingStore."""
        self._demand()
        super().commit(batch)


# Forwarding between the servers of one catalog: the parts of it, put together.


def rules_of(unit: ClusteredScaleUnit, namespace: str) -> Iterable[AccessRule]:
    """The access rules of a namespace, as the catalog has them; servers sign with their keys for each other."""
    rows = unit.directory.contents.namespaces
    return next((row.rules for row in rows if row.name.lower() == namespace.lower()), ())


def open_cluster_forwarding(amqp: AmqpServer, unit: ClusteredScaleUnit, node: ClusterNode, clock: Clock) -> None:
    """From now on messages are forwarded to entities of other servers, and taken in from these."""
    rules = partial(rules_of, unit)
    unit.remote.connect(node, AmqpClusterConnections(node.node_id, node.context, clock, rules))
    amqp.nodes[FORWARDING_NODE] = ForwardingEndpoint(unit.receiver, rules, unit.copies).attach


#: How long a start waits for another server that prepares the same catalog, in tries and seconds between them.
_TRIES: Final = 100
_TRY_S: Final = 0.1
#: How long a start waits for what the configuration asks for and another server creates, in milliseconds: a store gets
#: another owner within a lease.
_ENTITIES_MS: Final = 8_000
_ENTITIES_LOOK_S: Final = 0.05
#: Missing entities that the log names.
_NAMED: Final = 10
_WHO_CREATES: Final = "the server that has the store of such a name creates what its own configuration asks for"
#: Pause until a catalog is prepared again whose database went meanwhile, in seconds.
_AGAIN_S: Final = 0.5


def _paths_of(config: NamespaceConfig) -> Iterator[str]:
    """Queues, topics and subscriptions of a file."""
    for queue in config.queues:
        yield queue.name
    for topic in config.topics:
        yield topic.name
        for one in topic.subscriptions:
            yield subscription_path(topic.name, one.name)


class ClusterServer(Server):
    """A server that shares its catalog, and runs those stores whose leases it has.

    Attributes:
        node: Itself among the others.
        stop_asked: Set when the server is told to stop. With this event a start waits for as long as --join-wait says
            when the catalog's database goes while the catalog is prepared; without it such a start fails at once.
    """

    node: ClusterNode
    stop_asked: asyncio.Event | None = None
    unit: ClusteredScaleUnit
    _catalog: PostgresCatalog
    _context: ssl.SSLContext | None = None
    _others: ClusterRelays | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Store id to the address of its database that this server was given.
        self._bases: dict[int, PostgresAddress] = {}
        #: What databases hold whose addresses are written otherwise than in the catalog.
        self._held: dict[str, set[int]] = {}

    def _make_catalog(self) -> PostgresCatalog:
        assert self.settings.join is not None
        return PostgresCatalog(self.settings.join)

    def _make_unit(self) -> ClusteredScaleUnit:
        settings = self.settings
        return ClusteredScaleUnit(self._catalog, self._store_event, settings.quotas, self._entropy.uuid, self._time)

    # -- start --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See Server. Whom it trusts among the others is known before it shows itself to them."""
        if self.settings.cluster_ca is not None:
            self._context = client_context(self.settings.cluster_ca, "--cluster-ca")
        await super().start()

    def _read_catalog(self) -> CatalogContents:
        """See Server. Others change a shared catalog: it is read when this server prepares it, alone."""
        return CatalogContents((), (), ())

    async def _start_stores(self, contents: CatalogContents) -> list[NamespaceRow]:
        """Prepare the catalog, alone; the stores come with their leases."""
        end_ms = self._clock.monotonic_ms() + int(self.settings.join_wait_s * 1000)
        told: set[str] = set()
        while (namespaces := await self._prepared(end_ms, told)) is None:
            # With the connection ends the lock under which the catalog was prepared.
            self._catalog.close()
            self._bases.clear()
            self._held.clear()
            assert self.stop_asked is not None  # or nothing would be tried again
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stop_asked.wait(), _AGAIN_S)
        for row in namespaces:
            self.unit.namespace(row.name)
        return namespaces

    async def _prepared(self, end_ms: int, told: set[str]) -> list[NamespaceRow] | None:
        """Try to prepare the catalog.

        Args:
            end_ms: Until when the database may come again that went meanwhile.
            told: Reasons that the log has.

        Returns:
            The configured namespaces; None when the database went and there is time left.

        Raises:
            ConfigurationError: There is none, or waiting does not mend what is wrong.
        """
        try:
            return await self._prepare_catalog()
        except StoreTooNew as error:
            raise ConfigurationError(f"The catalog cannot be opened: {error}") from error
        except StoreFailed as error:
            reason, is_late = str(error), self._clock.monotonic_ms() >= end_ms
            does_wait = self.stop_asked is not None and not self.stop_asked.is_set() and not is_late
            if not does_wait or is_lasting(reason) or not self._catalog.is_away(error):
                raise ConfigurationError(f"The catalog cannot be prepared: {reason}") from error
            if reason not in told:
                told.add(reason)
                self.log.warning("the catalog's database went while the catalog was prepared", reason=reason)
            return None

    async def _prepare_catalog(self) -> list[NamespaceRow]:
        catalog = self._catalog
        for _ in range(_TRIES):
            if catalog.begin_alone():
                break
            await asyncio.sleep(_TRY_S)
        catalog.identify(self._entropy.number(IDENTITY_BITS) or 1)
        await self._demand_own(catalog)
        contents = catalog.read()
        namespaces = self._namespaces(contents)
        await self._register_stores(contents)
        self.unit.directory = Directory(catalog.read())
        catalog.end_alone()
        return namespaces

    async def _demand_own(self, catalog: PostgresCatalog) -> None:
        """Refuse a catalog that is not that of its stores, before it is changed.

        Each store is compared again when it is opened; by then an older catalog could have come as far as they did.

        Raises:
            StoreForeign: One of them belongs to another catalog, or has been told of later changes.
        """
        loop = asyncio.get_running_loop()
        found = []
        for row in catalog.read().stores:
            place = self._place_of(row)
            # One that cannot be read now is compared when it is opened.
            with suppress(StoreFailed):
                found.append((row.store_id, await loop.run_in_executor(None, Finder().look, place)))
        # After the stores: others may be changing it now, and the catalog is told first.
        catalog.read()
        for store_id, store in found:
            demand_own(catalog.mark, store.contents, f"Messaging store {store_id}")

    async def _register_stores(self, contents: CatalogContents) -> None:
        """Create the stores that are missing: those of --stores in the catalog's database, and those of --store."""
        join = self.settings.join
        assert join is not None
        number = max((row.store_id for row in (*contents.stores, *contents.lost)), default=0)
        unused = list(contents.stores)
        for base in (*[join] * self.settings.stores, *self.settings.places):
            row = self._known_at(base, unused)
            if row is not None:
                unused.remove(row)
                self._bases[row.store_id] = base
                continue
            number += 1
            place = base.in_schema(f"{join.schema}_{number}")
            store = PostgresStore(place, number, take_over=True)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, store.open)
            await loop.run_in_executor(None, store.close)
            # The schema first, then the catalog: a store that the catalog knows is never created again as empty.
            self._catalog.add_store(number, place.url)

    def _known_at(self, base: PostgresAddress, rows: Sequence[StoreRow]) -> StoreRow | None:
        """One of these stores that is in the database of an address, however that is written."""
        for row in rows:
            if parse(row.path).server == base.server:
                return row
        bare = base.in_database()
        key = bare.url
        if rows and key not in self._held:
            self._held[key] = held_or_unknown(bare, rows, self._catalog.mark.identity) or set()
        return next((row for row in rows if row.store_id in self._held.get(key, ())), None)

    def _make_backups(self) -> None:
        """None: PostgreSQL has its own."""

    async def _open_listeners(self, authorizer: Authorizer) -> None:
        settings = self.settings
        assert settings.join is not None
        details = NodeDetails(
            running_version() or "unknown",
            settings.weight,
            settings.labels,
            keeps_own=True,
            placement=PLACEMENT,
            moves_fragments=True,
        )
        me = NodeEntry(str(self._entropy.uuid()), "", "", is_leaving=False, details=details)
        self.node = ClusterNode(
            me,
            self.unit,
            PostgresCatalog(settings.join),
            PostgresLeases(settings.join, me.node_id),
            make=self._make_broker,
            created=self._create_in,
            clock=self._clock,
            context=self._context,
            processor_seconds=time.process_time,
            home_of=self._home_of,
            table_of=partial(self._table_of, me.node_id),
        )
        self._catalog.is_reached = lambda: self.node.knows_catalog
        self.amqp.router_of = partial(ClusterRouter, owners=self.node)
        open_cluster_forwarding(self.amqp, self.unit, self.node, self._clock)
        await super()._open_listeners(authorizer)
        self._others = self.relays.hub.others = ClusterRelays(self.node, self._clock, partial(rules_of, self.unit))
        self.unit.seen = partial(self._see_rules, authorizer)
        self.rest.pass_on(HttpProxy(self.node, authorizer, self._clock))
        self.rest.manage(self.node)
        host = settings.advertise or settings.host
        host = f"[{host}]" if ":" in host else host
        amqp = self.port("amqp" if settings.cluster_ca is None else "tls")
        self.node.ownership.me = msgspec.structs.replace(
            me, address=f"{host}:{amqp}", http_address=f"{host}:{self.port('http')}"
        )
        try:
            await self.node.start()
        except StoreFailed as error:
            raise ConfigurationError(f"The catalog cannot be joined: {error}") from error
        if len(self.node.ownership.nodes) > NODES_MAX:
            raise ConfigurationError(f"{NODES_MAX} servers share this catalog already, which is the limit.")
        await self._await_entities()

    async def _await_entities(self) -> None:
        """Wait until what the configuration asks for is there, whichever server creates it: clients come next."""
        end_ms, is_told = self._clock.monotonic_ms() + _ENTITIES_MS, False
        while missing := [path for config in self.settings.namespaces for path in self._missing(config)]:
            some = {"number": len(missing), "entities": ", ".join(missing[:_NAMED])}
            if self.stop_asked is not None and self.stop_asked.is_set():
                return
            if self._clock.monotonic_ms() >= end_ms:
                self.log.warning("ready without entities of the configuration", **some, reason=_WHO_CREATES)
                return
            if not is_told:
                is_told = True
                self.log.info("entities of the configuration are awaited", **some, reason=_WHO_CREATES)
            await asyncio.sleep(_ENTITIES_LOOK_S)

    def _missing(self, config: NamespaceConfig) -> Iterator[str]:
        """What a file asks for and no client could use yet."""
        directory, space = self.unit.directory, config.name.lower()
        for path in _paths_of(config):
            row, sharded = directory.entry(space, path.lower()), directory.sharded.get((space, path.lower()))
            # A subscription is live once it is in all shards of its topic.
            parts = [] if sharded is None or sharded.kind == SUBSCRIPTION else sharded.shares
            if row is None or any(one.state != LIVE for one in (row, *parts)):
                yield path

    def _see_rules(self, authorizer: Authorizer, directory: Directory) -> None:
        """Another server may have changed the access rules of a namespace: they count here, too."""
        if directory.contents.revision < self._catalog.mark.revision:
            # It was read before this server's own latest change, and would undo that here until the next reading.
            return
        for row in directory.contents.namespaces:
            known = authorizer.namespace_of(row.name)
            rules = {rule.name: rule for rule in row.rules}
            if known.name == row.name.lower() and known.rules != rules:
                known.rules = rules
                self._rules_changed(known.name)

    def _entity_rules(self, namespace: str, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        """See Server; those of entities that other servers have, too: clients put their tokens at any server."""
        yield from super()._entity_rules(namespace, segments)
        home = self.unit.namespace(namespace)
        for length in range(1, len(segments) + 1):
            path = tuple(segments[:length])
            key = "/".join(path)
            row = None if home.is_taken(key) else self.unit.directory.row_of(namespace, key)
            for rule in () if row is None else rules_of_entity(row):
                yield path, rule

    def _rules_of_entities(self, namespace: str) -> Iterable[tuple[str, tuple[AccessRule, ...]]]:
        """See Server; of all servers, as the catalog has them."""
        for row in self.unit.directory.contents.entities:
            if row.namespace == namespace and row.state == LIVE:
                rules = rules_of_entity(row)
                if rules:
                    yield row.path, rules

    def _numbers_of_cluster(self) -> Iterable[tuple[str, float]]:
        return self.node.numbers()

    def _servers_of_cluster(self) -> Sequence[str]:
        own = self.node.own_http_address
        others = {node.http_address for node in self.node.ownership.nodes.values()} - {own}
        return [own, *sorted(others)]

    # -- stores -------------------------------------------------------------------------------------------------

    def _make_broker(self, row: StoreRow) -> OpenStore:
        loop = asyncio.get_running_loop()
        store_id, ownership, clock = row.store_id, self.node.ownership, self._clock
        store = LeasedStore(
            self._place_of(row),
            store_id,
            must_exist=True,
            node_id=self.node.node_id,
            is_mine=lambda: ownership.may_act(store_id, clock.monotonic_ms()),
        )
        writer, reader = StoreWriter(loop, f"store-{store_id}"), StoreWriter(loop, f"reader-{store_id}")
        drill = DrillStore(store) if self.settings.allow_drills else None
        if drill is not None:
            self.drills[store_id] = drill
        broker = MessageBroker(
            store_id,
            drill or store,
            writer,
            time=LeasedTime(self._time, clock, lambda: ownership.ends_ms(store_id)),
            entropy=self._entropy,
            watcher=self.unit,
            reader=reader,
            timeout_s=self.settings.store_timeout_s,
        )
        broker.id_room.limit = self.settings.quotas.history_ids
        broker.disk = store_id
        checkpoint = CheckpointThread(store, writer, loop)
        checkpoint.start()

        def stop() -> None:
            if drill is not None:
                # Whatever it was told is over where it goes: a thread that stalls in a drill would never end.
                drill.set_mode(HEALTHY)
            checkpoint.stop()
            reader.stop()
            writer.stop()

        return OpenStore(broker, stop)

    def _place_of(self, row: StoreRow) -> PostgresAddress:
        """Where a store is, with the password that this server was given for its database."""
        join = self.settings.join
        assert join is not None
        place = parse(row.path)
        given = (base for base in (join, *self.settings.places) if base.server == place.server)
        return next(given, self._bases.get(row.store_id, place)).in_schema(place.schema or "")

    def _home_of(self, row: StoreRow) -> str:
        """The address of the server and database of a store; the catalog's own is CATALOG."""
        assert self.settings.join is not None
        server = self._place_of(row).server
        return CATALOG if server == self.settings.join.server else server

    def _table_of(self, node_id: str, server: str) -> PostgresLeases:
        """The leases of the stores in a database that is not the catalog's."""
        places = (self._place_of(row) for row in self.unit.directory.contents.stores)
        place = next(place for place in places if place.server == server)
        return PostgresLeases(place.in_schema(leases_schema(self._catalog.mark.identity)), node_id, of_stores=True)

    async def _create_in(self, store_id: int) -> None:
        """Create what the configuration asks for and is missing, as far as it belongs into a store that was got."""
        for config in self.settings.namespaces:
            belongs = self.unit.directory.store_for_new
            part = NamespaceConfig(
                name=config.name,
                hosts=config.hosts,
                queues=tuple(q for q in config.queues if belongs(config.name, q.name.lower()) == store_id),
                topics=tuple(t for t in config.topics if belongs(config.name, t.name.lower()) == store_id),
                # A relay is in no store; who has the store of its name creates it, so that one server does.
                relays=tuple(r for r in config.relays if belongs(config.name, r.name.lower()) == store_id),
            )
            try:
                await self._create_entities(part)
            except (ServiceBusError, StoreFailed) as error:
                self.log.error("entities not created", store=store_id, reason=str(error))

    async def _create_queues(self, home: Namespace, missing: list[QueueDescription]) -> None:
        # One by one: there are clients already, and some queues are spread over several servers.
        for description in missing:
            try:
                # Checked with the file: what it forwards to may come later in it.
                await self.unit.create_queue(home.name, description, demand_targets=False)
            except ServiceBusError as error:
                self._queue_refused(description, error)

    # -- stop ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Give the stores to the others first, then stop as a lone server does (I63)."""
        self.is_ready = False
        for listener in self.listeners.values():
            await listener.close()
        if hasattr(self, "node"):
            await self.node.stop()
        await super().stop()
        if self._others is not None:
            await self._others.close()
