"""The sessions of one source, a page at a time in the order of their ids, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duobus.fragment.sessions.session import Session
    from duobus.fragment.source import Source

#: Ids of sessions that are compared in one go: half a millisecond.
IDS_AT_ONCE: Final = 5_000
#: Messages of a session of which the newest is looked for; the newest messages stand last, unless some came back.
NEWEST_AMONG: Final = 200


def ids_after(source: Source, after: str | None, limit: int) -> Iterator[list[str]]:
    """Yield the first ``limit`` ids above ``after``, ascending, as far as they are found; the last list is right.

    Between two lists others may have their turns.
    """
    sessions = source.sessions
    best: list[str] = []
    if sessions is None:
        return
    every = [*sessions.by_id, *(session_id for session_id in sessions.states if session_id not in sessions.by_id)]
    for start in range(0, len(every), IDS_AT_ONCE):
        part = every[start : start + IDS_AT_ONCE]
        if after is not None:
            part = [session_id for session_id in part if session_id > after]
        if len(best) == limit:
            last = best[-1]
            part = [session_id for session_id in part if session_id < last]
        best = nsmallest(limit, [*best, *part])
        yield best


def describe(source: Source, session_id: str) -> dict[str, Any] | None:
    """Return what is known of a session, ready for JSON; None when it has gone meanwhile."""
    sessions = source.sessions
    if sessions is None:
        return None
    session, state = sessions.by_id.get(session_id), sessions.states.get(session_id)
    if session is None and state is None:
        return None
    lock = None if session is None else session.lock
    instants = [] if state is None else [state[2]]
    if lock is not None:
        instants.append(lock.until_ms - source.settings.lock_duration_ms)
    if session is not None:
        instants += _newest(source, session)
    return {
        "session": session_id,
        "active": 0 if session is None else session.available,
        "locked": 0 if lock is None else len(lock.unsettled(source.locks)),
        "held": lock is not None,
        "lockedUntilMs": None if lock is None else lock.until_ms,
        "stateBytes": None if state is None else state[1],
        "stateSetMs": None if state is None else state[2],
        "lastActivityMs": max(instants, default=None),
    }


def _newest(source: Source, session: Session) -> list[int]:
    """When the newest available message came, as far as a short look tells."""
    found = [source.by_count.get(count) for count in session.counts[-NEWEST_AMONG:]]
    return [max(message.enqueued_ms for message in found if message is not None)] if any(found) else []
