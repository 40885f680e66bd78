"""PairedNamespace: a primary namespace with a secondary behind it (requirements PN1 to PN16)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from duobus.ha.aio import backlog
from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.syphon import RETRY_DEFAULT, Syphon
from duobus.ha.classify import Verdict
from duobus.ha.errors import PairFaulted, PairingRefused
from duobus.ha.events import FailoverEngaged, Faulted, PingSent, PrimaryHealthy, Reporter, SendFailed
from duobus.ha.failover import Change, Failover, State
from duobus.ha.metrics import metrics_of
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.transfer import ping

if TYPE_CHECKING:
    from datetime import timedelta
    from types import TracebackType

    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

#: Time that the other client of a pair has to be closed, after one was (PN16).
PARTNER_S: Final = 5.0
#: A ping is given up after this time, or after the ping interval if that is longer.
PING_LIMIT_S: Final = 10.0

_log = logging.getLogger("duobus.ha")
#: Clients that are part of a pair, so that none is paired twice.
_paired: WeakKeyDictionary[ServiceBusClient, PairedNamespace] = WeakKeyDictionary()


async def pair_namespace(primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> PairedNamespace:
    """Pair two namespaces, and return what to make senders of.

    Makes the backlog queues that are missing in the secondary, and starts the syphon if the options say so. The primary
    is not asked for anything: it may be away.

    Args:
        primary: Client of the namespace that applications send to. Give it few retries (``retry_total=0`` or 1): the
            SDK's own come before a failure is noticed.
        options: What the pair is told.

    Raises:
        PairingRefused: No options; the same namespace twice; a client that is part of a pair.
        BacklogUnavailable: The secondary has no backlog queue, and none could be made.
        ClientAuthenticationError, ServiceBusAuthenticationError, ServiceBusAuthorizationError: The secondary's
            credentials may not look at backlog queues, or make them.
    """
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        raise PairingRefused(f"options have to be SendAvailabilityPairedNamespaceOptions, not {options!r}.")
    secondary = options.secondary
    if _host(primary) == _host(secondary):
        raise PairingRefused(f"Primary and secondary are both {_host(primary)}; a pair needs two namespaces.")
    for client, role in ((primary, "primary"), (secondary, "secondary")):
        if client in _paired:
            raise PairingRefused(f"The {role} client is part of a pair; make another client.")
    pair = PairedNamespace(primary, options)
    # Taken before the first await, so that two calls side by side cannot both have it.
    _paired[primary] = _paired[secondary] = pair
    try:
        await pair._open()
    except BaseException:
        _paired.pop(primary, None)
        _paired.pop(secondary, None)
        raise
    return pair


class PairedNamespace:
    """A pair of namespaces; makes senders, and stands in for the client of the primary.

    Attributes:
        options: As they were given.
        reporter: Counts of events.
        rotation: The backlog queues.
    """

    def __init__(self, primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> None:
        self.options = options
        self._primary = primary
        self._metrics = metrics_of(
            _host(primary), states=lambda: self._failover.troubled(), resting=lambda: self.rotation.resting
        )
        self.reporter = Reporter(options.on_event, self._metrics)
        self.rotation = backlog.Rotation((), options.clock, options.entropy)
        self._failover = Failover(_ms(options.failover_interval), _ms(options.ping_primary_interval))
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pinging: set[str] = set()
        self._fault: str | None = None
        self._closed: set[ServiceBusClient] = set()
        self._closers: dict[ServiceBusClient, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._syphon: Syphon | None = None

    async def _open(self) -> None:
        options = self.options
        name = options.primary_name or backlog.name_of(self._primary)
        wanted = backlog.paths(name, options.backlog_queue_count)
        found = await backlog.provide(options.secondary, options.administration, wanted, self.reporter)
        self.rotation = backlog.Rotation(found, options.clock, options.entropy, self.reporter)
        for client in (self._primary, options.secondary):
            self._closers[client] = client.close
            client.close = self._watch(client)  # type: ignore[method-assign]
        self._keeper = asyncio.create_task(self._keep(), name="duobus pair")
        if options.depth_interval is not None and options.administration is not None:
            self._spawn(backlog.watch_depths(options.administration, found, options.depth_interval, self.reporter))
        if options.enable_syphon:
            self._syphon = Syphon(
                self._primary,
                options.secondary,
                found,
                classifier=options.classify,
                ttl_mode=options.ttl_mode,
                poll=options.poll,
                # By then a ping has told whether the primary is back.
                retry=min(options.ping_primary_interval, RETRY_DEFAULT),
                reporter=self.reporter,
                clock=options.clock,
            )
            self._spawn(self._syphon.run())

    @property
    def fully_qualified_namespace(self) -> str:
        """Host name of the primary."""
        return _host(self._primary)

    @property
    def backlog_queue_count(self) -> int:
        """The backlog queues that were really found or made."""
        return len(self.rotation.queues)

    @property
    def counts(self) -> dict[str, int]:
        """How often each event happened, by its name; of events about messages, how many messages."""
        return dict(self.reporter.counts)

    def state(self, path: str) -> State:
        """The state of one entity of the primary, now."""
        self._advance()
        return self._failover.state(path)

    def mark_path_healthy(self, path: str) -> None:
        """End the failover of one entity by hand: sends go to the primary at once."""
        self._note(self._failover.mark_healthy(path, self._now_ms()))

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        """Return a sender for a queue of the primary. Arguments are the SDK's."""
        self.check()
        return PairedSender(self, queue_name, self._primary.get_queue_sender(queue_name, **kwargs))

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        """Return a sender for a topic of the primary. Arguments are the SDK's."""
        self.check()
        return PairedSender(self, topic_name, self._primary.get_topic_sender(topic_name, **kwargs))

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """Return the SDK's receiver for a queue of the primary."""
        return self._primary.get_queue_receiver(queue_name, **kwargs)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """Return the SDK's receiver for a subscription of the primary."""
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
        await self._stop()
        for client in (self._primary, self.options.secondary):
            await client.close()

    def check(self) -> None:
        """Raise if the pair is broken.

        Raises:
            PairFaulted: It is.
        """
        if self._fault is not None:
            raise PairFaulted(self._fault)

    def is_diverted(self, path: str) -> bool:
        """Tell whether sends to an entity go to backlog queues, now."""
        if self._failover.state(path) is State.HEALTHY:
            return False  # The healthy way reads no clock.
        self._advance()
        return self._failover.is_diverted(path)

    def on_send_succeeded(self, path: str) -> None:
        """The primary took a message."""
        if self._failover.state(path) is not State.HEALTHY:
            self._note(self._failover.on_send_succeeded(path, self._now_ms()))

    def on_send_failed(self, path: str, error: Exception) -> bool:
        """The primary did not take a message; tell whether it is to be diverted."""
        if self.options.classify(error) is not Verdict.OUTAGE:
            return False
        self._advance()
        change = self._failover.on_send_failed(path, self._now_ms())
        if change is not None:
            self.reporter.tell(SendFailed(path, str(error)))
        self._note(change)
        return self._failover.is_diverted(path)

    def _now_ms(self) -> int:
        return self.options.clock.monotonic_ms()

    def _advance(self) -> None:
        for change in self._failover.advance(self._now_ms()):
            self._note(change)

    def _note(self, change: Change | None) -> None:
        """Report a change of state, and let the keeper look when it is needed next."""
        if change is None:
            return
        after_ms = change.at_ms - change.since_ms
        if change.state is State.FAILED_OVER:
            self.reporter.tell(FailoverEngaged(change.entity, after_ms))
        elif change.state is State.HEALTHY:
            was_diverted = change.was is State.FAILED_OVER
            self.reporter.tell(PrimaryHealthy(change.entity, change.reason, after_ms, was_diverted))
        self._wake.set()

    async def _keep(self) -> None:
        """Engage failovers when they are due, and ping what has failed over."""
        while True:
            self._wake.clear()
            self._advance()
            for path in self._failover.pings_due(self._now_ms()):
                if path not in self._pinging:
                    self._pinging.add(path)
                    self._spawn(self._ping(path))
            due_ms = self._failover.next_ms()
            try:
                async with asyncio.timeout(None if due_ms is None else max(0, due_ms - self._now_ms()) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _ping(self, path: str) -> None:
        """Send one ping by a link of its own; PN9 and PN13."""
        limit_s = max(PING_LIMIT_S, self.options.ping_primary_interval.total_seconds())
        said = ""
        try:
            async with asyncio.timeout(limit_s), self._primary.get_queue_sender(path) as sender:
                await sender.send_messages(ping(str(self.options.entropy.uuid())), timeout=limit_s)
        except Exception as error:  # noqa: BLE001 - it is told, and the next ping comes
            said = str(error) or type(error).__name__
        finally:
            self._pinging.discard(path)
        self.reporter.tell(PingSent(path, said))
        if not said:
            self._note(self._failover.on_ping_succeeded(path, self._now_ms()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the pair ended", exc_info=task.exception())

    def _watch(self, client: ServiceBusClient) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a ``close`` that tells the pair; the SDK has no other sign of it."""

        async def close() -> None:
            await self._on_closed(client)

        return close

    async def _on_closed(self, client: ServiceBusClient) -> None:
        if client in self._closed:
            return
        self._closed.add(client)
        is_first = len(self._closed) == 1 and self._keeper is not None
        watch = self._spawn(self._fault_partner(client)) if is_first else None
        # Before the client: as it closes the SDK goes through its links, and a ping or the syphon would add one.
        await self._stop(but=watch)
        await self._closers[client]()

    async def _fault_partner(self, closed: ServiceBusClient) -> None:
        """Give the partner its time, then fault it."""
        await asyncio.sleep(PARTNER_S)
        partner = self.options.secondary if closed is self._primary else self._primary
        if partner in self._closed:
            return
        self._fault = (
            f"The client of {_host(closed)} was closed and that of {_host(partner)} was not, within {PARTNER_S:g} "
            "seconds; the pair is over. Make new clients and pair them."
        )
        self._closed.add(partner)
        self.reporter.tell(Faulted(_host(partner), _host(closed)))
        current = asyncio.current_task()
        await self._stop(but=current)
        await self._closers[partner]()

    async def _stop(self, but: asyncio.Task[Any] | None = None) -> None:
        """End everything that runs for the pair."""
        tasks = [task for task in (*self._tasks, self._keeper) if task is not None and task is not but]
        self._keeper = None
        if self._metrics is not None:
            self._metrics.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _host(client: ServiceBusClient) -> str:
    return str(client.fully_qualified_namespace)


def _ms(interval: timedelta) -> int:
    return round(interval.total_seconds() * 1000)
