"""The cost of a pair in operations: by its configuration, and by what a duobus server metered (PN13 to PN15, I59).

Pure. An operation is a message sent or handed out, per 64 KiB begun, or a receive that ends with nothing; settlements
and renewals are free.
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
    """A configuration, and what is to happen under it.

    Attributes:
        backlog_queues: That are polled.
        poll_s: Seconds of a receive that ends with nothing.
        syphons: Syphons side by side; each polls every queue.
        ping_interval_s: Seconds between two pings of an entity that has failed over.
        clients: Paired clients; each pings for itself.
        entities: That fail over.
        outage_s: How long the primary is away, beyond the failover interval.
        messages: Diverted in that time.
        message_bytes: Size of each.
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
    """Operations by configuration.

    Attributes:
        polls_per_hour: Receives of idle syphons; likewise by day and in 30 days.
        pings: During the outage.
        diverted: For the messages of the outage, all four stages.
        outage: Both together.
    """

    polls_per_hour: float
    polls_per_day: float
    polls_per_month: float
    pings: int
    diverted: int
    outage: int


def estimate(plan: CostPlan) -> Estimate:
    """Return the operations that a configuration brings."""
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
        polls: Receives from backlog queues that brought nothing.
        to_backlog: Operations of messages sent to backlog queues; likewise those received from them.
        messages_to_backlog: How many messages that were; likewise those received.
        bytes_to_backlog: Their size; likewise those received.
        pings: Operations of pings.
        first_ms: Start of the first minute with a record; None without any.
        last_ms: End of the last one.
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
        """All of them; at the primary the delivery of syphoned messages is metered with that of all others."""
        return self.polls + self.to_backlog + self.from_backlog + self.pings

    @property
    def hours(self) -> float:
        """Time between the first and the last record."""
        return 0.0 if self.first_ms is None or self.last_ms is None else (self.last_ms - self.first_ms) / 3_600_000


def used(records: Iterable[MeteringRecord], primary_name: str | None = None) -> Used:
    """Add up the records of servers: of the secondary for backlog queues, of the primary for pings.

    Args:
        records: In any order.
        primary_name: Count the backlog queues of this primary only; by default those of all.
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
