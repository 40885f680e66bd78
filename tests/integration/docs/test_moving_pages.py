"""The pages on moving from the emulator and from Azure: their commands run as they are written, there and back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from duobus.model.topology.config_file import parse_config
from duobus.testing.server import ServerProcess

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to"

Run = Callable[[str, dict[str, str]], tuple[str, str]]


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page, those within a list of steps without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", (HOW_TO / page).read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs shell commands in the folder of the test, with ``duobus`` on the path; gives both outputs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("duobus", "-m duobus"), ("python3", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (folder / name).chmod(0o755)

    def shell(script: str, variables: dict[str, str]) -> tuple[str, str]:
        environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | variables
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return shell


@pytest.mark.slow
def test_the_way_from_the_emulator_and_back_runs_as_it_is_written(tmp_path: Path, run: Run) -> None:
    serve, look, back = blocks("move-from-the-emulator.md", "sh")
    assert serve == "duobus serve --data ./bus --config Config.json --emulator\n"
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}
    with ServerProcess(tmp_path / "server", config=config, arguments=("--emulator",)) as server:
        variables = {"DUOBUS_CONNECTION_STRING": server.connection_string}
        out, _ = run(look, variables)
        assert "hello from duobus" in out
        run(back, variables)
    (namespace,) = parse_config((tmp_path / "Config.from-duobus.json").read_text()).namespaces
    assert [queue.name for queue in namespace.queues] == ["orders"]


@pytest.mark.slow
def test_the_way_from_azure_and_back_runs_as_it_is_written(tmp_path: Path, run: Run) -> None:
    export, serve, bring, back = blocks("move-from-azure.md", "sh")
    (config,) = blocks("move-from-azure.md", "json")
    assert serve == "duobus serve --data ./bus --config Config.json --tls-self-signed --ready-file ready.json\n"
    # Another broker plays Azure: its address is no part of what is tried.
    address, export = export.split("\n", 1)
    assert address.startswith("export AZURE='Endpoint=sb://")
    with (
        ServerProcess(tmp_path / "azure", arguments=("--emulator",)) as azure,
        ServerProcess(tmp_path / "bus", config=json.loads(config), arguments=("--tls-self-signed",)) as bus,
    ):
        variables = {"AZURE": azure.connection_string, "BUS": bus.connection_string}
        run('DUOBUS_CONNECTION_STRING="$AZURE" duobus queue create orders', variables)
        run(export, variables)
        (tmp_path / "ready.json").write_text(json.dumps(dict(bus.ready)))
        out, err = run(bring, variables)
        assert out.splitlines()[-1].startswith("orders ")  # of the table of queues
        assert "Done: create 1, update 0, delete 0." in err
        _, err = run(back, variables)
        assert "Would do: create 0, update 0, delete 0." in err
