"""The list in docs/reference/http-coverage.md, counted: every item has a test with its number for each of its clients.

What cannot be run here is counted as not run, with the reason; the page says the same.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "reference" / "http-coverage.md"

#: Client to the modules that have its tests.
MODULES = {
    "Python": ("acceptance/conformance/test_f1_python.py", "acceptance/conformance/test_f1_server.py"),
    "Python asyncio": ("acceptance/conformance/test_f1_python.py", "acceptance/conformance/test_f1_server.py"),
    "JavaScript": ("acceptance/javascript/test_f1_javascript.py",),
    "raw HTTP": ("integration/gateway/test_f1_raw.py", "acceptance/conformance/test_f1_server.py"),
    "legacy Python": ("acceptance/samples/test_legacy_client.py",),
    "Java": ("acceptance/java/test_f1_java.py",),
}
NOT_RUN = {".NET": "needs the .NET SDK"}
BOTH = ("Python", "Python asyncio", "JavaScript")
EVERYBODY = (*BOTH, "raw HTTP", "Java", *NOT_RUN)

#: Item to the clients that the list names, and raw HTTP where the wire is what counts.
ITEMS: dict[int, tuple[str, ...]] = {
    1: (*BOTH, "raw HTTP", ".NET"),
    2: (*BOTH, "raw HTTP"),
    3: EVERYBODY,
    4: EVERYBODY,
    5: (*BOTH, "raw HTTP"),
    6: (*BOTH, "raw HTTP"),
    7: (*BOTH, "raw HTTP"),
    8: (*BOTH, "raw HTTP"),
    9: EVERYBODY,
    10: ("Python", "Python asyncio"),
    11: (*BOTH, "raw HTTP"),
    12: ("Python", "Python asyncio", "raw HTTP"),
    14: ("raw HTTP", "legacy Python"),
    15: ("Python", "Python asyncio"),
    20: ("raw HTTP",),
    21: ("raw HTTP",),
}


@cache
def items_in(module: str) -> frozenset[int]:
    """The items that a module's tests have in their names."""
    return frozenset(int(number) for number in re.findall(r"def test_f1_(\d\d)_", (TESTS / module).read_text()))


def state(item: int, client: str) -> str:
    if client not in ITEMS[item]:
        return "-"
    if client in NOT_RUN:
        return "not run"
    return "passes" if any(item in items_in(module) for module in MODULES[client]) else "missing"


def test_every_item_has_a_test_for_every_client_that_can_be_run() -> None:
    clients = (*MODULES, *NOT_RUN)
    assert [(item, client) for item in ITEMS for client in clients if state(item, client) == "missing"] == []
    found = set().union(*(items_in(module) for modules in MODULES.values() for module in modules))
    assert found == set(ITEMS)


def test_the_page_tells_the_same_table() -> None:
    clients = (*MODULES, *NOT_RUN)
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    told = {int(number): [cell.strip() for cell in cells.split("|")][1:] for number, cells in rows}
    assert told == {item: [state(item, client) for client in clients] for item in ITEMS}


@pytest.mark.parametrize(
    ("item", "client"), [(item, client) for item in ITEMS for client in NOT_RUN if client in ITEMS[item]]
)
def test_what_is_not_run_is_counted(item: int, client: str) -> None:
    pytest.skip(f"item {item} with {client}: {NOT_RUN[client]}")
