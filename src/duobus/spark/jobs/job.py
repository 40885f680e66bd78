"""The common part of all jobs: settings, reports of progress, and the summary that a job returns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.connection import place_of
from duobus.spark.errors import OptionError
from duobus.spark.jobs.interruption import WAS_STOPPED
from duobus.spark.jobs.progress import Step, Tell
from duobus.spark.options import CONNECTION_OPTIONS, DURATION, TEXT, Option, Parsed, parse
from duobus.spark.source.query_end import settle_committed
from duobus.spark.source.status import status_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


# What Spark raises for work that failed, and what to tell of it.

#: An exception of Python, as the last line of a traceback has it.
_RAISED: Final = re.compile(r"(?!org\.|java|scala|py4j\.)(?:\w+\.)*(?:(?<=\.)[A-Z]\w*|\w+(?:Error|Exception)): (.+)")
#: One of Java, below the line of Python that only tells which call failed, or as a cause.
_THROWN: Final = re.compile(r"(?:: |Caused by: )(?!py4j\.|\S+PythonException)(?:[\w$]+\.)+[\w$]+: (.+)")
#: Characters of a cause that are told: Spark may put a whole plan into its first line.
_TOLD: Final = 500


def spark_errors() -> tuple[type[Exception], ...]:
    """The errors that Spark raises for failed work; some of them are not classes of PySpark."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:
        # The thin client of Spark Connect has no JVM to speak to.
        return (PySparkException,)
    # Also what PySpark raises when the JVM does not start, or dies.
    return (PySparkException, Py4JError)


def cause_of(error: BaseException) -> str:
    """The text of an error of Spark, without its plans and the stack of the JVM around it."""
    java = getattr(error, "java_exception", None)
    text = str(getattr(error, "desc", None) or (error if java is None else java.getMessage()))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What Python raised stands last in the traceback that Spark hands on.
    for line in reversed(lines):
        if (raised := _RAISED.fullmatch(line)) is not None:
            return raised[1]
        if (thrown := _THROWN.fullmatch(line)) is not None:
            return thrown[1][:_TOLD]
    return lines[0][:_TOLD] if lines else type(error).__name__


# Settings of jobs: named as in ``OPTIONS``, values as text or as in TOML.


def settings(cfg: Mapping[str, Any], known: Iterable[Option]) -> Parsed:
    """Check settings.

    Raises:
        OptionError: A setting is unknown or wrong.
    """
    return parse({name: text_of(value) for name, value in cfg.items() if value is not None}, known)


def needed(parsed: Parsed, name: str) -> Any:
    """A setting that a job cannot do without.

    Raises:
        OptionError: It is missing.
    """
    if parsed[name] is None:
        raise OptionError(f"The option '{name}' is needed here.")
    return parsed[name]


def text_of(value: Any) -> str:
    """A value as the options of the data source are written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


#: Seconds between two looks at a query that runs.
LOOK_S: Final = 1.0

RUNS_PATH: Final = Option("runsPath", TEXT, None, "Parquet table that gets one row for each run of a job")

_RUNS_DDL: Final = "job string, started_at timestamp, seconds double, is_done boolean, summary string"


class JobError(RuntimeError):
    """A job cannot go on; says which file, folder or setting, and what to do."""


class Settings(Parsed):
    """The settings of a job.

    Attributes:
        kinds: Of the values, by name.
    """

    kinds: Mapping[str, str]


def settings_of(cfg: Mapping[str, Any], known: Iterable[Option]) -> Settings:
    """Check the settings of a job: those of the connection, its own, and nothing else.

    Args:
        cfg: Names as the options of the data source are written, and values as text or as TOML has them.
        known: The job's own.

    Raises:
        OptionError: One is unknown or wrong.
    """
    options = (*CONNECTION_OPTIONS, *known, RUNS_PATH)
    parsed = settings(cfg, options)
    found = Settings(parsed)
    found.given = parsed.given
    found.kinds = {option.name: option.kind for option in options}
    return found


def connection_of(cfg: Settings) -> dict[str, str]:
    """The options of the connection, as they are given to the data source."""
    return given_of(cfg, (option.name for option in CONNECTION_OPTIONS))


def given_of(cfg: Settings, names: Iterable[str]) -> dict[str, str]:
    """Those of some settings that were given, as options of the data source."""
    return {
        name: f"{cfg[name]}ms" if cfg.kinds[name] == DURATION else text_of(cfg[name])
        for name in names
        if name in cfg.given
    }


class Summary:
    """Counts of a run, and what is kept of it.

    Args:
        job: Its name.
        clock: Time.
    """

    def __init__(self, job: str, clock: Clock | None = None) -> None:
        self._job = job
        self._clock = clock or Clock()
        self._began_ms = self._clock.monotonic_ms()
        self._started_ms = self._clock.now_ms()

    def done(self, spark: SparkSession, cfg: Parsed, **members: Any) -> dict[str, Any]:
        """Return the summary, and put it into the table of runs if one is kept."""
        seconds = (self._clock.monotonic_ms() - self._began_ms) / 1000
        summary: dict[str, Any] = {"job": self._job, "seconds": round(seconds, 3), **members}
        return self.kept(spark, cfg, summary)

    def kept(self, spark: SparkSession, cfg: Parsed, summary: dict[str, Any]) -> dict[str, Any]:
        """Return a summary as it is, and put it into the table of runs if one is kept."""
        if cfg["runsPath"] is not None:
            seconds = (self._clock.monotonic_ms() - self._began_ms) / 1000
            started = datetime.fromtimestamp(self._started_ms / 1000, UTC)
            row = (self._job, started, seconds, True, json.dumps(summary, default=str))
            spark.createDataFrame([row], _RUNS_DDL).coalesce(1).write.mode("append").parquet(cfg["runsPath"])
        return summary


def settle_stopped(settings: Settings, checkpoint: str) -> None:
    """Remove the last batch of a query that was stopped, if it is committed; one that ended by itself has done so.

    Args:
        settings: With the connection.
        checkpoint: Of the query.
    """
    if settings["every"] is not None or WAS_STOPPED.is_set():
        settle_committed(place_of(settings), checkpoint)


def followed(query: StreamingQuery, tell: Tell) -> dict[str, Any]:
    """Wait for a query to end, telling how far it is.

    Returns:
        Its batches and rows.

    Raises:
        JobError: It failed; says why.
    """
    seen: dict[int, int] = {}
    behind: int | None = None
    try:
        is_over = False
        while not is_over:
            is_over = bool(query.awaitTermination(LOOK_S))
            for progress in query.recentProgress:
                rows = progress["numInputRows"]
                if rows:
                    seen[progress["batchId"]] = rows
                    statuses = [status_in(source["latestOffset"]) for source in progress["sources"]]
                    known = [status.behind for status in statuses if status is not None and status.behind is not None]
                    behind = sum(known) if known else None
            done = sum(seen.values())
            step = f"batch {len(seen)}:" if seen else "first batch:"
            tell(Step(step, done, None if behind is None else done + behind))
    except spark_errors() as error:
        raise JobError(cause_of(error)) from error
    finally:
        query.stop()
    return {"batches": len(seen), "messages": sum(seen.values())}
