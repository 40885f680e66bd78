"""Who hears of queues that are deleted because nobody uses them (AutoDeleteOnIdle)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duobus.broker import Queue
from duobus.errors import ServerBusy, StoreFailed
from kits.broker import Hall, simulated_over

FIVE_MINUTES_MS = 300_000

#: For minutes of virtual time.
simulated = simulated_over(2, time_limit_s=5_000)


def there(hall: Hall, name: str = "q") -> bool:
    return name in hall.unit.namespace("n").queues


@simulated
async def test_the_journal_hears_of_a_deletion_before_and_after_it(hall: Hall) -> None:
    await hall.start()
    told: list[tuple[str, str, bool, str | None]] = []

    def journal(queue: Queue) -> Callable[[str | None], None]:
        told.append((queue.kind, queue.path, queue.is_deleted, "begin"))
        return lambda outcome: told.append((queue.kind, queue.path, queue.is_deleted, outcome))

    hall.unit.idle_watch.journal = journal
    await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await asyncio.sleep(301)
    assert told == [("queue", "q", False, "begin"), ("queue", "q", True, None)]


@simulated
async def test_a_deletion_that_cannot_be_written_down_is_tried_after_the_same_time(hall: Hall) -> None:
    await hall.start()

    def journal(queue: Queue) -> Callable[[str | None], None]:
        raise ServerBusy("the disk is full")

    kept, hall.unit.idle_watch.journal = hall.unit.idle_watch.journal, journal
    await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
    await asyncio.sleep(310)
    assert there(hall)
    hall.unit.idle_watch.journal = kept
    await asyncio.sleep(280)
    assert there(hall)
    await asyncio.sleep(20)
    assert not there(hall)


@simulated
async def test_a_deletion_that_the_catalog_refuses_is_told_with_its_reason(hall: Hall) -> None:
    await hall.start()
    told: list[str | None] = []
    hall.unit.idle_watch.journal = lambda queue: told.append
    await hall.create(auto_delete_on_idle_ms=FIVE_MINUTES_MS)

    def refuse(entity_id: int) -> None:
        raise StoreFailed("planted")

    kept, hall.catalog.begin_delete = hall.catalog.begin_delete, refuse  # type: ignore[method-assign]
    await asyncio.sleep(301)
    assert there(hall)
    assert told == ["The catalog cannot be written; the time begins anew."]
    hall.catalog.begin_delete = kept  # type: ignore[method-assign]
    await asyncio.sleep(301)
    assert not there(hall)
    assert told[1:] == [None]
