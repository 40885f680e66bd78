"""Messages that have run out of life, found by order for the entity's default and by index for their own time."""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING

from duobus.fragment import doubts
from duobus.fragment.message import ACTIVE, GONE, MAIN, kind_of

if TYPE_CHECKING:
    from duobus.fragment.commands import Housekeeping
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source


def expire(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Collect what has run out of life; locked messages do not."""
    default_ttl = source.settings.default_ttl_ms
    ready = source.sub_queues[MAIN].ready
    if default_ttl is not None:
        while ready and (ready[0].state == GONE or ready[0].enqueued_ms + default_ttl <= now_ms):
            if source.settings.forwards and ready[0].state != GONE and doubts.holds(source, ready[0].count):
                # Its lane takes it from here soon.
                break
            slot = ready.popleft()
            if slot.state == GONE:
                source.sub_queues[MAIN].stale -= 1
            else:
                # One with a life of its own stands in the index below, too, and must not expire twice.
                slot.expires_ms = 0
                keeping.expired.append(slot)
        if ready:
            due_ms = ready[0].enqueued_ms + default_ttl
            fragment.due_at(due_ms if due_ms > now_ms else now_ms + doubts.LOOK_MS)
    _expire_own(fragment, source, now_ms, keeping)


def _expire_own(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Those with a time to live of their own, and those that left the order of the others."""
    expiring = source.expiring
    while expiring and expiring[0][0] <= now_ms:
        expires_ms, count = heappop(expiring)
        found = source.by_count.get(count)
        # A locked message does not expire under its holder (I22); its return looks at the time again.
        if found is None:
            if source.is_cold(count) and not (source.settings.forwards and doubts.holds(source, count)):
                source.cold_due.append(count)
            continue
        if found.expires_ms != expires_ms:
            continue
        # The entry is used up; a message that was paged in may stand here twice, and must not expire twice.
        found.expires_ms = 0
        if found.lock:
            continue
        if source.settings.forwards and kind_of(found.state) == ACTIVE and doubts.holds(source, count):
            continue
        # Only what stands in a list of the main sub-queue has to leave it.
        keeping.expired.append(source.withdraw(found) if kind_of(found.state) == ACTIVE else found)
    if expiring:
        fragment.due_at(expiring[0][0])
