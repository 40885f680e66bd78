"""Claims inside a fragment: what they take, what a restart knows of them, and how their messages leave them."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.broker import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME
from duobus.fragment.claims import commands
from duobus.fragment.claims.commands import ClaimBudget, ClaimMessages, ReleaseClaim, SettleClaim, members_of
from duobus.fragment.message import ACTIVE, DEAD_LETTER, DEFERRED, MAIN, state_of
from duobus.fragment.receive import TakeDeferred
from kits.broker import sets_constants
from kits.fragment import Box, Driver


def claim(claim_id: str = "c", messages: int = 100, size: int = 1 << 30, sub_queue: int = MAIN) -> ClaimMessages:
    """A command that claims."""
    return ClaimMessages("handle", 0, Box(), sub_queue=sub_queue, claim_id=claim_id, budget=ClaimBudget(messages, size))


def release(*counts: int, claim_id: str = "c", is_counted: bool = True, sub_queue: int = MAIN) -> ReleaseClaim:
    """A command that gives messages of a claim back."""
    about: dict[str, Any] = {"sub_queue": sub_queue, "claim_id": claim_id, "counts": counts}
    return ReleaseClaim("handle", 0, Box(), **about, is_counted=is_counted)


def settle(*counts: int, claim_id: str = "c") -> SettleClaim:
    """A command that removes messages of a claim."""
    return SettleClaim("handle", 0, Box(), sub_queue=MAIN, claim_id=claim_id, counts=counts)


def done(driver: Driver, command: Any) -> list[bytes]:
    """The payloads of the messages that a command was about, in a commit of its own."""
    driver.commit(command)
    assert command.error is None
    return [message.payload for message in command.messages]


def members(driver: Driver, claim_id: str = "c") -> list[int]:
    """The counts of a claim's messages."""
    return [message.count for message in members_of(driver.source, MAIN, claim_id)]


def test_a_claim_defers_the_oldest_messages_for_everybody() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    assert done(driver, claim(messages=2)) == [b"a", b"b"]
    assert [message.payload for _, message in driver.lock(5)] == [b"c"]
    assert driver.peek() == [b"a", b"b", b"c"]
    assert driver.source.numbers == [1, 0, 0, 2, 0]
    assert [state for state, _, _, _ in driver.stored().values()] == [DEFERRED, DEFERRED, ACTIVE]


def test_a_claim_ends_with_the_message_that_passes_its_bytes() -> None:
    driver = Driver()
    driver.send(b"x" * 10, b"y" * 10, b"z" * 10)
    assert done(driver, claim(size=15)) == [b"x" * 10, b"y" * 10]
    assert [message.payload for _, message in driver.lock(5)] == [b"z" * 10]


def test_messages_beyond_the_bytes_of_a_claim_still_expire_at_their_time() -> None:
    driver = Driver(default_ttl_ms=1000)
    driver.send(b"x" * 10, b"z" * 10)
    assert done(driver, claim(size=5)) == [b"x" * 10]
    driver.pass_time(1000)
    assert [found[2] for found in driver.stored().values()] == [b"x" * 10]


def test_the_claims_of_one_budget_take_no_more_than_it_says() -> None:
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(6)])
    budget = ClaimBudget(4, 1 << 30)
    several = [ClaimMessages("handle", 0, Box(), sub_queue=MAIN, claim_id="c", budget=budget) for _ in range(3)]
    driver.commit(*several)
    assert [len(command.messages) for command in several] == [4, 0, 0]
    assert members(driver) == [1, 2, 3, 4]


@sets_constants
def test_one_command_claims_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "CLAIMED_MAX", 2)
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    assert done(driver, claim()) == [b"a", b"b"]


def test_a_restart_knows_whose_the_messages_are() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    driver.send(b"keyed", partition_key="k")
    done(driver, claim("one", 2))
    done(driver, claim("two", 2))
    other = driver.recovered()
    assert (members(other, "one"), members(other, "two")) == ([1, 2], [3, 4])
    assert other.picture() == other.stored()
    metadata = other.picture()[4][3]
    assert metadata is not None
    assert (metadata.partition_key, metadata.claim) == ("k", "two")


def test_what_was_sent_in_an_earlier_life_tells_in_which_it_was_claimed() -> None:
    driver = Driver()
    driver.send(b"old")
    other = driver.recovered()
    other.send(b"new")
    done(other, claim())
    lives = [metadata.deferred_in for _, _, _, metadata in other.stored().values() if metadata is not None]
    assert lives == [other.fragment.epoch, None]


def test_a_claim_keeps_delivery_counts() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.settle(ABANDON, lock)
    done(driver, claim())
    assert [deliveries for _, deliveries, _, _ in driver.recovered().stored().values()] == [1]


def test_settling_removes_what_is_there_and_asks_for_no_more() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    done(driver, claim(messages=2))
    assert done(driver, settle(1, 2, 3, 99)) == [b"a", b"b"]
    assert done(driver, settle(1, 2)) == []
    assert [found[2] for found in driver.stored().values()] == [b"c"]
    assert driver.source.numbers == [1, 0, 0, 0, 0]
    assert driver.source.bytes == driver.source.memory_bytes == 1


