"""``deadletters``: groups dead letters by why they died, and applies decisions about them.

The job has two steps. ``report`` changes nothing: it groups the dead letters and writes a table with a line for each,
in which rules or people decide. ``apply`` does what the table says. Messages that the table does not name stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.connection import Place, client, namespace_of, place_of
from duobus.spark.errors import OptionError
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
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.jobs.work.fingerprints import alike, shape_of
from duobus.spark.options import CHOICE, SOURCE_OPTIONS, SWITCH, TEXT, Option

if TYPE_CHECKING:
    import pyarrow as pa
    from azure.servicebus import ServiceBusReceiver
    from pyspark.sql import DataFrame, SparkSession

    from duobus.spark.jobs.work.dead_letters import Done

NAME: Final = "deadletters"
CONNECTS: Final = True
HELP: Final = "Group dead letters by why they died, decide about each, and do what was decided."
EXAMPLE: Final = (
    "duobus spark deadletters --connection-string-env DUOBUS_CONNECTION_STRING --queues-pattern '*' "
    "--decisions /data/triage --resubmit \"dead_letter_reason = 'Timeout'\""
)

_ENTITIES: Final = ("queue", "topic", "subscription", "queues", "queuesPattern", "subscriptionsPattern", "subQueue")
_OF_SOURCE: Final = {option.name: option for option in SOURCE_OPTIONS}

OPTIONS: Final = (
    Option(
        "action",
        CHOICE,
        "report",
        "report writes the decisions, apply does what they say",
        choices=("report", "apply"),
    ),
    *(_OF_SOURCE[name] for name in _ENTITIES),
    Option("decisions", TEXT, None, "folder of the table of decisions, CSV: report writes it, apply reads it"),
    Option("groupsPath", TEXT, None, "folder for the groups as Parquet; the summary has the largest"),
    Option("resubmit", TEXT, None, "SQL condition over the columns: such messages are to be sent again"),
    Option("delete", TEXT, None, "SQL condition over the columns: such messages are to be removed"),
    Option("to", TEXT, None, "where apply sends to; by default the queue or the topic that they died in"),
    Option(
        "ids",
        CHOICE,
        "derived",
        "derived gives a resubmitted message a new id, which a destination with duplicate detection takes; original "
        "keeps its own",
        choices=("derived", "original"),
    ),
    Option("dryRun", SWITCH, "false", "apply says what it would do to which entity, and does nothing"),
)

#: Groups that the summary tells.
GROUPS_TOLD_MAX: Final = 50
#: Numbers of messages that a group gives as examples.
SAMPLES: Final = 5

_SUBSCRIPTION: Final = re.compile(r"(?i)(.+)/subscriptions/([^/]+)")
_KEYS: Final = ("entity", "reason", "exception", "shape", "day")
_DECIDED: Final = "entity string, sequence_number bigint, action string, note string"


@described(NAME)
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Report or apply.

    Args:
        spark: The session.
        cfg: Settings by name: those of ``OPTIONS`` and those of the connection.
        tell: Called with the progress of the job.

    Returns:
        The summary: groups and actions of a report; resubmitted, deleted, refused and missing of an application.

    Raises:
        OptionError: A setting is wrong.
        JobError: A table or an entity cannot be used.
    """
    settings = settings_of(cfg, OPTIONS)
    if settings["dryRun"] and settings["action"] == "report":
        raise OptionError("The option 'dryRun' goes with action=apply; report changes nothing anyway.")
    summary = Summary(NAME)
    try:
        found = _report(spark, settings, tell) if settings["action"] == "report" else _apply(spark, settings, tell)
    except spark_errors() as error:
        raise JobError(cause_of(error)) from error
    return summary.done(spark, settings, action=settings["action"], **found)


def _report(spark: SparkSession, settings: Settings, tell: Tell) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    options = connection_of(settings) | given_of(settings, _ENTITIES) | {"readMode": "browse"}
    options.setdefault("subQueue", "deadletter")
    tell("looking")
    letters = judged(spark.read.format("duobus").options(**options).load(), settings["resubmit"], settings["delete"])
    # Read once: the dead letters, and with them the decisions and the groups, may change between two reads.
    letters = letters.persist()
    try:
        groups = grouped(letters)
        if settings["decisions"] is not None:
            tell("writing decisions")
            table = letters.select("entity", "sequence_number", "action", F.lit("").alias("note"), *_KEYS[1:])
            table = table.coalesce(1).sortWithinPartitions("entity", "reason", "sequence_number")
            table.write.mode("errorifexists").option("header", True).csv(settings["decisions"])
        if settings["groupsPath"] is not None:
            groups.write.mode("overwrite").parquet(settings["groupsPath"])
        told = groups.orderBy(F.desc("count"), *_KEYS).limit(GROUPS_TOLD_MAX).collect()
        actions = {row["action"]: row["count"] for row in letters.groupBy("action").count().collect()}
    finally:
        letters.unpersist()
    return {
        "messages": sum(actions.values()),
        "actions": actions,
        "groups": [_told(row.asDict()) for row in told],
        "decisions": settings["decisions"],
    }


