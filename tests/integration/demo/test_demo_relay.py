"""The part ``relay`` of the demonstration, with few requests, and what makes its result a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock
from duobus_demo.progress import Watcher
from duobus_demo.scenarios.relay import Plan, play, relay_failures

GOOD: dict[str, Any] = {
    "sent": 100,
    "failed": 0,
    "lost": 0,
    "told_twice": 0,
    "wrong": 0,
    "executed_more": 0,
    "several_ids": 0,
    "altered": 0,
    "roles_wrong": 0,
    "swaps": 2,
}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_service_behind_two_relays_outlives_the_kill_and_the_stop_of_each(tmp_path: Path) -> None:
    result = play(tmp_path, Watcher(), Clock(), 150, Plan(600, 4, 2 << 20))
    assert relay_failures(result) == []
    assert result["received"] + result["failed"] == result["sent"] == 600
    assert [step["what"].split()[-1] for step in result["timeline"]] == ["killed", "back"] * 2 + ["stopped", "back"] * 2


def test_a_good_result_is_no_failure() -> None:
    assert relay_failures(GOOD) == []


@pytest.mark.parametrize(
    ("member", "value"),
    [(name, 1) for name in GOOD if name not in ("sent", "failed", "swaps")] + [("swaps", 0), ("failed", 11)],
)
def test_each_promise_that_is_broken_makes_the_result_a_failure(member: str, value: int) -> None:
    assert len(relay_failures({**GOOD, member: value})) == 1
