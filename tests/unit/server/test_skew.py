"""Entities most of whose messages go to one fragment are told of, once an hour (PE14)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duobus.server.monitoring.key_skew import MESSAGES_MIN, QUIET_LOOKS, SkewWatch

Warned = list[tuple[str, str, int, float]]


class Shop:
    """A unit with one partitioned queue of 16 fragments and a plain one."""

    def __init__(self) -> None:
        self.sources = [SimpleNamespace(next_count=1) for _ in range(16)]
        handles = [
            SimpleNamespace(number=number, fragment=SimpleNamespace(sources={0: source}))
            for number, source in enumerate(self.sources)
        ]
        queues = {
            "parted": SimpleNamespace(entity_id=1, path="parted", is_partitioned=True, fragments=handles),
            "plain": SimpleNamespace(entity_id=2, path="plain", is_partitioned=False, fragments=handles[:1]),
        }
        space = SimpleNamespace(name="n", queues=queues, topics={})
        self.handles = handles
        self.warned: Warned = []
        unit: Any = SimpleNamespace(namespaces={"n": space})
        self.watch = SkewWatch(unit, lambda *what: self.warned.append(what))
        self.watch.look()

    def send(self, numbers: dict[int, int]) -> None:
        """So many messages to these fragments, and a look."""
        for fragment, number in numbers.items():
            self.sources[fragment].next_count += number
        self.watch.look()


def test_an_even_spread_is_one_and_no_reason_to_warn() -> None:
    shop = Shop()
    shop.send(dict.fromkeys(range(16), MESSAGES_MIN))
    assert shop.watch.skews == {("n", "parted"): 1.0}
    assert shop.warned == []


def test_one_key_for_everything_is_the_number_of_fragments() -> None:
    shop = Shop()
    shop.send({5: MESSAGES_MIN})
    assert shop.watch.skews == {("n", "parted"): 16.0}
    assert shop.warned == [("n", "parted", 5, 16.0)]


def test_a_warning_is_repeated_after_an_hour_only() -> None:
    shop = Shop()
    for _ in range(QUIET_LOOKS):
        shop.send({5: MESSAGES_MIN})
    assert len(shop.warned) == 1
    shop.send({5: MESSAGES_MIN})
    assert len(shop.warned) == 2


@pytest.mark.parametrize("number", [0, 1, MESSAGES_MIN - 1])
def test_few_messages_say_nothing(number: int) -> None:
    shop = Shop()
    shop.send({5: number})
    assert shop.watch.skews == {}


def test_what_a_store_got_before_it_was_away_is_not_new_when_it_is_back() -> None:
    shop = Shop()
    shop.send({3: 10 * MESSAGES_MIN})
    kept = shop.handles[3].fragment
    shop.handles[3].fragment = None
    shop.send(dict.fromkeys(set(range(16)) - {3}, MESSAGES_MIN))
    shop.handles[3].fragment = kept
    shop.send(dict.fromkeys(range(16), MESSAGES_MIN))
    assert shop.watch.skews == {("n", "parted"): 1.0}
    assert len(shop.warned) == 1
