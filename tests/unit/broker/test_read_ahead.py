"""A deep backlog comes into memory beside the commits: once each, in order, and nothing that is not released yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_clearing import ALL, payloads, receiver, sent
from test_message_broker import simulated, turns

from duobus.broker import Queue, pager
from duobus.broker.pager import Pager
from duobus.errors import StoreFailed
from duobus.fragment import fragment as fragment_module
from duobus.fragment import paged_tail
from duobus.fragment import source as source_module
from duobus.fragment.message import QueuedMessage
from duobus.fragment.paged_tail import TailPage
from duobus.fragment.source import Source, SourceSettings
from duobus.storage.interface import PlainColumns, columns_of
from kits.broker import Hall, HeldWriter, batch, sets_constants

pytestmark = sets_constants

WINDOW = 6


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (fragment_module, source_module):
        monkeypatch.setattr(module, "WINDOW_COUNT", WINDOW)
    monkeypatch.setattr(source_module, "PAGE_COUNT", 8)
    monkeypatch.setattr(pager, "PART", 2)
    monkeypatch.setattr(pager, "AT_ONCE", 3)
    return


async def deep(hall: Hall, number: int = 30) -> tuple[Queue, Source, HeldWriter]:
    """A queue with a paged tail, and a reader beside its writer."""
    await hall.start()
    queue = await hall.create()
    await sent(queue, number)
    reader = HeldWriter(hall.loop, hall.disks[1])
    pager_of(queue).reader = reader
    return queue, source_of(queue), reader


def source_of(queue: Queue) -> Source:
    fragment = queue.fragments[0].fragment
    assert fragment is not None
    return fragment.sources[0]


def pager_of(queue: Queue) -> Pager:
    pager: Pager = queue.fragments[0].broker.pager
    return pager


def expected(number: int, first: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(first, first + number)]


@simulated
async def test_a_backlog_comes_whole_and_in_order(hall: Hall) -> None:
    queue, source, _ = await deep(hall)
    assert source.tail_count > 20
    _, box = receiver(queue, 100)
    await turns(100)
    assert payloads(box) == expected(30)
    assert (source.tail_count, source.tail_bytes, source.is_paging) == (0, 0, False)
    assert source.memory_bytes == source.bytes


@simulated
async def test_the_window_stays_as_small_as_it_is(hall: Hall) -> None:
    queue, source, _ = await deep(hall, 60)
    _, box = receiver(queue, 5)
    await turns(100)
    assert payloads(box) == expected(5)
    assert len(source.by_count) < 5 + WINDOW + 2 * source_module.PAGE_COUNT


@simulated
async def test_the_next_page_is_asked_for_while_one_is_taken_in(hall: Hall) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (fragment_module, source_module):
            patch.setattr(module, "WINDOW_COUNT", 40)
        queue, source, reader = await deep(hall, 120)
        reader.is_held = True
        _, box = receiver(queue, 35)
        await turns()
        assert len(reader.waiting) == 1
        before = source.tail_count
        reader.step()
        # What came is not taken in yet, all of it, and the reader has something to do again.
        assert 0 < before - source.tail_count < source_module.PAGE_COUNT
        assert len(reader.waiting) == 1
        reader.release()
        await turns(100)
        assert payloads(box) == expected(35)


@simulated
async def test_nothing_is_asked_for_that_is_not_released_yet(hall: Hall) -> None:
    queue, source, _ = await deep(hall, 12)
    asked: list[int] = []
    store = hall.disks[1]
    load_columns = store.load_columns

    def noted(source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        asked.append(first_count + limit)
        return load_columns(source_key, first_count, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "load_columns", noted)
        end = source.next_count
        hall.writers[1].is_held = True
        queue.send(batch(b"late", b"later"))
        await turns()
        assert source.next_count == end + 2
        _, box = receiver(queue, 100)
        await turns(50)
        assert payloads(box) == expected(12)
        assert asked
        assert max(asked) <= end
        hall.writers[1].release()
        await turns(50)
        assert payloads(box)[-2:] == [b"late", b"later"]


@simulated
async def test_columns_that_are_damaged_are_read_by_row(hall: Hall) -> None:
    await damage_is_read_by_row(hall, 0)


@simulated
async def test_what_stood_in_front_of_the_damage_was_taken_in_before(hall: Hall) -> None:
    await damage_is_read_by_row(hall, 3)


async def damage_is_read_by_row(hall: Hall, good: int) -> None:
    queue, source, _ = await deep(hall)
    store = hall.disks[1]
    first_damaged = source.tail_first + good

    def damaged(source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        rows = store.load(source_key, first_count, limit)
        return columns_of(first_count, [row for row in rows if row.count < first_damaged])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "load_columns", damaged)
        _, box = receiver(queue, 100)
        await turns(200)
        assert payloads(box) == expected(30)
        assert source.tail_count == 0


@simulated
async def test_messages_that_are_not_ordinary_come_in_their_place(hall: Hall) -> None:
    queue, source, _ = await deep(hall, 12)
    queue.send(batch(b"12", ttl_ms=1_000_000))
    await turns()
    await sent_from(queue, 13, 10)
    _, box = receiver(queue, 100)
    await turns(200)
    assert payloads(box) == expected(23)
    assert source.tail_count == 0


@simulated
async def test_a_store_that_fails_while_a_page_is_on_its_way_loses_nothing(hall: Hall) -> None:
    queue, old, reader = await deep(hall)
    reader.is_held = True
    _, box = receiver(queue, 100)
    await turns()
    assert reader.waiting
    hall.writers[1].fail_next = "before"
    queue.send(batch(b"x"))
    await turns(5)
    reader.release()
    await turns(5)
    in_memory = len(old.by_count)
    await hall_is_open(hall)
    await turns(200)
    assert len(old.by_count) == in_memory
    found = payloads(box)
    assert sorted(set(found), key=int) == expected(30)


@simulated
async def test_a_reader_that_was_stopped_leaves_it_to_the_writer(hall: Hall) -> None:
    queue, _, reader = await deep(hall)

    def refuse(_call: Any, done: Any) -> None:
        hall.loop.call_soon(done, None, StoreFailed("stopped"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "submit", refuse)
        _, box = receiver(queue, 100)
        await turns(200)
        assert payloads(box) == expected(30)


@simulated
async def test_a_purge_waits_for_what_is_read_beside_it(hall: Hall) -> None:
    queue, _, _ = await deep(hall, 60)
    found = await queue.purge(ALL, lambda: False)
    assert (found.removed, found.locked, found.is_complete) == (60, 0, True)
    assert queue.numbers()[0][0] == 0


def test_a_part_is_apart_from_memory_only_as_a_whole() -> None:
    source = Source(1, 0, SourceSettings())
    source.keep(QueuedMessage(5, b"m", 0))
    assert paged_tail.is_kept_in_memory(source, part_of(1, 4))
    assert not paged_tail.is_kept_in_memory(source, part_of(5, 4))
    assert paged_tail.is_kept_in_memory(source, part_of(6, 3))


def part_of(first_count: int, number: int) -> TailPage:
    return TailPage(PlainColumns(first_count, [0] * number, [b"m"] * number), 0, number)


async def sent_from(queue: Queue, first: int, number: int) -> None:
    for payload in expected(number, first):
        queue.send(batch(payload))
        await turns()


async def hall_is_open(hall: Hall) -> None:
    import asyncio

    await asyncio.sleep(1)
    assert hall.unit.brokers[1].state == "open"
