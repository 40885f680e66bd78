"""``duobus demo`` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from duobus_demo.result_table import table_of

DEMO = [sys.executable, "-m", "duobus", "demo"]
#: Several times what a part takes on a machine that does nothing else, and what its end may take then.
PART_LIMIT_S = 150
RUN_LIMIT_S = 200


def rows_of(counts: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and value of each row in the table that people are shown of a result."""
    labels, values = (list(column.cells) for column in table_of("t", counts).columns)
    return [(str(label), str(value)) for label, value in zip(labels, values, strict=True)]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration to its end; a part that hangs ends itself, and says in which phase."""
    words = [*DEMO, "--seconds-limit", str(PART_LIMIT_S), *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        # Turning without a pause would take a core from the process that is waited for.
        time.sleep(0.01)


def broker_pid(folder: Path) -> int:
    ready = folder / "queue" / "ready.json"
    wait_for(ready)
    return int(json.loads(ready.read_text())["pid"])


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_standard_library_survives_three_kills_unharmed() -> None:
    result = run_demo("--json", "--part", "queue")

    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = result.stdout.splitlines()
    counts = json.loads(line)
    assert counts["part"] == "queue"
    assert counts["lost"] == counts["altered"] == counts["revived"] == counts["left"] == 0
    assert counts["received"] == counts["acknowledged"] == counts["sent"] - counts["too_large"]
    assert len(counts["kills"]) == 3
    assert all(kill["unsettled_sends"] >= 1 and kill["locks_held"] >= 100 for kill in counts["kills"])
    assert min(counts["abandoned"], counts["deferred"], counts["dead_lettered"], counts["too_large"]) > 0
    assert len(counts["per_fragment"]) == 16
    assert sum(counts["per_fragment"].values()) >= counts["received"]
    assert list(counts["transports"]) == ["tcp", "tls", "websocket"]
    assert all(min(over["sent"], over["received"]) > 0 for over in counts["transports"].values())
    assert sum(over["sent"] for over in counts["transports"].values()) == counts["acknowledged"]
    assert [label for label, _ in rows_of(counts) if label.startswith("Kill")] == ["Kill 1", "Kill 2", "Kill 3"]
    # No bound on speed: a phase that hangs ends the demo by itself.
    assert counts["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_demo_that_is_ended_leaves_no_broker_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*DEMO, "--keep", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell that runs the tests in its background has them ignore SIGINT, and that is inherited.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        pid = broker_pid(tmp_path)
        process.send_signal(number)
        assert process.wait(60) != 0

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_demo_that_hangs_ends_with_the_broker_log(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--keep", str(tmp_path), "--seconds-limit", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pid = broker_pid(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        _output, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "The run took longer than 3 s" in errors
    assert "The end of the broker's log:" in errors
    assert "ready" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_folder_to_keep_must_be_empty_or_new(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()

    result = run_demo("--keep", str(tmp_path))

    assert result.returncode == 1
    assert "is not empty. Give another folder." in result.stderr


def test_unknown_part_is_refused_with_the_known_names() -> None:
    result = run_demo("--part", "nonsense")

    assert result.returncode == 2
    assert "'queue', 'sessions', 'fanout', 'store-loss', 'paired'" in result.stderr
