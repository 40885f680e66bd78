"""Abandoned messages that are put off: by policy, by word, through crashes, expiry, purge and dead-lettering."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.codec import decode
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.fragment.message import DEAD_LETTER, MAIN
from duobus.fragment.purge import PurgeCounts
from duobus.fragment.settlement import ABANDON, COMPLETE, DEFER, DELAY_PROPERTY, back_off_ms
from kits.fragment import START_MS, Box, Driver

SECOND = 1000
POLICY = {"redelivery_delay_ms": SECOND, "redelivery_delay_maximum_ms": 5 * SECOND}


def abandoned(driver: Driver, **detail: Any) -> None:
    """Lock the next message and abandon it."""
    ((lock, _),) = driver.lock()
    assert driver.settle(ABANDON, lock, **detail).error is None


def away_for(driver: Driver) -> int:
    """Let time pass until the message is back: how long that took."""
    began = driver.now_ms
    assert driver.waiting() == 0
    while driver.waiting() == 0:
        assert driver.fragment.deadline < began + 100 * SECOND
        driver.pass_time(driver.fragment.deadline - driver.now_ms)
    return driver.now_ms - began


def test_the_delay_doubles_with_each_delivery_up_to_the_longest() -> None:
    assert [back_off_ms(SECOND, 5 * SECOND, deliveries) for deliveries in (1, 2, 3, 4, 2_000_000_000)] == [
        1000,
        2000,
        4000,
        5000,
        5000,
    ]
    driver = Driver(max_delivery_count=100, **POLICY)
    driver.send(b"m")
    delays = []
    for _ in range(5):
        abandoned(driver)
        delays.append(away_for(driver))
    assert delays == [1000, 2000, 4000, 5000, 5000]


def test_a_message_that_lives_long_is_away_for_all_of_its_delay() -> None:
    driver = Driver(default_ttl_ms=3_600 * SECOND, **POLICY)
    driver.send(b"m")
    abandoned(driver)
    assert away_for(driver) == SECOND


def test_others_are_not_held_up_by_a_message_that_is_put_off() -> None:
    driver = Driver(**POLICY)
    driver.send(b"bad", b"good")
    abandoned(driver)
    ((lock, message),) = driver.lock(9)
    assert message.payload == b"good"
    driver.settle(COMPLETE, lock)
    driver.pass_time(SECOND)
    ((_, message),) = driver.lock(9)
    assert (message.payload, message.deliveries) == (b"bad", 1)


def test_without_a_policy_an_abandoned_message_is_back_at_once() -> None:
    driver = Driver()
    driver.send(b"m")
    abandoned(driver, properties={DELAY_PROPERTY: 5000})
    ((_, message),) = driver.lock()
    assert message.metadata is not None
    # It is a property like any other then.
    assert decode(message.metadata.overlay or b"")[0] == {DELAY_PROPERTY: 5000}


def test_only_an_abandon_delays() -> None:
    driver = Driver(lock_duration_ms=SECOND, **POLICY)
    driver.send(b"m")
    driver.lock()
    driver.pass_time(SECOND)
    ((lock, _),) = driver.lock()
    driver.fragment.unlock(0, [(lock, 1)], driver.now_ms, counted=True)
    assert driver.waiting() == 1


def test_an_abandon_says_itself_for_how_long() -> None:
    driver = Driver(delayed_abandon=True, **POLICY)
    driver.send(b"m")
    abandoned(driver, properties={DELAY_PROPERTY: 7500, "why": "busy"})
    assert away_for(driver) == 7500
    ((lock, message),) = driver.lock()
    assert message.metadata is not None
    assert decode(message.metadata.overlay or b"")[0] == {"why": "busy"}
    driver.settle(ABANDON, lock, properties={DELAY_PROPERTY: 0})
    assert driver.waiting() == 1
    # Without a word the policy counts.
    abandoned(driver)
    assert away_for(driver) == 4000


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("soon", ArgumentInvalid),
        (True, ArgumentInvalid),
        (-1, ArgumentOutOfRange),
        (86_400_001, ArgumentOutOfRange),
        (float("nan"), ArgumentOutOfRange),
    ],
)
def test_a_delay_that_cannot_be_refuses_the_abandon_and_keeps_the_lock(asked: Any, error: type[Exception]) -> None:
    driver = Driver(delayed_abandon=True)
    driver.send(b"m")
    ((lock, _),) = driver.lock()
    assert isinstance(driver.settle(ABANDON, lock, properties={DELAY_PROPERTY: asked}).error, error)
    assert driver.settle(COMPLETE, lock).lost == []


def test_the_delay_survives_a_crash() -> None:
    driver = Driver(**POLICY)
    driver.send(b"m", b"other")
    abandoned(driver)
    driver.now_ms += 400
    later = driver.recovered()
    assert [message.payload for _, message in later.lock(9)] == [b"other"]
    assert away_for(later) == 600
    ((_, message),) = later.lock()
    assert (message.payload, message.deliveries) == (b"m", 1)


def test_an_instant_that_passed_while_the_server_was_down_delays_no_more() -> None:
    driver = Driver(**POLICY)
    driver.send(b"m")
    abandoned(driver)
    driver.now_ms += 2 * SECOND
    later = driver.recovered()
    later.commit()
    assert later.waiting() == 1


def test_the_last_abandon_makes_a_dead_letter_at_once() -> None:
    driver = Driver(max_delivery_count=2, **POLICY)
    driver.send(b"m")
    abandoned(driver)
    driver.pass_time(SECOND)
    abandoned(driver)
    assert driver.waiting(DEAD_LETTER) == 1
    ((lock, _),) = driver.lock(1, DEAD_LETTER)
    driver.settle(ABANDON, lock)
    assert driver.waiting(DEAD_LETTER) == 1
    assert driver.recovered().waiting(DEAD_LETTER) == 1


def test_a_deferred_message_is_not_put_off() -> None:
    driver = Driver(**POLICY)
    (count,) = driver.send(b"m")
    ((lock, _),) = driver.lock()
    driver.settle(DEFER, lock)
    first, _, _ = driver.fragment.lock_deferred(0, MAIN, [count], driver.now_ms)
    driver.settle(ABANDON, first)
    assert driver.fragment.lock_deferred(0, MAIN, [count], driver.now_ms)[1][0].count == count


@pytest.mark.parametrize("own", [True, False])
def test_a_message_expires_at_its_time_while_it_is_put_off(own: bool) -> None:
    driver = Driver(default_ttl_ms=None if own else 600, **POLICY)
    driver.send(b"m", **({"ttl_ms": 600} if own else {}))
    abandoned(driver)
    driver.pass_time(599)
    assert driver.peek() == [b"m"]
    driver.pass_time(1)
    assert driver.picture() == driver.stored() == {}
    assert driver.source.numbers == [0] * 5
    driver.pass_time(10 * SECOND)


def test_a_message_that_is_back_is_nobodys_and_a_purge_takes_it() -> None:
    driver = Driver(**POLICY)
    (count,) = driver.send(b"m")
    abandoned(driver)
    away_for(driver)
    command = PurgeCounts("handle", 0, Box(), counts=[count])
    driver.commit(command)
    assert ([message.payload for message in command.messages], command.busy) == ([b"m"], 0)


def test_a_message_that_is_put_off_is_active_and_a_purge_takes_it() -> None:
    driver = Driver(**POLICY)
    (count,) = driver.send(b"m")
    abandoned(driver)
    assert driver.source.numbers[MAIN] == 1
    assert driver.peek() == [b"m"]
    command = PurgeCounts("handle", 0, Box(), counts=[count])
    driver.commit(command)
    assert [message.payload for message in command.messages] == [b"m"]
    driver.pass_time(10 * SECOND)
    assert driver.picture() == driver.stored() == {}
    assert driver.waiting() == 0
    assert driver.now_ms == START_MS + 10 * SECOND
