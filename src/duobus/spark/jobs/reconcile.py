"""Two captures of the same entities, from two namespaces: each message once, and what differs (I60).

Entity and message id identify a message. A message without an id is identified by its place alone and never matches
another one. The result depends neither on the order of files nor on which side is called the first.

In batch a run covers a window of enqueued time, or everything. A message belongs to the window of its earliest copy;
``look_back`` says how far apart the copies of one message may be. When captures of a window came late, run the window
again: the new result replaces the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from duobus.spark.errors import OptionError
from duobus.spark.jobs.captured_files import faults_in
from duobus.spark.jobs.job import RUNS_PATH, JobError, Summary, cause_of, needed, settings, spark_errors
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.jobs.work.tables import demand_columns, is_missing
from duobus.spark.options import DURATION, NAMES, SWITCH, TEXT, Option
from duobus.spark.schema import COLUMNS
from duobus.spark.schema import NAMES as COLUMN_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: How far apart the copies of a message may be enqueued.
LOOK_BACK: Final = timedelta(days=1)
#: Copies that are further apart than this are told as late.
LATE: Final = timedelta(minutes=5)
#: Entities that the summary tells apart, those with most findings first.
ENTITIES_TOLD_MAX: Final = 20
#: Characters of the name of a side.
NAME_LENGTH_MAX: Final = 64
_DURATION_MAX_MS: Final = 366 * 86_400_000

#: What may be found about a message.
ONLY_A: Final = "only-in-a"
ONLY_B: Final = "only-in-b"
DIFFERS: Final = "body-differs"
DOUBLED: Final = "doubled"
LATE_COPY: Final = "late"
FINDINGS: Final = (ONLY_A, ONLY_B, DIFFERS, DOUBLED, LATE_COPY)

#: Without these nothing can be compared; other columns may be missing in a capture that was projected.
NEEDED: Final = ("body", "message_id", "sequence_number", "enqueued_time", "namespace", "entity")
_TYPES: Final = dict(COLUMNS)
#: Folder of the part that a run wrote: ``window=from--until``, or ``window=all``.
_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class ReconcileConfig:
    """Settings of ``reconcile``.

    Attributes:
        a: Folders of captured Parquet files of the one namespace.
        b: Folders of captured Parquet files of the other namespace.
        out: Folder of the messages, each once.
        differences: Folder of the findings about messages that are not the same in both namespaces.
        since: First enqueued time, UTC, that belongs to the window; together with ``until`` or not at all.
        until: First enqueued time behind the window.
        look_back: How far apart the copies of a message may be.
        late: From which distance on a copy is reported as late.
        by_entity: Whether ids are distinguished by entity; if not, the two sides may name entities differently.
        names: Names of the two sides in ``seen_in``.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    out: str
    differences: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    look_back: timedelta = LOOK_BACK
    late: timedelta = LATE
    by_entity: bool = True
    names: tuple[str, str] = ("a", "b")


OPTIONS: Final = (
    Option("a", NAMES, None, "folders with captured messages of the one namespace"),
    Option("b", NAMES, None, "folders with captured messages of the other"),
    Option("out", TEXT, None, "folder of the messages, each once"),
    Option("differences", TEXT, None, "folder of what was found about messages that are not simply in both"),
    Option("since", TEXT, None, "first enqueued time of the window, ISO 8601 with a zone; with until, or not at all"),
    Option("until", TEXT, None, "first enqueued time behind the window"),
    Option("lookBack", DURATION, "1d", "how far apart the copies of a message may be enqueued", most=_DURATION_MAX_MS),
    Option("late", DURATION, "5m", "copies that are further apart are reported as late", most=_DURATION_MAX_MS),
    Option("byEntity", SWITCH, "true", "distinguish ids by entity; false where the two name entities differently"),
    Option("names", NAMES, "a,b", "names of the two captures in the column seen_in"),
    Option("checkpointPath", TEXT, None, "follow the captures as a stream with this checkpoint, instead of in batch"),
)
HELP: Final = "Make one of two captured namespaces: each message once, and what is lost, doubled, late or different."
EXAMPLE: Final = "duobus spark reconcile --a /lake/east --b /lake/west --out /lake/both --differences /lake/differences"


