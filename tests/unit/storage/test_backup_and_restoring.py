"""A store is copied as of one instant, and a folder made from the copy repeats no number (I7, I65)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from duobus.clock import Clock
from duobus.errors import ConfigurationError, StoreFailed
from duobus.model.descriptions import QUEUE
from duobus.storage.backup import copy as backup
from duobus.storage.backup import manifest
from duobus.storage.backup.copy import Contents, back_up_stopped, write_backup
from duobus.storage.backup.manifest import read_manifest
from duobus.storage.backup.restore import COUNTS_LEFT_OUT, EPOCHS_LEFT_OUT, NUMBERS_LEFT_OUT, restore
from duobus.storage.backup.snapshot import Snapshot
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import SlotRow, store_path
from duobus.storage.interface import COUNT_MAX
from duobus.storage.replacement import losses_of
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import FAST, Broker


def no_progress(_done: int, _total: int) -> None:
    """Nobody looks."""


def store_of(data: Path) -> SqliteStore:
    return SqliteStore(str(data / store_path(1)), 1, must_exist=True, options=FAST)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with one store, in which one queue has ten messages."""
    data = tmp_path / "data"
    catalog = SqliteCatalog(data / "catalog.db")
    catalog.read()
    catalog.add_store(1, store_path(1))
    catalog.mark_live(catalog.begin_create("n", QUEUE, "q", b"{}", [SlotRow(0, 0, 1)]))
    catalog.close()
    store = SqliteStore(str(data / store_path(1)), 1, options=FAST)
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"%d" % number for number in range(10)])
    store.close()
    return data


def backed_up(data: Path, name: str = "backup") -> Path:
    folder = data.parent / name
    back_up_stopped(data, folder, Clock(), no_progress)
    return folder


def payloads(store: SqliteStore, source_key: int) -> list[bytes]:
    return [row.payload for row in store.load(source_key, 1, 10_000)]


def test_a_snapshot_is_of_one_instant_whatever_is_committed_and_copied_home_meanwhile(
    data: Path, tmp_path: Path
) -> None:
    store = store_of(data)
    broker = Broker(store)
    (source,) = broker.sources.values()
    broker.send(source, [b"x" * 1000] * 5000)
    snapshot = Snapshot(data / store_path(1))
    snapshot.pin()
    commit_no = broker.commit_no
    steps = 0
    for _ in snapshot.copy(tmp_path / "copy.db"):
        steps += 1
        broker.send(source, [b"later"] * 100)
        batch = broker.batch()
        batch.removed.append((source.source_key, steps * 10, steps * 10 + 5))
        broker.commit(batch)
        store.checkpoint()
        store.checkpoint_aside()
    assert steps > 2
    assert snapshot.state().last_commit == commit_no
    snapshot.close()
    store.close()
    copy = SqliteStore(str(tmp_path / "copy.db"), 1, must_exist=True, options=FAST)
    assert copy.open().last_commit_no == commit_no
    assert copy.verify() == []
    assert len(payloads(copy, source.source_key)) == 5010
    copy.close()


def test_a_restored_folder_has_the_messages_and_leaves_out_what_may_have_been_given_out(data: Path) -> None:
    store = store_of(data)
    before = store.open()
    store.close()
    folder = backed_up(data)
    target = data.parent / "target"
    restore(folder, target, no_progress)
    store = store_of(target)
    after = store.open()
    assert payloads(store, 1) == [b"%d" % number for number in range(10)]
    assert store.verify() == []
    assert [row.epoch for row in after.fragments] == [row.epoch + EPOCHS_LEFT_OUT for row in before.fragments]
    assert [row.next_count for row in after.sources] == [row.next_count + COUNTS_LEFT_OUT for row in before.sources]
    # Tombstones of other stores are compared with these.
    assert (after.generation, after.last_commit_no) == (before.generation, before.last_commit_no)
    store.close()
    assert {path.name for path in target.rglob("*.restoring*")} == set()


def test_a_fragment_that_is_replaced_after_a_restore_leaves_out_numbers_too(data: Path) -> None:
    restore(backed_up(data), data.parent / "once", no_progress)
    restore(backed_up(data.parent / "once", "again"), data.parent / "twice", no_progress)
    for name, restored in (("once", 1), ("twice", 2)):
        catalog = SqliteCatalog(data.parent / name / "catalog.db")
        (loss,) = losses_of(catalog.read(), 1)
        catalog.close()
        assert loss.new_fragment_no == 1 + restored * NUMBERS_LEFT_OUT


