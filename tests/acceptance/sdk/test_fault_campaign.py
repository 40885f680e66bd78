"""The short form of ``make faults``: thirty seconds of faults in all, and nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[3] / "tools" / "faults.py"
FAULTS = ("kill", "freeze", "full", "read-only", "failing-syncs", "slow-syncs", "removed")
#: Together the 30 seconds.
MINUTES = 30 / 60 / len(FAULTS)
#: Messages a second. More would show nothing more, and take both processors from the tests beside it.
RATE = 150


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_acknowledged_is_lost_whatever_strikes_the_process_or_its_disk(fault: str) -> None:
    words = [sys.executable, str(CAMPAIGN), "--json", "--minutes", str(MINUTES), "--fault", fault, "--seed", "7"]
    words += ["--rate", str(RATE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["strikes"] > 0
    assert result["acknowledged"] > 0
    assert (result["lost"], result["altered"], result["revived"], result["left"]) == (0, 0, 0, 0)
