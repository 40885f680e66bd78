"""Stores that an earlier version wrote are brought forward whole or not at all; a newer one is left alone (I65)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from kit_formats import age, age_file, version_of

from duobus.errors import StoreFailed
from duobus.storage.interface import FORMAT_VERSION, JOURNAL_VERSION, CommitBatch, Put
from duobus.storage.sqlite.file import StoreOptions
from duobus.storage.sqlite.store import SqliteStore
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from simulation.parts.virtual_disk import VirtualDisk

PATH = "/virtual/f0.db"
PAYLOADS = [b"%d" % number * 300 for number in range(20)]
OPTIONS = ("--emulator", "--stores", "2")
CONFIG = queues_config({"one": {}, "two": {}, "spread": {"EnablePartitioning": True}})


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[VirtualDisk]:
    made = VirtualDisk(f"disk-{request.node.name}")
    yield made
    made.unregister()


def old_store(disk: VirtualDisk, version: int) -> None:
    """Write a store of an earlier format with PAYLOADS in it to an empty disk."""
    disk.files.clear()
    disk.operations, disk.cut_at = 0, None
    with closing(SqliteStore(PATH, 1, must_exist=False, options=StoreOptions(vfs=disk.name))) as store:
        store.open()
        fragment, (source,) = store.add_fragment(1, 0, [0])
        batch = CommitBatch(1, 1)
        batch.epochs = [(fragment.fragment_key, fragment.epoch)]
        batch.puts = [Put(source.source_key, 1, 1, PAYLOADS)]
        batch.sources = [(source.source_key, 1 + len(PAYLOADS), 0, b"")]
        store.commit(batch)
    with closing(apsw.Connection(PATH, vfs=disk.name)) as db:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        age(db, version)
    disk.operations = 0


def upgrade(disk: VirtualDisk) -> None:
    """Open the store, and look whether everything is there."""
    with closing(SqliteStore(PATH, 1, must_exist=True, options=StoreOptions(vfs=disk.name))) as store:
        (source,) = store.open().sources
        found = [message.payload for message in store.load(source.source_key, 1, 100)]
        assert found == PAYLOADS
        assert store.verify() == []


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_a_power_cut_at_any_operation_of_an_upgrade_loses_nothing(disk: VirtualDisk, version: int) -> None:
    old_store(disk, version)
    upgrade(disk)
    operations = disk.operations
    assert operations > 10
    for cut_at in range(1, operations + 1):
        for seed in range(3):
            old_store(disk, version)
            disk.cut_at = cut_at
            with suppress(StoreFailed):
                upgrade(disk)
            disk.lose_power(random.Random(cut_at * 10 + seed))
            disk.operations, disk.cut_at = 0, None
            upgrade(disk)


@pytest.fixture
def stopped(tmp_path: Path) -> ServerProcess:
    """A server that does not run; each of its queues has had a message."""
    server = ServerProcess(tmp_path, config=CONFIG, arguments=OPTIONS)
    with server:
        send(server, "before")
    return server


def send(server: ServerProcess, body: str) -> None:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        for queue in ("one", "two", "spread"):
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage(body))


def taken(server: ServerProcess, queue: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        found: list[str] = []
        while batch := receiver.receive_messages(100, max_wait_time=1):
            found += [str(message) for message in batch]
        return found


def test_a_server_brings_stores_of_different_formats_forward_and_goes_on(
    stopped: ServerProcess, tmp_path: Path
) -> None:
    paths = [tmp_path / "data" / "stores" / f"store-{number}.db" for number in (1, 2)]
    for version, path in enumerate(paths, start=1):
        age_file(path, version)
    with stopped as server:
        send(server, "after")
        # Killed before the log has come home: what was brought forward stays so.
        server.restart()
        for queue in ("one", "two", "spread"):
            assert sorted(taken(server, queue)) == ["after", "before"]
    assert [version_of(path) for path in paths] == [FORMAT_VERSION, FORMAT_VERSION]


def test_a_server_refuses_a_store_of_a_newer_version_and_leaves_it_as_it_is(
    stopped: ServerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "stores" / "store-2.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"PRAGMA user_version={JOURNAL_VERSION + 1}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    with pytest.raises(DemoFailed) as refusal:
        stopped.start()
    text = str(refusal.value)
    assert f"store-2.db: the store has format {JOURNAL_VERSION + 1}, this version reads up to {FORMAT_VERSION}" in text
    assert "use the version of duobus that wrote it" in text
    assert "Traceback" not in text
    assert path.read_bytes() == before
