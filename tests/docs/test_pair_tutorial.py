"""The tutorial of paired namespaces runs as it is written, against two brokers, one of which is taken away."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duobus.testing.server import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "paired-namespaces.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


FORMS = ["with asyncio", "without"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_the_tutorial_runs_with_the_primary_taken_away(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, behind = (json.loads(block) for block in blocks("json"))
    first = 3 * FORMS.index(form)
    before, after, away = blocks("python")[first : first + 3]
    assert len(blocks("python")) == 3 * len(FORMS)
    with (
        ServerProcess(tmp_path / "primary", config=there, arguments=("--emulator",)) as primary,
        ServerProcess(tmp_path / "secondary", config=behind, arguments=("--emulator",)) as secondary,
    ):
        monkeypatch.setenv("PRIMARY_CONNECTION_STRING", primary.connection_string)
        monkeypatch.setenv("SECONDARY_CONNECTION_STRING", secondary.connection_string)
        names: dict[str, Any] = {}
        exec(compile(before, "before", "exec"), names)  # the page is ours
        exec(compile(after, "after", "exec"), names)
        assert capsys.readouterr().out == "{}\n"
        primary.kill()
        exec(compile(away, "away", "exec"), names)
        assert "'Diverted': 2" in capsys.readouterr().out
        primary.start()
        (command,) = [line for block in blocks("sh") for line in block.splitlines() if "syphon" in line]
        environment = {
            **os.environ,
            "DUOBUS_PRIMARY": primary.connection_string,
            "DUOBUS_SECONDARY": secondary.connection_string,
        }
        with subprocess.Popen(
            [sys.executable, "-m", *command.split(), "--json"], env=environment, stdout=subprocess.PIPE, text=True
        ) as syphon:
            assert syphon.stdout is not None
            carried = 0
            while carried < 2:
                event = json.loads(syphon.stdout.readline())
                assert (event["event"], event["entity"]) == ("Syphoned", "orders")
                carried += event["messages"]
            syphon.send_signal(signal.SIGINT)
    gc.collect()


@pytest.mark.slow
def test_the_addresses_that_the_tutorial_gives_are_those_that_its_brokers_print(tmp_path: Path) -> None:
    shell = "\n".join(blocks("sh"))
    written = re.findall(r"^export (?:PRIMARY|SECONDARY)_CONNECTION_STRING='(.*)'$", shell, re.MULTILINE)
    ports = re.findall(r"^duobus serve .* --port (\d+) ", shell, re.MULTILINE)
    with ServerProcess(tmp_path, arguments=("--emulator",)) as server:
        there = f":{server.ready['amqp_port']};"
        assert [server.connection_string.replace(there, f":{port};") for port in ports] == written
