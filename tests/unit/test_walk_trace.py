"""How far a plain message walks through the code: distinct files and functions from the bytes in to the bytes out.

``tools/trace_walk.py`` says what is traced, and how. The figures are limits: what makes a walk longer fails, and what
makes one shorter lowers the limit here. Each run writes them to ``.build/house.json`` and prints the walks
(``pytest -s``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from duobus.compiled import compiled_rooms
from tools.trace_walk import RECORD, Size, Walk, markdown, size_of

HOUSE: Final = Path(__file__).parents[2] / ".build" / "house.json"

#: Files and functions that a walk may touch: as many as it does.
LIMITS: Final = {
    "send": Size(25, 86),
    "deliver": Size(18, 51),
    "hand over": Size(31, 113),
    "complete": Size(22, 74),
}

pytestmark = [
    pytest.mark.skipif(bool(compiled_rooms()), reason="a profile hook does not see compiled functions"),
    pytest.mark.xdist_group("walk"),
]


def news_of(walk: Walk, before: Walk) -> str:
    """Which files and functions a walk has that it did not have when it was written down."""
    files = [path for path in walk if path not in before]
    functions = [
        f"{path}: {name}" for path, names in walk.items() for name in names if name not in before.get(path, [])
    ]
    return f"new files: {', '.join(files) or 'none'}; new functions: {', '.join(functions) or 'none'}"


def excess_of(name: str, walk: Walk, before: Walk, limit: Size) -> str:
    """What to say of a walk that is too long; nothing when it is not."""
    size = size_of(walk)
    if size.files <= limit.files and size.functions <= limit.functions:
        return ""
    return (
        f"{name}: {size.functions} functions in {size.files} files, of at most {limit.functions} in {limit.files}; "
        f"{news_of(walk, before)}"
    )


@pytest.mark.parametrize("name", LIMITS)
def test_a_plain_message_walks_no_further_than_it_did(walks_of_two: list[dict[str, Walk]], name: str) -> None:
    walk = walks_of_two[0][name]
    print(f"\n{name}: {markdown(walk)}")

    assert excess_of(name, walk, json.loads(RECORD.read_text("utf-8"))[name], LIMITS[name]) == ""


def test_the_next_message_walks_the_same_way(walks_of_two: list[dict[str, Walk]]) -> None:
    first, second = walks_of_two

    assert second == first


def test_a_walk_leads_from_the_connection_through_the_store_and_back(walks_of_two: list[dict[str, Walk]]) -> None:
    for name, walk in walks_of_two[0].items():
        functions = [function for functions in walk.values() for function in functions]
        assert functions[0] == "Peer.data_received", name
        assert "Peer._end_iteration" in functions, name
        assert ("JournalStore.commit" in functions) == (name != "deliver"), name


def test_a_walk_that_is_too_long_is_told_with_what_is_new_in_it() -> None:
    before = {"a.py": ["f"], "b.py": ["g"]}
    walk = {"a.py": ["f", "h"], "c.py": ["i"], "b.py": ["g"]}

    assert excess_of("send", walk, before, Size(3, 4)) == ""
    assert excess_of("send", walk, before, Size(2, 4)) == (
        "send: 4 functions in 3 files, of at most 4 in 2; new files: c.py; new functions: a.py: h, c.py: i"
    )
    assert excess_of("send", walk, before, Size(3, 3)) != ""


def test_the_figures_are_kept_for_the_report_on_the_layout(walks_of_two: list[dict[str, Walk]]) -> None:
    record: dict[str, Any] = json.loads(HOUSE.read_text("utf-8")) if HOUSE.is_file() else {}
    sizes = {name: size_of(walk)._asdict() for name, walk in walks_of_two[0].items()}
    # What others wrote into the file stays.
    record |= {"walk_files": sizes["send"]["files"], "walk_calls": sizes["send"]["functions"], "walks": sizes}
    HOUSE.parent.mkdir(exist_ok=True)
    HOUSE.write_text(json.dumps(record, indent=1) + "\n", "utf-8")

    kept = json.loads(HOUSE.read_text("utf-8"))
    assert (kept["walk_files"], kept["walk_calls"]) == size_of(walks_of_two[0]["send"])
