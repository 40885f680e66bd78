"""Tests that share something costly run in one process, where there are several."""

from __future__ import annotations

import pytest
from kit_order import place_of


@pytest.fixture(scope="module")
def costly() -> object:
    return object()


def groups(request: pytest.FixtureRequest) -> list[str]:
    return [mark.args[0] for mark in request.node.iter_markers("xdist_group")]


def test_what_a_module_shares_keeps_its_tests_together(costly: object, request: pytest.FixtureRequest) -> None:
    assert groups(request) == ["tests/testing/test_groups_of_tests.py"]


def test_a_test_that_shares_nothing_runs_anywhere(request: pytest.FixtureRequest) -> None:
    assert groups(request) == []


def test_what_may_take_minutes_begins_first_and_the_rest_is_mixed() -> None:
    quick = [f"tests/{folder}/test_it.py::test_{number}" for folder in "abc" for number in range(20)]
    order = sorted(
        [*quick, "tests/z/test_it.py::test_long"], key=lambda name: place_of(name, 300 if "long" in name else 0)
    )
    assert order[0] == "tests/z/test_it.py::test_long"
    assert {name.split("/")[1] for name in order[1:11]} == set("abc")
    assert [place_of(name, 0) for name in quick] == [place_of(name, 120) for name in quick]
