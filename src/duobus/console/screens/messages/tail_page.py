"""The live tail: messages as they come, by looking only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.formats import entity_url
from duobus.console.namespace.absence import missing_of, tells_of_absence
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages import search
from duobus.console.screens.messages.node import Node, own_node
from duobus.console.screens.messages.places import ACTIVE, DEAD, PLACES, TRANSFER, entity_of, node_of, screen, tabs_of
from duobus.console.screens.messages.records import PARTITION_BITS, number_of, row_of
from duobus.console.visits import Refusal, View, Visit
from duobus.model.json.deliveries import Delivery

#: Live tails of one session of the console.
TAILS_MAX: Final = 3
#: Messages that one look brings to the page; what comes faster is counted and left out.
BURST_MAX: Final = 100
#: Rows that the page keeps.
ROWS_MAX: Final = 500
#: Partitions of an entity that are followed.
PARTITIONS_MAX: Final = 64
_LOOK_S: Final = 1.0
#: Between two looks while the namespace does not answer.
_AWAY_S: Final = 2.0
#: After so many looks it is asked anew which stores are away.
_AWAY_LOOKS: Final = 10
_TAILED: Final = (ACTIVE, DEAD, TRANSFER)
_COUNT: Final = "messages-tails"
_PARTIAL: Final = "A store that holds a part of this entity is away: what comes there is not shown before it is back."


@screen.get("/tail/{path:.+}", right="listen")
async def show(visit: Visit) -> View | web.StreamResponse:
    """The page, and the events that fill it."""
    entity = entity_of(visit.match["path"])
    place = visit.query.get("place", ACTIVE)
    place = place if place in _TAILED else ACTIVE
    query = search.Query(*(visit.query.get(name, "").strip() for name in ("sql", "path", "text")))
    if visit.query.get("events"):
        wanted = search.wanted_of(query, None)
        url = entity_url(entity.path, "messages", place=None if place == ACTIVE else place)
        return await stream_events(visit, _events(visit, node_of(entity, place), wanted, url))
    fault = search.fault_of(query)
    rights = visit.namespace.rights
    given = {name: value for name, value in query._asdict().items() if value}
    data: dict[str, Any] = {
        "entity": entity.path,
        "place": place,
        "query": query._asdict(),
        "fault": None if fault is None else fault._asdict(),
        "places": [(name, PLACES[name]) for name in _TAILED],
        "tabs": tabs_of(entity, may_listen=rights.listen, may_send=rights.send),
        "events": entity_url(entity.path, "tail", events="1", place=place, **given),
        "rows_max": ROWS_MAX,
    }
    status = HTTPStatus.OK if fault is None else HTTPStatus.UNPROCESSABLE_ENTITY
    return View("messages/tail.html", f"Live: {entity.path}", data, status)


async def _events(visit: Visit, path: str, wanted: search.Wanted, url: str) -> AsyncIterator[Event]:
    with visit.session.one_more(_COUNT, TAILS_MAX) as has_room:
        if not has_room:
            yield Event(
                "failed", {"text": f"At most {TAILS_MAX} live pages are open at a time. Close another one first."}
            )
            return
        async with own_node(visit.session, path) as node:
            tail = Tail(node)
            await tail.set_away(await _away(visit, path))
            await tail.begin()
            was_partial, looks = bool(tail.away) or tail.has_met_absence, 0
            yield Event("state", {"text": "Waiting for messages."})
            if was_partial:
                yield Event("absence", {"text": _PARTIAL})
            while True:
                try:
                    found = await tail.look()
                except NamespaceError as error:
                    if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                        raise
                    # The server may be on its way back from a restart; nothing that comes meanwhile is left out.
                    yield Event("state", {"text": f"{error.text} Trying again."})
                    await asyncio.sleep(_AWAY_S)
                    continue
                looks += 1
                if looks % _AWAY_LOOKS == 0:
                    await tail.set_away(await _away(visit, path))
                if (is_partial := bool(tail.away) or tail.has_met_absence) != was_partial:
                    was_partial = is_partial
                    yield Event("absence", {"text": _PARTIAL if was_partial else ""})
                chosen = [one for one in found if wanted(one)]
                if chosen:
                    rows = [row_of(one) for one in chosen[-BURST_MAX:]]
                    for row in rows:
                        row["url"] = f"{url}{'&' if '?' in url else '?'}number={row['number']}"
                    html = visit.render("messages/tail_rows.html", {"rows": rows[::-1]})
                    yield Event("html", {"target": "#tail-rows", "swap": "afterbegin", "html": html})
                yield Event("looked", {"seen": len(found), "shown": min(len(chosen), BURST_MAX), "all": len(chosen)})
                await asyncio.sleep(_LOOK_S)


async def _away(visit: Visit, path: str) -> frozenset[int]:
    """The partitions that are in stores that are away."""
    missing = await missing_of(visit.namespace, entity_of(path.partition("/$")[0]).name, None)
    return frozenset() if missing is None else frozenset(one["fragment"] for one in missing["fragments"])


class Tail:
    """Where the newest messages of a queue are, for each of its partitions.

    Args:
        node: Of the queue.

    Attributes:
        away: Partitions in stores that are away, as far as the key is told; what they hold is old when they come back.
        has_met_absence: Whether the latest look met a store that is away.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.away: frozenset[int] = frozenset()
        self.has_met_absence = False
        #: Partition to the number from which on nothing was seen yet.
        self._ends: dict[int, int] = {}

    async def begin(self) -> None:
        """Go behind the newest message of each partition."""
        first = 0
        while found := await self._peek(first, 1, with_bodies=False):
            number = number_of(found[0])
            partition = number >> PARTITION_BITS
            self._ends[partition] = await self._end_of(number) + 1
            if len(self._ends) > PARTITIONS_MAX:
                raise Refusal(HTTPStatus.CONFLICT, f"This entity has more than {PARTITIONS_MAX} partitions.")
            first = (partition + 1) << PARTITION_BITS

    async def _end_of(self, known: int) -> int:
        """The highest number in the partition of a message that is there: by doubling steps, then by halving them."""
        partition, step = known >> PARTITION_BITS, 1
        ending = (partition + 1) << PARTITION_BITS
        # Above this number there is nothing.
        empty = ending
        while known + step < empty:
            found = await self._first_from(known + step, ending)
            if found is None:
                empty = known + step
                break
            known, step = found, 2 * step
        while empty - known > 1:
            middle = (known + empty) // 2
            if middle == known:
                break
            found = await self._first_from(middle, ending)
            if found is None or found >= empty:
                empty = middle
            elif found == known:
                break
            else:
                known = found
        return known

    async def _first_from(self, number: int, ending: int) -> int | None:
        found = await self._peek(number, 1, with_bodies=False)
        return number_of(found[0]) if found and number_of(found[0]) < ending else None

    async def look(self) -> list[Delivery]:
        """Messages that have come since; at most some hundreds, and the rest with the next look."""
        new: list[Delivery] = []
        self.has_met_absence = False
        # The beginning of each known partition's unseen part, and of the numbers in front of and between partitions.
        starts = [*self._ends.items()]
        for partition, start in starts:
            new += await self._new_from(partition, start)
        known = sorted(self._ends)
        for gap in [-1, *known]:
            if gap + 1 not in self._ends:
                new += await self._new_partition(gap + 1)
        new.sort(key=_enqueued_ms)
        return new

    async def _peek(self, first: int, number: int, *, with_bodies: bool = True) -> list[Delivery]:
        """Messages from a number on; none where only a store that is away could have some."""
        try:
            return await self._node.peek(first, number, with_bodies=with_bodies)
        except NamespaceError as error:
            if not tells_of_absence(error):
                raise
            self.has_met_absence = True
            return []

    async def set_away(self, away: frozenset[int]) -> None:
        """Go behind the newest message of each partition that has come back."""
        returned, self.away = self.away - away, away
        for partition in returned - self._ends.keys():
            found = await self._first_from(partition << PARTITION_BITS, (partition + 1) << PARTITION_BITS)
            if found is not None:
                self._ends[partition] = await self._end_of(found) + 1

    async def _new_from(self, partition: int, start: int) -> list[Delivery]:
        found = await self._peek(start, BURST_MAX)
        own = [one for one in found if number_of(one) >> PARTITION_BITS == partition]
        if own:
            self._ends[partition] = number_of(own[-1]) + 1
        return own

    async def _new_partition(self, least: int) -> list[Delivery]:
        """Messages of the next partition from a number of partition on, where that one was empty so far."""
        found = await self._peek(least << PARTITION_BITS, BURST_MAX)
        if not found:
            return []
        partition = number_of(found[0]) >> PARTITION_BITS
        if partition in self._ends or partition in self.away or len(self._ends) > PARTITIONS_MAX:
            return []
        own = [one for one in found if number_of(one) >> PARTITION_BITS == partition]
        self._ends[partition] = number_of(own[-1]) + 1
        return own


def _enqueued_ms(message: Delivery) -> int:
    return int(message.annotations.get("x-opt-enqueued-time") or 0)
