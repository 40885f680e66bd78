"""A server under a service manager, whose socket the test holds; signals, log files and terminals of the server."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 60


class Manager:
    """The socket of a service manager, and the server that was told of it."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(LIMIT_S)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.address = address

    def next(self) -> dict[str, str]:
        """The members of the next datagram but for those that feed the watchdog."""
        while True:
            text = self.socket.recv(4096).decode()
            if text != "WATCHDOG=1":
                return dict(line.split("=", 1) for line in text.split("\n"))


def serve(folder: Path, *options: object, **environment: str) -> subprocess.Popen[bytes]:
    words = ["serve", "--data", folder / "bus", "--port", 0, "--http-port", 0, "--ready-file", folder / "ready.json"]
    with (folder / "stderr").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "duobus", *map(str, [*words, *options])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | environment,
        )


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("only Linux has abstract addresses")
    found = Manager(str(tmp_path / "notify") if request.param == "path" else f"@duobus-test-{os.getpid()}")
    yield found
    found.socket.close()


def test_a_manager_hears_of_readiness_reload_and_stop_in_this_order(manager: Manager, tmp_path: Path) -> None:
    process = serve(tmp_path, "--drain-delay", 0.2, NOTIFY_SOCKET=manager.address)
    try:
        told = manager.next()
        # Clients can connect by now, and what tells them where is written.
        ready = json.loads((tmp_path / "ready.json").read_text())
        socket.create_connection(("127.0.0.1", ready["amqp_port"]), LIMIT_S).close()
        assert told == {
            "READY": "1",
            "STATUS": f"Serving on 127.0.0.1: amqp {ready['amqp_port']}, http {ready['http_port']}",
        }
        process.send_signal(signal.SIGHUP)
        reloading = manager.next()
        assert reloading.pop("RELOADING") == "1"
        assert abs(int(reloading.pop("MONOTONIC_USEC")) / 1e6 - time.clock_gettime(time.CLOCK_MONOTONIC)) < LIMIT_S
        assert manager.next() == told
        process.terminate()
        assert manager.next() == {"STOPPING": "1", "STATUS": "Serving until --drain-delay is over"}
        assert manager.next() == {"STATUS": "Stopping"}
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_the_watchdog_is_fed_until_the_process_is_stopped(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    process = serve(tmp_path, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="100000")
    try:
        assert manager.next()["READY"] == "1"
        for _ in range(3):
            assert manager.socket.recv(4096) == b"WATCHDOG=1"
        process.send_signal(signal.SIGSTOP)
        # What was on its way comes; then nothing does for several times the time of the watchdog.
        while select.select([manager.socket], [], [], 0.5)[0]:
            manager.socket.recv(4096)
        process.send_signal(signal.SIGCONT)
        assert manager.socket.recv(4096) == b"WATCHDOG=1"
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert ended(process) == 0
        manager.socket.close()


def test_a_start_that_fails_never_says_ready(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    taken = socket.create_server(("127.0.0.1", 0))
    process = serve(tmp_path, "--port", taken.getsockname()[1], NOTIFY_SOCKET=manager.address)
    assert ended(process) == 1
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.socket.recv(4096)
    taken.close()
    manager.socket.close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not any(text in line for line in lines(path)):
        assert time.monotonic() < deadline, lines(path)
        time.sleep(0.02)


def test_hangup_opens_the_log_file_again_and_a_restart_appends(tmp_path: Path) -> None:
    log, moved = tmp_path / "duobus.log", tmp_path / "duobus.log.1"
    manager = Manager(str(tmp_path / "notify"))
    for run in (1, 2):
        process = serve(tmp_path, "--log-file", log, NOTIFY_SOCKET=manager.address)
        try:
            assert manager.next()["READY"] == "1"
            log.rename(moved)
            process.send_signal(signal.SIGHUP)
            assert manager.next()["RELOADING"] == "1"
            assert manager.next()["READY"] == "1"
        finally:
            process.terminate()
            assert ended(process) == 0
        assert manager.next() == {"STOPPING": "1", "STATUS": "Stopping"}
        assert len([line for line in lines(moved) if " ready " in line]) == 1, run
        assert any("stopped" in line for line in lines(log))
    # The second run has appended to what the first one left, and that was then moved over the older file.
    assert any("stopped" in line for line in lines(moved))
    assert not any("duobus.server" in line for line in lines(tmp_path / "stderr"))
    manager.socket.close()


def test_two_servers_started_at_once_from_one_settings_file_write_one_log(tmp_path: Path) -> None:
    settings = tmp_path / "duobus.toml"
    settings.write_text('port = 0\nhttp-port = 0\nlog-file = "duobus.log"\nlog-format = "json"\n')
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    processes = [serve(folder, DUOBUS_SETTINGS=str(settings)) for folder in folders]
    try:
        for folder in folders:
            wait_for(folder / "ready.json", "pid")
    finally:
        for process in processes:
            process.terminate()
        assert [ended(process) for process in processes] == [0, 0]
    events = [json.loads(line)["event"] for line in lines(tmp_path / "duobus.log")]
    assert (events.count("ready"), events.count("stopped")) == (2, 2)


def at_a_terminal(folder: Path, *options: object, ignores_hangups: bool = False) -> tuple[subprocess.Popen[bytes], int]:
    """A server whose standard error is a terminal that it leads, and our side of that terminal."""
    side, theirs = pty.openpty()
    words = ["serve", "--data", folder / "bus", "--port", 0, "--http-port", 0, "--ready-file", folder / "ready.json"]
    command = [sys.executable, "-m", "duobus", *map(str, [*words, *options])]
    # What a signal does is inherited: the tests themselves may have been started with nohup.
    does = "SIG_IGN" if ignores_hangups else "SIG_DFL"
    start = f"import os, signal, sys; signal.signal(signal.SIGHUP, signal.{does}); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", start, *command]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    wait_for(folder / "ready.json", "pid")
    return process, side


needs_setsid = pytest.mark.skipif(sys.platform != "linux", reason="setsid of util-linux is not here")


@needs_setsid
def test_a_server_ends_with_the_terminal_that_it_was_started_at(tmp_path: Path) -> None:
    process, side = at_a_terminal(tmp_path, "--drain-delay", 1)
    broker = json.loads((tmp_path / "ready.json").read_text())["pid"]
    begun = time.monotonic()
    os.close(side)
    time.sleep(0.1)
    # The system and the shell may both send the signal: a second one does not hurry the stop.
    os.kill(broker, signal.SIGHUP)
    # As with SIGTERM: the delay passes, what was begun is done, and the ready file is gone.
    assert ended(process) == 0
    assert time.monotonic() - begun >= 1
    assert not (tmp_path / "ready.json").exists()


@needs_setsid
@pytest.mark.parametrize("how", ["log file", "ignored"])
def test_a_server_with_a_log_file_or_that_ignores_hangups_outlives_its_terminal(how: str, tmp_path: Path) -> None:
    log = tmp_path / "duobus.log"
    options = ["--log-file", log] if how == "log file" else []
    process, side = at_a_terminal(tmp_path, *options, ignores_hangups=how == "ignored")
    ready = json.loads((tmp_path / "ready.json").read_text())
    os.close(side)
    try:
        if how == "log file":
            log.unlink()
            os.kill(ready["pid"], signal.SIGHUP)
            deadline = time.monotonic() + LIMIT_S
            while not log.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        # It serves, and goes on with it after another signal.
        os.kill(ready["pid"], signal.SIGHUP)
        socket.create_connection(("127.0.0.1", ready["amqp_port"]), LIMIT_S).close()
        time.sleep(0.3)
        socket.create_connection(("127.0.0.1", ready["amqp_port"]), LIMIT_S).close()
    finally:
        os.kill(ready["pid"], signal.SIGTERM)
        assert ended(process) == 0
