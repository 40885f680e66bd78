"""A store's log is laid out ahead of its commits, and that never changes what the store holds."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import SourceRow
from duobus.storage.sqlite.log_space import LAID_OUT_MAX_BYTES, PIECE_BYTES, cut, wanted
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, payloads_of


def opened(folder: Path) -> tuple[Broker, SqliteStore, SourceRow, Path]:
    """A store that syncs, with one source, and its log."""
    path = folder / "stores" / "f0.db"
    store = SqliteStore(str(path), 1)
    broker = Broker(store)
    (source,) = broker.add()
    return broker, store, source, path.with_name("f0.db-wal")


def used(log: Path) -> int:
    """Bytes of a log up to its last page."""
    return len(log.read_bytes().rstrip(b"\0"))


def test_commits_do_not_make_a_log_longer_that_has_room(tmp_path: Path) -> None:
    broker, store, source, log = opened(tmp_path)
    broker.send(source, [b"x" * 1000])
    before = log.stat().st_size
    assert store.make_room(2 * PIECE_BYTES + 100)
    assert log.stat().st_size == before + PIECE_BYTES
    assert not store.make_room(2 * PIECE_BYTES + 100)
    assert log.stat().st_size == 2 * PIECE_BYTES + 100
    assert not store.make_room(PIECE_BYTES)
    for _ in range(50):
        broker.send(source, [b"x" * 1000])
    assert used(log) > PIECE_BYTES
    assert log.stat().st_size == 2 * PIECE_BYTES + 100
    store.close()
    assert log.stat().st_size == 0


def test_a_small_log_is_left_alone_and_a_long_one_up_to_its_limit() -> None:
    assert [wanted(used) for used in (0, 100_000, 1 << 20, 1 << 40)] == [0, 0, 4 << 20, LAID_OUT_MAX_BYTES]


@pytest.mark.parametrize("lost", [0, 1, 100_000, PIECE_BYTES])
def test_after_a_crash_every_commit_is_there_however_much_of_the_room_is(tmp_path: Path, lost: int) -> None:
    broker, store, source, log = opened(tmp_path)
    for number in range(20):
        broker.send(source, [b"%d" % number * 200])
        if number % 8 == 4:
            store.make_room(10 * PIECE_BYTES)
    # What a crash leaves: the files as they are, the room behind the last page on disk or not.
    after = tmp_path / "after"
    shutil.copytree(log.parent, after)
    copy = after / log.name
    os.truncate(copy, max(used(copy), copy.stat().st_size - lost))
    again = Broker(SqliteStore(str(after / "f0.db"), 1, must_exist=True))
    assert payloads_of(again.store.load(source.source_key, 1, 100)) == [b"%d" % n * 200 for n in range(20)]
    assert again.commit_no == broker.commit_no
    again.store.close()
    store.close()


def test_a_log_that_holds_nothing_but_room_holds_nothing(tmp_path: Path) -> None:
    broker, store, source, log = opened(tmp_path)
    broker.send(source, [b"m"])
    store.close()
    log.write_bytes(bytes(PIECE_BYTES))
    broker.open()
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"m"]
    store.close()


def test_a_disk_that_is_too_full_for_room_still_takes_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, store, source, _ = opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("duobus.storage.sqlite.log_space.os.pwrite", full)
        assert not store.make_room(5 * PIECE_BYTES)
    broker.send(source, [b"m"])
    store.close()


def test_a_disk_that_refuses_to_sync_the_room_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, store, source, _ = opened(tmp_path)
    broker.send(source, [b"m"])

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("duobus.storage.sqlite.log_space.sync_data", refuse)
        with pytest.raises(StoreFailed, match="could not make room in the log"):
            store.make_room(PIECE_BYTES)
    broker.open()
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"m"]
    store.close()


def test_a_store_that_is_closed_touches_no_log(tmp_path: Path) -> None:
    _, store, _, log = opened(tmp_path)
    store.close()
    with pytest.raises(StoreFailed):
        store.make_room(PIECE_BYTES)
    assert log.stat().st_size == 0


def test_a_disk_with_little_room_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, store, source, log = opened(tmp_path)
    broker.send(source, [b"x" * 1000])
    before = log.stat().st_size
    monkeypatch.setattr("duobus.storage.sqlite.log_space.FREE_LEAST_BYTES", 1 << 60)
    assert not store.make_room(PIECE_BYTES)
    assert log.stat().st_size == before
    store.close()


@pytest.mark.parametrize("body", [b"x" * 1000, b"\0" * 30_000])
def test_the_room_is_cut_off_and_no_page_with_it(tmp_path: Path, body: bytes) -> None:
    broker, store, source, log = opened(tmp_path)
    for _ in range(3):
        broker.send(source, [body])
    whole = log.stat().st_size
    store.make_room(4 * PIECE_BYTES)
    after = tmp_path / "after"
    shutil.copytree(log.parent, after)
    cut(str(after / log.name))
    assert (after / log.name).stat().st_size == whole
    again = Broker(SqliteStore(str(after / "f0.db"), 1, must_exist=True))
    assert payloads_of(again.store.load(source.source_key, 1, 100)) == [body] * 3
    again.store.close()
    store.close()


def test_a_last_page_that_ends_with_zeros_stays_whole(tmp_path: Path) -> None:
    # Without its last page the last commit is none: what it completed would be there again.
    path = tmp_path / "f0.db"
    db = apsw.Connection(str(path))
    for setting in ("page_size=8192", "journal_mode=wal", "wal_autocheckpoint=0"):
        db.execute(f"PRAGMA {setting}")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")
    db.execute("INSERT INTO t VALUES (1, zeroblob(30000))")
    log = path.with_name("f0.db-wal")
    whole = log.read_bytes()
    assert whole.endswith(bytes(4_000)), "the last page has to end with zeros, or this shows nothing"
    after = tmp_path / "after"
    after.mkdir()
    shutil.copy(path, after)
    (after / log.name).write_bytes(whole + bytes(PIECE_BYTES))
    cut(str(after / log.name))
    assert (after / log.name).read_bytes() == whole
    again = apsw.Connection(str(after / path.name))
    assert again.execute("SELECT count(*) FROM t").get == 1
    again.close()
    db.close()


def test_what_was_completed_last_stays_so_whatever_its_pages_end_with(tmp_path: Path) -> None:
    broker, store, source, log = opened(tmp_path)
    ends_with_zeros = 0
    for number in range(1, 13):
        broker.send(source, [bytes(8000 * number)])
        broker.remove((source.source_key, number, number))
        whole = log.stat().st_size
        bytes_of_log = log.read_bytes()
        ends_with_zeros += bytes_of_log.endswith(bytes(16))
        copy = tmp_path / "copy-wal"
        copy.write_bytes(bytes_of_log + bytes(100_000))
        cut(str(copy))
        assert copy.stat().st_size == whole
    assert ends_with_zeros
    store.close()


def test_what_is_no_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "f0.db-wal"
    cut(str(log))
    assert not log.exists()
    for text in (b"", b"\0" * 10_000, b"what else" * 100 + bytes(50)):
        log.write_bytes(text)
        cut(str(log))
        assert log.read_bytes() == text
