"""How a running server gets one instant of all its stores, and when it gives a backup up."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.clock import Clock
from duobus.errors import NotAllowed, ServerBusy, StoreFailed, StoreUnavailable
from duobus.server import backups as backups_module
from duobus.server.backups import Backups, Hold
from duobus.storage.memory import MemoryStore


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Pinned:
    """A snapshot that counts."""

    def __init__(self) -> None:
        self.pins = 0

    def pin(self) -> None:
        self.pins += 1


def broker(state: str = "open") -> Any:
    return SimpleNamespace(
        state=state,
        store=MemoryStore(1),
        failures=0,
        last_error="it broke",
        unavailable=lambda: StoreUnavailable("a store is away"),
    )


def backups_of(folder: Path | None, **brokers: Any) -> Backups:
    known = {int(name[1:]): one for name, one in brokers.items()}
    return Backups(known, Path("data"), folder, SimpleNamespace(), [], Clock())  # type: ignore[arg-type]


@in_a_loop
async def test_stores_that_meet_stand_until_all_are_let_go() -> None:
    loop = asyncio.get_running_loop()
    met = asyncio.Event()
    hold = Hold(3, loop, met.set)
    snapshots = [Pinned() for _ in range(3)]
    calls = [loop.run_in_executor(None, partial(hold.enter, MemoryStore(1), one)) for one in snapshots]  # type: ignore[arg-type]
    await met.wait()
    assert [one.pins for one in snapshots] == [1, 1, 1]
    assert not any(call.done() for call in calls)
    hold.end()
    assert await asyncio.gather(*calls) == [True, True, True]


@in_a_loop
async def test_a_store_does_not_wait_for_ever_for_one_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups_module, "HOLD_S_MAX", 0.001)
    loop = asyncio.get_running_loop()
    hold = Hold(2, loop, lambda: None)
    assert not await loop.run_in_executor(None, hold.enter, MemoryStore(1), Pinned())
    hold.end()
    # The other one comes too late, when what it was to pin may belong to the next attempt.
    late = Pinned()
    assert not await loop.run_in_executor(None, hold.enter, MemoryStore(1), late)
    assert late.pins == 0


@in_a_loop
async def test_no_backup_is_begun_where_none_may_go_or_while_a_store_is_away(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="--backup-to"):
        backups_of(None, s1=broker()).start()
    with pytest.raises(ServerBusy, match="a store is away"):
        backups_of(tmp_path, s1=broker(), s2=broker("failed")).start()
    assert backups_of(tmp_path, s1=broker()).status() == {"state": "none"}


@in_a_loop
async def test_a_backup_that_fails_says_why_and_another_may_follow(tmp_path: Path) -> None:
    # There is no data folder.
    backups = backups_of(tmp_path, s1=broker())
    assert backups.start()["state"] == "running"
    with pytest.raises(ServerBusy, match="is under way"):
        backups.start()
    await backups.stop()
    status = backups.status()
    assert status["state"] == "failed"
    assert "file is missing" in str(status["reason"])
    assert backups.start()["state"] == "running"
    await backups.stop()


@in_a_loop
async def test_a_store_that_fails_meanwhile_and_a_server_that_stops_end_a_backup(tmp_path: Path) -> None:
    one = broker()
    backups = backups_of(tmp_path, s1=one)
    backups._copied({1: 0}, 5, 10)
    assert (backups.status()["copied"], backups.status()["bytes"]) == (5, 10)
    one.failures = 1
    with pytest.raises(StoreFailed, match="Messaging store 1 failed meanwhile: it broke"):
        backups._copied({1: 0}, 6, 10)
    one.failures = 0
    await backups.stop()
    with pytest.raises(StoreFailed, match="The server was stopped"):
        backups._copied({1: 0}, 7, 10)


@in_a_loop
async def test_a_store_that_stalls_unnoticed_ends_a_backup_as_soon_as_it_counts_as_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups_module, "_ANSWER_S", 0.001)
    monkeypatch.setattr(backups_module, "_PAUSE_S", 0.001)
    monkeypatch.setattr(backups_module, "snapshots_of", lambda *_, **_options: {"stores/store-1.db": ClosedPinned()})
    asked: list[object] = []
    stalled = broker()

    def call(hold: object) -> asyncio.Future[bool]:
        # Its thread is in the middle of something and does not answer; the second time that has been noticed.
        asked.append(hold)
        stalled.state = "open" if len(asked) < 2 else "failed"
        return asyncio.get_running_loop().create_future()

    stalled.call = call
    backups = backups_of(tmp_path, s1=stalled)
    backups.start()
    assert backups._task is not None
    await backups._task
    assert backups.status()["state"] == "failed"
    assert backups.status()["reason"] == "a store is away"
    assert len(asked) == 2
    assert names_in(tmp_path) == []


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class ClosedPinned(Pinned):
    """One that can be given up."""

    def close(self) -> None:
        self.pins = 0
