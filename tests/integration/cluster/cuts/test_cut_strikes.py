"""The faults of processes and clocks, at stand-ins for servers and databases."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit_cluster import clock_variables
from kit_strikes import AGAIN_S, CLOCK_OFF_S, STRIKES, family, set_clock, tolerance_s

#: Waits for a line, then says how far the clock of the broker and that of the interpreter are from that of its parent.
_TELL = """
import sys, time
from duobus.clock import Clock
for line in sys.stdin:
    print(Clock().now_ms() / 1000 - float(line), time.time() - float(line), flush=True)
"""


class _Stage:
    """Notes what is done to three servers, and has one database, whose processes are a shell and its child."""

    servers = range(3)

    def __init__(self, folder: Path, *databases: Any) -> None:
        self.databases = databases
        self.done: list[tuple[str, int]] = []
        self._folder = folder
        for number in self.servers:
            self.clock_file(number).write_bytes(bytes(8))

    def kill(self, number: int) -> None:
        self.done.append(("kill", number))

    def start(self, number: int) -> None:
        self.done.append(("start", number))

    def signal(self, number: int, what: int) -> None:
        self.done.append((signal.Signals(what).name, number))

    def clock_file(self, number: int) -> Path:
        return self._folder / f"clock-{number}"


class _Database:
    def __init__(self, pid: int) -> None:
        self.pid = pid


def test_a_process_that_has_the_shim_sees_the_time_that_its_file_tells(tmp_path: Path) -> None:
    stage: Any = _Stage(tmp_path)
    environment = {**os.environ, **clock_variables(stage.clock_file(1))}
    words = [sys.executable, "-c", _TELL]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for off_s in (0.0, 180.0, -180.0):
            set_clock(stage, 1, off_s)
            process.stdin.write(f"{time.time()}\n")
            process.stdin.flush()
            told = [float(word) for word in process.stdout.readline().split()]
            # The rest is the time that the answer takes.
            assert all(off_s - 0.1 < one < off_s + 60 for one in told)


@pytest.mark.parametrize(("name", "sign"), [("clock_ahead", 1), ("clock_behind", -1)])
def test_a_clock_is_off_by_minutes_and_right_afterwards(tmp_path: Path, name: str, sign: int) -> None:
    kills = 0
    for seed in range(20):
        stage: Any = _Stage(tmp_path)
        with STRIKES[name](stage, random.Random(seed)):
            offs = [int.from_bytes(stage.clock_file(one).read_bytes(), "little", signed=True) for one in stage.servers]
            (off,) = filter(None, offs)
            assert CLOCK_OFF_S[0] <= sign * off / 1e9 <= CLOCK_OFF_S[1]
        assert all(stage.clock_file(one).read_bytes() == bytes(8) for one in stage.servers)
        kills += bool(stage.done)
    assert 0 < kills < 20


def test_only_a_clock_that_is_ahead_lets_messages_come_early() -> None:
    assert {name: tolerance_s(name) for name in STRIKES if tolerance_s(name)} == {"clock_ahead": CLOCK_OFF_S[1]}


def test_a_paused_server_goes_on_afterwards(tmp_path: Path) -> None:
    stage: Any = _Stage(tmp_path)
    with STRIKES["pause_server"](stage, random.Random(1)):
        assert [what for what, _ in stage.done] == ["SIGSTOP"]
    assert [what for what, _ in stage.done] == ["SIGSTOP", "SIGCONT"]
    assert len({number for _, number in stage.done}) == 1


def test_a_killed_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    stage: Any = _Stage(tmp_path)
    with STRIKES["kill_server"](stage, random.Random(1)):
        assert [what for what, _ in stage.done] == ["kill", "start"]
    assert AGAIN_S[0] <= waited[0] <= AGAIN_S[1]


def test_all_processes_of_a_paused_database_stand_still_and_go_on_afterwards(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo ready; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        members = family(shell.pid)
        try:
            assert len(members) == 2
            stage: Any = _Stage(tmp_path, _Database(shell.pid))
            with STRIKES["pause_database"](stage, random.Random(1)):
                _await_states(members, "T")
            _await_states(members, "SR")
        finally:
            for pid in members:
                os.kill(pid, signal.SIGKILL)


def _await_states(members: set[int], states: str) -> None:
    """Wait until the kernel has delivered the signals."""
    end = time.monotonic() + 60
    while not all(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in states for pid in members):
        assert time.monotonic() < end
        time.sleep(0.01)
