"""Every kind of hostile peer runs against a broker, and its cost is reported; no time is judged."""

from __future__ import annotations

from benchmarks.hostile import KINDS
from benchmarks.neighbours import run, table


def test_neighbours_are_measured_beside_each_kind_of_hostile_peer() -> None:
    document = run(list(KINDS), rounds=1, seconds=0.15, bait=2000)

    assert list(document["results"]) == list(KINDS)
    for found in document["results"].values():
        for who in ("alone", "hostile", "control"):
            assert 0 < found[who]["send_p50_ms"] <= found[who]["send_p99_ms"]
            assert 0 < found[who]["end_to_end_p50_ms"] <= found[who]["end_to_end_p99_ms"]
        assert 0 < found["attacker_share"] <= 1
    assert len(table(document["results"]).splitlines()) == 2 + len(KINDS)
