"""The programs under examples/ do what they say, against a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duobus.testing.server import ServerProcess

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(
    name: str, connection_string: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "queue"), [("send_and_receive.py", "example"), ("send_and_receive_async.py", "example-async")]
)
def test_example_receives_every_message_that_it_sent(server: ServerProcess, name: str, queue: str) -> None:
    result = run_example(name, server.connection_string, queue)

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "sent 5 messages"
    assert sorted(lines[1:]) == [f"received {number}: message {number} (delivery 0)" for number in range(1, 6)]


def test_example_without_a_queue_says_how_to_call_it() -> None:
    result = run_example("send_and_receive.py", "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b")

    assert result.returncode == 1
    assert "usage: send_and_receive.py QUEUE" in result.stderr


@pytest.mark.slow
def test_example_ends_with_the_error_of_a_queue_that_does_not_exist(server: ServerProcess) -> None:
    result = run_example("send_and_receive.py", server.connection_string, "nowhere")

    assert result.returncode == 1
    assert "ServiceBusAuthenticationError" in result.stderr
