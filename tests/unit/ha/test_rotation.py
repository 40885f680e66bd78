"""The rotation of backlog queues, in simulated time (I45, PN4, PN12)."""

from __future__ import annotations

from collections import Counter
from random import Random

from duobus.clock import Clock, Entropy
from duobus.ha.aio.backlog_queues import REST_MS, Rotation, paths


class Time(Clock):
    def __init__(self) -> None:
        self.ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


class Dice(Entropy):
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def number(self, bits: int) -> int:
        return self._random.getrandbits(bits)


def test_the_first_backlog_queue_of_contoso_has_its_documented_path() -> None:
    assert paths("contoso", 2) == ["contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"]


def test_ten_thousand_senders_spread_evenly() -> None:
    rotation = Rotation(paths("contoso", 10), Time(), Dice(1))
    counts = Counter(rotation.choose() for _ in range(10_000))
    chi_square = sum((count - 1_000) ** 2 / 1_000 for count in counts.values())
    assert len(counts) == 10
    assert chi_square < 27.9, "beyond it with probability 0.001, for 9 degrees of freedom"


def test_a_queue_that_failed_is_chosen_by_nobody_until_it_has_rested() -> None:
    time = Time()
    rotation = Rotation(["a", "b"], time, Dice(2))
    rotation.drop("a")
    assert {rotation.choose() for _ in range(100)} == {"b"}
    rotation.drop("b")
    assert rotation.choose() is None
    time.ms = REST_MS - 1
    assert (rotation.choose(), rotation.resting) == (None, 2)
    time.ms = REST_MS
    assert rotation.resting == 0
    assert {rotation.choose() for _ in range(100)} == {"a", "b"}
