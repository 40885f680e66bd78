"""Invariants of messages: none lost, invented, altered, repeated, early or late (I1, I7, I11, I13, I15, I16, I22)."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.checkers.facts import FINAL, EntityRules, Facts, Violation, accepted_by
from simulation.history.events import (
    ACTIVE,
    DEAD_LETTER,
    MAIN,
    RECEIVE_AND_DELETE,
    Delivery,
    Drained,
    Expired,
    NumberTold,
    Peeked,
    SendBegin,
)


def no_acknowledged_loss(facts: Facts) -> Iterator[Violation]:
    """I1: at drain, every message whose send ended ok was delivered, or is retrievable, or went by a rule."""
    drained = facts.drained
    if drained is None:
        return
    excused = drained.retrievable | facts.setup.purged | cancelled(facts)
    excused |= {notice.uid for notice in facts.quarantined if notice.uid is not None}
    for begin in facts.sends:
        if facts.end(begin).ok is None or begin.ping or begin.uid in excused or _on_lost_fragment(facts, begin):
            continue
        seen = {d.entity for d in facts.by_uid.get(begin.uid, ())}
        for entity in facts.setup.rules(begin.entity).copies_at or (begin.entity,):
            if entity in seen or _gone_by_expiry(facts, begin, entity, drained):
                continue
            if not any(rules.dead_letter_on_expiry and path in seen for path, rules in _on_the_way(facts, begin)):
                yield Violation(1, f"{begin.uid} was acknowledged and never came out of {entity}", begin, drained)
    yield from _vanished_while_locked(facts, drained, excused)


def _vanished_while_locked(facts: Facts, drained: Drained, excused: frozenset[str] | set[str]) -> Iterator[Violation]:
    """A drain ends every message; one whose last delivery nobody can have ended should have come again."""
    last_of: dict[tuple[str, int], Delivery] = {}
    for row in facts.by_message.values():
        known = last_of.get((row[-1].entity, row[-1].seq))
        if known is None or known.broker_ms <= row[-1].broker_ms:
            last_of[row[-1].entity, row[-1].seq] = row[-1]
    for last in last_of.values():
        settles = facts.settles_of.get(last.token or b"", ())
        ended = any(s.outcome in FINAL and facts.end(s).possible for s in settles)
        lost = (last.entity, last.fragment) in facts.setup.lost_fragments
        if last.mode == RECEIVE_AND_DELETE or ended or lost or last.uid in excused:
            continue
        dead_letters = facts.setup.rules(last.entity).dead_letters_at
        if dead_letters is not None and any(delivery.entity == dead_letters for delivery in facts.by_uid[last.uid]):
            # It was delivered too often, and went on from the dead-letter queue.
            continue
        sent = facts.sends_of.get(last.uid)
        if sent and not (last.subqueue == MAIN and _gone_by_expiry(facts, sent[0], last.entity, drained)):
            yield Violation(1, f"{last.uid} was never removed and did not come again", last, drained)


def cancelled(facts: Facts) -> set[str]:
    """Return the uids of scheduled messages whose cancellation had or may have had its effect."""
    uid_of = _scheduled_uids(facts)
    found = {(cancel.entity, cancel.seq) for cancel in facts.cancels if facts.end(cancel).possible}
    return {uid_of[place] for place in found if place in uid_of}


def _scheduled_uids(facts: Facts) -> dict[tuple[str, int], str]:
    answers = ((begin, facts.end(begin).ok) for begin in facts.sends)
    return {(begin.entity, ok.seq): begin.uid for begin, ok in answers if ok is not None and ok.seq is not None}


def _on_lost_fragment(facts: Facts, begin: SendBegin) -> bool:
    """Tell whether the message may have been in a fragment that was destroyed."""
    lost = {fragment for entity, fragment in facts.setup.lost_fragments if entity == begin.entity}
    return bool(lost) and (begin.fragment is None or begin.fragment in lost)


def _gone_by_expiry(facts: Facts, begin: SendBegin, entity: str, drained: Drained) -> bool:
    """Tell whether the message may have expired unseen before the drain ended."""
    rules = facts.setup.rules(entity)
    # Every entity on the way cuts the life of what it forwards.
    lives = begin.ttl_ms, rules.ttl_ms, *(other.ttl_ms for _, other in _on_the_way(facts, begin))
    ttl = min((life for life in lives if life is not None), default=None)
    # Broker time may run 1/400 fast while it is slewed; 1 % is far from any ttl that a test means.
    return ttl is not None and not rules.dead_letter_on_expiry and (drained.at_ms - begin.at_ms) * 1.01 >= ttl


def _on_the_way(facts: Facts, begin: SendBegin) -> list[tuple[str, EntityRules]]:
    """The entities that a message passes which comes out elsewhere: those with the same end."""
    ends = facts.setup.rules(begin.entity).copies_at
    return [] if ends is None else [one for one in facts.setup.entities.items() if one[1].copies_at == ends]


def sequence_numbers(facts: Facts) -> Iterator[Violation]:
    """I7: unique per entity, of an existing fragment, and rising in the order in which a fragment accepts."""
    first_with: dict[tuple[str, int], Delivery] = {}
    for delivery in facts.deliveries:
        other = first_with.setdefault((delivery.entity, delivery.seq), delivery)
        if other.uid != delivery.uid:
            yield Violation(7, f"{delivery.seq} of {delivery.entity} is two messages", other, delivery)
        fragments = facts.setup.rules(delivery.entity).fragments
        if fragments is not None and delivery.fragment not in fragments:
            yield Violation(7, f"{delivery.seq} of {delivery.entity} names no fragment of it", delivery)
    yield from _numbers_told(facts)
    yield from _sequence_order(facts)


def _numbers_told(facts: Facts) -> Iterator[Violation]:
    """A number that was told is nobody else's, even when its message was never stored."""
    told: dict[tuple[str, int], NumberTold] = {}
    for one in facts.numbers_told:
        if told.setdefault((one.entity, one.seq), one) is not one:
            yield Violation(7, f"{one.seq} of {one.entity} was told twice", told[one.entity, one.seq], one)
    seen: list[Delivery | Peeked] = [*facts.peeks, *facts.deliveries]
    for shown in seen:
        mine = told.get((shown.entity, shown.seq))
        if mine is not None and mine.uid != shown.uid:
            yield Violation(7, f"{shown.seq} of {shown.entity} was told for {mine.uid}", mine, shown)


