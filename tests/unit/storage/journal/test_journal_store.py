"""A store with a journal: what it has answered is there again, whatever happened to the process and to its files."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from duobus.clock import Clock
from duobus.errors import ConfigurationError, StoreFailed, StoreStale
from duobus.storage.backup.copy import back_up_stopped
from duobus.storage.backup.snapshot import Snapshot
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import store_path
from duobus.storage.drill import DrillStore
from duobus.storage.interface import (
    FORMAT_VERSION,
    JOURNAL_VERSION,
    IdBlock,
    MessagingStore,
    SourceRow,
    Tombstone,
)
from duobus.storage.journal import backlog
from duobus.storage.journal.backlog import AGE_MS, CLAIMED_AGE_MS, CLAIMED_LEAST, REST_MS
from duobus.storage.journal.files import JournalFiles
from duobus.storage.journal.mark import read_mark
from duobus.storage.journal.segments import files_of
from duobus.storage.journal.store import JournalStore, bring_left_over, store_in_file
from duobus.storage.offline.maintenance import accept_loss, set_times_back, write_back
from duobus.storage.replacement import give_up
from duobus.storage.sqlite.store import SqliteStore
from kits.store_builders import FAST, Broker, payloads_of

SEGMENT = 64 << 10


class HandClock(Clock):
    """Time that goes on when the test says so."""

    def __init__(self) -> None:
        self.ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


CLOCK = HandClock()


def made(data: Path, *, must_exist: bool = False) -> JournalStore:
    """The store of a data folder; nothing is brought over unless the test says so."""
    path = str(data / store_path(1))
    return JournalStore(
        path, 1, must_exist=must_exist, options=FAST, clock=CLOCK, brings_over=False, segment_bytes=SEGMENT
    )


def database(data: Path) -> Path:
    return data / store_path(1)


def version_of(data: Path) -> int:
    """The format that a file and its log say, as any version reads it."""
    with closing(apsw.Connection(str(database(data)), vfs="unix-excl")) as db:
        return int(db.pragma("user_version"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose catalog knows one store."""
    data = tmp_path / "data"
    catalog = SqliteCatalog(data / "catalog.db")
    catalog.read()
    catalog.add_store(1, store_path(1))
    catalog.close()
    return data


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    broker = Broker(made(data))
    yield broker
    broker.store.close()


def killed(data: Path, name: str = "killed") -> Path:
    """A copy of the folder as a process leaves it that is killed now."""
    copy = data.parent / name
    shutil.copytree(data, copy)
    return copy


def found(data: Path, source: SourceRow) -> list[bytes]:
    """What a store that is opened after a kill holds."""
    store = made(data, must_exist=True)
    store.open()
    try:
        return payloads_of(store.load(source.source_key, 1, 1000))
    finally:
        store.close()


def segment_with(data: Path, what: bytes) -> Path:
    (segment,) = [file for file in files_of(str(database(data))) if what in file.read_bytes()]
    return segment


# -- kills ----------------------------------------------------------------------------------------------------------


