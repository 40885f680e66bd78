"""A server that begins in a fork behaves as one that begins with its interpreter."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kits.prompt_start import PREFIX, ForkedProcess, PromptStarter, start_promptly

COMMAND = [*PREFIX, "--port", "0", "--tls-port", "0", "--http-port", "0"]
#: Refused at the start, in an unknown tier.
REFUSED = [*PREFIX, "--tier", "none-such"]


@pytest.fixture(scope="module")
def starter() -> Iterator[PromptStarter]:
    with PromptStarter() as started:
        yield started


def start(starter: PromptStarter, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return starter.start(command, file)


def test_its_output_and_exit_status_are_those_of_the_command(starter: PromptStarter, tmp_path: Path) -> None:
    forked = start(starter, REFUSED, tmp_path / "forked")
    status = forked.wait(60)
    with (tmp_path / "plain").open("wb") as file:
        plain = subprocess.run(REFUSED, stdout=file, stderr=subprocess.STDOUT, check=False, timeout=60)
    assert isinstance(forked, ForkedProcess)
    assert status == plain.returncode == 2
    said = (tmp_path / "forked").read_text().replace("duobus serve", "python -m duobus serve")
    assert said == (tmp_path / "plain").read_text()


def test_a_killed_one_is_gone_and_has_the_number_of_the_signal(starter: PromptStarter, tmp_path: Path) -> None:
    process = start(starter, [*COMMAND, "--ephemeral"], tmp_path / "log")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -9
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_threads_that_wait_for_the_same_one_all_get_its_status(starter: PromptStarter, tmp_path: Path) -> None:
    process = start(starter, REFUSED, tmp_path / "log")
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _number: process.wait(60), range(8))) == {2}
    assert start(starter, REFUSED, tmp_path / "log").wait(60) == 2


def test_it_is_in_a_session_of_its_own_and_in_the_folder_of_its_start(
    starter: PromptStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = start(starter, [*COMMAND, "--data", "beside", "--ready-file", "ready"], tmp_path / "log")
    assert os.getsid(process.pid) == process.pid
    pause = threading.Event()
    while not (tmp_path / "ready").exists() and process.poll() is None:
        pause.wait(0.01)
    process.terminate()
    assert process.wait(60) == 0
    assert (tmp_path / "beside").is_dir()


def test_another_command_begins_with_its_interpreter_and_no_process_waits_for_a_server_yet(tmp_path: Path) -> None:
    starters: list[PromptStarter] = []
    with (tmp_path / "log").open("wb") as file:
        other = start_promptly(starters, [PREFIX[0], "-c", "print('as ever')"], file)
    assert (other.wait(60), (tmp_path / "log").read_text()) == (0, "as ever\n")
    assert starters == []


def test_another_interpreter_environment_begins_with_its_interpreter(
    starter: PromptStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    anew = start(starter, REFUSED, tmp_path / "log")
    assert isinstance(anew, subprocess.Popen)
    assert anew.wait(60) == 2
