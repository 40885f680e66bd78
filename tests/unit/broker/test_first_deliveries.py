"""First deliveries of sessions: a mark covers them while it keeps up, and what it does not cover is written."""

from __future__ import annotations

import pytest

from duobus.fragment.sessions import delivery_counts as first_deliveries
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.delivery_batches import take_for_sessions
from duobus.fragment.sessions.lock_owner import LockOwner
from duobus.fragment.sessions.sessions import SessionLock
from duobus.storage.interface import CommitBatch
from kits.broker import sets_constants
from kits.fragment import Driver


class Nobody(LockOwner):
    """Holds a session and is told nothing."""


@pytest.fixture
def driver() -> Driver:
    return Driver(requires_session=True, lock_duration_ms=30_000)


def held(driver: Driver, name: str) -> SessionLock:
    lock = sessions.accept(driver.fragment, driver.source, name, Nobody(), driver.now_ms)
    assert lock is not None
    return lock


def sent(driver: Driver, *names: str) -> None:
    for name in names:
        driver.commit(driver.run(name.encode(), session_id=name))


def given(driver: Driver, lock: SessionLock, number: int = 1) -> None:
    assert len(take_for_sessions(driver.fragment, driver.source, [(lock, number, lock.until_ms)])[1]) == number


def changed(commit: CommitBatch) -> list[tuple[int, int]]:
    return [(count, deliveries) for _, count, _, deliveries, _ in commit.changes]


def counts_after_a_crash(driver: Driver) -> dict[int, int]:
    return {count: message.deliveries for count, message in driver.recovered().source.by_count.items()}


def test_what_is_handed_out_in_its_turn_needs_no_record_of_its_own(driver: Driver) -> None:
    locks = {name: held(driver, name) for name in "ab"}
    driver.commit()
    written = []
    for name in "abbaab":
        sent(driver, name)
        given(driver, locks[name])
        written += changed(driver.commit())
    assert written == []
    assert counts_after_a_crash(driver) == dict.fromkeys(range(1, 7), 1)


def test_a_message_that_nobody_wants_holds_the_mark_up_and_others_are_written(driver: Driver) -> None:
    lock = held(driver, "b")
    driver.commit()
    sent(driver, "a", "b", "b")
    given(driver, lock, 2)
    assert changed(driver.commit()) == [(2, 1), (3, 1)]
    assert driver.source.highest_delivered == 0
    assert counts_after_a_crash(driver) == {1: 0, 2: 1, 3: 1}


def test_the_mark_goes_on_when_what_held_it_up_is_delivered(driver: Driver) -> None:
    locks = {name: held(driver, name) for name in "ab"}
    sent(driver, "a", "b", "b")
    given(driver, locks["b"], 2)
    driver.commit()
    given(driver, locks["a"])
    driver.commit()
    assert driver.source.highest_delivered == 3
    assert counts_after_a_crash(driver) == {1: 1, 2: 1, 3: 1}


def test_a_redelivery_is_written_wherever_the_mark_stands(driver: Driver) -> None:
    lock = held(driver, "a")
    driver.commit()
    sent(driver, "a")
    given(driver, lock)
    driver.commit(*sessions.release(driver.fragment, lock, driver.now_ms, counted=True))
    assert driver.source.highest_delivered == 1
    given(driver, held(driver, "a"))
    assert changed(driver.commit()) == [(1, 2)]


def test_a_message_of_a_commit_under_way_is_not_taken_for_one_that_is_gone(driver: Driver) -> None:
    driver.commit()
    driver.commit()
    _, done = driver.prepare(driver.run(b"a", session_id="a"))
    assert driver.source.highest_delivered == 0
    driver.release(done)
    driver.commit()
    assert driver.source.highest_delivered == 0
    assert counts_after_a_crash(driver) == {1: 0}


@sets_constants
def test_the_mark_passes_no_more_at_once_than_takes_a_millisecond(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_deliveries, "STEPS_MAX", 3)
    lock = held(driver, "a")
    sent(driver, *"aaaaaa")
    given(driver, lock, 6)
    marks = []
    for _ in range(4):
        driver.commit()
        marks.append(driver.source.highest_delivered)
    assert marks == [3, 6, 6, 6]


def test_a_redelivery_beside_a_first_delivery_does_not_carry_the_mark_over_what_lies_between() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    driver.source.highest_delivered = 1
    firsts = driver.source.firsts = first_deliveries.FirstDeliveries()
    firsts._released = 4
    driver.source.by_count[1].lock = driver.source.by_count[3].lock = 7
    firsts.given = [[driver.source.by_count[3], driver.source.by_count[1]]]
    assert firsts._move(driver.source) == 3
    assert driver.source.highest_delivered == 1


def test_a_turn_that_was_given_back_in_part_was_handed_out_as_a_whole() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    firsts = driver.source.firsts = first_deliveries.FirstDeliveries()
    firsts._released = 4
    driver.source.by_count[1].lock = driver.source.by_count[3].lock = 7
    firsts.given = [list(driver.source.by_count.values())]
    firsts._move(driver.source)
    assert driver.source.highest_delivered == 3
