"""The benchmark of one server beside several: what it compares, and one short round."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks import rabbitmq, several_servers
from duobus.testing.postgres_server import PostgresError, programs


def test_each_number_of_servers_is_compared_with_one_server_round_by_round() -> None:
    rounds = {1: [(100.0, 10.0, 5.0), (200.0, 20.0, 6.0), (300.0, 30.0, 7.0)]}
    rounds[3] = [(50.0, 15.0, 5.0), (60.0, 24.0, 6.0), (70.0, 60.0, 7.0)]
    found = several_servers.compared({"C1x1": rounds})["C1x1"]
    assert (found["1"]["rate"], found["1"]["cpu_ratio"]) == (200.0, 1.0)
    assert found["3"]["cpu_ratios"] == [1.5, 1.2, 2.0]
    assert (found["3"]["servers_cpu_us"], found["3"]["database_cpu_us"], found["3"]["cpu_ratio"]) == (24.0, 6.0, 1.5)


def test_rates_are_compared_with_those_of_the_peer_and_their_mean_leaves_out_what_it_cannot_do() -> None:
    own = {1: [(100.0, 10.0, 5.0), (400.0, 20.0, 6.0)], 3: [(200.0, 15.0, 5.0), (600.0, 24.0, 6.0)]}
    peer = [(50.0, 90.0, 0.0), (100.0, 80.0, 0.0)]
    found = several_servers.compared(
        {
            "A100": {**own, several_servers.RABBITMQ: peer},
            "B": {1: own[1], 3: [(50.0, 1.0, 1.0), (100.0, 1.0, 1.0)], several_servers.RABBITMQ: peer},
            "S4x4": {1: own[1], 3: own[3]},
        }
    )
    assert found["A100"]["3"]["peer_ratios"] == [4.0, 6.0]
    assert found["A100"][several_servers.RABBITMQ] == {"rate": 75.0, "servers_cpu_us": 85.0, "database_cpu_us": 0.0}
    assert "peer_ratio" not in found["S4x4"]["3"]
    assert found["mean"]["1"]["peer_ratio"] == pytest.approx(3.0)
    assert found["mean"]["3"]["peer_ratio"] == pytest.approx(5.0**0.5)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_short_round_measures_one_server_and_two_with_sessions_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody looks at the figures.
    monkeypatch.setattr(several_servers, "WARM_PASSES", 0)
    try:
        programs()
    except PostgresError as error:
        pytest.skip(str(error))
    # Not below tmp_path, which PostgreSQL's own user cannot enter.
    with tempfile.TemporaryDirectory(prefix="duobus-servers-") as folder:
        names = ("A100", "S4x4")
        # Processor time is counted in ticks of 10 ms, by each process of the database for itself.
        found = several_servers.measure(Path(folder), names, (1, 2), rounds=1, seconds=1.0, segments=0)
    for name in names:
        for number in (1, 2):
            ((rate, servers, database),) = found[name][number]
            assert min(rate, servers, database) > 0


def test_without_rabbitmq_the_benchmark_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_root: Path) -> tuple[Path, str]:
        raise rabbitmq.NotInstalled("not here")

    monkeypatch.setattr(rabbitmq, "installation", missing)
    assert several_servers.main(["--peer", "rabbitmq"]) == 1
    assert "--install-peer" in capsys.readouterr().err
