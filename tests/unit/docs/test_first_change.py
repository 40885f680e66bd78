"""The first change that CONTRIBUTING shows runs where it is put, and the map beside it names folders that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (
    (ROOT / "CONTRIBUTING.md").read_text().split("\n## Your first change in 30 minutes\n", 1)[1].split("\n## ", 1)[0]
)


def test_the_unit_test_of_the_guide_passes_where_it_is_put(monkeypatch: pytest.MonkeyPatch) -> None:
    (place,) = set(re.findall(r"`(tests/[\w/]+)/test_my_first_change\.py`", GUIDE))
    monkeypatch.syspath_prepend(str(ROOT / place))
    (code,) = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "test_my_first_change.py", "exec"), names)  # the page is ours
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()


def test_the_map_has_every_folder_below_the_package_or_names_it_beside_another() -> None:
    rows = re.findall(r"^\| `.*\|$", GUIDE, re.MULTILINE)
    assert len(rows) == 12
    named = set(re.findall(r"`([\w/.]+)`", "\n".join(rows)))
    folders = {path.parent.name for path in (ROOT / "src" / "duobus").glob("*/__init__.py")}
    assert folders <= named
    assert all((ROOT / "src" / "duobus" / name).is_dir() for name in named - {"duobus"})
