"""What the walks of docs/explanation/architecture.md name exists in the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "duobus"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
HEADINGS = (
    "One sent message, followed through the code",
    "One received and completed message, followed through the code",
)

_QUOTED = re.compile(r"`([^`\n]+)`")
_MODULE_FILE = re.compile(r"[\w/]+\.py")
_DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+")


def walk(heading: str) -> str:
    """Return the text of one section of the page."""
    _, found, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    assert found, f"the page has no section '{heading}'"
    return rest.partition("\n## ")[0]


def names_in(text: str) -> list[str]:
    """Return the files and dotted names in backticks."""
    return [name for name in _QUOTED.findall(text) if _MODULE_FILE.fullmatch(name) or _DOTTED.fullmatch(name)]


def exists(name: str) -> bool:
    """Whether a file, or a dotted name below the package (module, then attributes), is there."""
    if _MODULE_FILE.fullmatch(name):
        return any(path.exists() for path in (ROOT / name, PACKAGE / name))
    parts = name.removeprefix("duobus.").split(".")
    folder, depth = PACKAGE, 0
    while depth < len(parts) and (folder / parts[depth]).is_dir():
        folder, depth = folder / parts[depth], depth + 1
    if depth == len(parts):
        return True
    if not (folder / f"{parts[depth]}.py").exists():
        return False
    found: object = import_module(".".join(("duobus", *parts[: depth + 1])))
    for attribute in parts[depth + 1 :]:
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_name_in_this_walk_exists_in_the_code(heading: str) -> None:
    names = names_in(walk(heading))

    assert len(names) > 15, "the walk names functions of the code, in backticks"
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "broker.queue.Queue.send_nothing",
        "broker.nowhere.Queue",
        "broker.queue.Nothing",
        "broker/nowhere.py",
    ],
)
def test_a_name_that_the_code_does_not_have_is_noticed(name: str) -> None:
    assert names_in(f"See `{name}`.") == [name]
    assert not exists(name)
