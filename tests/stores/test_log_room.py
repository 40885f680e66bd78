"""A store's log is laid out ahead of its commits, and that never changes what the store holds."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from store_builders import FAST, Broker, payloads_of

from duobus.errors import StoreFailed
from duobus.stores.interface import SourceRow
from duobus.stores.log_room import LAID_OUT_MAX_BYTES, PIECE_MAX_BYTES, PIECE_MIN_BYTES, piece_after
from duobus.stores.sqlite import SqliteStore

MIB = 1 << 20


def opened(folder: Path) -> tuple[Broker, SourceRow, Path]:
    """A store that syncs, with one source, and its log."""
    path = folder / "stores" / "f0.db"
    broker = Broker(SqliteStore(str(path), 1))
    (source,) = broker.add()
    return broker, source, path.with_name("f0.db-wal")


def used(log: Path) -> int:
    """Bytes of a log up to its last page."""
    return len(log.read_bytes().rstrip(b"\0"))


def _send_much(broker: Broker, source: SourceRow) -> None:
    for _ in range(100):
        broker.send(source, [b"x" * 1000])


def test_most_commits_do_not_make_the_log_longer(tmp_path: Path) -> None:
    broker, source, log = opened(tmp_path)
    grown = 0
    for _ in range(100):
        size = log.stat().st_size
        broker.send(source, [b"x" * 1000])
        grown += log.stat().st_size != size
    assert used(log) > 2 * MIB
    assert grown < 8
    broker.store.close()


@pytest.mark.parametrize(
    ("size", "taken", "piece"),
    [
        (0, 0, PIECE_MIN_BYTES),
        (PIECE_MIN_BYTES, 10_000, 0),
        (PIECE_MIN_BYTES, 200_000, PIECE_MIN_BYTES),
        (40 * MIB, 39 * MIB, 0),
        (40 * MIB, 40 * MIB - 100, PIECE_MAX_BYTES),
        (40 * MIB, 10_000, 0),
        (LAID_OUT_MAX_BYTES, LAID_OUT_MAX_BYTES, 0),
        (LAID_OUT_MAX_BYTES - 100, LAID_OUT_MAX_BYTES - 100, 0),
    ],
)
def test_pieces_grow_with_the_log_and_end_where_it_is_cut(size: int, taken: int, piece: int) -> None:
    assert piece_after(size, taken) == piece


@pytest.mark.parametrize("lost", [0, 1, 100_000, PIECE_MIN_BYTES])
def test_after_a_crash_every_commit_is_there_however_much_of_the_room_is(tmp_path: Path, lost: int) -> None:
    broker, source, log = opened(tmp_path)
    for number in range(20):
        broker.send(source, [b"%d" % number * 200])
    # What a crash leaves: the files as they are, the room behind the last page on disk or not.
    after = tmp_path / "after"
    shutil.copytree(log.parent, after)
    copy = after / log.name
    os.truncate(copy, max(used(copy), copy.stat().st_size - lost))
    again = Broker(SqliteStore(str(after / "f0.db"), 1, must_exist=True))
    assert payloads_of(again.store.load(source.source_key, 1, 100)) == [b"%d" % n * 200 for n in range(20)]
    assert again.commit_no == broker.commit_no
    again.store.close()
    broker.store.close()


def test_room_is_made_again_after_the_log_was_emptied(tmp_path: Path) -> None:
    broker, source, log = opened(tmp_path)
    for _ in range(50):
        broker.send(source, [b"x" * 1000] * 10)
    broker.reopen()
    broker.send(source, [b"x"])
    assert log.stat().st_size >= PIECE_MIN_BYTES > used(log)
    broker.store.close()
    assert log.stat().st_size == 0


def test_a_disk_that_is_too_full_for_room_still_takes_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, source, _ = opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("duobus.stores.log_room.os.pwrite", full)
    for _ in range(100):
        broker.send(source, [b"x" * 1000])
    assert len(broker.store.load(source.source_key, 1, 200)) == 100
    broker.store.close()


def test_a_disk_that_refuses_to_sync_the_room_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, source, _ = opened(tmp_path)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("duobus.stores.log_room.os.fdatasync", refuse)
    with pytest.raises(StoreFailed, match="refused"):
        _send_much(broker, source)
    monkeypatch.undo()
    stored = len(broker.store.open().sources)
    assert stored == 1
    broker.store.close()


def test_a_store_that_does_not_sync_lays_nothing_out(tmp_path: Path) -> None:
    broker = Broker(SqliteStore(str(tmp_path / "f0.db"), 1, options=FAST))
    (source,) = broker.add()
    broker.send(source, [b"x" * 1000])
    log = tmp_path / "f0.db-wal"
    assert used(log) > log.stat().st_size - 8192
    broker.store.close()
