"""Checkers of transactions: I8, I34, I35."""

from __future__ import annotations

import pytest
from story import Story

from simulation.checkers import EntityRules, Setup
from simulation.history.events import ABANDON, DischargeBegin, Fail, Info, Ok

PARTED = Setup({"q": EntityRules(fragments=(0, 1))})
TXN = {"transaction": "t"}


def discharge(story: Story, end: str, *ops: int, fail: bool = False) -> None:
    """End a transaction with everything in it."""
    own = story.history.next_op()
    story.history.append(DischargeBegin(own, "c1", "t", fail=fail))
    story.now += 1
    for op in (*ops, own):
        if end == "ok" and not (fail and op != own):
            story.history.append(Ok(op))
        elif end == "info":
            story.history.append(Info(op))
        else:
            story.history.append(Fail(op, "amqp:transaction:rollback", "No. TrackingId:1"))


def moved(story: Story, end: str, **options: bool) -> None:
    """A message that is received, and in a transaction completed and answered by another."""
    story.send("in")
    held = story.deliver("in", 1)
    discharge(story, end, story.begin("out", **TXN), story.settlement(held, **TXN), **options)


def again(story: Story, uid: str = "in", seq: int = 1) -> None:
    """A message comes after its lock has ended, and is completed."""
    story.now += 60_000
    story.settle(story.deliver(uid, seq))


def test_a_commit_of_all_and_a_rollback_of_all_are_right() -> None:
    story = Story()
    moved(story, "ok")
    again(story, "out", 2)
    story.drain()
    assert story.broken() == set()
    story = Story()
    moved(story, "fail")
    again(story)
    story.drain()
    assert story.broken() == set()


@pytest.mark.parametrize("comes", ["in", "out"])
def test_without_an_answer_either_is_right(comes: str) -> None:
    story = Story()
    moved(story, "info")
    again(story, comes, 1 if comes == "in" else 2)
    story.drain()
    assert story.broken() == set()


def test_without_an_answer_both_or_neither_is_half_a_transaction() -> None:
    story = Story()
    moved(story, "info")
    again(story)
    again(story, "out", 2)
    story.drain()
    assert story.broken() == {8}
    story = Story()
    moved(story, "info")
    story.drain()
    assert story.broken() == {8}


def test_one_of_two_messages_is_half_a_transaction() -> None:
    story = Story()
    discharge(story, "info", story.begin("one", **TXN), story.begin("two", **TXN))
    again(story, "two", 1)
    story.drain()
    assert story.broken() == {8}


def test_before_the_drain_the_rest_may_still_come() -> None:
    story = Story()
    discharge(story, "info", story.begin("one", **TXN), story.begin("two", **TXN))
    again(story, "two", 1)
    assert story.broken() == set()


def test_a_commit_without_a_refused_piece_is_half_a_transaction() -> None:
    story = Story()
    refused = story.begin("two", **TXN)
    story.fail(refused)
    discharge(story, "ok", story.begin("one", **TXN))
    again(story, "one", 1)
    story.drain()
    assert story.broken() == {8}


def test_an_abandon_says_nothing_about_the_rest() -> None:
    story = Story()
    story.send("in")
    held = story.deliver("in", 1)
    discharge(story, "ok", story.begin("out", **TXN), story.settlement(held, ABANDON, **TXN))
    again(story)
    again(story, "out", 2)
    story.drain()
    assert story.broken() == set()


def test_a_message_is_not_seen_before_the_discharge() -> None:
    story = Story()
    op = story.begin("out", **TXN)
    story.settle(story.deliver("out", 1))
    discharge(story, "ok", op)
    assert story.broken() == {35}


def test_a_message_of_a_rollback_is_never_seen() -> None:
    story = Story()
    discharge(story, "info", story.begin("out", **TXN), fail=True)
    again(story, "out", 1)
    story.drain()
    assert story.broken() == {35}


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("a", None), (None, None)])
def test_a_commit_on_a_partitioned_entity_has_one_key(first: str | None, second: str | None) -> None:
    for setup, found in ((PARTED, {34}), (Setup(), set())):
        story = Story()
        ops = [story.begin(f"m{number}", key=key, **TXN) for number, key in enumerate((first, second))]
        discharge(story, "ok", *ops)
        for number in (0, 1):
            again(story, f"m{number}", number + 1)
        story.drain()
        assert story.broken(setup) == found
