"""Invariants of sending and of placement over fragments (I9, I25 to I28, I38, I39)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from simulation.checkers.facts import Facts, Operation, Violation, accepted_by
from simulation.checkers.messages import too_many_copies
from simulation.history.events import (
    TIMED_OUT,
    UNKNOWN,
    Delivery,
    Event,
    FragmentsDown,
    FragmentsLate,
    Peeked,
    PlacementTurn,
    SendBegin,
)

# What an operation faced while it lasted.
_HEALTHY, _LIVE, _DEAD, _ALL_DEAD = range(4)

_SHARE_TURNS = 1000
_SHARE_LIMIT = 1.5


def fragment_isolation(facts: Facts) -> Iterator[Violation]:
    """I9: with some fragments down, sends to the others succeed; with all down, none does."""
    for begin, operation, situation in _outage_sends(facts):
        last = operation.ends[-1]
        if situation == _LIVE:
            fail, info = operation.fail, operation.info
            if (fail is not None and fail.transient) or (info is not None and info.reason in (TIMED_OUT, UNKNOWN)):
                yield Violation(9, f"{begin.uid} failed though a live fragment could take it", begin, last)
        elif situation in (_DEAD, _ALL_DEAD) and operation.steady and operation.ok is not None:
            yield Violation(9, f"{begin.uid} was acknowledged while its fragment was down", begin, last)


def _outage_sends(facts: Facts) -> Iterator[tuple[SendBegin, Operation, int]]:
    """Yield the answered sends that began while fragments of their entity were down, and what they faced."""
    fragment_of = _learned_fragments(facts)
    for begin in facts.sends:
        operation = facts.end(begin)
        fragments = facts.setup.rules(begin.entity).fragments
        down = {fragment for entity, fragment in operation.down if entity == begin.entity}
        # A send in a transaction shares the fate of all of it, whatever its own fragment does (I8).
        if not operation.ends or fragments is None or not down or begin.transaction is not None:
            continue
        if down.issuperset(fragments):
            yield begin, operation, _ALL_DEAD
        elif begin.key is None:
            yield begin, operation, _LIVE if operation.steady or operation.ok is not None else _HEALTHY
        else:
            target = begin.fragment if begin.fragment is not None else fragment_of.get((begin.entity, begin.key))
            if target is not None:
                yield begin, operation, _DEAD if target in down else (_LIVE if operation.steady else _HEALTHY)


def _learned_fragments(facts: Facts) -> dict[tuple[str, str], int]:
    """Return where the first delivery of each key came from."""
    learned: dict[tuple[str, str], int] = {}
    for begin, delivery in _keyed_deliveries(facts):
        learned.setdefault((begin.entity, begin.key or ""), delivery.fragment)
    return learned


def _keyed_deliveries(facts: Facts) -> Iterator[tuple[SendBegin, Delivery]]:
    for delivery in facts.deliveries:
        for begin in facts.sends_of.get(delivery.uid, ())[:1]:
            if begin.key is not None and accepted_by(delivery, begin):
                yield begin, delivery


def key_to_fragment(facts: Facts) -> Iterator[Violation]:
    """I25: messages with equal keys are in one fragment, the one that the slot function names."""
    first: dict[tuple[str, str], Delivery] = {}
    for begin, delivery in _keyed_deliveries(facts):
        known = first.setdefault((begin.entity, begin.key or ""), delivery)
        if known.fragment != delivery.fragment:
            yield Violation(25, f"key {begin.key!r} is in two fragments", known, delivery)
        elif begin.fragment is not None and begin.fragment != delivery.fragment:
            yield Violation(25, f"key {begin.key!r} is in the wrong fragment", begin, delivery)


def keyless_balance(facts: Facts) -> Iterator[Violation]:
    """I26: while all fragments are up and none is late, placement goes round; closed-loop loads have even shares."""
    turns: dict[str, list[PlacementTurn]] = defaultdict(list)
    down: set[tuple[str, int]] = set()
    for event in facts.placements:
        if isinstance(event, PlacementTurn):
            # What is placed while fragments are down proves nothing; afterwards the count begins anew.
            if not any(entity == event.entity for entity, _ in down):
                turns[event.entity].append(event)
            continue
        for entity in sorted({name for name, _ in event.fragments}):
            yield from _largest_share(facts, entity, turns.pop(entity, []))
        if not isinstance(event, FragmentsLate):
            down = down | event.fragments if isinstance(event, FragmentsDown) else down - event.fragments
    for entity, rest in turns.items():
        yield from _largest_share(facts, entity, rest)


def _largest_share(facts: Facts, entity: str, turns: list[PlacementTurn]) -> Iterator[Violation]:
    fragments = facts.setup.rules(entity).fragments
    if fragments is None or not turns:
        return
    taken = dict.fromkeys(fragments, 0)
    for turn in turns:
        taken[turn.fragment] = taken.get(turn.fragment, 0) + 1
        if max(taken.values()) - min(taken.values()) > 1 + facts.setup.concurrent_senders:
            yield Violation(26, f"fragment {turn.fragment} of {entity} had too many turns: {taken}", turn)
            return
    if not facts.setup.closed_loop:
        return
    for start in range(0, len(turns) - _SHARE_TURNS + 1, _SHARE_TURNS):
        block = turns[start : start + _SHARE_TURNS]
        share: Counter[int] = Counter()
        for turn in block:
            share[turn.fragment] += turn.messages
        if max(share.values()) > _SHARE_LIMIT * share.total() / len(fragments):
            yield Violation(26, f"messages of {entity} are spread unevenly: {dict(share)}", block[0], block[-1])


def keyless_reroute(facts: Facts) -> Iterator[Violation]:
    """I27: a keyless send past a dead or late fragment ends soon, and leaves one copy."""
    for late in facts.keyless_late:
        yield Violation(27, f"a message for {late.entity} waited {late.waited_ms} ms for store {late.store}", late)
    for begin, operation, situation in _outage_sends(facts):
        ok = operation.ok
        if begin.key is None and situation == _LIVE and ok is not None:
            took = ok.at_ms - begin.at_ms
            if took >= facts.setup.reroute_ms:
                yield Violation(27, f"{begin.uid} took {took} ms to reach a live fragment", begin, ok)
    for uid, deliveries in facts.by_uid.items():
        begins = facts.sends_of.get(uid, [])
        if begins and all(begin.key is None for begin in begins):
            yield from too_many_copies(27, facts, uid, deliveries)


def keyed_to_dead_fragment(facts: Facts) -> Iterator[Violation]:
    """I28: a keyed send to a dead fragment gets a definite, retriable error and is never stored elsewhere."""
    for begin, operation, situation in _outage_sends(facts):
        if begin.key is None or situation != _DEAD:
            continue
        fail, info = operation.fail, operation.info
        if operation.steady and fail is not None and not fail.transient:
            yield Violation(28, f"{begin.uid} got an error that forbids to try again", begin, fail)
        if operation.steady and info is not None and info.reason == TIMED_OUT:
            yield Violation(28, f"{begin.uid} got no answer within its timeout", begin, info)
        down = {fragment for entity, fragment in operation.down if entity == begin.entity}
        for delivery in facts.by_uid.get(begin.uid, ())[:1]:
            if accepted_by(delivery, begin) and delivery.fragment not in down and len(facts.sends_of[begin.uid]) == 1:
                yield Violation(28, f"{begin.uid} was rerouted to another fragment", begin, delivery)


def send_outcome(facts: Facts) -> Iterator[Violation]:
    """I38: each unsettled send has exactly one outcome, or its link died; a refusal says why and stores nothing."""
    for begin in facts.sends:
        ends = facts.end(begin).ends
        if len(ends) > 1:
            yield Violation(38, f"the send of {begin.uid} was answered more than once", begin, *ends)
        waits = not begin.settled and not ends and facts.drained is not None
        if waits and begin.connection not in facts.link_lost:
            yield Violation(38, f"the send of {begin.uid} was never answered", begin)
        if ends and _is_late(facts, begin, ends[0]):
            yield Violation(38, f"the send of {begin.uid} was answered late, or never", begin, ends[0])
        fail = facts.end(begin).fail
        if fail is not None and not (fail.condition and "TrackingId:" in fail.text):
            yield Violation(38, f"the refusal of {begin.uid} lacks a condition or a tracking id", begin, fail)
    for stray in facts.strays:
        yield Violation(38, f"delivery {stray.delivery_id} had an outcome that nobody waited for", stray)
    shown: list[Delivery | Peeked] = [*facts.peeks, *facts.deliveries]
    seen = {event.uid: event for event in shown}
    for uid, event in seen.items():
        begins = facts.sends_of.get(uid)
        if begins and not any(facts.end(begin).possible for begin in begins):
            yield Violation(38, f"{uid} was refused and is there", *begins, event)


def _is_late(facts: Facts, begin: SendBegin, end: Event) -> bool:
    """Whether an answer took longer than it may where stores are lost.

    What is sent in a transaction is answered with the discharge, which may wait for its store far longer than a send;
    and what is scheduled by a request may wait for as long as the request says.
    """
    limit_ms = facts.setup.answer_ms
    if limit_ms is None or begin.transaction is not None or begin.scheduled_ms is not None:
        return False
    return end.at_ms - begin.at_ms > limit_ms


def presettled_send(facts: Facts) -> Iterator[Violation]:
    """I39: a pre-settled send gets no outcome."""
    for begin in facts.sends:
        answers = [end for end in facts.end(begin).ends if end is not facts.end(begin).info]
        if begin.settled and answers:
            yield Violation(39, f"the pre-settled send of {begin.uid} was answered", begin, *answers)
