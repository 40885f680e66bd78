"""What one turn brings for many sessions at once: new messages in, and a holder's share out, in one pass over all.

With thousands of sessions a turn has one or two messages for each, so whatever is done once for each session costs
nearly as much as what is done for each message.
"""

from __future__ import annotations

from heapq import heappop
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from duobus.fragment.message import ACTIVE, QueuedMessage
from duobus.fragment.sessions.sessions import Session, SessionLock, id_of, sessions_of, tell_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source

_SESSION_ID: Final = attrgetter("metadata.session_id")


def place_new(fragment: Fragment, source: Source, messages: list[QueuedMessage]) -> None:
    """Make new messages available in their sessions; their counts are above all that are there, and ascend."""
    by_id = sessions_of(source).by_id
    find = by_id.get
    notified = fragment.notified
    # Looked up one after the other, so that a session which one of them makes is there for the next.
    for message, session in zip(messages, map(find, map(_SESSION_ID, messages)), strict=True):
        if session is None:
            session_id = id_of(message)
            session = by_id[session_id] = Session(session_id)
        # Above all others, so the heap stays one.
        session.counts.append(message.count)
        session.available += 1
        lock = session.lock
        if lock is None:
            # One that stands in the heap of free sessions stands there by an older message.
            if not session.listed or session.available == 1:
                tell_of(fragment, source, session)
        elif not lock.is_notified and not session.returning:
            lock.is_notified = True
            notified.append(lock)


def take_for_sessions(
    fragment: Fragment, source: Source, asked: Sequence[tuple[SessionLock, int, int]]
) -> tuple[int, list[QueuedMessage]]:
    """Lock so many messages of each of these sessions for its holder, as ``sessions.take`` does for one.

    Args:
        fragment: Where they are.
        source: The same.
        asked: (lock, number of messages, when the lock ends), no lock twice; each has that many available.

    Returns:
        The first lock counter, and the messages of all, whose counters follow by one.
    """
    first = fragment.next_lock
    # Each number is one object, wherever it is kept.
    numbers = list(range(first, first + sum([left for _, left, _ in asked])))
    at = 0
    # Counts of the messages; what can be done for all of them at once is done behind the loop.
    taken: list[int] = []
    locks, found = source.locks, source.by_count
    for lock, left, _ in asked:
        session = lock.session
        counts, held = session.counts, lock.held
        if len(held) >= lock.held_max:
            held = lock.unsettled(locks)
        if left == 1:
            held.append(numbers[at])
        else:
            held += numbers[at : at + left]
        at += left
        if left == session.available == len(counts):
            # All of it, and nothing outdated: most often one message.
            session.available = 0
            if left > 1:
                counts.sort()
            taken += counts
            counts.clear()
            continue
        session.available -= left
        while left:
            count = heappop(counts)
            other = found.get(count)
            if other is None or other.state != ACTIVE or other.lock:
                continue
            taken.append(count)
            left -= 1
        if counts and not session.available:
            counts.clear()
    messages = list(map(found.__getitem__, taken))
    for message, number in zip(messages, numbers, strict=True):
        message.lock = number
    locks.update(zip(numbers, messages, strict=True))
    fragment.next_lock = first + at
    source.firsts.note(source, messages)
    return first, messages
