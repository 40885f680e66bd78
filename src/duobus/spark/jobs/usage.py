"""Operations, messages, bytes and cost by namespace, entity, hour, kind and key, out of metering.

Incremental: a day of the result names the files and prices from which it was made. A day whose files or prices have
changed is computed again, and the new result replaces the old one. So an hour gets records that come late, and an
interrupted run can be repeated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from duobus.model.metering import KINDS
from duobus.spark.errors import OptionError
from duobus.spark.jobs import compact
from duobus.spark.jobs.job import RUNS_PATH, Summary, needed, settings
from duobus.spark.jobs.progress import Tell, described, untold
from duobus.spark.jobs.work.tables import COMPACTED_DDL, DAY_OF_HOUR_SQL, HOUR_NO_SQL, HOUR_SQL, USAGE_DDL, read_table
from duobus.spark.options import SWITCH, TEXT, Option, Parsed
from duobus.spark.prices import PER_GIB, PER_MILLION, PLACES, Prices, plain, read_prices

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Changes when the same records would give other rows.
FORMAT: Final = "1"
#: Entities and keys that the summary names, the dearest first.
TOLD_MAX: Final = 20
#: Servers with missing or doubled records that the summary names.
SERVERS_TOLD_MAX: Final = 20
_NONE_WRONG: Final[dict[str, list[dict[str, Any]]]] = {"missing": [], "doubled": []}
#: Kind of the rows that charge a namespace by the hour.
HOUR: Final = "namespace-hour"

_DAY: Final = re.compile(r"/day=(\d{4}-\d\d-\d\d)/([^/]+)$")


@dataclass(frozen=True, slots=True)
class UsageConfig:
    """Settings of ``usage``.

    Attributes:
        compacted: Folder of compacted metering records.
        out: Folder of the result.
        prices: File of prices; by default the example of the package.
        metering: Data folders of servers to compact first.
        damaged: Folder for damaged lines of these files.
        check: Check that no record of a server is missing or doubled; reads the whole table.
    """

    compacted: str
    out: str
    prices: str | None = None
    metering: tuple[str, ...] = ()
    damaged: str | None = None
    check: bool = True


OPTIONS: Final = (
    *compact.METERING_OPTIONS,
    Option("out", TEXT, None, "folder of the usage"),
    Option("prices", TEXT, None, "TOML file of prices; by default the example that comes with the package"),
    Option("check", SWITCH, "true", "check that no record of a server is missing or doubled; reads all records"),
)
HELP: Final = "Compute operations, messages, bytes and cost by entity, hour, kind and key, out of metering records."
EXAMPLE: Final = (
    "duobus spark usage --metering /var/lib/duobus --compacted /lake/metering --out /lake/usage --prices prices.toml"
)


@described("usage")
def run(spark: SparkSession, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Compute usage by settings as ``OPTIONS`` tells them; see ``usage``."""
    parsed, summary = settings(cfg, (*OPTIONS, RUNS_PATH)), Summary("usage")
    config = config_of(parsed)
    return summary.kept(spark, parsed, {**usage(spark, config, tell), "engine": "spark"})


def config_of(parsed: Parsed) -> UsageConfig:
    """The settings of ``usage``; raise OptionError when one is missing."""
    return UsageConfig(
        needed(parsed, "compacted"),
        needed(parsed, "out"),
        parsed["prices"],
        parsed["metering"] or (),
        parsed["damaged"],
        parsed["check"],
    )