def test_a_restore_that_ends_half_way_is_no_data_folder_that_anyone_would_serve(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, target = backed_up(data), data.parent / "target"
    replace = Path.replace

    def cut(path: Path, other: Path) -> Path:
        if "store-1" in path.name:
            raise OSError(5, "the power was cut")
        return replace(path, other)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        with pytest.raises(StoreFailed, match="Empty it before you try again"):
            restore(folder, target, no_progress)
    with pytest.raises(StoreFailed, match="the store's file is missing"):
        store_of(target).open()
    with pytest.raises(ConfigurationError, match="is not empty"):
        restore(folder, target, no_progress)


def test_a_source_without_enough_counts_left_is_not_restored(data: Path) -> None:
    store = store_of(data)
    broker = Broker(store)
    (source,) = broker.sources.values()
    source.next_count = COUNT_MAX - COUNTS_LEFT_OUT
    broker.send(source, [b"last"])
    store.close()
    with pytest.raises(StoreFailed, match="restored too often"):
        restore(backed_up(data), data.parent / "target", no_progress)


def test_a_catalog_that_knows_other_stores_is_not_restored(data: Path) -> None:
    folder = backed_up(data)
    catalog = SqliteCatalog(data / "catalog.db")
    catalog.add_store(2, store_path(2))
    text = catalog.serialized()
    catalog.close()
    (folder / "catalog.db").write_bytes(text)
    found = read_manifest(folder)
    changed = msgspec.structs.replace(manifest.checksum(folder / "catalog.db"), name="catalog.db")
    (folder / "backup.json").unlink()
    manifest.write_manifest(folder, msgspec.structs.replace(found, files=(changed, *found.files[1:])))
    with pytest.raises(StoreFailed, match="knows other messaging stores"):
        restore(folder, data.parent / "target", no_progress)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"catalog.db"', '"../catalog.db"', "belongs to no backup"),
        ('"stores/store-1.db"', '"/etc/passwd"', "belongs to no backup"),
        ('"stores/store-1.db"', '"tls/..x"', "belongs to no backup"),
        ('"stores/store-1.db"', '"stores/store-2.db"', "not those of its stores"),
        ('"stores/store-1.db"', '"catalog.db"', "not those of its stores"),
        ('"format": 1,\n  "begun', '"format": 2,\n  "begun', "use the version that wrote it"),
        ('"online": false', '"online": 3', "is no manifest"),
        ("{", "[" * 100_000, "is no manifest"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(data: Path, old: str, new: str, says: str) -> None:
    folder = backed_up(data)
    path = folder / "backup.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=says):
        restore(folder, data.parent / "target", no_progress)
    assert not (data.parent / "target").exists()


def test_a_manifest_beyond_its_bytes_is_refused(data: Path) -> None:
    folder = backed_up(data)
    with (folder / "backup.json").open("a") as file:
        file.write(" " * manifest.MANIFEST_BYTES_MAX)
    with pytest.raises(ConfigurationError, match="more than 1048576 bytes"):
        read_manifest(folder)


def test_files_that_are_no_certificates_of_ours_fail_a_backup(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "tls").mkdir()
    (data / "tls" / "large.pem").write_bytes(bytes(manifest.OTHER_BYTES_MAX + 1))
    with pytest.raises(StoreFailed, match="is no certificate or key of ours"):
        backed_up(data)
    (data / "tls" / "large.pem").write_bytes(b"")
    (data / "tls" / "other.pem").write_bytes(b"")
    monkeypatch.setattr(backup, "OTHERS_MAX", 1)
    with pytest.raises(StoreFailed, match="more than 1 certificates and keys"):
        backed_up(data, "second")


def test_a_backup_is_given_up_before_the_log_fills_the_disk(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "LOG_BYTES_MAX", 100_000)
    store = store_of(data)
    broker = Broker(store)
    (source,) = broker.sources.values()
    broker.send(source, [b"x" * 1000] * 500)
    snapshot = Snapshot(data / store_path(1))
    snapshot.pin()
    folder = data.parent / "backup"
    backup.make_folder(folder)
    contents = Contents(b"", {store_path(1): snapshot}, 0, is_online=True)
    with pytest.raises(StoreFailed, match="The backup was given up"):
        write_backup(data, folder, contents, Clock(), no_progress)
    snapshot.close()
    store.close()
    with pytest.raises(ConfigurationError, match="holds no whole backup"):
        read_manifest(folder)


def test_whoever_looks_on_can_give_a_backup_up(data: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise StoreFailed("the server was stopped")

    with pytest.raises(StoreFailed, match="the server was stopped"):
        back_up_stopped(data, data.parent / "backup", Clock(), stop)
    # The half takes no room.
    assert list((data.parent / "backup").iterdir()) == []
    # Nobody holds the folder any more.
    backed_up(data, "second")
