"""SIGKILL of the driver, its workers and the broker while Spark captures: nothing lost, doubled or forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kits.spark_start import spark_environment

TOOL = Path(__file__).parents[3] / "tools" / "spark_kills.py"
KILLS = 3


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.usefixtures("installed_java")
def test_kills_of_each_kind_beside_a_rival_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    """SP2."""
    result = subprocess.run(
        [sys.executable, str(TOOL), "--kills", str(KILLS), "--folder", str(tmp_path / "work"), "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, **spark_environment()},
    )

    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stdout.splitlines()[-1])
    assert sum(counts["kills"].values()) >= KILLS
    assert set(counts["kills"]) == {"driver", "worker", "broker"}
    assert counts["lost"] == counts["doubled"] == counts["unknown"] == counts["left_in_queue"] == 0, counts
    # Both have to have had something, or nothing was proved.
    assert counts["captured"] > 100
    assert counts["rival"] > 0
