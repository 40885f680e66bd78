"""What `make paired` computes: its rates, its ratios, and the processor time that a way around a sender adds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import FrameType, SimpleNamespace
from typing import Any, Final

import pytest

from benchmarks import paired
from benchmarks.paired import Nobody, added_cpu, ratios_of
from duobus.ha.aio import PassiveReplicationSender

#: What replication may call in a send, and for each message of a list; 28 and 2.8 when this was written.
CALLS_MAX: Final = 35
CALLS_OF_MESSAGE_MAX: Final = 3


class Works:
    """A sender whose calls take so long by a clock of the test's."""

    def __init__(self, clock: list[float], seconds: float, sender: Any = None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._sender = sender

    async def send_messages(self, messages: Any) -> None:
        self._clock[0] += self._seconds * (len(messages) if isinstance(messages, list) else 1)
        if self._sender is not None:
            await self._sender.send_messages(messages)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the benchmark takes for the time; calls of Works let it pass."""
    now = [0.0]
    monkeypatch.setattr(paired, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0]))
    return now


def test_the_ratio_of_a_way_to_itself_is_one(clock: list[float]) -> None:
    sender = Works(clock, 0.001)
    found = asyncio.run(ratios_of(sender.send_messages, sender.send_messages, None, 5, 0.1))
    assert found["ratio"] == found["ratio_quarter"] == found["ratio_three_quarters"] == 1
    assert found["sdk_per_second"] == found["pair_per_second"] == 1000


def test_a_way_that_takes_four_times_as_long_has_a_ratio_of_a_quarter(clock: list[float]) -> None:
    quick, slow = Works(clock, 0.001), Works(clock, 0.004)
    found = asyncio.run(ratios_of(quick.send_messages, slow.send_messages, None, 5, 0.1))
    assert found["ratio"] == 0.25
    assert found["sdk_per_second"] == 4 * found["pair_per_second"] == 1000


def test_what_a_way_adds_is_told_for_a_call_and_for_a_message_of_a_list(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired, "CALLS", 10)
    found = asyncio.run(added_cpu(lambda sender: Works(clock, 3e-6, sender)))
    assert found == {"us_per_call": 3.0, "us_per_message_in_lists": 3.0}


def test_replication_adds_some_thirty_calls_to_a_send_and_three_to_a_message_of_a_list() -> None:
    many = [paired.ServiceBusMessage(b"x", message_id="m") for _ in range(paired.LIST)]
    nobody = Nobody()
    sender = PassiveReplicationSender([nobody, Nobody()])  # type: ignore[list-item]
    added = [calls_of(sender.send_messages, what) - calls_of(nobody.send_messages, what) for what in (many[0], many)]
    assert 0 < added[0] <= CALLS_MAX
    assert added[1] <= CALLS_MAX + CALLS_OF_MESSAGE_MAX * paired.LIST


def calls_of(send: Callable[[Any], Awaitable[None]], what: Any) -> int:
    """How many functions a call calls: unlike its time, that is the same however busy the machine is."""
    calls = 0

    def count(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def counted() -> None:
        # What is made once has been made.
        await send(what)
        sys.setprofile(count)
        try:
            await send(what)
        finally:
            sys.setprofile(None)

    asyncio.run(counted())
    return calls