@described("reconcile")
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Reconcile by settings as ``OPTIONS`` tells them; see ``reconcile`` and ``follow``."""
    parsed, summary = settings(cfg, (*OPTIONS, RUNS_PATH)), Summary("reconcile")
    names = parsed["names"]
    if len(names) != 2:
        raise OptionError(f"'names' has {len(names)} names; the sides are two.")
    config = ReconcileConfig(
        parsed["a"] or (),
        parsed["b"] or (),
        needed(parsed, "out"),
        parsed["differences"],
        _time(parsed, "since"),
        _time(parsed, "until"),
        timedelta(milliseconds=parsed["lookBack"]),
        timedelta(milliseconds=parsed["late"]),
        parsed["byEntity"],
        (names[0], names[1]),
    )
    tell("comparing captures")
    try:
        if parsed["checkpointPath"] is None:
            found = reconcile(spark, config)
        else:
            found = follow(spark, config, parsed["checkpointPath"])
        return summary.kept(spark, parsed, found)
    except spark_errors() as error:
        raise JobError(f"The captures could not be compared: {cause_of(error)}") from error


def follow(spark: SparkSession, config: ReconcileConfig, checkpoint: str) -> dict[str, Any]:
    """Write the new messages of the captures, each once, as soon as either capture has the message.

    ``look_back`` is how long an id is remembered. The run begins where the checkpoint ends, and ends when all is read.
    """
    _window(config)
    if config.since is not None or config.differences is not None:
        raise OptionError("A stream has no window and tells no differences; leave 'since' and 'differences' out.")
    sides = []
    for folders, name in zip((config.a, config.b), config.names, strict=True):
        ddl = _ddl(_types(spark, _first(folders, name)))
        sides.append(spark.readStream.schema(ddl).parquet(_first(folders, name)))
    both = reconciled_stream(sides[0], sides[1], config.look_back, by_entity=config.by_entity)
    writer = both.writeStream.format("parquet").option("path", config.out).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        operators = [state for progress in query.recentProgress for state in progress["stateOperators"]]
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
    except spark_errors() as error:
        raise OptionError(f"The stream failed: {cause_of(error)}") from error
    finally:
        query.stop()
    late = sum(state["numRowsDroppedByWatermark"] for state in operators)
    doubled = sum(state["customMetrics"].get("numDroppedDuplicateRows", 0) for state in operators)
    return {"job": "reconcile", "rows": read, "dropped_doubled": doubled, "dropped_late": late, "out": config.out}


def _first(folders: tuple[str, ...], name: str) -> str:
    if len(folders) != 1:
        raise OptionError(f"A stream follows one folder of the side '{name}'; {len(folders)} are named.")
    return folders[0]


def _time(parsed: Mapping[str, Any], name: str) -> datetime | None:
    text = parsed[name]
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"'{name}' is {text[:100]!r}; it has to be a time such as 2026-11-21T00:00Z.") from None


def reconcile(spark: SparkSession, config: ReconcileConfig) -> dict[str, Any]:
    """Reconcile one window; return the findings.

    Raises:
        OptionError: A folder is missing or is no capture, or the window is empty; nothing was written.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    window = _window(config)
    _demand_apart(spark, config.out, window)
    both = _side(spark, config.a, config.names[0], config).unionByName(
        _side(spark, config.b, config.names[1], config), allowMissingColumns=True
    )
    # On disk: the rows have the bodies of all messages of the window.
    judged = judge(both, config).persist(StorageLevel.DISK_ONLY)
    try:
        if config.since is not None and config.until is not None:
            judged = judged.filter(F.col("enqueued_time").between(*_bounds(config)))
        told = _told(judged, config)
        judged.drop("findings", "lag_s", "copies_a", "copies_b").write.mode("overwrite").option(
            "partitionOverwriteMode", "static"
        ).parquet(f"{config.out}/window={window}")
        if config.differences is not None:
            found = judged.filter(F.size("findings") > 0)
            columns = ("entity", "message_id", "findings", "copies_a", "copies_b", "lag_s", "seen_in")
            place = ("namespace", "sequence_number", "enqueued_time")
            found.select(*columns, *place).write.mode("overwrite").option("partitionOverwriteMode", "static").parquet(
                f"{config.differences}/window={window}"
            )
    finally:
        judged.unpersist()
    return {"job": "reconcile", "window": window, **told, "out": config.out}


