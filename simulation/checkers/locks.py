"""Invariants of locks and settlements (I2, I3, I17, I18)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulation.checkers.facts import FINAL, RETURNING, Facts, Violation
from simulation.history.events import DEFER, DEFERRED, MAIN, Delivery, Fail, Ok, RenewBegin, SettleBegin

LOCK_LOST = "com.microsoft:message-lock-lost"


def exclusive_lock(facts: Facts) -> Iterator[Violation]:
    """I2: no message is delivered while an earlier lock on it holds."""
    for row in facts.by_message.values():
        for earlier, later in pairwise(row):
            if earlier.token is not None and not _lock_was_over(facts, earlier, later):
                yield Violation(2, f"{later.uid} was delivered under another's lock", earlier, later)


def _lock_was_over(facts: Facts, earlier: Delivery, later: Delivery) -> bool:
    notice = facts.lock_ended.get(earlier.token or b"")
    if notice is not None:
        return notice.broker_ms <= later.broker_ms
    if later.broker_ms >= facts.lock_end_ms(earlier) or facts.crashed_between(earlier, later):
        return True
    lost = facts.link_lost.get(earlier.connection)
    if lost is not None and lost.index < later.index:
        return True
    return any(
        s.outcome in RETURNING and s.index < later.index and facts.end(s).possible
        for s in facts.settles_of.get(earlier.token or b"", ())
    )


def lock_fencing(facts: Facts) -> Iterator[Violation]:
    """I3: tokens never repeat; only the newest, unexpired one settles or renews; no lock ends for nothing."""
    for delivery in facts.deliveries:
        first = delivery if delivery.token is None else facts.by_token[delivery.token]
        if first is not delivery:
            yield Violation(3, f"the token {delivery.token!r} was given twice", first, delivery)
    requests: list[SettleBegin | RenewBegin] = [*facts.settles, *facts.renewals]
    for begin in requests:
        ok, fail = facts.end(begin).ok, facts.end(begin).fail
        held = facts.by_token.get(begin.token)
        if held is None:
            if ok is not None:
                yield Violation(3, "a token that was never given was honoured", begin, ok)
        elif ok is not None:
            yield from _honoured(facts, begin, ok, held)
        elif fail is not None and _lost_for_nothing(facts, begin, fail, held):
            yield Violation(3, f"the lock on {held.uid} ended for no reason", held, begin, fail)


def _honoured(facts: Facts, begin: SettleBegin | RenewBegin, ok: Ok, held: Delivery) -> Iterator[Violation]:
    later = facts.next_of(held)
    if later is not None:
        superseded = later.index < begin.index if ok.broker_ms is None else later.broker_ms < ok.broker_ms
        if superseded:
            yield Violation(3, f"a superseded token of {held.uid} was honoured", held, later, begin, ok)
    if ok.broker_ms is not None and ok.broker_ms > _lock_end_without(facts, held, begin):
        yield Violation(3, f"an expired token of {held.uid} was honoured", held, begin, ok)
    lock_ms = facts.setup.rules(held.entity).lock_ms
    if isinstance(begin, RenewBegin):
        known = None not in (lock_ms, ok.broker_ms, ok.locked_until_ms)
        if known and ok.locked_until_ms != (ok.broker_ms or 0) + (lock_ms or 0):
            yield Violation(3, f"a renewal of {held.uid} did not last from now", held, begin, ok)
    else:
        for other in facts.settles_of[begin.token]:
            earlier_ok = facts.end(other).ok
            if earlier_ok is not None and earlier_ok.index < begin.index:
                yield Violation(3, f"{held.uid} was settled twice under one token", other, begin)


def _lock_end_without(facts: Facts, held: Delivery, begin: SettleBegin | RenewBegin) -> int:
    """Return when the lock ended, not counting the renewal in question itself."""
    ends = [held.locked_until_ms]
    for other in facts.renewals_of.get(begin.token, ()):
        ok = facts.end(other).ok
        if other is not begin and ok is not None and ok.locked_until_ms is not None:
            ends.append(ok.locked_until_ms)
    return max(ends)


def _lost_for_nothing(facts: Facts, begin: SettleBegin | RenewBegin, fail: Fail, held: Delivery) -> bool:
    if fail.condition != LOCK_LOST or fail.broker_ms is None or fail.broker_ms >= facts.lock_end_ms(held):
        return False
    crash, notice, lost = (
        facts.crash_after(held),
        facts.lock_ended.get(begin.token),
        facts.link_lost.get(held.connection),
    )
    explained = (
        (crash is not None and crash.index < fail.index)
        or notice is not None
        or (lost is not None and lost.index < fail.index)
        or any(s.index < begin.index and facts.end(s).possible for s in facts.settles_of.get(begin.token, ()))
    )
    return not explained


def completed_is_final(facts: Facts) -> Iterator[Violation]:
    """I17: after complete, dead-letter or defer ended ok, the message never comes again from that state."""
    for begin in facts.settles:
        held = facts.by_token.get(begin.token)
        if begin.outcome not in FINAL or facts.end(begin).ok is None or held is None:
            continue
        row = facts.by_message[held.entity, held.subqueue, held.seq]
        for later in row[row.index(held) + 1 :]:
            if not (begin.outcome == DEFER and later.mode == DEFERRED):
                yield Violation(17, f"{held.uid} came again after {begin.outcome}", begin, later)
                break


def honest_settlement(facts: Facts) -> Iterator[Violation]:
    """I18: one answer for each settlement; a refused one changes nothing."""
    for begin in facts.settles:
        ends = facts.end(begin).ends
        if len(ends) > 1:
            yield Violation(18, "a settlement was answered more than once", begin, *ends)
        if not ends and facts.drained is not None and begin.connection not in facts.link_lost:
            yield Violation(18, "a settlement was never answered", begin)
    if facts.drained is not None:
        yield from _changed_by_refusal(facts)


def _changed_by_refusal(facts: Facts) -> Iterator[Violation]:
    """At drain, a message whose every settlement was refused must have come again."""
    for token, begins in facts.settles_of.items():
        held = facts.by_token.get(token)
        if held is None or any(facts.end(begin).possible for begin in begins):
            continue
        elsewhere = any(d.broker_ms > held.broker_ms for d in facts.by_uid[held.uid])
        expired = held.subqueue == MAIN and any(e.uid == held.uid for e in facts.expiries)
        lost = (held.entity, held.fragment) in facts.setup.lost_fragments
        kept = facts.drained is not None and held.uid in facts.drained.retrievable
        kept = kept or held.uid in facts.setup.purged
        if not (elsewhere or expired or lost or kept) and not _may_have_expired(facts, held):
            yield Violation(18, f"{held.uid} vanished though its settlement was refused", held, *begins)


def _may_have_expired(facts: Facts, held: Delivery) -> bool:
    sent = facts.sends_of.get(held.uid)
    has_ttl = facts.setup.rules(held.entity).ttl_ms is not None or any(b.ttl_ms is not None for b in sent or ())
    return has_ttl and held.subqueue == MAIN
