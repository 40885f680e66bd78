"""The campaign of pairs of patterns and faults: which are played, what is kept of them, and how they are judged."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load() -> ModuleType:
    before = list(sys.path)
    try:
        spec = importlib.util.spec_from_file_location(
            "cuts_campaign", Path(__file__).resolve().parents[3] / "tools" / "cuts.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


cuts = _load()


class _Played:
    """Plays a pair in no time: what took long is told, and what breaks."""

    def __init__(self, **took: float) -> None:
        self.pairs: list[tuple[str, str, int, float]] = []
        self.found: dict[str, int] = {}
        self.broken: set[str] = set()
        self._took = took

    def __call__(self, pattern: str, fault: str, seed: int, minutes: float, _keep: Path | None) -> dict[str, Any]:
        self.pairs.append((pattern, fault, seed, minutes))
        if fault in self.broken:
            raise OSError("no namespace")
        about = {"pattern": pattern, "fault": fault, "seed": seed, "minutes": minutes, "found": self.found}
        figures = {"rounds": 4, "acknowledged": 10, "received": 11, "lookS": 0.5, "ended": 0}
        return {**about, **figures, "servedMaxS": self._took.get(fault, 1.0)}


def words(folder: Path, *more: str) -> list[str]:
    return ["--pattern", "halves", "--results", str(folder / "r.jsonl"), "--keep", str(folder / "kept"), *more]


def test_each_pair_is_played_once_and_a_run_goes_on_behind_those_that_are_known(tmp_path: Path) -> None:
    played = _Played()
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 0
    assert cuts.main(words(tmp_path), played) == 0
    assert sorted(fault for _, fault, _, _ in played.pairs) == sorted(cuts.STRIKES)
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == len(cuts.STRIKES)
    # With another seed or time it is another.
    for more in (("--seed", "2"), ("--minutes", "0.5")):
        assert cuts.main(words(tmp_path, "--fault", "none", *more), played) == 0
    assert played.pairs[-2:] == [("halves", "none", 2, 1.0), ("halves", "none", 1, 0.5)]


def test_there_are_all_pairs_in_an_order_of_the_seed() -> None:
    pairs = cuts.pairs_of(tuple(cuts.PATTERNS), tuple(cuts.STRIKES), 1)
    assert len(set(pairs)) == len(cuts.PATTERNS) * len(cuts.STRIKES) == 35
    assert pairs == cuts.pairs_of(tuple(cuts.PATTERNS), tuple(cuts.STRIKES), 1)
    assert pairs != cuts.pairs_of(tuple(cuts.PATTERNS), tuple(cuts.STRIKES), 2)


def test_the_worst_pairs_are_played_for_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = _Played(kill_server=9.0, clock_ahead=8.0)
    assert cuts.main(words(tmp_path, "--worst", "2", "--json"), played) == 0
    assert played.pairs[-2:] == [("halves", "kill_server", 1, 10.0), ("halves", "clock_ahead", 1, 10.0)]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["minutes"] for row in rows] == [1.0] * len(cuts.STRIKES) + [10.0] * 2


def test_what_was_found_fails_the_run_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = _Played()
    played.found = {"lost": 2}
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 1
    told = capsys.readouterr()
    assert "2 LOST" in told.out
    assert "1 of 1: halves with none, seed 1: 4 rounds, 10 acknowledged, 11 received, all served again" in told.err
    # It is known from now on, and fails the next run as well.
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 1
    assert len(played.pairs) == 1


def test_a_pair_that_could_not_be_finished_is_told_and_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = _Played()
    played.broken = {"none"}
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 1
    assert "BROKEN OSError: no namespace" in capsys.readouterr().out
    played.broken.clear()
    # So does one of which a stop has left half a line.
    (tmp_path / "r.jsonl").write_text('{"pattern": "hal')
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 0
    assert cuts.main(words(tmp_path, "--fault", "none"), played) == 0
    assert len(played.pairs) == 2


def test_the_list_names_patterns_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuts.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "patterns: whole, halves, bridge, one_way, flapping",
        "faults: none, kill_server, pause_server, kill_database, pause_database, clock_ahead, clock_behind",
    ]
