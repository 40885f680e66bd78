"""Failover of one client, entity by entity: where a send goes, when to ping, and when the primary is healthy again.

Pure: events and ``now_ms`` go in, destinations and changes of state come out. The machine has three states and six
edges, and no others (invariant I12; requirements PN3, PN8, PN9):

    HEALTHY      --a send failed--------------------------------->  SUSPECT
    SUSPECT      --a send succeeded------------------------------>  HEALTHY
    SUSPECT      --the failover interval passed without success-->  FAILED_OVER
    FAILED_OVER  --a ping succeeded, or marked healthy by hand--->  HEALTHY
    HEALTHY      --a send failed, and the interval is zero------->  FAILED_OVER
    HEALTHY      --busy for longer than the failover interval---->  FAILED_OVER

A send that was on its way when failover engaged, and succeeds late, changes nothing: only a ping ends a failover.
"Busy" alone is no suspicion, because a namespace with a rate limit answers "busy" all day and accepts other sends. It
counts only when the primary is busy again, more than the interval after the first "busy", and no send has succeeded in
between.

A group of keys of an entity has a state of its own, beside that of the entity.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from duobus.ha.outage_scope import KeyGroup

#: That which has a state: an entity, by its path, or a group of its keys.
Place = str | KeyGroup

#: What ended a suspicion or a failover.
BY_SEND: Final = "send"
BY_PING: Final = "ping"
BY_HAND: Final = "marked healthy"


class State(Enum):
    """The state of one entity of the primary."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"


class Change(NamedTuple):
    """An edge that was taken.

    Attributes:
        entity: Path of the entity, or the group of its keys.
        state: The state that it has now.
        was: The state that it left.
        at_ms: Time of the change.
        since_ms: Time at which it had entered the state that it left; for HEALTHY the same as ``at_ms``.
        reason: For a return to HEALTHY: BY_SEND, BY_PING or BY_HAND; empty otherwise.
    """

    entity: Place
    state: State
    was: State
    at_ms: int
    since_ms: int
    reason: str


class _Trouble:
    """An entity that is not healthy; a healthy one has no record, so that nothing is kept for it."""

    __slots__ = ("failed_over", "next_ping_ms", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.failed_over = False
        self.next_ping_ms = 0

    @property
    def state(self) -> State:
        return State.FAILED_OVER if self.failed_over else State.SUSPECT


class Failover:
    """The failover of every entity of one paired client.

    Args:
        interval_ms: Time without a successful send after a failure, until sends are diverted; 0 diverts at once.
        ping_ms: Time between two pings of an entity that has failed over; the first one comes after this time.
    """

    __slots__ = ("_busy", "_interval_ms", "_ping_ms", "_troubles")

    def __init__(self, interval_ms: int, ping_ms: int) -> None:
        self._interval_ms = interval_ms
        self._ping_ms = ping_ms
        self._troubles: dict[Place, _Trouble] = {}
        #: Entities that are busy and nothing else, with the time since when.
        self._busy: dict[Place, int] = {}

    def is_calm(self, entity: Place) -> bool:
        """Whether nothing is recorded about an entity, so that a successful send changes nothing."""
        return entity not in self._troubles and entity not in self._busy

    def state(self, entity: Place) -> State:
        """The state as of the last call with a time."""
        trouble = self._troubles.get(entity)
        return State.HEALTHY if trouble is None else trouble.state

    def troubled(self) -> dict[Place, State]:
        """The entities that are not healthy."""
        # A copy first: metrics ask from a thread of their own.
        return {entity: trouble.state for entity, trouble in list(self._troubles.items())}

    def is_diverted(self, entity: Place) -> bool:
        """Whether a send has to go to a backlog queue. Call ``advance`` first."""
        trouble = self._troubles.get(entity)
        return trouble is not None and trouble.failed_over

    def on_send_succeeded(self, entity: Place, now_ms: int) -> Change | None:
        """Note that the primary took a message of this entity."""
        self._busy.pop(entity, None)
        trouble = self._troubles.get(entity)
        if trouble is None or trouble.failed_over:
            return None
        return self._heal(entity, now_ms, BY_SEND)

    def on_send_failed(self, entity: Place, now_ms: int) -> Change | None:
        """Note that the primary did not take a message, for a reason that counts as an outage.

        Afterwards ``is_diverted`` says whether this very message is to be diverted: it is with an interval of zero, and
        when failover engaged while the send was on its way.
        """
        trouble = self._troubles.get(entity)
        if trouble is not None:
            return None
        self._busy.pop(entity, None)
        trouble = self._troubles[entity] = _Trouble(now_ms)
        if self._interval_ms == 0:
            return self._engage(entity, trouble, State.HEALTHY, now_ms)
        return Change(entity, State.SUSPECT, State.HEALTHY, now_ms, now_ms, "")

    def on_busy(self, entity: Place, now_ms: int) -> Change | None:
        """Note that the primary did not take a message and said only that it is busy.

        Afterwards ``is_diverted`` says whether this very message is to be diverted.
        """
        if entity in self._troubles:
            return None
        since_ms = self._busy.setdefault(entity, now_ms)
        if now_ms - since_ms <= self._interval_ms:
            return None
        del self._busy[entity]
        trouble = self._troubles[entity] = _Trouble(since_ms)
        return self._engage(entity, trouble, State.HEALTHY, now_ms)

    def advance(self, now_ms: int) -> list[Change]:
        """Engage the failover of every entity whose interval has passed without a success."""
        return [
            self._engage(entity, trouble, State.SUSPECT, now_ms)
            for entity, trouble in self._troubles.items()
            if not trouble.failed_over and now_ms - trouble.since_ms >= self._interval_ms
        ]

    def pings_due(self, now_ms: int) -> list[Place]:
        """Return the entities to ping now; each is due again one ping interval from now."""
        due = [e for e, trouble in self._troubles.items() if trouble.failed_over and trouble.next_ping_ms <= now_ms]
        for entity in due:
            self._troubles[entity].next_ping_ms = now_ms + self._ping_ms
        return due

    def on_ping_succeeded(self, entity: Place, now_ms: int) -> Change | None:
        """Note that the primary took a ping: every sender uses the primary again at once (PN9)."""
        if not self.is_diverted(entity):
            return None
        return self._heal(entity, now_ms, BY_PING)

    def mark_healthy(self, entity: Place, now_ms: int) -> Change | None:
        """End suspicion or failover by hand."""
        self._busy.pop(entity, None)
        return self._heal(entity, now_ms, BY_HAND) if entity in self._troubles else None

    def next_ms(self, ahead_ms: int = 0) -> int | None:
        """The time at which ``advance`` or ``pings_due`` has something to do; None while all is healthy.

        Args:
            ahead_ms: Time before a ping is due at which the caller wants to know of the ping.
        """
        return min(
            (
                trouble.next_ping_ms - ahead_ms if trouble.failed_over else trouble.since_ms + self._interval_ms
                for trouble in self._troubles.values()
            ),
            default=None,
        )

    def _engage(self, entity: Place, trouble: _Trouble, was: State, now_ms: int) -> Change:
        suspect_since_ms = trouble.since_ms
        trouble.failed_over = True
        trouble.since_ms = now_ms
        trouble.next_ping_ms = now_ms + self._ping_ms
        return Change(entity, State.FAILED_OVER, was, now_ms, suspect_since_ms, "")

    def _heal(self, entity: Place, now_ms: int, reason: str) -> Change:
        trouble = self._troubles.pop(entity)
        return Change(entity, State.HEALTHY, trouble.state, now_ms, trouble.since_ms, reason)
