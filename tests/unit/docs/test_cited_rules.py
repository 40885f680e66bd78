"""Rules that are cited by number stand on two pages of the reference, with tests that exist and that cite them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from simulation.checkers import CHECKERS

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "reference" / "invariants.md", ROOT / "docs" / "reference" / "requirements.md"
#: How many rules each kind has; the numbers begin at 1.
KINDS = {"I": 66, "PN": 16, "PE": 21, "IN": 10, "TL": 13, "SP": 8}
FOLDERS = ("src", "simulation", "tests", "docs", "tools", "benchmarks", "fuzz", "examples", "changes")
SUFFIXES = {".py", ".md", ".json", ".toml"}
#: One number, or the first and the last of several.
_CITED = re.compile(r"\b(PN|PE|IN|TL|SP|I)(\d{1,3})\b(?:(?:\s+to\s+|\u2013)\1(\d{1,3})\b)?")
_NAMED = re.compile(r"`((?:tests|src|simulation)/[\w/.]+)(?:::(\w+))?`")
NONE = "—"


class Rule(NamedTuple):
    """A row of one of the pages.

    Attributes:
        number: By which it is cited.
        where: What watches it, or where it is built.
        tests: Those that show it.
        but: What the last cell of a requirement says; "" for an invariant.
    """

    number: str
    where: str
    tests: str
    but: str


def cited(text: str) -> set[str]:
    """The numbers of all rules that a text cites; "I4 to I6" are three."""
    found = _CITED.findall(text)
    return {f"{kind}{number}" for kind, first, last in found for number in range(int(first), int(last or first) + 1)}


def rules(pages: Iterable[Path] = PAGES) -> Iterator[Rule]:
    """The rows of the pages, in their order."""
    for page in pages:
        for line in page.read_text().splitlines():
            if not re.match(r"\| (PN|PE|IN|TL|SP|I)\d+ \|", line):
                continue
            number, _, where, tests, *but = (cell.strip() for cell in line.strip().strip("|").split(" | "))
            yield Rule(number, where, tests, *but) if but else Rule(number, where, tests, "")


@cache
def names_in(module: str) -> frozenset[str]:
    """Names of the functions of a module."""
    tree = ast.parse((ROOT / module).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(cell: str) -> list[str]:
    """What a cell names and the repository does not have."""
    found = [(path, name) for path, name in _NAMED.findall(cell)]
    return [
        f"{path}::{name}" if name else path
        for path, name in found
        if not (ROOT / path).exists() or (name and name not in names_in(path))
    ]


RULES = {rule.number: rule for rule in rules()}


def test_the_pages_have_every_rule_once() -> None:
    assert [rule.number for rule in rules()] == list(RULES)
    assert RULES.keys() == {f"{kind}{number}" for kind, most in KINDS.items() for number in range(1, most + 1)}


def test_a_rule_that_is_cited_anywhere_stands_on_the_pages() -> None:
    wrong = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                wrong += [f"{path.relative_to(ROOT)}: {one}" for one in cited(path.read_text()) - RULES.keys()]
    assert wrong == []


@pytest.mark.parametrize("number", RULES)
def test_a_rule_names_what_exists_and_a_test_that_cites_it(number: str) -> None:
    rule = RULES[number]
    assert missing(rule.where) + missing(rule.tests) == []
    if rule.tests == NONE:
        assert rule.but.startswith("Does not hold")
        return
    tests = _NAMED.findall(rule.tests)
    assert tests
    assert all(path.startswith("tests/") and name.startswith("test_") for path, name in tests)
    # Whatever stands in a cell is a test, or would not be looked for.
    assert re.sub(_NAMED, "", rule.tests).strip(", ") == ""
    assert any(number in cited((ROOT / path).read_text()) for path, _ in tests), f"no test of {number} cites it"


def test_an_invariant_is_watched_by_the_checker_that_has_its_number() -> None:
    for number, checker in CHECKERS.items():
        path = f"{checker.__module__.replace('.', '/')}.py"
        assert RULES[f"I{number}"].where == f"`{path}::{checker.__name__}`"


def test_what_is_not_there_is_found_missing() -> None:
    here = "tests/unit/docs/test_cited_rules.py"
    assert missing(f"`{here}::test_what_is_not_there_is_found_missing`, `{here}`") == []
    assert missing(f"`{here}::test_nothing`, `tests/docs/test_nowhere.py::test_nothing`") == [
        f"{here}::test_nothing",
        "tests/docs/test_nowhere.py::test_nothing",
    ]


def test_numbers_between_two_are_cited_too() -> None:
    kind = "TL"
    assert cited(f"({kind}2 to {kind}4, {kind}7; {kind}9\u2013{kind}10)") == {f"{kind}{n}" for n in (2, 3, 4, 7, 9, 10)}
