"""Checkers of messages catch what they must and let right runs pass: I1, I7, I11, I13, I15, I16, I22."""

from __future__ import annotations

import pytest
from story import Story

from simulation.checkers import CHECKERS, EntityRules, InvariantViolated, Setup, check, require
from simulation.history.events import (
    ABANDON,
    DEAD_LETTER,
    DEAD_LETTERED,
    DEFER,
    RECEIVE_AND_DELETE,
    AskedFor,
    CancelBegin,
    Expired,
    Peeked,
    Quarantined,
)


def ordinary_run() -> Story:
    """Everything that may happen in a right run without faults."""
    story = Story()
    for number in range(1, 6):
        story.send(f"m{number}")
    first = story.deliver("m1", 1)
    story.settle(first, ABANDON)
    story.settle(story.deliver("m1", 1, connection="c2"))
    story.settle(story.deliver("m2", 2), DEAD_LETTERED)
    story.settle(story.deliver("m2", 2, subqueue=DEAD_LETTER, delivery_count=1, reason="poison"))
    story.deliver("m3", 3, mode=RECEIVE_AND_DELETE)
    story.settle(story.deliver("m4", 4), DEFER)
    story.settle(story.deliver("m4", 4, mode="deferred"))
    slow = story.deliver("m5", 5)
    story.now += 20_000
    story.renew(slow)
    story.now += 20_000
    story.settle(slow)
    story.drain()
    return story


def test_an_ordinary_run_breaks_nothing() -> None:
    setup = Setup({"q": EntityRules(lock_ms=30_000, fragments=(0,))}, link_loss_ms=1000)
    assert check(ordinary_run().history, setup) == []
    require(ordinary_run().history, setup)


def test_every_invariant_of_the_list_has_a_checker() -> None:
    missing = {10, 12, 24, 31, 33}
    assert set(CHECKERS) == {*range(1, 40), 41} - missing


def test_only_the_named_invariants_are_checked_when_asked() -> None:
    story = Story()
    story.send("lost")
    story.drain()
    assert [v.invariant for v in check(story.history, only=[1])] == [1]
    assert check(story.history, only=[2, 3]) == []


def test_require_raises_with_the_events_in_its_text() -> None:
    story = Story()
    story.send("lost")
    story.drain()
    with pytest.raises(InvariantViolated, match="I1: lost was acknowledged"):
        require(story.history)


# --- I1 ---


def test_an_acknowledged_message_that_never_comes_out_is_lost() -> None:
    story = Story()
    story.send("m1")
    story.drain()
    assert story.broken() == {1}


def test_a_message_that_vanishes_under_its_lock_is_lost() -> None:
    story = Story()
    story.send("m1")
    story.deliver("m1", 1)
    story.now += 100_000
    story.drain()
    assert story.broken() == {1}


def test_a_topic_that_forgets_one_subscription_loses_a_message() -> None:
    setup = Setup({"t": EntityRules(copies_at=("t/Subscriptions/a", "t/Subscriptions/b"))})
    story = Story()
    story.send("m1", "t")
    story.settle(story.deliver("m1", 1, "t/Subscriptions/a"))
    story.drain()
    assert story.broken(setup) == {1}


def test_messages_that_went_by_a_rule_are_not_lost() -> None:
    setup = Setup(purged=frozenset({"purged"}), lost_fragments=frozenset({("gone", 0)}))
    story = Story()
    for uid in ("purged", "deferred", "rotten"):
        story.send(uid)
    story.send("destroyed", "gone")
    story.send("short", ttl_ms=50)
    story.info(story.begin("unknown"))
    story.fail(story.begin("refused"))
    op = story.send("cancelled", scheduled_ms=10**6)
    story.history.events[-1].seq = 77  # type: ignore[attr-defined]
    assert op
    cancel = story.history.next_op()
    story.history.append(CancelBegin(cancel, "c1", "q", 77))
    story.ok(cancel)
    story.history.append(Quarantined("q", 9, "rotten"))
    story.now += 100
    story.drain("deferred")
    assert story.broken(setup) == set()


def test_an_unanswered_completion_may_have_removed_the_message_or_not() -> None:
    for redelivered in (False, True):
        story = Story()
        story.send("m1")
        story.info(story.settlement(story.deliver("m1", 1)))
        story.lose_link()
        if redelivered:
            story.settle(story.deliver("m1", 1, connection="c2"))
        story.drain()
        assert story.broken() == set()


# --- I7 ---


def test_one_sequence_number_for_two_messages_is_caught() -> None:
    story = Story()
    story.send("m1")
    story.settle(story.deliver("m1", 1))
    story.send("m2")
    story.settle(story.deliver("m2", 1))
    assert 7 in story.broken()


def test_a_later_message_with_a_lower_number_is_caught() -> None:
    story = Story()
    story.send("m1")
    story.send("m2")
    story.settle(story.deliver("m1", 5))
    story.settle(story.deliver("m2", 4))
    assert story.broken() == {7}


def test_concurrent_sends_may_be_numbered_either_way() -> None:
    story = Story()
    first, second = story.begin("m1"), story.begin("m2")
    story.ok(first)
    story.ok(second)
    story.settle(story.deliver("m2", 1))
    story.settle(story.deliver("m1", 2))
    assert story.broken() == set()


def test_a_number_of_a_fragment_that_does_not_exist_is_caught() -> None:
    story = Story()
    story.send("m1")
    story.settle(story.deliver("m1", 9 << 48 | 1))
    assert story.broken(Setup({"q": EntityRules(fragments=(0, 1))})) == {7}


# --- I11 ---


