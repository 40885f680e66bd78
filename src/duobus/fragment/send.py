"""New messages on their way in: which way, and what is done for those with something rare.

Most of those that are rare have a session and nothing else.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

from duobus.fragment import admission, reserving
from duobus.fragment.message import MAIN, SCHEDULED, TRANSFER, Slot, stored_state
from duobus.fragment.sessions.delivery_batches import place_new
from duobus.fragment.topics import fanout
from duobus.model.metadata import Special, encoded_all

if TYPE_CHECKING:
    from duobus.errors import ServiceBusError
    from duobus.fragment.commands import Run
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.storage.interface import CommitBatch, Put


def check(fragment: Fragment, source: Source, run: Run, now_ms: int) -> ServiceBusError | None:
    """Say why a run cannot be taken in, or None."""
    topic = fragment.topic
    if isinstance(run, reserving.ReservedRun):
        return reserving.check(source, run, now_ms, 0 if topic is None else topic.bytes)
    if topic is not None:
        return fanout.check(fragment, topic, run, now_ms)
    return admission.check(source, run, now_ms)


def take_in(fragment: Fragment, source: Source, run: Run, now_ms: int, commit: CommitBatch) -> None:
    """Take a checked run in."""
    if isinstance(run, reserving.ReservedRun):
        reserving.apply(source, run, now_ms, commit)
        fragment.note_history(source)
    elif fragment.topic is None:
        fragment.apply_run(source, run, now_ms, commit)
    else:
        fanout.publish(fragment, fragment.topic, run, now_ms, commit)


def with_specials(source: Source, run: Run, indices: list[int] | None, now_ms: int, put: Put) -> None:
    """Attach the specials of a batch to the run's slots, count them, and give the store its form of them."""
    every = run.batch.sessions
    if every is not None:
        found = every if indices is None else [every[index] for index in indices]
        for slot, special in zip(run.slots, found, strict=True):
            slot.special = special
        put.equal_specials = encoded_all(found)
        source.numbers[MAIN] += len(run.slots)
        return
    put.specials = _mixed(run.batch.extra or {}, run, indices, now_ms)
    for slot in run.slots:
        source.counted(slot.state, 1)


def _mixed(
    extra: dict[int, Special], run: Run, indices: list[int] | None, now_ms: int
) -> dict[int, tuple[int, int, bytes | None]]:
    """By position in the run."""
    specials: dict[int, tuple[int, int, bytes | None]] = {}
    for position, index in enumerate(range(run.batch.n) if indices is None else indices):
        special = extra.get(index)
        if special is None:
            continue
        slot = run.slots[position]
        slot.special = special
        if special.way is not None and special.way.to is not None:
            slot.state = TRANSFER
        # A past or present time: enqueue at once (contract 13.1).
        elif special.scheduled_ms is not None and special.scheduled_ms > now_ms:
            slot.state = SCHEDULED
        specials[position] = (stored_state(slot.state, special), 0, special.encode())
    return specials


def into_sessions(fragment: Fragment, source: Source, slots: list[Slot], size: int) -> None:
    """Make new messages available that have a session and nothing else: ``Fragment.place`` for all of them."""
    first = slots[0].count
    source.by_count.update(zip(range(first, first + len(slots)), slots, strict=True))
    source.resident_bytes += size
    life = source.settings.default_ttl_ms
    if life is not None:
        # ``Fragment.index_expiry``: they leave the order of the others, and came at the same time.
        expires_ms = slots[0].enqueued_ms + life
        expiring = source.expiring
        for slot in slots:
            slot.expires_ms = expires_ms
            heappush(expiring, (expires_ms, slot.count))
        fragment.due_at(expires_ms)
    place_new(fragment, source, slots)
