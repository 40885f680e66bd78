"""What only the store on disk can do wrong: files, locks, formats, damage."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from duobus.errors import StoreFailed, StoreStale, StoreTooNew
from duobus.storage.backup import snapshot as snapshot_module
from duobus.storage.backup.snapshot import Snapshot
from duobus.storage.interface import FORMAT_VERSION, JOURNAL_VERSION, Tombstone
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.sqlite import store as sqlite
from duobus.storage.sqlite.file import StoreFile, store_failed
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import FAST, Broker, payloads_of, sqlite_store

TESTS = Path(__file__).parents[2]


def path_of(folder: Path) -> Path:
    return folder / "store" / "f0.db"


def log_of(folder: Path) -> Path:
    return Path(f"{path_of(folder)}-wal")


def filled(folder: Path, n: int = 5) -> Broker:
    """Return a broker on a store with one source and ``n`` messages."""
    broker = Broker(sqlite_store(folder))
    (source,) = broker.add()
    broker.send(source, [b"payload %d" % i for i in range(n)])
    return broker


def edit(folder: Path, sql: str) -> None:
    """Change a closed store behind its back."""
    db = sqlite3.connect(path_of(folder))
    with db:
        db.execute(sql)
    db.close()


def test_files_are_private_and_so_is_their_folder(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path_of(tmp_path).parent.iterdir()}
    assert modes == dict.fromkeys(("f0.db", "f0.db-wal", "f0.db.lock"), 0o600)
    assert stat.S_IMODE(path_of(tmp_path).parent.stat().st_mode) == 0o700
    broker.store.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
def test_no_file_of_a_store_is_mapped_whoever_reads_it(tmp_path: Path) -> None:
    # On a full disk a page of a mapped file may have no room, and then the process ends (decision 0037).
    broker = filled(tmp_path)
    store = broker.store
    assert isinstance(store, SqliteStore)
    (source,) = broker.add(2)
    broker.send(source, [b"x" * 1000] * 500)
    snapshot = Snapshot(path_of(tmp_path))
    snapshot.pin()
    broker.send(source, [b"y" * 1000] * 500)
    store.checkpoint_aside()
    store.load_columns(source.source_key, 1, 100)
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path) not in maps
    assert snapshot.state().rows == 505
    snapshot.close()
    store.close()


def test_no_other_program_reads_a_store_that_is_open(tmp_path: Path) -> None:
    # Its index of the log lies in this process's memory: another's would be another one.
    broker = filled(tmp_path)
    program = (
        "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT count(*) FROM messages'))"
    )
    words = [sys.executable, "-c", program, str(path_of(tmp_path))]
    assert "database is locked" in subprocess.run(words, capture_output=True, text=True, check=False).stderr
    broker.store.close()
    assert subprocess.run(words, capture_output=True, text=True, check=False).stdout == "(5,)\n"


def test_an_index_that_an_earlier_version_left_is_removed(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store._abandon("killed")
    index = Path(f"{path_of(tmp_path)}-shm")
    index.write_bytes(b"\xff" * 32_768)
    broker.open()
    assert not index.exists()
    assert len(broker.store.load(1, 1, 10)) == 5
    broker.store.close()


def test_every_commit_is_synced_by_default(tmp_path: Path) -> None:
    store = SqliteStore(str(path_of(tmp_path)), 1)
    store.open()
    for db in (store._db, store._aside):
        assert db is not None
        assert (db.pragma("synchronous"), db.pragma("journal_mode"), db.pragma("wal_autocheckpoint")) == (2, "wal", 0)
    store.close()


def test_a_closed_store_has_an_empty_log(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    assert Path(f"{path_of(tmp_path)}-wal").stat().st_size > 0
    broker.store.close()
    assert Path(f"{path_of(tmp_path)}-wal").stat().st_size == 0


def test_a_store_that_must_exist_is_not_created(tmp_path: Path) -> None:
    store = SqliteStore(str(path_of(tmp_path)), 1, must_exist=True, options=FAST)
    with pytest.raises(StoreFailed, match="missing"):
        store.open()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_store_that_existed(tmp_path: Path) -> None:
    path_of(tmp_path).parent.mkdir()
    path_of(tmp_path).touch()
    store = SqliteStore(str(path_of(tmp_path)), 1, must_exist=True, options=FAST)
    with pytest.raises(StoreFailed, match="is empty"):
        store.open()
    assert path_of(tmp_path).stat().st_size == 0


def test_a_file_that_vanished_is_not_created_anew_on_reopening(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    path_of(tmp_path).unlink()
    with pytest.raises(StoreFailed, match="missing"):
        broker.store.open()
    assert not path_of(tmp_path).exists()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_probe_notices_that_the_file_was_moved_away(tmp_path: Path, is_replaced: bool) -> None:
    broker = filled(tmp_path)
    broker.store.probe()
    path_of(tmp_path).rename(tmp_path / "elsewhere")
    if is_replaced:
        path_of(tmp_path).touch()
    with pytest.raises(StoreFailed, match="moved, removed or replaced"):
        broker.store.probe()
    with pytest.raises(StoreFailed):
        broker.store.probe()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_committed_to_a_file_that_is_no_longer_at_its_path(tmp_path: Path, is_replaced: bool) -> None:
    broker = filled(tmp_path)
    (source,) = broker.add(2)
    number = broker.commit_no
    path_of(tmp_path).rename(tmp_path / "elsewhere")
    if is_replaced:
        path_of(tmp_path).touch()
    # Nobody would find it again after a restart.
    with pytest.raises(StoreFailed, match="moved, removed or replaced"):
        broker.send(source, [b"refused"])
    (tmp_path / "elsewhere").replace(path_of(tmp_path))
    broker.open()
    assert broker.commit_no == number
    assert len(broker.store.load(1, 1, 10)) == 5
    assert broker.store.load(source.source_key, 1, 10) == []


@pytest.mark.parametrize("moment", ["prepare", "cut", "connect"])
def test_a_file_that_is_moved_away_while_it_is_opened_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # I1: SQLite deletes the log beside a file without a page, and would make such a file.
    broker = filled(tmp_path)
    number = broker.commit_no
    broker.store._abandon("killed")  # the log stays as it is
    assert log_of(tmp_path).stat().st_size > 0
    away = tmp_path / "away"
    patched = {"prepare": (StoreFile, "_take_lock"), "cut": (log_room, "cut"), "connect": (sqlite, "connect")}[moment]
    original = getattr(*patched)

    def moved_before(*arguments: Any, **named: Any) -> Any:
        if path_of(tmp_path).exists():
            path_of(tmp_path).rename(away)
        return original(*arguments, **named)

    with monkeypatch.context() as patches:
        patches.setattr(*patched, moved_before)
        with pytest.raises(StoreFailed):
            broker.store.open()
    assert not path_of(tmp_path).exists()
    assert log_of(tmp_path).stat().st_size > 0

    away.replace(path_of(tmp_path))
    broker.open()
    assert broker.commit_no == number
    assert len(broker.store.load(1, 1, 10)) == 5


def test_an_empty_file_in_the_place_of_a_store_leaves_its_log_alone(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store._abandon("killed")
    path_of(tmp_path).rename(tmp_path / "away")
    path_of(tmp_path).touch()
    with pytest.raises(StoreFailed, match="is empty; put it back"):
        broker.store.open()
    (tmp_path / "away").replace(path_of(tmp_path))
    broker.open()
    assert len(broker.store.load(1, 1, 10)) == 5


def test_a_newer_format_is_refused_and_not_touched(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    edit(tmp_path, f"PRAGMA user_version={JOURNAL_VERSION + 1}")
    before = path_of(tmp_path).read_bytes()
    with pytest.raises(StoreTooNew, match="format 5, this version reads up to 3"):
        broker.store.open()
    assert path_of(tmp_path).read_bytes() == before
    edit(tmp_path, f"PRAGMA user_version={FORMAT_VERSION}")
    broker.open()
    assert len(broker.store.load(1, 1, 10)) == 5


def test_another_stores_file_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).store.close()
    with pytest.raises(StoreFailed, match="this is store 1, not 2"):
        SqliteStore(str(path_of(tmp_path)), 2, options=FAST).open()


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path_of(tmp_path).parent.mkdir()
    edit(tmp_path, "CREATE TABLE cookies(id)")
    with pytest.raises(StoreFailed, match="not a messaging store"):
        SqliteStore(str(path_of(tmp_path)), 1, options=FAST).open()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path_of(tmp_path).parent.mkdir()
    path_of(tmp_path).write_bytes(b"certainly no database " * 100)
    with pytest.raises(StoreFailed, match="no database"):
        SqliteStore(str(path_of(tmp_path)), 1, options=FAST).open()


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    program = (
        "import sys; from duobus.storage.sqlite.store import SqliteStore; from duobus.errors import StoreFailed\n"
        "try: SqliteStore(sys.argv[1], 1).open()\n"
        "except StoreFailed as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(path_of(tmp_path))]
    assert "another process" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    broker.store.close()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def test_the_fence_is_what_refuses_a_replaced_owner(tmp_path: Path) -> None:
    old = filled(tmp_path)
    # Somebody removes the lock file: the lock no longer keeps others out, the row in the file does.
    Path(f"{path_of(tmp_path)}.lock").unlink()
    new = Broker(sqlite_store(tmp_path))
    with pytest.raises(StoreStale, match="another owner"):
        old.commit(old.batch())
    new.store.close()


def test_a_commit_on_a_full_disk_fails_whole_and_loses_nothing(tmp_path: Path) -> None:
    broker = Broker(sqlite_store(tmp_path, max_pages=60))
    (source,) = broker.add()
    broker.send(source, [b"x" * 8000] * 20)
    with pytest.raises(StoreFailed, match="disk is full"):
        broker.send(source, [b"y" * 8000] * 60)
    with pytest.raises(StoreFailed, match="disk is full"):
        broker.store.probe()
    broker.reopen()
    assert payloads_of(broker.store.load(source.source_key, 1, 100)) == [b"x" * 8000] * 20
    broker.remove((source.source_key, 1, 20))
    (source,) = broker.contents.sources
    broker.send(source, [b"z" * 8000] * 20)
    broker.store.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_store_whose_folder_cannot_be_made_fails_in_clear_words() -> None:
    with pytest.raises(StoreFailed, match="could not open the store"):
        SqliteStore("/dev/full/store/f0.db", 1).open()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE sources SET next_count = next_count - 1", "the row of a source is damaged"),
        ("UPDATE sources SET counters = x'ff'", "the row of a source is damaged"),
        ("UPDATE sources SET next_count = 'text'", "the row of a source is damaged"),
        ("UPDATE fragments SET epoch = epoch + 1", "the row of a fragment is damaged"),
        ("UPDATE meta SET rows = 0", "the store's own row is damaged"),
        ("DELETE FROM meta", "the store's own row is missing"),
        ("UPDATE tombstones SET last_count = 99", "a tombstone is damaged"),
    ],
)
def test_a_damaged_row_of_the_stores_own_fails_the_open(tmp_path: Path, sql: str, words: str) -> None:
    broker = filled(tmp_path)
    batch = broker.batch()
    batch.tombstones = [Tombstone(2, 1, 1, 1, 1, 1)]
    broker.commit(batch)
    broker.store.close()
    edit(tmp_path, sql)
    with pytest.raises(StoreFailed, match=words):
        broker.store.open()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("payload = CAST('payload X' AS BLOB)", "body: the checksum"),
        ("payload = x''", "body: the checksum"),
        ("enqueued_ms = enqueued_ms + 1", "body: the checksum"),
        ("enqueued_ms = 1.5", "body: a column"),
        ("body_sum = body_sum + 1", "body: the checksum"),
        ("body_sum = 'none'", "body: the checksum"),
        ("state = 4", "state: the checksum is missing"),
        ("deliveries = 1", "state: the checksum is missing"),
        ("special = x'00'", "state: the checksum is missing"),
        ("state_sum = 5", "state: the checksum does not hold"),
        ("state = 2, state_sum = 5", "state: the checksum does not hold"),
        ("id = id + 40", "body: the checksum"),
    ],
)
def test_a_damaged_message_is_quarantined_and_never_returned(tmp_path: Path, change: str, fault: str) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    edit(tmp_path, f"UPDATE messages SET {change} WHERE id & 255 = 3")
    broker.open()
    assert [m.count for m in broker.store.load(1, 1, 10)] == [1, 2, 4, 5]
    assert len(broker.store.load(1, 1, 3)) == 3
    ((source_key, count, words),) = broker.store.quarantined()
    assert (source_key, count & 3) == (1, 3)
    assert words.startswith(fault)
    assert isinstance(broker.store, SqliteStore)
    assert broker.store.verify() != []
    broker.store.close()


def test_a_damaged_message_can_be_removed_like_any_other(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    edit(tmp_path, "UPDATE messages SET payload = x'00' WHERE id & 255 = 3")
    broker.open()
    broker.remove((1, 1, 5))
    assert broker.store.usage().rows == 0
    assert isinstance(broker.store, SqliteStore)
    assert broker.store.verify() == []
    broker.store.close()


def test_a_sound_store_verifies_without_a_word(tmp_path: Path) -> None:
    broker = filled(tmp_path, 300)
    broker.change((1, 3, 2, 1, b"special"))
    broker.remove((1, 10, 20))
    assert isinstance(broker.store, SqliteStore)
    assert broker.store.verify() == []
    broker.store.close()


def test_verify_notices_messages_that_have_vanished(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    edit(tmp_path, "DELETE FROM messages WHERE id & 255 = 3")
    broker.open()
    assert isinstance(broker.store, SqliteStore)
    assert broker.store.verify() == ["5 messages were stored, 4 were found"]
    broker.store.close()


def test_usage_counts_rows_and_bytes_of_the_files(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    usage = broker.store.usage()
    files = sum(Path(f"{path_of(tmp_path)}{suffix}").stat().st_size for suffix in ("", "-wal"))
    assert (usage.rows, usage.bytes_used) == (5, files)
    assert usage.bytes_free is not None
    assert usage.bytes_free > 0
    broker.store.close()


def test_commits_of_a_process_that_was_killed_are_all_there(tmp_path: Path) -> None:
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from kits.store_builders import Broker\n"
        "from duobus.storage.sqlite.store import SqliteStore\n"
        "broker = Broker(SqliteStore(sys.argv[1], 1)); (source,) = broker.add()\n"
        "for i in range(20): broker.send(source, [b'%d' % i])\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path_of(tmp_path)), str(TESTS)], check=False)
    broker = Broker(SqliteStore(str(path_of(tmp_path)), 1, must_exist=True, options=FAST))
    assert payloads_of(broker.store.load(1, 1, 100)) == [b"%d" % i for i in range(20)]
    assert broker.contents.last_commit_no == 20
    broker.store.close()


# --- a store at one instant ------------------------------------------------------------------------------------------


def test_a_copy_is_of_the_instant_that_was_pinned_last_and_for_nobody_elses_eyes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(snapshot_module, "_SYNC_BYTES", 1)
    monkeypatch.setattr(snapshot_module, "sync_file", lambda path: synced.append(path))
    broker = filled(tmp_path)
    (source,) = broker.add(2)
    snapshot = Snapshot(path_of(tmp_path))
    before = snapshot.state().rows
    snapshot.pin()
    broker.send(source, [b"x" * 1000] * 50)
    assert snapshot.state().rows == before
    snapshot.pin()
    broker.send(source, [b"y" * 1000] * 50)
    size, log = snapshot.sizes()
    assert log == path_of(tmp_path).with_name("f0.db-wal").stat().st_size > 0
    target = tmp_path / "copy.db"
    assert list(snapshot.copy(target))[-1] == size == target.stat().st_size
    # Along the way, and at the end.
    assert len(synced) > 1
    assert set(synced) == {target}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        list(snapshot.copy(target))
    assert not snapshot.is_closed
    snapshot.close()
    assert snapshot.is_closed
    for refused in (snapshot.pin, snapshot.sizes, snapshot.state):
        with pytest.raises(StoreFailed, match="given up"):
            refused()
    broker.store.close()
    other = SqliteStore(str(target), 1)
    assert other.open().last_commit_no
    assert other.usage().rows == before + 50
    other.close()


def test_each_transaction_shows_the_thread_of_the_checkpoints_that_there_is_work(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    store = broker.store
    assert isinstance(store, SqliteStore)
    seen = {store.commits}
    for _ in range(3):
        store.probe()
        seen.add(store.commits)
    assert len(seen) == 4
    store.close()


def test_a_store_that_is_closed_drops_nothing_even_of_an_entity_that_it_does_not_have(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.store.close()
    with pytest.raises(StoreFailed, match="not open"):
        broker.store.drop_entity(77)


def test_an_empty_file_is_nothing_to_make_a_backup_of(tmp_path: Path) -> None:
    path = tmp_path / "f0.db"
    path.touch()
    with pytest.raises(StoreFailed, match="the store's file is empty"):
        Snapshot(path)


def test_a_failure_names_the_code_of_the_database_where_there_is_one() -> None:
    found = str(store_failed("f0.db", "open the store", OSError("gone")))
    assert found == "f0.db: could not open the store: the operating system refused (gone)"
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (a UNIQUE); INSERT INTO t VALUES (1)")
    with pytest.raises(apsw.ConstraintError) as caught:
        db.execute("INSERT INTO t VALUES (1)")
    assert str(store_failed("f0.db", "write", caught.value)).endswith(" [SQLITE_CONSTRAINT_UNIQUE])")


# --- what a store holds open -----------------------------------------------------------------------------------------


def open_files(folder: Path) -> int:
    """How many files of a folder are open; what else is, others may close meanwhile."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that the listing itself was made with
            found += entry.readlink().is_relative_to(folder)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells what is open")
