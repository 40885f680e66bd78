"""The long form of moves between servers, in short, and how its results are judged."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from duobus_demo.expectations.cluster_account import ClusterAccount

_PATH = Path(__file__).parents[3] / "tools" / "cluster_moves.py"
_SPEC = importlib.util.spec_from_file_location("cluster_moves", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
cluster_moves = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(cluster_moves)

GOOD: dict[str, Any] = {
    "seed": 1,
    "moves": 3,
    "failed": 1,
    "acknowledged": 9,
    "details": [],
    "heldMs": [5],
} | dict.fromkeys(cluster_moves.FAULTS, 0)


def test_a_good_round_has_no_failures() -> None:
    assert cluster_moves.failures_of([GOOD]) == []


@pytest.mark.parametrize(
    "change", [*({name: 1} for name in cluster_moves.FAULTS), {"acknowledged": 0}, {"moves": 0}], ids=str
)
def test_each_thing_that_may_go_wrong_is_a_failure(change: dict[str, int]) -> None:
    assert len(cluster_moves.failures_of([GOOD | change])) == 1


def test_a_run_goes_on_behind_the_rounds_of_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def play(_folder: Path, seed: int, moves: int, _kill_every: int, _clock: object) -> dict[str, Any]:
        played.append(seed)
        return GOOD | {"seed": seed, "moves": moves, "failed": 0}

    monkeypatch.setattr(cluster_moves, "play_round", play)
    results = tmp_path / "results.jsonl"
    cluster_moves.run_rounds(30, 7, 10, results)
    assert played == [7, 8]
    rounds = cluster_moves.run_rounds(60, 7, 10, results)
    assert played == [7, 8, 9, 10]
    assert [json.loads(line)["moves"] for line in results.read_text().splitlines()] == [25, 5, 25, 5]
    assert len(rounds) == 4


def test_the_account_tells_doubled_from_repeated_and_what_left_its_order() -> None:
    account = ClusterAccount()
    account.acknowledged("q", "a", "b", "c")
    account.received("q", "a", 1)
    account.received("q", "a", 1)
    account.received("q", "b", 2)
    account.received("q", "b", 3)
    for number in (0, 1, 1, 3):
        account.in_session("s", number)
    account.early("x")
    assert account.missing() == ["q/c"]
    report = account.report()
    assert (report["repeats"], report["doubled"], report["disordered"], report["early"], report["lost"]) == (
        1,
        1,
        1,
        1,
        1,
    )
    assert len(account.details()) == 4


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_some_moves_under_traffic_with_a_server_killed_lose_and_double_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Loggers are everybody's in a process of tests.
    monkeypatch.setattr(cluster_moves, "silence_sdk_logs", lambda: None)
    assert cluster_moves.main(["--moves", "5", "--kill-every", "4"]) == 0, capsys.readouterr()
