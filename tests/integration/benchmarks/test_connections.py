"""The cost of an idle connection, in short: 500 of them, against a generous bound."""

from __future__ import annotations

import pytest

from benchmarks.connections import run


@pytest.mark.parametrize(("tls", "count", "limit_kib"), [(False, 500, 32), (True, 100, 96)])
def test_an_idle_connection_costs_little_resident_memory(tls: bool, count: int, limit_kib: int) -> None:
    """I61."""
    result = run(count, tls=tls, idle_s=0.5)
    assert result["count"] == count
    assert 1024 < result["bytes_per_connection"] < limit_kib * 1024
