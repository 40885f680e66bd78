"""The benchmarks of the HTTP interfaces and of the parts run, and tell what they say they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import http_interfaces, parts


def test_growth_compares_the_last_fifth_with_the_first() -> None:
    found = http_interfaces.growth([0.001] * 5 + [0.002] * 15 + [0.003] * 5)
    assert (found["first_ms"], found["last_ms"], found["growth"]) == (1.0, 3.0, 3.0)


def test_a_missed_bound_is_noticed() -> None:
    good = {"growth": 1.0, "growth_max": 1.5}
    found = {"sends": {"ratio": 0.6}, "create_plain": good, "create_partitioned": good, "pages": good}
    assert http_interfaces.is_within(found)
    assert not http_interfaces.is_within(found | {"sends": {"ratio": 0.4}})
    assert not http_interfaces.is_within(found | {"pages": {"growth": 1.6, "growth_max": 1.5}})


@pytest.mark.slow
def test_a_short_round_of_the_http_interfaces_gives_every_figure(tmp_path: Path) -> None:
    found = http_interfaces.measure(tmp_path, 1, 0.1, 100)
    assert found["sends"]["ratio"] > 0
    assert found["create_plain"]["number"] == 10
    assert found["create_partitioned"]["number"] == 1
    assert found["pages"]["number"] == 100


@pytest.mark.slow
def test_the_parts_are_written_into_one_file(tmp_path: Path) -> None:
    output = tmp_path / "parts.json"
    assert parts.main(["--quick", "--parts", "rules,forwarding", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["failures"] == []
    assert "SQL rule / by hand" in found["rules"]
    assert found["forwarding"]["rates"]["send"] > 0


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit):
        parts.main(["--parts", "nonsense"])
