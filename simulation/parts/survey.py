"""The part of a simulated run that looks at queues at rest: by peek, page after page, beside the broker's counters.

It comes between the two phases, when faults are healed, locks have ended and nobody uses a queue. In half of the seeds
the broker is killed then, or its power cut, and the same is looked at once more in its next life.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Final

from duobus.codec import Scan, Symbol, scan
from simulation.history import events as h
from simulation.history.survey_events import Shown, Surveyed, path_of
from simulation.world.client import SimulatedClient
from simulation.world.message import Message, delivery_count

if TYPE_CHECKING:
    from duobus.model.descriptions import QueueDescription
    from simulation.world.world import World

#: A commit that removes what has expired may be on its way: counters agree soon, or never.
TRIES_MAX: Final = 6
PAUSE_S: Final = 1.0
#: Pages that no queue of a run needs: whoever peeks in a circle is stopped.
PAGES_MAX: Final = 500
#: In a page of the second time; no queue of a run has more.
ALL: Final = 1_000
#: How far ahead something is scheduled.
PUT_OFF_MS: Final = (4_000, 12_000)
SUB_QUEUES: Final = (h.MAIN, h.DEAD_LETTER)
#: What ``x-opt-message-state`` says.
ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2


class Surveyor(SimulatedClient):
    """A client that peeks."""

    async def page(self, entity: str, subqueue: str, first: int, count: int) -> list[Shown]:
        """Peek once; raises ConnectionError when the broker cannot tell."""
        body = {"from-sequence-number": first, "message-count": count}
        status, condition, answer = await self.request(path_of(entity, subqueue), "peek-message", body)
        if status == 204:
            return []
        if status != 200:
            raise ConnectionError(condition)
        return [_shown(subqueue, entry["message"]) for entry in answer["messages"]]

    async def walk(self, entity: str, subqueue: str, limit: int) -> list[tuple[Shown, ...]]:
        """Peek page after page until there is nothing more."""
        pages: list[tuple[Shown, ...]] = []
        first = 1
        while len(pages) < PAGES_MAX and (page := await self.page(entity, subqueue, first, limit)):
            pages.append(tuple(page))
            first = page[-1].seq + 1
        return pages


def _shown(subqueue: str, message: bytes) -> Shown:
    found = scan(message)
    annotations = found.annotations or {}
    ttl_ms = found.ttl_ms
    enqueued_ms = int(annotations.get(Symbol("x-opt-enqueued-time"), 0))
    return Shown(
        subqueue,
        int(annotations[Symbol("x-opt-sequence-number")]),
        str(found.message_id),
        int(annotations.get(Symbol("x-opt-message-state"), ACTIVE)),
        delivery_count(message),
        len(message) - found.bare - _told_bytes(found),
        None if ttl_ms is None else enqueued_ms + ttl_ms,
    )


def _told_bytes(found: Scan) -> int:
    """Bytes that a shown message has more than the stored one: its times, which the broker tells and does not keep.

    The properties of our messages end with the id, or with the session id, which has nulls in place of the times.
    """
    if found.absolute_expiry_ms is None:
        return 0
    return 16 if found.group_id is not None else 25


async def survey(world: World, all_queues: list[QueueDescription], moving: list[QueueDescription]) -> None:
    """Look through the queues that come to rest when their clients do, in half of the seeds once more after a crash."""
    rng = random.Random(f"survey:{world.seed}")
    queues = [queue for queue in all_queues if queue not in moving]
    await _put_off(world, [queue.name for queue in queues if not queue.requires_session], rng)
    await _look_through(world, queues, rng)
    if rng.random() < 0.5:
        world.kill(power=rng.random() < 0.5)
        await asyncio.sleep(0.1)
        world.start()
        await asyncio.sleep(PAUSE_S)
        await _look_through(world, queues, rng)


async def _put_off(world: World, entities: list[str], rng: random.Random) -> None:
    """Schedule something that is still to come when the queues are looked through, and comes before the run ends."""
    for entity in entities:
        message = Message(f"put-off-{entity}", b"x")
        message.scheduled_ms = world.clock.now_ms() + rng.randint(*PUT_OFF_MS)
        with contextlib.suppress(OSError, TimeoutError):
            client = await Surveyor.connect(world, f"scheduler-{entity}")
            await client.schedule(entity, message)
            client.close()


async def _look_through(world: World, queues: list[QueueDescription], rng: random.Random) -> None:
    for queue in queues:
        limit = rng.choice((1, 3, 7, 50))
        found: Surveyed | None = None
        for _ in range(TRIES_MAX):
            with contextlib.suppress(OSError, TimeoutError):
                client = await Surveyor.connect(world, f"surveyor-{rng.randrange(1 << 30)}")
                try:
                    found = await _look(world, client, queue.name, limit)
                finally:
                    client.close()
                if tallies(found):
                    break
            await asyncio.sleep(PAUSE_S)
        if found is not None:
            world.history.append(found)


async def _look(world: World, client: Surveyor, entity: str, limit: int) -> Surveyed:
    pages = [page for subqueue in SUB_QUEUES for page in await client.walk(entity, subqueue, limit)]
    again = [row for subqueue in SUB_QUEUES for row in await client.page(entity, subqueue, 1, ALL)]
    queue = world.queue(entity)
    if queue is None or not all(handle.online for handle in queue.fragments):
        raise ConnectionError("a store is away")
    numbers, size = queue.numbers()
    return Surveyed(entity, limit, tuple(pages), tuple(again), tuple(numbers), size, world.broker_ms())


def tallies(seen: Surveyed) -> bool:
    """Whether the broker counts what a peek has shown."""
    return seen.numbers == counted(seen.rows)


def counted(rows: list[Shown]) -> tuple[int, ...]:
    """Messages as the broker counts them: active, dead, transfer dead, deferred, scheduled."""
    active = sum(1 for row in rows if row.subqueue == h.MAIN and row.state == ACTIVE)
    dead = sum(1 for row in rows if row.subqueue == h.DEAD_LETTER and row.state == ACTIVE)
    return (
        active,
        dead,
        0,
        sum(1 for row in rows if row.state == DEFERRED),
        sum(1 for row in rows if row.state == SCHEDULED),
    )