def test_another_claim_settles_nothing_of_it() -> None:
    driver = Driver()
    driver.send(b"a")
    done(driver, claim("one"))
    assert done(driver, settle(1, claim_id="two")) == []
    assert members(driver, "one") == [1]


def test_what_somebody_has_locked_by_its_number_is_left_and_counted() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    done(driver, claim())
    first, _, _ = driver.fragment.lock_deferred(0, MAIN, [1], driver.now_ms)
    command = settle(1, 2)
    assert done(driver, command) == [b"b"]
    assert command.busy == 1
    driver.settle(COMPLETE, first)
    assert driver.stored() == {}


def test_a_message_leaves_its_claim_as_a_dead_letter_or_by_its_number() -> None:
    driver = Driver()
    driver.send(b"dead", b"gone", b"left")
    done(driver, claim())
    first, _, _ = driver.fragment.lock_deferred(0, MAIN, [1], driver.now_ms)
    driver.settle(DEAD_LETTER_OUTCOME, first)
    driver.commit(TakeDeferred("handle", 0, MAIN, [2], Box()))
    assert members(driver) == [3]
    assert done(driver, settle(1, 2, 3)) == [b"left"]
    assert driver.waiting(DEAD_LETTER) == 1


def test_a_released_claim_is_available_in_its_old_place_and_counts_as_a_delivery() -> None:
    driver = Driver()
    driver.send(b"a", b"b", b"c")
    driver.send(b"keyed", partition_key="k")
    done(driver, claim(messages=2))
    done(driver, claim("d", messages=2))
    assert done(driver, release(1, 2, is_counted=True)) == [b"a", b"b"]
    assert done(driver, release(3, 4, claim_id="d", is_counted=False)) == [b"c", b"keyed"]
    locked = driver.lock(9)
    assert [(message.payload, message.deliveries) for _, message in locked] == [
        (b"a", 1),
        (b"b", 1),
        (b"c", 0),
        (b"keyed", 0),
    ]
    assert driver.source.numbers == [4, 0, 0, 0, 0]
    assert [getattr(metadata, "claim", None) for _, _, _, metadata in driver.stored().values()] == [None] * 4


def test_a_released_message_without_a_delivery_left_is_dead() -> None:
    driver = Driver(max_delivery_count=1)
    driver.send(b"a")
    done(driver, claim())
    done(driver, release(1))
    assert [state for state, _, _, _ in driver.stored().values()] == [state_of(DEAD_LETTER, ACTIVE)]
    assert driver.waiting(DEAD_LETTER) == 1


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_released_message_without_life_left_goes_its_way(dead_letters: bool) -> None:
    driver = Driver(default_ttl_ms=1000, dead_letter_on_expiration=dead_letters)
    driver.send(b"a")
    done(driver, claim())
    driver.pass_time(1001)
    assert members(driver) == [1]
    done(driver, release(1))
    driver.pass_time(0)
    assert [state for state, _, _, _ in driver.stored().values()] == [state_of(DEAD_LETTER, ACTIVE)] * dead_letters


def test_dead_letters_are_claimed_as_such() -> None:
    driver = Driver()
    driver.send(b"a")
    ((lock, _),) = driver.lock()
    driver.settle(DEAD_LETTER_OUTCOME, lock, reason="why")
    assert done(driver, claim(sub_queue=DEAD_LETTER)) == [b"a"]
    assert [state for state, _, _, _ in driver.stored().values()] == [state_of(DEAD_LETTER, DEFERRED)]
    assert done(driver, release(1)) == []
    done(driver, release(1, sub_queue=DEAD_LETTER))
    assert driver.waiting(DEAD_LETTER) == 1
    assert next(iter(driver.picture().values()))[1] == 0


def test_a_message_that_is_deferred_by_its_lock_belongs_to_no_claim_any_more() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    done(driver, claim())
    first, _, _ = driver.fragment.lock_deferred(0, MAIN, [1], driver.now_ms)
    driver.settle(2, first)
    assert members(driver) == members(driver.recovered()) == [2]


@sets_constants
def test_too_many_claims_are_refused_and_those_without_messages_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "CLAIMS_MAX", 2)
    driver = Driver()
    driver.send(*[b"%d" % index for index in range(5)])
    done(driver, claim("one", 1))
    done(driver, claim("two", 1))
    error = driver.error_of(claim("three", 1))
    assert error is not None
    assert "2 claims are open" in str(error)
    assert done(driver, claim("two", 1)) == [b"2"]
    driver.commit(TakeDeferred("handle", 0, MAIN, [1], Box()))
    assert done(driver, claim("three", 1)) == [b"3"]
    assert sorted(driver.source.claims) == ["three", "two"]


def test_messages_that_a_claim_takes_count_as_delivered_so_that_a_restart_reads_them() -> None:
    driver = Driver()
    driver.send(b"a", b"b")
    done(driver, claim(messages=1))
    assert driver.source.highest_delivered == 1
    other = driver.recovered()
    assert other.waiting() == 1
