"""Tests that share something costly run in one process, where there are several."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def costly() -> object:
    return object()


def groups(request: pytest.FixtureRequest) -> list[str]:
    return [mark.args[0] for mark in request.node.iter_markers("xdist_group")]


def test_what_a_module_shares_keeps_its_tests_together(costly: object, request: pytest.FixtureRequest) -> None:
    assert groups(request) == ["tests/testing/test_groups_of_tests.py"]


def test_a_test_that_shares_nothing_runs_anywhere(request: pytest.FixtureRequest) -> None:
    assert groups(request) == []
