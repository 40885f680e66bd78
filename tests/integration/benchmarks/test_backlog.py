"""The deep backlog in short: what is counted is checked, no time is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.backlog import failures, run


def test_a_backlog_deeper_than_the_window_survives_a_kill_and_comes_exactly_once(tmp_path: Path) -> None:
    """I64."""
    result = run(60_000, 500, 2, tmp_path)

    assert result["messages"] == 60_000
    assert len(result["deep_rates"]) == 2
    assert len(result["short_rates"]) == 9
    assert len(result["sdk_deep_rates"]) == len(result["sdk_short_rates"]) == 1
    assert result["resident_mb"] > 0
    assert result["restart"]["old_message_seconds"] >= result["restart"]["ready_seconds"]
    assert not list(tmp_path.iterdir())


def test_each_bound_that_is_passed_is_named() -> None:
    good = {
        "resident_mb": 100.0,
        "resident_after_mb": 90.0,
        "restart": {"send_accepted_seconds": 1.0, "old_message_seconds": 1.1},
        "rate_share": 0.95,
    }
    assert failures(good) == []

    bad = {
        "resident_mb": 700.0,
        "resident_after_mb": 90.0,
        "restart": {"send_accepted_seconds": 1.0, "old_message_seconds": 6.0},
        "rate_share": 0.5,
    }
    assert [text.split()[0] for text in failures(bad)] == ["700", "It", "The"]
