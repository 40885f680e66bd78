"""The log comes home beside the commits, stays bounded, and a disk that refuses is not trusted again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from duobus.errors import StoreFailed
from duobus.storage.sqlite import file
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.sqlite.checkpoint import CheckpointThread
from duobus.storage.sqlite.store import SqliteStore
from duobus.storage.writers import InlineWriter, StoreWriter
from kits.store_builders import Broker, payloads_of, sqlite_store


def sqlite_broker(folder: Path) -> tuple[SqliteStore, Broker]:
    store = sqlite_store(folder)
    return store, Broker(store)


def test_a_checkpoint_aside_brings_home_all_that_was_committed(tmp_path: Path) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    broker.send(source, [b"x" * 1000] * 100)
    in_log, left = store.checkpoint_aside()
    assert in_log > 100_000
    assert left == 0
    store.close()
    assert store.checkpoint_aside() == (0, 0)


def test_a_log_that_was_brought_home_starts_afresh(tmp_path: Path) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    log = tmp_path / "store" / "f0.db-wal"
    sizes = []
    for _ in range(30):
        broker.send(source, [b"x" * 1000] * 50)
        store.checkpoint()
        sizes.append(log.stat().st_size)
    assert sizes[-1] == max(sizes) < 3 * sizes[0]
    store.close()


def test_commits_go_on_while_another_thread_checkpoints(tmp_path: Path) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    stopped = threading.Event()
    looks = []

    def work() -> None:
        while not stopped.is_set():
            looks.append(store.checkpoint_aside())

    thread = threading.Thread(target=work)
    thread.start()
    for i in range(300):
        broker.send(source, [b"%d" % i] * 10)
    stopped.set()
    thread.join()
    assert looks
    broker.reopen()
    assert payloads_of(store.load(source.source_key, 1, 5000)) == [b"%d" % i for i in range(300) for _ in range(10)]
    store.close()


def test_a_checkpoint_that_failed_closes_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    broker.send(source, [b"kept"])
    assert store._aside is not None
    store._aside.close()
    store._aside = RefusingConnection()  # type: ignore[assignment]
    with pytest.raises(StoreFailed, match="could not copy the log home: the operating system refused"):
        store.checkpoint_aside()
    with pytest.raises(StoreFailed, match="could not copy the log home"):
        store.probe()
    broker.reopen()
    assert payloads_of(store.load(source.source_key, 1, 5)) == [b"kept"]
    store.close()


class BusyConnection:
    """A connection during whose passes something is committed."""

    def __init__(self, inner: apsw.Connection, commit: Callable[[], None]) -> None:
        self._inner = inner
        self._commit = commit

    def execute(self, text: str) -> Iterator[object]:
        row = next(self._inner.execute(text))
        self._commit()
        return iter([row])

    def pragma(self, name: str) -> object:
        return self._inner.pragma(name)

    def close(self, is_forced: bool) -> None:
        self._inner.close(is_forced)


def test_what_is_committed_during_a_pass_is_left_to_copy(tmp_path: Path) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    broker.send(source, [b"x" * 1000] * 100)
    aside = store._aside
    assert aside is not None
    # As long as somebody reads, the log does not begin anew.
    reader = file.connect(str(tmp_path / "store" / "f0.db"), file.StoreOptions())
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchall()
    store._aside = BusyConnection(aside, lambda: broker.send(source, [b"y" * 1000] * 300))  # type: ignore[assignment]
    in_log, left = store.checkpoint_aside()
    store._aside = aside
    reader.execute("COMMIT")
    reader.close()

    assert 100_000 < in_log < 300_000 <= left
    assert store.checkpoint_aside()[1] == 0
    store.close()


def test_a_pass_syncs_the_database_so_that_the_writer_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    broker.send(source, [b"x" * 1000] * 100)
    synced: list[str] = []
    monkeypatch.setattr(file, "sync_data", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    store.checkpoint_aside()

    assert synced == [str(tmp_path / "store" / "f0.db")]
    store.close()


def test_a_database_that_a_pass_cannot_sync_closes_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, broker = sqlite_broker(tmp_path)
    (source,) = broker.add()
    broker.send(source, [b"kept"])

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file, "sync_data", refuse)
    with pytest.raises(StoreFailed, match="could not copy the log home: the operating system refused"):
        store.checkpoint_aside()
    with pytest.raises(StoreFailed, match="could not copy the log home"):
        store.probe()
    broker.reopen()
    assert payloads_of(store.load(source.source_key, 1, 5)) == [b"kept"]
    store.close()


class RefusingConnection:
    """A connection whose disk does not sync."""

    def execute(self, _: str) -> None:
        raise OSError(5, "Input/output error")

    def close(self, _: bool) -> None:
        pass


class ScriptedStore:
    """Reports given lengths of the log and counts what it is asked."""

    any_thread = False

    def __init__(self, looks: list[tuple[int, int] | StoreFailed]) -> None:
        self.commits = 0
        self.finished = 0
        self.lengths: list[int] = []
        self.looks = looks

    def checkpoint_aside(self) -> tuple[int, int]:
        look = self.looks.pop(0)
        if isinstance(look, StoreFailed):
            raise look
        return look

    def checkpoint(self) -> None:
        self.finished += 1

    def make_room(self, length: int) -> bool:
        self.lengths.append(length)
        return len(self.lengths) < 3


def looks_of(store: ScriptedStore, rounds: int = 1) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        thread = CheckpointThread(store, InlineWriter(loop), loop, log_limit_bytes=1000)
        for _ in range(rounds):
            store.commits += 1
            thread.look()
        thread.look()
        for _ in range(9):
            await asyncio.sleep(0)
        assert thread.stop()

    asyncio.run(run())


def test_a_short_log_is_left_to_grow() -> None:
    store = ScriptedStore([(999, 500)])
    looks_of(store)
    assert (store.finished, store.looks) == (0, [])


def test_a_long_log_is_finished_by_the_writer_once() -> None:
    store = ScriptedStore([(5_000_000, 3_000_000), (5_100_000, 100_000), (6_000_000, 9)])
    looks_of(store, rounds=2)
    assert (store.finished, store.looks) == (1, [])


class SharedStore(ScriptedStore):
    """One whose log any thread may see to: what has its turn before may take long."""

    any_thread = True


def test_the_log_of_a_store_with_a_journal_is_seen_to_without_the_thread_that_commits() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        writer = StoreWriter(loop)
        store = SharedStore([(5_000_000, 3_000_000), (5_100_000, 100_000), (900, 0), StoreFailed("no")])
        thread = CheckpointThread(store, writer, loop, log_limit_bytes=1000)
        for _ in range(3):
            store.commits += 1
            thread.look()
        # All is done by now, and nothing was asked of the writer, whose thread has never begun.
        assert store.finished == 1
        assert store.lengths == [log_room.wanted(5_000_000)] * 3
        assert not writer._is_started
        assert thread.stop()
        assert writer.stop()

    asyncio.run(run())


def test_passes_end_although_commits_outrun_them() -> None:
    store = ScriptedStore([(9_000_000, 5_000_000)] * 5)
    looks_of(store)
    assert (store.finished, len(store.looks)) == (1, 1)


def test_a_log_that_grows_is_laid_out_ahead_piece_by_piece_and_once() -> None:
    store = ScriptedStore([(900, 0), (2_000_000, 0), (2_000_001, 0)])
    looks_of(store, rounds=3)
    assert store.lengths == [log_room.wanted(2_000_000)] * 3


def test_a_log_that_began_anew_is_looked_after_again() -> None:
    store = ScriptedStore([(2_000_000, 0), (500_000, 0), (500_000, 0)])
    store.lengths = [0, 0]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        thread = CheckpointThread(store, InlineWriter(loop), loop)
        for _ in range(3):
            store.commits += 1
            thread.look()
            for _ in range(4):
                await asyncio.sleep(0)

    asyncio.run(run())
    assert store.lengths[2:] == [log_room.wanted(2_000_000), log_room.wanted(500_000)]


def test_the_thread_looks_less_often_where_little_is_written() -> None:
    async def run() -> list[float]:
        mib = 1 << 20
        store = ScriptedStore([(length * mib, 0) for length in (20, 40, 41, 42, 43, 55, 5)])
        loop = asyncio.get_running_loop()
        thread = CheckpointThread(store, InlineWriter(loop), loop, interval_s=1, log_limit_bytes=1 << 30)
        waits = []
        for _ in range(7):
            store.commits += 1
            thread.look()
            waits.append(round(thread.wait_s, 2))
        return waits

    assert asyncio.run(run()) == [1, 1, 4, 4, 4, 1.33, 1.07]


def test_a_refusing_disk_does_not_end_the_checkpoints() -> None:
    store = ScriptedStore([StoreFailed("no"), (2000, 0)])
    looks_of(store, rounds=2)
    assert store.finished == 1


def test_the_thread_keeps_a_real_log_bounded(tmp_path: Path) -> None:
    async def run() -> int:
        store = sqlite_store(tmp_path)
        loop = asyncio.get_running_loop()
        writer = StoreWriter(loop)
        broker = Broker(store)
        (source,) = broker.add()
        thread = CheckpointThread(store, writer, loop, interval_s=0.001, log_limit_bytes=500_000)
        thread.start()
        for _ in range(200):
            batch = broker.batch()
            broker.put(batch, source, [b"x" * 1000] * 100)
            batch.removed = [(source.source_key, 1, source.next_count - 200)]
            future = loop.create_future()
            writer.submit(lambda batch=batch: broker.commit(batch), lambda _, e, f=future: f.set_result(e))  # type: ignore[misc]
            assert await future is None
            # A busy machine may give the thread no time for a while; what it does when it has some is what counts.
            while store.commits - thread._seen_commits > 40:  # noqa: ASYNC110 - the thread has no event to wait for
                await asyncio.sleep(0.001)
        assert thread.stop()
        assert writer.stop()
        size = (tmp_path / "store" / "f0.db-wal").stat().st_size
        store.close()
        return size

    # 200 commits write some 60 MB of log altogether.
    assert asyncio.run(run()) < 30_000_000


def test_a_thread_that_rests_leaves_the_log_alone_and_goes_on_afterwards(tmp_path: Path) -> None:
    async def scenario() -> None:
        store, broker = sqlite_broker(tmp_path)
        loop = asyncio.get_running_loop()
        thread = CheckpointThread(store, InlineWriter(loop), loop)
        (source,) = broker.add()
        broker.send(source, [b"x" * 1000] * 100)
        database = tmp_path / "store" / "f0.db"
        size = database.stat().st_size
        thread.is_resting = True
        thread.look()
        assert database.stat().st_size == size
        thread.is_resting = False
        thread.look()
        assert database.stat().st_size > size
        store.close()

    asyncio.run(scenario())
