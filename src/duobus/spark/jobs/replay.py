"""``replay``: sends captured messages to an entity.

The id of a message depends only on the message and, with ``dedupe=run``, on the name of the run. So a replay that was
interrupted can be started again, even with another number of tasks, and a destination that detects duplicates keeps
each message once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.connection import demand_reachable, place_of
from duobus.spark.errors import OptionError
from duobus.spark.jobs.captured_files import Span, captured, captured_in, unreadable
from duobus.spark.jobs.job import (
    JobError,
    Settings,
    Summary,
    cause_of,
    connection_of,
    given_of,
    needed,
    settings_of,
    spark_errors,
)
from duobus.spark.jobs.lake.table_options import OF_ICEBERG, format_option, table_of
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.options import CHOICE, NUMBER, SWITCH, TEXT, Option
from duobus.spark.sink.destinations import advice_on
from duobus.spark.sink.message_ids import check_write_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME: Final = "replay"
CONNECTS: Final = True
HELP: Final = "Send captured messages to an entity."
EXAMPLE: Final = (
    "duobus spark replay --connection-string-env DUOBUS_CONNECTION_STRING --path /data/orders --queue orders "
    "--dedupe original --from 2026-11-20T08:00Z --until 2026-11-20T09:00Z"
)
OPTIONS: Final = (
    format_option("what capture wrote: files of parquet, or a table of delta or iceberg"),
    Option("path", TEXT, None, "folder that capture wrote; with iceberg, table says where"),
    *OF_ICEBERG,
    Option("queue", TEXT, None, "queue to send to; without it and topic, each message goes to the entity it came from"),
    Option("topic", TEXT, None, "topic to send to"),
    Option(
        "dedupe",
        CHOICE,
        None,
        "original keeps message ids, so that what the destination still knows is dropped; run gives new ones, so that "
        "each message is delivered once for each run",
        choices=("original", "run"),
    ),
    Option("run", TEXT, None, "name of the run, with dedupe run: the same to go on with it, another to send again"),
    Option("entity", TEXT, None, "only what was captured from this entity"),
    Option("from", TEXT, None, "only what was enqueued at or after this time, ISO 8601"),
    Option("until", TEXT, None, "only what was enqueued before this time, ISO 8601"),
    Option("firstSequence", NUMBER, None, "only from this sequence number on", most=2**63 - 1),
    Option("lastSequence", NUMBER, None, "only up to this sequence number", most=2**63 - 1),
    Option("reason", TEXT, None, "only dead letters of this reason"),
    Option("maxMessagesPerSecond", NUMBER, None, "messages a second at most, of all tasks", least=1, most=1_000_000),
    Option("tasks", NUMBER, "4", "tasks that send, one after the other or at a time", least=1, most=1_000),
    Option(
        "onOversize",
        CHOICE,
        "fail",
        "a message too large for its entity: fail, divert or claimCheck, as of the sink",
        choices=("fail", "divert", "claimCheck"),
    ),
    Option("oversizePath", TEXT, None, "folder for divert and claimCheck"),
    Option(
        "reportPath",
        TEXT,
        None,
        "folder for the counts of the write; by default _replays in path, and needed with iceberg",
    ),
    Option("dryRun", SWITCH, "false", "say how many messages of which entity would be sent, and send nothing"),
)

#: What tells messages apart.
_PLACE: Final = ["namespace", "entity", "enqueued_time", "sequence_number"]
#: Column of the key whose messages keep their order; messages of one key are sent by one task.
_KEY: Final = "_key"
#: Before the name of what a broker assigned to the original.
ORIGINAL: Final = "x-duobus-original-"
#: Column to (the name behind ``ORIGINAL``, AMQP type).
_KEPT: Final = {
    "sequence_number": ("sequence-number", "long"),
    "enqueued_time": ("enqueued-time", "timestamp"),
    "delivery_count": ("delivery-count", "int"),
    "dead_letter_reason": ("dead-letter-reason", "string"),
    "dead_letter_error_description": ("dead-letter-error-description", "string"),
    "dead_letter_source": ("dead-letter-source", "string"),
    "namespace": ("namespace", "string"),
    "entity": ("entity", "string"),
}


@described(NAME)
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Replay.

    Args:
        spark: The session.
        cfg: Settings by name: those of ``OPTIONS`` and those of the connection.
        tell: Called with the progress of the job.

    Returns:
        The summary: rows, sent, diverted, claimChecked, requests, warnings, and the messages of each entity (groups).

    Raises:
        OptionError: A setting is wrong.
        JobError: A file cannot be used, or the entity accepted nothing; nothing is lost, so start the job again.
    """
    settings = settings_of(cfg, OPTIONS)
    summary = Summary(NAME)
    prefix, table = _prefix(settings), table_of(settings)
    path = settings["path"]
    report = (
        needed(settings, "reportPath") if path is None else settings["reportPath"] or f"{path.rstrip('/')}/_replays"
    )
    warnings = []
    demand_reachable(place_of(settings))
    destination = settings["queue"] or settings["topic"]
    if destination is not None and (advice := advice_on(place_of(settings), destination)) is not None:
        warnings.append(advice)
    tell("checking files")
    span = Span(_time(settings, "from"), _time(settings, "until"), settings["entity"])
    found = captured(spark, path, span) if table is None else captured_in(spark, table, span)
    frame = _chosen(found, settings, span)
    bad = unreadable(frame)
    if bad:
        told = "; ".join(f"{row.file}, sequence number {row.sequence_number}: {row.fault}" for row in bad)
        raise JobError(f"Bodies cannot be read, and nothing was sent: {told}")
    tell("counting")
    groups = _groups(frame, destination)
    total = sum(group["messages"] for group in groups)
    if settings["dryRun"]:
        return summary.done(spark, settings, dryRun=True, messages=total, warnings=warnings, groups=groups)
    tell(f"sending {total:,} messages")
    write_id = f"replay-{hashlib.sha256(_identity(settings).encode()).hexdigest()[:24]}"
    counts = _written(spark, outgoing(frame, prefix, settings), settings, write_id, report)
    return summary.done(
        spark,
        settings,
        rows=counts["rows"],
        sent=counts["messages"],
        diverted=counts["diverted"],
        claimChecked=counts["claim_checked"],
        requests=counts["requests"],
        writeId=write_id,
        warnings=warnings,
        groups=groups,
    )


