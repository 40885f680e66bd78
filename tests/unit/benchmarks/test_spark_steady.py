"""The first batch of a query is told apart from the others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.spark_steady import steady_of, together

STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


def batch(second: int, took_ms: int, rows: int = 100) -> dict[str, Any]:
    durations = {"triggerExecution": took_ms, "addBatch": took_ms // 2}
    return {"timestamp": f"2026-11-21T12:00:{second:02}.000Z", "numInputRows": rows, "durationMs": durations}


def test_the_rate_is_that_of_all_batches_but_the_first() -> None:
    found = steady_of([batch(3, 5_000), batch(8, 1_000), batch(9, 1_000), batch(10, 300, rows=0)], STARTED)
    assert (found.rows, found.seconds, found.first_s, found.rate) == (200, 2.0, 8.0, 100.0)
    assert found.phases_ms["addBatch"] == 500
    assert found.phases_ms["walCommit"] == 0


def test_a_pause_between_batches_counts() -> None:
    assert steady_of([batch(3, 1_000), batch(6, 2_000)], STARTED).seconds == 4.0


def test_one_batch_is_no_steady_rate() -> None:
    with pytest.raises(ValueError, match="begins with the second"):
        steady_of([batch(3, 1_000), batch(5, 10, rows=0)], STARTED)


def test_several_runs_count_by_their_rows() -> None:
    slow = steady_of([batch(3, 1_000), batch(4, 4_000)], STARTED)
    quick = steady_of([batch(1, 1_000), batch(2, 1_000)], STARTED)
    both = together([slow, quick])
    assert (both.rate, both.first_s) == (40.0, 3.0)
