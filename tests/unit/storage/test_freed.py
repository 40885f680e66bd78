"""Pages that a drained backlog has left are known, and given back to the operating system; never others."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from duobus.storage.sqlite import free_pages as freed
from duobus.storage.sqlite import read_ahead as ahead
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, sqlite_store

PAGE = 512


def file_of(trunks: dict[int, tuple[int, list[int]]], first: int) -> Callable[[int, int], bytes]:
    """A file with these trunk pages: number to the next one and the numbers in it."""
    data = bytearray(PAGE * (max(trunks, default=1) + 1))
    struct.pack_into(">H", data, 16, PAGE)
    struct.pack_into(">I", data, 32, first)
    for number, (following, leaves) in trunks.items():
        struct.pack_into(f">{2 + len(leaves)}I", data, (number - 1) * PAGE, following, len(leaves), *leaves)
    return lambda at, number: bytes(data[at : at + number])


def pages(found: list[tuple[int, int]], size: int) -> list[int]:
    return [number for at, length in found for number in range(at // size + 1, (at + length) // size + 1)]


def test_neighbours_are_joined_over_all_trunks() -> None:
    read = file_of({4: (9, [6, 5, 12]), 9: (0, [8, 7, 20])}, 4)
    assert freed.ranges(read) == [(3 * PAGE, 6 * PAGE), (11 * PAGE, PAGE), (19 * PAGE, PAGE)]


def test_only_the_trunks_in_front_are_looked_at() -> None:
    read = file_of({number: (number + 1, [100 * number]) for number in range(2, 12)}, 2)
    assert len(pages(freed.ranges(read), PAGE)) == 2 * freed.TRUNKS_MAX


def test_a_file_without_free_pages_has_none() -> None:
    assert freed.ranges(file_of({}, 0)) == []


@pytest.mark.parametrize("first", [1000, 0xFFFFFFFF])
def test_a_trunk_behind_the_end_of_the_file_ends_the_list(first: int) -> None:
    assert freed.ranges(file_of({}, first)) == []


def test_a_page_that_is_no_trunk_any_more_ends_the_list() -> None:
    read = file_of({4: (9, [6]), 9: (0, [])}, 4)

    def overwritten(at: int, number: int) -> bytes:
        return b"\xff" * number if at == 8 * PAGE else read(at, number)

    assert pages(freed.ranges(overwritten), PAGE) == [4, 6]


def test_a_file_that_is_too_short_and_a_page_number_of_nothing_are_passed_over() -> None:
    assert freed.ranges(lambda _at, _number: b"short") == []
    assert pages(freed.ranges(file_of({4: (0, [0, 7])}, 4)), PAGE) == [4, 7]


def test_a_list_that_leads_in_a_circle_ends() -> None:
    assert set(pages(freed.ranges(file_of({4: (5, [8]), 5: (4, [9])}, 4)), PAGE)) == {4, 5, 8, 9}


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is given back."""
    found: list[tuple[int, int]] = []

    def advise(_fd: int, offset: int, length: int, _advice: int) -> None:
        found.append((offset, length))

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    return found


def drained(folder: Path, *, is_read: bool) -> SqliteStore:
    store = sqlite_store(folder)
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"x" * 1000] * (4 * schema.STRETCH))
    if is_read:
        assert len(store.load_columns(1, 1, 4 * schema.STRETCH)) == 4
    broker.remove((1, 1, 3 * schema.STRETCH))
    return store


def test_what_was_read_ahead_and_removed_is_given_back_as_sqlite_has_freed_it(
    tmp_path: Path, advised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "FORGET_BYTES", 1000)
    store = drained(tmp_path, is_read=True)
    store.checkpoint_aside()
    store.close()
    with_sqlite = apsw.Connection(str(tmp_path / "store" / "f0.db"))
    free = with_sqlite.pragma("freelist_count")
    size = with_sqlite.pragma("page_size")
    with_sqlite.close()
    found = pages(advised, size)
    assert len(found) == len(set(found)) == free > 50
    assert 1 not in found


def test_it_is_done_once_for_so_many_bytes(
    tmp_path: Path, advised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "FORGET_BYTES", 1000)
    store = drained(tmp_path, is_read=True)
    store.checkpoint_aside()
    assert advised
    advised.clear()
    store.checkpoint_aside()
    assert not advised
    store.close()


def test_a_store_from_which_nothing_was_read_keeps_its_pages(
    tmp_path: Path, advised: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "FORGET_BYTES", 1000)
    store = drained(tmp_path, is_read=False)
    store.checkpoint_aside()
    assert not advised
    store.close()


def test_a_disk_that_refuses_is_left_to_those_who_need_the_page(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    freed.forget(fd)
    os.close(fd)


def test_a_system_without_advice_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    freed.forget(-1)
