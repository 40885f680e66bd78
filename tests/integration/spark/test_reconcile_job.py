"""Two namespaces as one: each message once, symmetric, whatever the order (I60)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.functions import lit

from duobus.spark.errors import OptionError
from duobus.spark.jobs.reconcile import LOOK_BACK, ReconcileConfig, judge, reconcile, run

pytestmark = pytest.mark.slow

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
DDL = (
    "body binary, body_type string, message_id string, sequence_number bigint, enqueued_time timestamp, "
    "namespace string, entity string"
)


def row(number: int, message_id: str | None, seconds: float = 0, **more: Any) -> tuple[Any, ...]:
    about = {"body": b"x", "body_type": "data", "namespace": "n", "entity": "7"} | more
    time = START + timedelta(seconds=seconds)
    return (about["body"], about["body_type"], message_id, number, time, about["namespace"], about["entity"])


def capture(spark: Any, folder: Path, rows: Iterable[tuple[Any, ...]]) -> str:
    """Write a capture as the capture job lays it out."""
    # Values that travel as JSON of the plan need no Python worker.
    spark.createDataFrame(list(rows), DDL).coalesce(1).write.mode("append").partitionBy("entity").parquet(str(folder))
    return str(folder)


def outcome(spark: Any, out: str) -> list[tuple[Any, ...]]:
    table = spark.read.parquet(out).orderBy("message_id", "namespace", "sequence_number", "enqueued_time")
    return [
        (row["message_id"], bytes(row["body"]), row["copies"], row["seen_in"], row["enqueued_time"], str(row["entity"]))
        for row in table.collect()
    ]


A = [
    row(1, "both"),
    row(2, "only-a"),
    row(3, "twice", 1),
    row(4, "twice", 2),
    row(5, "differs", body=b"one"),
    row(6, "late"),
    row(7, None),
    row(8, None),
    row(9, "both", entity="p"),
    row(10, ""),
]
#: The other namespace has the same name and the same numbers, as two emulators have.
B = [
    row(2, "both", 3),
    row(1, "only-b"),
    row(3, "twice", 9),
    row(5, "differs", body=b"two"),
    row(6, "late", 3_600),
    row(7, None),
]


def test_each_message_comes_once_and_what_differs_is_told_from_either_side(spark: Any, tmp_path: Path) -> None:
    """SP5."""
    a, b = capture(spark, tmp_path / "a", A[:5]), capture(spark, tmp_path / "b", B)
    capture(spark, tmp_path / "a", A[5:])
    config = ReconcileConfig((a,), (b,), str(tmp_path / "out"), str(tmp_path / "differences"), names=("east", "west"))
    told = reconcile(spark, config)
    json.dumps(told)
    found = {name: told[name] for name in ("messages", "both", "only_in_a", "only_in_b", "body_differs", "doubled")}
    assert found == {"messages": 11, "both": 4, "only_in_a": 5, "only_in_b": 2, "body_differs": 1, "doubled": 1}
    assert (told["late"], told["lag_s_max"], told["without_id"]) == (1, 3_600.0, 4)
    assert (told["rows_a"], told["rows_b"]) == (len(A), len(B))
    rows = outcome(spark, config.out)
    assert len(rows) == 11
    by_id = {(row[0], row[5]): row for row in rows if row[0]}
    assert by_id["both", "7"][2:4] == (2, ["east", "west"])
    assert by_id["both", "p"][2:4] == (1, ["east"])
    assert by_id["twice", "7"][2:4] == (3, ["east", "west"])
    differences = spark.read.parquet(config.differences)
    findings = {row["message_id"]: row["findings"] for row in differences.collect() if row["message_id"]}
    assert findings["late"] == ["late"]
    assert findings["differs"] == ["body-differs"]
    assert findings["twice"] == ["doubled"]
    assert [entity["entity"] for entity in told["by_entity"]] == ["7", "p"]

    # The same from the other side, with the files in another order: the same messages.
    swapped = ReconcileConfig((b,), (a,), str(tmp_path / "swapped"), names=("west", "east"))
    back = reconcile(spark, swapped)
    assert outcome(spark, swapped.out) == rows
    assert (back["only_in_a"], back["only_in_b"], back["doubled"]) == (2, 5, 1)
    # And again into the same folder: it replaces itself.
    assert reconcile(spark, config) == told
    assert outcome(spark, config.out) == rows


def test_copies_are_counted_and_neither_collected_nor_ordered(spark: Any) -> None:
    rows = spark.createDataFrame([row(number, "same", number) for number in range(50)], DDL)
    both = rows.withColumn("side", lit("a")).unionByName(rows.withColumn("side", lit("b")))
    told = judge(both, ReconcileConfig((), (), ""))
    plan = told._jdf.queryExecution().executedPlan().toString()
    assert "Window" not in plan
    assert "collect_" not in plan
    assert plan.count("Exchange hashpartitioning(") == 1, plan
    (found,) = told.collect()
    assert (found["copies"], found["copies_a"], found["sequence_number"]) == (100, 50, 0)
    assert found["findings"] == ["doubled"]


def test_a_message_belongs_to_the_window_of_its_first_copy(spark: Any, tmp_path: Path) -> None:
    a = capture(spark, tmp_path / "a", [row(1, "x", 10), row(2, "y", 4_000)])
    b = capture(spark, tmp_path / "b", [row(1, "x", 4_000), row(2, "y", 20), row(3, "z", 3_600)])
    out = str(tmp_path / "out")

    def window(hour: int, until: int) -> ReconcileConfig:
        since, end = (START + timedelta(hours=hours) for hours in (hour, until))
        return ReconcileConfig((a,), (b,), out, since=since, until=end, look_back=timedelta(hours=2))

    assert reconcile(spark, window(0, 1))["messages"] == 2
    assert reconcile(spark, window(1, 2))["messages"] == 1
    assert [row[:3] for row in outcome(spark, out)] == [("x", b"x", 2), ("y", b"x", 2), ("z", b"x", 1)]
    with pytest.raises(OptionError, match="shares time with 20261121T120000Z--20261121T130000Z"):
        reconcile(spark, window(0, 2))
    with pytest.raises(OptionError, match="The window all shares time"):
        reconcile(spark, ReconcileConfig((a,), (b,), out))
    assert reconcile(spark, window(1, 2))["messages"] == 1


def test_what_is_no_capture_is_told_by_name(spark: Any, tmp_path: Path) -> None:
    a = capture(spark, tmp_path / "a", [row(1, "x")])
    out = str(tmp_path / "out")
    with pytest.raises(OptionError, match=r"capture '.*none' does not exist"):
        reconcile(spark, ReconcileConfig((a,), (str(tmp_path / "none"),), out))
    drifted = tmp_path / "drifted"
    spark.sql(
        "select 'x' body, 'y' message_id, 1L sequence_number, now() enqueued_time, 'n' namespace, 7 entity"
    ).write.parquet(str(drifted))
    with pytest.raises(OptionError, match=r"drifted' is another table than expected: body \(string, not binary\)"):
        reconcile(spark, ReconcileConfig((a,), (str(drifted),), out))
    spark.read.parquet(a).write.mode("append").parquet(str(drifted))
    with pytest.raises(OptionError, match="drifted' cannot be read"):
        reconcile(spark, ReconcileConfig((a,), (str(drifted),), out))
    # pandas writes such times, and the types of columns that hold nothing are lost.
    times = tmp_path / "pandas"
    times.mkdir()
    pd.read_parquet(a).to_parquet(times / "part-0.parquet")
    with pytest.raises(OptionError, match=r"cannot be read: The file \S+part-0.parquet has the column '\w+' \S+ .*"):
        reconcile(spark, ReconcileConfig((a,), (str(times),), out))
    for wrong in (
        {"names": ("a", "a")},
        {"since": START},
        {"since": START, "until": START},
        {"since": START.replace(tzinfo=None), "until": (START + LOOK_BACK).replace(tzinfo=None)},
        {"late": timedelta(-1)},
        {"a": ()},
    ):
        with pytest.raises(OptionError):
            reconcile(spark, ReconcileConfig(**({"a": (a,), "b": (a,), "out": out} | wrong)))
    assert not (tmp_path / "out").exists()


def test_a_stream_gives_each_message_once_and_keeps_those_without_an_id_apart(spark: Any, tmp_path: Path) -> None:
    folders = capture(spark, tmp_path / "a", A), capture(spark, tmp_path / "b", B)
    cfg = {"a": folders[0], "b": folders[1], "out": str(tmp_path / "out"), "checkpointPath": str(tmp_path / "cp")}
    told = run(spark, cfg | {"runsPath": str(tmp_path / "runs")})
    assert [row.job for row in spark.read.parquet(str(tmp_path / "runs")).collect()] == ["reconcile"]
    assert (told["rows"], told["dropped_late"]) == (len(A) + len(B), 0)
    found = [row["message_id"] for row in spark.read.parquet(cfg["out"]).collect()]
    assert sorted(filter(None, found)) == ["both", "both", "differs", "late", "only-a", "only-b", "twice"]
    assert len(found) == 11


def test_settings_that_make_no_sense_are_told_by_name(tmp_path: Path) -> None:
    good = {"a": "x", "b": "y", "out": "z"}
    for wrong, told in (
        ({"since": "yesterday"}, "'since' is 'yesterday'"),
        ({"names": "one"}, "'names' has 1 names"),
        ({"out": None}, "'out' is needed"),
        ({"lookback": "-1s"}, "lookBack"),
        ({"diferences": "x"}, "Did you mean 'differences'"),
        ({"checkpointPath": "c", "differences": "d"}, "A stream has no window"),
        ({"checkpointPath": "c", "a": "x,y"}, "follows one folder of the side 'a'"),
    ):
        with pytest.raises(OptionError) as error:
            run(None, good | wrong)  # type: ignore[arg-type]
        assert told in str(error.value)
