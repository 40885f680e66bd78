"""Deliveries of one AMQP session that wait for their settlement: delivery-ids to locks, in ranges both ways."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from duobus.broker import FragmentHandle

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
    from duobus.gateway.amqp.links.session_writer import SessionWriter

_IDS = 1 << 32
_MASK = _IDS - 1


class DeliveryRun:
    """Deliveries with consecutive ids and consecutive lock counters of one fragment.

    Attributes:
        link: The link that they are on; for several links the session writer that these have in common.
        links: The link of each of them, where they are of several; else None.
        first: Position of the first in the session's count of deliveries, which, unlike the id, does not wrap.
        marks: One byte each: 1 once a disposition named it.
        left: How many are not marked.
    """

    __slots__ = ("first", "first_lock", "handle", "left", "link", "links", "marks", "prefix")

    def __init__(
        self,
        link: Any,
        handle: FragmentHandle,
        prefix: bytes,
        first: int,
        first_lock: int,
        number: int,
        links: list[Any] | None = None,
    ) -> None:
        self.link = link
        self.links = links
        self.handle = handle
        self.prefix = prefix
        self.first = first
        self.first_lock = first_lock
        self.marks = bytearray(number)
        self.left = number

    def unmarked(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(offset, number) of the stretches in [start, end) that no disposition has named."""
        marks = self.marks
        while start < end:
            start = marks.find(0, start, end)
            if start < 0:
                return
            stop = marks.find(1, start, end)
            if stop < 0:
                stop = end
            yield start, stop - start
            start = stop

    def links_of(self, first_lock: int, number: int) -> list[Any]:
        """The link of each delivery of a stretch."""
        links = self.links
        if links is None:
            return [self.link] * number
        start = first_lock - self.first_lock
        return links if number == len(links) else links[start : start + number]

    def unsettled(self) -> Iterator[tuple[OutgoingLink, int]]:
        """(link, number of deliveries) of what no disposition has named."""
        if self.links is None:
            yield self.link, self.left
        else:
            for owner, mark in zip(self.links, self.marks, strict=True):
                if not mark:
                    yield owner, 1

    def take(self, link: OutgoingLink) -> list[tuple[int, int]]:
        """Mark the deliveries of one of several links: (offset, number) of those that no disposition has named."""
        assert self.links is not None
        taken: list[tuple[int, int]] = []
        for offset, owner in enumerate(self.links):
            if owner is link and not self.marks[offset]:
                self.marks[offset] = 1
                self.left -= 1
                taken.append((offset, 1))
        return taken


#: (run, first delivery-id, first lock, number) of deliveries that are named together.
Stretch = tuple[DeliveryRun, int, int, int]


def split(found: list[Stretch]) -> dict[OutgoingLink, list[Stretch]]:
    """Stretches by the link whose deliveries they are."""
    by_link: dict[OutgoingLink, list[Stretch]] = {}
    for stretch in found:
        run, first_id, first_lock, number = stretch
        if run.links is None:
            by_link.setdefault(run.link, []).append(stretch)
            continue
        links = run.links_of(first_lock, number)
        start = 0
        for end in range(1, number + 1):
            if end == number or links[end] is not links[start]:
                piece = (run, first_id + start, first_lock + start, end - start)
                by_link.setdefault(links[start], []).append(piece)
                start = end
    return by_link


class Deliveries:
    """All unsettled deliveries of a session, ascending.

    Attributes:
        writers: For each queue, what writes for the links that hold sessions of it.
    """

    __slots__ = ("_firsts", "_next", "_runs", "writers")

    def __init__(self) -> None:
        self.writers: dict[Queue, SessionWriter] = {}
        self._firsts: list[int] = []
        self._runs: list[DeliveryRun] = []
        self._next = 0

    def __len__(self) -> int:
        """Number of runs that still wait."""
        return len(self._runs)

    def runs(self) -> list[DeliveryRun]:
        """What still waits, as it is now."""
        return list(self._runs)

    def add(
        self,
        link: OutgoingLink | SessionWriter,
        handle: FragmentHandle,
        prefix: bytes,
        first_id: int,
        first_lock: int,
        number: int,
        links: list[Any] | None = None,
    ) -> None:
        """Note ``number`` deliveries from ``first_id`` on; ids only grow (RFC 1982), settled ones may lie between.

        ``links``: the link of each, where ``link`` is the session writer of several.
        """
        first = self._next + ((first_id - self._next) & _MASK)
        self._next = first + number
        self._firsts.append(first)
        self._runs.append(DeliveryRun(link, handle, prefix, first, first_lock, number, links))

    def settle(self, first_id: int, last_id: int, *, mark: bool = True) -> list[tuple[DeliveryRun, int, int, int]]:
        """Mark a disposition's range and return (run, first delivery-id, first lock, number) of each stretch.

        Ids that are unknown or were named before are passed over. ``mark``: False leaves the range to be named again,
        as a transaction does that may be rolled back.
        """
        # Ids lie behind the next one to be given: this gives positions that do not wrap.
        first = self._next - ((self._next - first_id) & _MASK)
        last = self._next - ((self._next - last_id) & _MASK)
        found: list[tuple[DeliveryRun, int, int, int]] = []
        index = max(0, bisect_right(self._firsts, first) - 1)
        while index < len(self._runs) and self._firsts[index] <= last:
            run = self._runs[index]
            start = max(0, first - run.first)
            end = min(len(run.marks), last - run.first + 1)
            if run.left < len(run.marks):
                stretches = list(run.unmarked(start, end))
            else:
                # Nothing of it was named before, as of nearly all runs.
                stretches = [(start, end - start)] if start < end else []
            for offset, number in stretches:
                if mark:
                    run.marks[offset : offset + number] = b"\x01" * number
                    run.left -= number
                found.append((run, (run.first + offset) & _MASK, run.first_lock + offset, number))
            if run.left:
                index += 1
            else:
                del self._runs[index], self._firsts[index]
        return found

    def forget(self, link: OutgoingLink) -> None:
        """Drop what was delivered on a link that is gone: no disposition can name it any more."""
        self.take(link)

    def take(self, link: OutgoingLink) -> list[tuple[int, int]]:
        """Drop what was delivered on a link; the (first, last) delivery-ids of what nobody settled."""
        ranges: list[tuple[int, int]] = []
        for run in self._runs:
            if run.link is link:
                taken = list(run.unmarked(0, len(run.marks)))
                run.left = 0
            elif run.links is not None:
                taken = run.take(link)
            else:
                continue
            ranges += [((run.first + at) & _MASK, (run.first + at + number - 1) & _MASK) for at, number in taken]
        self._runs = [run for run in self._runs if run.left]
        self._firsts = [run.first for run in self._runs]
        return ranges

    def drain(self) -> list[tuple[DeliveryRun, list[tuple[int, int]]]]:
        """Take everything: each run with the (first lock, number) ranges that nobody settled."""
        taken = [
            (run, [(run.first_lock + offset, number) for offset, number in run.unmarked(0, len(run.marks))])
            for run in self._runs
        ]
        self._runs, self._firsts = [], []
        return taken
