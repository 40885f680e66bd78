"""Checkers of sessions: I4, I36, I37, and what a session's end means for I6."""

from __future__ import annotations

from story import LOCK_MS, Story

from simulation.history.events import LockEnded
from simulation.history.session_events import (
    SessionAccepted,
    SessionReleased,
    SessionRenewBegin,
    StateBegin,
    StateRead,
)


def accept(story: Story, connection: str = "c1", session: str = "s") -> SessionAccepted:
    return story.history.append(SessionAccepted(connection, "q", session, 0, story.now + LOCK_MS, story.now))


def free(story: Story, held: SessionAccepted) -> None:
    story.now += 1
    story.history.append(SessionReleased("q", held.session, held.broker_ms, story.now))


def set_state(story: Story, value: bytes | None, connection: str = "c1", *, answered: bool = True) -> None:
    op = story.history.next_op()
    story.history.append(StateBegin(op, connection, "q", "s", value, story.now))
    if answered:
        story.ok(op)
    else:
        story.info(op)
    story.now += 1


def read(story: Story, value: bytes | None, connection: str = "c1") -> None:
    story.history.append(StateRead(connection, "q", "s", value, len(story.history)))


# --- I4 ---


def test_a_message_that_overtakes_an_older_one_of_its_session_is_caught() -> None:
    for sessions, broken in ((("s", "s"), {4}), (("s", "t"), set())):
        story = Story()
        story.send("m1", key=sessions[0])
        story.send("m2", key=sessions[1])
        story.settle(story.deliver("m2", 2, session=sessions[1]))
        story.settle(story.deliver("m1", 1, session=sessions[0]))
        assert story.broken() == broken


def test_numbers_against_the_order_of_a_senders_answers_are_caught() -> None:
    story = Story()
    story.send("m1", key="s")
    story.send("m2", key="s")
    story.settle(story.deliver("m2", 1, session="s"))
    story.settle(story.deliver("m1", 2, session="s"))
    assert 4 in story.broken()


# --- I36 ---


def test_two_holders_of_a_session_are_caught() -> None:
    story = Story()
    accept(story)
    story.now += 1
    accept(story, "c2")
    assert story.broken() == {36}


def test_a_session_goes_on_when_it_was_freed_ran_out_or_was_forgotten() -> None:
    for how in ("freed", "ran out", "crash"):
        story = Story()
        held = accept(story)
        if how == "freed":
            free(story, held)
        elif how == "ran out":
            story.now += LOCK_MS
        else:
            story.crash()
        accept(story, "c2")
        assert story.broken() == set(), how


def test_a_renewed_session_is_not_free_at_the_end_it_had_before() -> None:
    story = Story()
    accept(story)
    story.now += LOCK_MS - 1
    op = story.history.next_op()
    story.history.append(SessionRenewBegin(op, "c1", "q", "s"))
    story.ok(op, locked_until_ms=story.now + LOCK_MS)
    story.now += 10
    accept(story, "c2")
    assert story.broken() == {36}


def test_a_state_that_was_set_and_is_not_read_is_caught() -> None:
    for value, broken in ((b"new", set()), (b"old", {36}), (None, {36})):
        story = Story()
        accept(story)
        set_state(story, b"old")
        set_state(story, b"new")
        read(story, value)
        assert story.broken() == broken, value


def test_a_state_without_an_answer_may_be_there_or_not() -> None:
    for value, broken in ((b"old", set()), (b"perhaps", set()), (b"other", {36})):
        story = Story()
        accept(story)
        set_state(story, b"old")
        set_state(story, b"perhaps", answered=False)
        read(story, value)
        assert story.broken() == broken, value


def test_a_state_set_by_a_former_holder_is_caught() -> None:
    story = Story()
    free(story, accept(story))
    story.now += 1
    accept(story, "c2")
    story.now += 1
    set_state(story, b"stale", "c1")
    assert story.broken() == {36}


def test_a_state_set_by_a_stranger_is_caught() -> None:
    story = Story()
    accept(story)
    set_state(story, b"x", "stranger")
    assert story.broken() == {36}


# --- I37, I6 ---


def test_a_former_holder_that_settles_is_caught() -> None:
    story = Story()
    story.send("m1", key="s")
    held = story.deliver("m1", 1, session="s")
    story.history.append(LockEnded(held.token or b"", "expired", story.now))
    story.settle(held)
    assert 37 in story.broken()


def test_giving_a_session_back_counts_no_delivery() -> None:
    for count, broken in ((1, set()), (2, {6})):
        story = Story()
        story.send("m1", key="s")
        held = story.deliver("m1", 1, session="s")
        story.history.append(LockEnded(held.token or b"", "closed", story.now))
        story.settle(story.deliver("m1", 1, session="s", delivery_count=count, connection="c2"))
        assert story.broken() == broken, count
