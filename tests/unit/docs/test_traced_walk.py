"""The walk of a plain send in docs/explanation/architecture.md is the one that a send takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from duobus.compiled import compiled_rooms
from tools.trace_walk import PAGE, RECORD, Walk, markdown, section_of, written

STALE = "The walk has changed. `make docs` writes it into the page."

pytestmark = [
    pytest.mark.skipif(bool(compiled_rooms()), reason="a profile hook does not see compiled functions"),
    pytest.mark.xdist_group("walk"),
]


@pytest.fixture
def walks(walks_of_two: list[dict[str, Walk]]) -> dict[str, Walk]:
    return walks_of_two[0]


def test_the_page_names_the_files_of_a_send_in_their_order(walks: dict[str, Walk]) -> None:
    named = re.findall(r"^\| `([\w/]+\.py)` \|", section_of(PAGE.read_text("utf-8")), re.MULTILINE)

    assert named == list(walks["send"]), STALE


def test_the_page_names_the_functions_of_a_send(walks: dict[str, Walk]) -> None:
    assert section_of(PAGE.read_text("utf-8")) == markdown(walks["send"]), STALE


def test_the_list_that_longer_walks_are_compared_with_is_that_of_today(walks: dict[str, Walk]) -> None:
    assert json.loads(Path(RECORD).read_text("utf-8")) == walks, STALE


def test_a_page_is_written_between_its_two_comments_only() -> None:
    text = PAGE.read_text("utf-8")
    walk = {"a.py": ["f", "g"]}

    changed = written(text, walk)

    assert section_of(changed) == "2 functions in 1 files, in the order of their first call:\n\n" + (
        "| file | functions |\n|---|---|\n| `a.py` | `f`, `g` |"
    )
    assert changed.replace(markdown(walk), section_of(text)) == text


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(SystemExit, match="are missing"):
        section_of("# Architecture\n")
