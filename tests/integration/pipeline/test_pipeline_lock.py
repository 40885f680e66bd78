"""One pipeline is run by one process at a time, and a kill of that process frees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duobus.pipeline.state_folder import PipelineBusy, StateFolder

#: Holds the lock until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from duobus.pipeline.state_folder import StateFolder
with StateFolder(Path(sys.argv[1])).lock({"since": "noon"}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_is_told_who_runs_and_a_kill_frees_the_lock(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(PipelineBusy, match=rf"process {holder.pid} on \S+, since noon") as refused, state.lock({}):
            pass
        assert "'duobus pipeline stop'" in str(refused.value)
        assert (state.holder() or {})["process"] == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    assert state.holder() is None
    assert state.last_holder()["process"] == holder.pid
    with state.lock({}):
        assert (state.holder() or {})["process"] == os.getpid()
