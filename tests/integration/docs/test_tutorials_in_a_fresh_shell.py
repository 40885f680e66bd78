"""The README's start and each tutorial are typed as they are written, block by block, into shells that know nothing.

A page's story (which terminal, when Ctrl-C) is told in its prose, so each test tells it again; a page that gets another
block needs another line here.
"""

from __future__ import annotations

import json
import re
import socket
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kits.published import Island
from kits.spark_start import spark_environment
from kits.terminal import ROOT, Terminal, make_tools

TUTORIALS = ROOT / "docs" / "tutorial"

pytestmark = pytest.mark.slow

MakeTerminal = Callable[[], Terminal]


class Page:
    """The blocks of code of a page, handed out in their order."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._folder = folder
        self._text = path.read_text(encoding="utf-8")
        self._blocks = re.finditer(r"^```(\w+)\n(.*?)^```$", self._text, re.MULTILINE | re.DOTALL)

    def next(self, language: str) -> str:
        """The next block, which has to be of this language."""
        found = next(self._blocks)
        assert found[1] == language, found[0]
        return found[2]

    def save(self, name: str) -> None:
        """Do what the page says of the next block: save it under the name that stands before it or after it."""
        found = next(self._blocks)
        assert found[1] == "json", found[0]
        assert f"`{name}`" in self._text[max(0, found.start() - 300) : found.start()]
        (self._folder / name).write_text(found[2], encoding="utf-8")

    def rest(self) -> Iterator[re.Match[str]]:
        return self._blocks


@pytest.fixture
def new_terminal(tmp_path: Path) -> Iterator[MakeTerminal]:
    """Opens terminals in the folder of the test, which is the reader's clone."""
    # Spark asks for the address of the machine's name.
    island = Island({socket.gethostname(): "127.0.0.1"}, tmp_path)
    if not island.is_up:
        island.close()
        pytest.skip("no network of its own can be made here (unshare)")
    opened: list[Terminal] = []
    tools = make_tools(tmp_path)

    def open_one() -> Terminal:
        opened.append(Terminal(island, tmp_path, tools))
        return opened[-1]

    try:
        yield open_one
    finally:
        for terminal in opened:
            terminal.close()
        island.close()


def asked_of_pip(folder: Path) -> list[str]:
    """The extras that pip was asked for; each has to exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"^install -e \.\[(\w+)\]$", (folder / "asked").read_text(), re.MULTILINE)
    assert set(asked) <= set(extras)
    return asked


def test_the_start_of_the_readme_runs_as_pasted(new_terminal: MakeTerminal, tmp_path: Path) -> None:
    page = Page(ROOT / "README.md", tmp_path)
    terminal = new_terminal()
    assert "two chairs" in terminal.shell(page.next("sh"))
    assert "one table" in terminal.python(page.next("python").replace("\nexit()\n", "\n"))
    terminal.leave_python()
    assert "`kill %1`" in (ROOT / "README.md").read_text()
    terminal.shell("kill %1; wait")
    assert (tmp_path / "bus" / "catalog.db").is_file()


def test_the_first_queue(new_terminal: MakeTerminal, tmp_path: Path) -> None:
    page = Page(TUTORIALS / "first-queue.md", tmp_path)
    broker, programs = new_terminal(), new_terminal()
    broker.shell(page.next("sh"))
    page.save("Config.json")
    broker.shell(page.next("sh"), starts="ready")
    programs.shell(page.next("sh"))
    blocks = list(page.rest())
    assert len(blocks) > 5
    for block in blocks:
        assert block[1] == "python"
        programs.python(block[2])
    broker.interrupt()
    assert (tmp_path / "first-bus").is_dir()


def test_a_service_behind_a_relay(new_terminal: MakeTerminal, tmp_path: Path) -> None:
    page = Page(TUTORIALS / "relay.md", tmp_path)
    broker, service, programs = new_terminal(), new_terminal(), new_terminal()
    broker.shell(page.next("sh"), starts="ready")
    for _ in range(2):
        service.shell(page.next("sh"))
    (tmp_path / "shop.py").write_text(page.next("python"), encoding="utf-8")
    service.shell(page.next("sh"), starts="ready")
    programs.shell(page.next("sh"))
    for _ in range(2):
        programs.python(page.next("python"))
    service.interrupt()
    for block in page.rest():
        assert block[1] == "python"
        programs.python(block[2])
    broker.interrupt()


@pytest.mark.timeout(240)
def test_paired_namespaces_with_the_primary_taken_away_twice(new_terminal: MakeTerminal, tmp_path: Path) -> None:
    page = Page(TUTORIALS / "paired-namespaces.md", tmp_path)
    primary, secondary, programs = new_terminal(), new_terminal(), new_terminal()
    environment = page.next("sh")
    primary.shell(environment)
    for other in (secondary, programs):
        other.shell(environment.split("\n")[1])
    assert asked_of_pip(tmp_path) == ["ha"]
    page.save("primary.json")
    page.save("secondary.json")
    start = page.next("sh")
    primary.shell(start, starts="ready")
    secondary.shell(page.next("sh"), starts="ready")
    addresses = page.next("sh")
    for broker, written in zip(
        (primary, secondary), re.findall(r"='(Endpoint=.*)'$", addresses, re.MULTILINE), strict=False
    ):
        broker.wait_for(written)
    programs.shell(addresses)
    programs.python(page.next("python"))
    assert "{}" in programs.python(page.next("python"))
    primary.interrupt()
    assert "'Diverted': 2" in programs.python(page.next("python"))
    primary.shell(start, starts="ready")
    programs.leave_python()
    syphon = page.next("sh")
    programs.shell(syphon, starts="orders")
    assert "2" in programs.interrupt()

    programs.shell("python")
    programs.python(page.next("python"))
    assert "{}" in programs.python(page.next("python"))
    primary.interrupt()
    assert "'Diverted': 2" in programs.python(page.next("python"))
    assert list(page.rest()) == []


@pytest.mark.timeout(360)
def test_from_messages_to_tables_with_spark(
    new_terminal: MakeTerminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SP8."""
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    page = Page(TUTORIALS / "spark.md", tmp_path)
    broker, notebook = new_terminal(), new_terminal()
    environment = page.next("sh")
    broker.shell(environment)
    notebook.shell(environment.split("\n")[1])
    assert asked_of_pip(tmp_path) == ["spark"]
    page.save("Config.json")
    broker.shell(page.next("sh"), starts="ready")
    notebook.shell(page.next("sh"))
    *cells, last = [block[2] for block in page.rest()]
    told = "".join(notebook.python(cell) for cell in cells)
    assert told.count("300\n") == 2
    assert "300 10 0 290" in told
    broker.interrupt()
    cost = notebook.python(last)
    assert "EUR" in cost
    notebook.python("print(json.dumps(told)) if (json := __import__('json')) else None")
    bill = json.loads(re.findall(r"^.*?(\{.*\})$", notebook.shown, re.MULTILINE)[-1])
    assert bill["compact"]["damaged"] == 0
    assert bill["servers_incomplete"] == []
    assert bill["by_kind"]["send"]["operations"] == 600
