"""Invariants of forwarding: once within a store, without repeats over stores (I14); no loop (I41).

That nothing is lost on the way is I1's, which knows where a message that was sent to a queue has to come out.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulation.checkers.facts import Facts, Violation
from simulation.history.events import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, Delivery

HOPS_EXCEEDED = "MaxTransferHopCountExceeded"


def forwarded_once(facts: Facts) -> Iterator[Violation]:
    """I14: a message is at its destination as often as it was sent, whatever crashed, while no ledger is lost."""
    yield from in_one_place(facts)
    copies: dict[tuple[str, str], dict[int, Delivery]] = {}
    for delivery in facts.deliveries:
        sent = facts.sends_of.get(delivery.uid)
        if sent and sent[0].entity != delivery.entity:
            copies.setdefault((delivery.entity, delivery.uid), {}).setdefault(delivery.seq, delivery)
    for (entity, uid), found in copies.items():
        if len(found) > max(1, facts.copies_allowed(uid)) and uid not in facts.setup.permitted_duplicates:
            yield Violation(14, f"{uid} was forwarded to {entity} {len(found)} times", *found.values())


def in_one_place(facts: Facts) -> Iterator[Violation]:
    """I14: what is a dead letter of an entity that forwards is not at its destination as well."""
    for (entity, sub_queue, _), row in facts.by_message.items():
        rules = facts.setup.rules(entity)
        if sub_queue != DEAD_LETTER or rules.copies_at is None or not rules.dead_letter_on_expiry:
            continue
        uid = row[0].uid
        places = {(one.entity, one.seq): one for one in facts.by_uid.get(uid, ()) if one.entity in rules.copies_at}
        if len(places) + 1 > max(1, facts.copies_allowed(uid)):
            yield Violation(14, f"{uid} is a dead letter of {entity}, and was forwarded", row[0], *places.values())


def hop_limit(facts: Facts) -> Iterator[Violation]:
    """I41: what goes in a circle is found in the transfer dead-letter queue, and a short chain reaches its end."""
    for delivery in facts.deliveries:
        rules = facts.setup.rules(delivery.entity)
        if delivery.subqueue == TRANSFER_DEAD_LETTER:
            if not rules.is_circle or delivery.reason != HOPS_EXCEEDED:
                yield Violation(41, f"{delivery.uid} was given up on its way: {delivery.reason}", delivery)
        elif rules.is_circle and delivery.subqueue == MAIN:
            yield Violation(41, f"{delivery.uid} came out of a circle", delivery)
    if facts.drained is None:
        return
    for begin in facts.sends:
        is_stored = facts.end(begin).ok is not None and not begin.ping
        if is_stored and facts.setup.rules(begin.entity).is_circle and begin.uid not in facts.by_uid:
            yield Violation(41, f"{begin.uid} still goes round, or is gone", begin, facts.drained)
