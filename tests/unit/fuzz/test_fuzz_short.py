"""Every fuzz target from a fixed seed, thousands of inputs; ``make fuzz`` runs them for ten minutes each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from fuzz.run import TARGET_NAMES, blind, mutations, seeds_of  # noqa: E402 - the path comes first
from fuzz.targets import TARGETS, OracleBroken, begin, check  # noqa: E402

#: Inputs for each of them, which take it a second or two on an idle machine.
INPUTS = 4_000
#: A minute at most for all of them together, however busy the machine is.
SECONDS = 60.0 / len(TARGETS)
PLANTED_SECONDS = 2.0
#: Other tests share the processor.
SLACK = 10.0


@pytest.fixture(autouse=True)
def _other_tests_memory_is_theirs() -> None:
    begin()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_target_survives_random_changes_of_its_seeds(name: str) -> None:
    assert blind(name, lambda data: check(TARGETS[name], data, SLACK), SECONDS, seed=1, most=INPUTS) > 100


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_seed_of_the_corpus_passes_its_target(name: str) -> None:
    seeds = seeds_of(name)
    assert len(seeds) > 1
    for data in seeds:
        check(TARGETS[name], data, SLACK)


def test_the_command_line_offers_every_target() -> None:
    assert sorted(TARGET_NAMES) == sorted(TARGETS)


def test_a_search_ends_with_the_number_of_inputs_that_it_was_given() -> None:
    seen: list[bytes] = []
    assert blind("codec", seen.append, SECONDS, seed=1, most=7) == len(seen) == 7


def test_the_same_seed_gives_the_same_inputs_again() -> None:
    first, second = mutations("codec", 7), mutations("codec", 7)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]


def test_an_undeclared_error_is_a_finding_and_its_input_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fuzz.run.WORK", tmp_path)

    def fragile(data: bytes) -> None:
        if len(data) % 7 == 3:
            raise IndexError("planted")

    with pytest.raises(IndexError):
        blind("codec", fragile, PLANTED_SECONDS, seed=1)
    assert len((next((tmp_path / "findings").iterdir())).read_bytes()) % 7 == 3


def test_a_target_that_takes_too_long_is_a_finding() -> None:
    with pytest.raises(OracleBroken):
        check(lambda data: sum(range(3_000_000)) and None, b"x", slack=0.01)
