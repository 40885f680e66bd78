"""The options of a pair of namespaces, checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock, Entropy
from duobus.ha.outage import CLASSIFIERS, Classifier

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, aio
    from azure.servicebus.aio import management as aio_management
    from azure.servicebus.management import ServiceBusAdministrationClient

    from duobus.ha.events import Event

BACKLOG_QUEUES_DEFAULT: Final = 10
#: Namespaces hold 10,000 entities; far fewer spread the load of a pair.
BACKLOG_QUEUES_MAX: Final = 1_000
MINUTE: Final = timedelta(minutes=1)
#: Seconds, as the other bounds of times.
FAILOVER_INTERVAL_S_MAX: Final = 3_600
PING_INTERVAL_S_MIN, PING_INTERVAL_S_MAX = 1, 1_800
#: A long poll of the syphon: 40 receives an hour of 10 idle backlog queues (PN14).
POLL_DEFAULT: Final = timedelta(minutes=15)
POLL_S_MIN, POLL_S_MAX = 1, 3_600
DEPTH_INTERVAL_S_MIN, DEPTH_INTERVAL_S_MAX = 1, 3_600

ON_QUOTA: Final = ("raise", "divert")
TTL_MODES: Final = ("restart", "remaining")


@dataclass(frozen=True, eq=False)
class SendAvailabilityPairedNamespaceOptions:
    """Options of ``pair_namespace``, with the names and the defaults of the API that Azure has retired.

    Args:
        secondary: Client of the namespace that keeps messages while the primary is away; of the same kind, with asyncio
            or without, as that of the primary.
        backlog_queue_count: Queues ``<primary namespace>/x-servicebus-transfer/<i>`` in the secondary, 1 to 1,000.
        failover_interval: Time without a successful send, after a failure, until sends are diverted; 0 to 60 minutes.
            With zero the failing send itself is diverted; otherwise the failing send raises its error.
        enable_syphon: Also carry messages from the backlog queues to the primary. At least one process has to do so.
        ping_primary_interval: Time between two pings of an entity that has failed over; 1 second to 30 minutes.
        administration: Client that may create the backlog queues (Manage). Without it the queues have to exist.
        classifier: Which errors are an outage: ``outage``, ``documented`` or ``legacy``, or a function of your own.
        on_quota: What a send does when the primary's entity is full: ``raise`` or ``divert``.
        ttl_mode: Whether the time to live of a syphoned message starts again (``restart``) or goes on (``remaining``).
        poll: How long a receive of the syphon waits for messages; 1 second to 60 minutes.
        depth_interval: Time between two counts of the messages in backlog queues, for events and metrics; 1 second to
            60 minutes, or None. Needs ``administration``.
        report_state: Also tell the state of the pair to whoever watches, and take the wish that an entity counts as
            healthy again: by small messages in the queue ``<primary namespace>/x-duobus-pair-state`` of the secondary,
            at each change and every minute. The queue has to exist, or ``administration`` makes it.
        primary_name: Name of the primary namespace in the paths; by default the first label of its host name.
        on_event: Called with every event, in the event loop or thread in which the event happened; see
            ``duobus.ha.events``. The function must not block.

    Raises:
        ValueError: A value is out of range; the text has the range.
        TypeError: A value has the wrong type.
    """

    secondary: ServiceBusClient | aio.ServiceBusClient
    backlog_queue_count: int = BACKLOG_QUEUES_DEFAULT
    failover_interval: timedelta = MINUTE
    enable_syphon: bool = False
    ping_primary_interval: timedelta = MINUTE
    administration: ServiceBusAdministrationClient | aio_management.ServiceBusAdministrationClient | None = None
    classifier: str | Classifier = "outage"
    on_quota: str = "raise"
    ttl_mode: str = "restart"
    poll: timedelta = POLL_DEFAULT
    depth_interval: timedelta | None = None
    report_state: bool = False
    primary_name: str | None = None
    on_event: Callable[[Event], None] | None = None
    clock: Clock = field(default_factory=Clock)
    entropy: Entropy = field(default_factory=Entropy)

    def __post_init__(self) -> None:
        if not hasattr(self.secondary, "get_queue_sender"):
            raise TypeError(f"secondary has to be a ServiceBusClient, not {self.secondary!r}")
        count = self.backlog_queue_count
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"backlog_queue_count has to be an int, not {count!r}")
        if not 1 <= count <= BACKLOG_QUEUES_MAX:
            raise ValueError(f"backlog_queue_count has to be 1 to {BACKLOG_QUEUES_MAX:,}, not {count:,}")
        _check_range("failover_interval", self.failover_interval, 0, FAILOVER_INTERVAL_S_MAX)
        _check_range("ping_primary_interval", self.ping_primary_interval, PING_INTERVAL_S_MIN, PING_INTERVAL_S_MAX)
        _check_range("poll", self.poll, POLL_S_MIN, POLL_S_MAX)
        if self.depth_interval is not None:
            _check_range("depth_interval", self.depth_interval, DEPTH_INTERVAL_S_MIN, DEPTH_INTERVAL_S_MAX)
            if self.administration is None:
                raise ValueError("depth_interval needs administration=: only an administration client tells depths")
        _check_choice("on_quota", self.on_quota, ON_QUOTA)
        _check_choice("ttl_mode", self.ttl_mode, TTL_MODES)
        if isinstance(self.classifier, str):
            _check_choice("classifier", self.classifier, tuple(CLASSIFIERS))
        elif not callable(self.classifier):
            raise TypeError(f"classifier has to be a name or a function, not {self.classifier!r}")

    @property
    def classify(self) -> Classifier:
        """The classifier as a function."""
        return CLASSIFIERS[self.classifier] if isinstance(self.classifier, str) else self.classifier


def _check_range(name: str, value: Any, least_s: int, most_s: int) -> None:
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} has to be a datetime.timedelta, not {value!r}")
    seconds = value.total_seconds()
    if not least_s <= seconds <= most_s:
        raise ValueError(f"{name} has to be {_in_words(least_s)} to {_in_words(most_s)}, not {_in_words(seconds)}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} has to be one of {', '.join(choices)}, not {value!r}")


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 60 else f"{seconds:g} seconds"


# Bounds of what an application may ask for; of asyncio and of threads alike.

#: Sends of an ``OverlappedSender`` on their way at the same time.
OVERLAP_DEFAULT: Final = 10
OVERLAP_MAX: Final = 1_000
#: Failed sends that no caller has read; at this number the next send raises them.
FAILURES_MAX: Final = 1_000
#: Messages of one call of an ``OutboxSender``; all of them are one commit.
LIST_MAX: Final = 10_000
#: Digits of a number of a backlog queue; a path with more is somebody else's.
BACKLOG_DIGITS_MAX: Final = 9
#: Pings of one entity that wait for the primary at the same time, so that a ping that hangs does not delay later ones.
#: It is enough for pings every second of which each takes its longest time.
PINGS_WAITING_MAX: Final = 12
#: Messages for destinations that are away that a syphon keeps locked, and gives back when it tries again. Further ones
#: come back by themselves, when their locks end.
SYPHON_HELD_MAX: Final = 1_000
#: Destinations whose links a syphon keeps open.
SYPHON_SENDERS_MAX: Final = 100
#: Sets of scopes whose tokens a ``LastingCredential`` keeps.
SCOPES_MAX: Final = 16
