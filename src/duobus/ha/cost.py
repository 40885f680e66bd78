"""The cost of a pair in operations: by its configuration, and by what a duobus server metered (PN13 to PN15, I59).

Pure. An operation is a message that is sent or handed out, once for each 64 KiB begun, or a receive that ends without a
message; settlements and renewals are free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from duobus.model.metering import EMPTY_RECEIVE, PING, RECEIVE, SEND, MeteringRecord, operations_of

HOUR_S: Final = 3_600
DAY_HOURS: Final = 24
MONTH_DAYS: Final = 30
#: Sent to the backlog, received from it, sent to the primary, received there (PN15).
STAGES: Final = 4
_BACKLOG: Final = re.compile(r"(?P<primary>.+)/x-servicebus-transfer/\d{1,9}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CostPlan:
    """A configuration of a pair, and the outage for which its operations are estimated.

    Attributes:
        backlog_queues: Number of backlog queues that syphons poll.
        poll_s: Seconds of a receive that ends without a message.
        syphons: Number of syphons; each polls every backlog queue.
        ping_interval_s: Seconds between two pings of an entity that has failed over.
        clients: Number of paired clients; each sends pings of its own.
        entities: Number of entities that fail over.
        outage_s: Seconds for which the primary is away, beyond the failover interval.
        messages: Number of messages that are diverted in that time.
        message_bytes: Size of each of these messages.
    """

    backlog_queues: int = 10
    poll_s: int = 900
    syphons: int = 1
    ping_interval_s: int = 60
    clients: int = 1
    entities: int = 1
    outage_s: int = 0
    messages: int = 0
    message_bytes: int = 1024


@dataclass(frozen=True, slots=True)
class Estimate:
    """The operations that a configuration causes.

    Attributes:
        polls_per_hour: Receives of idle syphons in an hour.
        polls_per_day: Receives of idle syphons in a day.
        polls_per_month: Receives of idle syphons in 30 days.
        pings: Pings during the outage.
        diverted: Operations for the messages of the outage, in all four stages.
        outage: ``pings`` and ``diverted`` together.
    """

    polls_per_hour: float
    polls_per_day: float
    polls_per_month: float
    pings: int
    diverted: int
    outage: int


def estimate(plan: CostPlan) -> Estimate:
    """Return the operations that a configuration causes."""
    # A queue is polled again as soon as a poll ends.
    an_hour = plan.syphons * plan.backlog_queues * HOUR_S / plan.poll_s
    # The first ping comes one interval after the failover.
    pings = plan.clients * plan.entities * (plan.outage_s // plan.ping_interval_s)
    diverted = STAGES * plan.messages * operations_of(plan.message_bytes)
    a_day = an_hour * DAY_HOURS
    return Estimate(an_hour, a_day, a_day * MONTH_DAYS, pings, diverted, pings + diverted)


@dataclass(slots=True)
class Used:
    """The operations that a server metered for a pair.

    Attributes:
        polls: Receives from backlog queues that ended without a message.
        to_backlog: Operations of messages sent to backlog queues (``from_backlog``: received from them).
        messages_to_backlog: Number of these messages (``messages_from_backlog``: of those received).
        bytes_to_backlog: Size of these messages (``bytes_from_backlog``: of those received).
        pings: Operations of pings.
        first_ms: Start of the first minute with a record; None without any record.
        last_ms: End of the last minute with a record; None without any record.
        by_queue: Operations on each backlog queue.
    """

    polls: int = 0
    to_backlog: int = 0
    from_backlog: int = 0
    messages_to_backlog: int = 0
    messages_from_backlog: int = 0
    bytes_to_backlog: int = 0
    bytes_from_backlog: int = 0
    pings: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    by_queue: dict[str, int] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """All operations of the pair, without deliveries at the primary, which are metered with all other messages."""
        return self.polls + self.to_backlog + self.from_backlog + self.pings

    @property
    def hours(self) -> float:
        """Time between the first and the last record."""
        return 0.0 if self.first_ms is None or self.last_ms is None else (self.last_ms - self.first_ms) / 3_600_000


def used(records: Iterable[MeteringRecord], primary_name: str | None = None) -> Used:
    """Add up the records of servers: of the secondary for backlog queues, of the primary for pings.

    Args:
        records: The records, in any order.
        primary_name: Count the backlog queues of this primary only; by default those of all primaries.
    """
    found = Used()
    for record in records:
        found.first_ms = record.minute_ms if found.first_ms is None else min(found.first_ms, record.minute_ms)
        found.last_ms = max(found.last_ms or 0, record.minute_ms + 60_000)
        if record.kind == PING:
            found.pings += record.operations
        match = _BACKLOG.fullmatch(record.entity)
        if match is None or (primary_name is not None and match["primary"].lower() != primary_name.lower()):
            continue
        if record.kind == EMPTY_RECEIVE:
            found.polls += record.operations
        elif record.kind == SEND:
            found.to_backlog += record.operations
            found.messages_to_backlog += record.messages
            found.bytes_to_backlog += record.bytes
        elif record.kind == RECEIVE:
            found.from_backlog += record.operations
            found.messages_from_backlog += record.messages
            found.bytes_from_backlog += record.bytes
        else:
            continue
        found.by_queue[record.entity] = found.by_queue.get(record.entity, 0) + record.operations
    return found