def _sequence_order(facts: Facts) -> Iterator[Violation]:
    # A send that began after another was acknowledged was accepted after it. Only messages whose one send
    # decides the moment of numbering say anything: neither scheduled, nor transactional, nor sent twice.
    steps: list[tuple[int, bool, SendBegin]] = []
    for begin in facts.sends:
        ok = facts.end(begin).ok
        if facts.setup.rules(begin.entity).is_circle:
            # It is numbered anew with every hop.
            continue
        plain = begin.scheduled_ms is None and begin.transaction is None and len(facts.sends_of[begin.uid]) == 1
        if plain and begin.uid in facts.by_uid:
            steps.append((begin.index, False, begin))
            if ok is not None:
                steps.append((ok.index, True, begin))
    highest: dict[tuple[str, int], Delivery] = {}
    for _, is_end, begin in sorted(steps, key=lambda step: step[0]):
        for delivery in facts.by_uid[begin.uid]:
            place = (delivery.entity, delivery.fragment)
            if not accepted_by(delivery, begin):
                continue
            known = highest.get(place)
            if not is_end and known is not None and delivery.seq <= known.seq and known.uid != begin.uid:
                yield Violation(7, f"{begin.uid} was sent after {known.uid} and numbered below it", known, delivery)
            if is_end and (known is None or delivery.seq > known.seq):
                highest[place] = delivery


def ping_never_delivered(facts: Facts) -> Iterator[Violation]:
    """I11: a ping is acknowledged and comes out nowhere."""
    pings = {begin.uid for begin in facts.sends if begin.ping}
    shown: list[Delivery | Peeked] = [*facts.deliveries, *facts.peeks]
    for event in shown:
        if event.ping or event.uid in pings:
            yield Violation(11, f"ping {event.uid} came out of {event.entity}", event)
    for begin in facts.sends:
        fail = facts.end(begin).fail
        if begin.ping and fail is not None and not fail.transient:
            yield Violation(11, f"ping {begin.uid} was refused", begin, fail)


def receive_and_delete(facts: Facts) -> Iterator[Violation]:
    """I13: a message received and deleted is never delivered again, whatever crashes."""
    for row in facts.by_message.values():
        taken = next((i for i, d in enumerate(row) if d.mode == RECEIVE_AND_DELETE), None)
        if taken is not None and taken + 1 < len(row):
            yield Violation(13, f"{row[0].uid} came again after receive-and-delete", row[taken], row[taken + 1])
    for uid, deliveries in facts.by_uid.items():
        per_entity: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            if delivery.mode == RECEIVE_AND_DELETE and delivery.subqueue == MAIN:
                per_entity.setdefault(delivery.entity, []).append(delivery)
        for found in per_entity.values():
            if len(found) > max(1, facts.copies_allowed(uid)) and uid not in facts.setup.permitted_duplicates:
                yield Violation(13, f"{uid} was received and deleted {len(found)} times", *found)


