"""Files of captured messages whose columns drifted are named before anything is done with them; without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duobus.spark.jobs.captured_files import IN_PATHS, fault_of
from duobus.spark.schema import TYPES

ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def file_with(folder: Path, **columns: pa.DataType | None) -> str:
    """A file as capture writes it, with other types of some columns; None: without the column."""
    types: dict[str, Any] = {name: ARROW[kind] for name, kind in TYPES.items() if name not in IN_PATHS}
    kept = {name: kind for name, kind in {**types, **columns}.items() if kind is not None}
    path = folder / "part-0.parquet"
    pq.write_table(pa.schema(list(kept.items())).empty_table(), path)
    return path.as_uri()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_as_pandas_writes_them_are_told_since_spark_does_not_read_them(tmp_path: Path, zone: str | None) -> None:
    fault = fault_of(file_with(tmp_path, enqueued_time=pa.timestamp("ns", zone)))
    assert fault is not None
    assert fault.endswith("part-0.parquet has the column 'enqueued_time' in nanoseconds, and Spark reads microseconds.")


def test_times_of_the_kind_that_spark_wrote_before_have_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    types = [(name, ARROW[kind]) for name, kind in TYPES.items()]
    pq.write_table(pa.schema(types).empty_table(), path, use_deprecated_int96_timestamps=True)
    assert fault_of(path.as_uri()) is None


def test_a_file_as_capture_writes_it_has_no_fault(tmp_path: Path) -> None:
    assert fault_of(file_with(tmp_path)) is None


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("body", pa.large_binary()),
        ("subject", pa.large_string()),
        ("enqueued_time", pa.timestamp("ms", "UTC")),
        ("a_new_one", pa.float64()),
        ("entity", pa.string()),
    ],
)
def test_what_spark_reads_all_the_same_is_no_fault(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    assert fault_of(file_with(tmp_path, **{column: kind})) is None


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("body", pa.string()),
        ("sequence_number", pa.int32()),
        ("sequence_number", pa.string()),
        ("delivery_count", pa.int64()),
        ("enqueued_time", pa.string()),
        ("enqueued_time", pa.date32()),
        ("enqueued_time", pa.int64()),
        ("application_properties", pa.string()),
        ("application_properties", pa.map_(pa.string(), pa.int64())),
        ("application_property_types", pa.list_(pa.string())),
    ],
)
def test_a_column_of_another_type_is_named_with_its_file(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    fault = fault_of(file_with(tmp_path, **{column: kind}))
    assert fault is not None
    assert f"part-0.parquet has the column '{column}' as {str(kind).split('<')[0]}" in fault
    assert fault.endswith(f"not as {TYPES[column]}.")


@pytest.mark.parametrize("column", [name for name in TYPES if name not in IN_PATHS])
def test_a_column_that_is_missing_is_named_with_its_file(tmp_path: Path, column: str) -> None:
    fault = fault_of(file_with(tmp_path, **{column: None}))
    assert fault is not None
    assert f"part-0.parquet has no column '{column}'" in fault


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "part-0.parquet"
    for content in (b"", b"PAR1", b"PAR1 and then nothing PAR1", b"x" * 1_000):
        damaged.write_bytes(content)
        fault = fault_of(damaged.as_uri())
        assert fault is not None
        assert "part-0.parquet is no Parquet file" in fault
