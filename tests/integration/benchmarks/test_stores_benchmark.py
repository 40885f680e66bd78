"""The benchmark of several stores runs, in short, and tells which bounds were missed; no time is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import stores

FAKE = Path(__file__).with_name("fake_duobus.py")


def sample(sound_ms: float, stalled_ms: float) -> dict[str, object]:
    figures = dict.fromkeys(stores.FIGURES, 1.0)
    return {
        "sound": figures | {"end_to_end_p99_ms": sound_ms},
        "stalled": figures | {"end_to_end_p99_ms": stalled_ms},
        "out_s": 1.0,
    }


def test_the_ratio_is_of_the_medians_and_its_range_of_the_rounds() -> None:
    found = stores.compare([sample(1.0, 1.0), sample(2.0, 3.0), sample(4.0, 2.0)])
    assert found["end_to_end_p99_ms_ratio"] == {"median": 1.0, "min": 0.5, "max": 1.5}
    assert found["send_p99_ms_ratio"]["median"] == 1.0


def test_each_bound_that_was_missed_is_told() -> None:
    good, bad = stores.compare([sample(1.0, 1.19)]), stores.compare([sample(1.0, 1.3)])
    rates = {"A100": {"rate": {"median": 0.91}}, "B": {"rate": {"median": 0.5}}}
    document = {"stall": {"results": {"plain": good, "spread": bad}}, "spread": {"results": {"plain": rates}}}
    assert stores.missed(document) == [
        "spread: end_to_end_p99_ms is 1.30 times what it is without the stall, not 1.2",
        "B: 16 fragments over four stores reach 0.50 of the rate of a plain queue in 1 store, not 0.9",
    ]
    assert stores.missed({}) == []


@pytest.mark.slow
def test_clients_of_other_stores_are_measured_without_and_with_a_stall(tmp_path: Path) -> None:
    document = stores.stall(1, 0.1, tmp_path)
    assert list(document["results"]) == ["plain-2", "spread"]
    for found in document["results"].values():
        assert found["out_s"]["median"] > 0
        for how in ("sound", "stalled"):
            assert 0 < found[how]["end_to_end_p50_ms"] <= found[how]["end_to_end_p99_ms"]
    assert len(stores.stall_table(document["results"]).splitlines()) == 4


def test_four_stores_are_measured_beside_one_with_as_many_fragments_and_a_plain_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "stores.json"
    words = ["--quick", "--parts", "spread", "--workloads", "A100,D", "--data-root", str(tmp_path)]
    assert stores.main([*words, "--duobus", f"{sys.executable} {FAKE}", "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    assert document["failures"] == []
    results = document["spread"]["results"]
    assert list(results) == list(stores.BESIDE)
    for found in results.values():
        assert list(found) == ["A100", "D"]
        assert all(ratio["rate"]["median"] > 0 for ratio in found.values())
    printed = capsys.readouterr().out
    assert [f"4 stores : {words} |" in printed for words in stores.BESIDE.values()] == [True, True]


@pytest.mark.parametrize("words", [["--parts", "nonsense"], ["--workloads", "Z9"]])
def test_what_does_not_exist_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        stores.main(words)
