"""Usage: sums and money by hour, incremental, with late and doubled records."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kit_metering import record, rows, write

from duobus.cli.main import main
from duobus.model.metering import EMPTY_RECEIVE, RECEIVE, SEND, SETTLE
from duobus.spark.errors import OptionError
from duobus.spark.jobs.compact import CompactConfig, compact
from duobus.spark.jobs.local.usage import local_usage, needs_no_spark
from duobus.spark.jobs.usage import UsageConfig, _checked, usage
from duobus.spark.jobs.work.tables import USAGE_DDL
from duobus.spark.prices import read_prices

pytestmark = pytest.mark.slow

Usage = Callable[[UsageConfig], dict[str, Any]]


@pytest.fixture(params=["spark", "python"])
def compute(request: pytest.FixtureRequest, spark: Any) -> Usage:
    """The job, by either way."""
    return local_usage if request.param == "python" else partial(usage, spark)


PRICES = """
currency = "USD"
[operations]
send = 0.8
receive = 0.35
[gib]
receive = 0.087
[hours]
namespace = 0.0135
"""


def test_usage_is_summed_and_priced_by_hour_and_late_records_reopen_theirs(
    spark: Any, tmp_path: Path, compute: Usage
) -> None:
    """SP6."""
    (tmp_path / "prices.toml").write_text(PRICES)
    data = write(
        tmp_path / "data",
        [
            record(1, 0, SEND, 3, bytes=10),
            record(2, 59, SEND, 4, bytes=20),
            record(3, 60, SEND, 1_000_003, bytes=30),
            record(4, 61, RECEIVE, 5, bytes=3_000_000_007, key="other"),
            record(5, 61, EMPTY_RECEIVE, 2, bytes=0),
            record(6, 61, SETTLE, 7, bytes=0),
            record(7, 24 * 60, SEND, 1, bytes=1, entity="p"),
        ],
    )
    config = UsageConfig(
        str(tmp_path / "compacted"), str(tmp_path / "usage"), str(tmp_path / "prices.toml"), (str(data),)
    )
    told = compute(config)
    json.dumps(told)
    assert told["days_computed"] == ["2026-11-21", "2026-11-22"]
    assert told["hours_reopened"] == told["servers_incomplete"] == told["servers_doubled"] == []
    assert told["unpriced"] == ["empty-receive", "settle"]
    # Settlements are no billed operations.
    assert told["operations"] == 3 + 4 + 1_000_003 + 5 + 2 + 1
    table = spark.read.parquet(config.out).filter("op != 'namespace-hour' and entity = 'q'")
    found = {(row["hour"].hour, row["op"], row["key"]): row for row in table.collect()}
    assert found[0, "send", "k"]["operations"] == 7
    assert found[0, "send", "k"]["bytes"] == 30
    prices = read_prices(tmp_path / "prices.toml")
    for row in found.values():
        assert row["cost"] == prices.cost(row["op"], row["operations"], row["bytes"])
    assert found[1, "receive", "other"]["cost"] == Decimal("0.243076943")
    assert Decimal(told["by_kind"]["namespace-hour"]["cost"]) == 3 * Decimal("0.0135")
    assert sum(Decimal(kind["cost"]) for kind in told["by_kind"].values()) == Decimal(told["cost"])
    assert told["by_entity"][0]["entity"] == "q"
    assert {row["key"] for row in told["by_key"]} == {"k", "other"}

    # Nothing new: nothing is computed.
    told = compute(config)
    assert (told["days_computed"], told["compact"]["records"]) == ([], 0)

    # A late record of the first hour reopens it, and no other day; another table of prices reopens all.
    write(tmp_path / "data", [record(8, 5, SEND, 10, bytes=1)])
    told = compute(config)
    assert told["days_computed"] == ["2026-11-21"]
    assert told["hours_reopened"] == ["2026-11-21T00:00Z"]
    assert told["by_kind"]["send"]["operations"] == 3 + 4 + 10 + 1_000_003 + 1
    (tmp_path / "prices.toml").write_text(PRICES.replace("0.8", "0.9"))
    told = compute(UsageConfig(config.compacted, config.out, config.prices))
    assert told["days_computed"] == ["2026-11-21", "2026-11-22"]
    assert told["hours_reopened"] == []


def test_doubled_records_count_once_and_missing_ones_are_told(spark: Any, tmp_path: Path, compute: Usage) -> None:
    one = write(tmp_path / "one", [record(1), record(2), record(4)])
    two = write(tmp_path / "two", [record(number, server="t") for number in (1, 2)])
    compacted = str(tmp_path / "compacted")
    compact(spark, CompactConfig((str(one), str(two)), compacted))
    # Two that compacted at a time.
    again = spark.read.parquet(compacted).filter("server = 't' and number = 2").coalesce(1)
    again.write.mode("append").partitionBy("day").parquet(compacted)
    told = compute(UsageConfig(compacted, str(tmp_path / "usage")))
    assert told["servers_incomplete"] == [{"server": "s", "missing": 1, "doubled": 0}]
    assert told["servers_doubled"] == [{"server": "t", "missing": 0, "doubled": 1}]
    assert told["by_kind"]["send"]["operations"] == 5


def test_servers_with_wrong_records_are_told_up_to_a_limit_however_many_they_are(spark: Any) -> None:
    # Of each server numbers 1 to 9, without 5 on the even ones, and with 7 twice on those whose number ends with 1.
    records = spark.sql(
        "select format_string('s%03d', server) as server, number from (select explode(sequence(0, 99)) as server)"
        " lateral view explode(array(1, 2, 3, 4, 5, 6, 7, 8, 9)) as number where server % 2 = 1 or number <> 5"
    )
    doubled = records.where("number = 7 and server like '%1'")
    told = _checked(records.unionByName(doubled))
    assert [one["server"] for one in told["missing"]] == [f"s{number:03}" for number in range(0, 40, 2)]
    assert told["doubled"] == [{"server": f"s{number:03}", "missing": 0, "doubled": 1} for number in range(1, 100, 10)]
    assert told["missing"][0] == {"server": "s000", "missing": 1, "doubled": 0}


def test_hours_are_those_of_utc_whatever_the_session_says(spark: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "data", [record(1, 30)])
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        usage(spark, UsageConfig(str(tmp_path / "c"), str(tmp_path / "u"), None, (str(data),)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    (row,) = spark.read.parquet(str(tmp_path / "u")).selectExpr("unix_timestamp(hour)", "string(day)").collect()
    assert tuple(row) == (int(datetime.fromisoformat("2026-11-21T00:00:00Z").timestamp()), "2026-11-21")


def test_a_table_that_is_missing_or_another_is_told_by_name(spark: Any, tmp_path: Path, compute: Usage) -> None:
    with pytest.raises(OptionError, match=r"no compacted records in '.*none'"):
        compute(UsageConfig(str(tmp_path / "none"), str(tmp_path / "usage")))
    spark.range(1).write.parquet(str(tmp_path / "other"))
    data = write(tmp_path / "data", [record(1)])
    with pytest.raises(OptionError, match="other' is another table"):
        compute(UsageConfig(str(tmp_path / "c"), str(tmp_path / "other"), None, (str(data),)))


def test_either_way_makes_the_same_tables_and_goes_on_with_those_of_the_other(spark: Any, tmp_path: Path) -> None:
    kinds = (SEND, RECEIVE, EMPTY_RECEIVE, SETTLE)
    records = [
        record(
            number, 7 * number, kinds[number % 4], 1 + number * 999_983, bytes=number * 77_777_777, key=f"k{number % 3}"
        )
        for number in range(1, 60)
    ]
    (tmp_path / "prices.toml").write_text(PRICES)
    data = write(tmp_path / "data", [*records, record(60, entity="ä"), record(62, 1)])
    summaries, tables = [], []
    for way, computed in (("spark", partial(usage, spark)), ("python", local_usage)):
        place = [str(tmp_path / way / name) for name in ("compacted", "out")]
        config = UsageConfig(place[0], place[1], str(tmp_path / "prices.toml"), (str(data),))
        told = computed(config)
        summaries.append(json.loads(json.dumps(told).replace(str(tmp_path / way), "")))
        compacted = spark.read.parquet(config.compacted)
        frame = spark.read.schema(USAGE_DDL).parquet(config.out)
        columns = [name for name in frame.columns if name != "source"]
        tables.append((rows(compacted.select(*sorted(compacted.columns))), rows(frame.select(*columns))))
    assert summaries[0] == summaries[1]
    assert tables[0] == tables[1]
    assert len(tables[0][1]) > 40

    # What one has made is finished work to the other, also when more records come.
    for way, other in (("spark", local_usage), ("python", partial(usage, spark))):
        place = [str(tmp_path / way / name) for name in ("compacted", "out")]
        config = UsageConfig(place[0], place[1], str(tmp_path / "prices.toml"), (str(data),))
        told = other(config)
        assert (told["days_computed"], told["compact"]["records"], told["compact"]["repeated"]) == ([], 0, 61)
    write(tmp_path / "data", [record(61, 2)])
    told = local_usage(UsageConfig(*place, str(tmp_path / "prices.toml"), (str(data),)))
    assert (told["days_computed"], told["servers_incomplete"]) == (["2026-11-21"], [])


def test_small_tables_of_this_machine_need_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "data", [record(number, number) for number in range(1, 38)])

    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("duobus.cli.commands.spark.new_session", no_spark)
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    command = [
        "spark",
        "usage",
        "--metering",
        str(data),
        "--compacted",
        str(tmp_path / "c"),
        "--out",
        str(tmp_path / "o"),
    ]
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["engine"], told["operations"]) == ("python", 37)
    for wish in ({"runsPath": str(tmp_path / "runs")}, {"out": "s3a://lake/usage"}, {"metering": f"{data}/*"}):
        given = {"metering": str(data), "compacted": str(tmp_path / "c"), "out": str(tmp_path / "o"), **wish}
        assert not needs_no_spark(given)
    monkeypatch.setattr("duobus.spark.jobs.local.tables.LINES_BYTES_MAX", 100)
    assert not needs_no_spark({"metering": str(data), "compacted": str(tmp_path / "c"), "out": str(tmp_path / "o")})