def never_early(facts: Facts) -> Iterator[Violation]:
    """I15: nothing before its scheduled time; nothing that was cancelled; and not late, where that is asked."""
    due = {uid: min(b.scheduled_ms or 0 for b in begins) for uid, begins in facts.sends_of.items()}
    for delivery in facts.deliveries:
        if delivery.broker_ms < due.get(delivery.uid, 0):
            yield Violation(15, f"{delivery.uid} came {due[delivery.uid] - delivery.broker_ms} ms early", delivery)
    for peek in facts.peeks:
        if peek.state == ACTIVE and peek.broker_ms < due.get(peek.uid, 0):
            yield Violation(15, f"{peek.uid} was shown as active before its time", peek)
    uid_of = _scheduled_uids(facts)
    for cancel in facts.cancels:
        uid = uid_of.get((cancel.entity, cancel.seq), "")
        if facts.end(cancel).ok is not None and uid in facts.by_uid:
            yield Violation(15, f"{uid} was cancelled and delivered", cancel, facts.by_uid[uid][0])
    lateness = facts.setup.lateness_ms
    for uid, deliveries in facts.by_uid.items():
        first = min(deliveries, key=lambda d: d.broker_ms)
        if lateness is not None and due.get(uid) and first.broker_ms > due[uid] + lateness:
            yield Violation(15, f"{uid} came {first.broker_ms - due[uid]} ms late", first)


def no_invention(facts: Facts) -> Iterator[Violation]:
    """I16: what is delivered was sent before, byte for byte, and not oftener than it was sent."""
    for delivery in facts.deliveries:
        begins = facts.sends_of.get(delivery.uid)
        if not begins or begins[0].index > delivery.index:
            yield Violation(16, f"{delivery.uid} was never sent", delivery)
            continue
        begin = begins[0]
        if delivery.body_sha != begin.body_sha:
            yield Violation(16, f"the body of {delivery.uid} was altered", begin, delivery)
        if None not in (begin.props_sha, delivery.props_sha) and begin.props_sha != delivery.props_sha:
            yield Violation(16, f"the properties of {delivery.uid} were altered", begin, delivery)
    for uid, deliveries in facts.by_uid.items():
        begins = facts.sends_of.get(uid, [])
        # Copies of keyless sends are I27's.
        if any(begin.key is not None for begin in begins):
            yield from too_many_copies(16, facts, uid, deliveries)


def too_many_copies(invariant: int, facts: Facts, uid: str, deliveries: list[Delivery]) -> Iterator[Violation]:
    """Report a message of which one entity had more copies than there were sends that were not refused."""
    if uid in facts.setup.permitted_duplicates:
        return
    copies: dict[str, dict[int, Delivery]] = {}
    for delivery in deliveries:
        copies.setdefault(delivery.entity, {}).setdefault(delivery.seq, delivery)
    for entity, found in copies.items():
        if len(found) > max(1, facts.copies_allowed(uid)):
            yield Violation(invariant, f"{uid} is {len(found)} messages of {entity}", *found.values())


def _was_undone(facts: Facts, notice: Expired, dead: Delivery) -> bool:
    """Whether a crash may have undone a removal that was decided and not on disk yet.

    A delivery that was given back uncounted beside it is counted then, and may have been the last.
    """
    lost = any(notice.index < crash.index < dead.index for crash in facts.crashes_of(dead))
    return lost and dead.reason == "MaxDeliveryCountExceeded"


def time_to_live(facts: Facts) -> Iterator[Violation]:
    """I22: nothing is delivered after its expiry; what expired is removed or dead-lettered as the entity says.

    What is deferred expires only after somebody has asked for it.
    """
    for delivery in facts.deliveries:
        begins = facts.sends_of.get(delivery.uid)
        rules = facts.setup.rules(delivery.entity)
        if delivery.subqueue != MAIN or delivery.enqueued_ms is None or not begins:
            continue
        ttl = min((t for t in (begins[0].ttl_ms, rules.ttl_ms) if t is not None), default=None)
        if ttl is not None and delivery.broker_ms > delivery.enqueued_ms + ttl:
            yield Violation(22, f"{delivery.uid} was delivered after its expiry", begins[0], delivery)
    for notice in facts.expiries:
        asked = facts.asked_for.get((notice.entity, notice.seq))
        if notice.was_deferred and (asked is None or asked.index > notice.index):
            yield Violation(22, f"{notice.uid} was deferred and expired though nobody asked for it", notice)
        if notice.dead_lettered != facts.setup.rules(notice.entity).dead_letter_on_expiry:
            yield Violation(22, f"{notice.uid} expired against the rule of {notice.entity}", notice)
        for again in facts.by_message.get((notice.entity, MAIN, notice.seq), ()):
            if again.broker_ms > notice.broker_ms:
                yield Violation(22, f"{notice.uid} expired and was delivered", notice, again)
        forgotten = facts.by_message.get((notice.entity, DEAD_LETTER, notice.seq), ())
        if forgotten and not notice.dead_lettered and not _was_undone(facts, notice, forgotten[0]):
            yield Violation(22, f"{notice.uid} was removed and dead-lettered", notice, forgotten[0])
