"""Checkers of locks, settlements, counts and order: I2, I3, I6, I17, I18, I19, I20."""

from __future__ import annotations

from story import LOCK_MS, Story

from simulation.checkers import EntityRules, Setup
from simulation.history.events import (
    ABANDON,
    DEAD_LETTER,
    DEAD_LETTERED,
    DEFER,
    DEFERRED,
    RELEASE,
    LockEnded,
)

LOCK_LOST = "com.microsoft:message-lock-lost"


def sent(*uids: str) -> Story:
    story = Story()
    for uid in uids or ("m1",):
        story.send(uid)
    return story


# --- I2 ---


def test_a_second_delivery_under_a_living_lock_is_caught() -> None:
    story = sent()
    story.deliver("m1", 1)
    story.settle(story.deliver("m1", 1, connection="c2"))
    assert story.broken() == {2}


def test_locks_end_by_time_outcome_link_crash_and_epoch() -> None:
    for cause in ("time", "abandon", "abandon unanswered", "link", "crash", "epoch"):
        story = sent()
        first = story.deliver("m1", 1, epoch=1)
        if cause == "time":
            story.now = first.locked_until_ms
        if cause == "abandon":
            story.settle(first, ABANDON)
        if cause == "abandon unanswered":
            story.info(story.settlement(first, ABANDON))
        if cause == "link":
            story.lose_link()
        if cause == "crash":
            story.crash()
        story.deliver("m1", 1, connection="c2", epoch=2 if cause == "epoch" else 1)
        assert story.broken() == set(), cause


def test_a_renewed_lock_holds_to_its_new_end() -> None:
    story = sent()
    first = story.deliver("m1", 1)
    story.now += 20_000
    story.renew(first)
    story.now = first.locked_until_ms
    story.deliver("m1", 1, connection="c2")
    assert story.broken() == {2}


def test_an_abandon_that_was_refused_frees_nothing() -> None:
    story = sent()
    story.fail(story.settlement(story.deliver("m1", 1), ABANDON), "amqp:not-allowed")
    story.deliver("m1", 1, connection="c2")
    assert story.broken() == {2}


def test_a_notice_of_the_broker_is_exact_about_the_end_of_a_lock() -> None:
    for ended, broken in ((5, set[int]()), (50, {2})):
        story = sent()
        first = story.deliver("m1", 1, broker_ms=1)
        story.history.append(LockEnded(first.token or b"", "link", ended))
        story.deliver("m1", 1, broker_ms=10)
        assert story.broken() == broken


# --- I3 ---


def test_a_token_given_twice_is_caught() -> None:
    story = sent()
    first = story.deliver("m1", 1)
    story.settle(first, ABANDON)
    story.deliver("m1", 1, token=first.token)
    assert 3 in story.broken()


def test_a_superseded_token_that_is_honoured_is_caught() -> None:
    for stamped in (True, False):
        story = sent()
        first = story.deliver("m1", 1)
        story.lose_link()
        second = story.deliver("m1", 1, connection="c2")
        op = story.settlement(first, connection="c1")
        story.ok(op, broker_ms=story.now if stamped else None)
        story.info(story.settlement(second))
        assert 3 in story.broken()


def test_an_expired_token_that_is_honoured_is_caught() -> None:
    story = sent()
    first = story.deliver("m1", 1)
    story.now = first.locked_until_ms
    story.settle(first)
    assert story.broken() == {3}


def test_a_renewal_of_an_expired_lock_that_is_honoured_is_caught() -> None:
    story = sent()
    first = story.deliver("m1", 1)
    story.now = first.locked_until_ms + 1
    story.renew(first)
    assert story.broken() == {3}


def test_a_renewal_must_last_from_now() -> None:
    setup = Setup({"q": EntityRules(lock_ms=LOCK_MS)})
    for error, broken in ((0, set[int]()), (1, {3})):
        story = sent()
        first = story.deliver("m1", 1)
        story.now += 500
        story.renew(first, story.now + LOCK_MS + error)
        story.settle(first)
        assert story.broken(setup) == broken


def test_a_token_that_was_never_given_is_honoured_by_nobody() -> None:
    story = sent()
    story.settle(story.deliver("m1", 1, token=b"real"))
    story.history.events[-2].token = b"forged"  # type: ignore[attr-defined]
    assert 3 in story.broken()


def test_settling_twice_under_one_token_is_caught() -> None:
    story = sent()
    first = story.deliver("m1", 1)
    story.settle(first)
    story.settle(first)
    assert story.broken() == {3}


