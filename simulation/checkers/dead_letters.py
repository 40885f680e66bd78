"""The invariant of dead-letter queues (I23)."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.checkers.facts import Facts, Violation
from simulation.history.events import DEAD_LETTER, DEAD_LETTERED, MAIN, Delivery, Expired, SettleBegin


def dead_letter_closure(facts: Facts) -> Iterator[Violation]:
    """I23: a dead letter tells why it is one, stays until somebody takes it, and neither expires nor dies again.

    That its body is that of the message is I16's, which looks at every delivery.
    """
    for (entity, subqueue, _), row in facts.by_message.items():
        if subqueue == DEAD_LETTER:
            for delivery in row:
                yield from _reason(facts, entity, delivery)
    moved = _moved(facts)
    for notice in facts.expiries:
        event = moved.get((notice.entity, notice.seq))
        if event is not None and event is not notice and event.index < notice.index:
            yield Violation(23, f"{notice.uid} expired as a dead letter", event, notice)
    yield from _vanished(facts)


def _reason(facts: Facts, entity: str, delivery: Delivery) -> Iterator[Violation]:
    asked = _asked(facts, entity, delivery.seq)
    match delivery.reason:
        case "poison":
            if not any(not begin.management for begin in asked):
                yield Violation(23, f"nobody has dead-lettered {delivery.uid} as poison", delivery)
        case "TTLExpiredException":
            begins = facts.sends_of.get(delivery.uid, ())
            rules = facts.setup.rules(entity)
            lives = [begin.ttl_ms for begin in begins if begin.ttl_ms is not None]
            if rules.ttl_ms is None and not lives:
                yield Violation(23, f"{delivery.uid} is dead of a time to live that it does not have", delivery)
        case "MaxDeliveryCountExceeded":
            pass
        case None:
            # The management node is given no reason by these clients.
            if not any(begin.management for begin in asked):
                yield Violation(23, f"the dead letter {delivery.uid} does not say why it is one", delivery)
        case other:
            yield Violation(23, f"the dead letter {delivery.uid} has the reason {other!r}", delivery)


def _asked(facts: Facts, entity: str, seq: int) -> list[SettleBegin]:
    """Who has asked for a message to be dead-lettered, and was not refused."""
    return [
        begin
        for delivery in facts.by_message.get((entity, MAIN, seq), ())
        for begin in facts.settles_of.get(delivery.token or b"", ())
        if begin.outcome == DEAD_LETTERED and facts.end(begin).possible
    ]


def _moved(facts: Facts) -> dict[tuple[str, int], SettleBegin | Expired | Delivery]:
    """What shows first that a message is a dead letter now, by entity and number."""
    found: dict[tuple[str, int], SettleBegin | Expired | Delivery] = {}
    for begin, delivery in _dead_lettered(facts):
        found[delivery.entity, delivery.seq] = begin
    for notice in facts.expiries:
        if notice.dead_lettered and _is_durable(facts, notice):
            found.setdefault((notice.entity, notice.seq), notice)
    for (entity, subqueue, seq), row in facts.by_message.items():
        if subqueue == DEAD_LETTER:
            found.setdefault((entity, seq), min(row, key=lambda delivery: delivery.index))
    return found


def _is_durable(facts: Facts, notice: Expired) -> bool:
    """The notice is of a decision; the commit with it may have failed, and then it is decided once more."""
    return not any(crash.index > notice.index for crash in facts.crashes)


def _dead_lettered(facts: Facts) -> Iterator[tuple[SettleBegin, Delivery]]:
    for begin in facts.settles:
        delivery = facts.by_token.get(begin.token)
        if begin.outcome != DEAD_LETTERED or delivery is None or delivery.subqueue != MAIN:
            continue
        if facts.end(begin).ok is not None:
            yield begin, delivery


def _vanished(facts: Facts) -> Iterator[Violation]:
    """At drain, what was dead-lettered came out of the dead-letter queue, or from where that one is forwarded to."""
    if facts.drained is None:
        return
    for begin, delivery in _dead_lettered(facts):
        entity, seq = delivery.entity, delivery.seq
        if facts.by_message.get((entity, DEAD_LETTER, seq)) or facts.setup.rules(entity).dead_letters_at is not None:
            continue
        if (entity, delivery.fragment) not in facts.setup.lost_fragments and not begin.transaction:
            yield Violation(23, f"the dead letter {delivery.uid} has vanished", begin, facts.drained)
