"""The locks of one source, a page at a time: of messages in the order in which they were given out, and of sessions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from duobus.fragment.message import MAIN, QueuedMessage, sub_queue_of

if TYPE_CHECKING:
    from duobus.fragment.sessions.session import SessionLock
    from duobus.fragment.source import Source

#: Counters of locks that are tried in one go: a third of a millisecond.
COUNTERS_AT_ONCE: Final = 5_000
#: Where so many counters were given out for each lock that is left, the locks themselves are gone through.
SPARSE: Final = 50
#: Notes of ends of locks that are looked at in one go: a third of a millisecond.
ENDS_AT_ONCE: Final = 2_000


def locked_messages(source: Source, after: int, limit: int) -> Iterator[list[tuple[int, QueuedMessage]]]:
    """Yield (lock counter, message) of the first ``limit`` locks with counters above ``after``, ascending.

    They are yielded as far as they are found, and the last list is right: in between others may have their turns.
    """
    locks = source.locks
    found: list[tuple[int, QueuedMessage]] = []
    yield found
    if not locks:
        return
    # Counters only grow, and so does the order in which the locks stand here.
    first, last = max(after + 1, next(iter(locks))), next(reversed(locks))
    if last - first > SPARSE * len(locks):
        counters = list(locks)
        start = bisect_right(counters, after)
        yield [(counter, locks[counter]) for counter in counters[start : start + limit]]
        return
    for start in range(first, last + 1, COUNTERS_AT_ONCE):
        for counter in range(start, min(start + COUNTERS_AT_ONCE, last + 1)):
            message = locks.get(counter)
            if message is not None:
                found.append((counter, message))
                if len(found) >= limit:
                    yield found
                    return
        yield found


def held_sessions(source: Source, after: int, limit: int) -> list[SessionLock]:
    """Return the first ``limit`` locks of sessions with numbers above ``after``, ascending."""
    if source.sessions is None:
        return []
    # A session that is held again after its grace has its old number behind later ones.
    numbers = sorted(source.sessions.locks)
    start = bisect_right(numbers, after)
    return [source.sessions.locks[number] for number in numbers[start : start + limit]]


def lock_of_session(source: Source, message: QueuedMessage) -> SessionLock | None:
    """Return the lock of a session under which a message is locked; None when the message has a lock of its own."""
    if source.sessions is None or sub_queue_of(message.state) != MAIN or message.metadata is None:
        return None
    session = source.sessions.by_id.get(message.metadata.session_id or "")
    return None if session is None else session.lock


def note_ends(source: Source, counters: Sequence[int], found: dict[int, tuple[int, int]]) -> Iterator[int]:
    """Put (beginning, or last renewal, and end) of these locks of messages, which ascend, into ``found``.

    Yields how many notes were looked at, so that others may have their turns.
    """
    if not counters:
        return
    lowest, highest = counters[0], counters[-1]
    for duration_ms, ends in list(source.ends.items()):
        notes = list(ends)
        for start in range(0, len(notes), ENDS_AT_ONCE):
            part = notes[start : start + ENDS_AT_ONCE]
            for until_ms, first, number in part:
                if first > highest or first + number <= lowest:
                    continue
                index = bisect_left(counters, first)
                while index < len(counters) and counters[index] < first + number:
                    counter = counters[index]
                    if counter not in found or found[counter][1] < until_ms:
                        found[counter] = until_ms - duration_ms, until_ms
                    index += 1
            yield len(part)
