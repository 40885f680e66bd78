"""Failovers of pairs of namespaces, as the clients of the pairs report these to a queue of the secondary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duobus.console.namespace.failures import NamespaceError
from duobus.ha.reports.message import Report, read_report, state_queue, states_of

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient
    from duobus.console.observation.readings import EntityCounts

#: Messages with reports that one call peeks at, and calls: 1,000 clients that report a change a minute.
_REPORTS_PEEKED: Final = 250
_REPORT_CALLS_MAX: Final = 12
_REPORT_LIFE_MS: Final = 180_000
#: How long reading the reports of one pair may take, in seconds.
_PEEK_S: Final = 10.0
#: Pairs whose reports are read at each look at a namespace.
_PAIRS_MAX: Final = 10
_STATE_QUEUE: Final = state_queue("")


class PairState(NamedTuple):
    """What the clients of one pair report.

    Attributes:
        primary: Name of the primary in the paths of the queues of the pair.
        states: As ``states_of`` puts the reports together; None where nobody reports, or the key may not look.
        failure: Why the secondary tells nothing; empty when the secondary has answered.
    """

    primary: str
    states: Mapping[str, Any] | None
    failure: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """For a page, and for JSON."""
        return {"primary": self.primary, "states": self.states, "failure": self.failure}


def reporting_primaries(entities: Mapping[str, EntityCounts]) -> list[str]:
    """Names of the primaries whose clients have put reports into this namespace."""
    names = (
        path.removesuffix(_STATE_QUEUE)
        for path, counts in entities.items()
        if counts.kind == "queue" and counts.active and path.endswith(_STATE_QUEUE)
    )
    return sorted(name for name in names if name)[:_PAIRS_MAX]


async def failovers_in(namespace: NamespaceClient, entities: Mapping[str, EntityCounts]) -> tuple[PairState, ...]:
    """The pairs whose secondary a namespace is, as far as their clients report."""
    if not namespace.rights.listen:
        return ()
    now_ms = namespace.clock.now_ms()
    return tuple([await failovers_of(namespace, primary, now_ms) for primary in reporting_primaries(entities)])


async def failovers_of(secondary: NamespaceClient, primary: str, now_ms: int) -> PairState:
    """What the clients of one pair report; never raises for a secondary that does not answer."""
    try:
        return PairState(primary, await read_states(secondary, primary, now_ms))
    except NamespaceError as error:
        return PairState(primary, None, error.text)


async def read_states(secondary: NamespaceClient, primary: str, now_ms: int) -> dict[str, Any] | None:
    """What the clients of a pair report; None when none does, or the key may not look.

    Raises:
        NamespaceError: The secondary does not answer.
    """
    if not secondary.rights.listen:
        return None
    path = state_queue(primary)
    if secondary.is_duobus and not await secondary.servers():
        # Without a look at a queue that is not there, which the server would count as an error.
        found = await secondary.operation("GET", "/$duobus/entities", query={"prefix": path})
        if not any(row["entity"].lower() == path.lower() for row in found):
            return None
    reports: list[Report] = []
    try:
        async with (
            secondary.telling(f"the queue {path}", _PEEK_S),
            secondary.messaging.get_queue_receiver(path) as receiver,
        ):
            first = 1
            for _ in range(_REPORT_CALLS_MAX):
                messages = await receiver.peek_messages(max_message_count=_REPORTS_PEEKED, sequence_number=first)
                reports += [
                    report
                    for message in messages
                    if not _is_old(message, now_ms) and (report := read_report(message)) is not None
                ]
                if len(messages) < _REPORTS_PEEKED:
                    break
                first = max(message.sequence_number or 0 for message in messages) + 1
    except NamespaceError:
        return None
    return states_of(reports) if reports else None


def _is_old(message: Any, now_ms: int) -> bool:
    """Whether a report is of a client that has reported nothing since, and so has ended."""
    at = message.enqueued_time_utc
    return at is not None and now_ms - at.timestamp() * 1_000 > _REPORT_LIFE_MS
