"""What an operator does to stores of a server that is stopped: take one without its log, set time back."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock
from duobus.errors import StoreFailed
from duobus.storage.backup.restore import COUNTS_LEFT_OUT
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.interface import CommitBatch, Put
from duobus.storage.offline import maintenance as offline
from duobus.storage.sqlite.store import SqliteStore
from duobus.testing.server import ServerProcess

DAY_MS = 86_400_000


def duobus(*words: str, status: int = 0) -> Any:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == status, result.output
    return result.output


def filled(data: Path, broker_ms: int, payloads: int) -> SqliteStore:
    """A data folder with one store, which is open and has so many messages."""
    catalog = SqliteCatalog(data / "catalog.db")
    catalog.add_store(1, "stores/store-1.db")
    catalog.close()
    store = SqliteStore(str(data / "stores" / "store-1.db"), 1)
    store.open()
    store.begin_generation(())
    fragment, (source,) = store.add_fragment(1, 0, [0])
    for number in range(1, payloads + 1):
        batch = CommitBatch(number, broker_ms)
        batch.epochs = [(fragment.fragment_key, fragment.epoch)]
        batch.puts.append(Put(source.source_key, number, broker_ms, [b"m"], None))
        batch.sources.append((source.source_key, number + 1, 0, source.counters))
        store.commit(batch)
    return store


def reopened(data: Path) -> SqliteStore:
    return SqliteStore(str(data / "stores" / "store-1.db"), 1, must_exist=True)


@pytest.mark.parametrize("how", ["missing", "cut", "older"])
def test_a_store_without_its_log_is_taken_as_it_is_when_somebody_says_so(tmp_path: Path, how: str) -> None:
    log = tmp_path / "stores" / "store-1.db-wal"
    store = filled(tmp_path, 5, 3)
    store.checkpoint_aside()
    older = log.read_bytes()
    store.probe()
    store.checkpoint_aside()
    store._abandon("killed")
    if how == "missing":
        log.unlink()
    else:
        log.write_bytes(older if how == "older" else older[:5000])
    with pytest.raises(StoreFailed, match="duobus store accept-loss"):
        reopened(tmp_path).open()
    duobus("store", "accept-loss", "1", "--data", str(tmp_path), "--yes")
    store = reopened(tmp_path)
    contents = store.open()
    # I7: what may have been given out is not given out again.
    assert contents.sources[0].next_count >= COUNTS_LEFT_OUT
    assert len(store.load(contents.sources[0].source_key, 1, 10)) == 3
    store.close()


def test_the_log_of_another_store_is_put_aside_and_not_taken(tmp_path: Path) -> None:
    store = filled(tmp_path, 5, 3)
    store.checkpoint_aside()
    store._abandon("killed")
    other = SqliteStore(str(tmp_path / "other" / "store-2.db"), 2)
    other.open()
    for _ in range(40):
        other.probe()
    log = tmp_path / "stores" / "store-1.db-wal"
    # Longer, and further on, than what is missing.
    log.write_bytes((tmp_path / "other" / "store-2.db-wal").read_bytes())
    other.close()
    with pytest.raises(StoreFailed, match="this is store 2, not 1"):
        reopened(tmp_path).open()
    duobus("store", "accept-loss", "1", "--data", str(tmp_path), "--yes")
    assert log.with_name("store-1.db-wal.foreign").exists()
    store = reopened(tmp_path)
    contents = store.open()
    assert len(store.load(contents.sources[0].source_key, 1, 10)) == 3
    store.close()


def test_a_store_that_lacks_nothing_loses_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 5, 3)._abandon("killed")
    said = duobus("store", "accept-loss", "1", "--data", str(tmp_path), "--yes", status=1)
    assert "lacks nothing" in said
    assert "there are 1" in duobus("store", "accept-loss", "7", "--data", str(tmp_path), "--yes", status=1)
    contents = reopened(tmp_path).open()
    assert contents.sources[0].next_count == 4


def test_a_time_that_is_ahead_is_shown_and_set_back(tmp_path: Path) -> None:
    now_ms = Clock().now_ms()
    filled(tmp_path, now_ms + 400 * DAY_MS, 2).close()
    (tmp_path / "clock.json").write_text("what was written down meanwhile")
    (shown,) = json.loads(duobus("store", "clock", "--data", str(tmp_path), "--json"))
    assert shown["recordedMs"] == now_ms + 400 * DAY_MS
    assert shown["aheadSeconds"] == pytest.approx(400 * 86_400, abs=60)
    assert shown["setBack"] is False
    (reset,) = json.loads(duobus("store", "clock", "--data", str(tmp_path), "--reset", "--json"))
    assert reset["setBack"] is True
    assert not (tmp_path / "clock.json").exists()
    store = reopened(tmp_path)
    contents = store.open()
    assert now_ms <= contents.broker_ms <= Clock().now_ms()
    assert len(store.load(contents.sources[0].source_key, 1, 10)) == 2
    store.close()
    # One that is not ahead stays as it is.
    (again,) = json.loads(duobus("store", "clock", "--data", str(tmp_path), "--reset", "--json"))
    assert (again["recordedMs"], again["setBack"]) == (contents.broker_ms, False)


@pytest.mark.slow
def test_a_server_says_that_it_does_not_believe_the_clock_until_it_is_told_to(tmp_path: Path) -> None:
    arguments = ["--emulator", "--stores", "1"]
    record = tmp_path / "data" / "clock.json"

    def health(server: ServerProcess) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ready['http_port']}/health") as answer:
            return json.load(answer)

    with ServerProcess(tmp_path, arguments=arguments) as server:
        assert health(server)["status"] == "healthy"
    written = json.loads(record.read_text())
    # The machine has counted next to nothing since, and the clock is two hours further.
    record.write_text(json.dumps([*written[:2], written[2] - 7_200_000]))
    offline.set_times_back(tmp_path / "data", written[2] - 7_200_000)
    with ServerProcess(tmp_path, arguments=arguments) as server:
        found = health(server)
        assert found["status"] == "degraded"
        assert "2.0 hours ahead" in found["clock"]
        assert "--accept-clock" in found["clock"]
        assert "clock not believed" in server.log_tail()
    with ServerProcess(tmp_path, arguments=[*arguments, "--accept-clock"]) as server:
        assert health(server)["status"] == "healthy"
    with ServerProcess(tmp_path, arguments=arguments) as server:
        assert health(server)["status"] == "healthy"
