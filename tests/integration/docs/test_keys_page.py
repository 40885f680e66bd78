"""The page about keys: its commands run as they are written, and replace a lost key in a minute with nothing lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from duobus.cli.remote import Remote
from duobus.ha.sdk import prompt_client
from duobus.testing.server import ServerProcess

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "keys.md"
#: A lost key is replaced in this time, by somebody who types the commands of the page.
LIMIT_S = 60.0

Run = Callable[[str], str]


def blocks(heading: str) -> list[str]:
    text = PAGE.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs shell commands in the folder of the test, with ``duobus`` on the path and no connection string."""
    command = tmp_path / "bin" / "duobus"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m duobus "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    environment.pop("DUOBUS_CONNECTION_STRING", None)

    def shell(script: str) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return shell


def received(connection_string: str, queue: str, number: int) -> list[str]:
    with prompt_client(ServiceBusClient.from_connection_string(connection_string, retry_total=0)) as client:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
            found: list[str] = []
            while len(found) < number and (got := receiver.receive_messages(number, max_wait_time=5)):
                found += map(str, got)
            return found


def is_taken(connection_string: str, queue: str) -> bool:
    """Whether a key opens a queue."""
    with prompt_client(ServiceBusClient.from_connection_string(connection_string, retry_total=0)) as client:
        try:
            with client.get_queue_receiver(queue) as receiver:
                receiver.peek_messages(1)
        except ServiceBusAuthenticationError:
            return False
    return True


def test_a_lost_key_is_replaced_in_a_minute_as_the_page_says_and_nothing_is_lost(tmp_path: Path, run: Run) -> None:
    with ServerProcess(tmp_path / "server", data=tmp_path / "bus", arguments=("--stores", "1")) as server:
        lost = server.connection_string
        with Remote(lost, server.ready["admin_url"], None).administration("queue") as administration:
            administration.create_queue("orders")
        sent = [str(number) for number in range(20)]
        with prompt_client(ServiceBusClient.from_connection_string(lost)) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages([ServiceBusMessage(text) for text in sent])
            begun = time.monotonic()
            replace, look = blocks("Replace a key that somebody else has")
            new = run(replace).splitlines()[-1]
            assert sorted(received(new, "orders", len(sent))) == sorted(sent)
            took = time.monotonic() - begun
        assert took < LIMIT_S
        assert not is_taken(lost, "orders")
        assert '"access rule"' in run(look)
        assert server.is_running


def test_the_other_commands_of_the_page_run_in_its_order(tmp_path: Path, run: Run) -> None:
    with ServerProcess(tmp_path / "server", data=tmp_path / "bus", arguments=("--stores", "1")) as server:
        with Remote(server.connection_string, server.ready["admin_url"], None).administration("queue") as client:
            client.create_queue("orders")
        (see,) = blocks("See what there is")
        listed, shown, text = run(see).splitlines()
        assert "primaryKey" not in listed
        assert json.loads(shown)["primaryConnectionString"] == text == server.connection_string
        (add,) = blocks("Give each program a key of its own")
        billing = json.loads(run(add).splitlines()[0])
        first, second, swap = blocks("Replace a key without an outage")
        secondary = run(first).splitlines()[-1]
        # The clients have the old primary key, and then the new secondary one: either of them opens the queue.
        assert is_taken(billing["primaryConnectionString"], "orders")
        assert is_taken(secondary, "orders")
        run(second)
        assert not is_taken(billing["primaryConnectionString"], "orders")
        assert is_taken(secondary, "orders")
        assert json.loads(run(swap))["primaryConnectionString"] == secondary
        (remove,) = blocks("Remove a rule")
        run(remove)
        names = [json.loads(line)["name"] for line in run("duobus key list --data ./bus").splitlines()]
        assert names == ["RootManageSharedAccessKey", "billing"]
    number = sum(len(blocks(heading)) for heading in re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE))
    assert number == 8, "a command of the page is typed by no test"
