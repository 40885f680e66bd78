"""Checkers of sending and placement: I9, I25 to I28, I38, I39, and their time on a long history."""

from __future__ import annotations

import gc
import time

import pytest
from story import REFUSED_TEXT, Story

from simulation.checkers import EntityRules, Setup, check
from simulation.history.events import (
    FragmentsDown,
    FragmentsLate,
    FragmentsUp,
    KeylessLate,
    PlacementTurn,
    StrayOutcome,
    WaitedInVain,
)

BUSY = "com.microsoft:server-busy"
TWO = Setup({"q": EntityRules(fragments=(0, 1)), "single": EntityRules(fragments=(0,))})


def seq(fragment: int, count: int) -> int:
    return fragment << 48 | count


def down(story: Story, *fragments: int, entity: str = "q") -> None:
    story.history.append(FragmentsDown(frozenset((entity, fragment) for fragment in fragments)))


def up(story: Story, *fragments: int, entity: str = "q") -> None:
    story.history.append(FragmentsUp(frozenset((entity, fragment) for fragment in fragments)))


# --- I9 ---


def test_a_keyless_send_succeeds_while_one_fragment_lives() -> None:
    story = Story()
    down(story, 1)
    story.send("m1")
    assert story.broken(TWO) == set()
    story.fail(story.begin("m2"), BUSY, transient=True)
    assert story.broken(TWO) == {9}


def test_a_keyless_send_that_times_out_beside_a_live_fragment_is_caught() -> None:
    story = Story()
    down(story, 1)
    story.info(story.begin("m1"), "link")
    assert story.broken(TWO) == set()
    story.info(story.begin("m2"), "timeout")
    assert story.broken(TWO) == {9}


def test_a_keyed_send_to_a_live_fragment_must_succeed() -> None:
    story = Story()
    down(story, 1)
    story.fail(story.begin("m1", key="k", fragment=0), BUSY, transient=True)
    assert story.broken(TWO) == {9}


def test_nothing_is_acknowledged_when_every_fragment_is_down() -> None:
    story = Story()
    down(story, 0, entity="single")
    story.fail(story.begin("m1", "single"), BUSY, transient=True)
    assert story.broken(TWO) == set()
    story.send("m2", "single")
    assert story.broken(TWO) == {9}


def test_a_refusal_that_the_sender_deserves_is_no_outage() -> None:
    story = Story()
    down(story, 1)
    story.fail(story.begin("m1"), "amqp:link:message-size-exceeded")
    assert story.broken(TWO) == set()


# --- I25 ---


def test_one_key_in_two_fragments_is_caught() -> None:
    for second, broken in ((1, set[int]()), (0, {25})):
        story = Story()
        story.send("m1", key="k")
        story.send("m2", key="k")
        story.settle(story.deliver("m1", seq(1, 1)))
        story.settle(story.deliver("m2", seq(second, 2)))
        assert story.broken() == broken


def test_a_key_outside_the_fragment_of_its_slot_is_caught() -> None:
    story = Story()
    story.send("m1", key="k", fragment=1)
    story.settle(story.deliver("m1", seq(0, 1)))
    assert story.broken() == {25}


# --- I26 ---


def turns(story: Story, *fragments: int, messages: int = 1) -> None:
    for fragment in fragments:
        story.history.append(PlacementTurn("q", fragment, messages))


def test_turns_that_go_round_are_even_and_others_are_caught() -> None:
    story = Story()
    turns(story, *[0, 1] * 50)
    assert story.broken(TWO) == set()
    turns(story, 0, 0, 0)
    assert story.broken(TWO) == {26}


def test_turns_during_and_after_an_outage_are_counted_anew() -> None:
    story = Story()
    turns(story, 0, 1, 0)
    down(story, 1)
    turns(story, *[0] * 20)
    up(story, 1)
    turns(story, 0, 1, 0, 1)
    assert story.broken(TWO) == set()
    turns(story, *[1] * 5)
    assert story.broken(TWO) == {26}


def test_turns_are_counted_anew_when_a_store_is_late_and_is_passed_over() -> None:
    story = Story()
    turns(story, 0, 1, 0)
    story.history.append(FragmentsLate(frozenset({("q", 0)})))
    turns(story, 0, 1, 0, 1, 0)
    assert story.broken(TWO) == set()
    turns(story, *[1] * 5)
    assert story.broken(TWO) == {26}


def test_uneven_shares_are_caught_under_closed_loop_load_only() -> None:
    story = Story()
    for _ in range(500):
        turns(story, 0, messages=100)
        turns(story, 1, messages=10)
    assert story.broken(TWO) == set()
    assert story.broken(Setup(TWO.entities, closed_loop=True)) == {26}


# --- I27 ---


