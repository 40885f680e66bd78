"""A file that another thread writes to is handed on to the disk meanwhile, and nothing depends on whether it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from duobus import file_sync
from duobus.file_sync import begun_ahead

LIMIT_S = 20


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def faked(monkeypatch: pytest.MonkeyPatch, begin: Callable[..., int] | None) -> None:
    monkeypatch.setattr(file_sync, "_begin_to_write", lambda: begin)


def test_the_disk_is_told_again_and_again_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    is_told = threading.Event()

    def begin(*arguments: int) -> int:
        calls.append(arguments)
        if len(calls) == 3:
            is_told.set()
        return 0

    faked(monkeypatch, begin)
    with begun_ahead(7):
        assert is_told.wait(LIMIT_S)
    number = len(calls)
    assert set(calls) == {(7, 0, 0, 2)}
    assert "sync ahead" not in names()
    assert len(calls) == number


def test_a_disk_that_refuses_is_not_asked_again_and_the_sync_is_left_to_tell_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    faked(monkeypatch, lambda *_: calls.append(1) or -1)
    with begun_ahead(7):
        # It may be over already.
        for thread in threading.enumerate():
            if thread.name == "sync ahead":
                thread.join(LIMIT_S)
    assert calls == [1]


def test_an_error_of_who_writes_goes_through_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, lambda *_: 0)
    with pytest.raises(KeyError), begun_ahead(7):
        raise KeyError
    assert "sync ahead" not in names()


def test_where_there_is_no_such_call_or_no_more_thread_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    faked(monkeypatch, None)
    with begun_ahead(7):
        assert "sync ahead" not in names()
    faked(monkeypatch, lambda *_: 0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with begun_ahead(7):
        assert "sync ahead" not in names()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has sync_file_range")
def test_linux_takes_the_call_for_a_file_that_is_open_for_reading(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    begin = file_sync._begin_to_write()
    assert begin is not None
    with path.open("rb") as file:
        assert begin(file.fileno(), 0, 0, 2) == 0
