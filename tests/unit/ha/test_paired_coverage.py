"""The page that says which test holds which promise tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "reference" / "paired-coverage.md"
#: Those that issue and contract name for the client side.
INVARIANTS = {"I10", "I11", "I12", *(f"I{number}" for number in range(43, 55)), "I59"}


def rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """Each promise, with the files and names of its tests."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 2 and cells[1] != "tests":
            found.append((cells[0], re.findall(r"`([\w./]+\.py)::(test_\w+)`", cells[1])))
    return found


def test_every_promise_of_the_page_names_tests_that_exist() -> None:
    missing = [
        f"{promise}: {file}::{name}"
        for promise, tests in rows()
        for file, name in tests
        if not re.search(rf"^\s*(?:async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
    assert [promise for promise, tests in rows() if not tests] == []
    assert len(rows()) > 60


def test_every_invariant_of_the_client_side_is_on_the_page() -> None:
    assert INVARIANTS - set(re.findall(r"\bI\d+\b", " ".join(promise for promise, _ in rows()))) == set()
