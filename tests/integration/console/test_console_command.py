"""``duobus console``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.main import main


class Running:
    """A console in a process of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DUOBUS_")}
        self.process = subprocess.Popen(
            (sys.executable, "-m", "duobus", "console", "--port", "0", *arguments),
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env=clean | environment,
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.slow
def test_it_writes_where_it_is_for_its_owner_alone_and_leaves_nothing_behind(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    key = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=secret-key;UseDevelopmentEmulator=true"
    with Running("--json", "--ready-file", str(ready), DUOBUS_CONNECTION_STRING=key) as console:
        told = json.loads(console.first)
        assert sorted(told) == ["code", "pid", "port", "url"]
        assert json.loads(ready.read_text()) == told
        assert stat.S_IMODE(ready.stat().st_mode) == 0o600
        with urllib.request.urlopen(told["url"] + "sign-in", timeout=60) as page:
            text = page.read().decode()
        assert "localhost" in text
        assert "secret-key" not in text
        assert told["code"] not in text
        console.process.terminate()
        assert console.process.wait(60) == 0
        assert not ready.exists()


@pytest.mark.slow
def test_it_prints_an_address_that_signs_in_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    with Running("--profiles", str(tmp_path / "profiles.json"), "--stdin-ends") as console:
        assert console.first.startswith("Console: http://127.0.0.1:")
        assert "/sign-in#code=" in console.first
        assert console.process.stdin is not None
        console.process.stdin.close()
        assert console.process.wait(60) == 0


@pytest.mark.slow
def test_without_a_namespace_there_is_nothing_that_a_code_could_open() -> None:
    with Running() as console:
        assert "#" not in console.first
        url = console.first.split()[-1]
        with urllib.request.urlopen(url + "sign-in", timeout=60) as page:
            assert b"Connection string" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "evil.example"}), timeout=60)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["console", *arguments], env={"DUOBUS_CONNECTION_STRING": ""})
    assert result.exit_code != 0
    return result.output


def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = refused("--port", str(other.getsockname()[1]))
    assert "cannot listen on 127.0.0.1" in said
    assert "--port 0" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--connection-string", "Endpoint=nonsense;SharedAccessKey=very-secret"), "no connection string"),
        (("--public-url", "console.example.com"), "no address of a console"),
        (("--ready-file", "/missing/folder/ready.json", "--port", "0"), "cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_without_the_key(arguments: tuple[str, ...], words: str) -> None:
    said = refused(*arguments)
    assert words in said
    assert "very-secret" not in said
    assert "Traceback" not in said


def test_where_the_packages_are_missing_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['jinja2'] = None; from duobus.cli.main import main; main(['console'])"
    said = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=60)
    assert said.returncode == 1
    assert "pip install 'duobus[console]'" in said.stderr


@pytest.mark.slow
def test_the_log_tells_of_a_failure_of_the_console_and_nothing_of_the_sdk() -> None:
    program = """
import asyncio, logging, sys
from duobus.console import process
process._set_up_logs(process.Clock())
logging.getLogger("azure.servicebus").error("noise of the SDK")
try:
    raise RuntimeError("broken screen")
except RuntimeError:
    logging.getLogger("duobus.console").exception("failed")
"""
    said = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=60).stderr
    assert "broken screen" in said
    assert "noise of the SDK" not in said
