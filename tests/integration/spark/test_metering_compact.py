"""Compaction: every good record once, whatever is repeated, torn or altered (I59)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit_metering import DAY_MS, record, write

from duobus.spark.errors import OptionError
from duobus.spark.jobs.compact import CompactConfig, compact
from duobus.spark.jobs.local.usage import local_compact
from duobus.telemetry.metering_log import MeteringLog

pytestmark = pytest.mark.slow


Compact = Callable[[CompactConfig], dict[str, Any]]


@pytest.fixture(params=["spark", "python"])
def compacts(request: pytest.FixtureRequest, spark: Any) -> Compact:
    """The job, by either way."""
    return local_compact if request.param == "python" else partial(compact, spark)


def numbers(spark: Any, out: Path) -> list[tuple[str, int]]:
    return sorted((row["server"], row["number"]) for row in spark.read.parquet(str(out)).collect())


def test_compaction_keeps_each_good_record_once_and_tells_of_the_damaged(
    spark: Any, tmp_path: Path, compacts: Compact
) -> None:
    one = write(tmp_path / "one", [record(1, entity='q"\u2028\n,"sum":1}'), record(2), record(3, 24 * 60)])
    two = write(tmp_path / "two", [record(1, server="t"), record(2, server="t", key="")])
    (path,) = (one / "metering").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    # One altered, one twice, one torn by a crash before the next, one from another program, one not even UTF-8.
    altered = lines[1].replace(b'"operations":1', b'"operations":9')
    strange = b'{"server":"s","sum":2154369024}\n\xff\xfe\xfd\n'
    path.write_bytes(lines[0] + altered + lines[2] + lines[2] + b'{"server":"s","numb\n' + strange)
    MeteringLog(one / "metering").write([record(4)])
    config = CompactConfig((str(one), str(two)), str(tmp_path / "out"), str(tmp_path / "damaged"))
    told = compacts(config)
    assert (told["lines"], told["records"], told["repeated"], told["damaged"]) == (10, 5, 1, 4)
    assert told["damaged_by_reason"] == {"checksum": 2, "torn": 2}
    assert list(told["damaged_by_file"].values()) == [4]
    assert told["days"] == {"2026-11-21": 4, "2026-11-22": 1}
    expected = [("s", 1), ("s", 3), ("s", 4), ("t", 1), ("t", 2)]
    assert numbers(spark, tmp_path / "out") == expected
    table = spark.read.parquet(str(tmp_path / "out"))
    first = table.filter("server = 's' and number = 1").collect()[0]
    assert (first["entity"], first["minute_ms"], first["key"]) == ('q"\u2028\n,"sum":1}', DAY_MS, "k")
    assert spark.read.parquet(str(tmp_path / "damaged")).count() == 4
    # What the reader of the server finds is what is compacted.
    found = [record for data in (one, two) for record in MeteringLog(data / "metering").read()]
    assert sorted((record.server, record.number) for record in found) == expected

    # Again, with one more: only that one is new.
    MeteringLog(two / "metering").write([record(2, server="t", key=""), record(3, server="t")])
    told = compacts(config)
    assert (told["records"], told["days"]) == (1, {"2026-11-21": 1})
    assert numbers(spark, tmp_path / "out") == [*expected, ("t", 3)]


def test_what_is_no_folder_of_metering_is_told_by_name(spark: Any, tmp_path: Path, compacts: Compact) -> None:
    with pytest.raises(OptionError, match=r"no folder '.*none'"):
        compacts(CompactConfig((str(tmp_path / "none"),), str(tmp_path / "out")))
    with pytest.raises(OptionError, match="Name the data folder"):
        compacts(CompactConfig((), str(tmp_path / "out")))
    spark.range(1).write.parquet(str(tmp_path / "other"))
    data = write(tmp_path / "data", [record(1)])
    with pytest.raises(OptionError, match=r"other' is another table than expected: server \(missing"):
        compacts(CompactConfig((str(data),), str(tmp_path / "other")))
