"""Backups of a real server of which a store fails, stalls, or has no room: all of it, or nothing and why (I63)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.testing.server import ServerProcess, queues_config

CONFIG = queues_config({"one": {}, "two": {}})
OPTIONS = ("--emulator", "--stores", "2", "--allow-drills")
LIMIT_S = 60.0


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def server(tmp_path: Path, backups: Path) -> Iterator[ServerProcess]:
    """Two plain queues, each in a store of its own, with one message each."""
    with ServerProcess(tmp_path, config=CONFIG, arguments=(*OPTIONS, "--backup-to", str(backups))) as process:
        for queue in ("one", "two"):
            assert send(process, queue, "before")
        yield process


def duobus(server: ServerProcess | None, *words: str, status: int = 0) -> Any:
    environment = {} if server is None else {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()] if status == 0 else result.output


def send(server: ServerProcess, queue: str, body: str) -> bool:
    with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
        client.get_queue_sender(queue) as sender,
    ):
        try:
            sender.send_messages(ServiceBusMessage(body))
        except ServiceBusError:
            return False
    return True


def taken(server: ServerProcess, queue: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found: list[str] = []
        while batch := receiver.receive_messages(100, max_wait_time=1):
            found += [str(message) for message in batch]
        return found


def until(what: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.05)):
        if what():
            return
        pause.wait(0.05)
    raise AssertionError("it did not happen in time")


def store_of(server: ServerProcess, queue: str) -> int:
    (fragment,) = duobus(server, "fragment", "list", queue)
    return int(fragment["store"])


def is_open(server: ServerProcess, store: int) -> bool:
    found = duobus(server, "store", "list")
    return any(row["store"] == store and row["state"] == "open" for row in found)


@pytest.mark.parametrize("drill", ["fail", "stall"])
def test_no_backup_is_made_without_a_store_that_is_away(
    server: ServerProcess, backups: Path, tmp_path: Path, drill: str
) -> None:
    sick = store_of(server, "one")
    duobus(server, "store", drill, str(sick))
    assert not send(server, "one", "ambiguous")
    refusal = duobus(server, "backup", status=1)
    assert f"Messaging store {sick} is not available" in refusal
    assert "Try again" in refusal
    assert list(backups.glob("*")) == []
    # Whoever asks again is told the same, and the other store does not mind.
    duobus(server, "backup", status=1)
    assert send(server, "two", "meanwhile")
    duobus(server, "store", "heal", str(sick))
    until(lambda: is_open(server, sick))
    (status,) = duobus(server, "backup")
    assert (status["state"], status["reason"]) == ("done", None)
    duobus(None, "restore", "--from", str(backups / status["backup"]), "--data", str(tmp_path / "again"))
    with ServerProcess(tmp_path / "other", config=CONFIG, data=tmp_path / "again", arguments=OPTIONS) as other:
        # What the store had been told when it stalled, it wrote; its sender was told that nobody knows.
        assert taken(other, "one")[:1] == ["before"]
        assert taken(other, "two") == ["before", "meanwhile"]


def test_a_backup_that_finds_no_room_on_the_way_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, config=CONFIG, arguments=OPTIONS) as process:
        assert send(process, "one", "kept")
    with small_disk(tmp_path / "small") as disk:
        target = disk / "backup"
        # Bytes count as free until they are written to: what was asked before the copy proves nothing.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("duobus.storage.backup.copy.shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))
            refusal = duobus(None, "backup", "--data", str(tmp_path / "data"), "--to", str(target), status=1)
        assert str(target) in refusal
        assert list(target.iterdir()) == []
        refusal = duobus(None, "backup", "--data", str(tmp_path / "data"), "--to", str(target), status=1)
        assert "Make room, or give another" in refusal
        assert list(target.iterdir()) == []
        refusal = duobus(None, "restore", "--from", str(target), "--data", str(tmp_path / "no"), status=1)
        assert "holds no whole backup" in refusal


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """48 KiB, less than a store takes, in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
