"""Stretches: messages of a deep backlog that stay in the columns in which they were read (design 3.9, decision 0013).

An ordinary message that is received and completed in its turn is never looked at singly, so no slot is made for it:
what is handed out, locked, completed and forgotten is a stretch.

    cold tail ──▶ SubQueue.ready ──lock──▶ Source.held ──complete──▶ Source.leaving ──durable──▶ gone
                        │                      │
                        └─── Source.by_count ──┘     slots, for whoever needs a message singly

Whoever does (abandon, defer, dead-letter, release, renewal, the end of a lock, receive-and-delete, forwarding, expiry,
purge) has slots made first, of those messages alone, and goes on as if there had never been a stretch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, overload

from duobus.broker.fragment.slot import MAIN, RESERVED, Slot

if TYPE_CHECKING:
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.fragment.source import Source
    from duobus.stores.interface import CommitBatch

#: Messages of a stretch at most: to make slots of as many takes some 0.3 ms.
STRETCH_MAX: Final = 1024


class Stretch:
    """Ordinary messages with consecutive counts: available in the main sub-queue, or locked for the first time.

    None of them was ever delivered before, and none has anything rare. For a reader it is a sequence of slots, which
    are made as they are asked for and are nobody's.

    Attributes:
        count: Of the first message; the others follow by one.
        times: Broker time of the acceptance of each.
        payloads: The bare messages.
        each: Bytes of every payload when they are all of one size, else -1: to ask each of them for its own means to
            fetch it from memory once more.
        first_lock: Lock counter of the first, once they are locked; the others follow by one.
    """

    __slots__ = ("count", "each", "first_lock", "payloads", "times")

    def __init__(
        self, count: int, times: list[int], payloads: list[bytes], each: int = -1, first_lock: int = 0
    ) -> None:
        self.count = count
        self.times = times
        self.payloads = payloads
        self.each = each
        self.first_lock = first_lock

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> Slot: ...
    @overload
    def __getitem__(self, index: slice) -> Stretch: ...
    def __getitem__(self, index: int | slice) -> Slot | Stretch:
        if isinstance(index, slice):
            start, end, _ = index.indices(len(self.payloads))
            return self.cut(start, end)
        return Slot(self.count + index, self.payloads[index], self.times[index])

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots())

    @property
    def enqueued_ms(self) -> int:
        """Broker time of the acceptance of the first."""
        return self.times[0]

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return self.size_of(0, len(self.payloads))

    def size_of(self, start: int, end: int) -> int:
        """Bytes of the payloads from one index to another."""
        return self.each * (end - start) if self.each >= 0 else sum(map(len, self.payloads[start:end]))

    def cut(self, start: int, end: int) -> Stretch:
        """A stretch of the messages from one index to another."""
        times, payloads = self.times[start:end], self.payloads[start:end]
        return Stretch(self.count + start, times, payloads, self.each, self.first_lock + start)

    def take(self, number: int) -> Stretch:
        """Take so many messages off the beginning."""
        taken = self.cut(0, number)
        del self.payloads[:number], self.times[:number]
        self.count += number
        return taken

    def slots(self) -> list[Slot]:
        """A slot for each message, not locked."""
        return list(map(Slot, range(self.count, self.count + len(self.payloads)), self.payloads, self.times))


class Held:
    """The locked stretches of a source, in order of their locks.

    Attributes:
        number: Messages in them.
    """

    __slots__ = ("_firsts", "_stretches", "number")

    def __init__(self) -> None:
        self.number = 0
        self._firsts: list[int] = []
        self._stretches: list[Stretch] = []

    def add(self, stretch: Stretch) -> None:
        """Hold a stretch whose locks are the latest."""
        self._firsts.append(stretch.first_lock)
        self._stretches.append(stretch)
        self.number += len(stretch)

    def all(self) -> list[Stretch]:
        """Every one of them."""
        return list(self._stretches)

    def overlaps(self, first: int, number: int) -> bool:
        """Whether one of these locks is here."""
        index = self._at(first)
        return index < len(self._firsts) and self._firsts[index] < first + number

    def take(self, first: int, number: int) -> list[Stretch]:
        """Take out whatever has one of these locks, and leave what is before and behind."""
        found: list[Stretch] = []
        firsts, stretches = self._firsts, self._stretches
        end = first + number
        index = self._at(first)
        while index < len(firsts) and firsts[index] < end:
            stretch = stretches[index]
            length = len(stretch)
            start, stop = max(0, first - stretch.first_lock), min(length, end - stretch.first_lock)
            rest = []
            if start > 0:
                rest.append(stretch.cut(0, start))
            if stop < length:
                rest.append(stretch.cut(stop, length))
            found.append(stretch.cut(start, stop) if rest else stretch)
            stretches[index : index + 1] = rest
            firsts[index : index + 1] = [part.first_lock for part in rest]
            self.number -= stop - start
            index += len(rest)
        return found

    def _at(self, lock: int) -> int:
        """Index of the first stretch that ends behind a lock."""
        index = bisect_right(self._firsts, lock) - 1
        if index >= 0 and lock < self._firsts[index] + len(self._stretches[index]):
            return index
        return index + 1


class Finder:
    """Finds single messages in the stretches of a source, for who only looks; it sees them as they are now."""

    __slots__ = ("_firsts", "_found", "number")

    def __init__(self, source: Source) -> None:
        found = [(stretch.count, 0, stretch) for stretch in source.sub_queues[MAIN].resting()]
        found += [(stretch.count, 1, stretch) for stretch in source.held.all()]
        found += [(stretch.count, RESERVED, stretch) for stretch in source.leaving.values()]
        found.sort(key=_first_of)
        self._found = found
        self._firsts = [entry[0] for entry in found]
        self.number = sum([len(entry[2]) for entry in found])

    def find(self, count: int) -> Slot | None:
        """A slot for a message, which is the caller's; None when it is in no stretch."""
        index = bisect_right(self._firsts, count) - 1
        if index < 0:
            return None
        first, lock, stretch = self._found[index]
        if count - first >= len(stretch):
            return None
        slot = stretch[count - first]
        slot.lock = stretch.first_lock + count - first if lock > 0 else lock
        return slot

    def next_count(self, first: int, end: int) -> int:
        """The lowest count of a message from ``first`` on; ``end`` when there is none before that."""
        index = max(0, bisect_right(self._firsts, first) - 1)
        for start, _, stretch in self._found[index:]:
            if start + len(stretch) > first:
                return min(end, max(first, start))
        return end

    def counts(self, first: int, end: int) -> list[int]:
        """The counts of all messages between these two."""
        return [
            count
            for _, _, stretch in self._found
            for count in range(max(first, stretch.count), min(end, stretch.count + len(stretch)))
        ]