def _prefix(settings: Settings) -> str | None:
    """What makes the ids of a run its own; None to keep the original ones."""
    if needed(settings, "dedupe") == "original":
        if settings["run"] is not None:
            raise OptionError("The option 'run' goes with dedupe run; original ids have no run.")
        return None
    if settings["run"] is None:
        raise OptionError(
            "With dedupe run, the option 'run' names the run: the same name goes on with an interrupted one, another "
            "sends everything again."
        )
    try:
        return check_write_id(settings["run"])
    except ValueError as error:
        raise OptionError(str(error).replace("writeId", "run")) from None


def _identity(settings: Settings) -> str:
    """Source, filter and destination of a replay, and its run: what a repeated one has in common with the first."""
    names = ("path", "entity", "from", "until", "firstSequence", "lastSequence", "reason", "queue", "topic", "run")
    found = [settings[name] for name in names] + [settings[name] for name in ("endpoint", "dedupe")]
    if settings["table"] is not None:
        found += [settings["catalog"], settings["table"]]
    return json.dumps(found)


def _chosen(frame: DataFrame, settings: Settings, span: Span) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    if span.since is not None:
        frame = frame.where(F.col("enqueued_time") >= F.lit(span.since))
    if span.until is not None:
        frame = frame.where(F.col("enqueued_time") < F.lit(span.until))
    if settings["firstSequence"] is not None:
        frame = frame.where(F.col("sequence_number") >= settings["firstSequence"])
    if settings["lastSequence"] is not None:
        frame = frame.where(F.col("sequence_number") <= settings["lastSequence"])
    if settings["reason"] is not None:
        frame = frame.where(F.col("dead_letter_reason") == settings["reason"])
    return frame


def _groups(frame: DataFrame, destination: str | None) -> list[dict[str, Any]]:
    """How many messages of each entity are sent, and where to; copies of one message count once."""
    # Keys alone: no body is read.
    keys = frame.select(*_PLACE).dropDuplicates(_PLACE)
    rows = keys.groupBy("namespace", "entity").count().orderBy("namespace", "entity").collect()
    return [
        {"namespace": row[0], "entity": row[1], "to": destination or row[1], "messages": int(row[2])} for row in rows
    ]


