"""Sessions inside a fragment: who may have which, in which order, and what is left of them after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.errors import MessageNotFound, QuotaExceeded, SessionLockLost
from duobus.fragment.message import DEAD_LETTER, MAIN, QueuedMessage
from duobus.fragment.receive import TakeAndRemove, TakeDeferred
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions import states as session_states
from duobus.fragment.sessions.lock_owner import LockOwner
from duobus.fragment.sessions.sessions import SessionLock
from duobus.fragment.sessions.states import SetSessionState
from duobus.fragment.settlement import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, DEFER, SettleBatch
from duobus.model.metadata import SessionMetadata
from kits.broker import sets_constants
from kits.fragment import START_MS, Box, Driver

LOCK_MS = 30_000


class Holder(LockOwner):
    """Counts what a session's holder is told."""

    def __init__(self) -> None:
        self.offers = 0
        self.losses = 0

    def offer(self) -> None:
        """See Owner."""
        self.offers += 1

    def lost(self) -> None:
        """See Owner."""
        self.losses += 1


class Sessions:
    """A driver of a fragment with sessions, with shorthands."""

    def __init__(self, driver: Driver | None = None, **settings: Any) -> None:
        settings.setdefault("lock_duration_ms", LOCK_MS)
        self.driver = driver or Driver(requires_session=True, **settings)

    @property
    def source(self) -> Any:
        """The fragment's source."""
        return self.driver.source

    def send(self, session_id: str, *payloads: bytes, **metadata: Any) -> list[int]:
        """Messages of one session."""
        return self.driver.send(*payloads, session_id=session_id, **metadata)

    def accept(self, session_id: str) -> SessionLock | None:
        """Lock a session."""
        driver = self.driver
        return sessions.accept(driver.fragment, driver.source, session_id, Holder(), driver.now_ms)

    def held(self, session_id: str) -> SessionLock:
        """Lock a session that nobody has."""
        lock = self.accept(session_id)
        assert lock is not None
        return lock

    def next(self) -> str | None:
        """The session that the next who comes is given; None for none."""
        found = self.source.sessions.next_free(self.source)
        return None if found is None else found[0].session_id

    def take(self, lock: SessionLock, limit: int = 1) -> list[QueuedMessage]:
        """Lock messages of a held session."""
        return sessions.take(self.driver.fragment, lock, limit)[1]

    def bodies(self, lock: SessionLock, limit: int = 10) -> list[bytes]:
        """Payloads of the same."""
        return [message.payload for message in self.take(lock, limit)]

    def release(self, lock: SessionLock, *, counted: bool = False) -> None:
        """Give a session back."""
        driver = self.driver
        driver.commit(*sessions.release(driver.fragment, lock, driver.now_ms, counted=counted))

    def claimed(self, outcome: int, *locks: int) -> SettleBatch:
        """A settlement as a link submits it."""
        command = self.driver.settlement(outcome, *locks)
        command.claim(self.driver.fragment)
        return command

    def set_state(self, lock: SessionLock, state: bytes | None) -> SetSessionState:
        """Set a state in a commit of its own."""
        command = SetSessionState("handle", lock, state, Box())
        self.driver.commit(command)
        return command

    def state(self, session_id: str) -> bytes | None:
        """The durable state, as the store has it."""
        entry = self.source.sessions.states.get(session_id)
        if entry is None:
            return None
        (row,) = self.driver.store.load(self.source.source_key, entry[0], 1)
        assert row.count == entry[0]
        return row.payload

    def recovered(self) -> Sessions:
        """Another life."""
        return Sessions(self.driver.recovered())


@pytest.fixture
def one() -> Sessions:
    """A fragment with sessions."""
    return Sessions()


def test_a_session_gives_its_own_messages_in_order(one: Sessions) -> None:
    one.send("a", b"a1")
    one.send("b", b"b1")
    one.send("a", b"a2")
    assert one.bodies(one.held("a")) == [b"a1", b"a2"]
    assert one.bodies(one.held("b")) == [b"b1"]


