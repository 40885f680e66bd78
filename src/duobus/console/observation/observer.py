"""Looks at a namespace from time to time, while somebody is signed in to it, for all of its sessions together."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.console.namespace.failures import NamespaceError
from duobus.console.observation.cluster import read_cluster
from duobus.console.observation.differences import UNKNOWN_RATES, BusyEntity, Rates, busiest, rates_between
from duobus.console.observation.failovers import failovers_in
from duobus.console.observation.findings import BAD, Finding, errors_between, findings, most_grown
from duobus.console.observation.history import History, Point, points_of
from duobus.console.observation.readings import (
    EntityCounts,
    Reading,
    counts_of_queue,
    counts_of_topic,
    entities_of,
)

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient
    from duobus.console.visits import Visit

#: Time between two looks at a duobus, and at Azure, whose administration requests are dear; and before the second look,
#: without which there is no rate.
PERIOD_S: Final = 10.0
PERIOD_OF_AZURE_S: Final = 60.0
_SECOND_LOOK_S: Final = 2.0
#: Namespaces that are observed at a time; of more, one that nobody looks at is forgotten.
OBSERVERS_MAX: Final = 50
#: Entities of a kind that are counted in Azure; and topics whose subscriptions are.
ENTITIES_MAX: Final = 1_000
TOPICS_MAX: Final = 100
#: Entities that the answer of a duobus has at most.
_LISTED_MAX: Final = 20_000
#: After so many periods without a look the server is asked for what was meanwhile.
_GAP_PERIODS: Final = 6
_DEAD_WINDOW_S: Final = 600.0
_SECOND_MS: Final = 1_000


class Observer:
    """What is known of one namespace.

    Args:
        clock: Time.
        is_duobus: Whether the namespace has duobus's own requests.
        sees_stores: Whether the key may ask for stores.

    Attributes:
        history: For charts.
        reading: The latest look; None before the first.
        rates: Between the last two looks.
        failure: Why the latest look failed; empty when it did not.
        number: Grows with every look, so that a page knows whether it is up to date.
    """

    def __init__(self, clock: Clock, *, is_duobus: bool, sees_stores: bool) -> None:
        self.history = History()
        self.reading: Reading | None = None
        self.rates: Rates = UNKNOWN_RATES
        self.failure = ""
        self.failed_ms: int | None = None
        self.number = 0
        self.watchers = 0
        self._clock = clock
        self._is_duobus = is_duobus
        self._sees_stores = sees_stores
        self._before: Reading | None = None
        self._errors: dict[str, int] = {}
        #: Dead letters by entity, of every minute of the last ten.
        self._dead: deque[tuple[float, dict[str, int]]] = deque(maxlen=11)
        self._due_ms = clock.monotonic_ms()
        self._looking = asyncio.Lock()
        self._news = asyncio.Event()

    @property
    def period_s(self) -> float:
        """Time between two looks, in seconds."""
        return PERIOD_S if self._is_duobus else PERIOD_OF_AZURE_S

    async def watch(self, namespace: NamespaceClient) -> None:
        """Look from time to time, until cancelled. Of several who do so, one looks at a time."""
        self.watchers += 1
        try:
            while True:
                await self.refresh(namespace)
                await asyncio.sleep(max(0.1, (self._due_ms - self._clock.monotonic_ms()) / _SECOND_MS))
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._forget()

    def _forget(self) -> None:
        """Keep the points only: counts of thousands of entities are for those who look."""
        self.reading = self._before = None
        self.rates, self._errors = UNKNOWN_RATES, {}
        self._dead.clear()

    async def refresh(self, namespace: NamespaceClient) -> None:
        """Look if it is time to look."""
        async with self._looking:
            is_fresh = self.reading is not None or bool(self.failure)
            if is_fresh and self._clock.monotonic_ms() < self._due_ms:
                return
            try:
                if self._is_duobus:
                    reading = await read_duobus(namespace, with_stores=self._sees_stores)
                else:
                    reading = await read_azure(namespace)
            except NamespaceError as error:
                self.failed(error.text)
            else:
                if self._is_duobus and self._has_gap(reading.at_ms):
                    self.history.begin_with(*await read_history(namespace))
                self.take(reading)
            is_first = self.reading is not None and self._before is None
            pause_s = _SECOND_LOOK_S if is_first and self._is_duobus else self.period_s
            self._due_ms = self._clock.monotonic_ms() + round(pause_s * _SECOND_MS)

    def _has_gap(self, now_ms: int) -> bool:
        """Whether nobody has looked for so long that the server knows more than is known here."""
        return self.reading is None or now_ms - self.reading.at_ms > _GAP_PERIODS * self.period_s * _SECOND_MS

    def take(self, reading: Reading) -> None:
        """Keep what a look has found."""
        self._before, self.reading = self.reading, reading
        self.failure, self.failed_ms = "", None
        self.rates = rates_between(self._before, reading)
        self._errors = errors_between(self._before, reading)
        at_s = reading.at_ms / _SECOND_MS
        if not self._dead or at_s - self._dead[-1][0] >= _DEAD_WINDOW_S / 10:
            self._dead.append((at_s, {path: found.dead for path, found in reading.entities.items() if found.dead}))
        if self._before is not None:
            rates = self.rates
            growth = rates.growth if rates.sent is None else None
            sent = rates.sent if growth is None else max(0.0, growth)
            received = rates.received if growth is None else max(0.0, -growth)
            self.history.add(Point(at_s, sent, received, reading.total("active"), reading.total("dead")))
        self._tell()

    def failed(self, text: str) -> None:
        """Keep that the namespace did not answer."""
        now_ms = self._clock.now_ms()
        self.failure, self.failed_ms = text, self.failed_ms or now_ms
        self.rates = UNKNOWN_RATES
        self.history.add(Point(now_ms / _SECOND_MS, None, None, None, None))
        self._tell()

    def _tell(self) -> None:
        self.number += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def changed(self) -> None:
        """Wait for the next look."""
        await self._news.wait()

    def busiest(self, most: int) -> list[BusyEntity]:
        """The entities with the most traffic between the last two looks."""
        return [] if self.reading is None else busiest(self._before, self.reading, most)

    def findings(self) -> list[Finding]:
        """What is unwell, worst first."""
        found = []
        if self.failure:
            found.append(Finding(BAD, "The namespace does not answer", self.failure))
        if self.reading is not None:
            at_s = self.reading.at_ms / _SECOND_MS
            before = next((dead for since_s, dead in self._dead if at_s - since_s <= _DEAD_WINDOW_S), {})
            known = sum(before.values()) if self._before is not None else None
            found += findings(self.reading, self._errors, known, most_grown(before, self.reading))
        return found


async def read_duobus(namespace: NamespaceClient, *, with_stores: bool) -> Reading:
    """Look at a duobus.

    Raises:
        NamespaceError: It does not answer, or refuses.
    """
    server = await namespace.operation("GET", "/$duobus/server")
    asked_ms = namespace.clock.now_ms()
    rows = await namespace.operation("GET", "/$duobus/entities")
    entities = entities_of(rows)
    stores = tuple(await namespace.operation("GET", "/$duobus/stores")) if with_stores else None
    return Reading(
        # The server's clock, as of the points that the server keeps.
        at_ms=int(server["nowMs"]),
        elapsed_ms=int(server["uptimeMs"]),
        server=server,
        entities=entities,
        stores=stores,
        is_cut=len(rows) >= _LISTED_MAX,
        apart_ms=int(server["nowMs"]) - asked_ms,
        failovers=await failovers_in(namespace, entities),
        cluster=await read_cluster(namespace) if with_stores else None,
    )


async def read_history(namespace: NamespaceClient) -> tuple[list[Point], list[Point]]:
    """The points of the last hour and day that a duobus has kept; none of an older one."""
    try:
        hour = await namespace.operation("GET", "/$duobus/history", query={"minutes": "60"})
        day = await namespace.operation("GET", "/$duobus/history", query={"minutes": "1440"})
    except NamespaceError:
        return [], []
    return points_of(hour), points_of(day)


async def read_azure(namespace: NamespaceClient) -> Reading:
    """Count what is in a namespace of Azure, by its administration requests.

    Raises:
        NamespaceError: It does not answer, or refuses.
    """
    entities: dict[str, EntityCounts] = {}
    administration = namespace.administration
    is_cut = False
    async with namespace.telling("the namespace", timeout_s=PERIOD_OF_AZURE_S / 2):
        queues = topics = 0
        async for queue in administration.list_queues_runtime_properties():
            if queues == ENTITIES_MAX:
                is_cut = True
                break
            entities[queue.name] = counts_of_queue(queue)
            queues += 1
        async for topic in administration.list_topics_runtime_properties():
            if topics == TOPICS_MAX:
                is_cut = True
                break
            entities[topic.name] = counts_of_topic(topic)
            topics += 1
            async for one in administration.list_subscriptions_runtime_properties(topic.name):
                entities[f"{topic.name}/Subscriptions/{one.name}"] = counts_of_queue(one, "subscription")
    now = namespace.clock
    failovers = await failovers_in(namespace, entities)
    return Reading(now.now_ms(), now.monotonic_ms(), {}, entities, None, is_cut, failovers=failovers)


def observer_of(visit: Visit) -> Observer | None:
    """The observer of the namespace that a person is signed in to; None where the key may see no counts.

    The session takes part in looking from then on. Sessions whose keys may see different things share nothing.
    """
    namespace = visit.namespace
    rights = namespace.rights
    may_see = rights.manage or (rights.listen and namespace.is_duobus)
    if namespace.entity or not may_see:
        return None
    observers: dict[Any, Observer] = visit.shared.setdefault("observers", {})
    address = namespace.address
    key = (address.url.lower(), address.netloc.lower(), namespace.is_duobus, rights.manage)
    found = observers.get(key)
    if found is None:
        for old in [one for one, observer in observers.items() if not observer.watchers]:
            if len(observers) >= OBSERVERS_MAX:
                del observers[old]
        found = Observer(visit.clock, is_duobus=namespace.is_duobus, sees_stores=rights.manage)
        observers[key] = found
    memory = visit.session.memory
    if not memory.get("observed"):
        memory["observed"] = True
        visit.session.start(found.watch(namespace), "console-observer")
    return found