def test_nothing_stays_open_of_what_was_refused_or_closed(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    store = broker.store
    assert isinstance(store, SqliteStore)
    before = open_files(tmp_path)
    for _ in range(3):
        with pytest.raises(StoreFailed, match="another process has this store open"):
            SqliteStore(str(path_of(tmp_path)), 1).open()
        store.make_room(2 << 20)
    assert open_files(tmp_path) == before
    store.close()
    closed = open_files(tmp_path)
    for _ in range(3):
        store.open()
        store.close()
    assert open_files(tmp_path) == closed


def test_the_names_of_a_new_store_are_made_durable_in_its_folder_and_in_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    plain = os.fsync

    def fsync(fd: int) -> None:
        found = os.fstat(fd)
        synced.append((found.st_dev, found.st_ino))
        plain(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "new" / "f0.db"
    file = StoreFile(str(path), is_virtual=False)
    file.prepare(must_exist=False)
    file.release()
    wanted = [folder.stat() for folder in (path.parent, tmp_path)]
    assert synced == [(found.st_dev, found.st_ino) for found in wanted]


def test_the_connection_that_reads_ahead_is_closed_with_its_store(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    store = broker.store
    assert isinstance(store, SqliteStore)
    (source,) = broker.add(2)
    number = store.columns_least
    broker.send(source, [b"x"] * number)
    assert store.load_columns(source.source_key, 1, number)
    ahead = store._ahead._db
    assert ahead is not None
    store.close()
    with pytest.raises(apsw.ConnectionClosedError):
        ahead.execute("SELECT 1")
    assert store.load_columns(source.source_key, 1, number) == []


def test_a_file_that_cannot_be_read_is_left_to_sqlite_to_complain_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open
    path = tmp_path / "store" / "f0.db"

    def refusing(name: Any, flags: int, *more: Any) -> int:
        if name == path and not flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(name))
        return plain(name, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    file = StoreFile(str(path), is_virtual=False)
    file.prepare(must_exist=False)
    file.check_identity()
    file.release_free_pages()
    file.release()
