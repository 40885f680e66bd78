"""What one look at a namespace has found: the server, its entities with their counts, and its messaging stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from duobus.console.observation.failovers import PairState


class EntityCounts(NamedTuple):
    """The counts of one queue, topic or subscription.

    Attributes:
        kind: ``queue``, ``topic`` or ``subscription``.
        is_available: False while a part of the entity is in a store that is away.
        active, dead, scheduled, deferred, locked: Messages; ``dead`` with those of transfers. Azure tells no locks.
        sent, received, settled: Messages since the start of the server; None where nobody counts.
    """

    kind: str
    is_available: bool
    active: int
    dead: int
    scheduled: int
    deferred: int | None
    locked: int | None
    sent: int | None
    received: int | None
    settled: int | None


class Reading(NamedTuple):
    """One look at a namespace.

    Attributes:
        at_ms: When that was, in ms since 1970.
        elapsed_ms: A time for differences that no change of a clock bends.
        server: What ``/$duobus/server`` tells; empty for a namespace of Azure.
        entities: The counts by the path of the entity.
        stores: What ``/$duobus/stores`` tells; None where the key may not ask, or there are none.
        is_cut: Whether the namespace has more entities than were read.
        apart_ms: How far the clock of the server is ahead of that of the console; negative when it is behind.
        failovers: What the clients of pairs report whose secondary the namespace is.
        cluster: What ``/$duobus/cluster`` tells; None where the key may not ask, or one server is alone.
    """

    at_ms: int
    elapsed_ms: int
    server: Mapping[str, Any]
    entities: Mapping[str, EntityCounts]
    stores: tuple[Mapping[str, Any], ...] | None
    is_cut: bool
    apart_ms: int = 0
    failovers: tuple[PairState, ...] = ()
    cluster: Mapping[str, Any] | None = None

    @property
    def started_ms(self) -> int:
        """When the server started; 0 where the namespace does not tell."""
        return int(self.server.get("startedMs", 0))

    def total(self, name: str) -> int | None:
        """The sum of a count over all entities; None where nobody counts that."""
        found = [value for counts in self.entities.values() if (value := getattr(counts, name)) is not None]
        return sum(found) if found or not self.entities else None

    def number_of(self, kind: str) -> int:
        """How many entities are of a kind."""
        return sum(counts.kind == kind for counts in self.entities.values())


def entities_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, EntityCounts]:
    """The counts in an answer of ``/$duobus/entities``."""
    return {
        str(row["entity"]): EntityCounts(
            kind=str(row["kind"]),
            is_available=bool(row["available"]),
            active=row["active"],
            dead=row["deadLetter"] + row["transferDeadLetter"],
            scheduled=row["scheduled"],
            deferred=row["deferred"],
            locked=row["locked"],
            sent=row["sent"],
            received=row["received"],
            settled=row["settled"],
        )
        for row in rows
    }


def counts_of_queue(properties: Any, kind: str = "queue") -> EntityCounts:
    """The counts of a queue or subscription of Azure, as the SDK's administration client tells them."""
    dead = (properties.dead_letter_message_count or 0) + (properties.transfer_dead_letter_message_count or 0)
    # The SDK knows scheduled messages of queues only.
    scheduled = getattr(properties, "scheduled_message_count", 0) or 0
    return EntityCounts(kind, True, properties.active_message_count or 0, dead, scheduled, None, None, None, None, None)


def counts_of_topic(properties: Any) -> EntityCounts:
    """The counts of a topic of Azure: its scheduled messages, since all others are in its subscriptions."""
    return EntityCounts("topic", True, 0, 0, properties.scheduled_message_count or 0, None, None, None, None, None)
