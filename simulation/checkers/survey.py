"""Invariants of looking and of counting (I30, I32), from what was seen of queues at rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulation.checkers.facts import Facts, Violation
from simulation.history.events import DEAD_LETTER, DEFERRED, MAIN, Delivery
from simulation.history.survey_events import Shown, Surveyed

#: What a row shows as its state.
_ACTIVE, _DEFERRED, _SCHEDULED = 0, 1, 2


def peek(facts: Facts) -> Iterator[Violation]:
    """I30: page after page shows each message that is there once, in order, and changes nothing of it."""
    for number, seen in enumerate(facts.surveys):
        rows = seen.rows
        for earlier, later in pairwise(rows):
            if earlier.subqueue == later.subqueue and later.seq <= earlier.seq:
                yield Violation(30, f"{later!r} was shown behind {earlier!r}", seen)
        if any(len(page) > seen.limit for page in seen.pages):
            yield Violation(30, f"a page has more than the {seen.limit} messages asked for", seen)
        yield from _differences(facts, seen, rows, list(seen.again), "a page for all")
        next_look = next((one for one in facts.surveys[number + 1 :] if one.entity == seen.entity), None)
        if next_look is not None:
            # A crash forgets deliveries, so the counts may differ.
            yield from _differences(facts, seen, rows, next_look.rows, "another look", counts=False)
        else:
            yield from _came_out(facts, seen, rows)


def _differences(
    facts: Facts, seen: Surveyed, first: list[Shown], second: list[Shown], what: str, *, counts: bool = True
) -> Iterator[Violation]:
    ours, theirs = ({(row.subqueue, row.seq): row for row in rows} for rows in (first, second))
    for place in sorted(ours.keys() ^ theirs.keys()):
        row = ours.get(place) or theirs[place]
        if not _may_go(facts, seen, row):
            missing = what if place in ours else "the pages"
            yield Violation(30, f"{row!r} is left out by {missing}", seen)
    for place in sorted(ours.keys() & theirs.keys()):
        row, other = ours[place], theirs[place]
        same = row.uid == other.uid and row.state == other.state
        if not same or (counts and row.deliveries != other.deliveries):
            yield Violation(30, f"{row!r} is {other!r} in {what}", seen)


def _may_go(facts: Facts, seen: Surveyed, row: Shown) -> bool:
    """Whether time alone may take a message from where it was shown, or bring it there."""
    rules = facts.setup.rules(seen.entity)
    begins = facts.sends_of.get(row.uid, ())
    has_life = rules.ttl_ms is not None or row.expires_ms is not None or any(b.ttl_ms is not None for b in begins)
    return has_life or row.state == _SCHEDULED or any(begin.scheduled_ms is not None for begin in begins)


def _came_out(facts: Facts, seen: Surveyed, rows: list[Shown]) -> Iterator[Violation]:
    """What was shown last is what the drain brings, with the counts that were shown."""
    if facts.drained is None:
        return
    shown = {(row.subqueue, row.seq): row for row in rows}
    crashed = {crash.index for crash in facts.crashes if crash.index > seen.index}
    for row in rows:
        first = _next_delivery(facts, seen, row)
        if first is None:
            if row.state == _ACTIVE and not _may_go(facts, seen, row) and not _is_gone(facts, seen, row):
                yield Violation(30, f"{row!r} was shown and did not come", seen, facts.drained)
        elif not crashed and row.state == _ACTIVE and first.delivery_count != row.deliveries + 1:
            yield Violation(30, f"a peek counted as a delivery of {row!r}", seen, first)
    for delivery in facts.deliveries:
        mine = delivery.entity == seen.entity and delivery.index > seen.index and delivery.mode != DEFERRED
        if mine and delivery.subqueue in (MAIN, DEAD_LETTER) and (delivery.subqueue, delivery.seq) not in shown:
            made_late = any(begin.scheduled_ms is not None for begin in facts.sends_of.get(delivery.uid, ()))
            if not made_late and not any(row.uid == delivery.uid for row in rows):
                yield Violation(30, f"{delivery.uid} came and was not shown", seen, delivery)


def _next_delivery(facts: Facts, seen: Surveyed, row: Shown) -> Delivery | None:
    found = facts.by_message.get((seen.entity, row.subqueue, row.seq), ())
    return next((delivery for delivery in found if delivery.index > seen.index), None)


def _is_gone(facts: Facts, seen: Surveyed, row: Shown) -> bool:
    """Whether it went where this history cannot see it, or is shown to be there still."""
    lost = (seen.entity, row.seq >> 48) in facts.setup.lost_fragments
    return lost or (facts.drained is not None and row.uid in facts.drained.retrievable)


def counters(facts: Facts) -> Iterator[Violation]:
    """I32: at rest the broker counts the messages and bytes that are there, whatever has crashed before."""
    for seen in facts.surveys:
        rows = seen.rows
        active = sum(1 for row in rows if row.state == _ACTIVE and row.subqueue == MAIN)
        dead = sum(1 for row in rows if row.state == _ACTIVE and row.subqueue == DEAD_LETTER)
        deferred = sum(1 for row in rows if row.state == _DEFERRED)
        scheduled = sum(1 for row in rows if row.state == _SCHEDULED)
        right = (active, dead, 0, deferred, scheduled)
        if seen.numbers != right:
            yield Violation(32, f"{seen.entity} has {right} messages and counts {seen.numbers}", seen)
        # Why a message is dead is laid over its bytes: what is shown of it is longer than what is stored.
        size = sum(row.size for row in rows)
        if not any(row.subqueue == DEAD_LETTER for row in rows) and seen.size != size:
            yield Violation(32, f"{seen.entity} has {size} bytes and counts {seen.size}", seen)
