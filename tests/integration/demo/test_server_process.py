"""The process that the demonstration and the SDK tests talk to is there when it should be, and gone when not."""

from __future__ import annotations

import os
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.testing.server import DemoFailed, ServerProcess, let_go, queues_config


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_killed_server_starts_again_on_the_same_ports(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, config=queues_config({"q": {}})) as server:
        first_pid, first = server.pid, server.ready
        assert first["pid"] == first_pid
        server.kill()
        assert not server.is_running
        assert not is_alive(first_pid)

        server.start()

        assert server.pid != first_pid
        for member in ("amqp_port", "tls_port", "http_port", "connection_string", "connection_string_tls", "ca"):
            assert server.ready[member] == first[member]
        last_pid = server.pid

    assert not is_alive(last_pid)
    assert "stopped" in server.log_tail()


@pytest.mark.slow
def test_frozen_server_stands_still_and_is_stopped_all_the_same(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.freeze()
        until = time.monotonic() + 60
        while not state_of(server.pid).startswith("T") and time.monotonic() < until:
            time.sleep(0.005)
        assert state_of(server.pid).startswith("T")
        pid = server.pid

    assert not is_alive(pid)


@pytest.mark.slow
def test_no_process_is_left_when_the_block_raises(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)

    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError

    assert not is_alive(server.pid)


def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, config=tmp_path / "missing.json")

    with pytest.raises(DemoFailed, match=r"(?s)ended at its start with status 1.*missing\.json cannot be read"):
        server.start()

    assert not server.is_running


def test_server_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)

    with pytest.raises(DemoFailed, match="not ready within 0 s"):
        server.start(timeout_s=0)

    assert not server.is_running


def test_server_that_was_never_started_refuses_signals(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.kill()

    assert (server.is_running, server.ready, server.log_tail(), server.terminate()) == (False, {}, "", 0)
    with pytest.raises(DemoFailed, match="not running"):
        server.freeze()
    with pytest.raises(DemoFailed, match="never started"):
        _ = server.pid


class Left:
    """Something that only the collector can find."""

    def __init__(self, what: Any = None) -> None:
        self.what = what
        self.itself = self


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_client_that_nobody_has_any_more(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, config=queues_config({"q": {}})) as server:
        client = ServiceBusClient.from_connection_string(server.connection_string)
        sender = client.get_queue_sender("q")
        sender.send_messages(ServiceBusMessage("connected"))
        Left((client, sender))
        del client, sender
        began = time.monotonic()
    # A client that is there and silent is waited for: five seconds.
    assert time.monotonic() - began < 5


def test_what_nobody_has_any_more_is_let_go() -> None:
    left = weakref.ref(Left())
    let_go()
    assert left() is None
