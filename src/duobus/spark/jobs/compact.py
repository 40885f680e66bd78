"""Metering files of servers to one Parquet table: checked line by line, each record once (I59).

Append only: a record that the table has already, by (server, number), is not written again. So the job can be repeated,
interrupted and repeated, and run over files that overlap. A line that is torn or altered is reported with its file and
never used. Run one ``compact`` at a time for a table; if two ran, ``usage`` notices and counts each record once.

The same command makes few files out of the small ones of captured messages; ``lake.compaction`` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import RUNS_PATH, Summary, cause_of, needed, settings, spark_errors
from duobus.spark.jobs.lake.compaction import Rules, compact_folder
from duobus.spark.jobs.lake.hour_folders import finished
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.jobs.work.tables import COMPACTED_DDL, DAY_SQL, RECORD, RECORD_DDL, read_table
from duobus.spark.options import DURATION, NAMES, SIZE, TEXT, Option, Parsed
from duobus.spark.source.query_end import local_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

#: Files that the broker writes (telemetry.metering_log).
FILES: Final = "metering-*.jsonl"
#: Characters of a damaged line that are kept, and files that the summary names.
LINE_LENGTH_MAX: Final = 1_000
FILES_TOLD_MAX: Final = 20

#: A line ends with a checksum over the rest of it, as telemetry.metering_log writes it.
_BODY: Final = r"""regexp_extract(value, '(?s)^(.*),"sum":(\\d+)\\}$', 1)"""
_SUM: Final = r"""regexp_extract(value, '(?s)^(.*),"sum":(\\d+)\\}$', 2)"""
_COUNTS: Final = ("messages", "bytes", "operations")


@dataclass(frozen=True, slots=True)
class CompactConfig:
    """Settings of ``compact``.

    Attributes:
        metering: Data folders of servers, or folders with their metering files; local, or any that Spark can read.
        out: Folder of the table.
        damaged: Folder that gets the damaged lines of this run, if any; it is overwritten.
    """

    metering: tuple[str, ...]
    out: str
    damaged: str | None = None


METERING_OPTIONS: Final = (
    Option("metering", NAMES, None, "data folders of servers, or folders or patterns of their metering files"),
    Option("compacted", TEXT, None, "folder of the table of compacted records"),
    Option("damaged", TEXT, None, "folder for the damaged lines that were found; it is overwritten"),
)
_OF_CAPTURED: Final = (
    Option("captured", TEXT, None, "folder that capture wrote: its small files become few; without metering"),
    Option("checkpoints", NAMES, None, "checkpoints of the captures into it: what they have committed is compacted"),
    Option("finishedQueries", NAMES, None, "ids, or their first 8 digits, of captures whose checkpoints are gone"),
    Option("targetSize", SIZE, "128m", "bytes that a compacted file may have", least=1 << 10, most=1 << 40),
    Option("quiet", DURATION, "10m", "leave batches alone that were changed within this time", most=366 * 86_400_000),
)
OPTIONS: Final = (*METERING_OPTIONS, *_OF_CAPTURED)
HELP: Final = (
    "Collect the metering files of servers in one table, each record once, and report damaged lines; or make few files "
    "out of the small ones of captured messages."
)
EXAMPLE: Final = "duobus spark compact --metering /var/lib/duobus --compacted /lake/metering"


@described("compact")
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Compact by settings as ``OPTIONS`` tells them; see ``compact``."""
    parsed, summary = settings(cfg, (*OPTIONS, RUNS_PATH)), Summary("compact")
    if parsed["captured"] is not None:
        return summary.kept(spark, parsed, _captured(parsed, tell))
    for option in _OF_CAPTURED:
        if option.name in parsed.given:
            raise OptionError(f"The option '{option.name}' goes with 'captured', the folder that capture wrote.")
    tell("reading metering files")
    found = compact(spark, CompactConfig(parsed["metering"], needed(parsed, "compacted"), parsed["damaged"]))
    return summary.kept(spark, parsed, found)


def needs_spark(cfg: Mapping[str, Any]) -> bool:
    """Whether Spark has to be started: captured messages are compacted without it."""
    return not cfg.get("captured") or bool(cfg.get(RUNS_PATH.name))


def _captured(parsed: Parsed, tell: Tell) -> dict[str, Any]:
    """Compact a folder of captured messages."""
    for name in ("metering", "compacted", "damaged"):
        if name in parsed.given:
            raise OptionError(
                f"The option '{name}' is about metering, and 'captured' about messages; give one of both."
            )
    root = local_folder(parsed["captured"])
    if root is None:
        raise OptionError(
            f"'{parsed['captured']}' is on no disk of this machine, so its folders cannot change places in one step. "
            "Tables of Delta and Iceberg have a compaction of their own."
        )
    over = finished(root, parsed["checkpoints"] or (), parsed["finishedQueries"] or ())
    rules = Rules(over, (Clock().now_ms() - parsed["quiet"]) / 1000, parsed["targetSize"])
    return {"job": "compact", **compact_folder(root, rules, tell), "captured": str(root)}