def key_of(side: str) -> Column:
    """The key of a message: its id, or its place where it has none. Two nulls would be equal otherwise."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    # No id begins with a null character: Service Bus takes ids as text that people write.
    place = F.concat_ws("/", F.lit("\0"), F.col(side), F.col("namespace"), F.col("entity"), F.col("sequence_number"))
    return F.coalesce(F.nullif(F.col("message_id"), F.lit("")), place)


def judge(both: DataFrame, config: ReconcileConfig) -> DataFrame:
    """Return one row for each message with the findings about it; ``both`` has a column ``side``.

    Each message is an aggregate, of which one row is kept while its copies are counted: neither the copies of a message
    nor their numbers are collected anywhere, however many copies there are.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    keys = ["_entity", "_key"] if config.by_entity else ["_key"]
    one, two = config.names
    # The digest decides where even the places are equal, so that swapping the sides changes nothing.
    order = ("enqueued_time", "namespace", "entity", "sequence_number", "_digest", "side")
    earliest = F.struct(F.isnull("enqueued_time"), *order)  # a message without a time comes last
    of_a, of_b = (F.when(F.col("side") == name, F.lit(1)) for name in (one, two))
    first_a, first_b = (F.min(F.when(F.col("side") == name, F.unix_micros("enqueued_time"))) for name in (one, two))
    sides = F.array(F.when(F.col("copies_a") > 0, F.lit(one)), F.when(F.col("copies_b") > 0, F.lit(two)))
    columns = [name for name in both.columns if name != "side"]
    marked = (
        both.withColumn("_key", key_of("side"))
        .withColumn("_entity", F.lower("entity"))
        .withColumn("_digest", _digest(both.columns))
        .groupBy(*keys)
        .agg(
            F.min_by(F.struct(*columns), earliest).alias("_first"),
            F.count("*").cast("int").alias("copies"),
            F.count(of_a).cast("int").alias("copies_a"),
            F.count(of_b).cast("int").alias("copies_b"),
            F.min("_digest").alias("_least"),
            F.max("_digest").alias("_most"),
            (first_b / 1_000_000 - first_a / 1_000_000).alias("lag_s"),
        )
        .withColumn("seen_in", F.sort_array(F.array_compact(sides)))
        .select("_first.*", "copies", "copies_a", "copies_b", "seen_in", "_least", "_most", "lag_s")
    )
    conditions = {
        ONLY_A: F.col("copies_b") == 0,
        ONLY_B: F.col("copies_a") == 0,
        DIFFERS: F.col("_least") != F.col("_most"),
        DOUBLED: F.greatest("copies_a", "copies_b") > 1,
        LATE_COPY: F.abs("lag_s") > config.late.total_seconds(),
    }
    findings = F.array_compact(F.array(*(F.when(is_so, F.lit(name)) for name, is_so in conditions.items())))
    return marked.withColumn("findings", findings).drop("_least", "_most")


def reconciled_stream(a: DataFrame, b: DataFrame, delay: timedelta, *, by_entity: bool = True) -> DataFrame:
    """Return two streams as one in which each message comes once, as soon as either stream has it. Opt-in.

    A row older than the watermark is dropped even if its message was never seen, so ``delay`` has to be longer than the
    longest outage with the time to drain its backlog; that is why the batch form is the default. Each side has a
    watermark of its own and the slower one counts. Use the RocksDB state store above 100,000 ids in a delay.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    text = f"{int(delay.total_seconds())} seconds"
    sides = [
        side.withColumn("side", F.lit(name)).withWatermark("enqueued_time", text) for name, side in (("a", a), ("b", b))
    ]
    entity = F.lower("entity") if by_entity else F.lit("")
    both = sides[0].unionByName(sides[1], allowMissingColumns=True)
    keyed = both.withColumn("_key", key_of("side")).withColumn("_entity", entity)
    return keyed.dropDuplicatesWithinWatermark(["_entity", "_key"]).drop("_entity", "_key", "side")


def _digest(columns: list[str]) -> Column:
    """What is compared of a body: its bytes and its type."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    kind = F.coalesce("body_type", F.lit("data")) if "body_type" in columns else F.lit("data")
    return F.concat(kind, F.lit("/"), F.coalesce(F.sha2("body", 256), F.lit("")))


def _side(spark: SparkSession, folders: tuple[str, ...], name: str, config: ReconcileConfig) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not folders:
        raise OptionError(f"No folder of captured messages is named for the side '{name}'.")
    found = None
    for folder in folders:
        present = _types(spark, folder)
        part = spark.read.schema(_ddl(present)).parquet(folder).select(*present)
        found = part if found is None else found.unionByName(part, allowMissingColumns=True)
    assert found is not None
    if config.since is not None and config.until is not None:
        first, last = _bounds(config)
        found = found.filter(F.col("enqueued_time").between(first - config.look_back, last + config.look_back))
    return found.withColumn("side", F.lit(name))


