"""What the life of an entity promises its clients: status, size quota, and an end.

The history here is small: what was asked for and answered, with times. A change lasts from the call to its return;
meanwhile the old and the new may both hold, and what is on its way when it returns still arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from duobus.model.descriptions import ACTIVE, DISABLED, RECEIVE_DISABLED, SEND_DISABLED

OK: Final = "ok"
#: Nobody knows: no answer came.
LOST: Final = "lost"

NOT_FOUND: Final = "amqp:not-found"
ENTITY_DISABLED: Final = "com.microsoft:entity-disabled"
QUOTA_EXCEEDED: Final = "amqp:resource-limit-exceeded"
#: A store is away, or the broker is on its way down: to be tried again.
TRANSIENT: Final = (
    "com.microsoft:server-busy",
    "com.microsoft:timeout",
    "amqp:internal-error",
    "amqp:connection:forced",
    "amqp:link:stolen",
)
GONE: Final = "gone"

#: What travels when a change is made has arrived after this long.
GRACE_MS: Final = 400

_NO_SENDING: Final = (DISABLED, SEND_DISABLED, GONE)
_NO_RECEIVING: Final = (DISABLED, RECEIVE_DISABLED, GONE)


class Use:
    """A send to an entity, or an attach of a link to it.

    Attributes:
        what: "send", "attach to send" or "attach to receive".
        uid: Of the message; "" of an attach.
        size: Of the message, as the quota counts it.
        begin_ms, end_ms: From the call to its answer.
        outcome: OK, LOST, or the condition of the refusal.
    """

    __slots__ = ("begin_ms", "end_ms", "outcome", "size", "uid", "what")

    def __init__(self, what: str, begin_ms: int, uid: str = "", size: int = 0) -> None:
        self.what = what
        self.uid = uid
        self.size = size
        self.begin_ms = begin_ms
        self.end_ms = begin_ms
        self.outcome = LOST


class Change:
    """A new status of an entity, GONE among them.

    Attributes:
        begin_ms: When it was asked for first.
        last_ms: When it was asked for last: a deletion is refused, with nothing done, while a fragment is away (I31).
        end_ms: When it was made; None while it may or may not have been.
    """

    __slots__ = ("begin_ms", "end_ms", "last_ms", "status")

    def __init__(self, status: str, begin_ms: int) -> None:
        self.status = status
        self.begin_ms = self.last_ms = begin_ms
        self.end_ms: int | None = None


class LifeHistory:
    """What happened to one entity.

    Attributes:
        changes: Statuses, the first of them in force from the beginning.
        uses: Sends and attaches.
        deliveries: (time, uid) of every delivery. It arrived at that time, however late its receiver looked at it.
        settled: uid to the times when the first settlement was written, and when one was answered with yes.
        limit: Bytes that the entity may hold; None for more than a run sends.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.changes: list[Change] = [Change(ACTIVE, 0)]
        self.changes[0].end_ms = 0
        self.uses: list[Use] = []
        self.deliveries: list[tuple[int, str]] = []
        self.settled: dict[str, tuple[int, int | None]] = {}
        self.limit = limit

    def statuses(self, begin_ms: int, end_ms: int) -> set[str]:
        """Every status that may have been in force between two instants."""
        found: set[str] = set()
        for index, change in enumerate(self.changes):
            following = self.changes[index + 1 :]
            # A change is over when a later one surely is made.
            over = next((later.end_ms for later in following if later.end_ms is not None), None)
            if change.begin_ms <= end_ms and (over is None or over >= begin_ms):
                found.add(change.status)
        return found

    def gone_between(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the entity was deleted, for sure, after one instant and before another."""
        made = [(change.begin_ms, change.end_ms) for change in self.changes if change.status == GONE]
        return any(done_ms is not None and begin_ms < at_ms and done_ms < end_ms for at_ms, done_ms in made)

    def gone_since(self, begin_ms: int) -> bool:
        """Whether a deletion has begun after an instant."""
        return any(change.status == GONE and change.last_ms >= begin_ms for change in self.changes)


def check_life(history: LifeHistory) -> list[str]:
    """Return what is wrong, in words."""
    return [
        *_uses(history),
        *_deliveries(history),
        *(() if history.limit is None else _quota(history, history.limit)),
        *_losses(history),
    ]


def _uses(history: LifeHistory) -> Iterator[str]:
    for use in history.uses:
        forbidding = _NO_RECEIVING if use.what == "attach to receive" else _NO_SENDING
        name = f"{use.what} {use.uid} at {use.begin_ms} to {use.end_ms} ms"
        if use.outcome == OK:
            if history.statuses(use.begin_ms, use.end_ms) <= set(forbidding):
                yield f"{name} was accepted though the status forbade it"
            continue
        before = history.statuses(use.begin_ms - GRACE_MS, use.end_ms)
        wrong = _refusal(use.outcome, before, set(forbidding) - {GONE}, has_quota=history.limit is not None)
        if wrong is not None:
            yield f"{name} {wrong}; the status was {sorted(before)}"


def _refusal(outcome: str, before: set[str], forbidding: set[str], *, has_quota: bool) -> str | None:
    """What is wrong with a refusal, if anything is; ``before``: what the status may have been."""
    if outcome == ENTITY_DISABLED:
        return "was refused as disabled" if before.isdisjoint(forbidding) else None
    if outcome == NOT_FOUND:
        return "found no entity" if GONE not in before else None
    if outcome == QUOTA_EXCEEDED:
        return None if has_quota else "was refused for a quota that nobody reached"
    if outcome in TRANSIENT:
        return "was told to try again" if before == {GONE} else None
    return None if outcome == LOST else f"was refused with {outcome}, which is not documented for it"


def _deliveries(history: LifeHistory) -> Iterator[str]:
    sent = {use.uid: use for use in history.uses if use.what == "send"}
    for at_ms, uid in history.deliveries:
        if history.statuses(at_ms - GRACE_MS, at_ms) <= set(_NO_RECEIVING):
            yield f"{uid} was delivered at {at_ms} ms though the status forbade it"
        use = sent.get(uid)
        if use is None:
            yield f"{uid} was never sent (I16)"
        elif use.outcome == OK and history.gone_between(use.end_ms, at_ms - GRACE_MS):
            yield f"{uid} was sent to an entity that is gone, and delivered by its namesake at {at_ms} ms"
        elif use.outcome not in (OK, LOST, *TRANSIENT):
            yield f"{uid} was refused with {use.outcome} and delivered (I38)"


def _quota(history: LifeHistory, limit: int) -> Iterator[str]:
    sends = [use for use in history.uses if use.what == "send"]
    for use in sends:
        if use.outcome == OK:
            held = _counted(history, sends, use, surely=True)
            if held + use.size > limit:
                yield f"{use.uid} of {use.size} bytes was accepted beside {held} of {limit} bytes (I33)"
        elif use.outcome == QUOTA_EXCEEDED:
            held = _counted(history, sends, use, surely=False)
            if held + use.size <= limit:
                yield f"{use.uid} of {use.size} bytes was refused beside {held} of {limit} bytes (I33)"


def _counted(history: LifeHistory, sends: Iterable[Use], use: Use, *, surely: bool) -> int:
    """Bytes that the entity held while a message was sent: at least, or at most."""
    held = 0
    for other in sends:
        if other is use:
            continue
        tried_ms, done_ms = history.settled.get(other.uid, (None, None))
        if surely:
            is_there = other.outcome == OK and other.end_ms < use.begin_ms
            is_there = is_there and (tried_ms is None or tried_ms > use.end_ms)
        else:
            is_there = other.outcome in (OK, LOST, *TRANSIENT) and other.begin_ms <= use.end_ms
            is_there = is_there and (done_ms is None or done_ms >= use.begin_ms)
        held += other.size if is_there else 0
    return held


def _losses(history: LifeHistory) -> Iterator[str]:
    """Whoever was told yes finds the message in the end, unless the entity was deleted after that (I1)."""
    seen = {uid for _, uid in history.deliveries}
    for use in history.uses:
        is_kept = use.what == "send" and use.outcome == OK and not history.gone_since(use.begin_ms)
        if is_kept and use.uid not in seen:
            yield f"{use.uid} was acknowledged and never came (I1)"