def test_a_ping_that_is_acknowledged_and_vanishes_is_right() -> None:
    story = Story()
    story.send("ping", ping=True)
    story.drain()
    assert story.broken() == set()


def test_a_ping_that_is_delivered_peeked_or_refused_is_caught() -> None:
    for spoil in ("delivered", "peeked", "refused"):
        story = Story()
        if spoil == "refused":
            story.fail(story.begin("ping", ping=True))
        else:
            story.send("ping", ping=True)
        if spoil == "delivered":
            story.settle(story.deliver("ping", 1))
        if spoil == "peeked":
            story.history.append(Peeked("q", 1, "ping", 0, story.now))
        assert story.broken() == {11}


# --- I13 ---


def test_a_message_received_and_deleted_twice_is_caught() -> None:
    story = Story()
    story.send("m1")
    story.deliver("m1", 1, mode=RECEIVE_AND_DELETE)
    story.crash()
    story.deliver("m1", 1, mode=RECEIVE_AND_DELETE)
    assert 13 in story.broken()


def test_a_second_copy_received_and_deleted_is_caught() -> None:
    story = Story()
    story.send("m1", key="k")
    story.deliver("m1", 1, mode=RECEIVE_AND_DELETE)
    story.deliver("m1", 2, mode=RECEIVE_AND_DELETE)
    assert story.broken() == {13, 16}


def test_a_retried_send_without_answer_may_leave_two_copies() -> None:
    story = Story()
    story.info(story.begin("m1"))
    story.send("m1")
    story.deliver("m1", 1, mode=RECEIVE_AND_DELETE)
    story.deliver("m1", 2, mode=RECEIVE_AND_DELETE)
    story.drain()
    assert story.broken() == set()


# --- I15 ---


def test_a_scheduled_message_in_time_is_right_and_an_early_one_is_caught() -> None:
    for at, broken in ((1000, set[int]()), (999, {15})):
        story = Story()
        story.send("m1", scheduled_ms=1000)
        story.settle(story.deliver("m1", 1, broker_ms=at))
        assert story.broken() == broken


def test_a_scheduled_message_shown_as_active_early_is_caught() -> None:
    for state, broken in ((2, set[int]()), (0, {15})):
        story = Story()
        story.send("m1", scheduled_ms=1000)
        story.history.append(Peeked("q", 1, "m1", state, 500))
        assert story.broken() == broken


def test_a_cancelled_message_that_is_delivered_is_caught() -> None:
    story = Story()
    op = story.begin("m1", scheduled_ms=1000)
    story.ok(op, seq=7)
    cancel = story.history.next_op()
    story.history.append(CancelBegin(cancel, "c1", "q", 7))
    story.ok(cancel)
    story.now = 1000
    story.settle(story.deliver("m1", 8))
    assert story.broken() == {15}


def test_a_scheduled_message_that_is_late_is_caught_when_asked() -> None:
    story = Story()
    story.send("m1", scheduled_ms=1000)
    story.settle(story.deliver("m1", 1, broker_ms=4000))
    assert story.broken() == set()
    assert story.broken(Setup(lateness_ms=2000)) == {15}


# --- I16 ---


def test_a_message_that_nobody_sent_is_caught() -> None:
    story = Story()
    story.settle(story.deliver("ghost", 1))
    assert story.broken() == {16}


def test_an_altered_body_and_altered_properties_are_caught() -> None:
    story = Story()
    story.send("m1", props_sha=b"p")
    story.settle(story.deliver("m1", 1, body_sha=b"other", props_sha=b"p"))
    assert story.broken() == {16}
    story = Story()
    story.send("m1", props_sha=b"p")
    story.settle(story.deliver("m1", 1, props_sha=b"other"))
    assert story.broken() == {16}


# --- I22 ---


def test_a_delivery_after_expiry_is_caught_for_both_kinds_of_ttl() -> None:
    setup = Setup({"q": EntityRules(ttl_ms=500)})
    for at, broken in ((500, set[int]()), (501, {22})):
        story = Story()
        story.send("m1", ttl_ms=9000)
        story.settle(story.deliver("m1", 1, broker_ms=at, enqueued_ms=0))
        assert story.broken(setup) == broken
    story = Story()
    story.send("m1", ttl_ms=100)
    story.settle(story.deliver("m1", 1, broker_ms=200, enqueued_ms=0))
    assert story.broken(setup) == {22}


def test_an_expired_message_goes_one_way_only() -> None:
    story = Story()
    story.send("m1", ttl_ms=100)
    story.history.append(Expired("q", 1, "m1", 150, dead_lettered=True))
    story.settle(story.deliver("m1", 1, subqueue=DEAD_LETTER, broker_ms=200, reason="TTLExpiredException"))
    assert story.broken(Setup({"q": EntityRules(dead_letter_on_expiry=True)})) == set()
    assert story.broken() == {22}


def test_a_deferred_message_that_expires_though_nobody_asked_for_it_is_caught() -> None:
    for asked, broken in (("before", set[int]()), ("after", {22}), ("for another", {22})):
        story = Story()
        story.send("m1", ttl_ms=100)
        story.settle(story.deliver("m1", 1), DEFER)
        if asked != "after":
            story.history.append(AskedFor("q", 1 if asked == "before" else 2))
        story.history.append(Expired("q", 1, "m1", 150, was_deferred=True))
        story.history.append(AskedFor("q", 1))
        assert story.broken() == broken


def test_an_expired_message_that_comes_again_is_caught() -> None:
    story = Story()
    story.send("m1", ttl_ms=100)
    story.history.append(Expired("q", 1, "m1", 150))
    story.settle(story.deliver("m1", 1, broker_ms=200))
    assert story.broken() == {22}