def _types(spark: SparkSession, folder: str) -> list[str]:
    """The columns of a message that a capture has.

    Raises:
        OptionError: It is no capture, or there is none, or a file in it cannot be read.
    """
    reader = spark.read.schema(_ddl(["body"]))
    try:
        # With all files' schemas, so that one of another kind is refused here and not in the middle.
        types = dict(spark.read.option("mergeSchema", "true").parquet(folder).dtypes)
    except spark_errors() as error:
        if is_missing(error):
            raise OptionError(f"The capture '{folder}' does not exist.") from error
        # What the files' own footers say names the file; Spark names a type of Parquet alone.
        told = _faults(spark, reader.parquet(folder)) or cause_of(error)
        raise OptionError(f"The capture '{folder}' cannot be read: {told}") from error
    # Of folders such as entity=7 Spark makes numbers.
    types |= {column: "string" for column in ("namespace", "entity") if column in types}
    present = [column for column in COLUMN_NAMES if column in types]
    demand_columns(types, ", ".join(f"{column} {_TYPES[column]}" for column in (*NEEDED, *present)), folder)
    # Not all that has a schema can be read: Spark would fail in the middle, with a trace of each task.
    if told := _faults(spark, reader.parquet(folder)):
        raise OptionError(f"The capture '{folder}' cannot be read: {told}")
    return present


def _faults(spark: SparkSession, frame: DataFrame) -> str:
    """What is wrong with the files of a capture, in a sentence each; empty if nothing is."""
    faults = faults_in(spark, frame.inputFiles(), NEEDED)
    return f"{' '.join(faults)} Nothing was written. Write such files with Spark, or move them away." if faults else ""


def _ddl(columns: list[str]) -> str:
    return ", ".join(f"`{column}` {_TYPES[column]}" for column in columns)


def _bounds(config: ReconcileConfig) -> tuple[datetime, datetime]:
    """First and last time of the window, both in it."""
    assert config.since is not None
    assert config.until is not None
    return config.since, config.until - timedelta(microseconds=1)


def _window(config: ReconcileConfig) -> str:
    one, two = config.names
    if one == two or not all(0 < len(name) <= NAME_LENGTH_MAX for name in config.names):
        raise OptionError(f"The sides need two different names of {NAME_LENGTH_MAX} characters at most.")
    if min(config.look_back, config.late) < timedelta(0):
        raise OptionError("'look_back' and 'late' cannot be negative.")
    if config.since is None and config.until is None:
        return _ALL
    if config.since is None or config.until is None or config.since >= config.until:
        raise OptionError("A window has a 'since' and a later 'until'; leave both out for everything.")
    if config.since.tzinfo is None or config.until.tzinfo is None:
        raise OptionError("'since' and 'until' need a time zone, such as 2026-11-21T00:00:00Z.")
    return f"{_text(config.since)}--{_text(config.until)}"


def _text(time: datetime) -> str:
    # A colon would be escaped in the name of a folder.
    return time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _demand_apart(spark: SparkSession, out: str, window: str) -> None:
    """Refuse a window that shares time with another one in the same folder: its messages would stand there twice."""
    try:
        # The names of folders are enough; nothing of the files is read.
        there = spark.read.parquet(out).inputFiles()
    except spark_errors() as error:
        if is_missing(error):
            return
        raise OptionError(f"'{out}' holds something else: {cause_of(error)}") from error
    for path in there:
        _, sign, rest = path.rpartition("/window=")
        other = rest.partition("/")[0]
        if not sign:
            raise OptionError(f"'{out}' holds other files than windows of this job: '{path}'.")
        if other != window and _share(other, window):
            raise OptionError(f"The window {window} shares time with {other}, which is in '{out}' already.")


def _share(one: str, two: str) -> bool:
    if _ALL in (one, two):
        return True
    (since, _, until), (start, _, end) = one.partition("--"), two.partition("--")
    return since < end and start < until


def _told(judged: DataFrame, config: ReconcileConfig) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    counts = [F.count(F.when(F.array_contains("findings", name), 1)).alias(name) for name in FINDINGS]
    in_both = F.count(F.when((F.col("copies_a") > 0) & (F.col("copies_b") > 0), 1)).alias("both")
    without = F.count(F.when(F.coalesce("message_id", F.lit("")) == "", 1)).alias("without_id")
    copies = [F.coalesce(F.sum(f"copies_{side}"), F.lit(0)).alias(f"rows_{side}") for side in "ab"]
    lag = F.coalesce(F.max(F.abs("lag_s")), F.lit(0.0)).alias("lag_s_max")
    whole = judged.agg(F.count("*").alias("messages"), in_both, *counts, without, *copies, lag).collect()[0]
    by_entity = judged.filter(F.size("findings") > 0).groupBy("entity").agg(F.count("*").alias("messages"), *counts)
    worst = by_entity.orderBy(F.desc("messages"), "entity").limit(ENTITIES_TOLD_MAX).collect()
    return {
        "names": list(config.names),
        **{name.replace("-", "_"): value for name, value in whole.asDict().items()},
        "by_entity": [{name.replace("-", "_"): value for name, value in row.asDict().items()} for row in worst],
    }
