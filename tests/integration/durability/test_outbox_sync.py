"""A real outbox under strace: a finished fdatasync stands in front of every send that returns (I53)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("program_outbox_acks.py")
MESSAGES = 50


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt-get install strace)")
def test_every_send_that_returns_follows_a_finished_fdatasync(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "synctrace.py"), "--ack", r"ack (\d+)", "--mark", r"mark-(\d+)-"]
    command += ["--", sys.executable, str(PROGRAM), str(tmp_path / "outbox.db"), str(MESSAGES)]
    tracer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if tracer.returncode == 3:
        pytest.skip(f"tracing is not permitted here: {tracer.stderr.strip()[-200:]}")
    assert tracer.returncode == 0, tracer.stdout + tracer.stderr
    result = json.loads(tracer.stdout)
    assert (result["acks"], result["violations"]) == (MESSAGES, 0)
    assert result["syncs"] < MESSAGES, "sends at the same time share one"