def test_a_session_has_one_holder_at_a_time(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    assert one.accept("a") is None
    one.release(lock)
    assert one.accept("a") is not None


def test_a_session_without_messages_can_be_held_by_name_even_the_empty_one(one: Sessions) -> None:
    assert one.accept("nothing yet") is not None
    assert one.accept("") is not None
    assert one.accept("") is None


def test_next_is_the_free_session_with_the_oldest_message(one: Sessions) -> None:
    for name in ("c", "a", "b"):
        one.send(name, b"x")
    one.send("c", b"y")
    order = []
    while (name := one.next()) is not None:
        order.append(name)
        one.held(name)
    assert order == ["c", "a", "b"]


def test_a_session_that_was_emptied_is_not_next(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    (message,) = one.take(lock)
    one.driver.settle(COMPLETE, message.lock)
    one.release(lock)
    assert one.next() is None
    assert one.source.sessions.by_id == {}


def test_a_session_counts_by_its_oldest_message_after_an_older_one_was_settled(one: Sessions) -> None:
    one.send("a", b"1")
    one.send("b", b"2")
    one.send("a", b"3")
    lock = one.held("a")
    (message,) = one.take(lock)
    one.driver.settle(COMPLETE, message.lock)
    one.release(lock)
    assert one.next() == "b"


def test_a_lock_that_runs_out_frees_the_session_and_counts_the_delivery(one: Sessions) -> None:
    one.send("a", b"1", b"2", b"3")
    lock = one.held("a")
    one.take(lock, 2)
    one.driver.pass_time(LOCK_MS)
    assert lock.is_over
    assert one.driver.fragment.ended == [lock]
    again = one.held("a")
    assert [(message.payload, message.deliveries) for message in one.take(again, 3)] == [
        (b"1", 1),
        (b"2", 1),
        (b"3", 0),
    ]


def test_a_renewed_lock_lasts_from_the_renewal_and_its_messages_with_it(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    one.take(lock)
    one.driver.pass_time(LOCK_MS - 1)
    assert sessions.renew(one.driver.fragment, one.source, lock, one.driver.now_ms) == START_MS + 2 * LOCK_MS - 1
    one.driver.pass_time(LOCK_MS - 1)
    assert not lock.is_over
    assert len(one.source.locks) == 1
    one.driver.pass_time(1)
    assert lock.is_over
    assert sessions.renew(one.driver.fragment, one.source, lock, one.driver.now_ms) is None


def test_a_lock_that_protects_nothing_ends_some_seconds_late_for_its_holder(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    one.driver.pass_time(LOCK_MS)
    assert (lock.is_over, one.driver.fragment.ended, one.next()) == (True, [], "a")
    assert one.driver.fragment.deadline == one.driver.now_ms + sessions.GRACE_MS
    one.driver.pass_time(sessions.GRACE_MS - 1)
    assert one.driver.fragment.ended == []
    one.driver.pass_time(1)
    assert one.driver.fragment.ended == [lock]
    assert not one.source.sessions.has_holders


def test_a_holder_whose_lock_has_run_out_gets_and_does_nothing(one: Sessions) -> None:
    lock = one.held("a")
    one.driver.pass_time(LOCK_MS)
    one.send("a", b"1")
    assert one.take(lock) == []
    assert isinstance(one.set_state(lock, b"new").error, SessionLockLost)
    assert one.state("a") is None


def test_whoever_accepts_the_session_ends_the_grace_of_its_former_holder(one: Sessions) -> None:
    one.send("a", b"1")
    former = one.held("a")
    one.driver.pass_time(LOCK_MS)
    lock = one.held("a")
    assert one.driver.fragment.ended == [former]
    assert sessions.renew(one.driver.fragment, one.source, former, one.driver.now_ms) is None
    assert one.bodies(lock) == [b"1"]
    one.driver.pass_time(sessions.GRACE_MS)
    assert one.driver.fragment.ended == [former]


def test_a_lock_that_is_renewed_within_the_grace_is_held_again_and_told_of_messages(one: Sessions) -> None:
    lock = one.held("a")
    one.driver.pass_time(LOCK_MS)
    one.send("a", b"1")
    assert one.next() == "a"
    one.driver.fragment.notified.clear()
    one.driver.pass_time(100)
    until_ms = one.driver.now_ms + LOCK_MS
    assert sessions.renew(one.driver.fragment, one.source, lock, one.driver.now_ms) == until_ms == lock.until_ms
    assert (one.next(), one.accept("a")) == (None, None)
    assert one.driver.fragment.notified == [lock]
    assert one.bodies(lock) == [b"1"]
    # It protects a message now.
    one.driver.pass_time(LOCK_MS)
    assert one.driver.fragment.ended == [lock]
    assert not one.source.sessions.has_holders


def test_a_link_that_closes_within_the_grace_leaves_nothing_behind(one: Sessions) -> None:
    lock = one.held("a")
    one.driver.pass_time(LOCK_MS)
    other = one.held("b")
    assert one.source.sessions.let_go("a", other) is None
    assert one.source.sessions.let_go("a", lock) is lock
    one.driver.pass_time(sessions.GRACE_MS)
    assert one.driver.fragment.ended == []


def test_of_a_batch_that_goes_to_several_fragments_each_message_keeps_its_session(one: Sessions) -> None:
    run = one.driver.run(b"a", b"b", session_id="x")
    run.batch.sessions = [SessionMetadata(session_id=name) for name in "ab"]
    run.indices = [1]
    one.driver.commit(run)
    assert one.next() == "b"
    assert one.bodies(one.held("b")) == [b"b"]


def test_a_source_whose_sessions_nobody_has_accepted_says_so(one: Sessions) -> None:
    one.send("a", b"1")
    assert not one.source.sessions.was_held
    one.held("a")
    assert one.source.sessions.was_held


def test_only_the_last_holder_of_a_session_may_come_back_within_the_grace(one: Sessions) -> None:
    first = one.held("a")
    one.driver.pass_time(LOCK_MS)
    second = one.held("a")
    one.driver.pass_time(LOCK_MS)
    assert sessions.renew(one.driver.fragment, one.source, first, one.driver.now_ms) is None
    assert (first.is_over, second.is_over) == (True, True)
    assert sessions.renew(one.driver.fragment, one.source, second, one.driver.now_ms) is not None
    assert not second.is_over


def test_the_lock_of_one_message_cannot_be_renewed(one: Sessions) -> None:
    one.send("a", b"1")
    (message,) = one.take(one.held("a"))
    assert one.driver.fragment.renew(0, [message.lock], one.driver.now_ms) is None


def test_giving_a_session_back_counts_no_delivery(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    one.take(lock)
    one.release(lock)
    (message,) = one.take(one.held("a"))
    assert (message.payload, message.deliveries) == (b"1", 0)


def test_a_settlement_after_the_session_was_lost_changes_nothing(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    (message,) = one.take(lock)
    token = message.lock
    one.driver.pass_time(LOCK_MS)
    command = one.claimed(COMPLETE, token)
    one.driver.commit(command)
    assert command.lost == [token]
    assert one.bodies(one.held("a")) == [b"1"]


def test_what_was_settled_before_the_session_was_given_back_stays_settled(one: Sessions) -> None:
    one.send("a", b"1", b"2")
    lock = one.held("a")
    first, _ = one.take(lock, 2)
    command = one.claimed(COMPLETE, first.lock)
    one.release(lock)
    assert one.bodies(one.held("a")) == [b"2"]
    one.driver.commit(command)
    assert [row.payload for row in one.driver.store.load(one.source.source_key, 1, 9)] == [b"2"]


def test_nothing_newer_goes_out_while_an_abandoned_message_is_on_its_way_back(one: Sessions) -> None:
    one.send("a", b"1", b"2")
    lock = one.held("a")
    (first,) = one.take(lock)
    command = one.claimed(ABANDON, first.lock)
    assert sessions.available(lock) == 0
    _, done = one.driver.prepare(command)
    assert one.bodies(lock) == []
    one.driver.release(done)
    assert one.driver.fragment.notified == [lock]
    assert one.bodies(lock) == [b"1", b"2"]


def test_nobody_is_given_a_session_while_an_abandoned_message_is_on_its_way_back(one: Sessions) -> None:
    one.send("a", b"1", b"2")
    lock = one.held("a")
    (first,) = one.take(lock)
    command = one.claimed(ABANDON, first.lock)
    one.release(lock)
    assert one.next() is None
    by_name = one.held("a")
    assert one.bodies(by_name) == []
    one.driver.commit(command)
    assert one.bodies(by_name) == [b"1", b"2"]


def test_an_abandon_by_token_holds_the_session_up_as_well(one: Sessions) -> None:
    one.send("a", b"1", b"2")
    lock = one.held("a")
    (first,) = one.take(lock)
    command = one.driver.settlement(ABANDON, first.lock, strict=True)
    command.holder = lock
    _, done = one.driver.prepare(command)
    assert command.error is None
    assert one.bodies(lock) == []
    one.driver.release(done)
    assert one.bodies(lock) == [b"1", b"2"]


def test_only_the_holder_settles_by_token(one: Sessions) -> None:
    one.send("a", b"1")
    one.send("b", b"2")
    mine, other = one.held("a"), one.held("b")
    (message,) = one.take(mine)
    for holder in (None, other):
        command = one.driver.settlement(COMPLETE, message.lock, strict=True)
        command.holder = holder
        assert isinstance(one.driver.error_of(command), SessionLockLost)
    command = one.driver.settlement(COMPLETE, message.lock, strict=True)
    command.holder = mine
    assert one.driver.error_of(command) is None


def test_a_message_abandoned_too_often_leaves_its_session(one: Sessions) -> None:
    one = Sessions(max_delivery_count=2)
    one.send("a", b"1", b"2")
    lock = one.held("a")
    for _ in range(2):
        (message,) = one.take(lock)
        assert message.payload == b"1"
        one.driver.commit(one.claimed(ABANDON, message.lock))
    assert one.bodies(lock) == [b"2"]
    assert [message.payload for _, message in one.driver.lock(1, DEAD_LETTER)] == [b"1"]


def test_dead_letters_need_no_session(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    (message,) = one.take(lock)
    one.driver.commit(one.claimed(DEAD_LETTER_OUTCOME, message.lock))
    one.release(lock)
    ((token, dead),) = one.driver.lock(1, DEAD_LETTER)
    assert dead.metadata is not None
    assert dead.metadata.session_id == "a"
    assert one.driver.fragment.renew(0, [token], one.driver.now_ms) is not None
    command = one.claimed(COMPLETE, token)
    one.driver.commit(command)
    assert command.lost == []
    assert one.driver.picture() == {}


def test_deferred_messages_are_for_the_holder_of_their_session(one: Sessions) -> None:
    (count,) = one.send("a", b"1")
    lock, other = one.held("a"), one.held("b")
    (message,) = one.take(lock)
    one.driver.commit(one.claimed(DEFER, message.lock))
    fragment, now_ms = one.driver.fragment, one.driver.now_ms
    with pytest.raises(MessageNotFound):
        sessions.lock_deferred(fragment, other, [count], now_ms)
    _, (deferred,), until_ms = sessions.lock_deferred(fragment, lock, [count], now_ms)
    assert (deferred.payload, until_ms) == (b"1", lock.until_ms)
    one.release(lock)
    with pytest.raises(SessionLockLost):
        sessions.lock_deferred(fragment, lock, [count], now_ms)


def test_a_deferred_message_of_a_session_expires_when_its_holder_asks_for_it() -> None:
    one = Sessions(default_ttl_ms=1000)
    (count,) = one.send("a", b"1")
    lock = one.held("a")
    (message,) = one.take(lock)
    one.driver.commit(one.claimed(DEFER, message.lock))
    one.driver.pass_time(2000)
    assert one.source.numbers == [0, 0, 0, 1, 0]
    with pytest.raises(MessageNotFound):
        sessions.lock_deferred(one.driver.fragment, lock, [count], one.driver.now_ms)
    one.driver.commit()
    assert one.driver.picture() == one.driver.stored() == {}


def test_sessions_with_messages_or_a_state_are_listed_once(one: Sessions) -> None:
    for name in ("state", "both"):
        lock = one.held(name)
        one.set_state(lock, b"s")
        one.release(lock)
    one.send("both", b"1")
    one.send("messages", b"2")
    one.send("taken", b"3")
    one.take(one.held("taken"))
    one.held("nothing")
    for number in (1, 100):
        found = [name for part in one.source.sessions.with_anything(one.source.locks, number) for name in part]
        assert sorted(found) == ["both", "messages", "state", "taken"]


def test_deferred_messages_are_removed_by_the_holder_alone(one: Sessions) -> None:
    (count,) = one.send("a", b"1")
    lock = one.held("a")
    (message,) = one.take(lock)
    one.driver.commit(one.claimed(DEFER, message.lock))
    stranger = TakeDeferred("handle", 0, MAIN, [count], Box())
    assert isinstance(one.driver.error_of(stranger), SessionLockLost)
    mine = TakeDeferred("handle", 0, MAIN, [count], Box(), lock)
    assert one.driver.error_of(mine) is None
    assert one.driver.stored() == {}


def test_receive_and_delete_takes_nothing_of_a_session_that_was_lost_meanwhile(one: Sessions) -> None:
    one.send("a", b"1")
    lock = one.held("a")
    lock.promised += 5
    command = TakeAndRemove("handle", 0, MAIN, 5, None, lock)
    one.release(lock)
    one.driver.commit(command)
    assert command.messages == []
    assert one.next() == "a"


def test_an_expired_message_leaves_its_session(one: Sessions) -> None:
    one.send("a", b"short", ttl_ms=1000)
    one.send("b", b"long")
    assert one.next() == "a"
    one.driver.pass_time(1000)
    assert one.next() == "b"
    assert one.driver.fragment.tick(one.driver.now_ms) == []
    assert [row[2] for row in one.driver.stored().values()] == [b"long"]


def test_the_entitys_own_life_holds_for_messages_of_sessions() -> None:
    one = Sessions(default_ttl_ms=1000, dead_letter_on_expiration=True)
    one.send("a", b"1")
    one.send("b", b"2")
    lock = one.held("b")
    one.take(lock)
    one.driver.pass_time(1000)
    assert one.next() is None
    assert len(one.driver.lock(5, DEAD_LETTER)) == 1
    one.release(lock)
    assert len(one.driver.lock(5, DEAD_LETTER)) == 1


def test_a_scheduled_message_joins_its_session_when_its_time_has_come(one: Sessions) -> None:
    one.send("a", b"later", scheduled_ms=START_MS + 5000)
    assert one.next() is None
    one.driver.pass_time(5000)
    assert one.next() == "a"
    assert one.bodies(one.held("a")) == [b"later"]


def test_the_holder_is_woken_once_for_what_comes(one: Sessions) -> None:
    lock = one.held("a")
    one.send("a", b"1")
    one.send("a", b"2")
    assert one.driver.fragment.notified == [lock]
    assert one.driver.fragment.fresh == set()


def test_a_state_is_seen_when_it_is_durable_and_replaces_the_one_before(one: Sessions) -> None:
    lock = one.held("a")
    command = SetSessionState("handle", lock, b"one", Box())
    _, done = one.driver.prepare(command)
    assert one.state("a") is None
    one.driver.release(done)
    assert one.state("a") == b"one"
    one.driver.commit(
        SetSessionState("handle", lock, b"two", Box()),
        SetSessionState("handle", lock, b"three", Box()),
    )
    assert one.state("a") == b"three"
    assert len(one.driver.store.load(one.source.source_key, 1, 9)) == 1
    assert one.source.sessions.state_bytes == 5


def test_a_cleared_state_leaves_no_row(one: Sessions) -> None:
    lock = one.held("a")
    one.set_state(lock, b"one")
    one.set_state(lock, None)
    assert one.state("a") is None
    assert one.driver.store.load(one.source.source_key, 1, 9) == []
    assert (one.source.sessions.states, one.source.sessions.decided) == ({}, {})


def test_a_state_is_no_message(one: Sessions) -> None:
    one.set_state(one.held("a"), b"one")
    assert one.next() is None
    assert one.driver.peek() == []
    assert sum(one.source.numbers) == 0


def test_only_the_holder_sets_a_state(one: Sessions) -> None:
    lock = one.held("a")
    one.set_state(lock, b"mine")
    one.driver.pass_time(LOCK_MS)
    assert isinstance(one.set_state(lock, b"stale").error, SessionLockLost)
    assert one.state("a") == b"mine"


def test_a_restart_keeps_states_and_order_and_no_lock(one: Sessions) -> None:
    one.send("a", b"a1", b"a2")
    one.send("b", b"b1")
    lock = one.held("a")
    one.set_state(lock, b"old")
    one.set_state(lock, b"new")
    one.take(lock, 1)
    one.driver.commit()
    later = one.recovered()
    assert later.state("a") == b"new"
    assert later.next() == "a"
    found = later.take(later.held("a"), 5)
    assert [(message.payload, message.deliveries) for message in found] == [(b"a1", 1), (b"a2", 0)]
    assert later.next() == "b"
    assert sum(later.source.numbers) == 3


def test_a_restart_does_not_count_what_was_never_delivered(one: Sessions) -> None:
    one = Sessions(max_delivery_count=1)
    one.send("a", b"a1")
    one.send("b", b"b1")
    one.take(one.held("b"))
    one.driver.commit()
    later = one.recovered()
    later.driver.commit()
    assert later.bodies(later.held("a")) == [b"a1"]


def test_locks_end_with_the_memory_of_the_fragment(one: Sessions) -> None:
    one.send("a", b"1")
    late = one.held("late")
    one.driver.pass_time(LOCK_MS)
    lock = one.held("a")
    assert sessions.forget_locks(one.driver.fragment) == [lock.owner, late.owner]
    assert lock.is_over
    assert sessions.renew(one.driver.fragment, one.source, late, one.driver.now_ms) is None


def test_the_heap_of_free_sessions_does_not_grow_with_accepting(one: Sessions) -> None:
    one.send("a", b"1")
    for number in range(5000):
        lock = one.held("a")
        if number % 2:
            one.take(lock)
        one.release(lock)
    assert len(one.source.sessions._free) < 10
    assert len(one.source.sessions._ends) <= 2 * sessions.COMPACT_FROM
    assert one.next() == "a"


def test_accepting_the_next_of_many_sessions_looks_at_few(one: Sessions) -> None:
    for number in range(2000):
        one.send(f"s{number}", b"x")
    looked = 0
    found = one.source.by_count

    class Counting(dict[int, QueuedMessage]):
        def get(self, key: int, default: Any = None) -> Any:
            nonlocal looked
            looked += 1
            return super().get(key, default)

    one.source.by_count = Counting(found)
    for number in range(2000):
        name = one.next()
        assert name == f"s{number}"
        one.held(name)
    assert looked < 3 * 2000


def test_nothing_is_left_of_a_session_whose_last_message_expired(one: Sessions) -> None:
    one.send("a", b"1", ttl_ms=1_000)
    one.driver.pass_time(1_000)
    assert one.source.sessions.by_id == {}


@sets_constants
def test_sessions_that_come_and_go_by_name_leave_a_bounded_heap(one: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "COMPACT_FROM", 8)
    for _ in range(40):
        one.send("a", b"1")
        lock = one.held("a")
        one.take(lock)
        one.driver.commit(one.claimed(COMPLETE, *lock.held))
        one.release(lock)
    assert len(one.source.sessions._free) <= 12


def test_a_session_that_somebody_has_or_waits_for_is_nobodys_next(one: Sessions) -> None:
    one.send("a", b"1", b"2")
    session = one.source.sessions.by_id["a"]
    assert one.source.sessions.list_free(one.source, session)
    session.returning = 1
    assert not one.source.sessions.list_free(one.source, session)
    session.returning = 0
    one.held("a")
    assert not one.source.sessions.list_free(one.source, session)


def test_only_messages_of_sessions_are_claimed_when_they_are_settled(one: Sessions) -> None:
    one.send("a", b"dead", b"later", b"active")
    lock = one.held("a")
    dead, later, active = (message.lock for message in one.take(lock, 3))
    one.driver.commit(one.claimed(DEAD_LETTER_OUTCOME, dead), one.claimed(DEFER, later))
    ((dead, _),) = one.driver.lock(1, DEAD_LETTER)
    assert not one.claimed(COMPLETE, dead).is_claimed
    _, (deferred,), _ = sessions.lock_deferred(one.driver.fragment, lock, [2], one.driver.now_ms)
    assert one.claimed(COMPLETE, deferred.lock, active).is_claimed


@sets_constants
def test_states_are_as_many_as_the_service_allows(one: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_states, "STATES_MAX", 2)
    locks = [one.held(name) for name in "abc"]
    errors = [one.set_state(lock, b"x").error for lock in locks]
    assert [type(error) for error in errors] == [type(None), type(None), QuotaExceeded]
    assert one.set_state(locks[0], b"y").error is None
    assert one.set_state(locks[2], None).error is None


def test_sessions_whose_state_was_set_are_listed_once_whatever_the_length_of_the_lists() -> None:
    found = sessions.Sessions()
    found.states = {name: (count, 1, 10 * count) for count, name in enumerate("abcde", 1)}
    assert list(found.set_since(15, 2)) == [["b"], ["c", "d"], ["e"]]
    assert list(found.with_anything({}, 2)) == [["a", "b"], ["c", "d"], ["e"]]
