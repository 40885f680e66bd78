"""The failover engine as a table, and over all short histories (I12)."""

from __future__ import annotations

from itertools import product

import pytest

from duobus.ha.failover import BY_HAND, BY_PING, BY_SEND, Failover, State
from duobus.ha.outage_scope import KeyGroup

INTERVAL_MS, PING_MS = 60_000, 20_000
HEALTHY, SUSPECT, FAILED_OVER = State.HEALTHY, State.SUSPECT, State.FAILED_OVER


def failed_over(now_ms: int = 0) -> Failover:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", now_ms)
    failover.advance(now_ms + INTERVAL_MS)
    return failover


def test_a_healthy_entity_has_no_record_and_no_deadline() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    assert failover.on_send_succeeded("orders", 5) is None
    assert failover.state("orders") is HEALTHY
    assert failover.next_ms() is None
    assert failover.troubled() == {}


def test_a_failure_makes_suspect_and_diverts_nothing_yet() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    change = failover.on_send_failed("orders", 1_000)
    assert change == ("orders", SUSPECT, HEALTHY, 1_000, 1_000, "")
    assert not failover.is_diverted("orders")
    assert failover.next_ms() == 1_000 + INTERVAL_MS


def test_a_second_failure_does_not_start_the_interval_anew() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", 0)
    assert failover.on_send_failed("orders", 50_000) is None
    assert failover.next_ms() == INTERVAL_MS


def test_one_success_ends_the_suspicion() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", 0)
    assert failover.on_send_succeeded("orders", 59_999) == ("orders", HEALTHY, SUSPECT, 59_999, 0, BY_SEND)
    assert failover.advance(INTERVAL_MS) == []
    failover.on_send_failed("orders", 70_000)
    assert failover.next_ms() == 70_000 + INTERVAL_MS, "the interval begins with the next failure"


def test_the_interval_without_a_success_engages_failover_of_that_entity_only() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", 0)
    failover.on_send_failed("bills", 30_000)
    assert failover.advance(INTERVAL_MS - 1) == []
    assert failover.advance(INTERVAL_MS) == [("orders", FAILED_OVER, SUSPECT, INTERVAL_MS, 0, "")]
    assert failover.is_diverted("orders")
    assert not failover.is_diverted("bills")


def test_with_an_interval_of_zero_the_failing_send_itself_is_diverted() -> None:
    failover = Failover(0, PING_MS)
    assert failover.on_send_failed("orders", 7) == ("orders", FAILED_OVER, HEALTHY, 7, 7, "")
    assert failover.is_diverted("orders")


def test_pings_come_one_interval_after_failover_and_then_every_interval() -> None:
    failover = failed_over()
    assert failover.pings_due(INTERVAL_MS + PING_MS - 1) == []
    assert failover.pings_due(INTERVAL_MS + PING_MS) == ["orders"]
    assert failover.pings_due(INTERVAL_MS + PING_MS) == []
    assert failover.next_ms() == INTERVAL_MS + 2 * PING_MS


def test_only_a_ping_ends_a_failover_not_a_late_success() -> None:
    failover = failed_over()
    assert failover.on_send_succeeded("orders", INTERVAL_MS + 1) is None
    assert failover.is_diverted("orders")
    assert failover.on_ping_succeeded("orders", 90_000) == (
        "orders",
        HEALTHY,
        FAILED_OVER,
        90_000,
        INTERVAL_MS,
        BY_PING,
    )
    assert failover.next_ms() is None


def test_a_ping_of_an_entity_that_is_only_suspect_means_nothing() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", 0)
    assert failover.on_ping_succeeded("orders", 1) is None
    assert failover.state("orders") is SUSPECT


@pytest.mark.parametrize("was", [SUSPECT, FAILED_OVER])
def test_an_entity_is_marked_healthy_by_hand(was: State) -> None:
    failover = failed_over() if was is FAILED_OVER else Failover(INTERVAL_MS, PING_MS)
    failover.on_send_failed("orders", INTERVAL_MS)
    change = failover.mark_healthy("orders", 80_000)
    assert change is not None
    assert (change.was, change.state, change.reason) == (was, HEALTHY, BY_HAND)
    assert failover.mark_healthy("orders", 80_001) is None


