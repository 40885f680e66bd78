"""A broker process whose first store lies on a disk of its own, and a record of what its clients were told."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from duobus.broker.entities.placement import slot_of, string_key
from duobus.testing.server import ServerProcess, queues_config

#: Bytes of a message that needs many pages of a store.
BIG = 50_000
#: Plain queues go to the stores by turns, so the first lies in store 1, which gets the fault, the second in store 2.
FAULTY, SOUND, SPREAD, HASTY = "faulty", "sound", "spread", "hasty"
QUEUES: dict[str, dict[str, Any]] = {
    FAULTY: {},
    SOUND: {},
    SPREAD: {"EnablePartitioning": True},
    HASTY: {"LockDuration": "PT5S"},
}


class Rig:
    """A broker with two stores; ``disk``: the folder in which the file of store 1 is."""

    def __init__(self, folder: Path, disk: Path | None = None) -> None:
        options = ("--emulator", "--log-format", "json", "--stores", "2")
        self.process = ServerProcess(folder, config=queues_config(QUEUES), arguments=options)
        stores = folder / "data" / "stores"
        stores.mkdir(parents=True)
        self.store_path = stores / "store-1.db"
        if disk is not None:
            # SQLite keeps the log beside the file that the link leads to.
            self.store_path.symlink_to(disk / "store-1.db")
            self.store_path = disk / "store-1.db"

    @contextmanager
    def client(self, **options: Any) -> Iterator[ServiceBusClient]:
        """An SDK client that shows every error at once."""
        options.setdefault("retry_total", 0)
        with ServiceBusClient.from_connection_string(self.process.connection_string, **options) as client:
            yield client

    def metric(self, name: str, *labels: str) -> float:
        """The sum of the samples whose lines hold all of ``labels``."""
        connection = HTTPConnection("127.0.0.1", int(self.process.ready["http_port"]), timeout=60)
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        lines = [line for line in page.splitlines() if line.startswith((name + "{", name + " ", name + "_total"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(f'"{label}"' in line for label in labels))

    def is_available(self, store: int = 1) -> bool:
        """Whether a store can be used now."""
        return self.metric("duobus_store_available", str(store)) == 1

    def key_of_store(self, store: int) -> str:
        """A partition key whose messages in SPREAD belong to a store; fragments go to the stores by turns."""
        keys = (f"key-{number}" for number in range(1000))
        return next(key for key in keys if slot_of(string_key(key), 16) % 2 == store - 1)

    def events(self) -> list[dict[str, Any]]:
        """Every structured line of the log so far."""
        lines = self.process.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


class Outcomes:
    """What clients were told about their messages; at the end the queues have to agree."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.completed: list[str] = []

    def send(self, sender: Any, size: int = 100, key: str | None = None) -> bool:
        """Send one message; False when the answer was server-busy, which is definite and can be retried."""
        name = uuid.uuid4().hex
        body = name + ":" + "x" * size
        try:
            sender.send_messages(ServiceBusMessage(body, partition_key=key))
        except ServiceBusServerBusyError:
            self.refused.add(name)
            return False
        except ServiceBusError:
            self.unknown.add(name)
            raise
        self.acknowledged.add(name)
        return True

    def drain(self, client: ServiceBusClient, *queues: str, wait_s: float = 0.6, **options: Any) -> list[str]:
        """Receive and complete everything in these queues; bodies have to be what was sent."""
        found: list[str] = []
        for queue in queues:
            with client.get_queue_receiver(queue, **options) as receiver:
                while messages := receiver.receive_messages(max_message_count=100, max_wait_time=wait_s):
                    for message in messages:
                        found.append(self.name_of(message))
                        receiver.complete_message(message)
        self.completed += found
        return found

    def name_of(self, message: Any) -> str:
        """Which message it is; it must not have changed on its way."""
        name, _, rest = b"".join(message.body).decode().partition(":")
        assert not rest.strip("x"), "a message came back altered"
        assert name in self.acknowledged | self.refused | self.unknown, "a message came back that nobody sent"
        return name

    def verify(self) -> None:
        """Every acknowledged message came exactly once; none that was refused came at all."""
        assert len(self.completed) == len(set(self.completed)), "a message was completed twice"
        assert self.acknowledged <= set(self.completed), "an acknowledged message is lost"
        assert not self.refused & set(self.completed), "a refused message was stored"


def until(what: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for something that another process does, in bounded time."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


def need_root() -> None:
    """Skip where file systems cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount file systems and set file attributes")


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, in memory, with no more room than ``size``."""
    need_root()
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    made = subprocess.run(options, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def command(*words: str | Path) -> None:
    """Run a command of the system that has to succeed."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def fill(disk: Path) -> Path:
    """Take every free byte of a disk; returns the file to remove."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 512, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return path


def choke(disk: Path, outcomes: Outcomes, sender: Any) -> Path:
    """Fill a disk until its store is closed for good; returns the file to remove.

    The log's own file is used again before it grows, and a store that is reopened empties it, which makes room: so
    some messages still find a place, and they count as any other.
    """
    refused = 0
    for _ in range(200):
        filler = fill(disk)
        refused = 0 if outcomes.send(sender, BIG) else refused + 1
        if refused == 4:
            return filler
    raise AssertionError("the disk is full, and yet messages are accepted")


def dead_letters(outcomes: Outcomes, client: ServiceBusClient, queue: str) -> list[str]:
    """Drain a dead-letter queue."""
    return outcomes.drain(client, queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
