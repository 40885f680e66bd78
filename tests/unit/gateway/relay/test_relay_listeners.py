"""Who listens: chosen at random, dropped when dead, limited in number and rate; and one-time addresses."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from duobus.gateway.relay.listeners import HandshakeRates, Listeners, Vigil
from duobus.gateway.relay.refusals import RelayRefusal
from duobus.gateway.relay.rendezvous import Rendezvous
from duobus.model.relay.limits import LISTENERS_MAX, LISTENS_PER_S, PING_S, RATES_MAX

PING_MS = round(PING_S * 1000)


def test_every_listener_that_is_fit_is_chosen_and_no_other() -> None:
    listeners: Listeners[int] = Listeners()
    for number in range(5):
        listeners.add(number, "path")
    listeners.remove(3)
    random = Random(1)
    chosen = Counter(listeners.choose(random.randrange, lambda number: number != 1) for _ in range(300))
    assert set(chosen) == {0, 2, 4}
    assert min(chosen.values()) > 60
    assert listeners.choose(random.randrange, lambda number: False) is None


def test_the_26th_listener_is_refused_until_one_leaves() -> None:
    listeners: Listeners[int] = Listeners()
    for number in range(LISTENERS_MAX):
        listeners.add(number, "path")
    with pytest.raises(RelayRefusal):
        listeners.add(99, "path")
    listeners.remove(0)
    listeners.remove(0)
    listeners.add(99, "path")
    assert len(listeners) == LISTENERS_MAX


def test_a_listener_is_dead_when_two_pings_were_missed() -> None:
    vigil = Vigil(0)
    assert not vigil.is_ping_due(PING_MS - 1)
    assert vigil.is_ping_due(PING_MS)
    assert not vigil.is_ping_due(PING_MS + 1)
    assert vigil.is_ping_due(2 * PING_MS)
    assert not vigil.is_dead(3 * PING_MS - 1)
    assert vigil.is_dead(3 * PING_MS)


def test_a_pong_keeps_a_listener_alive() -> None:
    vigil = Vigil(0)
    for turn in range(1, 10):
        assert vigil.is_ping_due(turn * PING_MS)
        vigil.ponged()
        assert not vigil.is_dead(turn * PING_MS + PING_MS)


def test_two_requests_in_a_row_without_an_answer_cut_a_listener_off() -> None:
    vigil = Vigil(0)
    assert not vigil.left_unanswered()
    vigil.answered()
    assert not vigil.left_unanswered()
    vigil.ponged()
    assert vigil.left_unanswered()


def test_handshakes_of_one_path_and_address_are_limited_each_second() -> None:
    rates = HandshakeRates()
    assert [rates.allows("a", 0) for _ in range(LISTENS_PER_S + 1)] == [True] * LISTENS_PER_S + [False]
    assert rates.allows("b", 0)
    assert not rates.allows("a", 999)
    assert rates.allows("a", 1001)


def test_rates_are_kept_for_so_many_keys_and_no_more() -> None:
    rates = HandshakeRates()
    for number in range(RATES_MAX + 10):
        rates.allows(number, 0)
    assert len(rates) == RATES_MAX


def test_an_address_is_good_once_and_for_its_time() -> None:
    rendezvous: Rendezvous[str] = Rendezvous(iter(["a", "b", "c"]).__next__)
    first, second, third = (
        rendezvous.promise("x", 100),
        rendezvous.promise("y", 100),
        rendezvous.promise("z", None),
    )
    assert first == "a_G1"
    assert rendezvous.redeem(first, 100) == "x"
    for key, now_ms in ((first, 0), (second, 101), (second, 0), ("unknown", 0)):
        with pytest.raises(RelayRefusal) as caught:
            rendezvous.redeem(key, now_ms)
        assert caught.value.status == 403
    rendezvous.withdraw(third)
    rendezvous.withdraw(third)
    assert len(rendezvous) == 0
