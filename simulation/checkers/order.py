"""Invariants of counting, of order and of progress among deliveries (I6, I19, I20, I29)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from simulation.checkers.facts import Facts, Violation
from simulation.history.events import (
    ABANDON,
    DEAD_LETTER,
    DEFER,
    DEFERRED,
    MAIN,
    PEEK_LOCK,
    RECEIVE_AND_DELETE,
    RELEASE,
    Delivery,
)

# (returned at, came again at, earlier delivery, later delivery): between the two, nothing newer may go out.
_Wait = tuple[int, int, Delivery, Delivery]


def delivery_count(facts: Facts) -> Iterator[Violation]:
    """I6: counts are 1, 2, 3 ... and end at the maximum; the dead-letter queue gets a message once, and counts nothing.

    A crash may forget deliveries since the fragment's last commit and nothing else. Deliveries that
    no client saw, because a connection or process died, leave gaps; an outcome ``released`` does not count, and
    neither does a deferral (AMQP 1.0 part 3, 3.2.1).
    """
    for (entity, subqueue, _), row in facts.by_message.items():
        if subqueue == MAIN:
            if row[0].delivery_count != 1 and not _may_hide(facts, None, row[0]):
                yield Violation(6, f"the first delivery of {row[0].uid} has count {row[0].delivery_count}", row[0])
            limit = facts.setup.rules(entity).max_delivery_count
            for delivery in row:
                if delivery.delivery_count > limit:
                    yield Violation(6, f"{delivery.uid} was delivered more than {limit} times", delivery)
        for earlier, later in pairwise(row):
            if subqueue == MAIN:
                yield from _count_step(facts, row, earlier, later)
            elif later.delivery_count != earlier.delivery_count:
                yield Violation(6, f"the count of {later.uid} changed in the {subqueue} queue", earlier, later)
    yield from _dead_letter_once(facts)


def _count_step(facts: Facts, row: list[Delivery], earlier: Delivery, later: Delivery) -> Iterator[Violation]:
    least, most = _counts(facts, earlier)
    if facts.crashed_between(earlier, later):
        least = 1 + max((_durable_count(facts, d, later) for d in row[: row.index(earlier) + 1]), default=0)
    elif later.delivery_count > most + 1 and not _may_hide(facts, earlier, later):
        yield Violation(6, f"the count of {later.uid} leaves out a number", earlier, later)
        return
    else:
        least += 1
    if later.delivery_count < least:
        yield Violation(6, f"the count of {later.uid} should be {least} at least", earlier, later)


def _counts(facts: Facts, delivery: Delivery) -> tuple[int, int]:
    """Return the least and the most that the message's count can be after a delivery."""
    releases = [s for s in facts.settles_of.get(delivery.token or b"", ()) if s.outcome in (RELEASE, DEFER)]
    count = delivery.delivery_count
    notice = facts.lock_ended.get(delivery.token or b"")
    if notice is not None and notice.cause == "closed":
        # A session that its holder gives back counts no deliveries (Azure: message sessions).
        return count - 1, count - 1
    if any(facts.end(begin).ok is not None for begin in releases):
        return count - 1, count - 1
    return (count - 1 if any(facts.end(begin).possible for begin in releases) else count), count


def _durable_count(facts: Facts, delivery: Delivery, later: Delivery) -> int:
    """Return what of a delivery's count the crash before ``later`` could not forget."""
    least, _ = _counts(facts, delivery)
    settles = facts.settles_of.get(delivery.token or b"", ())
    # What is released changes nothing in the store, so that its answer waits for no commit and proves none.
    if any(s.outcome in (ABANDON, DEFER) and facts.end(s).ok is not None for s in settles):
        return least
    crash = facts.crash_after(delivery)
    if crash is None:
        # Only the epochs tell that there was a crash, not when.
        return least if delivery.epoch == later.epoch else 0
    return least if crash.index >= later.index or facts.committed(delivery, crash) else 0


def _may_hide(facts: Facts, earlier: Delivery | None, later: Delivery) -> bool:
    """Tell whether deliveries between two may have gone unseen, with a connection or in a crash."""
    since = 0 if earlier is None else earlier.broker_ms - (facts.setup.link_loss_ms or earlier.broker_ms)
    if any(lost.index < later.index and lost.broker_ms >= since for lost in facts.links_lost):
        return True
    return earlier is None and (later.epoch > 1 or any(crash.index < later.index for crash in facts.crashes))


def _dead_letter_once(facts: Facts) -> Iterator[Violation]:
    dead_letters: dict[tuple[str, str], dict[int, Delivery]] = defaultdict(dict)
    for (entity, subqueue, seq), row in facts.by_message.items():
        if subqueue != DEAD_LETTER:
            continue
        dead_letters[entity, row[0].uid][seq] = row[0]
        for delivery in facts.by_message.get((entity, MAIN, seq), ()):
            if delivery.broker_ms > row[0].broker_ms:
                yield Violation(6, f"{delivery.uid} came from the main queue after dead-lettering", row[0], delivery)
    for (_, uid), found in dead_letters.items():
        if len(found) > max(1, facts.copies_allowed(uid)) and uid not in facts.setup.permitted_duplicates:
            yield Violation(6, f"{uid} is in the dead-letter queue {len(found)} times", *found.values())