def _first_of(entry: tuple[int, int, Stretch]) -> int:
    return entry[0]


def lock(fragment: Fragment, source: Source, stretch: Stretch, now_ms: int) -> tuple[int, Stretch, int]:
    """Lock what was taken off the main sub-queue; see ``Fragment.lock``."""
    number = len(stretch)
    first = stretch.first_lock = fragment.next_lock
    fragment.next_lock = first + number
    source.held.add(stretch)
    duration = source.settings.lock_duration_ms
    fragment.lock_ends(source, duration, now_ms + duration, first, number)
    last = stretch.count + number - 1
    if last > source.highest_delivered:
        source.highest_delivered = last
        fragment.dirty.add(source.source_no)
    return first, stretch, now_ms + duration


def claim(source: Source, first: int, number: int, found: list[Stretch]) -> list[int]:
    """Take the stretches with these locks out of them, into ``found``; returns the locks that no stretch has."""
    taken = source.held.take(first, number)
    found += taken
    if sum([len(stretch) for stretch in taken]) == number:
        return []
    covered = {lock for stretch in taken for lock in range(stretch.first_lock, stretch.first_lock + len(stretch))}
    return [lock for lock in range(first, first + number) if lock not in covered]


def complete(source: Source, stretches: list[Stretch], commit: CommitBatch) -> None:
    """Write down the removal of claimed stretches."""
    for stretch in stretches:
        number = len(stretch)
        source.numbers[MAIN] -= number
        source.bytes -= stretch.size
        # Until it is durable whoever browses still sees them (I30).
        source.leaving[stretch.count] = stretch
        commit.removed.append((source.source_key, stretch.count, stretch.count + number - 1))


def forget(source: Source, stretches: list[Stretch]) -> None:
    """Their removal is durable."""
    for stretch in stretches:
        del source.leaving[stretch.count]
        source.resident_bytes -= stretch.size
