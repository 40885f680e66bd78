"""The checkers of forwarding: I14, I41, and what I1 knows of places where messages come out."""

from __future__ import annotations

from story import Story

from simulation.checkers import EntityRules, Setup
from simulation.checkers.forwarding import HOPS_EXCEEDED
from simulation.history.events import MAIN, TRANSFER_DEAD_LETTER

CHAIN = Setup(
    {
        "in": EntityRules(copies_at=("out",)),
        "out": EntityRules(dead_letters_at="graves"),
        "circle": EntityRules(is_circle=True),
    }
)


def test_a_message_that_came_out_where_it_was_forwarded_to_is_right() -> None:
    story = Story()
    story.send("m1", "in")
    story.settle(story.deliver("m1", 7, "out"))
    story.drain()
    assert story.broken(CHAIN) == set()


def test_a_message_that_never_came_out_is_lost() -> None:
    story = Story()
    story.send("m1", "in")
    story.drain()
    assert story.broken(CHAIN) == {1}


def test_a_message_that_was_forwarded_twice_is_caught_and_one_that_was_sent_twice_is_not() -> None:
    for sends, broken in ((1, {14}), (2, set())):
        story = Story()
        for _ in range(sends):
            story.send("m1", "in", key="k")
        for seq in (7, 8):
            story.settle(story.deliver("m1", seq, "out"))
        story.drain()
        assert story.broken(CHAIN) & {14} == broken


def test_a_circle_ends_in_the_transfer_dead_letter_queue() -> None:
    for reason, subqueue, broken in (
        (HOPS_EXCEEDED, TRANSFER_DEAD_LETTER, set()),
        ("other", TRANSFER_DEAD_LETTER, {41}),
        (None, MAIN, {41}),
    ):
        story = Story()
        story.send("m1", "circle")
        story.settle(story.deliver("m1", 7, "circle", reason=reason, subqueue=subqueue))
        story.drain()
        assert story.broken(CHAIN) == broken


def test_a_message_that_goes_round_for_ever_is_caught() -> None:
    story = Story()
    story.send("m1", "circle")
    story.drain()
    assert story.broken(CHAIN) == {1, 41}


def test_a_chain_has_no_use_for_the_transfer_dead_letter_queue() -> None:
    story = Story()
    story.send("m1", "in")
    story.settle(story.deliver("m1", 7, "in", reason=HOPS_EXCEEDED, subqueue=TRANSFER_DEAD_LETTER))
    assert 41 in story.broken(CHAIN)
