"""Fragments made at one go, and which of them have rows of a state; for every store."""

from __future__ import annotations

import pytest

from duobus.fragment.message import SCHEDULED
from kits.store_builders import Broker


def test_fragments_that_are_asked_for_together_come_in_that_order_and_stay(broker: Broker) -> None:
    broker.add(7, 3, (0,))
    asked = [(8, 0, (0, 2)), (7, 3, (1, 0)), (8, 1, (0,)), (8, 0, (0, 5))]
    found = broker.store.add_fragments(asked)
    assert [(row.entity_id, row.fragment_no, [one.source_no for one in rows]) for row, rows in found] == [
        (8, 0, [0, 2]),
        (7, 3, [1, 0]),
        (8, 1, [0]),
        (8, 0, [0, 5]),
    ]
    assert found[0][0].fragment_key == found[3][0].fragment_key
    keys = {row.source_key for _, rows in found for row in rows}
    assert len(keys) == 6
    broker.reopen()
    assert {row.source_key for row in broker.contents.sources} == keys
    assert [(row.entity_id, row.fragment_no) for row in broker.contents.fragments] == [(7, 3), (8, 0), (8, 1)]


def test_one_fragment_that_cannot_be_made_keeps_all_that_were_asked_for_with_it(broker: Broker) -> None:
    with pytest.raises(ValueError, match="source 0 comes first"):
        broker.store.add_fragments([(1, 0, (4,)), (2, 0, (0,))])
    assert broker.add(3, 0, (0,))[0].source_key == 1


def test_a_store_knows_which_states_of_which_sources_may_have_rows(broker: Broker) -> None:
    first, second, third = broker.add(source_nos=(0, 1, 2))
    batch = broker.batch()
    broker.put(batch, first, [b"a"] * 3, {0: (1, 1, None), 2: (SCHEDULED, 0, None)})
    broker.put(batch, second, [b"b"] * 9)
    broker.put(batch, third, [b"c"] * 2, {0: (1, 0, None), 1: (1, 0, None)})
    broker.commit(batch)
    broker.remove((first.source_key, 1, 1))
    found = broker.store.occupied([1, SCHEDULED, 9])
    assert {(first.source_key, SCHEDULED), (third.source_key, 1)} <= found
    # PostgreSQL is asked when the store is opened, and a state whose last row has gone since is among them.
    assert found <= {(first.source_key, SCHEDULED), (first.source_key, 1), (third.source_key, 1)}
    broker.reopen()
    assert broker.store.occupied([1, SCHEDULED, 9]) == {(first.source_key, SCHEDULED), (third.source_key, 1)}
