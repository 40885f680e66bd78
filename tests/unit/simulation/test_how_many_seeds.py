"""The environment can ask for fewer seeds of each world than a run of all tests has."""

from __future__ import annotations

import pytest

from kits.seeds import CLEAN, firsts, needs_clean_run, one_each, some


@pytest.mark.parametrize(
    ("most", "firsts", "found"),
    [
        (None, range(1, 201, 20), list(range(1, 201, 20))),
        ("20", range(1, 201, 20), [1]),
        ("10", range(1, 201, 20), [1]),
        ("20", range(1, 41, 10), [1, 11]),
        ("20", range(1, 31), list(range(1, 21))),
        ("20", range(1, 11, 5), [1, 6]),
        ("20", range(1, 61, 30), [1]),
        ("3", range(21, 41), [21, 22, 23]),
    ],
)
def test_of_each_world_run_as_many_seeds_as_the_environment_says_and_one_test_at_least(
    most: str | None, firsts: range, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUOBUS_SEEDS", raising=False)
    if most is not None:
        monkeypatch.setenv("DUOBUS_SEEDS", most)
    assert list(some(firsts)) == found


def test_of_each_world_stays_one_planted_bug_where_only_so_many_seeds_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = [("idle", "a"), ("idle", "b"), ("queues", "a"), ("queues", "c")]
    monkeypatch.delenv("DUOBUS_SEEDS", raising=False)
    assert one_each(bugs) == bugs
    monkeypatch.setenv("DUOBUS_SEEDS", "10")
    assert one_each(bugs) == [("idle", "a"), ("queues", "a")]


def test_a_recorded_seed_is_run_without_its_bug_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUOBUS_SEEDS", raising=False)
    ran = [seed for first in some(firsts("queues", 10)) for seed in range(first, first + 10)]
    assert list(CLEAN["queues"]) == ran
    assert [needs_clean_run("queues", seed) for seed in (1, 40, 41)] == [False, False, True]
    assert needs_clean_run("servers", 1)


def test_where_the_environment_asks_for_fewer_seeds_no_other_test_stands_for_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DUOBUS_SEEDS", "5")
    assert needs_clean_run("queues", 1)
