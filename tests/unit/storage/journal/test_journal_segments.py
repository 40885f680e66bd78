"""Segments are laid out, appended to with one write and one sync, and used again only when they were released."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from test_journal_format import small_batch

from duobus.errors import StoreFailed
from duobus.storage.journal.files import SYSTEM_FILES, JournalFiles
from duobus.storage.journal.format import HEADER_BYTES, HEADERS_AT
from duobus.storage.journal.replay import Position, missing_commits
from duobus.storage.journal.segments import Segments, files_of

SIZE = 64 << 10
SEGMENTS = 6
POSITION = Position(3, 1, 0)


class Opened:
    """A journal in a folder, its salts drawn from a counter."""

    def __init__(self, folder: Path, first_bytes: int = SIZE, files: JournalFiles = SYSTEM_FILES) -> None:
        self.path = str(folder / "s.db")
        salts = count(1)
        self.segments = Segments(
            self.path,
            3,
            lambda size: next(salts).to_bytes(size, "big"),
            SEGMENTS,
            segment_bytes=SIZE,
            first_bytes=first_bytes,
            files=files,
        )
        self.has_begun = self.segments.begin(0)
        self.commit_no = 0

    def append(self, size: int = 1_000) -> bool:
        """Append a commit of one message."""
        if not self.segments.append(small_batch(self.commit_no + 1, b"x" * size), 1):
            return False
        self.commit_no += 1
        return True

    def replayed(self, commit_no: int = 0) -> list[int]:
        """What a store that opens now would replay."""
        found = missing_commits(self.path, Segments.read(self.path), POSITION._replace(commit_no=commit_no))
        return [batch.commit_no for batch in found]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path)
    yield opened
    opened.segments.close()


def test_every_commit_is_found_again(journal: Opened) -> None:
    for _ in range(150):
        assert journal.append()
    assert len(files_of(journal.path)) > 2
    assert journal.replayed() == list(range(1, 151))
    assert journal.replayed(100) == list(range(101, 151))


def replace(monkeypatch: pytest.MonkeyPatch, call: str, by: Callable[..., Any]) -> None:
    """Have every journal make this call to the system in another way."""
    monkeypatch.setattr(JournalFiles, call, staticmethod(by))


def test_a_commit_is_one_write_and_one_sync_and_makes_no_file_longer(
    journal: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append()
    calls: list[str] = []
    write_at, sync_data = JournalFiles.write, JournalFiles.sync
    replace(monkeypatch, "write", lambda *given: (calls.append("write"), write_at(*given))[1])
    replace(monkeypatch, "sync", lambda fd: (calls.append("sync"), sync_data(fd))[1])
    sizes = [file.stat().st_size for file in files_of(journal.path)]
    for _ in range(3):
        journal.append()
    assert calls == ["write", "sync"] * 3
    assert [file.stat().st_size for file in files_of(journal.path)] == sizes


def test_a_full_journal_takes_nothing_until_segments_are_released(journal: Opened) -> None:
    while journal.append(20_000):
        pass
    assert len(files_of(journal.path)) == SEGMENTS
    assert not journal.append(20_000)
    assert journal.replayed() == list(range(1, journal.commit_no + 1))
    journal.segments.release(1)
    assert not journal.append(20_000)
    journal.segments.release(5)
    assert journal.append(20_000)
    assert journal.replayed(5) == list(range(6, journal.commit_no + 1))
    assert len(files_of(journal.path)) == SEGMENTS


def test_a_journal_begins_small_and_grows_with_what_is_written(tmp_path: Path) -> None:
    journal = Opened(tmp_path, SIZE // 4)

    def sizes() -> list[int]:
        return [file.stat().st_size // (SIZE // 4) for file in files_of(journal.path)]

    assert sizes() == [1]
    while journal.append():
        pass
    assert sizes() == [1, 2, 4, 4, 4, 4]
    for _ in range(4):
        # SQLite has all of it, and segments are begun anew, ahead of need.
        journal.segments.release(journal.commit_no)
        journal.segments.prepare()
        done = journal.commit_no
        while journal.append():
            pass
        assert journal.replayed(done) == list(range(done + 1, journal.commit_no + 1))
    assert sizes() == [4, 4, 4, 4, 4, 4]
    assert journal.segments.size == SEGMENTS * SIZE
    journal.segments.close()


def test_a_segment_that_finds_no_room_to_grow_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Opened(tmp_path, SIZE // 4)
    while journal.append():
        pass
    write_at = JournalFiles.write

    def full(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        if offset >= os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_at(fd, buffers, offset)

    replace(monkeypatch, "write", full)
    done = journal.commit_no
    journal.segments.release(done)
    while journal.append():
        pass
    assert sum(file.stat().st_size for file in files_of(journal.path)) == 19 * SIZE // 4
    assert journal.replayed(done) == list(range(done + 1, journal.commit_no + 1))
    journal.segments.close()


class Room(JournalFiles):
    """A disk with so much free beside the journal's files."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def free(self, path: str) -> int:
        return self.size - sum(file.stat().st_size for file in self.folder.iterdir())