def usage(spark: SparkSession, config: UsageConfig, tell: Tell = untold) -> dict[str, Any]:
    """Compute the days that are not computed yet; return the totals of the whole result.

    Raises:
        OptionError: Prices, folders or tables are missing or wrong; nothing was written.
    """
    prices = read_prices(config.prices)
    compacted = None
    if config.metering:
        tell("compacting metering files")
        compacted = compact.compact(spark, compact.CompactConfig(config.metering, config.compacted, config.damaged))
    records = read_table(spark, config.compacted, COMPACTED_DDL)
    if records is None:
        raise OptionError(f"There are no compacted records in '{config.compacted}'. Name the data folders to compact.")
    tell("checking records")
    checked = _checked(records) if config.check else _NONE_WRONG
    sources = sources_of(records.inputFiles(), prices)
    known = read_table(spark, config.out, USAGE_DDL)
    done = {} if known is None else dict(map(tuple, known.select("day", "source").distinct().collect()))
    stale = sorted(day for day, source in sources.items() if done.get(day) != source)
    before = {} if known is None or not stale else _hours(known, stale)
    tell(f"computing {len(stale)} days")
    if stale:
        chosen = records if len(stale) == len(sources) else records.filter(records["day"].isin(stale))
        if checked["doubled"]:
            chosen = chosen.dropDuplicates(["server", "number"])
        _write(spark, priced(chosen, prices), {day: sources[day] for day in stale}, config.out)
    result = read_table(spark, config.out, USAGE_DDL)
    assert result is not None  # the table of records has files, so there is a day
    after = _hours(result, stale) if before else {}
    return {
        "job": "usage",
        "compact": compacted,
        "currency": prices.currency,
        "days_computed": stale,
        "hours_reopened": sorted(hour for hour, numbers in after.items() if before.get(hour, numbers) != numbers),
        "servers_incomplete": checked["missing"],
        "servers_doubled": checked["doubled"],
        **_totals(result, prices),
        "out": config.out,
    }


def sources_of(paths: Iterable[str], prices: Prices) -> dict[str, str]:
    """Return a fingerprint of what each day is made from: the names of its files, and the prices."""
    by_day: dict[str, list[str]] = {}
    for path in paths:
        found = _DAY.search(path)
        if found is None:
            raise OptionError(f"'{path}' is no file of compacted metering records.")
        by_day.setdefault(found[1], []).append(found[2])
    return {
        day: hashlib.sha256("\n".join((FORMAT, prices.digest, *sorted(names))).encode()).hexdigest()[:32]
        for day, names in by_day.items()
    }


