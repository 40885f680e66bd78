"""The benchmark of the fan-out runs, and tells what it says it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.fanout import measure


@pytest.mark.slow
def test_a_short_round_gives_every_figure(tmp_path: Path) -> None:
    found = asyncio.run(measure(tmp_path, 1, 0.05, rules=2000))
    rates = found["messages_per_second"]
    assert isinstance(rates, dict)
    assert all(rate > 0 for rate in rates.values())
    assert isinstance(found["ten_sends_over_one_fan_out"], float)
    assert found["ten_sends_over_one_fan_out"] > 1
