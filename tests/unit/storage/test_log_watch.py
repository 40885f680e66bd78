"""A log that is taken away, cut or exchanged is noticed before a commit is answered, or at the next start."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import SourceRow
from duobus.storage.sqlite import file as store_database
from duobus.storage.sqlite.log_watch import LogWatch, read_mark
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import Broker, payloads_of

SENT = [b"%d" % number * 100 for number in range(20)]


def opened(folder: Path, store_id: int = 1) -> tuple[Broker, SourceRow]:
    """A store that syncs, with twenty messages that stand in its log."""
    broker = Broker(SqliteStore(str(folder / "f0.db"), store_id))
    (source,) = broker.add()
    for payload in SENT:
        broker.send(source, [payload])
    return broker, source


def proxied(broker: Broker) -> None:
    """What the thread of the checkpoints does some times a second."""
    assert isinstance(broker.store, SqliteStore)
    broker.store.checkpoint_aside()


def settle(folder: Path) -> None:
    """As if the last name in a folder had been made long ago."""
    os.utime(folder, ns=(10**18, 10**18))


def database(folder: Path) -> Path:
    return folder / "f0.db"


def log_of(folder: Path) -> Path:
    return folder / "f0.db-wal"


def killed(folder: Path, name: str = "killed") -> Path:
    """The files as a SIGKILL leaves them, in another folder."""
    copy = folder.parent / name
    shutil.copytree(folder, copy)
    return copy


def found(folder: Path, source: SourceRow, store_id: int = 1) -> list[bytes]:
    """What a store in ``folder`` holds; it is closed again."""
    broker = Broker(SqliteStore(str(folder / "f0.db"), store_id, must_exist=True))
    try:
        return payloads_of(broker.store.load(source.source_key, 1, 1000))
    finally:
        broker.store.close()


def refusal(folder: Path, store_id: int = 1) -> str:
    """What is said of a store that does not open."""
    with pytest.raises(StoreFailed) as caught:
        SqliteStore(str(folder / "f0.db"), store_id, must_exist=True).open()
    return str(caught.value)


def gone(log: Path) -> None:
    log.unlink()


def renamed(log: Path) -> None:
    log.rename(log.with_name("elsewhere"))


def replaced(log: Path) -> None:
    other = log.with_name("other")
    other.write_bytes(b"something else")
    other.replace(log)


def exchanged_for_a_copy(log: Path) -> None:
    copy = log.with_name("copy")
    shutil.copy(log, copy)
    copy.replace(log)


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("take_away", [gone, renamed, replaced, exchanged_for_a_copy])
def test_a_log_that_was_taken_away_fails_the_commit_and_loses_nothing(
    tmp_path: Path, take_away: Callable[[Path], None], *, is_settled: bool
) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    if is_settled:
        settle(folder)
        broker.store.probe()
        assert isinstance(broker.store, SqliteStore)
        assert broker.store._log is not None
        assert broker.store._log._settled is not None
        broker.store.probe()
    take_away(log_of(folder))
    with pytest.raises(StoreFailed, match=r"log was moved, removed or replaced while in use\. It was written anew"):
        broker.send(source, [b"refused, and may be there"])
    assert stat.S_IMODE(log_of(folder).stat().st_mode) == 0o600
    assert found(killed(folder), source)[:20] == SENT
    broker.open()
    assert payloads_of(broker.store.load(source.source_key, 1, 100))[:20] == SENT
    broker.store.close()


def test_what_was_found_in_the_place_of_a_log_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    replaced(log_of(folder))
    with pytest.raises(StoreFailed, match=r"f0\.db-wal\.foreign now"):
        broker.send(source, [b"refused"])
    assert (folder / "f0.db-wal.foreign").read_bytes() == b"something else"


@pytest.mark.parametrize("length", [0, 10, 100, 20_000])
def test_a_log_that_was_cut_fails_the_commit_and_the_store_stays_away(tmp_path: Path, length: int) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    whole = log_of(folder).read_bytes()
    os.truncate(log_of(folder), length)
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        broker.send(source, [b"refused"])
    mark = read_mark(str(database(folder)))
    assert mark is not None
    assert mark.is_in_use
    with pytest.raises(StoreFailed, match="Put back what was taken away"):
        broker.open()
    log_of(folder).write_bytes(whole)
    broker.open()
    assert payloads_of(broker.store.load(source.source_key, 1, 100)) == SENT
    broker.store.close()


@pytest.mark.parametrize("is_pass_first", [False, True])
def test_a_log_that_lost_some_of_its_last_commit_fails_the_next_and_the_store_stays_away(
    tmp_path: Path, *, is_pass_first: bool
) -> None:
    folder = tmp_path / "store"
    broker, _ = opened(folder)
    whole = log_of(folder).read_bytes()
    os.truncate(log_of(folder), len(whole) - 100)
    before = database(folder).read_bytes()
    if is_pass_first:
        with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
            proxied(broker)
        assert database(folder).read_bytes() == before
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        broker.store.probe()
    with pytest.raises(StoreFailed, match="Put back what was taken away"):
        broker.open()
    log_of(folder).write_bytes(whole)
    broker.open()
    assert payloads_of(broker.store.load(1, 1, 100)) == SENT
    broker.store.close()


def test_a_log_that_was_cut_is_not_filled_up_with_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, _ = opened(folder)
    assert isinstance(broker.store, SqliteStore)
    length = log_of(folder).stat().st_size
    os.truncate(log_of(folder), length - 100)
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        broker.store.make_room(length + 1000)
    assert log_of(folder).stat().st_size == length - 100
    with pytest.raises(StoreFailed, match="Put back what was taken away"):
        broker.open()


def test_a_cut_off_part_that_nobody_needs_any_more_is_not_filled_up_with_zeros_either(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    assert isinstance(broker.store, SqliteStore)
    length = log_of(folder).stat().st_size
    proxied(broker)
    broker.store.checkpoint()
    # The log begins anew, and what stands behind is of before.
    broker.send(source, [b"another"])
    os.truncate(log_of(folder), length - 100)
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        broker.store.make_room(length + 1000)
    assert log_of(folder).stat().st_size == length - 100


@pytest.mark.parametrize("copy_home", [SqliteStore.checkpoint_aside, SqliteStore.checkpoint])
def test_a_log_that_is_cut_after_a_kill_while_it_was_copied_home_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_home: Callable[[SqliteStore], object]
) -> None:
    broker, source = opened(tmp_path / "store")
    # The pages are in the database by then, and the mark was not told so.
    monkeypatch.setattr(LogWatch, "copied", lambda *_: None)
    assert isinstance(broker.store, SqliteStore)
    copy_home(broker.store)
    monkeypatch.undo()
    folder = killed(tmp_path / "store")
    whole = log_of(folder).read_bytes()
    os.truncate(log_of(folder), len(whole) // 2)
    assert "shorter" in refusal(folder)
    log_of(folder).write_bytes(whole)
    assert found(folder, source) == SENT
    broker.store.close()


def test_a_copy_made_before_a_log_began_anew_is_refused(tmp_path: Path) -> None:
    broker, _ = opened(tmp_path / "store")
    proxied(broker)
    older = log_of(tmp_path / "store").read_bytes()
    broker.store.probe()
    assert isinstance(broker.store, SqliteStore)
    broker.store.checkpoint()
    broker.store.probe()
    folder = killed(tmp_path / "store")
    log_of(folder).write_bytes(older)
    assert "older than what was committed" in refusal(folder)
    broker.store.close()


def test_a_connection_that_could_not_be_set_up_is_closed_although_the_refusal_is_still_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another one would share its index of a log that may have been put back by then.
    path = tmp_path / "f0.db"
    path.touch()
    monkeypatch.setattr(store_database, "SQLITE_SETTINGS", ("no setting at all)",))
    with pytest.raises(apsw.SQLError) as held:
        store_database.connect(str(path), store_database.StoreOptions())
    assert str(path) not in [one.filename for one in apsw.connections()]
    assert held.value


def test_another_log_that_was_written_over_it_fails_the_commit(tmp_path: Path) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    broker, source = opened(folder)
    proxied(broker)
    broker.send(source, [b"after"])
    second, _ = opened(other, 2)
    shutil.copyfile(log_of(other), log_of(folder))
    # Nor is it copied into the database.
    before = database(folder).read_bytes()
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        proxied(broker)
    assert database(folder).read_bytes() == before
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        broker.send(source, [b"refused"])
    second.store.close()


def test_a_log_whose_first_bytes_were_written_over_is_not_copied_home(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    proxied(broker)
    broker.send(source, [b"after"])
    with log_of(folder).open("r+b") as file:
        file.write(b"none")
    before = database(folder).read_bytes()
    with pytest.raises(StoreFailed, match="log was cut or written over while in use"):
        proxied(broker)
    assert database(folder).read_bytes() == before


def test_a_log_that_nothing_stands_in_leaves_the_mark_as_it_is(tmp_path: Path) -> None:
    path = str(database(tmp_path))
    store = SqliteStore(path, 1)
    store.open()
    assert store._log is not None
    before = read_mark(path)
    # Nothing was committed since the store was opened.
    store._log.copies(99)
    store._log.copied(3, 99)
    assert read_mark(path) == before
    store.probe()
    store.checkpoint_aside()
    before = read_mark(path)
    assert before is not None
    assert before.is_in_use
    # It was emptied, as SQLite tells.
    store._log.see_pages(None, "main", 0)
    store._log.copies(99)
    store._log.copied(0, 99)
    assert read_mark(path) == before
    store.close()


def test_a_log_may_begin_anew_as_often_as_it_likes(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    assert isinstance(broker.store, SqliteStore)
    for number in range(20):
        broker.send(source, [b"x" * (number * 997 % 9000)])
        if number % 3:
            broker.store.checkpoint_aside()
        if number % 5 == 0:
            broker.store.checkpoint()
        assert len(found(killed(folder, f"killed-{number}"), source)) == 21 + number
    broker.store.close()


def test_a_killed_store_without_its_log_is_refused_until_the_log_is_back(tmp_path: Path) -> None:
    broker, source = opened(tmp_path / "store")
    folder = killed(tmp_path / "store")
    log_of(folder).rename(folder / "away")
    text = refusal(folder)
    assert f"{log_of(folder)}: the store's log is missing" in text
    assert "duobus store accept-loss" in text
    assert not log_of(folder).exists()
    (folder / "away").rename(log_of(folder))
    assert found(folder, source) == SENT
    broker.store.close()


def test_a_killed_store_without_its_log_is_refused_by_whoever_would_make_a_new_one_in_its_place(
    tmp_path: Path,
) -> None:
    broker, source = opened(tmp_path / "store")
    folder = killed(tmp_path / "store")
    log_of(folder).rename(folder / "away")
    with pytest.raises(StoreFailed, match="the store's log is missing"):
        SqliteStore(str(database(folder)), 1).open()
    (folder / "away").rename(log_of(folder))
    assert found(folder, source) == SENT
    broker.store.close()


@pytest.mark.parametrize(("length", "words"), [(0, "is empty"), (31, "shorter"), (33, "shorter"), (30_000, "shorter")])
def test_a_killed_store_with_a_cut_log_is_refused(tmp_path: Path, length: int, words: str) -> None:
    broker, _ = opened(tmp_path / "store")
    proxied(broker)
    folder = killed(tmp_path / "store")
    os.truncate(log_of(folder), length)
    assert words in refusal(folder)
    broker.store.close()


@pytest.mark.parametrize("what", ["log", "both"])
def test_an_older_copy_is_refused_and_not_copied_home(tmp_path: Path, what: str) -> None:
    broker, source = opened(tmp_path / "store")
    older = killed(tmp_path / "store", "older")
    broker.send(source, [b"after"])
    proxied(broker)
    folder = killed(tmp_path / "store")
    shutil.copyfile(log_of(older), log_of(folder))
    if what == "both":
        shutil.copyfile(database(older), database(folder))
    # The file is as long as it was, as a log is that was laid out.
    os.truncate(log_of(folder), log_of(tmp_path / "store").stat().st_size)
    before = database(folder).read_bytes()
    assert "older than what was committed" in refusal(folder)
    assert database(folder).read_bytes() == before
    shutil.copyfile(log_of(tmp_path / "store"), log_of(folder))
    shutil.copyfile(database(tmp_path / "store"), database(folder))
    assert found(folder, source) == [*SENT, b"after"]
    broker.store.close()


def test_the_log_of_another_store_is_refused_and_not_copied_home(tmp_path: Path) -> None:
    broker, _ = opened(tmp_path / "store")
    other, _ = opened(tmp_path / "other", 2)
    other.send(other.sources[1], [b"more"] * 50)
    folder = killed(tmp_path / "store")
    shutil.copyfile(log_of(tmp_path / "other"), log_of(folder))
    before = database(folder).read_bytes()
    assert "this is store 2, not 1; files were mixed up" in refusal(folder)
    assert database(folder).read_bytes() == before
    broker.store.close()
    other.store.close()


def test_an_older_log_beside_a_store_that_was_closed_is_refused(tmp_path: Path) -> None:
    broker, source = opened(tmp_path / "store")
    older = killed(tmp_path / "store", "older")
    broker.send(source, [b"after"])
    broker.store.close()
    shutil.copyfile(log_of(older), log_of(tmp_path / "store"))
    assert "older than what was committed" in refusal(tmp_path / "store")


def test_a_closed_store_needs_no_log(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    broker.store.close()
    log_of(folder).unlink()
    assert found(folder, source) == SENT


def test_a_store_without_a_mark_is_taken_as_it_is(tmp_path: Path) -> None:
    # An earlier version leaves none.
    broker, source = opened(tmp_path / "store")
    folder = killed(tmp_path / "store")
    for mark in (b"", b"garbage", bytes(36)):
        copy = killed(folder, f"mark-{len(mark)}")
        (copy / "f0.db.mark").write_bytes(mark)
        assert found(copy, source) == SENT
    (folder / "f0.db.mark").unlink()
    log_of(folder).unlink()
    assert SqliteStore(str(database(folder)), 1, must_exist=True).open() is not None
    broker.store.close()


def test_files_that_were_left_alone_are_never_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Killed behind every write of the mark, and before it. After a power cut it is an older one, since the last sync.
    folder = tmp_path / "store"
    marks: list[bytes] = []
    number = 0
    is_looking = False

    def states() -> None:
        nonlocal number, is_looking
        if is_looking:
            return
        is_looking = True
        mark = folder / "f0.db.mark"
        if database(folder).exists() and database(folder).stat().st_size:
            for content in dict.fromkeys([*marks[-2:], mark.read_bytes() if mark.exists() else b""]):
                number += 1
                copy = killed(folder, f"state-{number}")
                (copy / mark.name).write_bytes(content)
                broker = Broker(SqliteStore(str(copy / "f0.db"), 1))
                broker.store.close()
                shutil.rmtree(copy)
        is_looking = False

    pwrite, fsync = os.pwrite, os.fsync

    def written(fd: int, data: bytes, at: int) -> int:
        done = pwrite(fd, data, at)
        if not is_looking:
            marks.append(data)
            states()
        return done

    def synced(fd: int) -> None:
        fsync(fd)
        if not is_looking and os.fstat(fd).st_size == len(marks[-1] if marks else b""):
            marks[:-1] = []

    for life in range(2):
        with monkeypatch.context() as patches:
            patches.setattr("duobus.storage.sqlite.log_watch.os.pwrite", written)
            patches.setattr("duobus.storage.sqlite.log_watch.os.fsync", synced)
            broker = Broker(SqliteStore(str(folder / "f0.db"), 1))
            (source,) = broker.add()
            broker.send(source, [b"m"])
            proxied(broker)
            broker.send(source, [b"n"])
            proxied(broker)
            if not life:
                broker.store.close()
            else:
                broker.store._abandon("killed")
    assert number > 10


def test_the_mark_follows_every_step(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, source = opened(folder)
    steps = []
    for do in (
        lambda: broker.send(source, [b"m"]),
        broker.store.probe,
        lambda: broker.add(2),
        broker.store.keep_records,
        lambda: broker.remove((source.source_key, 1, 1)),
        lambda: broker.store.drop_entity(2),
    ):
        do()
        proxied(broker)
        mark = read_mark(str(database(folder)))
        assert mark is not None
        assert mark.is_in_use
        steps.append(mark.steps)
    assert steps == sorted(set(steps))
    broker.store.close()
    mark = read_mark(str(database(folder)))
    assert mark is not None
    assert (mark.is_in_use, mark.steps) == (False, steps[-1])


def test_a_new_store_does_not_heed_the_mark_of_one_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    broker, _ = opened(folder)
    broker.store.close()
    database(folder).unlink()
    again = Broker(SqliteStore(str(database(folder)), 1))
    assert again.fragments == {}
    again.store.close()


def test_a_new_store_does_not_ask_for_the_log_of_one_that_was_killed_and_is_gone(tmp_path: Path) -> None:
    broker, _ = opened(tmp_path / "store")
    folder = killed(tmp_path / "store")
    database(folder).unlink()
    log_of(folder).unlink()
    mark = read_mark(str(database(folder)))
    assert mark is not None
    assert mark.is_in_use
    again = Broker(SqliteStore(str(database(folder)), 1))
    assert again.fragments == {}
    again.store.close()
    broker.store.close()


def test_a_store_that_an_older_log_makes_look_damaged_says_so_and_opens_with_its_own(tmp_path: Path) -> None:
    broker, source = opened(tmp_path / "store")
    older = log_of(killed(tmp_path / "store", "older")).read_bytes()
    # Tables that took one page then take several now, and lead to pages behind what was the end of the file then.
    for entity_id in range(2, 600):
        broker.add(entity_id)
    broker.reopen()
    broker.send(source, [b"after"])
    folder = killed(tmp_path / "store")
    own = log_of(folder).read_bytes()
    log_of(folder).write_bytes(older)
    before = database(folder).read_bytes()
    text = refusal(folder)
    assert f"Or its log, {log_of(folder)}, is an older one or another store's. Put back" in text
    assert database(folder).read_bytes() == before
    log_of(folder).write_bytes(own)
    assert found(folder, source) == [*SENT, b"after"]
    broker.store.close()