def priced(records: DataFrame, prices: Prices) -> DataFrame:
    """Return usage with its cost, without the ``source``."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    summed = (
        # Hour and day are made of the number of the hour afterwards: fewer and shorter keys to group by.
        records.groupBy("namespace", "entity", F.expr(HOUR_NO_SQL).alias("hour_no"), F.col("kind").alias("op"), "key")
        .agg(*(F.sum(name).alias(name) for name in ("operations", "messages", "bytes")))
        .withColumn("hour", F.expr(HOUR_SQL))
        .withColumn("day", F.expr(DAY_OF_HOUR_SQL))
        .withColumn("cost", _cost(prices))
        .drop("hour_no")
    )
    if not prices.namespace_hour:
        return summed
    hours = summed.select("namespace", "hour", "day").distinct()
    charge = _amount(F.lit(prices.namespace_hour).cast("decimal(38,0)"))
    literals = {"entity": "", "op": HOUR, "key": ""}
    for name, text in literals.items():
        hours = hours.withColumn(name, F.lit(text))
    for name in ("operations", "messages", "bytes"):
        hours = hours.withColumn(name, F.lit(0).cast("bigint"))
    return summed.unionByName(hours.withColumn("cost", charge))


def _cost(prices: Prices) -> Column:
    """The expression of ``Prices.cost``: whole billionths, each product rounded half up once."""
    by_kind = _rounded("operations", prices.operations, PER_MILLION)
    return _amount(by_kind + _rounded("bytes", prices.gib, PER_GIB))


def _rounded(counted: str, by_kind: dict[str, int], divisor: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    price = F.lit(0).cast("decimal(18,0)")
    for kind, billionths in by_kind.items():
        price = F.when(F.col("op") == kind, F.lit(Decimal(billionths)).cast("decimal(18,0)")).otherwise(price)
    # 18 digits of a count are an exabyte in an hour; Spark fails rather than wraps beyond.
    product = F.col(counted).cast("decimal(18,0)") * price + F.lit(divisor // 2).cast("decimal(18,0)")
    # A quotient of decimals would have so many places only; ``div`` gives its whole part, exactly.
    return F.call_function("div", product.cast("decimal(38,0)"), F.lit(divisor).cast("decimal(18,0)"))


def _amount(billionths: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return (billionths.cast("decimal(20,0)") * F.lit(Decimal(1).scaleb(-PLACES)).cast("decimal(10,9)")).cast(
        "decimal(18,9)"
    )


def _write(spark: SparkSession, rows: DataFrame, sources: dict[str, str], out: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    source = F.create_map(*(F.lit(text) for pair in sources.items() for text in pair))[F.col("day")]
    together = rows.withColumn("source", source).repartition("day")
    ordered = together.sortWithinPartitions("day", "namespace", "entity", "hour")
    # Days that are not among these stay as they are, whatever the session says of overwriting.
    ordered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("day").parquet(out)


def _checked(records: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The first servers of which records are ``missing``, and the first of which records are ``doubled``.

    A server numbers its records from 1 without gaps, so their count and sum tell which servers have to be looked at.
    Two jobs tell the rest, however many servers that are.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    wrong = (
        records.groupBy("server")
        .agg(F.count("*").alias("records"), F.max("number").alias("last"), F.sum("number").alias("sum"))
        .filter("records != last or sum != last * (last + 1) div 2")
        .select("server")
        .persist()
    )
    try:
        if wrong.isEmpty():
            return _NONE_WRONG
        counted = (
            records.join(wrong, "server", "left_semi")
            .groupBy("server")
            .agg(F.max("number").alias("last"), F.count("*").alias("records"), F.count_distinct("number").alias("once"))
            .select("server", F.expr("last - once as missing"), F.expr("records - once as doubled"))
            .persist()
        )
        try:
            return {
                name: [row.asDict() for row in _first(counted.filter(F.col(name) > 0))]
                for name in ("missing", "doubled")
            }
        finally:
            counted.unpersist()
    finally:
        wrong.unpersist()


def _first(servers: DataFrame) -> list[Any]:
    return list(servers.orderBy("server").limit(SERVERS_TOLD_MAX).collect())


def _hours(result: DataFrame, days: list[str]) -> dict[str, tuple[int, ...]]:
    """What stands in each hour of these days."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    summed = result.filter(F.col("day").isin(days)).groupBy(F.unix_timestamp("hour").alias("hour"))
    rows = summed.agg(F.sum("operations"), F.sum("messages"), F.sum("bytes")).collect()
    return {_utc(int(row[0])): tuple(map(int, row[1:])) for row in rows}


def _utc(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:00Z")


def _totals(result: DataFrame, prices: Prices) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    sums = [F.sum(name).alias(name) for name in ("operations", "messages", "bytes", "cost")]
    by_kind = {row["op"]: _numbers(row) for row in result.groupBy("op").agg(*sums).orderBy("op").collect()}
    kinds = {kind for kind in by_kind if kind != HOUR}
    dearest = result.groupBy("namespace", "entity").agg(*sums).orderBy(F.desc("cost"), F.desc("operations"), "entity")
    keys = result.filter(F.col("op") != HOUR).groupBy("key").agg(*sums).orderBy(F.desc("cost"), "key")
    billed = [numbers for kind, numbers in by_kind.items() if KINDS.get(kind, True)]
    return {
        "operations": sum(numbers["operations"] for numbers in billed),
        "cost": plain(sum((Decimal(numbers["cost"]) for numbers in by_kind.values()), Decimal(0))),
        "by_kind": by_kind,
        "by_entity": [
            {"namespace": row["namespace"], "entity": row["entity"], **_numbers(row)}
            for row in dearest.limit(TOLD_MAX).collect()
        ],
        "by_key": [{"key": row["key"], **_numbers(row)} for row in keys.limit(TOLD_MAX).collect()],
        "unpriced": prices.unpriced(kinds),
    }


def _numbers(row: Any) -> dict[str, Any]:
    # Decimal is no JSON, and a float would not be exact.
    return {
        "operations": int(row["operations"]),
        "messages": int(row["messages"]),
        "bytes": int(row["bytes"]),
        "cost": plain(row["cost"]),
    }
