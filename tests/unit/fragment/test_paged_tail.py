"""The paged tail as a fragment does it: what it counts, which lives it knows, and what comes back of it."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.fragment import paged_tail
from duobus.fragment.fragment import Fragment
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import MAIN, RESERVED
from duobus.fragment.settlement import ABANDON, DEAD_LETTER_OUTCOME
from duobus.fragment.source import Source, SourceSettings
from duobus.model.metadata import MessageMetadata
from duobus.storage.interface import SourceRow, StoredMessage
from kits.fragment import NUMBER, START_MS, Driver

LIFE_MS = 1_000


def with_tail(**settings: Any) -> Driver:
    """A queue whose first message fills its window."""
    driver = Driver(**settings)
    driver.fragment.window_bytes = 1
    driver.send(b"warm")
    return driver


def rows(driver: Driver, first: int = 1, limit: int = 100) -> list[StoredMessage]:
    return driver.store.load(driver.source.source_key, first, limit)


def tail(source: Source) -> tuple[int, int, int, int]:
    return source.tail_first, source.tail_end, source.tail_count, source.tail_bytes


def fetch(driver: Driver, found: list[StoredMessage]) -> list[bytes]:
    """Dispose of cold messages as their message broker does; payloads of those that are."""
    work = paged_tail.fetched(driver.fragment, 0, found)
    expired = [message for keeping in work for message in keeping.expired]  # type: ignore[attr-defined]
    assert {message.lock for message in expired} <= {RESERVED}
    assert all(driver.source.by_count[message.count] is message for message in expired)
    driver.commit(*work)
    return [message.payload for message in expired]


def test_what_does_not_fit_into_the_window_is_counted_one_by_one() -> None:
    driver = with_tail()
    assert driver.send(b"22", ttl_ms=LIFE_MS) == [2]
    assert tail(driver.source) == (2, 3, 1, 2)
    driver.send(b"333", b"4", ttl_ms=LIFE_MS)
    driver.send(b"55555")
    assert tail(driver.source) == (2, 6, 4, 11)
    assert driver.source.by_count.keys() == {1}
    assert (driver.source.memory_bytes, driver.source.bytes, driver.source.numbers[MAIN]) == (4, 15, 5)


def test_no_end_is_kept_of_a_cold_message_that_has_none_of_its_own() -> None:
    driver = with_tail(default_ttl_ms=LIFE_MS)
    driver.send(b"22", partition_key="k")
    assert tail(driver.source)[2] == 1
    assert driver.source.expiring == []


def test_a_cold_message_ends_at_its_own_time_and_no_other_does() -> None:
    driver = with_tail()
    driver.send(b"short", ttl_ms=LIFE_MS)
    driver.send(b"long", ttl_ms=5 * LIFE_MS)
    driver.send(b"ordinary")
    assert driver.fragment.deadline == START_MS + LIFE_MS
    driver.pass_time(LIFE_MS - 1)
    assert driver.source.tail_due == []
    driver.pass_time(1)
    assert driver.source.tail_due == [2]
    assert driver.fragment.deadline == START_MS + 5 * LIFE_MS
    assert fetch(driver, rows(driver, 2)) == [b"short"]
    assert driver.stored().keys() == {1, 3, 4}
    assert tail(driver.source) == (2, 5, 2, len(b"longordinary"))
    assert driver.source.tail_due == []
    assert driver.source.numbers[MAIN] == 3
    driver.pass_time(4 * LIFE_MS)
    assert fetch(driver, rows(driver, 2)) == [b"long"]
    assert driver.stored().keys() == {1, 4}


def test_those_that_are_due_behind_the_last_row_come_with_the_next_fetch() -> None:
    driver = with_tail()
    driver.send(b"a", b"b", b"c", ttl_ms=LIFE_MS)
    driver.pass_time(LIFE_MS)
    assert driver.source.tail_due == [2, 3, 4]
    assert fetch(driver, rows(driver, 2, 2)) == [b"a", b"b"]
    assert driver.source.tail_due == [4]
    assert fetch(driver, rows(driver, 4)) == [b"c"]
    driver.source.tail_due = [5]
    # A store that has none of them is not asked again.
    assert fetch(driver, []) == []
    assert driver.source.tail_due == []
    assert driver.source.tail_count == 0


def test_what_came_into_memory_meanwhile_is_not_disposed_of_twice() -> None:
    driver = with_tail()
    driver.send(b"a", b"b", ttl_ms=LIFE_MS)
    driver.pass_time(LIFE_MS)
    found = rows(driver, 2)
    paged_tail.page_in(driver.fragment, 0, found[:1], is_last=False)
    assert fetch(driver, found) == [b"b"]


def test_a_new_life_knows_when_cold_messages_end_without_reading_them() -> None:
    driver = with_tail()
    driver.send(b"short", ttl_ms=LIFE_MS)
    driver.send(b"ordinary")
    driver.source.expiring.clear()
    driver.fragment.deadline = 1 << 60
    for row in rows(driver, 2):
        paged_tail.note_expiry(driver.fragment, 0, row)
    assert driver.source.expiring == [(START_MS + LIFE_MS, 2)]
    assert driver.fragment.deadline == START_MS + LIFE_MS


def test_a_page_brings_ordinary_messages_and_others_in_their_place() -> None:
    driver = with_tail()
    driver.send(b"22")
    driver.send(b"333", ttl_ms=LIFE_MS)
    driver.send(b"4")
    assert paged_tail.page_in(driver.fragment, 0, rows(driver, 2, 2), is_last=False) == 0
    assert tail(driver.source) == (4, 5, 1, 1)
    assert driver.source.memory_bytes == len(b"warm22333")
    assert paged_tail.page_in(driver.fragment, 0, rows(driver, 4), is_last=True) == 0
    assert tail(driver.source)[2:] == (0, 0)
    assert driver.source.memory_bytes == driver.source.bytes == len(b"warm223334")
    assert [message.payload for _, message in driver.lock(9)] == [b"warm", b"22", b"333", b"4"]


def test_a_page_keeps_how_often_a_message_was_delivered() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    (first, _), _ = driver.lock(2)
    driver.settle(ABANDON, first)
    fresh = Driver()
    fresh.source.next_count, fresh.source.tail_first = 3, 1
    fresh.source.tail_count = fresh.source.numbers[MAIN] = 2
    fresh.source.tail_bytes = fresh.source.bytes = 2
    paged_tail.page_in(fresh.fragment, 0, rows(driver), is_last=True)
    assert {message.payload: message.deliveries for _, message in fresh.lock(2)} == {b"a": 1, b"b": 0}


def test_nothing_is_missing_of_a_page_that_others_follow() -> None:
    driver = with_tail()
    driver.send(b"22")
    driver.send(b"333")
    assert paged_tail.page_in(driver.fragment, 0, rows(driver, 2, 1), is_last=False) == 0
    assert driver.source.tail_count == 1


def test_what_the_store_could_not_read_of_the_tail_counts_no_more_and_that_is_written() -> None:
    driver = with_tail()
    driver.send(b"22")
    driver.send(b"333")
    driver.fragment.dirty.clear()
    assert paged_tail.page_in(driver.fragment, 0, rows(driver, 2, 1), is_last=True) == 1
    assert (driver.source.numbers[MAIN], driver.source.bytes) == (2, len(b"warm22"))
    assert tail(driver.source)[2:] == (0, 0)
    assert driver.fragment.dirty == {0}


@pytest.mark.parametrize("requires_session", [False, True])
def test_recovery_counts_what_it_found_beside_what_there_was(requires_session: bool) -> None:
    fragment = Fragment("handle", 1, NUMBER, 1, bytes(10))
    source = fragment.add_source(SourceRow(1, 1, 0, 9), SourceSettings(requires_session=requires_session))
    # Three active, two dead, one deferred and one scheduled, of which one dead and one active one are read.
    source.numbers, source.bytes = [3, 2, 0, 1, 1], 700
    metadata = MessageMetadata(session_id="s").encode() if requires_session else None
    (dead,) = rows(dead_lettered())
    fragment.recover(0, [dead, StoredMessage(2, START_MS, 0, 1, b"active", metadata)])
    paged_tail.recovered(fragment, 0)
    if requires_session:
        assert (source.missing, source.numbers, source.bytes) == (5, [1, 1, 0, 0, 0], len(b"deadactive"))
    else:
        assert (source.missing, source.numbers, source.bytes) == (3, [3, 1, 0, 0, 0], 700)
        assert tail(source) == (1, 9, 2, 700 - len(b"deadactive"))


def dead_lettered() -> Driver:
    driver = Driver()
    driver.send(b"dead")
    ((lock, _),) = driver.lock(1)
    driver.settle(DEAD_LETTER_OUTCOME, lock)
    return driver


def test_a_page_is_at_most_half_a_window_and_at_least_one_row() -> None:
    driver = with_tail()
    driver.send(*[b"x" * 100] * 7)
    assert driver.source.page_rows(1_000) == 5
    assert driver.source.page_rows(1_199) == 5
    assert driver.source.page_rows(10) == 1
    assert isinstance(driver.source.page_rows(1_001), int)


def test_housekeeping_of_a_queue_is_not_a_topics() -> None:
    assert not Housekeeping("handle", 0).at_topic
