"""The listener that keeps and exports the figures of streaming queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StreamingQueryListener

from duobus.spark.oversize import opened
from duobus.spark.progress.exports import SparkMetrics, registry_of
from duobus.spark.progress.figures import Figure, Totals, figures_of, line_of, query_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("duobus.spark")


class ProgressListener(StreamingQueryListener):
    """Keeps the figures of all queries of a session.

    Args:
        text_file: File that has the metrics in Prometheus' text format after each batch, for the collector of text
            files of a node exporter.
        reports: The folder ``reportPath`` of a query's sink, by the name of the query.
        spark_metrics: Shows the figures among Spark's own metrics.

    Attributes:
        totals: The figures.
    """

    def __init__(
        self,
        text_file: str | Path | None = None,
        reports: Mapping[str, str] | None = None,
        spark_metrics: SparkMetrics | None = None,
    ) -> None:
        self.totals = Totals()
        self.registry = registry_of(self.totals.all)
        self._text_file = text_file
        self._reports = dict(reports or {})
        self._spark_metrics = spark_metrics
        #: Name of a query by its id: the event of the end has no name.
        self._names: dict[str, str] = {}
        self._server: Any = None

    def serve(self, port: int, address: str) -> int:
        """Serve the metrics over HTTP; returns the port, which the system picks where 0 is given."""
        from prometheus_client import start_http_server

        server, _ = start_http_server(port, address, self.registry)
        self._server = server
        return int(server.server_address[1])

    def close(self) -> None:
        """Serve the metrics no longer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names, here and below
        """A query begins."""
        self._names[str(event.id)] = str(event.name or event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A query has ended a batch."""
        progress = json.loads(event.progress.json)
        _log.info("progress: %s", line_of(progress))
        self._take(list(figures_of(progress, self._report(progress))))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """A query has found nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query has ended."""
        query = self._names.pop(str(event.id), str(event.id))
        self.totals.forget(query)
        failed = 0 if event.exception is None else 1
        self._take([Figure("duobus_spark_failures", (query,), failed)])

    def _take(self, figures: list[Figure]) -> None:
        now = self.totals.add(figures)
        if self._spark_metrics is not None:
            self._spark_metrics.show(now)
        if self._text_file is not None:
            from prometheus_client import write_to_textfile

            write_to_textfile(str(self._text_file), self.registry)

    def _report(self, progress: Mapping[str, Any]) -> dict[str, Any] | None:
        """The counts that the sink of a query has kept of a batch."""
        folder = self._reports.get(query_of(progress))
        if folder is None:
            return None
        system, path = opened(folder)
        try:
            with system.open_input_stream(f"{path}/batch-{int(progress['batchId']):010d}.json") as stream:
                found: dict[str, Any] = json.loads(stream.read())
        except (OSError, ValueError):
            # A batch without rows has no report.
            return None
        return found


def watch(
    spark: SparkSession,
    *,
    port: int | None = None,
    address: str = "127.0.0.1",
    text_file: str | Path | None = None,
    reports: Mapping[str, str] | None = None,
) -> ProgressListener:
    """Keep and export the figures of the streaming queries of a session.

    Each batch of each query also gives one line at level INFO to the logger ``duobus.spark``. In a session of its own
    JVM the figures are among Spark's metrics, too; through Spark Connect they are not.

    Args:
        spark: The session.
        port: Port at which Prometheus reads the metrics; 0: the system picks one; None: none.
        address: Address of that port.
        text_file: File that has the metrics in Prometheus' text format after each batch.
        reports: The folder ``reportPath`` of a query's sink, by the name of the query.

    Returns:
        The listener; ``spark.streams.removeListener`` and ``close`` end it.
    """
    listener = ProgressListener(text_file, reports, SparkMetrics(spark) if hasattr(spark, "_jvm") else None)
    if port is not None:
        _log.info("metrics of queries at http://%s:%d/metrics", address, listener.serve(port, address))
    spark.streams.addListener(listener)
    return listener