@pytest.mark.parametrize(("disk", "lengths"), [(8, [1]), (9, [1, 2]), (20, [1, 2]), (21, [1, 2, 4])])
def test_a_journal_leaves_room_for_twice_what_it_may_hold(tmp_path: Path, disk: int, lengths: list[int]) -> None:
    piece = SIZE // 4
    room = Room(tmp_path, disk * piece)
    journal = Opened(tmp_path, piece, room)
    while journal.append():
        pass
    assert [file.stat().st_size // piece for file in files_of(journal.path)] == lengths
    for _ in range(5):
        journal.segments.release(journal.commit_no)
        while journal.append():
            pass
        assert not journal.append(SIZE)
        assert room.free(journal.path) >= 2 * journal.segments.size
    journal.segments.close()


def test_a_disk_that_could_not_hold_twice_the_first_segment_has_no_journal(tmp_path: Path) -> None:
    journal = Opened(tmp_path, SIZE // 4, Room(tmp_path, 3 * SIZE // 4 - 1))
    assert not journal.has_begun
    assert files_of(journal.path) == []


def test_a_segment_is_wanted_when_one_was_taken_and_another_may_be_begun(tmp_path: Path) -> None:
    journal = Opened(tmp_path)
    assert not journal.segments.wants_segment
    journal.append()
    assert journal.segments.wants_segment
    while journal.append(20_000):
        pass
    assert not journal.segments.wants_segment
    journal.segments.release(journal.commit_no)
    assert journal.segments.wants_segment
    journal.segments.prepare()
    assert not journal.segments.wants_segment
    journal.segments.close()


def test_a_segment_that_was_used_again_too_early_would_be_found(journal: Opened) -> None:
    while journal.append(20_000):
        pass
    # The planted bug: the database is told to have commit 6 and has commit 4 only.
    journal.segments.release(6)
    assert journal.append(20_000)
    with pytest.raises(StoreFailed, match="lacks commits 5 to 6,"):
        journal.replayed(4)


def test_the_segment_that_is_written_is_not_used_again(journal: Opened) -> None:
    for _ in range(3):
        journal.append()
    journal.segments.release(3)
    journal.append()
    assert journal.replayed(3) == [4]
    assert [found.header.sequence for found in Segments.read(journal.path)] == [1]


def test_a_large_commit_has_room_and_its_file_is_cut_when_it_is_free(journal: Opened) -> None:
    journal.append()
    assert journal.append(3 * SIZE)
    assert journal.append(SIZE // 2)
    assert journal.replayed() == [1, 2, 3]
    assert max(file.stat().st_size for file in files_of(journal.path)) > 3 * SIZE
    journal.segments.release(2)
    assert max(file.stat().st_size for file in files_of(journal.path)) == SIZE


def test_a_prepared_segment_is_the_next_one_and_holds_nothing(journal: Opened) -> None:
    assert journal.segments.prepare()
    assert len(files_of(journal.path)) == 1
    assert journal.replayed() == []


def test_the_headers_are_synced_one_after_the_other(journal: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int | str] = []
    write_at, sync_data = JournalFiles.write, JournalFiles.sync

    def write(fd: int, buffers: Sequence[bytes], at: int) -> int:
        if [len(data) for data in buffers] == [HEADER_BYTES]:
            calls.append(at)
        return write_at(fd, buffers, at)

    replace(monkeypatch, "write", write)
    replace(monkeypatch, "sync", lambda fd: (calls.append("sync"), sync_data(fd))[1])
    journal.append(3 * SIZE)
    journal.append(3 * SIZE)
    assert calls == ["sync", HEADERS_AT[0], "sync", HEADERS_AT[1], "sync", "sync"]


def test_a_file_whose_headers_are_gone_is_refused_by_name(journal: Opened) -> None:
    journal.append()
    (file,) = files_of(journal.path)
    data = bytearray(file.read_bytes())
    for at in HEADERS_AT:
        data[at : at + HEADER_BYTES] = b"\xff" * HEADER_BYTES
    file.write_bytes(data)
    with pytest.raises(StoreFailed, match=r"s\.db-journal\.0: the journal is damaged: neither copy"):
        Segments.read(journal.path)


def test_a_journal_that_is_begun_anew_is_empty_and_its_segments_are_counted_on(journal: Opened) -> None:
    for _ in range(60):
        journal.append()
    highest = max(found.header.sequence for found in Segments.read(journal.path))
    journal.segments.close()
    journal.segments.begin(highest)
    (left,) = Segments.read(journal.path)
    assert left.header.sequence == highest + 1
    assert left.records == []
    while journal.append(20_000):
        pass
    assert len(files_of(journal.path)) == SEGMENTS


def test_a_sync_that_fails_comes_out_of_the_append(journal: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int) -> None:
        raise OSError("planted")

    replace(monkeypatch, "sync", refuse)
    with pytest.raises(OSError, match="planted"):
        journal.append()
