"""SIGKILL under SDK traffic: nothing acknowledged is lost (I1), nothing completed comes back (I17)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILL_LOOP = Path(__file__).parents[3] / "tools" / "killloop.py"
KILLS = 10
#: Senders are let go at full speed only so long before each kill: what flows before that is received before it, too,
#: and would take both processors from the tests beside it.
RUSH = ("--rush", "0.3")


@pytest.mark.slow
def test_ten_kills_under_traffic_lose_no_acknowledged_message(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(KILL_LOOP), "--kills", str(KILLS), "--json", "--keep", str(tmp_path / "broker"), *RUSH],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stdout)
    assert counts["kills"] == len(counts["restarts"]) == KILLS
    assert counts["lost"] == counts["altered"] == counts["revived"] == counts["left"] == 0, counts
    assert counts["acknowledged"] == counts["received"] > 100
    # A loop that kills an idle broker proves nothing.
    assert counts["sends_in_flight_at_kills"] > 0
    assert counts["first_accepted_send_ms"]["measured"] > 0
    # Message loss may be hidden behind repeats only as far as sends had no answer.
    assert counts["duplicates"] <= counts["sends_in_flight_at_kills"]


@pytest.mark.slow
def test_kill_loop_finds_the_loss_of_a_broker_that_keeps_nothing() -> None:
    result = subprocess.run(
        [sys.executable, str(KILL_LOOP), "--kills", "2", "--json", "--unsafe-ephemeral"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert result.returncode == 1, result.stdout + result.stderr
    counts = json.loads(result.stdout)
    assert counts["lost"] > 0
    assert counts["missing"]


@pytest.mark.slow
def test_kills_with_files_taken_away_lose_nothing_or_are_refused_with_advice(tmp_path: Path) -> None:
    # A few kills with every kind of strike that this seed draws; "make killloop" has the long form.
    result = subprocess.run(
        [
            *(sys.executable, str(KILL_LOOP), "--kills", "3", "--take-files", "--seed", "4", "--json", *RUSH),
            *("--results", str(tmp_path / "results.jsonl"), "--keep", str(tmp_path / "broker")),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stdout)
    assert counts["kills"] == sum(counts["strikes"].values()) == 3
    assert counts["wrong"] == []
    assert counts["lost"] == counts["altered"] == counts["revived"] == counts["left"] == 0, counts
    assert counts["refusals"]
    assert counts["acknowledged"] == counts["received"] > 0
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1
