"""Ways out for the figures of queries: an address for Prometheus, a file, and Spark's own metrics."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.progress.figures import SPARK_METRICS, Figure
from duobus.telemetry.metrics import COUNTER

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

#: Name under which Spark lists these metrics.
SOURCE: Final = "duobus"
_log = logging.getLogger("duobus.spark")


class Families:
    """What a registry of prometheus_client collects.

    Args:
        read: Returns every figure as it stands.
    """

    def __init__(self, read: Callable[[], Iterable[Figure]]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing: a registry would otherwise read all figures once to learn their names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics that have a value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = list(self._read())
        for metric in SPARK_METRICS:
            family = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            made = family(metric.name, metric.help, labels=metric.labels)
            for figure in figures:
                if figure.name == metric.name:
                    made.add_metric(figure.labels, figure.value)
            if made.samples:
                yield made


def registry_of(read: Callable[[], Iterable[Figure]]) -> CollectorRegistry:
    """A registry that holds the metrics of queries and nothing else."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(Families(read))
    return registry


class SparkMetrics:
    """The figures among Spark's own metrics, for ``PrometheusServlet``, JMX and the other sinks of Spark.

    Python cannot call the method that gives Spark's registry: Java fails to list the methods of its class, as some of
    them name classes that Spark does not ship. So the method is found by its name and type. When Spark has moved it,
    nothing is registered, and one line in the log says so.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._gauges: dict[str, Any] = {}
        self._registry: Any = None
        self._source: Any = None
        try:
            self._register(spark)
        except Exception:  # noqa: BLE001 - of whatever kind: monitoring must not end a program
            self._registry = None
            _log.warning("the metrics of queries are not among Spark's own", exc_info=True)

    def _register(self, spark: SparkSession) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)
        java, lang = self._jvm.java, self._jvm.java.lang
        environment, system = (
            lang.Class.forName(f"org.apache.spark.{name}") for name in ("SparkEnv", "metrics.MetricsSystem")
        )
        lookup, kind = lang.invoke.MethodHandles.publicLookup(), lang.invoke.MethodType.methodType
        arguments = java.util.ArrayList()
        here = lookup.findStatic(environment, "get", kind(environment)).invokeWithArguments(arguments)
        arguments.add(here)
        metrics = lookup.findVirtual(environment, "metricsSystem", kind(system)).invokeWithArguments(arguments)
        self._registry = self._jvm.com.codahale.metrics.MetricRegistry()
        self._source = _Source(self._registry)
        metrics.registerSource(self._source)

    def show(self, figures: Iterable[Figure]) -> None:
        """Set the values of figures; of those that are new, register them."""
        if self._registry is None:
            return
        for figure in figures:
            name = ".".join(map(_plain, (*figure.labels, figure.name.removeprefix("duobus_spark_"))))
            if name not in self._gauges:
                self._gauges[name] = self._jvm.com.codahale.metrics.DefaultSettableGauge(0.0)
                self._registry.register(name, self._gauges[name])
            self._gauges[name].setValue(float(figure.value))


def _plain(text: str) -> str:
    """A part of a name of a metric: letters, digits and ``_``."""
    return re.sub(r"\W+", "_", text).strip("_")


class _Source:
    """A source of metrics, as Spark's metrics system asks for one."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def sourceName(self) -> str:  # noqa: N802 - Spark's name
        """The beginning of every name."""
        return SOURCE

    def metricRegistry(self) -> Any:  # noqa: N802 - Spark's name
        """The metrics, to which later ones are added."""
        return self._registry

    class Java:
        """The interface of the JVM."""

        implements: Final = ["org.apache.spark.metrics.source.Source"]
