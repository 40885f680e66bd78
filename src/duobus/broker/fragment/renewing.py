"""Renewal of locks inside a fragment: it needs no commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duobus.broker.fragment.slot import MAIN, sub_queue_of

if TYPE_CHECKING:
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.fragment.source import Source


def renew(fragment: Fragment, source: Source, locks: Sequence[int], now_ms: int) -> int | None:
    """See ``Fragment.renew``."""
    held = source.singly([(lock, 1) for lock in locks])
    if not all(lock in held for lock in locks) or _any_in_session(source, locks):
        return None
    duration = source.settings.lock_duration_ms
    until_ms = now_ms + duration
    for lock in locks:
        source.renewed[lock] = until_ms
        fragment.lock_ends(source, duration, until_ms, lock, 1)
    return until_ms


def _any_in_session(source: Source, locks: Sequence[int]) -> bool:
    """Whether one of these locks lasts as long as its session's, which alone can be renewed (contract 11.5)."""
    return source.sessions is not None and any(sub_queue_of(source.locks[lock].state) == MAIN for lock in locks)