def test_what_was_answered_is_there_after_a_kill_although_sqlite_never_had_it(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    for number in range(20):
        broker.send(source, [b"%d" % number])
    broker.remove((source.source_key, 3, 5))
    broker.change((source.source_key, 7, 2, 1, b"m"))
    copy = killed(data)
    with closing(apsw.Connection(str(database(copy)), vfs="unix-excl")) as db:
        assert db.execute("SELECT count(*) FROM messages").get == 0
    store = made(copy, must_exist=True)
    contents = store.open()
    assert contents.last_commit_no == broker.commit_no
    assert contents.sources[0].next_count == 21
    rows = store.load(source.source_key, 1, 100)
    assert [row.count for row in rows] == [1, 2, *range(6, 21)]
    assert [(row.state, row.deliveries, row.metadata) for row in rows if row.count == 7] == [(2, 1, b"m")]
    assert store.verify() == []
    store.close()


def test_what_is_gone_before_it_is_due_never_comes_to_sqlite(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    store = broker.store
    assert isinstance(store, JournalStore)
    before = store.commits
    for number in range(1, 30):
        broker.send(source, [b"m"])
        broker.remove((source.source_key, number, number))
    assert store.commits == before
    CLOCK.ms += REST_MS
    store.bring_over_due()
    assert store.commits == before + 1
    assert store.usage().rows == 0
    assert not store.load_columns(source.source_key, 1, 100)


def test_commits_rest_until_the_first_is_old_and_those_that_are_young_then_stay(broker: Broker) -> None:
    (source,) = broker.add()
    store = broker.store
    assert isinstance(store, JournalStore)
    broker.send(source, [b"old"])
    before = store.commits
    CLOCK.ms += REST_MS - AGE_MS
    broker.send(source, [b"not so old"])
    CLOCK.ms += AGE_MS - 1
    assert store.bring_over_due()
    assert store.commits == before
    CLOCK.ms += 1
    broker.send(source, [b"young"])
    assert store.bring_over_due()
    assert store.commits == before + 1
    CLOCK.ms += REST_MS
    assert not store.bring_over_due()
    assert store.commits == before + 2
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"old", b"not so old", b"young"]


def test_many_bytes_do_not_rest(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "REST_BYTES", 30_000)
    (source,) = broker.add()
    store = broker.store
    assert isinstance(store, JournalStore)
    before = store.commits
    broker.send(source, [bytes(20_000)])
    CLOCK.ms += AGE_MS
    assert store.bring_over_due()
    assert store.commits == before
    broker.send(source, [bytes(10_000)])
    assert store.bring_over_due()
    assert store.commits == before + 1


@pytest.mark.parametrize(("source_rest", "rest_max", "rests"), [(20_000, 60_000, True), (20_000, 39_999, False)])
def test_what_is_spread_over_many_sources_rests_until_much_of_each_has_come(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, source_rest: int, rest_max: int, rests: bool
) -> None:
    monkeypatch.setattr(backlog, "REST_BYTES", 20_000)
    monkeypatch.setattr(backlog, "SOURCE_REST_BYTES", source_rest)
    monkeypatch.setattr(backlog, "REST_BYTES_MAX", rest_max)
    store = broker.store
    assert isinstance(store, JournalStore)
    sources = [broker.add(fragment_no=number)[0] for number in range(3)]

    def fill() -> int:
        before = store.commits
        for source in sources:
            broker.send(source, [bytes(42_000 // len(sources))])
        CLOCK.ms += AGE_MS
        store.bring_over_due()
        return store.commits - before

    # Nothing was brought over before, of which it could be known.
    assert fill() == 1
    assert fill() == (0 if rests else 1)
    # One source again, which fills its pages anyway.
    CLOCK.ms += REST_MS
    store.bring_over_due()
    broker.send(sources[0], [b"alone"])
    CLOCK.ms += REST_MS
    store.bring_over_due()
    del sources[1:]
    assert fill() == 1


def test_a_journal_that_is_short_of_room_lets_nothing_rest(data: Path) -> None:
    files = Full(SEGMENT + 19)
    store = JournalStore(
        str(database(data)), 1, options=FAST, clock=CLOCK, brings_over=False, segment_bytes=SEGMENT, files=files
    )
    broker = Broker(store)
    (source,) = broker.add()
    before = store.commits
    broker.send(source, [b"a"])
    CLOCK.ms += AGE_MS
    assert not store.bring_over_due()
    assert store.commits == before + 1
    store.close()


def test_what_is_claimed_in_bulk_and_removed_within_seconds_is_never_changed_in_sqlite(broker: Broker) -> None:
    (source,) = broker.add()
    store = broker.store
    assert isinstance(store, JournalStore)
    broker.send(source, [b"m"] * CLAIMED_LEAST)
    store.bring_over()
    batch = broker.batch()
    batch.changes = [(source.source_key, count, 1, 0, b"claimed") for count in range(1, CLAIMED_LEAST + 1)]
    broker.commit(batch)
    CLOCK.ms += CLAIMED_AGE_MS - 2
    broker.send(source, [b"later"])
    before = store.commits
    assert store.bring_over_due()
    assert store.commits == before
    broker.remove((source.source_key, 1, CLAIMED_LEAST - 1))
    CLOCK.ms += 2
    assert store.bring_over_due()
    assert store.commits == before + 1
    rows = store.load(source.source_key, 1, 1000)
    assert [(row.count, row.state) for row in rows] == [(CLAIMED_LEAST, 1), (CLAIMED_LEAST + 1, 0)]


def test_notes_of_duplicates_and_tombstones_are_there_after_a_kill(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    batch.tombstones = [Tombstone(2, 3, 4, 5, 6, 7), Tombstone(8, 9, 1, 1, 1, 1)]
    batch.histories = [IdBlock(source.source_key, 1, 5, b"ids"), IdBlock(source.source_key, 9, 5, b"more")]
    broker.commit(batch)
    batch = broker.batch()
    batch.forgotten = [(8, 9)]
    batch.outdated = [(source.source_key, 1)]
    broker.commit(batch)
    store = made(killed(data), must_exist=True)
    contents = store.open()
    assert [(t.store_id, t.generation, t.last_count) for t in contents.tombstones] == [(2, 3, 7)]
    assert [block.ids for block in store.load_ids(source.source_key, 0, 10)] == [b"more"]
    store.close()


def test_a_run_that_a_tombstone_names_is_deleted_although_only_the_journal_had_it(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"kept"])
    broker.send(source, [b"sent elsewhere"])
    store = made(killed(data), must_exist=True)
    contents = store.open()
    run = Tombstone(1, contents.generation, contents.last_commit_no, source.source_key, 2, 2)
    store.begin_generation([run])
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"kept"]
    store.close()


def test_segments_are_used_again_and_what_they_held_is_not_replayed_twice(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    for number in range(200):
        broker.send(source, [b"%d" % number + bytes(6000)])
        if number >= 3:
            broker.remove((source.source_key, number - 2, number - 2))
        if number % 5 == 0:
            CLOCK.ms += REST_MS
            assert isinstance(broker.store, JournalStore)
            broker.store.bring_over_due()
    assert len(files_of(str(database(data)))) <= 6
    assert [payload[:3] for payload in found(killed(data), source)] == [b"197", b"198", b"199"]


def test_commits_go_on_when_all_segments_are_full(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    for number in range(100):
        broker.send(source, [b"%02d" % number + bytes(9000)])
    assert len(files_of(str(database(data)))) == 6
    assert [payload[:2] for payload in found(killed(data), source)] == [b"%02d" % number for number in range(100)]


def test_a_large_commit_of_what_stays_goes_to_sqlite_at_once(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    assert isinstance(broker.store, JournalStore)
    before = broker.store.commits
    for _ in range(40):
        broker.send(source, [bytes(1 << 10)] * 200)
    assert broker.store.commits > before + 10
    assert len(found(killed(data), source)) == 1000


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_large_commit_of_a_former_owner_is_refused_like_a_small_one(
    broker: Broker, data: Path, *, waiting: int
) -> None:
    (source,) = broker.add()
    for _ in range(40):
        broker.send(source, [bytes(1 << 10)] * 200)
    # A commit that only moves on, and so waits in the journal where nothing large does.
    for _ in range(waiting * 60):
        broker.send(source, [b"small"])
    assert isinstance(broker.store, JournalStore)
    batch = broker.batch()
    broker.put(batch, source, [bytes(1 << 10)] * 200)
    batch.epochs = [(key, epoch - 1) for key, epoch in batch.epochs]
    with pytest.raises(StoreStale):
        broker.store.commit(batch)
    with pytest.raises(StoreFailed):
        broker.store.probe()
    assert len(found(killed(data), source)) == 1000


# -- what is damaged ------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_dropped_and_all_before_it_is_there(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    broker.send(source, [b"b" * 5000])
    copy = killed(data)
    segment = segment_with(copy, b"b" * 5000)
    contents = bytearray(segment.read_bytes())
    at = contents.rindex(b"b" * 5000)
    contents[at + 100 : at + 612] = bytes(512)
    segment.write_bytes(contents)
    assert found(copy, source) == [b"a"]


def test_a_last_record_that_the_mark_says_was_answered_is_missed(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    broker.send(source, [b"b" * 5000])
    assert isinstance(broker.store, JournalStore)
    assert broker.store.bring_over_due()
    assert read_mark(str(database(data))) == broker.commit_no
    copy = killed(data)
    segment = segment_with(copy, b"b" * 5000)
    contents = bytearray(segment.read_bytes())
    contents[contents.rindex(b"b" * 5000)] ^= 1
    segment.write_bytes(contents)
    with pytest.raises(StoreFailed, match="which had been answered"):
        found(copy, source)


def damaged_in_the_middle(copy: Path) -> None:
    segment = segment_with(copy, b"a" * 500)
    contents = bytearray(segment.read_bytes())
    contents[contents.index(b"a" * 500)] ^= 1
    segment.write_bytes(contents)


def without_the_journal(copy: Path) -> None:
    for file in files_of(str(database(copy))):
        file.unlink()


@pytest.mark.parametrize("harm", [damaged_in_the_middle, without_the_journal])
def test_a_journal_that_lacks_something_is_refused_until_the_loss_is_accepted(
    broker: Broker, data: Path, harm: Callable[[Path], None]
) -> None:
    (source,) = broker.add()
    broker.send(source, [b"first"])
    broker.store.load(source.source_key, 1, 1)
    broker.send(source, [b"a" * 500])
    broker.send(source, [b"b"])
    copy = killed(data)
    with pytest.raises(ConfigurationError, match="lacks nothing"):
        accept_loss(copy, 1)
    harm(copy)
    for _ in range(2):
        with pytest.raises(StoreFailed, match="accept-loss"):
            found(copy, source)
    accept_loss(copy, 1)
    assert version_of(copy) == FORMAT_VERSION
    assert found(copy, source) == [b"first"]


def test_a_journal_file_that_is_removed_in_use_closes_the_store_and_loses_nothing(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    without_the_journal(data)
    assert isinstance(broker.store, JournalStore)
    broker.store.bring_over_due()
    with pytest.raises(StoreFailed, match="could not bring the journal over"):
        broker.send(source, [b"b"])
    broker.store.close()
    with pytest.raises(StoreFailed, match="journal is missing"):
        broker.store.open()
    accept_loss(data, 1)
    assert found(data, source) == [b"a"]


# -- a disk without room --------------------------------------------------------------------------------------------


class Full(JournalFiles):
    """A disk on which no file of the journal may become longer, from some length of all of them on."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, buffers: Sequence[bytes], offset: int) -> int:
        longer = offset + sum(map(len, buffers)) - os.fstat(file).st_size
        if longer > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= max(0, longer)
        return super().write(file, buffers, offset)


@pytest.mark.parametrize("room", [0, SEGMENT - 1, SEGMENT + 19])
def test_a_store_without_room_for_a_journal_does_without_one(data: Path, room: int) -> None:
    store = JournalStore(
        str(database(data)), 1, options=FAST, clock=CLOCK, brings_over=False, segment_bytes=SEGMENT, files=Full(room)
    )
    broker = Broker(store)
    (source,) = broker.add()
    broker.send(source, [b"a"])
    store.bring_over_due()
    if room < SEGMENT:
        assert files_of(str(database(data))) == []
        assert version_of(data) == FORMAT_VERSION
    assert found(killed(data), source) == [b"a"]
    store.close()


def test_commits_go_on_where_there_is_no_room_for_another_segment_or_a_longer_one(data: Path) -> None:
    store = JournalStore(
        str(database(data)),
        1,
        options=FAST,
        clock=CLOCK,
        brings_over=False,
        segment_bytes=SEGMENT,
        files=Full(2 * SEGMENT),
    )
    broker = Broker(store)
    (source,) = broker.add()
    sent = [b"%02d" % number + bytes(size) for number, size in enumerate([9_000] * 20 + [3 * SEGMENT] + [9_000] * 3)]
    for payload in sent:
        broker.send(source, [payload])
    assert len(files_of(str(database(data)))) <= 2
    assert found(killed(data), source) == sent
    store.close()


# -- a disk that refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_an_append_that_the_disk_refuses_closes_the_store_and_all_that_was_answered_is_there_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    (source,) = broker.add()
    broker.send(source, [b"answered"])

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(JournalFiles, call, staticmethod(refuse))
        with pytest.raises(StoreFailed, match="could not commit"):
            broker.send(source, [b"ambiguous"])
        with pytest.raises(StoreFailed, match="could not commit"):
            broker.store.load(source.source_key, 1, 1)
    broker.reopen()
    # Whether the refused commit is there, its number tells.
    expected = [b"answered", b"ambiguous"][: broker.commit_no]
    assert payloads_of(broker.store.load(source.source_key, 1, 10)) == expected


def test_a_failure_of_the_thread_that_brings_over_closes_the_store(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    database(data).rename(database(data).with_suffix(".away"))
    CLOCK.ms += REST_MS
    assert isinstance(broker.store, JournalStore)
    assert not broker.store.bring_over_due()
    with pytest.raises(StoreFailed, match="moved, removed or replaced"):
        broker.send(source, [b"b"])
    database(data).with_suffix(".away").rename(database(data))
    broker.reopen()
    assert payloads_of(broker.store.load(source.source_key, 1, 1)) == [b"a"]


def test_a_failure_beside_an_append_leaves_the_files_of_the_journal_open(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the append might go to whatever file got the number meanwhile."""
    (source,) = broker.add()
    broker.send(source, [b"a"])
    store = broker.store
    assert isinstance(store, JournalStore)
    write = JournalFiles.write

    def fails_meanwhile(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        store._give_up("do something else", StoreFailed("something else failed"))
        return write(fd, buffers, offset)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFiles, "write", staticmethod(fails_meanwhile))
        broker.send(source, [b"b"])
    with pytest.raises(StoreFailed, match="something else failed"):
        broker.send(source, [b"c"])
    broker.reopen()
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"a", b"b"]


# -- other versions, backups, commands ------------------------------------------------------------------------------


def test_the_file_says_that_there_is_a_journal_while_it_is_open_and_no_more_after_a_close(
    broker: Broker, data: Path
) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    copy = killed(data)
    assert version_of(copy) == JOURNAL_VERSION
    with pytest.raises(StoreFailed, match="start the server and stop it again"):
        SqliteStore(str(database(copy)), 1, must_exist=True).open()
    broker.store.close()
    assert version_of(data) == FORMAT_VERSION
    assert sorted(path.name for path in database(data).parent.iterdir()) == [
        "store-1.db",
        "store-1.db.lock",
        *(["store-1.db-wal"] if (database(data).parent / "store-1.db-wal").exists() else []),
    ]
    plain = SqliteStore(str(database(data)), 1, must_exist=True)
    plain.open()
    assert payloads_of(plain.load(source.source_key, 1, 10)) == [b"a"]
    plain.close()


def test_a_store_that_was_not_closed_has_its_journal_for_one_more_life_without_being_asked(
    broker: Broker, data: Path
) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    copy = killed(data)
    store = store_in_file(database(copy), 1, must_exist=True)
    store.open()
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"a"]
    store.close()
    assert isinstance(store_in_file(database(copy), 1, must_exist=True), SqliteStore)


def test_a_backup_of_a_running_server_has_everything_and_no_journal(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    snapshot = Snapshot(database(data), has_journal=True)
    broker.store.bring_over()
    snapshot.pin()
    broker.send(source, [b"later"])
    target = data.parent / "copy.db"
    assert list(snapshot.copy(target))
    state = snapshot.state()
    snapshot.close()
    assert (state.format, state.last_commit) == (FORMAT_VERSION, broker.commit_no - 1)
    store: MessagingStore = SqliteStore(str(target), 1, must_exist=True, options=FAST)
    store.open()
    assert payloads_of(store.load(source.source_key, 1, 10)) == [b"a"]
    store.close()


def test_a_backup_after_a_kill_has_what_only_the_journal_had(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    copy, folder = killed(data), data.parent / "backup"
    back_up_stopped(copy, folder, Clock(), lambda _done, _all: None)
    plain = SqliteStore(str(folder / store_path(1)), 1, must_exist=True, options=FAST)
    plain.open()
    assert payloads_of(plain.load(source.source_key, 1, 10)) == [b"a"]
    plain.close()


def test_a_time_that_only_the_journal_has_is_set_back(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    batch = broker.batch()
    batch.broker_ms = 9_000_000
    broker.put(batch, source, [b"a"])
    broker.commit(batch)
    copy = killed(data)
    (time,) = set_times_back(copy, 5_000)
    assert time.broker_ms == 9_000_000
    store = made(copy, must_exist=True)
    assert store.open().broker_ms == 5_000
    store.close()


def test_a_store_that_can_be_read_with_its_journal_is_not_given_up(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    with pytest.raises(ConfigurationError, match="can be read"):
        give_up(killed(data), 1)


def test_what_is_left_of_a_journal_comes_over_without_a_server(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    copy = killed(data)
    bring_left_over(database(copy), 1)
    assert not files_of(str(database(copy)))
    assert version_of(copy) == FORMAT_VERSION


def test_journals_are_written_back_for_a_version_that_knows_none(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    broker.send(source, [b"a"])
    copy = killed(data)
    with pytest.raises(StoreFailed, match="journal"):
        SqliteStore(str(database(copy)), 1, must_exist=True).open()
    assert write_back(copy) == {1: True}
    assert write_back(copy) == {1: False}
    assert version_of(copy) == FORMAT_VERSION
    plain = SqliteStore(str(database(copy)), 1, must_exist=True, options=FAST)
    plain.open()
    assert payloads_of(plain.load(source.source_key, 1, 10)) == [b"a"]
    plain.close()


def test_a_store_that_is_in_use_is_not_written_back(broker: Broker, data: Path) -> None:
    broker.add()
    with pytest.raises(StoreFailed, match="another process"):
        write_back(data)


def test_a_drill_wraps_the_store_as_a_whole(broker: Broker, data: Path) -> None:
    (source,) = broker.add()
    drilled = DrillStore(broker.store)
    broker.store = drilled
    broker.send(source, [b"a"])
    drilled.set_mode("failing")
    with pytest.raises(StoreFailed, match="drill"):
        drilled.bring_over()
    drilled.set_mode("healthy")
    drilled.close()
    broker.open()
    assert payloads_of(drilled.load(source.source_key, 1, 10)) == [b"a"]


def test_the_thread_brings_over_by_itself_and_ends_with_the_store(data: Path) -> None:
    store = JournalStore(str(database(data)), 1, options=FAST, clock=CLOCK)
    broker = Broker(store)
    (source,) = broker.add()
    CLOCK.ms += REST_MS
    broker.send(source, [b"a"])
    thread = store._thread
    assert thread is not None
    store.close()
    assert not thread.is_alive
    plain = SqliteStore(str(database(data)), 1, must_exist=True, options=FAST)
    plain.open()
    assert payloads_of(plain.load(source.source_key, 1, 10)) == [b"a"]
    plain.close()


def test_a_commit_waits_neither_for_what_is_brought_over_nor_for_whoever_sees_to_the_log(broker: Broker) -> None:
    store = broker.store
    assert isinstance(store, JournalStore)
    (source,) = broker.add()
    broker.send(source, [b"first"])
    begun, may_end, order = threading.Event(), threading.Event(), []

    def bring_over() -> None:
        with store._turn:
            begun.set()
            may_end.wait(60)
            store.bring_over()
            order.append("brought over")

    def see_to_the_log() -> None:
        store.checkpoint()
        order.append("copied home")

    threads = [threading.Thread(target=call) for call in (bring_over, see_to_the_log)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    broker.send(source, [b"second"])
    order.append("committed")
    may_end.set()
    for thread in threads:
        thread.join()
    assert order == ["committed", "brought over", "copied home"]
    assert payloads_of(store.load(source.source_key, 1, 9)) == [b"first", b"second"]


def test_whoever_sees_to_the_log_waits_until_a_store_is_open(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = made(data), []
    say = SqliteStore.say_journal

    def say_slowly(sqlite: SqliteStore, *, is_there: bool) -> None:
        # The journal is there by now, and SQLite's connection is in use.
        if is_there:
            looking = threading.Thread(target=lambda: seen.append(store.checkpoint()))
            looking.start()
            looking.join(0.05)
            assert seen == []
            threads.append(looking)
        say(sqlite, is_there=is_there)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(SqliteStore, "say_journal", say_slowly)
    store.open()
    for thread in threads:
        thread.join()
    assert (len(threads), seen) == (1, [None])
    store.close()
