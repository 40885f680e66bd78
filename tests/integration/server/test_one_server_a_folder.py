"""A data folder has one server: a second one is told who has it; and nobody has it after a SIGKILL."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.server.settings import Settings
from duobus.storage.folder_lock import FolderLock, holder_of
from duobus.testing.server import DemoFailed, ServerProcess

OPTIONS = ("--emulator", "--stores", "1")


def test_a_second_server_is_refused_by_name_until_the_first_is_killed(tmp_path: Path) -> None:
    first = ServerProcess(tmp_path / "1", data=tmp_path / "data", arguments=OPTIONS)
    second = ServerProcess(tmp_path / "2", data=tmp_path / "data", arguments=OPTIONS)
    with first:
        with pytest.raises(DemoFailed) as refusal:
            second.start()
        text = str(refusal.value)
        assert f"is in use by a server with process id {first.pid}, since 20" in text
        assert f" UTC, at 127.0.0.1:{first.ready['amqp_port']}. Each server" in text
        assert "Traceback" not in text
        first.kill()
        second.start()
        second.kill()


def test_whoever_looks_who_has_a_folder_keeps_no_server_out(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert holder_of(tmp_path / "nowhere") is None
    lock.take("a server", Clock())
    assert (holder_of(tmp_path) or "").startswith(f"a server with process id {os.getpid()}, since 20")
    lock.release()
    assert holder_of(tmp_path) is None
    # Somebody looks at this moment, and has looked a moment later.
    fd = os.open(tmp_path / "duobus.lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, os.close, [fd])
    timer.start()
    lock.take("a server", Clock())
    timer.join()
    lock.release()


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_holder_of_a_folder_is_not_taken_for_one_before_that_was_killed(tmp_path: Path, is_empty: bool) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "duobus.lock").write_text("" if is_empty else f"a server with process id {ended.pid}, since 2026\n")
    fd = os.open(tmp_path / "duobus.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    # It has the lock, and says so a moment later.
    text = f"a command with process id {os.getpid()}, since 2026"
    timer = threading.Timer(0.05, os.pwrite, [fd, f"{text}\n".ljust(80).encode(), 0])
    timer.start()
    assert holder_of(tmp_path) == text
    timer.join()
    os.close(fd)


def test_a_holder_that_says_nothing_is_another_process(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "duobus.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert holder_of(tmp_path) == "another process"
    os.close(fd)
    assert holder_of(tmp_path) is None


def test_joined_servers_need_folders_of_their_own(tmp_path: Path) -> None:
    """Before anything of the shared catalog is looked at, so that no database is needed to see it."""
    pytest.importorskip("psycopg")
    from duobus.server.cluster_server import ClusterServer
    from duobus.storage.postgres.address import catalog_place

    lock = FolderLock(tmp_path)
    lock.take("a server", Clock())

    async def start() -> None:
        place = catalog_place("postgresql://nobody@127.0.0.1:1/nothing")
        server = ClusterServer(Settings(data=tmp_path, emulator=True, join=place), Clock(), Entropy())
        try:
            await server.start()
        finally:
            await server.stop()

    with pytest.raises(ConfigurationError, match="Each server needs a data folder of its own, joined ones too"):
        asyncio.run(start())
    # Who was refused has not taken the lock away from who has it.
    with pytest.raises(ConfigurationError, match="is in use"):
        FolderLock(tmp_path).take("another", Clock())
    lock.release()
    again = FolderLock(tmp_path)
    again.take("another", Clock())
    again.release()
