"""What one turn brings for many sessions: one pass does what one call for each session would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.fragment.message import QueuedMessage
from duobus.fragment.send import Run
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.delivery_batches import take_for_sessions
from duobus.fragment.sessions.session import HELD_MIN
from duobus.fragment.sessions.sessions import LockOwner, SessionLock
from duobus.fragment.settlement import COMPLETE, DEAD_LETTER_OUTCOME, SettleBatch
from duobus.model.batches import SendBatch
from duobus.model.metadata import MessageMetadata, SessionMetadata
from kits.fragment import Driver

NAMES = ("a", "b", "c")


class Nobody(LockOwner):
    """Holds a session and is told nothing."""

    def offer(self) -> None:
        """See sessions.Owner."""


def held(driver: Driver, name: str) -> SessionLock:
    lock = sessions.accept(driver.fragment, driver.source, name, Nobody(), driver.now_ms)
    assert lock is not None
    return lock


def sent(driver: Driver, names: list[str], *, apart: bool = False) -> Run:
    """One message for each name in one run; ``apart``: told of in the way of rare messages."""
    run = driver.run(*[b"%d" % index for index in range(len(names))])
    batch: SendBatch = run.batch
    if apart:
        batch.extra = {index: MessageMetadata(session_id=name) for index, name in enumerate(names)}
    else:
        batch.sessions = [SessionMetadata(session_id=name) for name in names]
    driver.commit(run)
    return run


def taken(driver: Driver, *asked: tuple[SessionLock, int]) -> list[QueuedMessage]:
    return take_for_sessions(driver.fragment, driver.source, [(lock, number, lock.until_ms) for lock, number in asked])[
        1
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8), min_size=1, max_size=4),
    st.sets(st.sampled_from(NAMES)),
    st.sampled_from([None, 60_000]),
)
def test_both_ways_in_leave_the_same(runs: list[list[str]], holders: set[str], ttl_ms: int | None) -> None:
    quick, thorough = (Driver(requires_session=True, default_ttl_ms=ttl_ms) for _ in range(2))
    for driver, apart in ((quick, False), (thorough, True)):
        locks = [held(driver, name) for name in sorted(holders)]
        for names in runs:
            sent(driver, names, apart=apart)
        assert len(driver.fragment.notified) == len({lock.number for lock in driver.fragment.notified})
        assert all(lock in locks for lock in driver.fragment.notified)
    views = []
    for driver in (quick, thorough):
        source = driver.source
        assert source.sessions is not None
        found = source.sessions.next_free(source)
        views.append(
            (
                {name: (sorted(s.counts), s.available) for name, s in source.sessions.by_id.items()},
                sorted(source.expiring),
                source.memory_bytes,
                source.numbers,
                source.bytes,
                found and (found[0].session_id, found[1].count),
                [lock.session_id for lock in driver.fragment.notified],
                driver.fragment.fresh,
                [(row.count, row.payload, row.metadata) for row in driver.store.load(source.source_key, 1, 100)],
            )
        )
    assert views[0] == views[1]
    for driver in (quick, thorough):
        driver.pass_time(60_000)
        driver.commit()
        assert driver.source.numbers[0] == (0 if ttl_ms else sum(map(len, runs)))


@pytest.fixture
def one() -> Driver:
    return Driver(requires_session=True, lock_duration_ms=30_000)


def test_a_turn_locks_for_each_holder_what_is_its_own_in_order(one: Driver) -> None:
    locks = {name: held(one, name) for name in NAMES}
    sent(one, ["a", "b", "a", "c", "b", "a"])
    messages = taken(one, (locks["a"], 2), (locks["c"], 1), (locks["b"], 2))
    assert [message.payload for message in messages] == [b"0", b"2", b"3", b"1", b"4"]
    assert [message.lock for message in messages] == list(range(messages[0].lock, messages[0].lock + 5))
    assert [locks[name].held for name in "acb"] == [
        [message.lock for message in part] for part in (messages[:2], messages[2:3], messages[3:])
    ]
    assert one.fragment.next_lock == messages[-1].lock + 1
    assert [sessions.available(locks[name]) for name in NAMES] == [1, 0, 0]


def test_a_turn_passes_over_what_was_disposed_of_meanwhile(one: Driver) -> None:
    lock = held(one, "a")
    sent(one, ["a", "a", "a"])
    gone = one.source.by_count[2]
    one.source.withdraw(gone)
    gone.lock = -1
    assert [message.payload for message in taken(one, (lock, 2))] == [b"0", b"2"]
    assert lock.session.counts == []


def test_what_a_turn_gave_goes_back_when_the_session_does(one: Driver) -> None:
    lock = held(one, "a")
    sent(one, ["a", "a"])
    taken(one, (lock, 2))
    one.commit(*sessions.release(one.fragment, lock, one.now_ms, counted=True))
    again = held(one, "a")
    assert [(message.payload, message.deliveries) for message in taken(one, (again, 2))] == [(b"0", 1), (b"1", 1)]


def test_first_deliveries_of_a_turn_survive_a_crash(one: Driver) -> None:
    lock = held(one, "a")
    sent(one, ["a", "b"])
    taken(one, (lock, 1))
    one.commit()
    life = one.recovered()
    assert [life.source.by_count[count].deliveries for count in (1, 2)] == [1, 0]


def test_a_settlement_over_several_sessions_takes_each_message_from_its_holder(one: Driver) -> None:
    locks = {name: held(one, name) for name in NAMES}
    sent(one, ["c", "a", "b"])
    messages = taken(one, *((locks[name], 1) for name in NAMES))
    command = SettleBatch(
        "handle", 0, None, prefix=one.fragment.prefix, outcome=COMPLETE, ranges=[(messages[0].lock, len(messages))]
    )
    command.claim(one.fragment)
    assert [lock.unsettled(one.source.locks) for lock in locks.values()] == [[], [], []]
    batch = one.commit(command)
    # Neighbours again, whatever the order of their holders.
    assert batch.removed == [(one.source.source_key, 1, 3)]
    assert one.source.by_count == {}


def test_a_message_that_becomes_a_dead_letter_leaves_what_its_session_shares_alone(one: Driver) -> None:
    lock = held(one, "a")
    run = sent(one, ["a", "a"])
    first, second = taken(one, (lock, 2))
    one.settle(DEAD_LETTER_OUTCOME, first.lock, reason="mine")
    assert first.metadata is not None
    assert (first.metadata.reason, first.metadata.session_id) == ("mine", "a")
    assert run.batch.sessions is not None
    assert second.metadata is run.batch.sessions[1]


def test_a_holder_keeps_no_list_of_all_that_it_ever_had(one: Driver) -> None:
    lock = held(one, "a")
    for _ in range(10 * HELD_MIN):
        sent(one, ["a", "a"])
        messages = taken(one, (lock, 2))
        command = SettleBatch(
            "handle", 0, None, prefix=one.fragment.prefix, outcome=COMPLETE, ranges=[(messages[0].lock, 1)]
        )
        command.claim(one.fragment)
        one.commit(command)
        # One of two is kept, so what may be struck off is at most as much again.
        assert len(lock.held) <= 2 * len(one.source.locks) + HELD_MIN + 2
    assert lock.unsettled(one.source.locks) == list(one.source.locks)
    one.commit(*sessions.release(one.fragment, lock, one.now_ms, counted=False))
    assert one.source.locks == {}


def test_a_settlement_tells_which_locks_are_lost(one: Driver) -> None:
    lock = held(one, "a")
    sent(one, ["a", "a", "a"])
    first, _, last = (message.lock for message in taken(one, (lock, 3)))
    prefix = one.fragment.prefix
    middle = SettleBatch("handle", 0, None, prefix=prefix, outcome=COMPLETE, ranges=[(first + 1, 1)])
    rest = SettleBatch("handle", 0, None, prefix=prefix, outcome=COMPLETE, ranges=[(first, 2), (last, 2)])
    for command in (middle, rest):
        command.claim(one.fragment)
        one.commit(command)
    assert (middle.lost, rest.lost) == ([], [first + 1, last + 1])
    assert one.source.by_count == {}
