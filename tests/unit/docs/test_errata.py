"""docs/reference/errata.md: every test that a line names exists, and every line names one or says that it has none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "errata.md"
NONE = "—"
#: What the first column of a table is called.
HEADERS = {"about", "client"}


def rows() -> list[list[str]]:
    """The cells of each line of the tables."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in HEADERS]


@cache
def names_in(module: str) -> frozenset[str]:
    """Names of the test functions of a module."""
    tree = ast.parse((ROOT / module).read_text())
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1][:40]}")
def test_the_test_that_a_line_of_the_errata_names_exists(row: list[str]) -> None:
    _, _, cell = row
    if cell == NONE:
        return
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    assert named, cell
    for module, name in named:
        assert name in names_in(module), f"{module} has no {name}"


def test_both_contracts_are_there_whole() -> None:
    assert len(rows()) >= 40


@pytest.mark.parametrize("client", ["Java 1.2.18", "Java 3.6.7", "Qpid JMS"])
def test_each_client_that_was_run_by_hand_has_lines_with_tests(client: str) -> None:
    assert [row for row in rows() if row[0] == client and row[2] != NONE]