def test_a_lock_lost_without_any_reason_is_caught() -> None:
    for reason in ("none", "expired", "link", "crash", "unanswered", "notice"):
        story = sent()
        first = story.deliver("m1", 1)
        if reason == "expired":
            story.now = first.locked_until_ms
        if reason == "link":
            story.lose_link()
        if reason == "crash":
            story.crash()
        if reason == "unanswered":
            story.info(story.settlement(first))
        if reason == "notice":
            story.history.append(LockEnded(first.token or b"", "released", story.now))
        story.fail(story.settlement(first), LOCK_LOST)
        assert story.broken() == ({3} if reason == "none" else set()), reason


# --- I6 ---


def test_counts_that_skip_repeat_or_start_high_are_caught() -> None:
    for counts in ((2,), (1, 3), (1, 1), (1, 2, 2)):
        story = sent()
        for count in counts:
            story.settle(story.deliver("m1", 1, delivery_count=count), ABANDON)
        assert story.broken() == {6}, counts


def test_a_released_delivery_does_not_count() -> None:
    for second, broken in ((1, set[int]()), (2, {6})):
        story = sent()
        story.settle(story.deliver("m1", 1), RELEASE)
        story.settle(story.deliver("m1", 1, delivery_count=second))
        assert story.broken() == broken


def test_deliveries_lost_with_a_connection_may_leave_a_gap() -> None:
    story = sent()
    story.deliver("m1", 1)
    story.lose_link()
    story.settle(story.deliver("m1", 1, delivery_count=4, connection="c2"))
    assert story.broken() == set()


def test_a_count_that_changes_in_a_dead_letter_queue_is_caught() -> None:
    for second, broken in ((1, set[int]()), (2, {6})):
        story = sent()
        story.settle(story.deliver("m1", 1), DEAD_LETTERED)
        letter = {"subqueue": DEAD_LETTER, "reason": "poison"}
        story.settle(story.deliver("m1", 1, delivery_count=1, **letter), ABANDON)
        story.settle(story.deliver("m1", 1, delivery_count=second, **letter))
        assert story.broken() == broken


def test_more_deliveries_than_allowed_are_caught() -> None:
    story = sent()
    for _ in range(3):
        story.settle(story.deliver("m1", 1), ABANDON)
    assert story.broken(Setup({"q": EntityRules(max_delivery_count=3)})) == set()
    assert story.broken(Setup({"q": EntityRules(max_delivery_count=2)})) == {6}


def test_a_crash_may_forget_what_no_commit_followed() -> None:
    story = sent()
    story.deliver("m1", 1)
    story.crash()
    story.settle(story.deliver("m1", 1, delivery_count=1))
    assert story.broken() == set()


def test_a_crash_may_not_forget_what_a_commit_followed() -> None:
    for count, broken in ((2, set[int]()), (1, {6})):
        story = sent()
        story.deliver("m1", 1)
        story.send("m2")
        story.crash()
        story.settle(story.deliver("m1", 1, delivery_count=count))
        story.settle(story.deliver("m2", 2))
        assert story.broken() == broken


def test_a_commit_that_began_before_the_delivery_proves_nothing() -> None:
    story = sent()
    op = story.begin("m2")
    story.deliver("m1", 1)
    story.ok(op)
    story.crash()
    story.settle(story.deliver("m1", 1, delivery_count=1))
    story.settle(story.deliver("m2", 2))
    assert story.broken() == set()


def test_a_crash_may_not_forget_an_acknowledged_abandon() -> None:
    story = sent()
    story.settle(story.deliver("m1", 1), ABANDON)
    story.settle(story.deliver("m1", 1), ABANDON)
    story.crash()
    story.settle(story.deliver("m1", 1, delivery_count=2))
    assert story.broken() == {6}


def test_only_the_epoch_tells_of_a_crash_and_less_is_demanded() -> None:
    story = sent()
    story.deliver("m1", 1, epoch=1)
    story.settle(story.deliver("m1", 1, epoch=2, delivery_count=1))
    assert story.broken() == set()


def test_a_dead_lettered_message_that_comes_from_the_main_queue_is_caught() -> None:
    story = sent()
    story.info(story.settlement(story.deliver("m1", 1), DEAD_LETTERED))
    story.settle(story.deliver("m1", 1, subqueue=DEAD_LETTER, delivery_count=1, reason="poison"))
    story.settle(story.deliver("m1", 1, delivery_count=2))
    assert story.broken() == {6}


def test_a_message_dead_lettered_twice_is_caught() -> None:
    story = sent()
    story.settle(story.deliver("m1", 1, subqueue=DEAD_LETTER))
    story.settle(story.deliver("m1", 2, subqueue=DEAD_LETTER))
    assert 6 in story.broken()


