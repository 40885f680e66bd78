"""What the codec's benchmark measures still exists: no figure is judged."""

from __future__ import annotations

from benchmarks.codec import measure_fragment


def test_a_fragment_is_measured_through_a_whole_life_of_its_messages() -> None:
    costs = measure_fragment()

    assert set(costs) == {"fragment, one message enqueued, locked and completed", "head of one message"}
    assert all(microseconds > 0 for microseconds in costs.values())
