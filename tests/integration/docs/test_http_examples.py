"""What the pages about HTTP show runs as it is written, against a real broker."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[3]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders", "Properties": {}}]}]}}


def blocks(page: str, language: str, heading: str) -> list[str]:
    text = (ROOT / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("http-examples"), config=CONFIG) as process:
        yield process


def run(code: str, server: ServerProcess) -> str:
    """What a block prints, for the ports of this server."""
    placed = code.replace(":5300", f":{server.ready['http_port']}").replace("bus/tls/ca.pem", server.ca)
    names: dict[str, Any] = {}
    output = io.StringIO()
    with redirect_stdout(output):
        exec(compile(placed, "block", "exec"), names)  # the page is ours
    return output.getvalue().strip()


@pytest.mark.slow
def test_the_curl_of_its_page_sends_and_receives_with_the_token_that_its_python_makes(server: ServerProcess) -> None:
    (python,) = blocks("docs/how-to/curl.md", "python", "Make a token")
    (shell,) = blocks("docs/how-to/curl.md", "sh", "Send and receive")
    send, receive = shell.strip().splitlines()
    token = run(python, server)
    answers = []
    for line in (send, receive):
        command = line.replace(":5300", f":{server.ready['http_port']}")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={"TOKEN": token, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    sent, received = answers
    assert sent == ""
    assert received.startswith("HTTP/1.1 200 ")
    assert 'Priority: "High"' in received
    assert received.endswith("\n\nhello")


@pytest.mark.slow
def test_the_python_of_the_page_about_administration_runs(server: ServerProcess) -> None:
    (python,) = blocks("docs/how-to/administration.md", "python", "Python")
    assert run(python, server) == "0"