# --- I17 ---


def test_a_completed_message_that_comes_again_is_caught() -> None:
    story = sent()
    story.settle(story.deliver("m1", 1))
    story.crash()
    story.deliver("m1", 1)
    assert story.broken() == {17}


def test_a_deferred_message_comes_only_when_asked_for() -> None:
    for mode, broken in ((DEFERRED, set[int]()), ("peek-lock", {17, 21})):
        story = sent()
        story.settle(story.deliver("m1", 1), DEFER)
        story.settle(story.deliver("m1", 1, mode=mode))
        assert story.broken() == broken


def test_a_late_transfer_of_an_older_delivery_is_no_second_one() -> None:
    story = sent()
    story.now = 50_000
    story.settle(story.deliver("m1", 1, delivery_count=2, connection="c2"))
    story.deliver("m1", 1, delivery_count=1, broker_ms=10)
    assert story.broken() == set()


# --- I18 ---


def test_a_settlement_answered_twice_or_never_is_caught() -> None:
    story = sent()
    op = story.settlement(story.deliver("m1", 1))
    story.ok(op)
    story.ok(op)
    assert story.broken() == {18}
    for link_dies, broken in ((True, set[int]()), (False, {18})):
        story = sent()
        story.settlement(story.deliver("m1", 1))
        if link_dies:
            story.lose_link()
        story.drain()
        assert story.broken() == broken


def test_a_refused_settlement_that_removed_the_message_is_caught() -> None:
    story = sent()
    story.fail(story.settlement(story.deliver("m1", 1)))
    story.drain()
    assert story.broken() == {1, 18}
    story = sent()
    story.fail(story.settlement(story.deliver("m1", 1)))
    story.now += 2 * LOCK_MS
    story.settle(story.deliver("m1", 1))
    story.drain()
    assert story.broken() == set()


# --- I19 ---


def test_a_newer_message_that_overtakes_a_returned_one_is_caught() -> None:
    for newer_first, broken in ((False, set[int]()), (True, {19})):
        story = sent("m1", "m2")
        story.settle(story.deliver("m1", 1), ABANDON)
        story.now += 1
        order = [("m2", 2), ("m1", 1)] if newer_first else [("m1", 1), ("m2", 2)]
        for uid, seq in order:
            story.settle(story.deliver(uid, seq))
        assert story.broken() == broken


def test_an_expired_lock_returns_its_message_to_the_front() -> None:
    story = sent("m1", "m2")
    story.deliver("m1", 1)
    story.now += LOCK_MS + 5000
    story.settle(story.deliver("m2", 2))
    story.settle(story.deliver("m1", 1))
    assert story.broken() == {19}
    assert story.broken(Setup(expiry_slack_ms=10_000)) == set()


def test_other_fragments_and_sessions_overtake_freely() -> None:
    for seq, session in ((1 << 48 | 1, None), (2, "s2")):
        story = sent("m1", "m2")
        story.settle(story.deliver("m1", 1, session=session and "s1"), ABANDON)
        story.now += 10
        story.settle(story.deliver("m2", seq, session=session))
        story.settle(story.deliver("m1", 1, session=session and "s1"))
        assert story.broken() == set()


def test_an_older_message_may_pass_a_returned_one() -> None:
    story = sent("m1", "m2")
    story.settle(story.deliver("m2", 2), ABANDON)
    story.now += 10
    story.settle(story.deliver("m1", 1))
    story.settle(story.deliver("m2", 2))
    assert story.broken() == set()


# --- I20 ---


def test_messages_of_a_dead_link_that_come_back_too_late_are_caught() -> None:
    for wait, broken in ((900, set[int]()), (5000, {20})):
        story = sent("m1", "m2")
        story.deliver("m1", 1)
        story.lose_link()
        story.now += wait
        story.settle(story.deliver("m2", 2, connection="c2"))
        story.settle(story.deliver("m1", 1, connection="c2"))
        assert story.broken(Setup(link_loss_ms=1000)) == broken


def test_a_late_notice_of_release_after_link_loss_is_caught() -> None:
    for late, broken in ((500, set[int]()), (5000, {20})):
        story = sent()
        first = story.deliver("m1", 1)
        story.lose_link()
        story.now += late
        story.history.append(LockEnded(first.token or b"", "link", story.now))
        assert story.broken(Setup(link_loss_ms=1000)) == broken


def test_a_disposition_of_another_link_that_is_honoured_is_caught() -> None:
    for management, broken in ((True, set[int]()), (False, {20})):
        story = sent()
        story.settle(story.deliver("m1", 1), connection="c2", management=management)
        assert story.broken() == broken
