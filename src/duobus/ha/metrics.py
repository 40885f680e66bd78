"""Metrics of a pair through the OpenTelemetry API, where that is installed (``pip install 'duobus[telemetry]'``).

Only events change these metrics. A send to a healthy entity makes no event, so metrics cost such a send nothing. The
Prometheus exporter makes its names from these names: ``duobus.pair.failovers`` is scraped as
``duobus_pair_failovers_total``. docs/reference/pair-telemetry.md lists the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from duobus.ha import events
from duobus.ha.failover import Place, State

try:
    from opentelemetry import metrics as otel
except ImportError:  # it is optional
    otel = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

SCOPE: Final = "duobus.ha"
STATE: Final = "duobus.pair.state"
OUT_OF_ROTATION: Final = "duobus.pair.backlog.out_of_rotation"
DEPTH: Final = "duobus.pair.backlog.depth"
LAG: Final = "duobus.pair.syphon.lag"
#: Counter to its unit, its description and its attributes.
COUNTERS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "duobus.pair.send_failures": ("{failure}", "Sends to the primary that began a failover interval.", ("entity",)),
    "duobus.pair.failovers": ("{failover}", "Failovers that were engaged.", ("entity",)),
    "duobus.pair.recoveries": ("{recovery}", "Returns to the primary.", ("entity", "reason")),
    "duobus.pair.time_in_failover": ("s", "Time in failover, counted when it ended.", ("entity",)),
    "duobus.pair.diverted": ("{message}", "Messages that went to a backlog queue.", ("entity", "backlog")),
    "duobus.pair.backlog.failures": ("{failure}", "Times a backlog queue left the rotation.", ("backlog",)),
    "duobus.pair.backlog.missing": ("{queue}", "Backlog queues that the pair does without.", ("backlog",)),
    "duobus.pair.pings": ("{ping}", "Pings of entities that have failed over.", ("entity", "result")),
    "duobus.pair.faults": ("{fault}", "Pairs that were faulted.", ()),
    "duobus.pair.syphon.polls": ("{receive}", "Receives of the syphon that ended.", ("backlog", "result")),
    "duobus.pair.syphon.messages": ("{message}", "Messages that reached their entity.", ("entity", "backlog")),
    "duobus.pair.syphon.skipped": ("{message}", "Messages whose entity was away; they stay.", ("entity", "backlog")),
    "duobus.pair.syphon.dead_lettered": ("{message}", "Messages that no entity takes.", ("backlog", "reason")),
    "duobus.pair.syphon.failures": ("{failure}", "Failed receives from backlog queues.", ("backlog",)),
}
#: Gauges and histograms, in the same form.
OTHERS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    STATE: ("1", "0 healthy, 1 suspect, 2 failed over, or some of its keys; always healthy has none.", ("entity",)),
    OUT_OF_ROTATION: ("{queue}", "Backlog queues that have failed and rest.", ()),
    DEPTH: ("{message}", "Messages in a backlog queue.", ("backlog", "state")),
    LAG: ("s", "Age in the backlog of the oldest message of each batch that reached its entity.", ("entity",)),
}
_VALUES: Final = {State.HEALTHY: 0, State.SUSPECT: 1, State.FAILED_OVER: 2}
#: What dead letters say; reasons that others wrote would make a time series each.
REASONS: Final = frozenset(
    {
        "Destination queue not indicated in message when fetched from backlog.",
        "Invalid type in property.",
        "The message cannot be delivered to the destination.",
        "TTLExpiredException",
    }
)


class PairMetrics:
    """Turns the events of one pair, or of one syphon, into metrics; give it to a ``Reporter``.

    Args:
        namespace: Host name of the primary, an attribute of every metric.
        meter: Makes the instruments; by default a meter of the application's meter provider.
        states: Returns the entities, and groups of their keys, that are not healthy at present.
        resting: Returns the number of backlog queues out of the rotation.
    """

    def __init__(
        self,
        namespace: str,
        *,
        meter: Meter | None = None,
        states: Callable[[], Mapping[Place, State]] = dict,
        resting: Callable[[], int] | None = None,
    ) -> None:
        meter = otel.get_meter(SCOPE) if meter is None else meter
        self._namespace = namespace
        self._states = states
        self._counters = {name: meter.create_counter(name, unit, text) for name, (unit, text, _) in COUNTERS.items()}
        self._lag = meter.create_histogram(LAG, OTHERS[LAG][0], OTHERS[LAG][1])
        #: Entities that were not healthy once: their gauge goes back to 0 rather than away.
        self._known: set[str] = set()
        self._depths: dict[str, events.BacklogDepth] = {}
        self._resting = resting
        meter.create_observable_gauge(STATE, [self._observe_states], *OTHERS[STATE][:2])
        meter.create_observable_gauge(DEPTH, [self._observe_depths], *OTHERS[DEPTH][:2])
        if resting is not None:
            meter.create_observable_gauge(OUT_OF_ROTATION, [self._observe_rotation], *OTHERS[OUT_OF_ROTATION][:2])

    def close(self) -> None:
        """Stop showing states, because instruments cannot be removed from a meter."""
        self._states = dict
        self._resting = None
        self._known.clear()
        self._depths.clear()

    def __call__(self, event: events.Event) -> None:
        """Count an event."""
        note = _NOTES.get(type(event))
        if note is not None:
            note(self, event)

    def add(self, name: str, number: float, **attributes: str) -> None:
        """Add to a counter of this pair."""
        self._counters[name].add(number, {"namespace": self._namespace, **attributes})

    # -- what each event counts as ------------------------------------------------------------------------------

    def _send_failed(self, event: events.SendFailed) -> None:
        self._known.add(event.entity)
        self.add("duobus.pair.send_failures", 1, entity=event.entity)

    def _engaged(self, event: events.FailoverEngaged) -> None:
        self._known.add(event.entity)
        self.add("duobus.pair.failovers", 1, entity=event.entity)

    def _healthy(self, event: events.PrimaryHealthy) -> None:
        self.add("duobus.pair.recoveries", 1, entity=event.entity, reason=event.reason)
        if event.was_diverted:
            self.add("duobus.pair.time_in_failover", event.after_ms / 1000, entity=event.entity)

    def _diverted(self, event: events.Diverted) -> None:
        self.add("duobus.pair.diverted", event.messages, entity=event.entity, backlog=event.backlog)

    def _backlog_failed(self, event: events.BacklogFailed) -> None:
        self.add("duobus.pair.backlog.failures", 1, backlog=event.entity)

    def _backlog_missing(self, event: events.BacklogMissing) -> None:
        self.add("duobus.pair.backlog.missing", 1, backlog=event.entity)

    def _depth(self, event: events.BacklogDepth) -> None:
        self._depths[event.entity] = event

    def _ping(self, event: events.PingSent) -> None:
        self.add("duobus.pair.pings", 1, entity=event.entity, result="failed" if event.error else "accepted")

    def _faulted(self, _: events.Faulted) -> None:
        self.add("duobus.pair.faults", 1)

    def _polled(self, event: events.SyphonPolled) -> None:
        result = "messages" if event.messages else "empty"
        self.add("duobus.pair.syphon.polls", 1, backlog=event.entity, result=result)

    def _syphoned(self, event: events.Syphoned) -> None:
        self.add("duobus.pair.syphon.messages", event.messages, entity=event.entity, backlog=event.backlog)
        self._lag.record(event.lag_ms / 1000, {"namespace": self._namespace, "entity": event.entity})

    def _skipped(self, event: events.SyphonSkipped) -> None:
        self.add("duobus.pair.syphon.skipped", event.messages, entity=event.entity, backlog=event.backlog)

    def _dead_lettered(self, event: events.SyphonDeadLettered) -> None:
        reason = event.reason if event.reason in REASONS else "other"
        self.add("duobus.pair.syphon.dead_lettered", 1, backlog=event.backlog, reason=reason)

    def _syphon_failed(self, event: events.SyphonFailed) -> None:
        self.add("duobus.pair.syphon.failures", 1, backlog=event.entity)

    # -- what is looked up when somebody asks -------------------------------------------------------------------

    def _observe_states(self, _: CallbackOptions) -> Iterable[Observation]:
        values = dict.fromkeys(self._known, _VALUES[State.HEALTHY])
        for place, state in self._states().items():
            # One series for each entity, whatever number of groups of its keys is away.
            entity = place if isinstance(place, str) else place.entity
            values[entity] = max(values.get(entity, 0), _VALUES[state])
        for entity, value in sorted(values.items()):
            yield otel.Observation(value, {"namespace": self._namespace, "entity": entity})

    def _observe_depths(self, _: CallbackOptions) -> Iterable[Observation]:
        for queue, depth in sorted(self._depths.items()):
            for state, number in (("waiting", depth.waiting), ("dead", depth.dead)):
                yield otel.Observation(number, {"namespace": self._namespace, "backlog": queue, "state": state})

    def _observe_rotation(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._resting is not None:
            yield otel.Observation(self._resting(), {"namespace": self._namespace})


_NOTES: Final[dict[type[events.Event], Callable[[PairMetrics, Any], None]]] = {
    events.SendFailed: PairMetrics._send_failed,
    events.FailoverEngaged: PairMetrics._engaged,
    events.PrimaryHealthy: PairMetrics._healthy,
    events.Diverted: PairMetrics._diverted,
    events.BacklogFailed: PairMetrics._backlog_failed,
    events.BacklogMissing: PairMetrics._backlog_missing,
    events.BacklogDepth: PairMetrics._depth,
    events.PingSent: PairMetrics._ping,
    events.Faulted: PairMetrics._faulted,
    events.SyphonPolled: PairMetrics._polled,
    events.Syphoned: PairMetrics._syphoned,
    events.SyphonSkipped: PairMetrics._skipped,
    events.SyphonDeadLettered: PairMetrics._dead_lettered,
    events.SyphonFailed: PairMetrics._syphon_failed,
}


def metrics_of(
    namespace: str,
    *,
    states: Callable[[], Mapping[Place, State]] = dict,
    resting: Callable[[], int] | None = None,
) -> PairMetrics | None:
    """Return the metrics of a pair; None where OpenTelemetry is not installed."""
    return None if otel is None else PairMetrics(namespace, states=states, resting=resting)
