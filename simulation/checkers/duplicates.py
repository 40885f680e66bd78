"""The invariant of duplicate detection (I5)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulation.checkers.facts import Facts, Violation
from simulation.history.events import MAIN, Admitted, Delivery


def duplicate_window(facts: Facts) -> Iterator[Violation]:
    """I5: of the sends with one id within the window exactly one is stored; at its edge a new copy is."""
    for (entity, uid, _), row in facts.admitted.items():
        window_ms = facts.setup.rules(entity).window_ms
        if window_ms is None:
            continue
        row = sorted(row, key=lambda event: (event.broker_ms, not event.stored))
        yield from _stored_twice(row, uid, window_ms)
        yield from _dropped_alone(facts, row, uid, window_ms)
    yield from _delivered_twice(facts)


def _stored_twice(row: list[Admitted], uid: str, window_ms: int) -> Iterator[Violation]:
    stored = [event for event in row if event.stored]
    for earlier, later in pairwise(stored):
        if later.broker_ms - earlier.broker_ms < window_ms:
            yield Violation(5, f"{uid} was stored twice within {window_ms} ms", earlier, later)


def _dropped_alone(facts: Facts, row: list[Admitted], uid: str, window_ms: int) -> Iterator[Violation]:
    """A dropped one needs an original. One whose commit nobody saw may be it: then a send had no answer."""
    if any(facts.end(begin).ok is None for begin in facts.sends_of.get(uid, ())):
        return
    for event in row:
        began_ms = event.broker_ms - window_ms
        known = any(other.stored and began_ms < other.broker_ms <= event.broker_ms for other in row)
        if not event.stored and not known:
            yield Violation(5, f"{uid} was dropped and nothing like it had come for {window_ms} ms", event)


def _delivered_twice(facts: Facts) -> Iterator[Violation]:
    """The same from what clients see, which holds for commits that were durable and never answered, too."""
    copies: dict[tuple[str, str, str | None], dict[int, Delivery]] = {}
    for delivery in facts.deliveries:
        begins = facts.sends_of.get(delivery.uid)
        # The time of enqueuing is that of the acceptance only where nothing was scheduled or has moved.
        if not begins or delivery.subqueue != MAIN or any(begin.scheduled_ms is not None for begin in begins):
            continue
        copies.setdefault((delivery.entity, delivery.uid, begins[0].key), {}).setdefault(delivery.seq, delivery)
    for (entity, uid, _), found in copies.items():
        window_ms = facts.setup.rules(entity).window_ms
        if window_ms is None:
            continue
        row = sorted(found.values(), key=lambda delivery: delivery.enqueued_ms or 0)
        for earlier, later in pairwise(row):
            if (later.enqueued_ms or 0) - (earlier.enqueued_ms or 0) < window_ms:
                yield Violation(5, f"{uid} is two messages within {window_ms} ms", earlier, later)
