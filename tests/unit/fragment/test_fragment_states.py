"""Every way of a message through a fragment, and the races inside one commit."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.codec import decode
from duobus.errors import MessageLockLost, MessageNotFound, NotAllowed, QuotaExceeded
from duobus.fragment import fragment as fragment_module
from duobus.fragment import peek as peek
from duobus.fragment import source as source_module
from duobus.fragment.message import DEAD_LETTER, GONE, MAIN, NEVER, QueuedMessage, kind_of, sub_queue_of
from duobus.fragment.peek import ENVELOPE_BYTES, PeekProgress
from duobus.fragment.purge import CancelScheduled
from duobus.fragment.receive import TakeAndRemove, TakeDeferred
from duobus.fragment.settlement import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, DEFER, TTL_EXPIRED
from duobus.fragment.source import SubQueue
from duobus.fragment.transfer import InsertMessages
from duobus.model.metadata import MessageMetadata
from kits.broker import sets_constants
from kits.fragment import NUMBER, START_MS, Box, Driver

MINUTE = 60_000


def test_nothing_can_be_received_before_its_commit_is_released() -> None:
    driver = Driver()
    _, done = driver.prepare(driver.run(b"a", b"b"))
    assert driver.waiting() == 0
    assert driver.lock(5) == []
    driver.release(done)
    assert [message.payload for _, message in driver.lock(5)] == [b"a", b"b"]


def test_counts_go_up_by_one_over_commits_and_lives() -> None:
    driver = Driver()
    assert driver.send(b"a", b"b") == [1, 2]
    assert driver.send(b"c") == [3]
    driver.settle(COMPLETE, *(lock for lock, _ in driver.lock(3)))
    assert driver.recovered().send(b"d") == [4]


def test_completing_removes_from_memory_and_store_in_one_range() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    locks = [lock for lock, _ in driver.lock(3)]
    command = driver.settlement(COMPLETE, *locks)
    batch = driver.commit(command)
    assert batch.removed == [(driver.source.source_key, 1, 3)]
    assert driver.picture() == driver.stored() == {}
    assert driver.source.numbers == [0] * 5
    assert driver.source.bytes == 0


def test_completing_out_of_order_removes_exactly_what_was_named() -> None:
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(6)])
    locks = [lock for lock, _ in driver.lock(6)]
    driver.settle(COMPLETE, locks[4], locks[0], locks[2])
    assert sorted(driver.picture()) == sorted(driver.stored()) == [2, 4, 6]


def test_an_abandoned_message_comes_back_first_and_counted() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    ((lock, _),) = driver.lock()
    driver.settle(ABANDON, lock)
    ((_, message),) = driver.lock()
    assert (message.payload, message.deliveries) == (b"a", 1)


def test_an_abandon_makes_a_dead_letter_when_deliveries_are_used_up() -> None:
    driver = Driver(max_delivery_count=2)
    driver.send(b"a")
    for _ in range(2):
        ((lock, _),) = driver.lock()
        driver.settle(ABANDON, lock)
    assert driver.lock() == []
    ((_, letter),) = driver.lock(sub_queue=DEAD_LETTER)
    assert letter.metadata is not None
    assert letter.metadata.reason == "MaxDeliveryCountExceeded"
    assert letter.count == 1


def test_dead_letters_never_wear_out_however_often_they_are_abandoned() -> None:
    driver = Driver(max_delivery_count=1)
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.settle(DEAD_LETTER_OUTCOME, lock)
    for _ in range(5):
        ((lock, _),) = driver.lock(sub_queue=DEAD_LETTER)
        driver.settle(ABANDON, lock)
    assert driver.waiting(DEAD_LETTER) == 1


def test_a_dead_letter_cannot_be_dead_lettered_again() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.settle(DEAD_LETTER_OUTCOME, lock, reason="r", description="d")
    ((lock, message),) = driver.lock(sub_queue=DEAD_LETTER)
    assert message.metadata is not None
    assert (message.metadata.reason, message.metadata.description) == ("r", "d")
    assert isinstance(driver.error_of(driver.settlement(DEAD_LETTER_OUTCOME, lock)), NotAllowed)
    assert driver.settle(COMPLETE, lock).lost == []


def test_long_dead_letter_texts_are_cut_at_4096_characters() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, message),) = driver.lock()
    driver.settle(DEAD_LETTER_OUTCOME, lock, reason="r" * 5000, description="d" * 5000)
    assert message.metadata is not None
    assert (len(message.metadata.reason or ""), len(message.metadata.description or "")) == (4096, 4096)


def test_a_deferred_message_is_found_by_its_number_only() -> None:
    """I21."""
    driver = Driver()
    driver.send(b"a", b"b")
    ((lock, _),) = driver.lock()
    driver.settle(DEFER, lock)
    assert [message.payload for _, message in driver.lock(5)] == [b"b"]
    first, messages, until_ms = driver.fragment.lock_deferred(0, MAIN, [1], driver.now_ms)
    assert until_ms == driver.now_ms + driver.settings.lock_duration_ms
    with pytest.raises(MessageNotFound):
        driver.fragment.lock_deferred(0, MAIN, [1], driver.now_ms)
    driver.settle(ABANDON, first)
    assert kind_of(messages[0].state) == 1
    assert isinstance(driver.error_of(TakeDeferred("handle", 0, MAIN, [1, 2], Box())), MessageNotFound)
    driver.commit(TakeDeferred("handle", 0, MAIN, [1], Box()))
    assert sorted(driver.stored()) == [2]


def test_a_lock_ends_at_its_instant_and_not_before() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.pass_time(MINUTE - 1)
    assert driver.waiting() == 0
    driver.pass_time(1)
    assert driver.waiting() == 1
    assert driver.settle(COMPLETE, lock).lost == [lock]
    ((_, message),) = driver.lock()
    assert message.deliveries == 1


def test_a_renewed_lock_holds_until_its_new_end() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.pass_time(MINUTE - 1)
    assert driver.fragment.renew(0, [lock], driver.now_ms) == driver.now_ms + MINUTE
    driver.pass_time(MINUTE - 1)
    assert driver.waiting() == 0
    driver.pass_time(1)
    assert driver.waiting() == 1
    assert driver.fragment.renew(0, [lock], driver.now_ms) is None


def test_renewing_several_locks_is_all_or_none() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"a", b"b")
    (first, _), (second, _) = driver.lock(2)
    driver.settle(COMPLETE, first)
    driver.now_ms += 1000
    assert driver.fragment.renew(0, [second, first], driver.now_ms) is None
    driver.pass_time(MINUTE - 1000)
    assert driver.waiting() == 1


@pytest.mark.parametrize(("counted", "deliveries"), [(True, 1), (False, 0)])
def test_given_back_locks_count_only_when_the_connection_was_lost(counted: bool, deliveries: int) -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    (lock, _), _ = driver.lock(2)
    assert driver.fragment.unlock(0, [(lock, 2)], driver.now_ms, counted=counted) == []
    assert [(message.payload, message.deliveries) for _, message in driver.lock(2)] == [
        (b"a", deliveries),
        (b"b", deliveries),
    ]


def test_an_unlock_of_the_last_delivery_asks_for_a_commit() -> None:
    driver = Driver(max_delivery_count=1)
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    work = driver.fragment.unlock(0, [(lock, 1)], driver.now_ms, counted=True)
    assert driver.waiting() == driver.waiting(DEAD_LETTER) == 0
    driver.commit(*work)
    assert driver.waiting(DEAD_LETTER) == 1


def test_an_expired_lock_of_the_last_delivery_makes_a_dead_letter_once() -> None:
    driver = Driver(max_delivery_count=1, lock_duration_ms=MINUTE)
    driver.send(b"a")
    driver.lock()
    driver.pass_time(MINUTE)
    driver.pass_time(MINUTE)
    assert driver.source.numbers == [0, 1, 0, 0, 0]
    assert driver.waiting(DEAD_LETTER) == 1


def test_lost_locks_are_named_and_the_others_settled() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    (first, _), (second, _) = driver.lock(2)
    assert driver.settle(COMPLETE, first).lost == []
    command = driver.settle(COMPLETE, first, second, second + 1)
    assert command.error is None
    assert command.lost == [first, second + 1]
    assert driver.picture() == {}


def test_a_strict_settlement_is_refused_as_a_whole_and_changes_nothing() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    assert isinstance(driver.error_of(driver.settlement(COMPLETE, lock, lock + 1, strict=True)), MessageLockLost)
    assert driver.settle(COMPLETE, lock).lost == []


def test_tokens_of_an_earlier_life_are_lost_even_if_the_counter_fits() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    prefix = driver.fragment.prefix
    later = driver.recovered()
    assert isinstance(later.error_of(later.settlement(COMPLETE, lock, prefix=prefix)), MessageLockLost)
    assert prefix[:2] == later.fragment.prefix[:2] == NUMBER.to_bytes(2, "big")
    assert prefix != later.fragment.prefix
    assert len(later.lock(5)) == 1


def test_own_time_to_live_removes_a_message_at_its_instant() -> None:
    driver = Driver()
    driver.send(b"short", ttl_ms=1000)
    driver.send(b"long")
    driver.pass_time(999)
    assert driver.waiting() == 2
    driver.pass_time(1)
    assert [message.payload for (message,) in [(message,) for _, message in driver.lock(5)]] == [b"long"]
    assert sorted(driver.stored()) == [2]


def test_each_message_of_a_queue_is_looked_at_when_its_own_life_ends() -> None:
    driver = Driver(default_ttl_ms=MINUTE)
    driver.send(b"a")
    driver.now_ms += 100
    driver.send(b"b")
    driver.pass_time(MINUTE - 100)
    assert driver.peek() == [b"b"]
    assert driver.fragment.deadline == driver.now_ms + 100


@pytest.mark.parametrize(("own", "default", "life"), [(None, 5000, 5000), (9000, 5000, 5000), (2000, 5000, 2000)])
def test_the_shorter_of_own_and_default_life_counts(own: int | None, default: int, life: int) -> None:
    driver = Driver(default_ttl_ms=default)
    driver.send(b"m", **({} if own is None else {"ttl_ms": own}))
    driver.pass_time(life - 1)
    assert driver.waiting() == 1
    driver.pass_time(1)
    assert driver.waiting() == 0
    assert driver.picture() == {}


@pytest.mark.parametrize("own", [None, 1000])
def test_an_expired_message_becomes_a_dead_letter_where_asked(own: int | None) -> None:
    driver = Driver(default_ttl_ms=1000, dead_letter_on_expiration=True)
    driver.send(b"m", **({} if own is None else {"ttl_ms": own}))
    driver.pass_time(1000)
    ((_, letter),) = driver.lock(sub_queue=DEAD_LETTER)
    assert letter.metadata is not None
    assert letter.metadata.reason == "TTLExpiredException"
    # Dead letters live for ever.
    driver.pass_time(10**9)
    assert len(driver.picture()) == 1


@pytest.mark.parametrize("own", [None, 1000])
def test_a_message_does_not_expire_under_its_holder(own: int | None) -> None:
    driver = Driver(default_ttl_ms=1000, lock_duration_ms=MINUTE)
    driver.send(b"m", **({} if own is None else {"ttl_ms": own}))
    ((lock, _),) = driver.lock()
    driver.pass_time(5000)
    assert driver.settle(COMPLETE, lock).lost == []


@pytest.mark.parametrize("own", [None, 1000])
def test_a_lapsed_message_is_gone_when_its_lock_ends(own: int | None) -> None:
    driver = Driver(default_ttl_ms=1000, lock_duration_ms=MINUTE)
    driver.send(b"m", **({} if own is None else {"ttl_ms": own}))
    driver.lock()
    driver.pass_time(MINUTE)
    assert driver.waiting() == 0
    driver.pass_time(1)
    assert driver.picture() == driver.stored() == {}


def test_a_message_abandoned_after_its_life_is_not_delivered_again() -> None:
    driver = Driver(default_ttl_ms=1000, lock_duration_ms=MINUTE)
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.now_ms += 2000
    driver.settle(ABANDON, lock)
    driver.pass_time(0)
    assert driver.lock(5) == []
    assert driver.picture() == {}


def deferred(driver: Driver, **metadata: Any) -> int:
    """Send a message and defer it; returns its count."""
    (count,) = driver.send(b"m", **metadata)
    ((lock, _),) = driver.lock()
    driver.settle(DEFER, lock)
    return count


@pytest.mark.parametrize("own", [None, 5000])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_deferred_message_does_not_expire_by_itself(own: int | None, crashes: bool) -> None:
    driver = Driver(default_ttl_ms=6000 if own else 5000)
    deferred(driver, **({} if own is None else {"ttl_ms": own}))
    driver = driver.recovered() if crashes else driver
    driver.pass_time(50_000)
    driver.pass_time(50_000)
    assert len(driver.picture()) == len(driver.stored()) == 1
    assert driver.peek() == [b"m"]
    assert driver.source.numbers == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("asks", ["locking", "removing"])
@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_deferred_message_that_has_run_out_goes_when_it_is_asked_for(asks: str, dead_letters: bool) -> None:
    driver = Driver(default_ttl_ms=5000, dead_letter_on_expiration=dead_letters)
    count = deferred(driver)
    other = deferred(driver, ttl_ms=100)
    driver.pass_time(1000)
    young = deferred(driver)
    driver.pass_time(4000)
    if asks == "locking":
        with pytest.raises(MessageNotFound, match=str(NUMBER << 48 | count)):
            driver.fragment.lock_deferred(0, MAIN, [count, young], driver.now_ms)
    else:
        assert isinstance(driver.error_of(TakeDeferred("handle", 0, MAIN, [count, young], Box())), MessageNotFound)
    assert driver.fragment.deadline <= driver.now_ms
    assert len(driver.peek()) == 2
    driver.commit()
    # Nobody has asked for the other one, and one of those asked for has life left.
    assert driver.source.numbers == [0, 1 if dead_letters else 0, 0, 2, 0]
    assert driver.picture().keys() == driver.stored().keys() == {other, young} | ({count} if dead_letters else set())
    if dead_letters:
        ((_, letter),) = driver.lock(5, DEAD_LETTER)
        assert letter.metadata is not None
        assert (letter.count, letter.metadata.reason) == (count, TTL_EXPIRED)
    assert driver.fragment.lock_deferred(0, MAIN, [young], driver.now_ms)[1]


@pytest.mark.parametrize("ends", ["abandoned", "lock ended", "deferred again"])
def test_a_deferred_message_that_runs_out_while_it_is_locked_is_deferred_again(ends: str) -> None:
    driver = Driver(lock_duration_ms=MINUTE, default_ttl_ms=1000)
    count = deferred(driver)
    first, _, _ = driver.fragment.lock_deferred(0, MAIN, [count], driver.now_ms)
    driver.pass_time(2000)
    if ends == "lock ended":
        driver.pass_time(MINUTE)
    else:
        driver.settle(ABANDON if ends == "abandoned" else DEFER, first)
    driver.pass_time(1)
    assert driver.source.numbers == [0, 0, 0, 1, 0]
    with pytest.raises(MessageNotFound):
        driver.fragment.lock_deferred(0, MAIN, [count], driver.now_ms)
    driver.commit()
    assert driver.picture() == driver.stored() == {}


def test_a_dead_letter_that_is_deferred_has_no_end() -> None:
    driver = Driver(default_ttl_ms=1000)
    (count,) = driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.settle(DEAD_LETTER_OUTCOME, lock)
    ((lock, _),) = driver.lock(1, DEAD_LETTER)
    driver.settle(DEFER, lock)
    driver.pass_time(5000)
    assert driver.fragment.lock_deferred(0, DEAD_LETTER, [count], driver.now_ms)[1]


@pytest.mark.parametrize("ends", ["abandoned", "lock ended", "link lost", "crash"])
@pytest.mark.parametrize("deliveries", [0, 1])
def test_the_delivery_count_stays_what_it_was_in_a_dead_letter_queue(ends: str, deliveries: int) -> None:
    driver = Driver(lock_duration_ms=MINUTE, max_delivery_count=2)
    driver.send(b"m")
    for _ in range(deliveries):
        driver.settle(ABANDON, driver.lock()[0][0])
    driver.settle(DEAD_LETTER_OUTCOME, driver.lock()[0][0])
    for _ in range(3):
        ((lock, message),) = driver.lock(1, DEAD_LETTER)
        assert message.deliveries == deliveries
        if ends == "abandoned":
            driver.settle(ABANDON, lock)
        elif ends == "lock ended":
            driver.commit()
            driver.pass_time(MINUTE)
        elif ends == "link lost":
            driver.commit(*driver.fragment.unlock(0, [(lock, 1)], driver.now_ms, counted=True))
        else:
            driver.commit()
            driver = driver.recovered()
        assert driver.stored()[1][1] == deliveries
    assert driver.lock(1, DEAD_LETTER)[0][1].deliveries == deliveries


def test_a_scheduled_message_gets_a_new_number_at_its_time() -> None:
    driver = Driver()
    driver.send(b"later", scheduled_ms=START_MS + 1000)
    driver.send(b"now")
    assert driver.source.numbers == [1, 0, 0, 0, 1]
    driver.pass_time(999)
    assert driver.waiting() == 1
    driver.pass_time(1)
    (_, now), (_, later) = driver.lock(5)
    assert (now.count, later.count, later.payload, later.enqueued_ms) == (2, 3, b"later", START_MS + 1000)
    assert later.metadata is not None
    assert later.metadata.enqueued_sequence_number == NUMBER << 48 | 1
    assert sorted(driver.stored()) == [2, 3]


@sets_constants
def test_of_many_that_are_due_at_once_no_commit_activates_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_module, "DUE_AT_ONCE", 3)
    driver = Driver()
    driver.send(*[b"m"] * 7, scheduled_ms=START_MS + MINUTE)
    driver.now_ms += MINUTE
    assert [len(driver.commit().puts[0].payloads) for _ in range(3)] == [3, 3, 1]
    assert driver.waiting() == 7


def test_a_time_in_the_past_does_not_schedule_at_all() -> None:
    driver = Driver()
    driver.send(b"m", scheduled_ms=START_MS - 1)
    assert driver.source.numbers == [1, 0, 0, 0, 0]
    assert driver.lock()[0][1].count == 1


def test_cancelling_is_all_or_none_and_final() -> None:
    driver = Driver()
    driver.send(b"a", b"b", scheduled_ms=START_MS + 1000)
    assert isinstance(driver.error_of(CancelScheduled("handle", 0, [1, 9], Box())), MessageNotFound)
    driver.commit(CancelScheduled("handle", 0, [1], Box()))
    assert isinstance(driver.error_of(CancelScheduled("handle", 0, [1], Box())), MessageNotFound)
    driver.pass_time(1000)
    assert [message.payload for _, message in driver.lock(5)] == [b"b"]


def test_activation_wins_over_a_cancel_of_the_same_commit() -> None:
    driver = Driver()
    driver.send(b"m", scheduled_ms=START_MS + 1000)
    driver.now_ms += 1000
    cancel = CancelScheduled("handle", 0, [1], Box())
    driver.commit(cancel)
    assert isinstance(cancel.error, MessageNotFound)
    assert [message.count for _, message in driver.lock(5)] == [2]
    assert len(driver.stored()) == 1


def test_a_cancel_before_the_instant_wins_over_the_activation() -> None:
    driver = Driver()
    driver.send(b"m", scheduled_ms=START_MS + 1000)
    driver.now_ms += 999
    _, done = driver.prepare(CancelScheduled("handle", 0, [1], Box()))
    # The instant comes while the commit is under way.
    driver.now_ms += 1
    assert driver.fragment.tick(driver.now_ms) == []
    driver.release(done)
    driver.pass_time(1)
    assert driver.picture() == driver.stored() == {}


def test_two_settlements_of_one_lock_in_one_commit_have_one_winner() -> None:
    driver = Driver()
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    first, second = driver.settlement(COMPLETE, lock), driver.settlement(ABANDON, lock)
    driver.commit(first, second)
    assert (first.lost, second.lost) == ([], [lock])
    assert driver.picture() == driver.stored() == {}


def test_a_settlement_under_way_is_not_overtaken_by_the_end_of_its_lock() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.now_ms += MINUTE - 1
    _, done = driver.prepare(driver.settlement(ABANDON, lock))
    driver.now_ms += 1
    assert driver.fragment.tick(driver.now_ms) == []
    driver.release(done)
    ((_, message),) = driver.lock(5)
    assert message.deliveries == 1


def test_the_end_of_a_lock_wins_over_a_settlement_of_the_same_commit() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.now_ms += MINUTE
    command = driver.settle(COMPLETE, lock)
    assert command.lost == [lock]
    assert driver.waiting() == 1


def test_two_takes_of_one_deferred_message_have_one_winner() -> None:
    driver = Driver()
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.settle(DEFER, lock)
    first, second = (TakeDeferred("handle", 0, MAIN, [1], Box()) for _ in range(2))
    driver.commit(first, second)
    assert first.error is None
    assert isinstance(second.error, MessageNotFound)


def test_receive_and_delete_removes_before_it_shows() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    command = TakeAndRemove("handle", 0, MAIN, 2, None)
    driver.source.sub_queues[MAIN].promised += 2
    assert driver.waiting() == 1
    driver.commit(command)
    assert [message.payload for message in command.messages] == [b"a", b"b"]
    assert sorted(driver.stored()) == [3]
    assert driver.waiting() == 1


def test_overlays_are_laid_one_over_the_other_and_the_bytes_stay() -> None:
    driver = Driver(max_delivery_count=10)
    driver.send(b"bytes")
    ((lock, _),) = driver.lock()
    driver.settle(ABANDON, lock, properties={"a": 1, "b": "x"})
    ((lock, message),) = driver.lock()
    driver.settle(DEFER, lock, properties={"b": "y"})
    for found in (message, driver.recovered().source.by_count[1]):
        assert found.metadata is not None
        assert found.metadata.overlay is not None
        assert decode(found.metadata.overlay)[0] == {"a": 1, "b": "y"}
        assert found.payload == b"bytes"


def test_peek_shows_every_state_of_a_sub_queue_and_changes_nothing() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"active", b"locked")
    driver.send(b"scheduled", scheduled_ms=START_MS + 1000)
    driver.send(b"deferred", b"dead")
    driver.send(b"lapsed", ttl_ms=1)
    locks = {message.payload: lock for lock, message in driver.lock(10)}
    driver.settle(DEFER, locks[b"deferred"])
    driver.settle(DEAD_LETTER_OUTCOME, locks[b"dead"])
    driver.fragment.unlock(0, [(locks[b"active"], 1)], driver.now_ms, counted=False)
    driver.now_ms += 1
    before = driver.picture()
    assert driver.peek(MAIN) == [b"active", b"locked", b"scheduled", b"deferred"]
    assert driver.peek(MAIN, 2, 2) == [b"locked", b"scheduled"]
    assert driver.peek(DEAD_LETTER) == [b"dead"]
    assert driver.picture() == before


def test_peek_over_a_wide_gap_finds_the_few_that_are_left() -> None:
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(200)])
    locks = [lock for lock, _ in driver.lock(200)]
    driver.settle(COMPLETE, *locks[:50], *locks[51:])
    assert driver.peek(MAIN, 1, 10) == [b"50"]


def test_peek_ends_with_the_message_that_passes_its_bytes() -> None:
    driver = Driver()
    driver.send(*[b"m" * 1000] * 5)
    each = 1000 + ENVELOPE_BYTES
    assert [len(driver.peek(MAIN, size=size)) for size in (1, each, each + 1, 3 * each)] == [1, 1, 2, 3]


def test_peek_that_has_found_enough_says_where_it_has_not_looked_yet() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    sought = PeekProgress(MAIN, 0, 1, NEVER)
    assert not peek.peek(driver.fragment, 0, sought, NEVER, driver.now_ms)
    assert ([message.payload for message in sought.found], sought.first) == ([b"a"], 2)


def test_peek_looks_at_a_bounded_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek, "SPAN", 4)
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(10)])
    sought = PeekProgress(MAIN, 0, 100, NEVER)
    stretches = []
    while not peek.peek(driver.fragment, 0, sought, NEVER, driver.now_ms):
        stretches.append(len(sought.found))
    assert stretches == [4, 8]
    assert [message.payload for message in sought.found] == [b"%d" % index for index in range(10)]


def test_peek_shows_a_scheduled_message_however_long_it_waits() -> None:
    driver = Driver(default_ttl_ms=1000)
    driver.send(b"m", scheduled_ms=START_MS + 10_000)
    driver.pass_time(5000)
    assert driver.peek(MAIN) == [b"m"]
    driver.pass_time(5000)
    assert driver.peek(MAIN) == [b"m"]
    driver.pass_time(1000)
    assert driver.peek(MAIN) == []


def test_indexes_of_settled_messages_do_not_pile_up() -> None:
    driver = Driver(lock_duration_ms=300_000)
    for _ in range(40):
        driver.send(*[b"m"] * 100, ttl_ms=10**9)
        for lock, _ in driver.lock(100):
            driver.fragment.renew(0, [lock], driver.now_ms)
            driver.settlement(COMPLETE, lock)
        driver.settle(COMPLETE, *list(driver.source.locks))
        driver.fragment.deadline = 0
        driver.pass_time(1)
    assert len(driver.source.expiring) < 2000
    assert sum(len(ends) for ends in driver.source.ends.values()) < 2000
    assert driver.source.renewed == {}


@sets_constants
def test_what_is_still_there_expires_at_its_time_however_many_ends_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "COMPACT_FROM", 4)
    driver = Driver()
    driver.send(b"stays", ttl_ms=MINUTE)
    driver.send(*[b"goes"] * 20, ttl_ms=MINUTE)
    driver.settle(COMPLETE, *[lock for lock, message in driver.lock(21) if message.payload == b"goes"])
    driver.settle(ABANDON, *driver.source.locks)
    driver.fragment.deadline = 0
    driver.pass_time(1)
    assert len(driver.source.expiring) == 1
    driver.pass_time(MINUTE - 2)
    assert driver.peek() == [b"stays"]
    driver.pass_time(1)
    assert driver.picture() == {}


@sets_constants
def test_a_lock_ends_at_its_instant_however_many_ends_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "COMPACT_FROM", 4)
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(*[b"m"] * 20)
    driver.lock()
    for _ in range(19):
        driver.settle(COMPLETE, *[lock for lock, _ in driver.lock()])
    driver.fragment.deadline = 0
    driver.pass_time(1)
    assert sum(len(ends) for ends in driver.source.ends.values()) == 1
    driver.pass_time(MINUTE - 1)
    assert driver.waiting() == 1


def test_what_came_back_is_handed_out_in_its_order_after_others_were_forgotten() -> None:
    sub_queue = SubQueue()
    messages = {count: QueuedMessage(count, b"", START_MS) for count in (1, 5, 2)}
    for message in messages.values():
        sub_queue.give_back(message)
    messages[1].state = GONE
    sub_queue.stale = 1
    sub_queue.drop_stale()
    assert [message.count for message in sub_queue.take(5)] == [2, 5]


def test_nothing_is_kept_of_the_renewal_of_a_lock_that_was_given_back() -> None:
    driver = Driver()
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.fragment.renew(0, [lock], driver.now_ms)
    driver.fragment.unlock(0, [(lock, 1)], driver.now_ms, counted=False)
    assert driver.source.renewed == {}


def test_messages_that_expired_in_the_middle_of_their_list_do_not_pile_up() -> None:
    driver = Driver()
    driver.send(*[b"short"] * 2000, ttl_ms=1000)
    driver.send(b"long")
    driver.pass_time(1000)
    driver.pass_time(1)
    driver.fragment.deadline = 0
    driver.commit()
    assert len(driver.source.sub_queues[MAIN].ready) == 1
    assert [message.payload for _, message in driver.lock(9)] == [b"long"]


def test_numbers_follow_every_change_of_state() -> None:
    driver = Driver()
    driver.send(b"aa", b"bb", b"cc")
    driver.send(b"dddd", scheduled_ms=START_MS + 1000)
    (one, _), (two, _), _ = driver.lock(3)
    driver.settle(DEFER, one)
    driver.settle(DEAD_LETTER_OUTCOME, two)
    assert (driver.source.numbers, driver.source.bytes) == ([1, 1, 0, 1, 1], 10)
    assert driver.recovered().source.numbers == [1, 1, 0, 1, 1]


# -- another life -----------------------------------------------------------------------------------------------


def test_another_life_has_the_same_messages_in_the_same_states() -> None:
    driver = Driver(max_delivery_count=5)
    driver.send(b"plain", b"abandoned", b"deferred", b"dead")
    driver.send(b"scheduled", scheduled_ms=START_MS + 1000)
    driver.send(b"mortal", ttl_ms=5000)
    locks = {message.payload: lock for lock, message in driver.lock(4)}
    driver.settle(ABANDON, locks[b"abandoned"], properties={"k": "v"})
    driver.settle(DEFER, locks[b"deferred"])
    driver.settle(DEAD_LETTER_OUTCOME, locks[b"dead"], reason="r")
    driver.settle(ABANDON, locks[b"plain"])
    later = driver.recovered()
    assert driver.picture() == driver.stored()
    # The count of a dead letter stays what it was.
    assert later.picture() == driver.picture()
    assert later.source.bytes == driver.source.bytes
    later.pass_time(5000)
    assert [message.payload for _, message in later.lock(9)] == [b"plain", b"abandoned", b"scheduled"]


def test_what_may_have_been_delivered_counts_as_delivered_once() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    driver.lock(2)
    driver.send(b"d")
    later = driver.recovered()
    assert [(message.payload, message.deliveries) for _, message in later.lock(9)] == [
        (b"a", 1),
        (b"b", 1),
        (b"c", 0),
        (b"d", 0),
    ]


def test_a_crash_forgets_deliveries_since_the_last_commit_and_nothing_else() -> None:
    driver = Driver()
    driver.send(b"a")
    driver.lock()
    assert driver.recovered().lock()[0][1].deliveries == 0


def test_a_delivery_that_a_crash_interrupts_counts_only_if_something_was_committed_meanwhile() -> None:
    """The bound of TL9 that decision 0047 leaves: a message that ends the broker at once is not dead-lettered."""
    driver = Driver(max_delivery_count=2)
    driver.send(b"deadly")
    for _ in range(5):
        ((_, message),) = driver.lock()
        assert message.deliveries == 0
        driver = driver.recovered()
    for _ in range(2):
        driver.lock()
        driver.send(b"another")  # takes the delivery along
        driver = driver.recovered()
    driver.pass_time(1)
    ((_, letter),) = driver.lock(9, DEAD_LETTER)
    assert letter.payload == b"deadly"


def test_the_count_of_a_redelivery_survives_with_the_next_commit() -> None:
    driver = Driver(lock_duration_ms=MINUTE)
    driver.send(b"a")
    for _ in range(3):
        driver.lock()
        driver.pass_time(MINUTE)
    driver.lock()
    driver.send(b"another")
    # Three deliveries ended and one was under way: at least those are remembered.
    assert driver.recovered().lock()[0][1].deliveries == 4


def test_a_message_that_wore_out_before_the_crash_is_dead_lettered_by_the_first_tick() -> None:
    driver = Driver(max_delivery_count=1)
    driver.send(b"a")
    driver.lock()
    driver.send(b"b")
    later = driver.recovered()
    assert [message.payload for _, message in later.lock(9)] == [b"b"]
    later.pass_time(1)
    ((_, letter),) = later.lock(9, DEAD_LETTER)
    assert letter.payload == b"a"
    assert sub_queue_of(later.stored()[1][0]) == DEAD_LETTER


def test_a_deferred_message_of_an_earlier_life_expires_once() -> None:
    """Recovery notes the end of a cold message, paging it in notes it again (a bug once: it expired twice)."""
    driver = Driver()
    driver.send(b"m", ttl_ms=500)
    later = driver.recovered()
    ((lock, _),) = later.lock()
    later.settle(DEFER, lock)
    later.pass_time(500)
    assert isinstance(later.error_of(TakeDeferred("handle", 0, MAIN, [1], Box())), MessageNotFound)
    later.pass_time(0)
    assert later.picture() == later.stored() == {}
    assert later.source.numbers == [0] * 5


def test_a_deferral_tells_its_life_where_deliveries_may_be_forgotten() -> None:
    """The count of a message that was delivered, and forgotten by a crash, is that of its first delivery again."""
    driver = Driver()
    driver.send(b"same life", b"later life")
    (first, _), _ = driver.lock(2)
    driver.settle(DEFER, first)
    assert driver.stored()[1][3] is None
    later = driver.recovered()
    later.send(b"of its own")
    locks = {message.payload: lock for lock, message in later.lock(2)}
    for lock in locks.values():
        later.settle(DEFER, lock)
    told = {payload: metadata and metadata.deferred_in for _, _, payload, metadata in later.stored().values()}
    assert told == {b"same life": None, b"later life": later.fragment.epoch, b"of its own": None}
    # The lock token says the same.
    assert int.from_bytes(later.fragment.prefix[2:6], "big") == later.fragment.epoch


def test_a_message_that_may_have_been_delivered_in_an_earlier_life_expires_like_the_others() -> None:
    driver = Driver(default_ttl_ms=1_000)
    driver.send(b"a", b"b")
    driver.lock(1)
    driver.commit()
    driver = driver.recovered()
    assert [message.deliveries for message in driver.source.by_count.values()] == [1, 0]
    driver.pass_time(1_000)
    assert driver.picture() == {}


def test_a_deferred_message_cannot_be_had_at_the_instant_of_its_end() -> None:
    driver = Driver()
    (count,) = driver.send(b"a", ttl_ms=1_000)
    ((lock, _),) = driver.lock(1)
    driver.settle(DEFER, lock)
    with pytest.raises(MessageNotFound):
        driver.fragment.lock_deferred(0, MAIN, [count], START_MS + 1_000)
    assert driver.fragment.lock_deferred(0, MAIN, [count], START_MS + 999)[1]


def test_a_run_of_ordinary_messages_fits_into_the_window_as_a_whole() -> None:
    driver = Driver()
    driver.fragment.window_bytes = 1
    driver.send(b"a", b"b", b"c")
    assert driver.source.by_count.keys() == {1, 2, 3}
    driver.send(b"d", b"e")
    assert driver.source.tail_count == 2


def test_a_lock_token_begins_with_eight_bytes_that_name_the_life() -> None:
    driver = Driver()
    assert len(driver.fragment.prefix) == 8
    assert driver.fragment.prefix[6:] == bytes(range(2))


def test_commands_have_no_messages_before_they_are_done() -> None:
    commands = [
        TakeAndRemove("handle", 0, MAIN, 1, None),
        TakeDeferred("handle", 0, MAIN, [1], Box()),
        CancelScheduled("handle", 0, [1], Box()),
    ]
    assert [command.messages for command in commands] == [[], [], []]


def test_a_delay_of_the_entity_holds_for_abandons_that_say_nothing_of_one() -> None:
    driver = Driver(redelivery_delay_ms=500, redelivery_delay_maximum_ms=5_000, delayed_abandon=True)
    driver.send(b"a")
    ((lock, _),) = driver.lock(1)
    command = driver.settle(ABANDON, lock, properties={"why": "busy"})
    assert command.error is None
    assert driver.waiting() == 0
    driver.pass_time(499)
    assert driver.waiting() == 0
    driver.pass_time(1)
    assert driver.waiting() == 1


def test_settling_dead_letters_beside_others_counts_each_where_it_was() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    first, second, _ = (lock for lock, _ in driver.lock(3))
    driver.settle(DEAD_LETTER_OUTCOME, first)
    ((dead, _),) = driver.lock(1, DEAD_LETTER)
    driver.settle(COMPLETE, dead, second)
    assert driver.source.numbers == [1, 0, 0, 0, 0]
    assert driver.source.bytes == 1


def test_peek_behind_the_last_message_in_memory_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek, "HOLE_LEAST", 2)
    driver = Driver()
    driver.send(*[b"x"] * 9)
    locks = [lock for lock, _ in driver.lock(9)]
    driver.settle(COMPLETE, *locks[5:])
    assert driver.peek(first=6) == []
    assert driver.peek(first=5) == [b"x"]


@pytest.mark.parametrize("grows", [True, False])
def test_the_size_quota_has_a_say_in_what_comes_and_not_in_what_moves(grows: bool) -> None:
    driver = Driver(max_bytes=4)
    for size, fits in ((4, True), (5, not grows)):
        enter = InsertMessages("handle", 0, None, [b"x" * size], [MessageMetadata()], MAIN, grows=grows)
        error = enter.check(driver.fragment, driver.source, driver.now_ms)
        assert (error is None) is fits
        assert fits or isinstance(error, QuotaExceeded)
