"""Health of a real server: stores that nobody uses, and a stop that a balancer has time for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock
from duobus.model.access_rules import sign_token
from duobus.testing.server import ServerProcess, queues_config


@pytest.fixture
def server(tmp_path: Any) -> Iterator[ServerProcess]:
    arguments = ("--emulator", "--stores", "2", "--allow-drills", "--drain-delay", "60")
    with ServerProcess(tmp_path, config=queues_config({"q": {}}), arguments=arguments) as process:
        yield process


def ask(server: ServerProcess, path: str) -> tuple[int, dict[str, Any]]:
    answer = requests.get(f"http://localhost:{server.ready['http_port']}{path}", timeout=60)
    return answer.status_code, json.loads(answer.text)


def send(server: ServerProcess) -> int:
    base = f"http://localhost:{server.ready['http_port']}"
    token = sign_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", Clock().now_ms() // 1000 + 300)
    return requests.post(f"{base}/q/messages", "m", headers={"Authorization": token}, timeout=60).status_code


def until(server: ServerProcess, path: str, status: int) -> dict[str, Any]:
    end_s = time.monotonic() + 60
    while (found := ask(server, path))[0] != status:
        assert time.monotonic() < end_s, found
        time.sleep(0.05)
    return found[1]


def test_a_drill_without_traffic_shows_and_a_stop_leaves_time_to_be_taken_out(server: ServerProcess) -> None:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    for path in ("/health", "/health/live", "/health/ready", "/health/started"):
        assert ask(server, path)[0] == 200
    for drill, states in (("stall", ("late", "stalled")), ("fail", ("failed",))):
        assert CliRunner().invoke(main, ["store", drill, "2"], env=environment).exit_code == 0
        # News are a second old at most; then the first who asks hears of it.
        end_s = time.monotonic() + 60
        while (found := ask(server, "/health"))[1]["status"] == "healthy":
            assert time.monotonic() < end_s
            time.sleep(0.05)
        status, told = found
        assert (status, told["status"], told["stores"]["1"]) == (200, "degraded", "open")
        assert told["stores"]["2"] in states
        assert "messaging store 2 is" in told["message"]
        assert CliRunner().invoke(main, ["store", "heal", "2"], env=environment).exit_code == 0
        end_s = time.monotonic() + 60
        while ask(server, "/health")[1]["status"] != "healthy":
            assert time.monotonic() < end_s
            time.sleep(0.05)
    os.kill(server.pid, signal.SIGTERM)
    assert "about to stop" in until(server, "/health/ready", 503)["message"]
    assert [ask(server, path)[0] for path in ("/health", "/health/live", "/health/started")] == [200, 200, 200]
    assert send(server) == 201
    # The second signal ends the delay.
    assert server.terminate() == 0
