"""The only place where stores, catalog, namespaces and doors are put together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker import MessageBroker, Namespace, Queue, ScaleUnit, Throttle, create_queues, without_subscriptions
from duobus.clock import BrokerTime, Clock, Entropy
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed, StoreTooNew
from duobus.gateway.amqp.budget import ByteBudget
from duobus.gateway.amqp.door import AmqpDoor
from duobus.gateway.listener import Listener, TlsSource
from duobus.gateway.switch import ProtocolFactory
from duobus.model.description import ALL_RIGHTS, EMULATOR, AccessRule, QueueDescription, TopicDescription
from duobus.server.config import EMULATOR_KEY, Settings
from duobus.server.config_file import NamespaceConfig
from duobus.server.observing import samples
from duobus.server.skew import SkewWatch
from duobus.server.store_plan import PlannedStore, plan_stores, postgres_store
from duobus.stores.catalog import (
    DEFAULT_RULE_NAME,
    Catalog,
    CatalogContents,
    MemoryCatalog,
    NamespaceRow,
    new_namespace,
)
from duobus.stores.checkpoint import CheckpointThread
from duobus.stores.crew import Crew
from duobus.stores.drill import HEALTHY, DrillStore
from duobus.stores.interface import MessagingStore
from duobus.stores.writer import StoreWriter, Writer
from duobus.telemetry.audit_log import DELETE, DONE, AuditLog, AuditTrail, Change
from duobus.telemetry.logs import Log
from duobus.telemetry.metering_log import MeteringCounts
from duobus.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from duobus.gateway.certificates import Certificates
    from duobus.gateway.rest.token_endpoint import TokenEndpoint
    from duobus.server.backups import Backups
    from duobus.server.tokens import Tokens
    from duobus.stores.postgres import PostgresStore
    from duobus.stores.sqlite import SqliteStore

#: Limits of a clean stop (I63): peers get this long to close their side.
PEERS_CLOSE_S = 5.0


class Server:
    """One server: everything that was put together, in the order in which it is started and stopped.

    Attributes:
        unit: The scale unit.
        listeners: Name of a door to its listener, for those that are offered.
        tokens: What it knows of bearer tokens, or None when none are configured.
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
        self.tokens: Tokens | None = None
        self.backups: Backups | None = None
        # Beside the catalog, whose changes it tells of.
        self.audit = AuditTrail() if settings.data is None or settings.ephemeral else AuditLog(settings.data / "audit")
        self.metering = MeteringCounts(str(entropy.uuid()))
        self._clock = clock
        self._entropy = entropy
        self._time = BrokerTime(broker_clock or clock)
        self._catalog: Catalog = self._make_catalog()
        self._writers: list[Writer] = []
        #: Disk to the threads of the stores on it.
        self._crews: dict[int, Crew] = {}
        self._checkpoints: list[CheckpointThread] = []
        self.drills: dict[int, DrillStore] = {}
        self.unit = self._make_unit()
        self.unit.partitions = settings.http.tier.partitions
        self.unit.idle_watch.journal = self._idle_ends
        self._skew = SkewWatch(self.unit, self._keys_skewed)

    def _make_catalog(self) -> Catalog:
        if self.settings.ephemeral:
            return MemoryCatalog()
        from duobus.stores.sqlite_catalog import SqliteCatalog

        assert self.settings.data is not None
        self.settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SqliteCatalog(self.settings.data / "catalog.db")

    def _make_unit(self) -> ScaleUnit:
        return ScaleUnit(self._catalog, self._store_event, self.settings.quotas, self._entropy.uuid)

    # -- start --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything; on return clients can connect.

        Raises:
            ConfigurationError: Something that the operator has to change; the text says what.
        """
        try:
            contents = self._catalog.read()
        except (StoreFailed, StoreTooNew) as error:
            raise ConfigurationError(f"The catalog cannot be opened: {error}") from error
        namespaces = await self._start_stores(contents)
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
            from duobus.server.tokens import Tokens

            self.tokens = Tokens(self.settings.tokens, self.settings.data, self._clock, self._entropy)
            await self.tokens.start()
        authorizer = Authorizer(rules, self.tokens.verifier if self.tokens else None)
        self.default = namespaces[0]
        self.door = AmqpDoor(
            self.unit,
            authorizer,
            clock=self._clock,
            entropy=self._entropy,
            log=Log("amqp"),
            metering=self.metering,
            budget=ByteBudget(self.settings.incoming_bytes_max),
        )
        await self._open_listeners(authorizer)
        self._skew.begin()
        self.is_ready = True

    async def _start_stores(self, contents: CatalogContents) -> list[NamespaceRow]:
        """Open the stores, and create what the configuration asks for; return the namespaces of that."""
        namespaces = self._namespaces(contents)
        await self._add_stores(contents)
        await self.unit.start(self._catalog.read())
        for checkpoint in self._checkpoints:
            checkpoint.start()
        for namespace in self.settings.namespaces:
            await self._create_entities(namespace)
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
            elif rules[DEFAULT_RULE_NAME].primary_key == EMULATOR_KEY:
                # The folder was used with --emulator before: its key is public, so it must not live on.
                rules[DEFAULT_RULE_NAME] = new_namespace(config.name, self._entropy).rules[0]
                self.new_key = True
            rules.update({rule.name: rule for rule in config.rules})
            wanted = NamespaceRow(row.name, tuple(rules.values()))
            if wanted != known.get(config.name):
                self._catalog.put_namespace(wanted)
            rows.append(wanted)
        return rows

    async def _add_stores(self, contents: CatalogContents) -> None:
        for row in contents.lost:
            if self.settings.data is not None and (self.settings.data / row.path).exists():
                self.log.warning("store given up", store=row.store_id, file=row.path, reason="its file is left alone")
        for planned in plan_stores(contents, self.settings.stores, self.settings.places, self._entropy):
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
                patience_s=self.settings.store_patience_s,
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

    def _disk_of(self, planned: PlannedStore) -> int:
        if self.settings.ephemeral or self.settings.data is None:
            return 0
        return (self.settings.data / planned.path).parent.stat().st_dev

    async def _create_store(self, broker: MessageBroker) -> None:
        try:
            await broker.call(broker.store.open)
            await broker.call(broker.store.close)
        except (StoreFailed, StoreTooNew) as error:
            raise ConfigurationError(f"Messaging store {broker.store_id} cannot be created: {error}") from error

    def _make_store(self, planned: PlannedStore) -> tuple[MessagingStore, Writer]:
        loop = asyncio.get_running_loop()
        if self.settings.ephemeral:
            from duobus.stores.memory import MemoryStore

            return MemoryStore(planned.store_id), self._make_writer(planned)
        store: SqliteStore | PostgresStore
        if planned.place is not None:
            writer: Writer = StoreWriter(loop, f"store-{planned.store_id}")
            store = postgres_store(planned, planned.place)
        else:
            from duobus.stores.sqlite import SqliteStore

            assert self.settings.data is not None
            path = self.settings.data / planned.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            store = SqliteStore(str(path), planned.store_id, must_exist=not planned.is_new)
            writer = self._make_writer(planned)
        self._checkpoints.append(CheckpointThread(store, writer, loop))
        return store, writer

    def _make_writer(self, planned: PlannedStore) -> Writer:
        """What calls a store that shares its disk, and this interpreter, with those of the same crew."""
        disk = self._disk_of(planned)
        crew = self._crews.get(disk)
        if crew is None:
            crew = self._crews[disk] = Crew(asyncio.get_running_loop())
        return crew.writer()

    async def _create_entities(self, config: NamespaceConfig) -> None:
        """What the file asks for and is missing is created; what differs is named and left alone (design 6)."""
        home = self.unit.namespace(config.name)
        missing = []
        for description in config.queues:
            queue = home.queues.get(description.name.lower())
            if queue is None:
                missing.append(description)
            else:
                self.unit.report_differences(queue, queue.description, description)
        await self._create_queues(home, missing)
        for topic in config.topics:
            await self._create_topic(home, topic)

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
                self.unit.report_differences(topic, topic.about, without_subscriptions(asked))
            for subscription in asked.subscriptions:
                found = topic.subscriptions.get(subscription.name.lower())
                if found is None:
                    found = await topics.create_subscription(home.name, asked.name, subscription, profile=EMULATOR)
                else:
                    self.unit.report_differences(found, found.about, subscription)
        except ServiceBusError as error:
            self.log.error("topic not created", topic=asked.name, reason=str(error))

    def _entity_rules(self, namespace: str, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        return self.unit.namespace(namespace).access_rules(segments)

    # -- doors --------------------------------------------------------------------------------------------------

    async def _open_listeners(self, authorizer: Authorizer) -> None:
        settings = self.settings
        tls = self.certificates = self._certificates()
        from duobus.gateway.rest.api import HttpApi
        from duobus.gateway.rest.app import RestDoor
        from duobus.gateway.websocket import WebSocketDoor

        started_ms = self._clock.now_ms()
        metrics = Metrics(lambda: samples(self.unit, self.door, started_ms, self._skew.skews))
        websocket = WebSocketDoor(self.door, self._own_hosts(), Log("websocket"))
        api = HttpApi(
            self.unit,
            authorizer,
            clock=self._clock,
            entropy=self._entropy,
            log=Log("http"),
            meter=self.door.meter,
            errors=self.door.errors,
            options=settings.http,
            started_ms=started_ms,
            drills=dict(self.drills),
            backups=self._make_backups(),
            audit=self.audit,
        )
        self.door.audit = self.audit
        self.rest = RestDoor(
            self.unit, metrics, lambda: self.is_ready, websocket=websocket, api=api, tokens=self._endpoint()
        )
        http = await self.rest.open()
        # Every port serves everything (design 5); the names say what clients look for there.
        await self._listen("amqp", http, settings.port, tls)
        if tls is not None:
            await self._listen("tls", http, settings.tls_port, tls)
        await self._listen("http", http, settings.http_port, tls)
        if settings.https_port is not None and tls is not None:
            await self._listen("https", http, settings.https_port, tls)

    def _make_backups(self) -> Backups | None:
        if self.settings.data is None or self.settings.ephemeral:
            return None
        from duobus.server.backups import Backups
        from duobus.stores.sqlite_catalog import SqliteCatalog

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
        listener = Listener(name, self.door, tls, Log("listener"), http=http)
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
        folder = self.settings.data
        if folder is None:
            raise ConfigurationError("--tls-self-signed keeps its authority in the data folder. Give --data.")
        files = SelfSigned(folder / "tls", self._clock, self._entropy).ensure([socket.gethostname()])
        self.authority = files.authority
        return Certificates(files.certificate, files.key, self._clock, Log("tls"))

    def reload_certificates(self) -> None:
        """Read the certificates again for new connections, if there are any."""
        if self.certificates is not None:
            self.certificates.reload()

    def port(self, name: str) -> int | None:
        """The port of a door, or None when it is not offered."""
        listener = self.listeners.get(name)
        return listener.port if listener is not None else None

    # -- stop ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop accepting, detach and close every peer, finish the commits, close the stores (I63)."""
        self.is_ready = False
        self._skew.stop()
        for listener in self.listeners.values():
            await listener.close()
        if hasattr(self, "door"):
            await self.door.close(PEERS_CLOSE_S)
        if hasattr(self, "rest"):
            await self.rest.close()
        if self.tokens is not None:
            await self.tokens.stop()
        for drill in self.drills.values():
            # A store that stalls in a drill would keep the process from ending.
            drill.set_mode(HEALTHY)
        if self.backups is not None:
            await self.backups.stop()
        await self.unit.stop()
        loop = asyncio.get_running_loop()
        for checkpoint in self._checkpoints:
            await loop.run_in_executor(None, checkpoint.stop)
        for writer in self._writers:
            await loop.run_in_executor(None, writer.stop)
        self._catalog.close()
        self.audit.close()

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

    def _idle_ends(self, queue: Queue) -> Callable[[str | None], None]:
        """Nobody asked for it: a queue was idle for as long as its creator allowed, and is about to go."""
        who, now_ms = "AutoDeleteOnIdle", self._clock.now_ms
        change = Change(DELETE, queue.kind, queue.namespace, queue.path, who=who, origin="", door="server")
        self.audit.begin(change, now_ms())
        return lambda outcome: self.audit.end(change, now_ms(), outcome or DONE)
