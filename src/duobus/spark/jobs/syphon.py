"""``syphon``: carries large backlogs to the entities for which the messages were meant.

For normal operation there is ``duobus syphon``, which needs no Spark. This job drains many backlog queues at the same
time. A message is settled when its batch is done; until then a crash leaves the message claimed, and the same query
carries it again, with the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.connection import Place, client, namespace_of, place_of
from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import (
    JobError,
    Settings,
    Summary,
    cause_of,
    connection_of,
    followed,
    given_of,
    needed,
    settings_of,
    settle_stopped,
    spark_errors,
)
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.options import CHOICE, CONNECTION_OPTIONS, DURATION, SOURCE_OPTIONS, TEXT, Option, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAME: Final = "syphon"
CONNECTS: Final = True
HELP: Final = "Drain backlog queues into the entities that their messages were meant for."
EXAMPLE: Final = (
    "duobus spark syphon --connection-string-env DUOBUS_SECONDARY --to-connection-string-env DUOBUS_PRIMARY "
    "--checkpoint /data/checkpoints/syphon"
)

#: Options of the connection to the primary, by those of the backlog's, which have their plain names.
_TO: Final = {
    "connectionStringEnv": "toConnectionStringEnv",
    "connectionStringFile": "toConnectionStringFile",
    "endpoint": "toEndpoint",
    "credentialProvider": "toCredentialProvider",
    "caFile": "toCaFile",
    "managementEndpoint": "toManagementEndpoint",
}
_OF_SOURCE: Final = {option.name: option for option in SOURCE_OPTIONS}
_OF_CONNECTION: Final = {option.name: option for option in CONNECTION_OPTIONS}
_READ: Final = ("maxMessagesPerTrigger", "maxWaitTime")

OPTIONS: Final = (
    *(
        Option(name, TEXT, None, f"of the primary, where messages go: {_OF_CONNECTION[plain].meaning}")
        for plain, name in _TO.items()
    ),
    Option("primaryName", TEXT, None, "name of the primary in the paths; by default the first label of its host name"),
    Option("queues", _OF_SOURCE["queues"].kind, None, "these backlog queues alone, with commas"),
    Option("checkpoint", TEXT, None, "folder of the query's progress: the same one goes on where it ended"),
    *(_OF_SOURCE[name] for name in _READ),
    Option(
        "ttlMode",
        CHOICE,
        "restart",
        "whether times to live start anew, or count from when the message was diverted",
        choices=("restart", "remaining"),
    ),
    Option("holdFor", DURATION, "60s", "how long messages of a destination that is away are left alone", 0, 86_400_000),
    Option(
        "every",
        DURATION,
        None,
        "go on for ever, with a batch in each such time; by default drain what is there now, and end",
        100,
        86_400_000,
    ),
)

#: Outcomes of which a summary tells the paths.
PATHS_TOLD_MAX: Final = 100

_OUTCOME: Final = "queue string, number bigint, path string, outcome string, reason string, description string"


@described(NAME)
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Drain the backlog.

    Args:
        spark: The session.
        cfg: Settings by name: those of ``OPTIONS`` and those of the connection to the namespace with the backlog.
        tell: Called with the progress of the job.

    Returns:
        The summary: delivered, held and dead-lettered, and the paths of each.

    Raises:
        OptionError: A setting is wrong.
        JobError: The query failed; start the job again, and it continues where it ended.
    """
    settings = settings_of(cfg, OPTIONS)
    summary = Summary(NAME)
    to = primary_of(settings)
    counts: Counter[tuple[str, str]] = Counter()
    try:
        query = _started(spark, settings, to, counts)
    except spark_errors() as error:
        raise JobError(cause_of(error)) from error
    found = followed(query, tell)
    settle_stopped(settings, needed(settings, "checkpoint"))
    by_outcome: dict[str, dict[str, int]] = {}
    for (outcome, path), number in counts.most_common(PATHS_TOLD_MAX):
        by_outcome.setdefault(outcome, {})[path] = number
    totals = {
        outcome: sum(number for (one, _), number in counts.items() if one == outcome)
        for outcome in ("delivered", "held", "buried")
    }
    return summary.done(spark, settings, batches=found["batches"], **totals, paths=by_outcome)


def primary_of(settings: Settings) -> Place:
    """The namespace where messages go.

    Raises:
        OptionError: The settings do not say which.
    """
    given = {plain: settings[name] for plain, name in _TO.items() if settings[name] is not None}
    # How often the SDK tries again is said once, for both namespaces.
    given["retryTotal"] = str(settings["retryTotal"])
    try:
        return place_of(parse(given, CONNECTION_OPTIONS))
    except OptionError as error:
        names = ", ".join(list(_TO.values())[:3])
        raise OptionError(f"Where messages go is said by one of {names}: {error}") from None


def _started(spark: SparkSession, settings: Settings, to: Place, counts: Counter[tuple[str, str]]) -> StreamingQuery:
    options = connection_of(settings) | given_of(settings, _READ) | {"readMode": "claim"}
    if settings["queues"] is not None:
        options["queues"] = ",".join(settings["queues"])
    else:
        name = settings["primaryName"] or namespace_of(to).partition(":")[0].partition(".")[0]
        options["queuesPattern"] = f"{name}/x-servicebus-transfer/*"
    frame = spark.readStream.format("duobus").options(**options).load()
    carry = partial(
        _carried,
        there=to,
        back=place_of(settings),
        counts_time=settings["ttlMode"] == "remaining",
        hold_ms=settings["holdFor"],
    )

    def batch(messages: DataFrame, _: int) -> None:
        for row in messages.mapInArrow(carry, _OUTCOME).groupBy("outcome", "path").count().collect():
            counts[row["outcome"], row["path"]] += row["count"]

    checkpoint = needed(settings, "checkpoint")
    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
    writer = writer.queryName(f"duobus syphon {checkpoint}")
    if settings["every"] is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings['every']} milliseconds").start()


def _carried(
    batches: Iterator[pa.RecordBatch], there: Place, back: Place, *, counts_time: bool, hold_ms: int
) -> Iterator[pa.RecordBatch]:
    """Carry the messages of a task, and tell what became of each."""
    import pyarrow as pa

    from duobus.spark.jobs.work.syphon import DEAD_LETTERED, Outcome, SyphonTask, rows_of
    from duobus.spark.offsets import Key
    from duobus.spark.recovery import dead_letter_numbers
    from duobus.spark.rows import columns_of
    from duobus.spark.sink.sender import post_to

    carrier = SyphonTask(post_to(there), post_to(back), Clock().now_ms(), counts_time=counts_time, hold_ms=hold_ms)
    for batch in batches:
        for row in rows_of(columns_of(batch, batch.schema.names)):
            carrier.take(row)
    carrier.finish()
    by_queue: dict[str, dict[int, tuple[str, str]]] = {}
    for one in carrier.outcomes:
        if one.outcome == DEAD_LETTERED:
            by_queue.setdefault(one.queue, {})[one.number] = (one.reason or "", one.description or "")
    for queue, numbers in by_queue.items():
        dead_letter_numbers(client(back), Key(queue), numbers)
    columns: Any = list(zip(*carrier.outcomes, strict=True)) or [()] * len(Outcome._fields)
    types = [pa.string(), pa.int64(), *[pa.string()] * 4]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=list(Outcome._fields))
