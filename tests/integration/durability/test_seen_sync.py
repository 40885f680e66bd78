"""Recorded message ids under strace: a finished fdatasync stands in front of every record that returns (I51)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORDS = 10
PROGRAM = """
import os, sys
from pathlib import Path
from duobus.ha.deduplication import SeenMessages
with SeenMessages(Path(sys.argv[1])) as seen:
    for number in range(int(sys.argv[2])):
        seen.record(f"mark-{number}-")
        os.write(1, f"ack {number}\\n".encode())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt-get install strace)")
def test_every_record_that_returns_follows_a_finished_fdatasync(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "synctrace.py"), "--ack", r"ack (\d+)", "--mark", r"mark-(\d+)-"]
    command += ["--", sys.executable, "-c", PROGRAM, str(tmp_path / "seen.db"), str(RECORDS)]
    tracer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if tracer.returncode == 3:
        pytest.skip(f"tracing is not permitted here: {tracer.stderr.strip()[-200:]}")
    assert tracer.returncode == 0, tracer.stdout + tracer.stderr
    result = json.loads(tracer.stdout)
    assert (result["acks"], result["violations"]) == (RECORDS, 0)
    assert result["syncs"] >= RECORDS
