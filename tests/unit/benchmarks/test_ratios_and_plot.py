"""Ratios to a peer, and the picture of their history."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plot, ratios
from benchmarks.report import MEAN_OF


def sample(number: int, rate: float, cpu: float = 1.0, send: float | None = None) -> dict[str, Any]:
    return {"round": number, "rate": rate, "cpu_us": {"total": cpu}, "send_p50_ms": send}


def test_a_store_in_postgresql_is_compared_with_one_in_a_file() -> None:
    samples = {
        "duobus-plain": {"A100": [sample(1, 20.0, 2.0, 0.5)]},
        "duobus-postgres": {"A100": [sample(1, 15.0, 2.0, 0.5)]},
    }
    assert ratios.of_postgres(samples)["duobus-postgres"]["A100"]["rate"]["median"] == 0.75


def test_an_earlier_commit_is_compared_round_by_round() -> None:
    samples = {
        "duobus-plain": {"D": [sample(1, 20.0, 2.0), sample(2, 30.0, 2.0), sample(3, 30.0, 4.0)]},
        "duobus-before-plain": {"D": [sample(1, 10.0, 4.0), sample(2, 10.0, 2.0), sample(4, 1.0, 1.0)]},
    }
    found = ratios.of_before(samples)
    assert found == {"duobus-plain": {"D": {"rate": [2.0, 3.0], "cpu": [0.5, 1.0]}}}
    shown = ratios.paired_table(found, "abc")
    assert "duobus-plain  cpu       D      0.750 [0.50..1.00]  0.50 1.00" in shown
    assert "duobus-plain  rate      mean   2.500" in shown


def test_a_broker_that_people_look_at_is_compared_with_the_same_one_alone() -> None:
    samples = {
        "duobus-plain": {"C1x1": [sample(1, 10.0, 4.0), sample(2, 10.0, 2.0)]},
        "duobus-consoles": {"C1x1": [sample(1, 9.0, 5.0), sample(2, 11.0, 2.0)]},
    }
    found = ratios.of_watched(samples)
    assert found == {"duobus-consoles": {"C1x1": {"cpu": [1.25, 1.0], "rate": [0.9, 1.1]}}}
    assert ratios.of_watched({"duobus-plain": samples["duobus-plain"]}) == {}


def test_a_ratio_is_of_medians_with_the_range_of_the_rounds() -> None:
    own = [sample(1, 20.0), sample(2, 60.0), sample(3, 40.0)]
    peer = [sample(1, 10.0), sample(2, 12.0), sample(3, 16.0)]
    assert ratios.compare(own, peer, "rate") == {"median": 40.0 / 12.0, "min": 2.0, "max": 5.0, "rounds": 3}


def test_rounds_that_only_one_side_has_do_not_count() -> None:
    own = [sample(1, 20.0), sample(3, 40.0)]
    peer = [sample(2, 1.0), sample(3, 10.0)]
    assert ratios.compare(own, peer, "rate") == {"median": 4.0, "min": 4.0, "max": 4.0, "rounds": 1}
    assert ratios.compare(own[:1], peer, "rate") is None
    assert ratios.compare(own, peer, "send_p50") is None


def test_processor_time_too_short_to_be_measured_is_not_compared() -> None:
    assert ratios.compare([sample(1, 1.0, cpu=4.0)], [sample(1, 1.0, cpu=0.0)], "cpu") is None


def test_twins_are_compared_where_both_were_measured() -> None:
    samples = {
        "duobus-plain": {"A100": [sample(1, 10.0, 4.0)]},
        "duobus-compiled": {"A100": [sample(1, 15.0, 3.0)]},
        "duobus-compiled-parted": {"A100": [sample(1, 1.0)]},
    }
    found = ratios.of_twins(samples)
    assert list(found) == ["duobus-compiled"]
    assert found["duobus-compiled"]["A100"]["rate"]["median"] == 1.5
    assert found["duobus-compiled"]["A100"]["cpu"]["median"] == 0.75


def test_floors_are_asked_of_certain_configurations_against_certain_peers_only() -> None:
    assert ratios.floor("duobus-plain", "rabbitmq-quorum", "B") == 4.5
    assert ratios.floor("duobus-plain", "rabbitmq-quorum", "D") is None
    assert ratios.floor("duobus-parted", "rabbitmq-quorum", "B") is None
    assert ratios.floor("duobus-plain", "another", "B") is None
    assert ratios.floor("duobus-plain", "artemis", "D") == ratios.floor("duobus-plain", "artemis-aio", "D") == 1.0
    assert ratios.floor("duobus-postgres", "rabbitmq-quorum", "C1x1") == 1.6
    assert ratios.floor("duobus-postgres", "rabbitmq-quorum", "B") is None


def test_the_table_says_which_floor_is_met_and_which_is_not() -> None:
    samples = {
        "duobus-plain": {name: [sample(1, 33.0, 2.0, 0.5)] for name in MEAN_OF},
        "rabbitmq-quorum": {name: [sample(1, 10.0, 8.0, 1.0)] for name in MEAN_OF},
    }
    found = ratios.ratios(samples, "rabbitmq-quorum")
    assert list(found) == ["duobus-plain"]
    lines = {line.split()[1]: line.split() for line in ratios.table(found, "rabbitmq-quorum").splitlines()[1:]}
    assert lines["C1x1"] == [
        "duobus-plain",
        "C1x1",
        "3.30",
        "[3.30..3.30]",
        "3.25",
        "met",
        "0.25",
        "[0.25..0.25]",
        "0.50",
        "-",
    ]
    assert lines["C4x4"][5] == "below"
    assert lines["mean"] == ["duobus-plain", "mean", "3.30"]


def test_two_peers_of_one_run_are_compared_with_duobus_and_not_with_each_other() -> None:
    samples = {
        "duobus-plain": {name: [sample(1, 30.0, send=2.0)] for name in MEAN_OF},
        "rabbitmq-quorum": {name: [sample(1, 10.0, send=4.0)] for name in MEAN_OF},
        "artemis": {name: [sample(1, 20.0, send=1.0)] for name in (*MEAN_OF, "D")},
    }
    found = ratios.of_peers(samples, ["rabbitmq-quorum", "artemis"])
    assert {peer: list(compared) for peer, compared in found.items()} == {
        "rabbitmq-quorum": ["duobus-plain"],
        "artemis": ["duobus-plain"],
    }
    assert found["rabbitmq-quorum"]["duobus-plain"]["B"]["rate"]["median"] == 3.0
    assert found["artemis"]["duobus-plain"]["B"]["rate"]["median"] == 1.5
    assert found["artemis"]["duobus-plain"]["B"]["send_p50"]["median"] == 2.0
    mean = ratios.table(found["artemis"], "artemis").splitlines()[-1].split()
    assert mean == ["duobus-plain", "mean", "1.50", "1.50", "met"]


def test_the_99th_percentile_of_a_send_is_compared_with_that_of_an_earlier_commit() -> None:
    samples = {
        "duobus-plain": {"A1000": [sample(1, 1.0) | {"send_p99_ms": 9.0}]},
        "duobus-before-plain": {"A1000": [sample(1, 1.0) | {"send_p99_ms": 27.0}]},
    }
    shown = ratios.paired_table(ratios.of_before(samples), "abc")
    assert "duobus-plain  send_p99  A1000  0.333 [0.33..0.33]" in shown


def test_tls_is_compared_with_the_same_broker_without() -> None:
    samples = {
        "duobus-plain": {"C1x1": [sample(1, 10.0, 4.0)]},
        "duobus-tls": {"C1x1": [sample(1, 8.0, 5.0)]},
    }
    assert ratios.of_tls(samples)["duobus-tls"]["C1x1"]["cpu"]["median"] == 1.25


def result(when: str, commit: str, rate: float) -> dict[str, Any]:
    figure = {"rate": {"median": rate, "min": rate - 0.5, "max": rate + 0.5, "rounds": 3}}
    return {
        "commit": commit,
        "changed": False,
        "conditions": {"when": when},
        "peer": {"name": "rabbitmq-quorum"},
        "ratios": {"duobus-plain": {"A100": figure, "B": figure}, "duobus-parted": {"A100": figure}},
    }


def test_the_history_is_drawn_in_the_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(result("2026-02-01", "second", 3.0)))
    (tmp_path / "b.json").write_text(json.dumps(result("2026-01-01", "first", 2.0)))
    (tmp_path / "c.json").write_text(json.dumps({"commit": "alone", "results": {}}))
    (tmp_path / "local-quick.json").write_text(json.dumps(result("2026-03-01", "here", 9.0)))
    assert plot.main(["--results", str(tmp_path)]) == 0
    tree = ElementTree.fromstring((tmp_path / "ratios.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    panels = tree.findall(f"{space}g")
    assert [panel[0].text for panel in panels] == ["A100", "B"]
    texts = [text.text for text in panels[0].iter(f"{space}text")]
    assert texts.index("first") < texts.index("second")
    assert "here" not in texts
    dots = panels[1].findall(f"{space}circle")
    assert [dot[0].text for dot in dots] == [
        "duobus-plain B: 2.00 [1.50..2.50]",
        "duobus-plain B: 3.00 [2.50..3.50]",
    ]
    # the better ratio stands higher, and the floor of 4.5 above both
    heights = [float(dot.attrib["cy"]) for dot in dots]
    (floor,) = [path for path in panels[1].findall(f"{space}path") if "stroke-dasharray" in path.attrib]
    assert heights[0] > heights[1] > float(floor.attrib["d"].partition(" ")[2].partition("H")[0])


def test_nothing_to_draw_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plot.main(["--results", str(tmp_path)]) == 1
    assert "no results with ratios" in capsys.readouterr().err
    assert not (tmp_path / "ratios.svg").exists()


def test_ratios_to_different_peers_are_no_history() -> None:
    entries = [plot.Entry("1", "a", "one", {}), plot.Entry("2", "b", "two", {})]
    with pytest.raises(ValueError, match="different peers"):
        plot.draw(entries)
