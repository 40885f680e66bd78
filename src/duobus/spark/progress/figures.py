"""The metrics of streaming queries, made of the events that Spark sends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from duobus.spark.source.status import Status, status_in
from duobus.telemetry.metrics import COUNTER, GAUGE, MetricKind

_QUERY: Final = ("query",)
_SOURCE: Final = ("query", "source")

#: Every metric of a query. Prometheus shows a counter with ``_total`` behind its name.
SPARK_METRICS: Final = (
    MetricKind("duobus_spark_rows", COUNTER, _SOURCE, "Rows that a source has given to a query."),
    MetricKind("duobus_spark_rows_per_second", GAUGE, _QUERY, "Rows a second that the last batch was processed with."),
    MetricKind("duobus_spark_batch", GAUGE, _QUERY, "Number of the last batch."),
    MetricKind("duobus_spark_batch_seconds", GAUGE, _QUERY, "Time that the last batch took."),
    MetricKind("duobus_spark_progress_time_seconds", GAUGE, _QUERY, "When the last batch began, seconds since 1970."),
    MetricKind("duobus_spark_failures", COUNTER, _QUERY, "Times that a query ended with an error."),
    MetricKind("duobus_spark_waiting_messages", GAUGE, _SOURCE, "Messages that could be received."),
    MetricKind("duobus_spark_behind_latest", GAUGE, _SOURCE, "How much a stream is behind the newest message."),
    MetricKind("duobus_spark_oldest_age_seconds", GAUGE, _SOURCE, "Age of the oldest message of the last batch."),
    MetricKind("duobus_spark_claimed_messages", GAUGE, _SOURCE, "Messages that the last batch has claimed."),
    MetricKind(
        "duobus_spark_claimed_bytes",
        GAUGE,
        _SOURCE,
        "Bytes that the last batch has claimed: of bodies, or of messages where the broker claims.",
    ),
    MetricKind("duobus_spark_deferred_messages", GAUGE, _SOURCE, "Messages of earlier batches that are deferred."),
    MetricKind("duobus_spark_locks_held", GAUGE, _SOURCE, "Messages that a stream holds under lock."),
    MetricKind("duobus_spark_sent_rows", COUNTER, _QUERY, "Rows that a query has written."),
    MetricKind("duobus_spark_sent_messages", COUNTER, _QUERY, "Messages that a sink with reportPath has sent."),
    MetricKind("duobus_spark_sent_bytes", COUNTER, _QUERY, "Bytes of these messages."),
    MetricKind(
        "duobus_spark_repeated_messages",
        COUNTER,
        _QUERY,
        "Messages that repeated attempts of tasks have sent, of which the destination may know some already.",
    ),
)

#: Attribute of a status to (metric, divisor).
_OF_STATUS: Final = {
    "waiting": ("duobus_spark_waiting_messages", 1),
    "behind": ("duobus_spark_behind_latest", 1),
    "oldest_age_ms": ("duobus_spark_oldest_age_seconds", 1000),
    "claimed": ("duobus_spark_claimed_messages", 1),
    "claimed_bytes": ("duobus_spark_claimed_bytes", 1),
    "deferred": ("duobus_spark_deferred_messages", 1),
    "locks_held": ("duobus_spark_locks_held", 1),
}
#: Member of a report of the sink to metric.
_OF_REPORT: Final = {
    "messages": "duobus_spark_sent_messages",
    "bytes": "duobus_spark_sent_bytes",
    "repeated": "duobus_spark_repeated_messages",
}


class Figure(NamedTuple):
    """One number of one metric; of a counter the increase.

    Attributes:
        name: Name of a row of ``SPARK_METRICS``.
        labels: Values of the row's labels, in their order.
        value: The number.
    """

    name: str
    labels: tuple[str, ...]
    value: float


def query_of(progress: Mapping[str, Any]) -> str:
    """The name of a query, or its id where it has no name."""
    return str(progress.get("name") or progress["id"])


def statuses_in(progress: Mapping[str, Any]) -> Iterator[tuple[Status, int]]:
    """The status of each source of duobus in an event, and how many rows it has given."""
    for source in progress.get("sources") or ():
        status = status_in(source.get("latestOffset"))
        if status is not None:
            yield status, int(source.get("numInputRows") or 0)


def figures_of(progress: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> Iterator[Figure]:
    """The figures of an event.

    Args:
        progress: ``StreamingQueryProgress``, made of its JSON.
        report: The counts that the sink has kept of the batch, if it keeps any.
    """
    query = (query_of(progress),)
    began = datetime.fromisoformat(str(progress["timestamp"])).timestamp()
    yield Figure("duobus_spark_progress_time_seconds", query, began)
    yield Figure("duobus_spark_batch", query, int(progress["batchId"]))
    yield Figure("duobus_spark_batch_seconds", query, _milliseconds(progress) / 1000)
    yield Figure("duobus_spark_rows_per_second", query, float(progress.get("processedRowsPerSecond") or 0))
    for status, rows in statuses_in(progress):
        labels = (*query, status.source)
        yield Figure("duobus_spark_rows", labels, rows)
        for attribute, (name, divisor) in _OF_STATUS.items():
            value = getattr(status, attribute)
            if value is not None:
                yield Figure(name, labels, value / divisor)
    written = int((progress.get("sink") or {}).get("numOutputRows") or -1)
    if written > 0:
        yield Figure("duobus_spark_sent_rows", query, written)
    for member, name in _OF_REPORT.items():
        if report is not None and member in report:
            yield Figure(name, query, int(report[member]))


def _milliseconds(progress: Mapping[str, Any]) -> int:
    return int((progress.get("durationMs") or {}).get("triggerExecution") or progress.get("batchDuration") or 0)


class Totals:
    """The newest value of each figure, and the sums of counters."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def add(self, figures: Iterable[Figure]) -> list[Figure]:
        """Take figures in; return them as they stand now."""
        now = []
        for figure in figures:
            key = figure.name, figure.labels
            before = self._values.get(key, 0.0) if _KINDS[figure.name] == COUNTER else 0.0
            self._values[key] = before + figure.value
            now.append(figure._replace(value=self._values[key]))
        return now

    def forget(self, query: str) -> None:
        """Drop the gauges of a query that has ended: nothing waits for a query that does not run."""
        gone = [key for key in self._values if key[1][0] == query and _KINDS[key[0]] == GAUGE]
        for key in gone:
            del self._values[key]

    def all(self) -> list[Figure]:
        """Every figure, in the order of the table."""
        order = {metric.name: number for number, metric in enumerate(SPARK_METRICS)}
        # A copy: another thread may add figures meanwhile.
        keys = sorted(dict(self._values), key=lambda key: (order[key[0]], key[1]))
        return [Figure(*key, self._values[key]) for key in keys if key in self._values]


_KINDS: Final = {metric.name: metric.kind for metric in SPARK_METRICS}


def line_of(progress: Mapping[str, Any]) -> str:
    """An event in one line, for a log."""
    parts = [
        f"query={query_of(progress)}",
        f"batch={progress['batchId']}",
        f"rows={progress.get('numInputRows', 0)}",
        f"rows_per_second={float(progress.get('processedRowsPerSecond') or 0):.1f}",
        f"seconds={_milliseconds(progress) / 1000:.3f}",
    ]
    for status, _ in statuses_in(progress):
        parts += [f"{name}={value}" for name, value in status.to_json().items()]
    return " ".join(parts)