def _time(settings: Settings, name: str) -> datetime | None:
    text = settings[name]
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise OptionError(f"The option '{name}' is {text!r}; it has to be a time with its zone, as 2026-11-20T08:00Z.")
    return moment


def outgoing(frame: DataFrame, prefix: str | None, settings: Settings) -> DataFrame:
    """The rows to send: with their ids, with the broker's old values as properties, and each key in one task.

    Args:
        frame: Captured messages.
        prefix: Prefix of new ids; None to keep the original ids.
        settings: Settings of the job.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    key = F.coalesce("session_id", "partition_key", F.concat_ws("/", "entity", "fragment"))
    frame = frame.withColumn(_KEY, key).repartition(settings["tasks"], _KEY)
    # Copies made by capture in browse mode twice over are one message. The time is part of what tells messages apart:
    # a queue that was removed and made again counts from 1 again. Copies have the same key, so they are in one task
    # already; with the key among the columns Spark knows that, and does not send the bodies around a second time.
    frame = frame.dropDuplicates([_KEY, *_PLACE])
    properties, types = _with_originals(F, keeps_id=prefix is None)
    told = F.concat_ws("/", "namespace", "entity", F.unix_micros("enqueued_time").cast("string"))
    own = F.concat_ws("/", F.md5(told.cast("binary")), F.col("sequence_number"))
    identity = F.coalesce(F.col("message_id"), own) if prefix is None else F.concat(F.lit(f"{prefix}/"), own)
    is_ahead = F.col("scheduled_enqueue_time") > F.current_timestamp()
    frame = (
        frame.withColumn("application_property_types", types)
        .withColumn("application_properties", properties)
        .withColumn("message_id", identity)
        .withColumn("scheduled_enqueue_time", F.when(is_ahead, F.col("scheduled_enqueue_time")))
    )
    return frame.sortWithinPartitions("entity", "sequence_number").drop(_KEY, "date", "hour", "batch_id")


def _with_originals(F: Any, *, keeps_id: bool) -> tuple[Column, Column]:  # noqa: N803 - as Spark's documentation has it
    """Application properties and their types, with what a broker had assigned; that of an earlier replay wins."""
    kept = dict(_KEPT) if keeps_id else {**_KEPT, "message_id": ("message-id", "string")}
    pairs, noted = [], []
    for column, (name, kind) in kept.items():
        value = F.col(column)
        text = F.unix_millis(value) if kind == "timestamp" else value
        pairs.append(F.struct(F.lit(f"{ORIGINAL}{name}").alias("key"), text.cast("string").alias("value")))
        if kind != "string":
            noted.append(F.struct(F.lit(f"{ORIGINAL}{name}").alias("key"), F.lit(kind).alias("value")))
    empty = F.expr("cast(map() as map<string,string>)")
    given = F.coalesce("application_properties", empty)
    types = F.coalesce("application_property_types", empty)
    added = F.map_from_entries(
        F.filter(F.array(*pairs), lambda pair: pair.value.isNotNull() & ~F.map_contains_key(given, pair.key))
    )
    added_types = F.map_from_entries(F.filter(F.array(*noted), lambda pair: ~F.map_contains_key(given, pair.key)))
    return F.map_concat(given, added), F.map_concat(
        F.map_filter(types, lambda name, _: F.map_contains_key(given, name)), added_types
    )


def _written(spark: SparkSession, frame: DataFrame, settings: Settings, write_id: str, report: str) -> dict[str, int]:
    options = connection_of(settings) | given_of(settings, ("queue", "topic", "onOversize", "oversizePath"))
    options |= {"messageIdMode": "column", "writeId": write_id, "reportPath": report}
    if settings["maxMessagesPerSecond"] is not None:
        # As many tasks as the cluster runs at a time share the rate.
        at_a_time = min(settings["tasks"], spark.sparkContext.defaultParallelism)
        options["maxMessagesPerSecond"] = str(max(1, settings["maxMessagesPerSecond"] // at_a_time))
    try:
        frame.write.format("duobus").options(**options).mode("append").save()
    except spark_errors() as error:
        raise JobError(
            f"{cause_of(error)} What was sent has its final ids; start the job again with the same settings, and where "
            "the destination detects duplicates each message arrives once."
        ) from error
    row = spark.read.json(f"{report}/{write_id}.json").first()
    assert row is not None
    found: dict[str, int] = row.asDict()
    return found
