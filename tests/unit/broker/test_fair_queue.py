"""Messages of each entity wait in a queue of their own."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.broker import fair_queue
from duobus.broker.fair_queue import AHEAD_BYTES, FairQueue
from duobus.broker.fragment_handle import FragmentHandle
from duobus.fragment.send import Run
from kits.broker import batch


def run_of(entity: int, name: bytes, size: int = AHEAD_BYTES) -> Run:
    handle = FragmentHandle(SimpleNamespace(submit=None), entity, 0)  # type: ignore[arg-type]
    made: Any = batch(name + bytes(size))
    return Run(handle, 0, made, None, made.reply)


def joined(lines: FairQueue, *runs: Run) -> list[bool]:
    """Whether each of these went ahead when it came."""
    pending: deque[Any] = deque()
    for run in runs:
        assert lines.join(run, pending) is None
    return [run in pending for run in runs]


def test_what_passes_the_bound_stands_behind_and_others_go_ahead() -> None:
    lines = FairQueue()
    behind = run_of(1, b"second")
    assert joined(lines, run_of(1, b"first"), behind, run_of(2, b"of another")) == [True, False, True]
    assert (len(lines), list(lines)) == (1, [behind])


def test_nothing_overtakes_what_stands_behind_of_its_entity() -> None:
    lines = FairQueue()
    first, second, third = run_of(1, b"1"), run_of(1, b"2"), run_of(1, b"3", 1)
    assert joined(lines, first, second) == [True, False]
    lines.left(first)
    assert joined(lines, third) == [False]
    pending: deque[Any] = deque()
    lines.move_up(pending)
    assert (list(pending), list(lines)) == ([second], [third])
    lines.left(second)
    lines.move_up(pending)
    assert (list(pending), len(lines)) == ([second, third], 0)


def test_entities_move_up_by_turns() -> None:
    lines = FairQueue()
    ahead = [run_of(entity, b"ahead") for entity in (1, 2)]
    behind = [run_of(entity, b"%d" % number, 1) for entity in (1, 2) for number in range(2)]
    assert joined(lines, *ahead, *behind) == [True, True, False, False, False, False]
    for one in ahead:
        lines.left(one)
    pending: deque[Any] = deque()
    lines.move_up(pending)
    assert list(pending) == [behind[0], behind[2], behind[1], behind[3]]


def test_lines_that_are_given_up_give_back_all_that_stood_behind() -> None:
    lines = FairQueue()
    runs = [run_of(1, b"%d" % number) for number in range(3)]
    joined(lines, *runs)
    assert lines.clear() == runs[1:]
    assert len(lines) == 0
    # What was ahead is still to be taken, and is counted no more.
    lines.left(runs[0])
    assert joined(lines, run_of(1, b"new")) == [True]


def test_a_part_of_a_batch_counts_as_the_part_that_it_is() -> None:
    lines = FairQueue()
    handle = FragmentHandle(SimpleNamespace(submit=None), 1, 0)  # type: ignore[arg-type]
    made: Any = batch(*[bytes(AHEAD_BYTES // 8)] * 16)
    runs = [Run(handle, 0, made, [index], None) for index in range(16)]
    assert joined(lines, *runs) == [True] * 8 + [False] * 8


def test_what_waits_for_a_fragment_and_for_a_store_is_bounded_and_counted_until_it_has_left() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue, "FRAGMENT_MESSAGES_MAX", 2)
        patch.setattr(fair_queue, "PENDING_MAX", 3)
        lines, pending = FairQueue(), deque[Any]()
        first, second, third = run_of(1, b"1"), run_of(2, b"2"), run_of(3, b"3")
        handle = first.handle
        handle.waiting = 1
        assert [lines.join(run, pending) for run in (first, second)] == [None, None]
        assert (handle.waiting, handle.waiting_bytes) == (2, first.batch.bytes_total)
        again = Run(handle, 0, second.batch, None, None)
        assert "2 messages wait for fragment 0" in str(lines.join(again, pending))
        assert lines.join(third, pending) is None
        assert "too many operations wait" in str(lines.join(run_of(4, b"4"), pending))
        assert list(pending) == [first, second, third]
        lines.left(first)
        assert (handle.waiting, handle.waiting_bytes) == (1, 0)