def grouped(letters: DataFrame) -> DataFrame:
    """The groups of dead letters, each with its count, its span of time, and its first sequence numbers as examples."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    return letters.groupBy(*_KEYS).agg(
        F.count("*").alias("count"),
        F.min("enqueued_time").alias("oldest"),
        F.max("enqueued_time").alias("newest"),
        # Keeps a few numbers of each group; a list of all numbers would grow with the group.
        F.sort_array(F.min_by("sequence_number", "sequence_number", SAMPLES)).alias("samples"),
    )


def _told(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in group.items()}


def judged(frame: DataFrame, resubmit: str | None, delete: str | None) -> DataFrame:
    """Dead letters with the columns by which they are grouped, and with the action that the conditions give.

    Args:
        frame: Dead letters, with the columns of the source.
        resubmit: SQL condition.
        delete: SQL condition; it wins.

    Raises:
        OptionError: A condition is no SQL over these columns.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    action = F.lit("hold")
    for name, condition in (("resubmit", resubmit), ("delete", delete)):
        if condition is not None:
            try:
                frame.where(F.expr(condition))  # resolved at once, so that what is wrong is told by its name
                action = F.when(F.expr(condition), F.lit(name)).otherwise(action)
            except spark_errors() as error:
                raise OptionError(f"The option '{name}' is no condition: {cause_of(error)}") from None
    columns = ["entity", "sequence_number", "enqueued_time", "dead_letter_reason", "dead_letter_error_description"]
    chosen = frame.withColumn("action", action).select(*columns, "body", "body_type", "action")
    schema = (
        "entity string, sequence_number bigint, enqueued_time timestamp, reason string, exception string, shape string,"
        " action string"
    )
    return chosen.mapInArrow(_shaped, schema).withColumn("day", F.to_date("enqueued_time"))


def _shaped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        texts, bodies, kinds = (
            batch.column(batch.schema.get_field_index(name)).to_pylist()
            for name in ("dead_letter_error_description", "body", "body_type")
        )
        reasons = batch.column(batch.schema.get_field_index("dead_letter_reason")).to_pylist()
        yield pa.RecordBatch.from_arrays(
            [
                batch.column(0),
                batch.column(1),
                batch.column(2),
                pa.array([reason or "" for reason in reasons], pa.string()),
                pa.array([alike(text) for text in texts], pa.string()),
                pa.array([shape_of(body, kind) for body, kind in zip(bodies, kinds, strict=True)], pa.string()),
                batch.column(batch.schema.get_field_index("action")),
            ],
            names=["entity", "sequence_number", "enqueued_time", "reason", "exception", "shape", "action"],
        )


def _apply(spark: SparkSession, settings: Settings, tell: Tell) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    path = needed(settings, "decisions")
    try:
        table = spark.read.option("header", True).csv(path)
    except spark_errors() as error:
        raise JobError(f"The decisions in {path!r} cannot be read: {cause_of(error)}") from None
    missing = {"entity", "sequence_number", "action"} - set(table.columns)
    if missing:
        raise JobError(f"The decisions in {path!r} have no column {', '.join(sorted(missing))}.")
    number = F.expr("try_cast(sequence_number as bigint)").alias("sequence_number")
    action = F.lower(F.trim("action")).alias("action")
    table = table.select(F.input_file_name().alias("file"), "entity", number, action)
    known = ("resubmit", "delete", "hold")
    wrong = table.where(
        F.col("sequence_number").isNull() | F.col("entity").isNull() | ~F.coalesce("action", F.lit("")).isin(*known)
    ).first()
    if wrong is not None:
        raise JobError(
            f"{wrong.file}: entity {wrong.entity!r}, sequence number {wrong.sequence_number}, action {wrong.action!r}; "
            f"each line needs all three, and the actions are {', '.join(known)}. Nothing was done."
        )
    chosen = table.where(F.col("action") != "hold").select("entity", "sequence_number", "action")
    if settings["dryRun"]:
        tell("looking")
        return _would_do(spark, settings, chosen)
    tell("working")
    work = partial(
        _worked,
        place=place_of(settings),
        sub_queue=settings["subQueue"] or "deadletter",
        to=settings["to"],
        keeps_id=settings["ids"] == "original",
    )
    # Each entity in one task: two receivers of a queue would hide its messages from each other.
    rows = chosen.repartition("entity").mapInArrow(work, _DONE).collect()
    totals = {name: sum(row[name] for row in rows) for name in ("resubmitted", "deleted", "refused", "missing")}
    said = {row.entity: row.said for row in rows if row.said is not None}
    groups = [{"entity": row["entity"], **{name: row[name] for name in totals}} for row in rows]
    return {**totals, "entities": len(rows), "said": said, "groups": sorted(groups, key=lambda group: group["entity"])}


