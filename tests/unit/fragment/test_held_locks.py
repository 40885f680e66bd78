"""Looking at locks and sessions: pages are right however sparse the locks are, in pieces of bounded length."""

from __future__ import annotations

import random
from collections import deque

import pytest

from duobus.fragment.looking import held_locks, session_lists
from duobus.fragment.looking.held_locks import locked_messages, note_ends
from duobus.fragment.looking.session_lists import ids_after
from duobus.fragment.message import QueuedMessage
from duobus.fragment.sessions.session import Session
from duobus.fragment.source import Source, SourceSettings


def source_with(*counters: int) -> Source:
    source = Source(1, 0, SourceSettings(requires_session=True))
    for counter in counters:
        source.locks[counter] = QueuedMessage(counter, b"", 0)
    return source


def page(source: Source, after: int, limit: int) -> list[int]:
    *_, last = locked_messages(source, after, limit)
    return [counter for counter, _ in last]


def test_a_source_without_locks_has_an_empty_page() -> None:
    assert page(source_with(), -1, 10) == []


@pytest.mark.parametrize("step", [1, 3, 1_000])
def test_pages_have_every_lock_once_however_many_were_settled_in_between(step: int) -> None:
    counters = [number * step + 7 for number in range(1_000)]
    source = source_with(*counters)
    found: list[int] = []
    after = -1
    while part := page(source, after, 64):
        found += part
        after = part[-1]
    assert found == counters


def test_a_long_way_to_the_next_lock_is_gone_in_pieces() -> None:
    source = source_with(1, *range(held_locks.COUNTERS_AT_ONCE * 3, held_locks.COUNTERS_AT_ONCE * 3 + 400))
    pieces = list(locked_messages(source, 1, 10))
    assert len(pieces) > 2
    assert [counter for counter, _ in pieces[-1]] == [held_locks.COUNTERS_AT_ONCE * 3 + index for index in range(10)]


def test_the_end_of_a_lock_is_that_of_its_last_renewal() -> None:
    source = source_with(1, 2, 3, 4)
    source.ends = {1_000: deque([(5_000, 1, 3), (6_000, 2, 1)]), 2_000: deque([(5_500, 4, 1)])}
    found: dict[int, tuple[int, int]] = {}
    assert sum(note_ends(source, [1, 2, 4], found)) == 3
    assert found == {1: (4_000, 5_000), 2: (5_000, 6_000), 4: (3_500, 5_500)}
    assert list(note_ends(source, [], found)) == []


def test_ids_come_in_order_whatever_the_order_of_the_sessions() -> None:
    number = 2 * session_lists.IDS_AT_ONCE + 1_000
    names = [f"s{index:06}" for index in range(number)]
    random.Random(1).shuffle(names)
    source = source_with()
    assert source.sessions is not None
    for name in names[: number - 2_000]:
        source.sessions.by_id[name] = Session(name)
    for name in names[number - 4_000 :]:
        source.sessions.states[name] = (1, 1, 1)
    *_, last = ids_after(source, None, 12)
    assert last == sorted(names)[:12]
    *_, last = ids_after(source, f"s{number - 501:06}", 1_000)
    assert last == sorted(names)[-500:]
    assert len(list(ids_after(source, None, 5))) == 3
