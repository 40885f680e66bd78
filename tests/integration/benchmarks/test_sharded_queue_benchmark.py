"""The benchmark of spread queues: what it compares, and one short round over two real servers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks import sharded_queue
from duobus.testing.postgres_server import PostgresError, programs


def test_each_way_to_the_spread_queue_is_compared_with_the_plain_one_round_by_round() -> None:
    found = sharded_queue.compared({"plain": [100.0, 200.0, 300.0], "spread by server 0": [50.0, 180.0, 210.0]})
    assert found["plain"] == 200.0
    assert found["spread by server 0 ratios"] == [0.5, 0.9, 0.7]
    assert found["spread by server 0 ratio"] == 0.7


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_round_measures_a_plain_queue_and_a_spread_one() -> None:
    try:
        programs()
    except PostgresError as error:
        pytest.skip(str(error))
    # Not below tmp_path, which PostgreSQL's own user cannot enter.
    with tempfile.TemporaryDirectory(prefix="duobus-spread-") as folder:
        found = sharded_queue.measure(Path(folder), ("C1x1",), rounds=1, seconds=0.2, segments=0)
    assert all(found["C1x1"][way] > 0 for way in ("plain", "spread by server 0", "spread by server 1"))
