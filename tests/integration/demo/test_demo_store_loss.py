"""What the part ``store-loss`` demands of a result, and one whole run of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_demo_command import RUN_LIMIT_S, rows_of, run_demo

from duobus_demo.scenarios.store_loss import TimedMessageAccount, failures_of
from kits.manual_clock import ManualClock


def result(**changes: Any) -> dict[str, Any]:
    drill = {"drill": "stall", "store": 2, "sends": 300, "back_seconds": 0.2}
    return {
        "lost": 0,
        "missing": [],
        "altered": 0,
        "altered_how": {},
        "revived": 0,
        "left": 0,
        "sends_unknown": 0,
        "slowest_send_seconds": 3.1,
        "drills": [drill, {**drill, "drill": "fail"}],
        **changes,
    }


def test_a_run_without_fault_has_no_failures() -> None:
    assert failures_of(result()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 1, "missing": ["a"]}, "never came out"),
        ({"altered": 1, "altered_how": {"a": "its body differs"}}, "altered"),
        ({"revived": 1}, "completion had been acknowledged"),
        ({"left": 1}, "are not delivered"),
        ({"sends_unknown": 1}, "although other stores were there"),
        ({"slowest_send_seconds": 5.01}, "more than 5 s"),
        ({"drills": []}, "0 drills instead of 2"),
        ({"drills": [{"drill": "stall", "sends": 99}, {"drill": "fail", "sends": 100}]}, "Only 99 sends"),
    ],
)
def test_each_fault_is_a_failure(changes: dict[str, Any], text: str) -> None:
    (failure,) = failures_of(result(**changes))
    assert text in failure


def test_a_send_that_is_repeated_is_as_slow_as_all_its_attempts_together() -> None:
    clock = ManualClock()
    account = TimedMessageAccount(clock)
    account.sending("a", b"", None)
    clock.advance(2_000)
    account.send_unknown("a")
    account.sending("a", b"", None)
    clock.advance(1_000)
    account.acknowledged("a", "tcp")
    assert account.slowest_ms == 3_000


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_a_queue_that_loses_two_stores_takes_every_send_and_loses_nothing() -> None:
    done = run_demo("--json", "--part", "store-loss")

    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["lost"] == counts["altered"] == counts["sends_unknown"] == 0
    # A distribution may leave the tests out of the standard library, more than half of it.
    assert counts["received"] == counts["acknowledged"] > 500
    # The broker has answered each send before a client that waits for 16 s gives up.
    assert counts["slowest_send_seconds"] < 15
    assert [drill["drill"] for drill in counts["drills"]] == ["stall", "fail"]
    told = [value for label, value in rows_of(counts) if label.endswith((", stall", ", fail"))]
    assert [value.partition(" ")[0] for value in told] == [str(drill["sends"]) for drill in counts["drills"]]
