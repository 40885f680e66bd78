"""The benchmark of pairs measures what the pair adds, over senders that do nothing."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks import paired
from benchmarks.paired import Nobody, added_cpu, ratios_of
from duobus.ha.aio import PassiveReplicationSender


def test_the_ratio_of_a_way_to_itself_is_about_one() -> None:
    sender = Nobody()
    found = asyncio.run(ratios_of(sender.send_messages, sender.send_messages, None, 25, 0.01))
    assert 0.3 < found["ratio"] < 3
    assert found["ratio_quarter"] <= found["ratio"] <= found["ratio_three_quarters"]


def test_what_replication_adds_to_a_call_is_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "CALLS", 500)
    found = asyncio.run(added_cpu(lambda sender: PassiveReplicationSender([sender, Nobody()])))  # type: ignore[list-item]
    assert found["us_per_call"] < 10
    assert found["us_per_message_in_lists"] < 0.5
