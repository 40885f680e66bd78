"""What went through the server in the last hour and the last day, kept in memory: a point every ten seconds.

Nothing is counted for it that is not counted anyway: every ten seconds the counts are read and what changed since the
last time is kept, in slices between which others have their turns. With 10,000 entities a reading takes some 40 ms of
CPU time, 90 ms when all of them were used since the last one, which is less than a hundredth of the ten seconds.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import EntityNotFound
from duobus.gateway.waits import REST_S
from duobus.model.metering import RECEIVE, SEND, SETTLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duobus.broker import Namespace, Queue, ScaleUnit
    from duobus.clock import Clock
    from duobus.gateway.amqp.server import AmqpServer

#: Seconds between two points of the last hour, and how many of these are kept.
FINE_S: Final = 10
FINE_POINTS_MAX: Final = 360
#: Points of the last hour that make one of the last day, and how many of those are kept.
FINE_IN_COARSE: Final = 30
COARSE_POINTS_MAX: Final = 288
#: Entities of which there are points: those on which most was done of late. 5 MB in all.
ENTITIES_MAX: Final = 200
#: Minutes that an answer can go back.
MINUTES_MAX: Final = 1_440

#: What each point says, behind its time.
FIELDS: Final = ("sent", "received", "settled", "active", "deadLetter", "locked", "connections")
_RATES: Final = 3
_KINDS: Final = {SEND: 0, RECEIVE: 1, SETTLE: 2}
#: How much of an entity's activity counts still after ten seconds.
_DECAY: Final = 0.97
#: Counts, and entities, that are read in one slice: half a millisecond, more where many are partitioned.
_COUNTS_AT_ONCE: Final = 2_000
_ENTITIES_AT_ONCE: Final = 300

#: Activity, namespace, path and numbers of an entity.
_Busy = tuple[float, str, str, list[int]]


class Series:
    """The points of a namespace or an entity.

    Attributes:
        activity: Operations of late.
    """

    __slots__ = ("_coarse", "_fine", "_since", "activity")

    def __init__(self) -> None:
        self._fine: deque[array[float]] = deque(maxlen=FINE_POINTS_MAX)
        self._coarse: deque[array[float]] = deque(maxlen=COARSE_POINTS_MAX)
        # Of the coarse point that is being made: how many fine ones are in it, and the sums of their rates.
        self._since: list[float] = [0.0] * (1 + _RATES)
        self.activity = 0.0

    def add(self, at_ms: int, values: Iterable[float]) -> None:
        """Add a point; of five minutes together the rates are the mean, and everything else is the latest."""
        point = array("d", (at_ms, *values))
        self._fine.append(point)
        since = self._since
        since[0] += 1
        for index in range(1, 1 + _RATES):
            since[index] += point[index]
        if since[0] >= FINE_IN_COARSE:
            means = [total / since[0] for total in since[1:]]
            self._coarse.append(array("d", (at_ms, *means, *point[1 + _RATES :])))
            self._since = [0.0] * (1 + _RATES)

    def points(self, minutes: int) -> list[list[float]]:
        """The points of so many minutes, the oldest first."""
        fine, coarse = FINE_S, FINE_S * FINE_IN_COARSE
        chosen, step = (self._fine, fine) if is_fine(minutes) else (self._coarse, coarse)
        number = max(1, minutes * 60 // step)
        return [[int(point[0]), *(round(value, 3) for value in point[1:])] for point in list(chosen)[-number:]]


def is_fine(minutes: int) -> bool:
    """Whether there is a point every ten seconds for so many minutes."""
    return minutes * 60 <= FINE_S * FINE_POINTS_MAX


class History:
    """Reads the counts every ten seconds."""

    def __init__(self, unit: ScaleUnit, amqp: AmqpServer, clock: Clock) -> None:
        self._unit = unit
        self._amqp = amqp
        self._clock = clock
        self._namespaces: dict[str, Series] = {}
        self._entities: dict[tuple[str, str], Series] = {}
        # Messages by namespace, path and kind, as they were last time.
        self._counts: dict[tuple[str, str, str], int] = {}
        self._last_ms = clock.monotonic_ms()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to read."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="history")

    def stop(self) -> None:
        """End that."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FINE_S)
            await self.read()

    async def read(self) -> None:
        """Add a point to every series."""
        now_ms = self._clock.monotonic_ms()
        elapsed_s = max(now_ms - self._last_ms, 1) / 1000
        self._last_ms = now_ms
        changes = await self._changes()
        at_ms = self._clock.now_ms()
        busiest: list[_Busy] = []
        for home in list(self._unit.namespaces.values()):
            totals = await self._read_namespace(home, changes.get(home.name, {}), busiest)
            series = self._namespaces.setdefault(home.name, Series())
            series.add(at_ms, _point(totals, self._amqp.connections_of(home.name), elapsed_s))
        kept: dict[tuple[str, str], Series] = {}
        for activity, namespace, path, numbers in busiest:
            series = kept[namespace, path] = self._entities.get((namespace, path)) or Series()
            series.activity = activity
            series.add(at_ms, _point(numbers, 0, elapsed_s))
        self._entities = kept

    async def _changes(self) -> dict[str, dict[str, list[int]]]:
        """What was done since the last time: by namespace and path, messages sent, received and settled."""
        found: dict[str, dict[str, list[int]]] = {}
        counts = self._counts
        items = list(self._amqp.metering.totals.items())
        for start in range(0, len(items), _COUNTS_AT_ONCE):
            if start:
                await asyncio.sleep(REST_S)
            for key, counted in items[start : start + _COUNTS_AT_ONCE]:
                number, before = counted[0], counts.get(key, 0)
                if number != before:
                    counts[key] = number
                    index = _KINDS.get(key[2])
                    if index is not None:
                        of_path = found.setdefault(key[0], {}).setdefault(key[1], [0, 0, 0])
                        of_path[index] = number - before
        return found

    async def _read_namespace(self, home: Namespace, changes: dict[str, list[int]], busiest: list[_Busy]) -> list[int]:
        """The totals of a namespace; its entities are put among the busiest, which are a heap, if they are."""
        totals = [0] * (len(FIELDS) - 1)
        known = self._entities
        name, entities = home.name, list(home.entities())
        for start in range(0, len(entities), _ENTITIES_AT_ONCE):
            if start:
                await asyncio.sleep(REST_S)
            for entity in entities[start : start + _ENTITIES_AT_ONCE]:
                active, dead, locked = _numbers(entity)
                totals[3] += active
                totals[4] += dead
                totals[5] += locked
                path = entity.path
                changed, series = changes.get(path), known.get((name, path))
                if changed is None and series is None:
                    continue
                done = changed or [0, 0, 0]
                activity = sum(done) if series is None else series.activity * _DECAY + sum(done)
                if len(busiest) < ENTITIES_MAX:
                    heappush(busiest, (activity, name, path, [*done, active, dead, locked]))
                elif activity > busiest[0][0]:
                    heapreplace(busiest, (activity, name, path, [*done, active, dead, locked]))
        await asyncio.sleep(REST_S)
        for done in changes.values():
            for index, number in enumerate(done):
                totals[index] += number
        return totals

    def points(self, namespace: str, path: str | None, minutes: int) -> dict[str, Any]:
        """Return the points of a namespace, or of one of its entities.

        Raises:
            EntityNotFound: There are no points of this entity.
        """
        minutes = max(1, min(minutes, MINUTES_MAX))
        series = self._namespaces.get(namespace)
        busy = {key[1]: found for key, found in self._entities.items() if key[0] == namespace}
        if path is not None:
            named = [name for name in busy if name.lower() == path.lower()]
            if not named:
                raise EntityNotFound(
                    f"There are no points of an entity {path[:100]!r}: it is not there, or not among the "
                    f"{ENTITIES_MAX} on which most was done of late."
                )
            series = busy[named[0]]
        return {
            "stepSeconds": FINE_S if is_fine(minutes) else FINE_S * FINE_IN_COARSE,
            "fields": ["atMs", *FIELDS],
            "points": [] if series is None else series.points(minutes),
            "entities": sorted(busy, key=lambda name: -busy[name].activity),
        }


def _numbers(entity: Queue) -> tuple[int, int, int]:
    """Messages that are active, dead letters, and locked, of the fragments that are there."""
    active = dead = locked = 0
    for handle in entity.fragments:
        if handle.fragment is not None:
            source = handle.fragment.sources[entity.source_no]
            numbers = source.numbers
            active += numbers[0]
            dead += numbers[1] + numbers[2]
            locked += len(source.locks)
    return active, dead, locked


def _point(numbers: list[int], connections: int, elapsed_s: float) -> list[float]:
    return [*(number / elapsed_s for number in numbers[:_RATES]), *numbers[_RATES:], connections]