def _would_do(spark: SparkSession, settings: Settings, chosen: DataFrame) -> dict[str, Any]:
    """What an application of decisions would do now: dead letters that are there are looked at, and left there."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    entities = sorted(row[0] for row in chosen.select("entity").distinct().collect())
    there = chosen.limit(0).select("entity", "sequence_number")
    if entities:
        options = connection_of(settings) | {"queues": ",".join(entities), "readMode": "browse"}
        options["subQueue"] = settings["subQueue"] or "deadletter"
        reader = spark.read.format("duobus").options(**options).schema("entity string, sequence_number bigint")
        there = reader.load()
    known = chosen.join(there.withColumn("is_there", F.expr("true")), ["entity", "sequence_number"], "left")

    def number(condition: str) -> Any:
        return F.count(F.when(F.expr(condition), 1))

    rows = known.groupBy("entity").agg(
        number("is_there and action = 'resubmit'"),
        number("is_there and action = 'delete'"),
        number("is_there is null"),
    )
    found = [dict(zip(("entity", "resubmit", "delete", "missing"), row, strict=True)) for row in rows.collect()]
    for group in found:
        source = _SUBSCRIPTION.fullmatch(group["entity"])
        group["to"] = settings["to"] or (group["entity"] if source is None else source[1])
    totals = {name: sum(group[name] for group in found) for name in ("resubmit", "delete", "missing")}
    return {"dryRun": True, **totals, "groups": sorted(found, key=lambda group: str(group["entity"]))}


_DONE: Final = "entity string, resubmitted bigint, deleted bigint, refused bigint, missing bigint, said string"


def _worked(
    batches: Iterator[pa.RecordBatch], place: Place, sub_queue: str, to: str | None, *, keeps_id: bool
) -> Iterator[pa.RecordBatch]:
    """Do what was decided about the dead letters of some entities."""
    import pyarrow as pa

    by_entity: dict[str, dict[int, str]] = {}
    for batch in batches:
        for entity, number, action in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            by_entity.setdefault(entity, {})[number] = action
    for entity, actions in by_entity.items():
        done = _done(place, entity, sub_queue, to, actions, keeps_id=keeps_id)
        numbers = {name: pa.array([getattr(done, name)], pa.int64()) for name in done._fields[:4]}
        yield pa.RecordBatch.from_pydict(
            {"entity": pa.array([entity], pa.string()), **numbers, "said": pa.array([done.said], pa.string())}
        )


def _done(
    place: Place, entity: str, sub_queue: str, to: str | None, actions: Mapping[int, str], *, keeps_id: bool
) -> Done:
    from duobus.spark.jobs.work.dead_letters import new_id, worked
    from duobus.spark.sink.sender import post_to

    namespace = namespace_of(place)

    def id_of(message: Any) -> str | None:
        if keeps_id:
            return None
        moment = message.enqueued_time_utc
        enqueued_ms = 0 if moment is None else round(moment.timestamp() * 1000)
        return new_id(namespace, entity, message.sequence_number, enqueued_ms)

    found = _SUBSCRIPTION.fullmatch(entity)
    target = to or (entity if found is None else found[1])
    with _receiver(place, entity, sub_queue) as receiver:
        return worked(receiver, post_to(place), target, actions, id_of)


def _receiver(place: Place, entity: str, sub_queue: str) -> ServiceBusReceiver:
    """A receiver of a sub-queue, under peek-lock."""
    from azure.servicebus import ServiceBusSubQueue

    kind = ServiceBusSubQueue.DEAD_LETTER if sub_queue == "deadletter" else ServiceBusSubQueue.TRANSFER_DEAD_LETTER
    found = _SUBSCRIPTION.fullmatch(entity)
    if found is None:
        return client(place).get_queue_receiver(entity, sub_queue=kind)
    return client(place).get_subscription_receiver(found[1], found[2], sub_queue=kind)
