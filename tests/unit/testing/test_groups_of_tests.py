"""Tests that share something costly run in one process, where there are several."""

from __future__ import annotations

import pytest

from kits.order import place_of


@pytest.fixture(scope="module")
def costly() -> object:
    return object()


def groups(request: pytest.FixtureRequest) -> list[str]:
    return [mark.args[0] for mark in request.node.iter_markers("xdist_group")]


def test_what_a_module_shares_keeps_its_tests_together(costly: object, request: pytest.FixtureRequest) -> None:
    assert groups(request) == ["tests/unit/testing/test_groups_of_tests.py"]


def test_a_test_that_shares_nothing_runs_anywhere(request: pytest.FixtureRequest) -> None:
    assert groups(request) == []


def test_what_may_take_minutes_begins_first_and_the_rest_keeps_its_order() -> None:
    limits = {"a": 0.0, "b": 300.0, "c": 120.0, "d": 60.0, "e": 180.0}
    assert sorted(limits, key=lambda name: place_of(limits[name])) == ["b", "e", "a", "c", "d"]
