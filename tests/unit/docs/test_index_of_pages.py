"""docs/README.md lists every page there is, tutorials first."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
INDEX = DOCS / "README.md"


def pages_listed() -> list[str]:
    """The pages below docs that the index links to, in its order."""
    return [target for target in re.findall(r"\]\(([^)#]+\.md)", INDEX.read_text()) if not target.startswith("..")]


def test_every_page_of_the_documentation_is_listed() -> None:
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page != INDEX}
    assert there
    assert sorted(there - set(pages_listed())) == []


def test_tutorials_come_before_all_other_sections() -> None:
    sections = re.findall(r"^## (.*)$", INDEX.read_text(), re.MULTILINE)
    assert sections == ["Tutorials", "How to", "Reference", "Explanation", "Decisions"]


def test_a_page_stands_in_the_section_of_its_folder() -> None:
    folders = {"Tutorials": "tutorial", "How to": "how-to", "Reference": "reference", "Explanation": "explanation"}
    for section, folder in folders.items():
        text = INDEX.read_text().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
        first = set(re.findall(r"^- \[[^\]]*\]\(([^)#]+\.md)\)", text, re.MULTILINE))
        assert first
        assert {page.split("/")[0] for page in first} - {".."} == {folder}, section
