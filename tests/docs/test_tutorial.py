"""The tutorial's Python runs as it is written, against a broker with the tutorial's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from duobus.cli.main import main
from duobus.testing.server import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-queue.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (config,) = blocks("json")
    with ServerProcess(tmp_path, config=json.loads(config), arguments=("--emulator",)) as process:
        yield process


@pytest.mark.slow
def test_python_of_the_tutorial_runs_from_top_to_bottom(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICEBUS_CONNECTION_STRING", server.connection_string)
    names: dict[str, Any] = {}
    found = blocks("python")
    assert len(found) > 5
    for number, block in enumerate(found, start=1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)  # the page is ours


@pytest.mark.slow
def test_connection_string_of_the_tutorial_is_that_of_the_emulator(server: ServerProcess) -> None:
    (written,) = [found for block in blocks("sh") for found in re.findall(r"'(Endpoint=.*)'", block)]
    assert written.replace(":5672;", f":{server.ready['amqp_port']};") == server.connection_string


def test_commands_of_the_tutorial_use_options_that_exist() -> None:
    (words,) = [line.split() for block in blocks("sh") for line in block.splitlines() if "duobus serve" in line]
    command = main.get_command(click.Context(main), "serve")
    assert command is not None
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known