def deferral(facts: Facts) -> Iterator[Violation]:
    """I21: what is deferred comes by its number only; while no other settlement of it is in doubt."""
    for settle in facts.settles:
        held, ok = facts.by_token.get(settle.token), facts.end(settle).ok
        if settle.outcome != DEFER or held is None or ok is None:
            continue
        for again in facts.by_message[held.entity, held.subqueue, held.seq]:
            if again.broker_ms > held.broker_ms and again.mode != DEFERRED and again.index > ok.index:
                yield Violation(21, f"{held.uid} was deferred and came to an ordinary receiver", settle, again)
                break


def release_to_the_front(facts: Facts) -> Iterator[Violation]:
    """I19: a message that came back goes out before newer ones of its fragment that were never delivered."""
    waits = []
    removing = {delivery.entity for delivery in facts.deliveries if delivery.mode == RECEIVE_AND_DELETE}
    for earlier, later in _redeliveries(facts):
        returned = _returned_ms(facts, earlier, later)
        if returned is not None:
            if later.entity in removing:
                # A removal whose commit failed is seen by nobody: the message was taken, and came back once more.
                again = [crash.broker_ms for crash in facts.crashes_of(later) if crash.index < later.index]
                returned = max([returned, *again])
            waits.append((returned, later.broker_ms, earlier, later))
    yield from _overtaken(19, facts, waits)


def link_loss_releases(facts: Facts) -> Iterator[Violation]:
    """I20: a dead connection's messages come back in time, and no other link may settle them."""
    bound = facts.setup.link_loss_ms
    waits: list[_Wait] = []
    for earlier, later in _redeliveries(facts):
        lost = facts.link_lost.get(earlier.connection)
        if bound is not None and lost is not None and earlier.broker_ms <= lost.broker_ms:
            waits.append((lost.broker_ms + bound, later.broker_ms, earlier, later))
    yield from _overtaken(20, facts, waits)
    for token, notice in facts.lock_ended.items():
        held = facts.by_token.get(token)
        lost = facts.link_lost.get(held.connection) if held is not None else None
        late = bound is not None and lost is not None and notice.broker_ms > lost.broker_ms + bound
        if notice.cause == "link" and held is not None and lost is not None and late:
            yield Violation(20, f"{held.uid} was released too late after its connection died", held, lost, notice)
    for begin in facts.settles:
        held = facts.by_token.get(begin.token)
        ok = facts.end(begin).ok
        if held is not None and ok is not None and not begin.management and begin.connection != held.connection:
            yield Violation(20, f"{held.uid} was settled by a link that did not receive it", held, begin, ok)


def _redeliveries(facts: Facts) -> Iterator[tuple[Delivery, Delivery]]:
    for (_, subqueue, _), row in facts.by_message.items():
        if subqueue == MAIN:
            for earlier, later in pairwise(row):
                if earlier.mode == PEEK_LOCK and later.mode != DEFERRED:
                    yield earlier, later


def _returned_ms(facts: Facts, earlier: Delivery, later: Delivery) -> int | None:
    """Return the broker time at which the earlier lock certainly was over, None if that is not known."""
    notice = facts.lock_ended.get(earlier.token or b"")
    if notice is not None:
        return notice.broker_ms
    for begin in facts.settles_of.get(earlier.token or b"", ()):
        ok = facts.end(begin).ok
        if begin.outcome in (ABANDON, RELEASE) and ok is not None and ok.broker_ms is not None:
            return ok.broker_ms
    crash = facts.crash_after(earlier)
    if crash is not None and crash.index < later.index:
        return crash.broker_ms
    return facts.lock_end_ms(earlier) + facts.setup.expiry_slack_ms


def nothing_waits_in_vain(facts: Facts) -> Iterator[Violation]:
    """I29: a receiver with credit gets what there is within a second, and one without keeps nothing from the others."""
    for wait in facts.waits:
        yield Violation(29, f"{wait.link} at {wait.entity} {wait.what}, for {wait.for_ms} ms", wait)


def _overtaken(invariant: int, facts: Facts, waits: list[_Wait]) -> Iterator[Violation]:
    """Report first deliveries that went out while an older message of the same fragment and session waited."""
    forwarders: dict[tuple[str, int, str | None], list[tuple[int, int, _Wait | Delivery]]] = defaultdict(list)
    for wait in waits:
        earlier = wait[2]
        forwarders[earlier.entity, earlier.fragment, earlier.session].append((wait[0], 1, wait))
    if not forwarders:
        return
    for (_, subqueue, _), row in facts.by_message.items():
        forwarder = forwarders.get((row[0].entity, row[0].fragment, row[0].session))
        if subqueue == MAIN and forwarder is not None:
            forwarder.append((row[0].broker_ms, 0, row[0]))
    for forwarder in forwarders.values():
        # At the same millisecond the order is not known: first deliveries go before returns, to be fair.
        forwarder.sort(key=lambda step: step[:2])
        waiting: list[tuple[int, int, int, _Wait]] = []
        for number, (_, _, step) in enumerate(forwarder):
            if not isinstance(step, Delivery):
                heapq.heappush(waiting, (step[2].seq, step[1], number, step))
                continue
            while waiting and waiting[0][1] <= step.broker_ms:
                heapq.heappop(waiting)
            if waiting and waiting[0][0] < step.seq:
                _, _, earlier, later = waiting[0][3]
                yield Violation(
                    invariant, f"{step.uid} overtook {earlier.uid}, which had come back", earlier, step, later
                )
