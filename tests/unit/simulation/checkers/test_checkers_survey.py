"""Checkers of queues at rest: I23, I30, I32."""

from __future__ import annotations

import pytest
from story import Story

from simulation.checkers import EntityRules, Setup
from simulation.history.events import COMPLETE, DEAD_LETTER, DEAD_LETTERED, MAIN, Expired
from simulation.history.survey_events import Shown, Surveyed

ACTIVE, DEFERRED = 0, 1


def shown(uid: str, seq: int, subqueue: str = MAIN, state: int = ACTIVE, deliveries: int = 0) -> Shown:
    return Shown(subqueue, seq, uid, state, deliveries, 10, None)


def survey(story: Story, *rows: Shown, again: tuple[Shown, ...] | None = None, **seen: object) -> None:
    active = sum(1 for row in rows if row.subqueue == MAIN and row.state == ACTIVE)
    dead = sum(1 for row in rows if row.subqueue == DEAD_LETTER)
    deferred = sum(1 for row in rows if row.state == DEFERRED)
    numbers = seen.get("numbers", (active, dead, 0, deferred, 0))
    size = seen.get("size", 10 * len(rows))
    limit = seen.get("limit", 1)
    pages = tuple((row,) for row in rows)
    story.history.append(Surveyed("q", limit, pages, rows if again is None else again, numbers, size, story.now))  # type: ignore[arg-type]


def two_sent() -> Story:
    story = Story()
    story.send("m1")
    story.send("m2")
    return story


def drain(story: Story, *uids: str) -> None:
    for uid in uids:
        story.settle(story.deliver(uid, int(uid[1:])))
    story.drain()


# --- I30 ---


def test_a_walk_that_shows_each_message_once_and_changes_none_is_right() -> None:
    story = two_sent()
    survey(story, shown("m1", 1), shown("m2", 2))
    drain(story, "m1", "m2")
    assert story.broken() == set()


def test_pages_out_of_order_are_caught() -> None:
    story = two_sent()
    survey(story, shown("m2", 2), shown("m1", 1))
    drain(story, "m1", "m2")
    assert story.broken() == {30}


def test_a_message_that_the_pages_step_over_is_caught() -> None:
    story = two_sent()
    survey(story, shown("m1", 1), again=(shown("m1", 1), shown("m2", 2)))
    drain(story, "m1", "m2")
    assert story.broken() == {30}


def test_a_page_that_is_longer_than_what_was_asked_for_is_caught() -> None:
    story = two_sent()
    survey(story, shown("m1", 1), shown("m2", 2), limit=0)
    drain(story, "m1", "m2")
    assert story.broken() == {30}


def test_a_peek_that_counts_as_a_delivery_is_caught() -> None:
    for again, broken in (((shown("m1", 1),), set()), ((shown("m1", 1, deliveries=1),), {30})):
        story = Story()
        story.send("m1")
        survey(story, shown("m1", 1), again=again)
        drain(story, "m1")
        assert story.broken() == broken


def test_what_was_shown_and_never_comes_is_caught() -> None:
    story = two_sent()
    story.settle(story.deliver("m2", 2))
    survey(story, shown("m1", 1), shown("m2", 2))
    drain(story, "m1")
    assert 30 in story.broken()


def test_what_comes_and_was_not_shown_is_caught() -> None:
    story = two_sent()
    survey(story, shown("m1", 1))
    drain(story, "m1", "m2")
    assert story.broken() == {30}


def test_what_a_crash_takes_from_a_queue_at_rest_is_caught() -> None:
    story = two_sent()
    survey(story, shown("m1", 1), shown("m2", 2))
    story.crash()
    survey(story, shown("m2", 2))
    drain(story, "m2")
    assert 30 in story.broken()


# --- I32 ---


@pytest.mark.parametrize("wrong", [{"numbers": (2, 0, 0, 0, 0)}, {"numbers": (1, 0, 0, 1, 0)}, {"size": 9}])
def test_counters_that_differ_from_what_is_there_are_caught(wrong: dict[str, object]) -> None:
    story = Story()
    story.send("m1")
    survey(story, shown("m1", 1), **wrong)
    drain(story, "m1")
    assert story.broken() == {32}


# --- I23 ---


def forgotten(reason: str | None, *, management: bool = False) -> Story:
    story = Story()
    story.send("m1")
    story.settle(story.deliver("m1", 1), DEAD_LETTERED, management=management)
    story.settle(story.deliver("m1", 1, subqueue=DEAD_LETTER, reason=reason), COMPLETE)
    return story


def test_a_dead_letter_without_a_reason_or_with_a_wrong_one_is_caught() -> None:
    cases = (("poison", False, set()), (None, True, set()), (None, False, {23}), ("TTLExpiredException", False, {23}))
    for reason, management, broken in cases:
        assert forgotten(reason, management=management).broken() == broken, reason
    assert forgotten("because").broken() == {23}


def test_a_dead_letter_that_expires_is_caught() -> None:
    story = Story()
    story.send("m1", ttl_ms=5)
    story.settle(story.deliver("m1", 1), DEAD_LETTERED)
    story.now += 10
    story.history.append(Expired("q", 1, "m1", story.now))
    assert story.broken() == {23}


def test_a_dead_letter_that_vanishes_is_caught() -> None:
    for comes in (True, False):
        story = Story()
        story.send("m1")
        story.settle(story.deliver("m1", 1), DEAD_LETTERED)
        if comes:
            story.settle(story.deliver("m1", 1, subqueue=DEAD_LETTER, reason="poison"))
        story.drain()
        assert story.broken() == (set() if comes else {23}), comes


def test_a_dead_letter_that_is_forwarded_has_not_vanished() -> None:
    story = Story()
    story.send("m1")
    story.settle(story.deliver("m1", 1), DEAD_LETTERED)
    story.settle(story.deliver("m1", 1, entity="graves"))
    story.drain()
    assert story.broken(Setup({"q": EntityRules(dead_letters_at="graves")})) == set()