def test_busy_is_no_suspicion_and_has_no_deadline() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    assert failover.on_busy("orders", 0) is None
    assert failover.on_busy("orders", INTERVAL_MS) is None
    assert failover.advance(10 * INTERVAL_MS) == []
    assert failover.state("orders") is HEALTHY
    assert failover.next_ms() is None
    assert failover.troubled() == {}


def test_busy_again_after_more_than_the_interval_without_a_success_engages_failover() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_busy("orders", 5)
    assert failover.on_busy("orders", 6 + INTERVAL_MS) == ("orders", FAILED_OVER, HEALTHY, 6 + INTERVAL_MS, 5, "")
    assert failover.is_diverted("orders")
    assert failover.next_ms() == 6 + INTERVAL_MS + PING_MS
    assert failover.on_busy("orders", 9 + INTERVAL_MS) is None


@pytest.mark.parametrize("what", ["send", "mark"])
def test_a_success_between_two_busy_answers_lets_the_interval_begin_anew(what: str) -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_busy("orders", 0)
    assert not failover.is_calm("orders")
    ended = failover.on_send_succeeded if what == "send" else failover.mark_healthy
    assert ended("orders", 50_000) is None
    assert failover.is_calm("orders")
    assert failover.on_busy("orders", 70_000) is None
    assert failover.on_busy("orders", 70_000 + INTERVAL_MS) is None


def test_an_outage_in_the_middle_of_busy_answers_has_its_own_interval() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    failover.on_busy("orders", 0)
    failover.on_send_failed("orders", 50_000)
    assert failover.on_busy("orders", 70_000) is None
    assert failover.next_ms() == 50_000 + INTERVAL_MS


def test_a_group_of_keys_fails_over_beside_its_entity() -> None:
    failover = Failover(INTERVAL_MS, PING_MS)
    group = KeyGroup("orders", "2/16")
    failover.on_send_failed(group, 0)
    assert failover.on_send_succeeded("orders", 30_000) is None, "the rest of the entity says nothing of it"
    assert failover.advance(INTERVAL_MS) == [(group, FAILED_OVER, SUSPECT, INTERVAL_MS, 0, "")]
    assert not failover.is_diverted("orders")
    assert failover.pings_due(INTERVAL_MS + PING_MS) == [group]
    assert failover.on_ping_succeeded("orders", 90_000) is None
    assert failover.is_diverted(group)


@pytest.mark.parametrize("interval_ms", [0, 2])
def test_every_history_of_eight_steps_takes_the_edges_of_the_table_and_no_others(interval_ms: int) -> None:
    # Every shorter history is the beginning of one of eight.
    for history in product(("fail", "succeed", "ping", "mark", "wait"), repeat=8):
        _run(history, interval_ms)


@pytest.mark.parametrize("interval_ms", [0, 2])
def test_every_history_of_six_steps_with_a_busy_primary_takes_the_edges_of_the_table(interval_ms: int) -> None:
    for history in product(("fail", "busy", "succeed", "ping", "wait"), repeat=6):
        _run(history, interval_ms)


def _run(history: tuple[str, ...], interval_ms: int) -> None:
    """Play one history beside a model that is written from the text: the state, and when the last failure began."""
    failover = Failover(interval_ms, 3)
    now, state, suspect_since = 0, HEALTHY, 0
    busy_since: int | None = None
    for step in history:
        if step == "busy":
            failover.on_busy("e", now)
            if state is HEALTHY:
                busy_since = now if busy_since is None else busy_since
                if now - busy_since > interval_ms:
                    state, busy_since = FAILED_OVER, None
        elif step == "fail":
            failover.on_send_failed("e", now)
            busy_since = None
            if state is HEALTHY:
                state, suspect_since = (SUSPECT if interval_ms else FAILED_OVER), now
        elif step == "succeed":
            failover.on_send_succeeded("e", now)
            busy_since = None
            state = HEALTHY if state is SUSPECT else state
        elif step == "ping":
            failover.on_ping_succeeded("e", now)
            state = HEALTHY if state is FAILED_OVER else state
        elif step == "mark":
            failover.mark_healthy("e", now)
            state = HEALTHY
        else:
            now += 1
            failover.advance(now)
            if state is SUSPECT and now - suspect_since >= interval_ms:
                state = FAILED_OVER
        assert failover.state("e") is state, (history, step)
        assert failover.is_diverted("e") == (state is FAILED_OVER), history
