"""PairedNamespace: a primary namespace with a secondary behind it (requirements PN1 to PN16)."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from duobus.concurrency import aio as tasks
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.pinger import Pinger
from duobus.ha.aio.state_reports import StateReports
from duobus.ha.aio.syphon import RETRY_DEFAULT, Syphon
from duobus.ha.errors import PairFaulted, PairingRefused
from duobus.ha.events import FailoverEngaged, Faulted, PrimaryHealthy, Reporter, SendFailed
from duobus.ha.failover import Change, Failover, Place, State
from duobus.ha.metrics import metrics_of
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.outage import Verdict
from duobus.ha.outage_scope import KeyGroup, KeyGroups, keys_of, store_away
from duobus.ha.reports.message import EntityState, Report, report_of, state_queue
from duobus.ha.sdk import prompt_client

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

#: Time that the other client of a pair has to be closed, after one was (PN16).
PARTNER_S: Final = 5.0
#: Time that what runs for a pair has to end before a client is closed, or the pair is faulted.
END_S: Final = 10.0
FAULT_END_S: Final = 0.9

#: Clients that are part of a pair, so that none is paired twice.
_paired: WeakKeyDictionary[ServiceBusClient, PairedNamespace] = WeakKeyDictionary()
_pairing: Final = tasks.lock()


async def pair_namespace(primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> PairedNamespace:
    """Pair two namespaces, and return the pair, which makes senders.

    Makes the backlog queues that are missing in the secondary, and starts the syphon if the options say so. No request
    goes to the primary, which may be away.

    Args:
        primary: Client of the namespace to which applications send. Give it few retries (``retry_total=0`` or 1): a
            pair notices a failure only after the SDK's own retries.
        options: Options of the pair.

    Raises:
        PairingRefused: There are no options, both clients are of the same namespace, or a client is part of a pair.
        BacklogUnavailable: The secondary has no backlog queue, and none could be made.
        ClientAuthenticationError, ServiceBusAuthenticationError, ServiceBusAuthorizationError: The secondary's
            credentials have no right to read backlog queues, or to make them.
    """
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise PairingRefused(f"options have to be SendAvailabilityPairedNamespaceOptions, not {options!r}.")
    secondary = cast("ServiceBusClient", options.secondary)
    for client, role in ((primary, "primary"), (secondary, "secondary")):
        if inspect.iscoroutinefunction(client.close) is not tasks.IS_ASYNC:
            raise PairingRefused(f"The {role} client has to be a ServiceBusClient of {tasks.SDK}.")
    if _host(primary) == _host(secondary):
        raise PairingRefused(f"Primary and secondary are both {_host(primary)}; a pair needs two namespaces.")
    pair = PairedNamespace(primary, options)
    with _pairing:
        for client, role in ((primary, "primary"), (secondary, "secondary")):
            if client in _paired:
                raise PairingRefused(f"The {role} client is part of a pair; make another client.")
        # Taken before the first await, so that two calls side by side cannot both have it.
        _paired[primary] = _paired[secondary] = pair
    try:
        await pair._open()
    except BaseException:
        with _pairing:
            _paired.pop(primary, None)
            _paired.pop(secondary, None)
        raise
    return pair


class PairedNamespace:
    """A pair of namespaces; makes senders, and stands in for the client of the primary.

    Attributes:
        options: The options of the pair.
        reporter: Counts events.
        rotation: The backlog queues that senders may use.
    """

    def __init__(self, primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> None:
        self.options = options
        self._primary = primary
        self._secondary = cast("ServiceBusClient", options.secondary)
        self._metrics = metrics_of(
            _host(primary), states=lambda: self._failover.troubled(), resting=lambda: self.rotation.resting
        )
        self.reporter = Reporter(options.on_event, self._metrics)
        self.rotation = backlog.Rotation((), options.clock, options.entropy)
        self._failover = Failover(_ms(options.failover_interval), _ms(options.ping_primary_interval))
        #: What of entities is away, while the rest of them is there.
        self._groups = KeyGroups()
        self._pinger = Pinger(
            primary,
            _ms(options.ping_primary_interval),
            self.reporter,
            options.clock,
            options.entropy,
            is_wanted=self._failover.is_diverted,
            on_accepted=self._on_ping_accepted,
            key_of=self._key_of,
        )
        #: For the engine, and for what is written down of tasks and of clients; never held while something is told.
        self._lock = tasks.lock()
        #: How often each entity came back from a failover: links that are older than the last time are stale.
        self._returns: Counter[str] = Counter()
        self._wake = tasks.Signal()
        self._keeper: tasks.Task | None = None
        self._tasks: set[tasks.Task] = set()
        self._watcher: tasks.Task | None = None
        self._fault: str | None = None
        self._closed: set[ServiceBusClient] = set()
        self._closers: dict[ServiceBusClient, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._syphon: Syphon | None = None
        self._reports: StateReports | None = None

    async def _open(self) -> None:
        options = self.options
        name = options.primary_name or backlog.name_of(self._primary)
        wanted = backlog.paths(name, options.backlog_queue_count)
        administration = cast("ServiceBusAdministrationClient | None", options.administration)
        for client in (self._primary, self._secondary):
            prompt_client(client)
        found = await backlog.provide(self._secondary, administration, wanted, self.reporter)
        self.rotation = backlog.Rotation(found, options.clock, options.entropy, self.reporter)
        for client in (self._primary, self._secondary):
            self._closers[client] = client.close
            client.close = self._watch(client)  # type: ignore[method-assign]
        self._keeper = tasks.spawn(self._keep, name="duobus pair")
        if options.depth_interval is not None and administration is not None:
            self._spawn(backlog.watch_depths, administration, found, options.depth_interval, self.reporter)
        if options.report_state:
            describe = partial(self._report, options.entropy.uuid_text())
            self._reports = StateReports(
                self._secondary, state_queue(name), describe, self.mark_path_healthy, administration
            )
            self._spawn(self._reports.run)
        if options.enable_syphon:
            self._syphon = Syphon(
                self._primary,
                self._secondary,
                found,
                classifier=options.classify,
                ttl_mode=options.ttl_mode,
                poll=options.poll,
                # By then a ping has told whether the primary is back.
                retry=min(options.ping_primary_interval, RETRY_DEFAULT),
                reporter=self.reporter,
                clock=options.clock,
            )
            self._spawn(self._syphon.run)

    @property
    def fully_qualified_namespace(self) -> str:
        """Host name of the primary."""
        return _host(self._primary)

    @property
    def backlog_queue_count(self) -> int:
        """Number of backlog queues that were really found or made."""
        return len(self.rotation.queues)

    @property
    def counts(self) -> dict[str, int]:
        """Number of events by their names; for events about messages, the number of messages."""
        return dict(self.reporter.counts)

    def state(self, path: str) -> State:
        """The state of one entity of the primary, now."""
        self._advance()
        return self._failover.state(path)

    def fragment_states(self, path: str) -> dict[str, State]:
        """The state of what of an entity is away by itself, now: ``13/16`` are the keys of fragment 13 of 16."""
        self._advance()
        with self._lock:
            groups = self._groups.of_entity(path)
        return {group.fragment: self._failover.state(group) for group in groups}

    def mark_path_healthy(self, path: str) -> None:
        """End the failover of one entity by hand: sends go to the primary at once."""
        with self._lock:
            places: list[Place] = [path, *self._groups.of_entity(path)]
            changes = [self._failover.mark_healthy(place, self._now_ms()) for place in places]
            self._forget(places)
        for change in changes:
            self._note(change)

    def _report(self, client_id: str) -> Report:
        states = [
            EntityState(*((place, "") if isinstance(place, str) else place), state.value)
            for place, state in self._failover.troubled().items()
        ]
        return report_of(client_id, self.options.clock.now_ms(), states, self.rotation.resting)

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        """Return a sender for a queue of the primary. Arguments are the SDK's."""
        self.check()
        return self._sender(queue_name, partial(self._primary.get_queue_sender, queue_name, **kwargs))

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        """Return a sender for a topic of the primary. Arguments are the SDK's."""
        self.check()
        return self._sender(topic_name, partial(self._primary.get_topic_sender, topic_name, **kwargs))

    def _sender(self, path: str, make: Callable[..., ServiceBusSender]) -> PairedSender:
        returns = self._returns[path]
        first = make()
        # A later link is that of the same sender, to whoever looks at the service.
        name = getattr(first, "client_identifier", None)
        again = partial(make, client_identifier=name) if name else make
        return PairedSender(self, path, first, again, returns)

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """Return the SDK's receiver for a queue of the primary; it closes at once."""
        return self._primary.get_queue_receiver(queue_name, **kwargs)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """Return the SDK's receiver for a subscription of the primary; it closes at once."""
        return self._primary.get_subscription_receiver(topic_name, subscription_name, **kwargs)

    async def __aenter__(self) -> PairedNamespace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End pings and syphon, and close both clients. Messages in backlog queues stay there."""
        # First, so that nobody waits for a partner that is about to be closed.
        await self._stop(END_S)
        for client in (self._primary, self._secondary):
            await client.close()

    def check(self) -> None:
        """Raise if the pair is broken.

        Raises:
            PairFaulted: The pair is broken.
        """
        if self._fault is not None:
            raise PairFaulted(self._fault)

    def is_diverted(self, path: str, message: Any = None) -> bool:
        """Whether a message goes to a backlog queue now; without a message, whether all messages of the entity do."""
        if self._is_calm(path):
            return False  # The healthy way reads no clock, and looks at no message.
        self._advance()
        return any(map(self._failover.is_diverted, self._places(path, message)))

    def on_send_succeeded(self, path: str, message: Any = None) -> None:
        """The primary took a message."""
        if self._is_calm(path):
            return
        places = self._places(path, message)
        with self._lock:
            changes = [self._failover.on_send_succeeded(place, self._now_ms()) for place in places]
            self._forget(places)
        for change in changes:
            self._note(change)

    def on_send_failed(self, path: str, error: Exception, message: Any = None) -> bool:
        """Note that the primary did not take a message; return whether the message has to be diverted."""
        verdict = self.options.classify(error)
        if verdict is Verdict.REFUSED:
            return False
        self._advance()
        away = store_away(error)
        keys = set() if away is None or message is None else keys_of(message)
        with self._lock:
            place: Place | None = path if away is None else self._groups.note(path, away, keys)
            if place is None:
                return False
            failover = self._failover
            failed = failover.on_send_failed if verdict is Verdict.OUTAGE else failover.on_busy
            change = failed(place, self._now_ms())
        if change is not None and verdict is Verdict.OUTAGE:
            self.reporter.tell(SendFailed(path, str(error), _fragment(place)))
        self._note(change)
        return failover.is_diverted(place) or failover.is_diverted(path)

    def _is_calm(self, path: str) -> bool:
        return self._failover.is_calm(path) and not self._groups.has(path)

    def _places(self, path: str, message: Any) -> list[Place]:
        """The entity, and the groups of its keys that a message has some of."""
        if message is None or not self._groups.has(path):
            return [path]
        keys = keys_of(message)
        with self._lock:
            return [path, *self._groups.of_keys(path, keys)]

    def _forget(self, places: list[Place]) -> None:
        """Forget the groups among these that are healthy; under the lock."""
        for place in places:
            if isinstance(place, KeyGroup) and self._failover.is_calm(place):
                self._groups.forget(place)

    def _key_of(self, group: KeyGroup, fresh: str) -> str | None:
        with self._lock:
            return self._groups.any_key(group, fresh)

    def returns(self, path: str) -> int:
        """How often an entity came back from a failover; a link that is older than the last time is stale."""
        return self._returns[path]

    def leave(self, sender: ServiceBusSender) -> None:
        """Close a link that is not used any more, without anybody waiting for it: a dead one may take seconds."""
        self._spawn(_leave, sender)

    def _now_ms(self) -> int:
        return self.options.clock.monotonic_ms()

    def _advance(self) -> None:
        with self._lock:
            changes = self._failover.advance(self._now_ms())
        for change in changes:
            self._note(change)

    def _note(self, change: Change | None) -> None:
        """Report a change of state, and let the keeper look when it is needed next."""
        if change is None:
            return
        place, after_ms = change.entity, change.at_ms - change.since_ms
        path, fragment = (place, "") if isinstance(place, str) else place
        if change.state is State.FAILED_OVER:
            self.reporter.tell(FailoverEngaged(path, after_ms, fragment))
        elif change.state is State.HEALTHY:
            was_diverted = change.was is State.FAILED_OVER
            if was_diverted and isinstance(place, str):
                with self._lock:
                    self._returns[path] += 1
            self.reporter.tell(PrimaryHealthy(path, change.reason, after_ms, was_diverted, fragment))
        self._wake.set()
        if self._reports is not None:
            self._reports.tell()

    async def _keep(self) -> None:
        """Engage failovers when they are due, and ping what has failed over."""
        while True:
            self._wake.clear()
            self._advance()
            ahead_ms = self._pinger.ahead_ms
            with self._lock:
                due_ms = self._now_ms() + ahead_ms
                places = self._failover.pings_due(due_ms)
            for place in places:
                self._spawn(self._pinger.ping, place, due_ms)
            with self._lock:
                next_ms = self._failover.next_ms(ahead_ms)
            await self._wake.wait(None if next_ms is None else max(0, next_ms - self._now_ms()) / 1000)

    def _on_ping_accepted(self, place: Place) -> None:
        with self._lock:
            change = self._failover.on_ping_succeeded(place, self._now_ms())
            self._forget([place])
        self._note(change)

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> tasks.Task:
        with self._lock:
            self._tasks = {task for task in self._tasks if not task.is_over}
            task = tasks.spawn(function, *args, name="duobus pair")
            self._tasks.add(task)
            return task

    def _watch(self, client: ServiceBusClient) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a ``close`` that tells the pair; the SDK has no other sign of it."""

        async def close() -> None:
            await self._on_closed(client)

        return close

    async def _on_closed(self, client: ServiceBusClient) -> None:
        watch = None
        with self._lock:
            if client in self._closed:
                return
            self._closed.add(client)
            if len(self._closed) == 1 and self._keeper is not None:
                watch = self._watcher = self._spawn(self._fault_partner, client)
        # Before the client: as it closes the SDK goes through its links, and a ping or the syphon would add one.
        await self._stop(END_S, but=watch)
        await self._closers[client]()

    async def _fault_partner(self, closed: ServiceBusClient) -> None:
        """Give the partner its time, then fault it."""
        await tasks.sleep(PARTNER_S)
        partner = self._secondary if closed is self._primary else self._primary
        with self._lock:
            if partner in self._closed:
                return
            self._closed.add(partner)
        self._fault = (
            f"The client of {_host(closed)} was closed and that of {_host(partner)} was not, within {PARTNER_S:g} "
            "seconds; the pair is over. Make new clients and pair them."
        )
        self.reporter.tell(Faulted(_host(partner), _host(closed)))
        await self._stop(FAULT_END_S, but=self._watcher)
        await self._closers[partner]()

    async def _stop(self, seconds: float, but: tasks.Task | None = None) -> None:
        """End everything that runs for the pair."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
            those = [task for task in (*self._tasks, keeper) if task is not None and task is not but]
        if self._metrics is not None:
            self._metrics.close()
        for task in those:
            task.cancel()
        await tasks.all_ended(those, seconds)


async def _leave(sender: ServiceBusSender) -> None:
    # It is given up, whatever it says.
    with contextlib.suppress(Exception):
        await sender.close()


def _fragment(place: Place) -> str:
    return place.fragment if isinstance(place, KeyGroup) else ""


def _host(client: ServiceBusClient) -> str:
    return str(client.fully_qualified_namespace)


def _ms(interval: timedelta) -> int:
    return round(interval.total_seconds() * 1000)
