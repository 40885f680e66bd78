"""Invariants of sessions (I4, I36, I37)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from simulation.checkers.facts import Facts, Violation, accepted_by
from simulation.history.events import DEFERRED, MAIN, Delivery, SendBegin
from simulation.history.session_events import SessionAccepted, StateBegin, StateRead

#: (entity, session id)
_Place = tuple[str, str]


def session_order(facts: Facts) -> Iterator[Violation]:
    """I4: first deliveries come in order of number, and numbers in the order in which a sender had its answers."""
    lanes: dict[_Place, list[Delivery]] = defaultdict(list)
    for (entity, subqueue, _), row in facts.by_message.items():
        # A first delivery that counts more was preceded by one that nobody saw.
        if subqueue == MAIN and row[0].session is not None and row[0].mode != DEFERRED and row[0].delivery_count == 1:
            lanes[entity, row[0].session].append(row[0])
    for lane in lanes.values():
        lane.sort(key=lambda delivery: (delivery.broker_ms, delivery.seq))
        highest = lane[0]
        for delivery in lane:
            if delivery.seq < highest.seq:
                yield Violation(4, f"{highest.uid} overtook {delivery.uid} of its session", highest, delivery)
            else:
                highest = delivery
    yield from _sent_order(facts)


def _sent_order(facts: Facts) -> Iterator[Violation]:
    lanes: dict[tuple[str, str, str], list[tuple[SendBegin, Delivery]]] = defaultdict(list)
    for begin in facts.sends:
        if begin.key is None or begin.scheduled_ms is not None or len(facts.sends_of[begin.uid]) > 1:
            continue
        found = next((d for d in facts.by_uid.get(begin.uid, ()) if accepted_by(d, begin)), None)
        if found is not None and found.session is not None and facts.end(begin).ok is not None:
            lanes[begin.client, begin.entity, begin.key].append((begin, found))
    for lane in lanes.values():
        for (earlier, first), (later, second) in pairwise(lane):
            ok = facts.end(earlier).ok
            if ok is not None and ok.index < later.index and second.seq < first.seq:
                yield Violation(4, f"{later.uid} was stored before {earlier.uid}", earlier, later, first, second)


def session_lock(facts: Facts) -> Iterator[Violation]:
    """I36: a session has one holder, only its holder sets its state, and what was set is what is read."""
    holds: dict[_Place, list[SessionAccepted]] = defaultdict(list)
    for event in facts.sessions:
        if isinstance(event, SessionAccepted):
            holds[event.entity, event.session].append(event)
    for lane in holds.values():
        lane.sort(key=lambda accepted: (accepted.broker_ms, accepted.index))
        for earlier, later in pairwise(lane):
            if not _is_over(facts, earlier, later):
                yield Violation(36, f"the session {later.session} has two holders", earlier, later)
    yield from _states(facts, holds)


def _is_over(facts: Facts, earlier: SessionAccepted, later: SessionAccepted) -> bool:
    freed = facts.session_freed.get((earlier.entity, earlier.session, earlier.broker_ms))
    if freed is not None and freed.broker_ms <= later.broker_ms:
        return True
    ends = [earlier.until_ms]
    for begin in facts.session_renewals:
        mine = (begin.connection, begin.entity, begin.session) == (earlier.connection, earlier.entity, earlier.session)
        ok = facts.end(begin).ok
        if mine and ok is not None and ok.locked_until_ms is not None and begin.index > earlier.index:
            ends.append(ok.locked_until_ms)
    if later.broker_ms >= max(ends):
        return True
    return any(
        (crash.fragments is None or (earlier.entity, earlier.fragment) in crash.fragments)
        and earlier.broker_ms <= crash.broker_ms <= later.broker_ms
        for crash in facts.crashes
    )


def _states(facts: Facts, holds: dict[_Place, list[SessionAccepted]]) -> Iterator[Violation]:
    writes: dict[_Place, list[StateBegin]] = defaultdict(list)
    for event in facts.sessions:
        if isinstance(event, StateBegin):
            writes[event.entity, event.session].append(event)
            if facts.end(event).ok is not None:
                yield from _stale(event, holds.get((event.entity, event.session), []))
    for event in facts.sessions:
        if isinstance(event, StateRead):
            allowed = _possible(facts, writes[event.entity, event.session], event)
            if event.value not in allowed:
                yield Violation(36, f"the state of {event.session} is none of {allowed}", event)


def _stale(write: StateBegin, lane: list[SessionAccepted]) -> Iterator[Violation]:
    """A state that was set by somebody who never held the session, or whose successor had it already."""
    own = [held for held in lane if held.connection == write.connection and held.index < write.index]
    if not own:
        yield Violation(36, f"the state of {write.session} was set without holding it", write)
        return
    for other in lane:
        if own[-1].broker_ms < other.broker_ms < write.broker_ms and other.index < write.index:
            yield Violation(36, f"a former holder set the state of {write.session}", own[-1], other, write)


def _possible(facts: Facts, writes: list[StateBegin], read: StateRead) -> list[bytes | None]:
    """The last value that is known to be kept, and those of writes since then of which that is not known."""
    allowed: list[bytes | None] = [None]
    for write in writes:
        end = facts.end(write)
        if write.index > read.index or not end.possible:
            continue
        if end.ok is not None and end.ok.index < read.begin_index:
            allowed = [write.value]
        else:
            allowed.append(write.value)
    return allowed


def session_lock_loss(facts: Facts) -> Iterator[Violation]:
    """I37: who has lost a session settles none of its messages any more; that they come in order is I4 and I19."""
    for begin in facts.settles:
        held = facts.by_token.get(begin.token)
        notice = facts.lock_ended.get(begin.token)
        ok = facts.end(begin).ok
        if held is None or held.session is None or notice is None or ok is None:
            continue
        if notice.index < begin.index:
            yield Violation(37, f"{held.uid} was settled by a former holder of its session", held, begin, ok)
