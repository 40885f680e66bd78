"""The real store on a real file system whose power is cut (I1, F3); tools/powercut.py does the work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "powercut.py"


@pytest.fixture(scope="module")
def cutter() -> Path:
    """The tool, where power can be cut."""
    checked = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    if checked.returncode == 3:
        pytest.skip(f"no power cuts here: {checked.stdout.strip()}")
    assert checked.returncode == 0, checked.stderr
    return TOOL


def cut(tool: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(tool), "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return result.returncode, summary


@pytest.mark.slow
def test_twenty_power_cuts_lose_nothing_that_was_acknowledged(cutter: Path) -> None:
    status, summary = cut(cutter, "--cuts", "20")
    assert summary == {
        "cuts": 20,
        "acknowledged": summary["acknowledged"],
        "lost": 0,
        "lost_commits": 0,
        "returned": 0,
        "altered": 0,
        "problems": [],
    }
    assert summary["acknowledged"] > 2000
    assert status == 0


@pytest.mark.slow
def test_power_cuts_catch_a_store_that_does_not_sync(cutter: Path) -> None:
    status, summary = cut(cutter, "--cuts", "3", "--unsafe-no-sync")
    assert summary["lost_commits"] > 0
    assert summary["lost"] > 0
    assert status == 1
