"""A commit of many pieces gets short turns of the interpreter, in a server and nowhere else (decision 0039)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch
from duobus.storage.sqlite import store as sqlite
from duobus.storage.writers import PIECES_MIN, SHORT_TURN_S, TURN_S, set_switch_interval
from kits.store_builders import Broker

pytestmark = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def turns_as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The turns in which each commit was looked at first."""
    found: list[float] = []

    check = sqlite.check_batch

    def look(*arguments: Any) -> None:
        found.append(sys.getswitchinterval())
        check(*arguments)

    monkeypatch.setattr(sqlite, "check_batch", look)
    return found


def filled(broker: Broker) -> int:
    """The key of a source with messages."""
    (source,) = broker.add()
    broker.send(source, [b"m"] * (4 * PIECES_MIN))
    return source.source_key


def pieces(key: int, number: int) -> list[tuple[int, int, int]]:
    """Every second message."""
    return [(key, count, count) for count in range(1, 2 * number, 2)]


def test_only_a_commit_of_many_pieces_has_short_turns(broker: Broker, seen: list[float]) -> None:
    set_switch_interval()
    key = filled(broker)
    few, many = pieces(key, 2 * PIECES_MIN)[PIECES_MIN:-1], pieces(key, PIECES_MIN)
    broker.remove(*few)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    broker.remove(*many)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    assert seen == pytest.approx([TURN_S, TURN_S, SHORT_TURN_S])


def test_a_commit_that_fails_leaves_the_turns_as_they_were(broker: Broker) -> None:
    set_switch_interval()
    batch = CommitBatch(-1, 1_000)
    batch.removed = pieces(1, PIECES_MIN)
    with pytest.raises(StoreFailed):
        broker.store.commit(batch)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)


def test_a_program_that_has_set_turns_of_its_own_keeps_them(broker: Broker, seen: list[float]) -> None:
    sys.setswitchinterval(0.004)
    broker.remove(*pieces(filled(broker), PIECES_MIN))
    assert sys.getswitchinterval() == pytest.approx(0.004)
    assert seen == pytest.approx([0.004] * 2)
