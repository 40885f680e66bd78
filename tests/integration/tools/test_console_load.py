"""The campaign that loads the console, in small: every part of it runs, and nothing is lost or left open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.console_load import PARTS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_campaign_in_small_finds_nothing_lost_or_left_open() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.console_load", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [figure["what"] for figure in figures if "what" in figure]
    # A line at least for each part, and one for what the sessions have released.
    for words in ("entities, overview", "a filter that the last one matches", "dead letters, download", "a copy sent"):
        assert any(words in step for step in steps), words
    assert len(PARTS) == 5
    (released,) = (figure for figure in figures if "after" in figure)
    assert released["seen"] == [released["sent"]] * 2