def test_a_keyless_message_with_two_copies_is_caught_unless_permitted() -> None:
    story = Story()
    story.send("m1")
    story.settle(story.deliver("m1", seq(0, 1)))
    story.settle(story.deliver("m1", seq(1, 1)))
    assert story.broken() == {27}
    assert story.broken(Setup(permitted_duplicates=frozenset({"m1"}))) == set()


def test_a_reroute_that_takes_too_long_is_caught() -> None:
    for took, broken in ((14_000, set[int]()), (15_000, {27})):
        story = Story()
        down(story, 1)
        op = story.begin("m1")
        story.now += took
        story.ok(op)
        assert story.broken(TWO) == broken


# --- I28 ---


def test_a_keyed_send_to_a_dead_fragment_fails_with_a_retriable_error() -> None:
    story = Story()
    down(story, 1)
    story.fail(story.begin("m1", key="k", fragment=1), BUSY, transient=True)
    assert story.broken(TWO) == set()
    story.fail(story.begin("m2", key="k", fragment=1), "amqp:not-allowed")
    assert story.broken(TWO) == {28}


def test_a_keyed_send_to_a_dead_fragment_must_not_time_out() -> None:
    story = Story()
    down(story, 1)
    story.info(story.begin("m1", key="k", fragment=1), "timeout")
    assert story.broken(TWO) == {28}


def test_a_keyed_message_stored_in_another_fragment_is_caught() -> None:
    story = Story()
    story.send("m0", key="k")
    story.settle(story.deliver("m0", seq(1, 1)))
    down(story, 1)
    story.send("m1", key="k")
    story.settle(story.deliver("m1", seq(0, 1)))
    assert story.broken(TWO) == {9, 25, 28}


def test_a_keyed_send_that_outlives_the_outage_may_succeed() -> None:
    story = Story()
    down(story, 1)
    op = story.begin("m1", key="k", fragment=1)
    up(story, 1)
    story.ok(op)
    story.settle(story.deliver("m1", seq(1, 1)))
    assert story.broken(TWO) == set()


# --- I38 ---


def test_a_send_answered_twice_or_never_is_caught() -> None:
    story = Story()
    op = story.begin("m1")
    story.ok(op)
    story.fail(op)
    assert story.broken() == {38}
    for link_dies, broken in ((True, set[int]()), (False, {38})):
        story = Story()
        story.begin("m1")
        if link_dies:
            story.lose_link("c-send")
        story.drain()
        assert story.broken() == broken


def test_a_refused_message_that_is_there_is_caught() -> None:
    story = Story()
    story.fail(story.begin("m1"))
    assert story.broken() == set()
    story.settle(story.deliver("m1", 1))
    assert story.broken() == {38}


@pytest.mark.parametrize(("condition", "text"), [("", REFUSED_TEXT), ("amqp:not-allowed", "No.")])
def test_a_refusal_without_condition_or_tracking_id_is_caught(condition: str, text: str) -> None:
    story = Story()
    story.fail(story.begin("m1"), condition, text=text)
    assert story.broken() == {38}


def test_an_outcome_for_an_unknown_delivery_is_caught() -> None:
    story = Story()
    story.history.append(StrayOutcome("c1", 4))
    assert story.broken() == {38}


def test_a_keyless_message_that_waits_for_a_sick_store_beside_a_well_one_is_caught() -> None:
    story = Story()
    story.history.append(KeylessLate("q", 2, 5_300))
    assert story.broken() == {27}


# --- I29 ---


def test_a_receiver_that_waits_in_vain_is_caught() -> None:
    story = Story()
    story.history.append(WaitedInVain("q", "r1", "has credit for a message that lies in a fragment", 1001))
    assert story.broken() == {29}


# --- I39 ---


def test_a_presettled_send_gets_no_outcome_and_may_be_lost() -> None:
    story = Story()
    op = story.begin("m1", settled=True)
    story.begin("m2", settled=True)
    story.settle(story.deliver("m2", 1))
    story.drain()
    assert story.broken() == set()
    story.ok(op)
    assert 39 in story.broken()


# --- all of them ---


def test_time_grows_linearly_with_the_length_of_the_history() -> None:
    def took(messages: int) -> float:
        story = Story()
        for number in range(1, messages + 1):
            story.send(f"m{number}", key=f"k{number % 50}")
            story.settle(story.deliver(f"m{number}", number))
        story.drain()
        # What other tests have left in memory is not the checkers' to look through.
        gc.collect()
        gc.disable()
        try:
            began = time.thread_time()
            assert check(story.history, TWO) == []
            return time.thread_time() - began
        finally:
            gc.enable()

    # A quadratic checker would take 16 times as long. Of this thread alone: the machine may be busy.
    short, long = (min(took(messages) for _ in range(3)) for messages in (1000, 4000))
    assert long < 10 * short
