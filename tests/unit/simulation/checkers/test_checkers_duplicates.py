"""The checker of duplicate detection: I5."""

from __future__ import annotations

from story import Story

from simulation.checkers import EntityRules, Setup
from simulation.history.events import Admitted

WATCHFUL = Setup({"q": EntityRules(window_ms=1000)})


def admitted(story: Story, uid: str, broker_ms: int, *, stored: bool, key: str | None = None) -> None:
    story.history.append(Admitted("q", uid, key, broker_ms, stored=stored))


def sent(*times: tuple[int, bool]) -> Story:
    """A message that was accepted at these times: (broker time, stored)."""
    story = Story()
    for broker_ms, stored in times:
        story.send("m1")
        admitted(story, "m1", broker_ms, stored=stored)
    return story


def test_one_copy_within_a_window_and_another_from_its_end_on_is_right() -> None:
    assert sent((1000, True), (1000, False), (1999, False), (2000, True)).broken(WATCHFUL) == set()


def test_two_copies_within_a_window_are_caught() -> None:
    assert sent((1000, True), (1999, True)).broken(WATCHFUL) == {5}
    assert sent((1000, True), (1999, True)).broken(Setup()) == set()


def test_a_duplicate_dropped_after_the_window_is_caught() -> None:
    assert sent((1000, True), (2000, False)).broken(WATCHFUL) == {5}


def test_a_duplicate_without_an_original_is_caught_unless_a_send_had_no_answer() -> None:
    assert sent((1000, False)).broken(WATCHFUL) == {5}
    story = sent((1000, False))
    story.info(story.begin("m1"))
    assert story.broken(WATCHFUL) == set()


def test_the_same_id_under_another_key_is_another_message() -> None:
    story = Story()
    for key in ("a", "b"):
        story.send("m1", key=key)
        admitted(story, "m1", 1000, stored=True, key=key)
    assert story.broken(WATCHFUL) == set()


def test_two_messages_delivered_with_one_id_are_caught_though_nobody_saw_them_accepted() -> None:
    story = Story()
    story.info(story.begin("m1"))
    story.info(story.begin("m1"))
    story.deliver("m1", 1, enqueued_ms=1000)
    story.deliver("m1", 2, enqueued_ms=1999)
    assert story.broken(WATCHFUL) == {5}


def test_two_messages_with_one_id_are_right_a_window_apart() -> None:
    story = Story()
    story.info(story.begin("m1"))
    story.info(story.begin("m1"))
    story.deliver("m1", 1, enqueued_ms=1000)
    story.deliver("m1", 2, enqueued_ms=2000)
    assert story.broken(WATCHFUL) == set()
