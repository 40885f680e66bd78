"""All metrics in one table, rendered for Prometheus from numbers read at scrape time.

Nothing here is called per message: parts of the system keep plain integers for themselves, and the reader given
to ``Metrics`` collects them when somebody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duobus.errors import InternalError

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

#: The type that the page is to be served with.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Samples that are read, or rendered, in one go: some 0.2 ms.
SAMPLES_AT_ONCE: Final = 50


class MetricKind:
    """One row of the table: what is measured, in which unit, under which labels."""

    __slots__ = ("help", "kind", "labels", "name")

    def __init__(self, name: str, kind: str, labels: tuple[str, ...], help: str) -> None:
        self.name = name
        self.kind = kind
        self.labels = labels
        self.help = help


class Sample:
    """One number of one metric.

    Attributes:
        name: Name of a row of METRICS.
        labels: Values of the row's labels, in their order.
        value: The number; for a histogram the sum of everything observed.
        buckets: For a histogram (upper bound, observations up to it) ascending, the last bound infinite; else None.
    """

    __slots__ = ("buckets", "labels", "name", "value")

    def __init__(
        self,
        name: str,
        labels: tuple[str, ...],
        value: float,
        buckets: Sequence[tuple[float, int]] | None = None,
    ) -> None:
        self.name = name
        self.labels = labels
        self.value = value
        self.buckets = buckets


_ENTITY = ("namespace", "entity")
_STORE = ("store",)

METRICS: tuple[MetricKind, ...] = (
    MetricKind("duobus_metered_messages", COUNTER, (*_ENTITY, "kind"), "Messages by kind of metered operation."),
    MetricKind("duobus_metered_bytes", COUNTER, (*_ENTITY, "kind"), "Payload bytes by kind of metered operation."),
    MetricKind("duobus_operations", COUNTER, (*_ENTITY, "kind"), "Metered operations by kind."),
    MetricKind("duobus_messages", GAUGE, (*_ENTITY, "state"), "Messages in an entity by state, of the stores there."),
    MetricKind(
        "duobus_messages_to_forward",
        GAUGE,
        _ENTITY,
        "Messages of an entity that are to be forwarded and have not left yet, of the stores that are there.",
    ),
    MetricKind("duobus_messages_bytes", GAUGE, _ENTITY, "Payload bytes in an entity, of the stores that are there."),
    MetricKind(
        "duobus_messages_locked", GAUGE, _ENTITY, "Messages that receivers hold locked, of the stores that are there."
    ),
    MetricKind("duobus_fragment_available", GAUGE, (*_ENTITY, "fragment"), "1 when a fragment can be used, else 0."),
    MetricKind(
        "duobus_keys_skew",
        GAUGE,
        _ENTITY,
        "Messages of the busiest fragment of a partitioned entity in the last minute, by the mean of its fragments.",
    ),
    MetricKind("duobus_store_available", GAUGE, _STORE, "1 when a store can be used, else 0."),
    MetricKind("duobus_store_failures", COUNTER, _STORE, "Times a store was closed because it had failed."),
    MetricKind("duobus_store_quarantined", GAUGE, _STORE, "Messages found damaged since the store was opened."),
    MetricKind("duobus_store_commits", COUNTER, _STORE, "Durable commits."),
    MetricKind("duobus_store_commit_seconds", HISTOGRAM, _STORE, "Time of one durable commit."),
    MetricKind("duobus_connections", GAUGE, (), "Open AMQP connections."),
    MetricKind("duobus_connections_opened", COUNTER, (), "AMQP connections accepted."),
    MetricKind("duobus_links", GAUGE, (), "Attached links."),
    MetricKind("duobus_errors", COUNTER, ("condition",), "Errors sent to clients by condition."),
    MetricKind("duobus_cluster_nodes", GAUGE, (), "Servers that share the catalog and are alive."),
    MetricKind("duobus_cluster_stores_owned", GAUGE, (), "Messaging stores whose leases this server has."),
    MetricKind("duobus_cluster_drained", GAUGE, (), "1 while this server is told to give its stores away."),
    MetricKind("duobus_cluster_stores_displaced", GAUGE, (), "Stores that are not where their preference says."),
    MetricKind("duobus_cluster_stores_lost", COUNTER, (), "Leases that ended without having been given back."),
    MetricKind("duobus_cluster_beats_missed", COUNTER, (), "Times that the table of leases was not reached."),
    MetricKind("duobus_cluster_passed_links", COUNTER, (), "Links passed on to other servers."),
    MetricKind("duobus_cluster_passed_messages", COUNTER, (), "Messages passed on, in both directions."),
    MetricKind(
        "duobus_clock_ahead_seconds", GAUGE, (), "How far the wall clock is ahead of broker time; below 0 behind it."
    ),
    MetricKind("duobus_memory_bytes", GAUGE, (), "Memory of the process, as far as it is in use (resident)."),
    MetricKind("duobus_incoming_bytes", GAUGE, (), "Bytes of incoming messages that no store has yet."),
    MetricKind("duobus_incoming_limit_bytes", GAUGE, (), "At how many of them the server reads no further."),
    MetricKind("duobus_messages_memory_bytes", GAUGE, (), "Memory of the messages that are in memory, by estimate."),
    MetricKind(
        "duobus_messages_memory_limit_bytes", GAUGE, (), "At how many of them new messages are left to the stores."
    ),
    MetricKind("duobus_http_connections", GAUGE, (), "Open HTTP connections."),
    MetricKind("duobus_relay_listeners", GAUGE, ("namespace", "entity"), "Listeners of a relay at this server."),
    MetricKind("duobus_relay_rendezvous", GAUGE, ("namespace", "entity"), "Pairs of WebSockets joined by a relay."),
    MetricKind("duobus_relay_waiting", GAUGE, ("namespace", "entity"), "Senders that wait for a listener's answer."),
    MetricKind("duobus_relay_requests", COUNTER, ("status",), "HTTP requests to relays, by the status of the answer."),
    MetricKind("duobus_relay_refusals", COUNTER, ("status",), "Handshakes and requests that relays have refused."),
    MetricKind("duobus_relay_bytes", COUNTER, (), "Bytes of messages and bodies that relays have handed on."),
    MetricKind("duobus_certificate_end_seconds", GAUGE, (), "When the server's certificate ends, seconds since 1970."),
    MetricKind("duobus_build_info", GAUGE, ("version",), "1, with the version that runs."),
    MetricKind("duobus_start_time_seconds", GAUGE, (), "When the server was ready, seconds since 1970."),
)

_BY_NAME = {metric.name: metric for metric in METRICS}


class Metrics:
    """Renders the page of ``GET /metrics``.

    Args:
        read: Gives every sample there is, in any order; called once per page, in the caller's thread. Others may have
            their turns between two samples.
    """

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    async def render(self, spend: Callable[[int], Awaitable[None]]) -> bytes:
        """Return the page in Prometheus' text format.

        Args:
            spend: Told of the samples that were read or rendered, a few at a time, so that others have their turns.

        Raises:
            InternalError: A sample's name is not in the table, or it has other labels than its row.
        """
        found: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
        for number, sample in enumerate(self._read(), 1):
            metric = _BY_NAME.get(sample.name)
            if metric is None or len(sample.labels) != len(metric.labels):
                raise InternalError(f"A sample {sample.name!r} {sample.labels!r} fits no row of the table of metrics.")
            found[sample.name].append(sample)
            if not number % SAMPLES_AT_ONCE:
                await spend(SAMPLES_AT_ONCE)
        page: list[bytes] = []
        for metric in METRICS:
            rows = found[metric.name]
            for start in range(0, len(rows), SAMPLES_AT_ONCE):
                part = rows[start : start + SAMPLES_AT_ONCE]
                text = _rendered(metric, part)
                # Only the first part has the two lines that describe the metric.
                page.append(text.split(b"\n", 2)[2] if start else text)
                await spend(len(part))
        return b"".join(page)


class _Part(Collector):
    """Some samples of one metric, as the client library wants them."""

    def __init__(self, metric: MetricKind, rows: Iterable[Sample]) -> None:
        self._family = _family(metric)
        for sample in rows:
            _add(self._family, sample)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield self._family


def _rendered(metric: MetricKind, rows: Iterable[Sample]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Part(metric, rows))
    return generate_latest(registry)


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def _family(metric: MetricKind) -> _Family:
    kinds: dict[str, type[_Family]] = {
        COUNTER: CounterMetricFamily,
        GAUGE: GaugeMetricFamily,
        HISTOGRAM: HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


def _add(family: _Family, sample: Sample) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = [("+Inf" if bound == float("inf") else repr(float(bound)), n) for bound, n in sample.buckets or ()]
        family.add_metric(sample.labels, buckets=bounds, sum_value=sample.value)
    else:
        family.add_metric(sample.labels, sample.value)
