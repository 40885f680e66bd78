"""The example of the documents, with fewer sends: latency is waited for once, not once a message (TL4)."""

from __future__ import annotations

import asyncio
import gc

import pytest

from benchmarks import overlap


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_overlapped_sends_take_a_fraction_of_those_in_sequence() -> None:
    found = asyncio.run(overlap.run(sends=20, in_flight=10))
    assert found["serial_s"] >= 20 * (overlap.ROUND_TRIP_S + overlap.STORE_S), "the latency is really there"
    assert found["ratio"] > 3
    gc.collect()