def compact(spark: SparkSession, config: CompactConfig) -> dict[str, Any]:
    """Compact; returns what was found.

    Raises:
        OptionError: A folder is missing or holds something else; nothing was written.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    lines = _lines(spark, config.metering)
    checked = _checked(lines).cache()
    try:
        good = checked.filter("reason is null").select("record.*").withColumn("day", F.expr(DAY_SQL))
        told = checked.groupBy("reason").count().collect()
        counts = {row["reason"]: int(row["count"]) for row in told}
        known = read_table(spark, config.out, COMPACTED_DDL)
        fresh = good.dropDuplicates(["server", "number"])
        if known is not None:
            days = [row["day"] for row in good.select("day").distinct().collect()]
            of_days = known.filter(F.col("day").isin(days)).select("server", "number")
            fresh = fresh.join(of_days, ["server", "number"], "left_anti")
        fresh = fresh.select(*(name for name, _ in RECORD), "day").cache()
        by_day = {row["day"]: int(row["count"]) for row in fresh.groupBy("day").count().collect()}
        if by_day:
            _append(fresh, config.out)
        fresh.unpersist()
        files = _report_damage(checked, config.damaged) if set(counts) - {None} else {}
    finally:
        checked.unpersist()
    return {
        "job": "compact",
        "lines": sum(counts.values()),
        "records": sum(by_day.values()),
        "repeated": counts.get(None, 0) - sum(by_day.values()),
        "damaged": sum(count for reason, count in counts.items() if reason is not None),
        "damaged_by_reason": {reason: count for reason, count in sorted(counts.items(), key=str) if reason is not None},
        "damaged_by_file": files,
        "days": dict(sorted(by_day.items())),
        "out": config.out,
    }


def _append(fresh: DataFrame, out: str) -> None:
    # One file for each day; sorted, so that columns of names take next to nothing.
    ordered = fresh.repartition("day").sortWithinPartitions("day", "namespace", "entity", "kind", "minute_ms")
    ordered.write.mode("append").partitionBy("day").parquet(out)


def _lines(spark: SparkSession, folders: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not folders:
        raise OptionError("No folder of metering files is named. Name the data folder of each server.")
    # A data folder has them in a folder of their own.
    places = [str(Path(folder) / "metering") if (Path(folder) / "metering").is_dir() else folder for folder in folders]
    for place in places:
        if not any(sign in place for sign in "*?[{:") and not Path(place).exists():
            raise OptionError(f"There is no folder '{place}'. A server writes its metering below its --data folder.")
    reader = spark.read.option("lineSep", "\n").option("pathGlobFilter", FILES)
    try:
        # The torn end of one line and the start of the next are parted by an empty one.
        lines = reader.text(places).filter("value != ''").select("value", F.col("_metadata.file_path").alias("file"))
        # Through Spark Connect nothing is looked at before the columns are asked for.
        lines = lines.select(*lines.columns)
    except spark_errors() as error:
        raise OptionError(f"The metering files cannot be read: {cause_of(error)}") from error
    return lines


def _checked(lines: DataFrame) -> DataFrame:
    """Each line with its record, or with the reason why it has none."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    parted = lines.withColumn("text", F.expr(f"concat({_BODY}, '}}')")).withColumn("sum", F.expr(_SUM))
    parsed = parted.withColumn("record", F.from_json("text", RECORD_DDL))
    named = " and ".join(f"record.{name} is not null" for name in ("server", "namespace", "entity", "kind"))
    counted = " and ".join(f"record.{name} >= 0" for name in _COUNTS)
    is_record = f"coalesce({named} and {counted} and record.number >= 1 and record.minute_ms >= 0, false)"
    # Without a checksum at its end a line was torn; crc32 is that of zlib, over the bytes as they stand.
    reason = f"""case when sum = '' then 'torn'
        when sum != string(crc32(binary(text))) then 'checksum'
        when not {is_record} then 'fields' end"""
    with_key = F.col("record").withField("key", F.expr("coalesce(record.key, '')"))
    return parsed.select("file", "value", F.expr(reason).alias("reason"), with_key.alias("record"))


def _report_damage(checked: DataFrame, folder: str | None) -> dict[str, int]:
    """Write the damaged lines where they can be looked at; returns how many each file has."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    damaged = checked.filter("reason is not null")
    if folder is not None:
        line = F.substring("value", 1, LINE_LENGTH_MAX).alias("line")
        damaged.select("file", "reason", line).write.mode("overwrite").parquet(folder)
    worst = damaged.groupBy("file").count().orderBy(F.desc("count"), "file").limit(FILES_TOLD_MAX)
    return {row["file"]: int(row["count"]) for row in worst.collect()}
