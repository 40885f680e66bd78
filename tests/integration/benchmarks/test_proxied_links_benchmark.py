"""The benchmark of proxied links: one short round over two real servers, and what counts as a missed bound."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks import joined_servers, proxied_links
from duobus.testing.postgres_server import PostgresError, programs


def test_the_names_of_its_queues_belong_into_the_stores_that_it_says() -> None:
    assert [joined_servers.store_of(joined_servers.queue_in(store)) for store in (1, 2)] == [1, 2]


def test_a_bound_that_is_missed_is_named() -> None:
    good = {"passing": {"A100": {"ratio": 0.7}}, "failover": {"kill_s": [3.0], "drain_s": [0.4]}}
    bad = {"passing": {"A100": {"ratio": 0.6}}, "failover": {"kill_s": [3.0, 5.1], "drain_s": []}}
    assert proxied_links.missed(good) == []
    assert proxied_links.missed(bad) == ["A100 costs 0.40, more than 0.35", "kill_s 5.10, more than 5.0"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_round_measures_both_ways_and_both_failovers() -> None:
    try:
        programs()
    except PostgresError as error:
        pytest.skip(str(error))
    # Not below tmp_path, which PostgreSQL's own user cannot enter.
    with tempfile.TemporaryDirectory(prefix="duobus-passing-") as folder:
        found = proxied_links.measure(Path(folder), ("A100",), rounds=1, seconds=0.2, failover_rounds=1, segments=0)
    assert found["passing"]["A100"]["owner"] > 0
    assert found["passing"]["A100"]["passed"] > 0
    assert len(found["failover"]["kill_s"]) == len(found["failover"]["drain_s"]) == 1
