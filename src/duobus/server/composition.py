"""The only place where stores, catalog, namespaces and servers are put together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker import MessageBroker, Namespace, Queue, ScaleUnit, Throttle, create_queues, without_subscriptions
from duobus.broker.entities.relay import HybridConnection
from duobus.broker.store_probes import StoreProbes
from duobus.clock import AHEAD_MAX_MS, BrokerTime, Clock, Entropy
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed, StoreForeign, StoreTooNew
from duobus.gateway.amqp.byte_budget import ByteBudget
from duobus.gateway.amqp.server import AmqpServer
from duobus.gateway.listener import Listener, TlsSource
from duobus.gateway.protocol_switch import ProtocolFactory
from duobus.model.descriptions import ALL_RIGHTS, AccessRule, QueueDescription, Right, TopicDescription
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.tiers import EMULATOR
from duobus.model.topology.config_file import NamespaceConfig
from duobus.server.access.connection_strings import renew
from duobus.server.access.metrics_token import MetricsToken
from duobus.server.access.rules import ServerRules
from duobus.server.clock_record import ClockRecord, read_record
from duobus.server.monitoring.key_skew import SkewWatch
from duobus.server.monitoring.metric_samples import running_version, samples, samples_of_process, samples_of_relays
from duobus.server.monitoring.overview import ServerOverview
from duobus.server.operations.audit import AuditReader
from duobus.server.operations.events import EventFeed, ReportingTrail
from duobus.server.operations.history import History
from duobus.server.operations.inspection import Inspection
from duobus.server.operations.metering import MeteringReader
from duobus.server.operations.relays import ServerRelays
from duobus.server.operations.rule_trials import RuleTrials
from duobus.server.server_record import ServerRecord, managing_rule
from duobus.server.settings import EMULATOR_KEY, Settings, ready_members
from duobus.server.store_plan import PlannedStore, plan_stores, postgres_store
from duobus.server.topology.application import ConfigApplication
from duobus.storage.catalog.interface import Catalog, new_namespace
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog.unknown_stores import demand_no_strangers
from duobus.storage.catalog_identity import IDENTITY_BITS
from duobus.storage.catalog_records import CopyKeeper
from duobus.storage.catalog_rows import DEFAULT_RULE_NAME, CatalogContents, NamespaceRow, StoreRow
from duobus.storage.drill import HEALTHY, DrillStore
from duobus.storage.folder_lock import FolderLock
from duobus.storage.interface import MessagingStore
from duobus.storage.offline.store_search import finder
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.sqlite.checkpoint import CheckpointThread
from duobus.storage.writer_pool import WriterPool
from duobus.storage.writers import LoopWriter, StoppableWriter, StoreWriter
from duobus.telemetry.audit_log import DELETE, DONE, AuditLog, AuditTrail, Change
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_log import MeteringCounts
from duobus.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from duobus.gateway.certificates import Certificates
    from duobus.gateway.rest.runtime.sends import Sends
    from duobus.gateway.rest.token_endpoint import TokenEndpoint
    from duobus.server.access.tokens import Tokens
    from duobus.server.backups import Backups
    from duobus.storage.journal.store import JournalStore
    from duobus.storage.postgres.store import PostgresStore
    from duobus.storage.sqlite.store import SqliteStore
    from duobus.telemetry.spans import SpanRecorder

#: Limits of a clean stop (I63): peers get this long to close their side.
PEERS_CLOSE_S = 5.0
#: Schemas that one line of the log names.
_NAMED_SCHEMAS = 8


class Server:
    """One server: everything that was put together, in the order in which it is started and stopped.

    Attributes:
        unit: The scale unit.
        listeners: Name of a server to its listener, for those that are offered.
        tokens: What it knows of bearer tokens, or None when none are configured.
        spans: Records what the broker does with messages that carry a trace context, where that is asked for.
        backups: Makes backups, or None where everything is kept in memory.
        drills: Store id to its store, where drills are allowed.
        default: The default namespace's row: its first rule is what the ready file tells.
        authority: Certificate of the self-signed authority, or None.
        certificates: What TLS connections are served with, or None.
        new_key: Whether the default key was generated just now, to be shown once.
    """

    def __init__(
        self, settings: Settings, clock: Clock, entropy: Entropy, *, broker_clock: Clock | None = None
    ) -> None:
        """``broker_clock``: what broker time follows, if it is to be another clock than that of connections."""
        self.settings = settings
        self.log = Log("server")
        self.listeners: dict[str, Listener] = {}
        self.authority: Path | None = None
        self.certificates: Certificates | None = None
        self.new_key = False
        self.is_ready = False
        self.is_draining = False
        self.tokens: Tokens | None = None
        self.backups: Backups | None = None
        self.spans: SpanRecorder | None = None
        # Beside the catalog, whose changes it tells of.
        kept = None if settings.ephemeral else settings.data
        trail = AuditTrail() if kept is None else AuditLog(kept / "audit")
        self._events = EventFeed(clock)
        self.audit: AuditTrail = ReportingTrail(trail, self._events)
        self._configured = ConfigApplication(settings, self.audit, clock, self.log)
        self.metering = MeteringCounts(str(entropy.uuid()))
        self._clock = clock
        self._entropy = entropy
        self._lock = None if settings.data is None else FolderLock(settings.data)
        self._record = None if settings.data is None else ServerRecord(settings.data)
        self._time = BrokerTime(
            broker_clock or clock,
            witness=None if kept is None else read_record(kept),
            # A joined server opens its stores one by one, some of which were idle for long.
            is_accepted=settings.accept_clock or settings.join is not None,
        )
        self._clock_record = None if kept is None else ClockRecord(kept, self._time)
        path = settings.metrics_token_file
        self._metrics_token = None if path is None else MetricsToken(path)
        self._catalog: Catalog = self._make_catalog()
        self._writers: list[StoppableWriter] = []
        #: Disk to the threads of the stores on it.
        self._pools: dict[int, WriterPool] = {}
        self._checkpoints: list[CheckpointThread] = []
        self.drills: dict[int, DrillStore] = {}
        self.unit = self._make_unit()
        self.unit.partitions = settings.http.tier.partitions
        self.unit.memory_room.limit = settings.memory_bytes_max - settings.incoming_bytes_max
        self.unit.idle_watch.journal = self._idle_ends
        self._skew = SkewWatch(self.unit, self._keys_skewed)
        self._probes = StoreProbes(self.unit.brokers)
        self._history: History | None = None

    def _make_catalog(self) -> Catalog:
        if self.settings.ephemeral:
            return MemoryCatalog()
        from duobus.storage.catalog.sqlite import SqliteCatalog

        assert self.settings.data is not None
        self.settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        catalog = SqliteCatalog(self.settings.data / "catalog.db")
        catalog.mark.copies = CopyKeeper()
        return catalog

    def _make_unit(self) -> ScaleUnit:
        return ScaleUnit(self._catalog, self._store_event, self.settings.quotas, self._entropy.uuid)

    # -- start --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything; on return clients can connect.

        Raises:
            ConfigurationError: Something that the operator has to change; the text says what.
        """
        if self._lock is not None:
            self._lock.take("a server", self._clock)
        contents = self._read_catalog()
        try:
            namespaces = await self._start_stores(contents)
        except StoreForeign as error:
            raise ConfigurationError(str(error)) from error
        for namespace in self.settings.namespaces:
            if namespace.messages_per_second is not None:
                throttle = Throttle(namespace.name, namespace.messages_per_second, self._clock)
                self.unit.namespace(namespace.name).throttle = throttle
        rules = [
            NamespaceRules(row.name, row.rules, config.hosts, partial(self._entity_rules, row.name))
            for row, config in zip(namespaces, self.settings.namespaces, strict=True)
        ]
        if self.settings.tokens is not None:
            # Here and not above: the libraries that it needs take their time, and most servers go without.
            from duobus.server.access.tokens import Tokens

            self.tokens = Tokens(self.settings.tokens, self.settings.data, self._clock, self._entropy)
            await self.tokens.start()
        authorizer = self._authorizer = Authorizer(rules, self.tokens.verifier if self.tokens else None)
        self.default = namespaces[0]
        self.amqp = AmqpServer(
            self.unit,
            authorizer,
            clock=self._clock,
            entropy=self._entropy,
            log=Log("amqp"),
            metering=self.metering,
            budget=ByteBudget(self.settings.incoming_bytes_max),
        )
        if self.settings.otlp_endpoint is not None:
            # Here and not above: most servers record no spans, and what it needs takes its time to load.
            from duobus.gateway.amqp.links.traced_links import traced
            from duobus.telemetry.spans import otlp_recorder

            self.spans = otlp_recorder(self.settings.otlp_endpoint, running_version())
            self.amqp.link_kinds = traced(self.spans)
        if self.tokens is not None:
            self.tokens.keys.changed = self.amqp.keys_changed
        await self._open_listeners(authorizer)
        if self._lock is not None:
            # For whoever starts a second server on this folder.
            host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
            self._lock.tell_address(f"{host}:{self.port('amqp')}")
        self._write_record()
        self._skew.begin()
        if self.settings.http.operations and self._history is not None:
            self._history.begin()
        self._see_to_clock()
        self._probes.begin()
        self.is_ready = True

    def _read_catalog(self) -> CatalogContents:
        try:
            self._demand_catalog()
            contents = self._catalog.read()
            if self.settings.data is not None and not self.settings.ephemeral and self.settings.join is None:
                demand_no_strangers(self.settings.data, contents)
        except StoreForeign as error:
            raise ConfigurationError(str(error)) from error
        except (StoreFailed, StoreTooNew) as error:
            raise ConfigurationError(f"The catalog cannot be opened: {error}") from error
        return contents

    def _demand_catalog(self) -> None:
        """Before an empty one is made: that would lie in the way of whoever puts the lost one back."""
        data = self.settings.data
        if data is None or self.settings.ephemeral or self.settings.join is not None:
            return
        if not (data / "catalog.db").exists() and not (data / "catalog.db-wal").exists():
            demand_no_strangers(data, CatalogContents((), (), ()))

    def _see_to_clock(self) -> None:
        """Say so when broker time and the machine's clock are far apart, and write down what time it is."""
        self.rest.health.clock_fault = self._clock_fault
        fault = self._clock_fault()
        if fault is not None:
            self.log.warning("clock not believed", reason=fault)
        elif self._time.ahead_ms < -AHEAD_MAX_MS:
            hours = -self._time.ahead_ms / 3_600_000
            self.log.warning(
                "clock behind",
                reason=f"the stores recorded a time {hours:.1f} hours ahead of the machine's clock, and go on there."
                " This clock is behind, or an earlier one was ahead; then stop the server and set the time back, with"
                " duobus store clock --reset",
            )
        if self._clock_record is not None:
            self._clock_record.begin()

    def _clock_fault(self) -> str | None:
        if not self._time.is_doubted:
            return None
        return (
            f"the machine's clock is {self._time.ahead_ms / 3_600_000:.1f} hours ahead of the time that has passed "
            "since the last start, and is not believed: nothing expires or comes due by it. Set the clock; if it is "
            "right, start the server with --accept-clock"
        )

    def _samples(self, started_ms: int) -> Iterator[Sample]:
        yield from samples(self.unit, self.amqp, started_ms, self._skew.skews, self._numbers_of_cluster())
        yield from samples_of_process(self.rest, self.certificates)
        yield from samples_of_relays(self.relays.hub)
        yield Sample("duobus_clock_ahead_seconds", (), self._time.ahead_ms / 1000)

    def _numbers_of_cluster(self) -> Iterable[tuple[str, float]]:
        """Name and value of what a server among others counts beside the rest."""
        return ()

    def _servers_of_cluster(self) -> Sequence[str]:
        """HTTP addresses of the servers that share the catalog, this server's own first; empty for a lone server."""
        return ()

    async def _start_stores(self, contents: CatalogContents) -> list[NamespaceRow]:
        """Open the stores, and create what the configuration asks for; return the namespaces of that."""
        self._catalog.identify(self._entropy.number(IDENTITY_BITS) or 1)
        self._configured.prepare(contents)
        namespaces = self._namespaces(contents)
        await self._add_stores(contents)
        await self.unit.start(self._catalog.read())
        for checkpoint in self._checkpoints:
            checkpoint.start()
        for namespace in self.settings.namespaces:
            await self._create_entities(namespace)
        await self._configured.finish(self.unit, self._catalog.mark.identity)
        return namespaces

    def _namespaces(self, contents: CatalogContents) -> list[NamespaceRow]:
        """The rows of the configured namespaces, made where they are new, with the rules that the file gives."""
        known = {row.name: row for row in contents.namespaces}
        rows = []
        for config in self.settings.namespaces:
            row = known.get(config.name)
            if row is None:
                row = new_namespace(config.name, self._entropy)
                self.new_key = self.new_key or not self.settings.emulator
            rules = {rule.name: rule for rule in row.rules}
            if self.settings.emulator:
                rules[DEFAULT_RULE_NAME] = AccessRule(
                    name=DEFAULT_RULE_NAME,
                    primary_key=EMULATOR_KEY,
                    secondary_key=EMULATOR_KEY,
                    rights=int(ALL_RIGHTS),
                )
            elif DEFAULT_RULE_NAME in rules and rules[DEFAULT_RULE_NAME].primary_key == EMULATOR_KEY:
                # The folder was used with --emulator before: its key is public, so it must not live on.
                rules[DEFAULT_RULE_NAME] = new_namespace(config.name, self._entropy).rules[0]
                self.new_key = True
            for rule in config.rules:
                old = rules.get(rule.name)
                if old is not None and old.modified_at_ms and old != rule:
                    self.log.warning(
                        "access rule as in the file again",
                        namespace=config.name,
                        rule=rule.name,
                        reason="its keys were changed by duobus key, and the configuration file gives it: take it out "
                        "of the file, or give its new keys there",
                    )
                rules[rule.name] = rule
            for name in self._removed_rules(config, rules.values()):
                del rules[name]
                self.log.warning(
                    "access rule removed",
                    namespace=config.name,
                    rule=name,
                    reason="the configuration file does not have it any more, so its keys open nothing",
                )
            if not any(rule.rights & Right.MANAGE for rule in rules.values()):
                # Without one nobody could make another.
                rules[DEFAULT_RULE_NAME] = new_namespace(config.name, self._entropy).rules[0]
                self.new_key = True
            wanted = NamespaceRow(row.name, tuple(rules.values()))
            if wanted != known.get(config.name):
                self._catalog.put_namespace(wanted)
            rows.append(wanted)
        return rows

    def _removed_rules(self, config: NamespaceConfig, rules: Iterable[AccessRule]) -> list[str]:
        """Rules that only an earlier configuration file can have made: others tell the time of it (decision 0058)."""
        if self.settings.config is None:
            return []
        kept = {DEFAULT_RULE_NAME, *(rule.name for rule in config.rules)}
        return [rule.name for rule in rules if rule.name not in kept and not rule.created_at_ms]

    def _given_rules(self) -> dict[str, dict[str, str]]:
        """Namespace to the rules that each start brings again, with what brings them."""
        found = {}
        for config in self.settings.namespaces:
            given = {DEFAULT_RULE_NAME: "--emulator"} if self.settings.emulator else {}
            found[config.name] = given | {rule.name: "the configuration file" for rule in config.rules}
        return found

    def _rules_of_entities(self, namespace: str) -> Iterable[tuple[str, tuple[AccessRule, ...]]]:
        """Path and access rules of each entity that has any."""
        return self.unit.namespace(namespace).rules_of_entities()

    def _rules_changed(self, namespace: str) -> None:
        """The access rules of a namespace are others, and durable: what lives on them is looked at again."""
        self.amqp.rules_changed(namespace)
        if namespace == self.default.name:
            self.default = NamespaceRow(namespace, tuple(self._authorizer.namespace_of(namespace).rules.values()))
            self._write_record()

    def ready_members(self) -> dict[str, object] | None:
        """The members of the ready file, with the ports and the key of now; None before clients can connect."""
        amqp_port = self.port("amqp")
        if amqp_port is None:
            return None
        rule = managing_rule(self.default.rules)
        return ready_members(
            self.settings,
            amqp_port=amqp_port,
            tls_port=self.port("tls"),
            http_port=self.port("http"),
            https_port=self.port("https"),
            rule_name=rule.name,
            key=rule.primary_key,
            ca=self.authority,
        )

    def _write_record(self) -> None:
        """Say in the data folder where this server is reached, and with which key."""
        members = None if self._record is None else self.ready_members()
        if self._record is None or members is None:
            return
        try:
            self._record.write(members)
            if self.settings.data is not None:
                renew(self.settings.data, str(members["connection_string"]))
        except ConfigurationError as error:
            # Commands beside the server need it; clients do not.
            self.log.warning("address and key not written into the data folder", reason=str(error))

    async def _add_stores(self, contents: CatalogContents) -> None:
        for row in contents.lost:
            if self.settings.data is not None and (self.settings.data / row.path).exists():
                self.log.warning("store given up", store=row.store_id, file=row.path, reason="its file is left alone")
        settings = self.settings
        if not contents.stores:
            self._tell_of_stores(settings.places)
        for planned in plan_stores(contents, settings.stores, settings.places, self._entropy, self._holds):
            store_id = planned.store_id
            store, writer = self._make_store(planned)
            if self.settings.allow_drills:
                store = self.drills[store_id] = DrillStore(store)
            self._writers.append(writer)
            reader = StoreWriter(asyncio.get_running_loop(), f"reader-{store_id}")
            self._writers.append(reader)
            broker = MessageBroker(
                store_id,
                store,
                writer,
                time=self._time,
                entropy=self._entropy,
                watcher=self.unit,
                reader=reader,
                timeout_s=self.settings.store_timeout_s,
            )
            broker.id_room.limit = self.settings.quotas.history_ids
            broker.place = "memory" if self.settings.ephemeral else planned.path
            # Databases write their logs in their own ways: commits beside each other may well share a sync there.
            broker.disk = store_id if planned.place is not None else self._disk_of(planned)
            if planned.is_new:
                # The file first, then the catalog: a store that the catalog knows is never created again as empty.
                await self._create_store(broker)
            if planned.is_new or planned.is_moved:
                self._catalog.add_store(store_id, planned.path)
            self.unit.brokers[store_id] = broker

    def _tell_of_stores(self, places: Sequence[PostgresAddress]) -> None:
        """Name the stores beside which a new catalog makes its own: the lost catalog may have been theirs."""
        for place in {place.url: place for place in places if place.schema is None}.values():
            # What cannot be reached now is told of when the store is made.
            with suppress(ConfigurationError, StoreFailed):
                names = finder().schemas(place)
                if names:
                    self.log.warning(
                        "stores of other catalogs",
                        place=place.url,
                        schemas=", ".join(names[:_NAMED_SCHEMAS]) + (", ..." if len(names) > _NAMED_SCHEMAS else ""),
                        reason="the catalog is new, and these are left alone. If they are this server's, its catalog"
                        " was lost: stop it, and rebuild the catalog with duobus store adopt",
                    )

    def _holds(self, place: PostgresAddress, rows: Sequence[StoreRow]) -> set[int] | None:
        """Which stores of the catalog an address leads to that is not written as there."""
        try:
            from duobus.storage.offline.postgres_probe import held_or_unknown
        except ImportError:
            # Said when the store is made.
            return None
        return held_or_unknown(place, rows, self._catalog.mark.identity)

    def _disk_of(self, planned: PlannedStore) -> int:
        if self.settings.ephemeral or self.settings.data is None:
            return 0
        return (self.settings.data / planned.path).parent.stat().st_dev

    async def _create_store(self, broker: MessageBroker) -> None:
        try:
            found = await broker.call(broker.store.open)
            if found.belonging is not None and found.belonging.is_prepared:
                # It was to take the place of another one, and its maker was killed: nothing can be in it.
                for entity_id in {row.entity_id for row in found.fragments}:
                    await broker.call(partial(broker.store.drop_entity, entity_id))
            await broker.call(broker.store.close)
        except (StoreFailed, StoreTooNew) as error:
            raise ConfigurationError(f"Messaging store {broker.store_id} cannot be created: {error}") from error

    def _make_store(self, planned: PlannedStore) -> tuple[MessagingStore, StoppableWriter]:
        loop = asyncio.get_running_loop()
        if self.settings.ephemeral:
            from duobus.storage.memory import MemoryStore

            # A drill has a store hang, which must not stop the loop.
            in_memory = self._make_writer(planned) if self.settings.allow_drills else LoopWriter(loop)
            return MemoryStore(planned.store_id), in_memory
        store: SqliteStore | JournalStore | PostgresStore
        if planned.place is not None:
            writer: StoppableWriter = StoreWriter(loop, f"store-{planned.store_id}")
            store = postgres_store(planned, planned.place)
        else:
            assert self.settings.data is not None
            path = self.settings.data / planned.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            from duobus.storage.journal.store import store_in_file

            must_exist, has_journal = not planned.is_new, self.settings.journal
            store = store_in_file(
                path, planned.store_id, must_exist=must_exist, has_journal=has_journal, clock=self._clock
            )
            writer = self._make_writer(planned)
        self._checkpoints.append(CheckpointThread(store, writer, loop))
        return store, writer

    def _make_writer(self, planned: PlannedStore) -> StoppableWriter:
        """What calls a store that shares its disk, and this interpreter, with those of the same writer pool."""
        disk = self._disk_of(planned)
        pool = self._pools.get(disk)
        if pool is None:
            pool = self._pools[disk] = WriterPool(asyncio.get_running_loop())
        return pool.writer()

    async def _create_entities(self, config: NamespaceConfig) -> None:
        """What the file asks for and is missing is created; what differs is named where it is left alone."""
        home = self.unit.namespace(config.name)
        missing = []
        for description in config.queues:
            queue = home.queues.get(description.name.lower())
            if queue is None:
                missing.append(description)
            else:
                self._report(queue, queue.description, description)
        await self._create_queues(home, missing)
        for topic in config.topics:
            await self._create_topic(home, topic)
        for relay in config.relays:
            self._create_relay(home, relay)

    def _create_relay(self, home: Namespace, asked: HybridConnectionDescription) -> None:
        try:
            if (found := home.relays.get(asked.name.lower())) is not None:
                self._report(found, found.description, asked)
            else:
                self.unit.relays.create(home.name, asked)
        except ServiceBusError as error:
            self.log.error("relay not created", relay=asked.name, reason=str(error))

    def _report(self, entity: Queue | HybridConnection, kept: msgspec.Struct, asked: msgspec.Struct) -> None:
        if self._configured.leaves_alone:
            self.unit.report_differences(entity, kept, asked)

    async def _create_queues(self, home: Namespace, missing: list[QueueDescription]) -> None:
        await create_queues(self.unit, home, missing, self._queue_refused)

    def _queue_refused(self, description: QueueDescription, error: ServiceBusError) -> None:
        self.log.error("queue not created", queue=description.name, reason=str(error))

    async def _create_topic(self, home: Namespace, asked: TopicDescription) -> None:
        """The same for a topic and its subscriptions: those that are missing are created, with their rules."""
        topics = self.unit.topics
        topic = home.topics.get(asked.name.lower())
        try:
            if topic is None:
                topic = await topics.create_topic(home.name, asked, profile=EMULATOR)
            else:
                self._report(topic, topic.about, without_subscriptions(asked))
            for subscription in asked.subscriptions:
                found = topic.subscriptions.get(subscription.name.lower())
                if found is None:
                    found = await topics.create_subscription(home.name, asked.name, subscription, profile=EMULATOR)
                else:
                    self._report(found, found.about, subscription)
        except ServiceBusError as error:
            self.log.error("topic not created", topic=asked.name, reason=str(error))

    def _entity_rules(self, namespace: str, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        return self.unit.namespace(namespace).access_rules(segments)

    # -- servers --------------------------------------------------------------------------------------------------

    async def _open_listeners(self, authorizer: Authorizer) -> None:
        settings = self.settings
        tls = self.certificates = self._certificates()
        from duobus.gateway.relay.hub import RelayHub
        from duobus.gateway.relay.server import RelayServer
        from duobus.gateway.rest.api import HttpApi
        from duobus.gateway.rest.operations.registry import Operations
        from duobus.gateway.rest.server import RestServer
        from duobus.gateway.websocket import WebSocketServer

        self._history = History(self.unit, self.amqp, self._clock)
        self._events.watch(self.unit, self.amqp)
        started_ms = self._clock.now_ms()
        metrics = Metrics(lambda: self._samples(started_ms))
        websocket = WebSocketServer(self.amqp, self._own_hosts(), Log("websocket"))
        relay_hub = RelayHub(self.unit, authorizer, self._clock, self._entropy, Log("relay"), self.metering)
        api = HttpApi(
            self.unit,
            authorizer,
            clock=self._clock,
            entropy=self._entropy,
            log=Log("http"),
            meter=self.metering.add,
            errors=self.amqp.errors,
            options=settings.http,
            started_ms=started_ms,
            drills=self.drills,
            backups=self._make_backups(),
            audit=self.audit,
            rules=ServerRules(
                self.unit,
                authorizer.namespace_of,
                given=self._given_rules(),
                entities=self._rules_of_entities,
                profile=settings.http.tier.profile,
                entropy=self._entropy,
                clock=self._clock,
                audit=self.audit,
                changed=self._rules_changed,
            ),
            overview=ServerOverview(
                self.unit,
                self.amqp,
                self._clock,
                started_ms,
                self._time,
                self.audit,
                self._servers_of_cluster,
                lambda: None if self.certificates is None else self.certificates.describe(),
            ),
            operations=Operations(
                inspection=Inspection(self.unit, self.amqp),
                trials=RuleTrials(self.unit),
                audit=AuditReader(self.audit, self._clock),
                history=self._history,
                events=self._events,
                metering=MeteringReader(None if settings.ephemeral else settings.data, self._clock),
                relays=ServerRelays(self.unit, relay_hub, self.audit, self._clock.now_ms),
            ),
            **self._sends(),
        )
        self.amqp.audit = self.audit
        self.relays = RelayServer(relay_hub)
        self.rest = RestServer(
            self.unit,
            metrics,
            lambda: self.is_ready,
            websocket=websocket,
            api=api,
            tokens=self._endpoint(),
            is_draining=lambda: self.is_draining,
            probes=self._probes,
            may_read_metrics=self._may_read_metrics,
            relays=self.relays,
        )
        http = await self.rest.open()
        # Every port serves everything; the names say what clients look for there.
        await self._listen("amqp", http, settings.port, tls)
        if tls is not None:
            await self._listen("tls", http, settings.tls_port, tls)
        await self._listen("http", http, settings.http_port, tls)
        if settings.https_port is not None and tls is not None:
            await self._listen("https", http, settings.https_port, tls)

    def _sends(self) -> dict[str, type[Sends]]:
        """What takes in sends over HTTP, where it is not the usual one."""
        if self.spans is None:
            return {}
        from duobus.gateway.rest.runtime.traced_sends import traced_sends

        return {"sends": traced_sends(self.spans)}

    def _make_backups(self) -> Backups | None:
        if self.settings.data is None or self.settings.ephemeral:
            return None
        from duobus.server.backups import Backups
        from duobus.storage.catalog.sqlite import SqliteCatalog

        assert isinstance(self._catalog, SqliteCatalog)
        folder, checkpoints = self.settings.backup_to, self._checkpoints
        self.backups = Backups(self.unit.brokers, self.settings.data, folder, self._catalog, checkpoints, self._clock)
        self.backups.has_postgres = bool(self.settings.places)
        return self.backups

    def _endpoint(self) -> TokenEndpoint | None:
        return self.tokens.endpoint if self.tokens is not None else None

    def _own_hosts(self) -> set[str]:
        """Names that are this server's own, for the origins of web pages."""
        hosts = {"localhost", socket.gethostname(), self.settings.host, *self.settings.websocket_origins}
        for config in self.settings.namespaces:
            hosts.update(config.hosts)
        return hosts

    async def _listen(self, name: str, http: ProtocolFactory, port: int, tls: TlsSource | None) -> None:
        listener = Listener(name, self.amqp, tls, Log("listener"), http=http)
        try:
            await listener.open(self.settings.host, port)
        except OSError as error:
            raise ConfigurationError(
                f"Port {port} on {self.settings.host} cannot be opened for {name}: {error.strerror or error}. "
                f"Stop whoever uses it, or give another port (0 picks one)."
            ) from error
        self.listeners[name] = listener

    def _certificates(self) -> Certificates | None:
        if not self.settings.offers_tls:
            return None
        from duobus.gateway.certificates import Certificates
        from duobus.gateway.tls import SelfSigned, limit_tls_buffers

        limit_tls_buffers()
        if self.settings.tls_cert is not None:
            assert self.settings.tls_key is not None
            return Certificates(self.settings.tls_cert, self.settings.tls_key, self._clock, Log("tls"))
        folder, names = self.settings.data, (socket.gethostname(), *self.settings.tls_names)
        # Settings without one are refused before a server is made of them.
        assert folder is not None
        files = SelfSigned(folder / "tls", self._clock, self._entropy).ensure(names)
        self.authority = files.authority
        return Certificates(files.certificate, files.key, self._clock, Log("tls"))

    def reload_certificates(self) -> None:
        """Read the certificates again for new connections, if there are any, and the token of the metrics."""
        if self.certificates is not None:
            self.certificates.reload()
        if self._metrics_token is not None:
            try:
                self._metrics_token.reload()
            except ConfigurationError as error:
                self.log.error("token of the metrics not read", reason=str(error))

    def _may_read_metrics(self, authorization: str) -> bool:
        return self._metrics_token is None or self._metrics_token.accepts(authorization)

    def port(self, name: str) -> int | None:
        """The port of a server, or None when it is not offered."""
        listener = self.listeners.get(name)
        return listener.port if listener is not None else None

    # -- stop ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop accepting, detach and close every peer, finish the commits, close the stores (I63)."""
        self.is_ready = False
        self._stop_watching()
        for listener in self.listeners.values():
            await listener.close()
        if hasattr(self, "amqp"):
            await self.amqp.close(PEERS_CLOSE_S)
        if hasattr(self, "rest"):
            await self.rest.close()
        if self.spans is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.spans.close)
        if self.tokens is not None:
            await self.tokens.stop()
        for drill in self.drills.values():
            # A store that stalls in a drill would keep the process from ending.
            drill.set_mode(HEALTHY)
        if self.backups is not None:
            await self.backups.stop()
        await self.unit.stop()
        await self._close_files()

    def _stop_watching(self) -> None:
        self._skew.stop()
        self._events.close()
        if self._history is not None:
            self._history.stop()
        if self._clock_record is not None:
            self._clock_record.stop()
        self._probes.stop()
        if self._record is not None:
            self._record.remove()

    async def _close_files(self) -> None:
        loop = asyncio.get_running_loop()
        for checkpoint in self._checkpoints:
            await loop.run_in_executor(None, checkpoint.stop)
        for writer in self._writers:
            await loop.run_in_executor(None, writer.stop)
        self._catalog.close()
        self.audit.close()
        if self._lock is not None:
            self._lock.release()

    def _keys_skewed(self, namespace: str, path: str, fragment: int, skew: float) -> None:
        self.log.warning(
            "keys skewed",
            namespace=namespace,
            entity=path,
            fragment=fragment,
            times_the_mean=round(skew, 1),
            reason="its messages have few keys; use more, or none where order does not matter",
        )

    def _store_event(self, store_id: int, what: str, why: str) -> None:
        write = self.log.info if what in ("opened", "deleted") else self.log.error
        # Number 0 is no store: it is an entity that this is about.
        write(f"store {what}" if store_id else f"entity {what}", store=store_id, reason=why)
        if store_id:
            self._events.tell("store", store=store_id, what=what, reason=why)

    def _idle_ends(self, queue: Queue) -> Callable[[str | None], None]:
        """Nobody asked for it: a queue was idle for as long as its creator allowed, and is about to go."""
        who, now_ms = "AutoDeleteOnIdle", self._clock.now_ms
        change = Change(DELETE, queue.kind, queue.namespace, queue.path, who=who, origin="", interface="server")
        self.audit.begin(change, now_ms())
        return lambda outcome: self.audit.end(change, now_ms(), outcome or DONE)
