"""Redelivery later: what an abandoned message waits, by its entity's back-off policy or by the word of its receiver.

Both are extensions, off by default. Only an abandon delays: there a receiver says "not now". A message whose lock
ended or whose connection went is given to somebody else at once (I19, I20).

The instant is kept in the record that an abandon writes anyway, so it costs nothing to let it survive a restart. If
it were lost, everything that was put off would come back at once, when whatever it was put off for is weakest.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, ServiceBusError
from duobus.fragment import forward_dedup
from duobus.fragment.message import ACTIVE, DELAYED, GONE, MAIN, RESERVED, QueuedMessage, kind_of, state_of
from duobus.fragment.paged_tail import effective_ttl
from duobus.model.descriptions import REDELIVERY_DELAY_MS_MAX
from duobus.model.metadata import own

if TYPE_CHECKING:
    from duobus.fragment.commands import Housekeeping, SettleDetail
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source, SourceSettings

#: Property of an abandon that says for how many ms the message is not to come back.
DELAY_PROPERTY = "duobus:redelivery-delay"

_ACTIVE = state_of(MAIN, ACTIVE)


def back_off_ms(first_ms: int, longest_ms: int, deliveries: int) -> int:
    """The delay after so many deliveries: the first, doubled with each further one, up to the longest."""
    # Beyond 2**40 every delay is the longest; a count of millions must not make a number of a million digits.
    return min(longest_ms, first_ms << min(deliveries - 1, 40))


def fault(settings: SourceSettings, detail: SettleDetail | None) -> ServiceBusError | None:
    """Why the delay that an abandon asks for cannot be, or None."""
    if not settings.delayed_abandon or detail is None or not detail.properties:
        return None
    asked = detail.properties.get(DELAY_PROPERTY, 0)
    if not isinstance(asked, (int, float)) or isinstance(asked, bool):
        return ArgumentInvalid(f"'{DELAY_PROPERTY}' must be a number of ms.")
    if not 0 <= asked <= REDELIVERY_DELAY_MS_MAX:
        return ArgumentOutOfRange(f"'{DELAY_PROPERTY}' is {asked}; it must be from 0 to {REDELIVERY_DELAY_MS_MAX} ms.")
    return None


def without_delay(settings: SourceSettings, properties: dict[str, Any]) -> dict[str, Any]:
    """The properties of an abandon that are meant for the message."""
    if settings.delayed_abandon and DELAY_PROPERTY in properties:
        return {key: value for key, value in properties.items() if key != DELAY_PROPERTY}
    return properties


def put_off(source: Source, slot: QueuedMessage, detail: SettleDetail | None, now_ms: int) -> None:
    """Note on an abandoned message until when it stays away; its delivery is counted already."""
    settings = source.settings
    if slot.state != _ACTIVE or not (settings.redelivery_delay_ms or settings.delayed_abandon):
        return
    delay = 0
    if settings.redelivery_delay_ms:
        delay = back_off_ms(settings.redelivery_delay_ms, settings.redelivery_delay_maximum_ms, slot.deliveries)
    if settings.delayed_abandon and detail is not None and detail.properties:
        # What the receiver says counts, also when it says "at once".
        delay = int(detail.properties.get(DELAY_PROPERTY, delay))
    if delay > 0:
        special = slot.special = own(slot.special)
        special.redeliver_at_ms = now_ms + delay


def park(fragment: Fragment, source: Source, slot: QueuedMessage) -> None:
    """Keep a message away until its instant."""
    assert slot.special is not None
    at_ms = slot.special.redeliver_at_ms
    assert at_ms is not None
    life = effective_ttl(slot.special.ttl_ms, source.settings.default_ttl_ms)
    if life is not None:
        # It is not away for longer than it lives.
        at_ms = min(at_ms, slot.enqueued_ms + life)
    slot.lock = DELAYED
    heappush(source.delayed, (at_ms, slot.count))
    fragment.due_at(at_ms)


def wake(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Make those available whose instant has come; one that has run out of life meanwhile expires."""
    delayed = source.delayed
    while delayed and delayed[0][0] <= now_ms:
        _, count = heappop(delayed)
        slot = source.by_count.get(count)
        if slot is None or slot.lock != DELAYED or slot.special is None:
            continue
        slot.special.redeliver_at_ms = None
        slot.lock = 0
        if fragment.lapsed(source, slot, now_ms):
            slot.lock = RESERVED
            keeping.expired.append(slot)
        else:
            fragment.place(source, slot, in_order=False)
    if delayed:
        fragment.due_at(delayed[0][0])


# Messages that have run out of life, found by order for the entity's default and by index for their own time.


def expire(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Collect what has run out of life; locked messages do not."""
    default_ttl = source.settings.default_ttl_ms
    ready = source.sub_queues[MAIN].ready
    if default_ttl is not None:
        while ready and (ready[0].state == GONE or ready[0].enqueued_ms + default_ttl <= now_ms):
            if (
                source.settings.forwards
                and ready[0].state != GONE
                and forward_dedup.is_in_doubt(source, ready[0].count)
            ):
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
            fragment.due_at(due_ms if due_ms > now_ms else now_ms + forward_dedup.LOOK_MS)
    _expire_own(fragment, source, now_ms, keeping)


def _expire_own(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Those with a time to live of their own, and those that left the order of the others."""
    expiring = source.expiring
    while expiring and expiring[0][0] <= now_ms:
        expires_ms, count = heappop(expiring)
        found = source.by_count.get(count)
        # A locked message does not expire under its holder (I22); its return looks at the time again.
        if found is None:
            if source.is_cold(count) and not (source.settings.forwards and forward_dedup.is_in_doubt(source, count)):
                source.cold_due.append(count)
            continue
        if found.expires_ms != expires_ms:
            continue
        # The entry is used up; a message that was paged in may stand here twice, and must not expire twice.
        found.expires_ms = 0
        if found.lock:
            continue
        if source.settings.forwards and kind_of(found.state) == ACTIVE and forward_dedup.is_in_doubt(source, count):
            continue
        # Only what stands in a list of the main sub-queue has to leave it.
        keeping.expired.append(source.withdraw(found) if kind_of(found.state) == ACTIVE else found)
    if expiring:
        fragment.due_at(expiring[0][0])
