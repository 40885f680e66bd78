"""The Python of README and tutorials can be typed at Python's prompt as it stands, where an empty line ends a block."""

from __future__ import annotations

import codeop
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorial").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_taken_line_by_line(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > (0 if page.name == "README.md" else 3)
    for block in blocks:
        typed: list[str] = []
        # The prompt waits for an empty line before it takes an indented block.
        for line in (*block.splitlines(), ""):
            typed.append(line)
            if codeop.compile_command("\n".join(typed), page.name, "single") is not None:
                typed = []
        assert typed == [], page
