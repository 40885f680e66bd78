"""What an outbox sends next: order per key, retries, and messages that can never be sent (I53)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.ha.outbox.plan import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, SINGLY_MAX, OutboxBatch, OutboxPlan


def taken(plan: OutboxPlan, now_ms: int = 0) -> OutboxBatch:
    batch = plan.take(now_ms)
    assert batch is not None
    return batch


def filled(*keys: str, **options: int) -> OutboxPlan:
    plan = OutboxPlan(**options)
    for number, key in enumerate(keys, 1):
        plan.add(number, key, 10)
    return plan


def test_messages_of_one_key_go_together_and_in_order() -> None:
    plan = filled("a", "b", "a", "a")
    assert (taken(plan).numbers, taken(plan).numbers) == ([1, 3, 4], [2])
    assert plan.take(0) is None


def test_a_key_whose_messages_are_on_their_way_waits_for_them() -> None:
    plan = filled("a")
    batch = taken(plan)
    plan.add(2, "a", 10)
    assert plan.take(0) is None
    plan.on_sent(batch)
    assert taken(plan).numbers == [2]


def test_a_batch_has_so_many_messages_and_no_more() -> None:
    plan = filled(*["a"] * (BATCH_MESSAGES_MAX + 1))
    assert len(taken(plan).numbers) == BATCH_MESSAGES_MAX


def test_a_batch_has_so_many_bytes_and_a_message_that_is_larger_goes_alone() -> None:
    plan = OutboxPlan()
    for number, size in enumerate((BATCH_BYTES_MAX - 10, 10, 1, BATCH_BYTES_MAX + 1), 1):
        plan.add(number, "", size)
    batches = []
    while (batch := plan.take(0)) is not None:
        batches.append(batch.numbers)
        plan.on_sent(batch)
    assert batches == [[1, 2], [3], [4]]
    assert (plan.messages, plan.size) == (0, 0)


def test_no_more_batches_are_on_their_way_than_allowed() -> None:
    plan = filled("a", "b", "c", in_flight=2)
    first = taken(plan)
    taken(plan)
    assert plan.take(0) is None
    plan.on_sent(first)
    assert taken(plan).key == "c"


def test_after_a_failure_the_same_messages_go_first_and_the_pause_doubles_up_to_the_longest() -> None:
    plan = filled("a", retry_first_ms=100, retry_last_ms=500)
    now, pauses = 0, []
    for _ in range(5):
        batch = taken(plan, now)
        assert batch.numbers == [1]
        pauses.append(plan.on_away(batch, now))
        assert plan.next_ms() == now + pauses[-1]
        assert plan.take(now + pauses[-1] - 1) is None
        now += pauses[-1]
    assert pauses == [100, 200, 400, 500, 500]
    plan.on_sent(taken(plan, now))
    plan.add(2, "a", 10)
    assert plan.on_away(taken(plan, now), now) == 100


def test_a_batch_that_may_not_go_yet_is_not_waited_for_by_the_clock() -> None:
    plan = filled("a", "b", in_flight=2)
    away, _ = taken(plan), taken(plan)
    plan.on_away(away, 0)
    assert plan.next_ms() is None, "the one that is on its way has to come back first"


def test_after_a_success_the_pauses_of_what_is_left_of_the_same_key_begin_anew() -> None:
    plan = filled(*["a"] * (BATCH_MESSAGES_MAX + 1), retry_first_ms=100)
    assert plan.on_away(taken(plan), 0) == 100
    assert plan.on_away(taken(plan, 100), 100) == 200
    plan.on_sent(taken(plan, 300))
    assert plan.on_away(taken(plan, 300), 300) == 100


def test_a_pause_is_shortened_by_chance() -> None:
    plan = filled("a", retry_first_ms=100)
    assert plan.on_away(taken(plan), 0, 0.5) == 50


def test_while_the_namespace_is_away_one_batch_at_a_time_finds_out_whether_it_is_back() -> None:
    plan = filled(*"abcdefgh", in_flight=8)
    for batch in [taken(plan) for _ in range(8)]:
        plan.on_away(batch, 0)
    first = taken(plan, 1_000)
    assert plan.take(1_000) is None
    plan.on_sent(first)
    assert plan.take(1_000) is not None
    assert plan.take(1_000) is not None
    assert plan.take(1_000) is None, "twice as many with each success"


def test_a_key_that_fails_does_not_hold_up_others() -> None:
    plan = filled("ill", "well", in_flight=1)
    plan.on_away(taken(plan), 0)
    assert taken(plan).key == "well"


def test_after_a_refused_list_its_messages_go_singly_and_the_one_at_fault_is_set_aside() -> None:
    plan = filled("a", "a", "a")
    assert plan.on_refused(taken(plan)) is None
    plan.on_sent(taken(plan))
    second = taken(plan)
    assert second.numbers == [2]
    assert plan.on_refused(second) == 2
    assert taken(plan).numbers == [3]


def test_lists_that_are_refused_although_each_message_is_taken_get_rare() -> None:
    """Duplicate detection on a partitioned entity refuses lists over several fragments."""
    plan = filled(*["a"] * 1_000)
    lists = 0
    while (batch := plan.take(0)) is not None:
        if len(batch.numbers) > 1:
            lists += 1
            plan.on_refused(batch)
        else:
            plan.on_sent(batch)
    assert plan.messages == 0
    assert lists < 6
    assert SINGLY_MAX < 1_000 << 16


def test_what_is_damaged_is_out_and_the_others_wait_again() -> None:
    plan = filled("a", "a", "a")
    assert plan.on_damaged(taken(plan), [2]) == [(2, 10)]
    assert taken(plan).numbers == [1, 3]
    assert (plan.messages, plan.size) == (2, 20)


def test_what_is_given_back_is_sent_again_and_a_late_answer_changes_nothing() -> None:
    plan = filled("a", "b")
    late, ill = taken(plan), taken(plan)
    plan.on_away(ill, 0)
    plan.give_back()
    assert not plan.on_sent(late)
    assert plan.on_away(late, 0) == 0
    assert plan.on_refused(late) is None
    assert sorted(taken(plan).numbers + taken(plan).numbers) == [1, 2]


def test_what_is_given_back_begins_with_the_first_pause() -> None:
    plan = filled("a", retry_first_ms=100)
    plan.on_away(taken(plan), 0)
    plan.give_back()
    assert plan.on_away(taken(plan), 0) == 100


@pytest.mark.parametrize("options", [{"in_flight": 0}, {"in_flight": 101}, {"retry_first_ms": 0}])
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has to be"):
        OutboxPlan(**options)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from(["take", "sent", "away", "refused"])))
def test_whatever_happens_each_message_arrives_in_the_order_of_its_key(keys: list[str], steps: list[str]) -> None:
    plan = filled(*keys, in_flight=2)
    order = {key: [n for n, k in enumerate(keys, 1) if k == key] for key in set(keys)}
    under_way: list[OutboxBatch] = []
    arrived: dict[str, list[int]] = {key: [] for key in order}
    now, aside = 0, set()

    def finish(batch: OutboxBatch, how: str) -> None:
        if how == "away":
            plan.on_away(batch, now)
        elif how == "refused":
            number = plan.on_refused(batch)
            if number is not None:
                aside.add(number)
        else:
            arrived[batch.key] += batch.numbers
            plan.on_sent(batch)

    for step in steps:
        now += 50
        if step == "take":
            batch = plan.take(now)
            if batch is not None:
                assert batch.key not in {other.key for other in under_way}
                under_way.append(batch)
        elif under_way:
            finish(under_way.pop(0), step)
    for batch in under_way:
        finish(batch, "sent")
    while plan.messages:
        now = max(now, plan.next_ms() or 0)
        finish(taken(plan, now), "sent")
    for key, numbers in order.items():
        assert arrived[key] == [number for number in numbers if number not in aside]
