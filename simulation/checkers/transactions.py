"""Invariants of transactions (I8, I34, I35): all or nothing, one key, nothing before the commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulation.checkers.facts import FINAL, Facts, Violation
from simulation.checkers.messages import cancelled
from simulation.history.events import DEFER, Delivery, DischargeBegin, Event, Ok, Peeked, SendBegin, SettleBegin

#: The reason that the simulation's clients give when they dead-letter a message.
POISON = "poison"


class _Transaction:
    """What one transaction did, and how it ended."""

    __slots__ = ("discharge", "sends", "settles")

    def __init__(self) -> None:
        self.sends: list[SendBegin] = []
        self.settles: list[SettleBegin] = []
        self.discharge: DischargeBegin | None = None

    @property
    def work(self) -> list[SendBegin | SettleBegin]:
        """Everything, sends first."""
        return [*self.sends, *self.settles]


def _transactions(facts: Facts) -> dict[str, _Transaction]:
    found: dict[str, _Transaction] = defaultdict(_Transaction)
    for send in facts.sends:
        if send.transaction is not None:
            found[send.transaction].sends.append(send)
    for settle in facts.settles:
        if settle.transaction is not None:
            found[settle.transaction].settles.append(settle)
    for discharge in facts.discharges:
        found[discharge.transaction].discharge = discharge
    return found


def all_or_nothing(facts: Facts) -> Iterator[Violation]:
    """I8: of a transaction everything is done, or nothing; never more than was acknowledged, never less."""
    signs, gone = _signs(facts), frozenset(cancelled(facts))
    for name, transaction in _transactions(facts).items():
        discharge = transaction.discharge
        if discharge is None:
            continue
        ok = facts.end(discharge).ok
        refused = [begin for begin in transaction.work if facts.end(begin).fail is not None]
        if ok is not None and not discharge.fail and refused:
            yield Violation(8, f"{name} was committed though part of it was refused", refused[0], discharge, ok)
        if facts.drained is None:
            # What has not come yet may still come.
            continue
        done: list[Event] = []
        undone: list[Event] = []
        for begin in transaction.work:
            effect = _effect(facts, begin, signs, gone)
            if effect is not None:
                (done if effect else undone).append(begin)
        if done and undone:
            yield Violation(8, f"{name} was done in part", done[0], undone[0], discharge)


def _signs(facts: Facts) -> frozenset[str]:
    """The uids of messages that certainly were in an entity."""
    found = {event.uid for event in facts.deliveries} | {event.uid for event in facts.peeks}
    found |= {event.uid for event in facts.expiries} | facts.setup.purged
    found |= {event.uid for event in facts.quarantined if event.uid is not None}
    return frozenset(found | (facts.drained.retrievable if facts.drained is not None else frozenset()))


def _effect(facts: Facts, begin: SendBegin | SettleBegin, signs: frozenset[str], gone: frozenset[str]) -> bool | None:
    """Whether a piece of work had its effect, as the whole history shows; None when it does not show."""
    if isinstance(begin, SendBegin):
        hidden = begin.ttl_ms is not None or facts.setup.rules(begin.entity).ttl_ms is not None
        if begin.uid not in signs and (hidden or begin.uid in gone or facts.setup.lost_fragments):
            return None
        # A message that was sent again, outside, tells nothing.
        return begin.uid in signs if len(facts.sends_of[begin.uid]) == 1 else None
    held = facts.by_token.get(begin.token)
    if held is None or begin.outcome not in FINAL:
        return None
    if begin.outcome == DEFER or any(
        # Another number is another copy, of a message that was sent twice.
        (later.entity, later.seq) == (held.entity, held.seq)
        and later.broker_ms > held.broker_ms
        and later.reason != POISON
        for later in facts.by_uid[held.uid]
    ):
        # It came again, or is in the dead-letter queue for having been delivered too often; deferral hides both.
        return None if begin.outcome == DEFER else False
    others = [other for other in facts.settles_of[begin.token] if other is not begin and facts.end(other).possible]
    is_gone = held.uid in facts.setup.purged or any(notice.uid == held.uid for notice in facts.expiries)
    # It did not come again: this settlement did that, unless something else may have.
    return (
        None if others or is_gone or facts.setup.lost_fragments or _may_expire(facts, held.uid, held.entity) else True
    )


def _may_expire(facts: Facts, uid: str, entity: str) -> bool:
    own = any(begin.ttl_ms is not None for begin in facts.sends_of.get(uid, ()))
    return own or facts.setup.rules(entity).ttl_ms is not None


def one_key(facts: Facts) -> Iterator[Violation]:
    """I34: a commit on a partitioned entity had one key for all its messages."""
    for name, transaction in _transactions(facts).items():
        ok = _committed(facts, transaction)
        if ok is None:
            continue
        # What is sent via another entity lies in one of that one's fragments, whatever its key is at its destination.
        rules = [(send, facts.setup.rules(send.entity)) for send in transaction.sends]
        parted = [send for send, about in rules if len(about.fragments or ()) > 1 and not about.is_sent_via]
        keys = {send.key for send in parted}
        if len(keys) > 1 or None in keys:
            yield Violation(34, f"{name} was committed with the keys {sorted(map(str, keys))}", *parted, ok)


def nothing_before_the_commit(facts: Facts) -> Iterator[Violation]:
    """I35: no reader sees a message before its transaction is discharged, or after it was rolled back."""
    shown: dict[str, Delivery | Peeked] = {}
    seen_events: list[Delivery | Peeked] = [*facts.deliveries, *facts.peeks]
    for event in sorted(seen_events, key=lambda event: event.index):
        shown.setdefault(event.uid, event)
    for name, transaction in _transactions(facts).items():
        discharge = transaction.discharge
        for send in transaction.sends:
            seen = shown.get(send.uid)
            if seen is None or len(facts.sends_of[send.uid]) > 1:
                continue
            if discharge is None or discharge.fail:
                yield Violation(35, f"{send.uid} of {name} was seen, and that was never committed", send, seen)
            elif seen.index < discharge.index:
                yield Violation(35, f"{send.uid} was seen before {name} was discharged", send, seen, discharge)


def _committed(facts: Facts, transaction: _Transaction) -> Ok | None:
    discharge = transaction.discharge
    return None if discharge is None or discharge.fail else facts.end(discharge).ok
