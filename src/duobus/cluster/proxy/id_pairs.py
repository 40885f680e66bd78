"""Which delivery of a client is which of an owner: pairs of delivery ids, in runs that count up on both sides. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_IDS: Final = 1 << 32
_MASK: Final = _IDS - 1
_HALF: Final = 1 << 31
#: A run that is longer gets no more deliveries: what is settled of it goes only with all of it.
RUN_MAX: Final = 512


class IdRun:
    """Deliveries with consecutive ids on both sides.

    Attributes:
        here: The client's id of the first.
        there: The owner's id of the first.
        marks: One byte each: 1 once it was removed.
        left: How many are not removed.
        here_at, there_at: Where the first is in the order of either side, which does not wrap.
    """

    __slots__ = ("here", "here_at", "left", "marks", "there", "there_at")

    def __init__(self, here: int, there: int, number: int) -> None:
        self.here = here
        self.there = there
        self.marks = bytearray(number)
        self.left = number
        self.here_at = self.there_at = 0


class Stretch(NamedTuple):
    """Neighbours within a run."""

    run: IdRun
    start: int
    number: int

    @property
    def here(self) -> int:
        """The client's id of the first."""
        return (self.run.here + self.start) & _MASK

    @property
    def there(self) -> int:
        """The owner's id of the first."""
        return (self.run.there + self.start) & _MASK


class _Index:
    """Runs by their ids of one side. Ids wrap (RFC 1982), positions do not."""

    __slots__ = ("_firsts", "_next", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[IdRun] = []
        # The position behind the last run there has been.
        self._next = _IDS

    def _position(self, delivery_id: int) -> int:
        return self._next + ((delivery_id - self._next + _HALF) & _MASK) - _HALF

    def add(self, run: IdRun, first_id: int) -> int:
        first = self._position(first_id)
        if first >= self._next or not self._firsts or first > self._firsts[-1]:
            self._firsts.append(first)
            self._runs.append(run)
        else:
            index = bisect_right(self._firsts, first)
            self._firsts.insert(index, first)
            self._runs.insert(index, run)
        self.reach(first + len(run.marks))
        return first

    def reach(self, end: int) -> None:
        self._next = max(self._next, end)

    def last(self) -> IdRun | None:
        return self._runs[-1] if self._runs else None

    def remove(self, first: int) -> None:
        index = bisect_right(self._firsts, first) - 1
        del self._firsts[index], self._runs[index]

    def find(self, first_id: int, last_id: int) -> list[Stretch]:
        first = self._position(first_id)
        last = first + ((last_id - first_id) & _MASK)
        found: list[Stretch] = []
        firsts, runs = self._firsts, self._runs
        index = max(0, bisect_right(firsts, first) - 1)
        while index < len(runs) and firsts[index] <= last:
            run = runs[index]
            marks = run.marks
            start = max(0, first - firsts[index])
            end = min(len(marks), last - firsts[index] + 1)
            index += 1
            if start < end and run.left == len(marks):
                # Nothing of it is gone, as of nearly all runs.
                found.append(Stretch(run, start, end - start))
                continue
            while start < end:
                start = marks.find(0, start, end)
                if start < 0:
                    break
                stop = marks.find(1, start, end)
                stop = end if stop < 0 else stop
                found.append(Stretch(run, start, stop - start))
                start = stop
        return found


class IdPairs:
    """The deliveries of one direction of a session that wait to be settled.

    A peer may name a range of any size; what that costs goes by what waits.
    """

    __slots__ = ("_by_here", "_by_there")

    def __init__(self) -> None:
        self._by_here = _Index()
        self._by_there = _Index()

    def __bool__(self) -> bool:
        return self._by_here.last() is not None

    def add(self, here: int, there: int, number: int) -> IdRun:
        """Note deliveries with consecutive ids; returns the run that they are in, at its end."""
        run = self._by_here.last()
        if run is not None and self._by_there.last() is run:
            behind = len(run.marks)
            if (
                behind + number <= RUN_MAX
                and (run.here + behind) & _MASK == here
                and (run.there + behind) & _MASK == there
            ):
                run.marks += bytes(number)
                run.left += number
                self._by_here.reach(run.here_at + len(run.marks))
                self._by_there.reach(run.there_at + len(run.marks))
                return run
        run = IdRun(here, there, number)
        run.here_at = self._by_here.add(run, here)
        run.there_at = self._by_there.add(run, there)
        return run

    def of_client(self, first: int, last: int) -> list[Stretch]:
        """What waits of a range of the client's ids, ascending by these."""
        return self._by_here.find(first, last)

    def of_owner(self, first: int, last: int) -> list[Stretch]:
        """What waits of a range of the owner's ids, ascending by these."""
        return self._by_there.find(first, last)

    def remove(self, stretch: Stretch) -> None:
        """Forget what was found, once."""
        run, start, number = stretch
        run.left -= number
        if run.left:
            run.marks[start : start + number] = b"\x01" * number
        else:
            self._by_here.remove(run.here_at)
            self._by_there.remove(run.there_at)


def ranges(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(first, last) of ranges of ids, from (first, number) of each; neighbours become one, and none passes 2**32."""
    low = number = 0
    for first, many in parts:
        if number and low + number == first:
            number += many
        else:
            if number:
                yield from _cut(low, number)
            low, number = first, many
    if number:
        yield from _cut(low, number)


def _cut(low: int, number: int) -> Iterator[tuple[int, int]]:
    if low + number <= _IDS:
        yield low, low + number - 1
    else:
        yield low, _MASK
        yield 0, low + number - 1 - _IDS
