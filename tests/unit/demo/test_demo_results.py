"""How a result is judged, shown, and got at."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from duobus.clock import Clock
from duobus.testing.server import DemoFailed
from duobus_demo import clients
from duobus_demo import registry as parts
from duobus_demo.clients import Endpoint, sync_endpoints
from duobus_demo.dispositions import Dispositions
from duobus_demo.feed import Feed
from duobus_demo.message_account import MessageAccount
from duobus_demo.registry import PARTS, Scenario, load_scenario
from duobus_demo.result_table import rate_line, summary_table, table_of, verdict
from duobus_demo.run_state import RunState
from duobus_demo.scenarios.queue import failures_of
from kits.manual_clock import ManualClock


def result(**changes: Any) -> dict[str, Any]:
    kill = {"unsettled_sends": 4, "locks_held": 120, "restart_seconds": 0.5}
    good = {
        "sent": 1000,
        "lost": 0,
        "missing": [],
        "altered": 0,
        "altered_how": {},
        "revived": 0,
        "left": 0,
        "kills": [kill, kill, kill],
        "per_fragment": {"0": 400, "1": 600},
        "transports": {"tcp": {"sent": 600, "received": 500}, "websocket": {"sent": 1400, "received": 1500}},
        "rates": {"sent_per_second": 1234.5},
        "seconds": 12.5,
    }
    return {**good, **changes}


def test_result_with_nothing_wrong_is_no_failure() -> None:
    assert failures_of(result()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"lost": 2, "missing": ["a.py", "b.py"]},
            "2 acknowledged messages never came out, among them ['a.py', 'b.py']",
        ),
        ({"altered": 1, "altered_how": {"a.py": "its body differs"}}, "'a.py': 'its body differs'"),
        ({"revived": 3}, "3 deliveries of messages whose completion had been acknowledged"),
        ({"left": 1}, "1 messages are in the queue"),
        ({"kills": []}, "0 kills instead of 3"),
    ],
)
def test_whatever_is_wrong_with_a_result_is_named(changes: dict[str, Any], text: str) -> None:
    failures = failures_of(result(**changes))

    assert len(failures) == 1
    assert text in failures[0]


@pytest.mark.parametrize("kill", [{"unsettled_sends": 0, "locks_held": 120}, {"unsettled_sends": 1, "locks_held": 99}])
def test_kill_that_misses_its_conditions_is_a_failure(kill: dict[str, int]) -> None:
    good = {"unsettled_sends": 1, "locks_held": 100}

    assert failures_of(result(kills=[good, kill, good]))[0].startswith("Kill 2 did not meet its conditions")


def test_table_shows_counts_kills_and_fragments() -> None:
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table_of("A title", result(lost=3)))
    text = capture.get()

    assert "A title" in text
    assert "1,000" in text
    assert "3 (must be 0)" in text
    assert "4 sends unsettled, 120 locks held, back in 0.50 s" in text
    assert "0: 400   1: 600" in text
    assert "Over websocket" in text
    assert "1,400 sent, 1,500 received" in text


def test_synchronous_client_goes_without_a_transport_whose_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = [Endpoint("tcp", "", {}), Endpoint("websocket", "", {}, sync_library="websocket")]

    monkeypatch.setattr(clients, "find_spec", lambda name: object())
    assert sync_endpoints(endpoints) == endpoints

    monkeypatch.setattr(clients, "find_spec", lambda name: None)
    assert sync_endpoints(endpoints) == endpoints[:1]


def test_every_part_of_the_registry_can_be_loaded() -> None:
    for name in PARTS:
        assert isinstance(load_scenario(name), Scenario)


@pytest.mark.parametrize("missing", ["azure", "azure.servicebus"])
def test_missing_sdk_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name == missing else object())

    with pytest.raises(DemoFailed, match=r"pip install 'duobus\[ha\]'"):
        load_scenario("queue")


def new_run(clock: Clock, limit_s: float = 60.0) -> RunState:
    return RunState("queue", Feed([]), MessageAccount(clock), Dispositions(), clock, limit_s)


def test_wait_ends_with_what_was_waited_for_when_time_is_up() -> None:
    clock = ManualClock()
    run = new_run(clock)
    run.stopping.set()

    def look() -> bool:
        clock.advance(1_000)
        return False

    with pytest.raises(DemoFailed, match="Waited 5 s in vain: the moon"):
        run.wait_until(look, 5.0, "the moon")


def test_wait_ends_with_the_limit_of_the_whole_run() -> None:
    clock = ManualClock()
    run = new_run(clock, limit_s=10.0)
    run.stopping.set()
    clock.advance(10_001)

    with pytest.raises(DemoFailed, match="longer than 10 s"):
        run.wait_until(lambda: False, 60.0, "the moon")


def test_worker_that_fails_ends_every_wait_with_its_traceback() -> None:
    run = new_run(ManualClock())
    run.fail("sender 1", ZeroDivisionError("first"))
    run.fail("sender 2", ZeroDivisionError("second"))

    with pytest.raises(DemoFailed, match=r"(?s)sender 1 ended.*ZeroDivisionError: first"):
        run.wait_until(lambda: False, 60.0, "the moon")


def part(name: str, **members: Any) -> dict[str, Any]:
    counts = {"sent": 1200, "received": 1000, "duplicates": 2, "lost": 0, "altered": 0, "seconds": 12.3}
    return {"part": name, **counts, **members}


def test_one_table_has_a_row_of_each_part_and_adds_up_what_else_must_be_zero() -> None:
    results = [part("queue", kills=[{}, {}, {}], revived=1, left=2), part("store-loss", kills=[{}], drills=[{}])]
    table = summary_table(results, {"queue": ["2 messages are left."]})
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(table)
    head, *rows = [line.split() for line in capture.get().splitlines()]
    assert head == ["part", "sent", "received", "doubled", "lost", "altered", "wrong", "faults", "s"]
    assert rows == [
        ["queue", "1,200", "1,000", "2", "0", "0", "3", "3", "12", "failed"],
        ["store-loss", "1,200", "1,000", "2", "0", "0", "0", "2", "12", "ok"],
    ]


def test_the_last_line_is_one_verdict() -> None:
    results = [part("queue", kills=[{}, {}]), part("rate")]
    assert verdict(results, {}) == (
        "PASSED: 2,000 messages received, none lost, altered or wrongly delivered, through 2 kills and drills."
    )
    assert verdict([part("rate")], {}).endswith("wrongly delivered.")
    assert verdict(results, {"queue": ["lost"]}) == "FAILED: queue. The reasons stand above."


def test_the_rate_is_told_only_where_it_was_measured() -> None:
    measured = part("rate", messages_per_second=1234.4, message_bytes=1024, clients=12)
    assert rate_line([part("queue", rates={"received_per_second": 80.0})]) == ""
    assert rate_line([part("queue"), measured]).startswith("1,234 messages a second while nothing was killed")
