"""Tables of Delta and Iceberg keep each batch of a capture once, by their own transactions; without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from duobus.spark.errors import OptionError
from duobus.spark.jobs import capture
from duobus.spark.jobs.job import JobError, settings_of
from duobus.spark.jobs.lake import delta_table, iceberg_table
from duobus.spark.jobs.lake.batch_marks import CAPTURE, STREAM, Mark, widened
from duobus.spark.jobs.lake.captured_columns import table_schema
from duobus.spark.jobs.lake.delta_table import DeltaTable
from duobus.spark.jobs.lake.iceberg_table import IcebergTable

QUERY = "aaaaaaaa-1111-2222-3333-444444444444"


class Frame:
    """A batch as Spark hands it over, without Spark."""

    def __init__(self, numbers: range) -> None:
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: default))
        self._numbers = numbers

    def select(self, *_: str) -> Frame:
        return self

    def toArrow(self) -> pa.Table:
        blank: dict[str, Any] = dict.fromkeys(table_schema().names)
        about = {"body": b"x", "entity": "prices/subscriptions/all", "date": date(2026, 11, 20), "hour": 8}
        time = {"enqueued_time": datetime(2026, 11, 20, 8, tzinfo=UTC)}
        # In the zone of the session, as Spark has it.
        schema = table_schema().set(
            table_schema().get_field_index("enqueued_time"),
            pa.field("enqueued_time", pa.timestamp("us", "Asia/Kolkata")),
        )
        rows = [blank | about | time | {"sequence_number": number} for number in self._numbers]
        return pa.Table.from_pylist(rows, schema=schema)


@pytest.fixture(autouse=True)
def without_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delta_table, iceberg_table):
        monkeypatch.setattr(module, "placed", lambda frame, _: frame)


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergTable:
    pytest.importorskip("pyiceberg")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    table = IcebergTable("lake.orders", "test", uri, f"file://{tmp_path}/warehouse", "zstd")
    (tmp_path / "warehouse").mkdir()
    table.prepare(None)  # type: ignore[arg-type]
    return table


def numbers(table: IcebergTable) -> list[int]:
    return sorted(table._catalog().load_table(table.table).scan().to_arrow()["sequence_number"].to_pylist())


def test_an_iceberg_table_takes_each_batch_once_and_has_its_number_in_the_summary(iceberg: IcebergTable) -> None:
    for batch in (0, 1, 1, 0, 2):
        iceberg.append(Frame(range(batch * 10, batch * 10 + 10)), QUERY, batch)  # type: ignore[arg-type]
    assert numbers(iceberg) == list(range(30))
    table = iceberg._catalog().load_table("lake.orders")
    told = [snapshot.summary.additional_properties for snapshot in table.snapshots() if snapshot.summary]
    assert [(one["duobus.query"], one["duobus.batch"]) for one in told] == [(QUERY, "0"), (QUERY, "1"), (QUERY, "2")]
    # A query with another checkpoint counts from 0 again.
    iceberg.append(Frame(range(30, 40)), "bbbbbbbb-1111", 0)  # type: ignore[arg-type]
    assert numbers(iceberg) == list(range(40))


def test_an_iceberg_table_knows_its_batches_when_their_snapshots_have_expired(iceberg: IcebergTable) -> None:
    for batch in (0, 1):
        iceberg.append(Frame(range(batch * 10, batch * 10 + 10)), QUERY, batch)  # type: ignore[arg-type]
    table = iceberg._catalog().load_table("lake.orders")
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    assert len(iceberg._catalog().load_table("lake.orders").snapshots()) == 1
    iceberg.append(Frame(range(10)), QUERY, 0)  # type: ignore[arg-type]
    assert numbers(iceberg) == list(range(20))


def test_two_captures_that_commit_to_an_iceberg_table_at_a_time_both_have_their_batch(
    iceberg: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(self: Any, *arguments: Any, **given: Any) -> Any:
        result = work(self, *arguments, **given)
        if others:
            others.pop()()
        return result

    from pyiceberg.table import Transaction

    work = Transaction.append
    others: list[Callable[[], None]] = [lambda: iceberg.append(Frame(range(10, 20)), "bbbbbbbb", 0)]  # type: ignore[arg-type]
    monkeypatch.setattr(Transaction, "append", meanwhile)
    iceberg.append(Frame(range(10)), QUERY, 0)  # type: ignore[arg-type]
    assert not others
    assert numbers(iceberg) == list(range(20))


def test_a_commit_to_an_iceberg_table_whose_end_nobody_knows_is_looked_up(
    iceberg: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitStateUnknownException
    from pyiceberg.table import Transaction

    def lost(self: Any) -> Any:
        work(self)
        raise CommitStateUnknownException("the answer was lost")

    work = Transaction.commit_transaction
    monkeypatch.setattr(Transaction, "commit_transaction", lost)
    iceberg.append(Frame(range(10)), QUERY, 0)  # type: ignore[arg-type]
    assert numbers(iceberg) == list(range(10))
    assert iceberg._catalog().load_table("lake.orders").properties[Mark(CAPTURE, QUERY, 0).key] == "0"


def test_what_keeps_iceberg_from_being_written_is_told_before_anything_is_read(
    iceberg: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg._catalog().create_table("lake.other", pa.schema([("sequence_number", pa.int64())]))
    with pytest.raises(JobError, match=r"'lake\.other' is another one than a capture makes: no body, body_type"):
        IcebergTable("lake.other", "test", iceberg.uri, iceberg.warehouse, "zstd").prepare(None)  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"catalog 'none' of Iceberg gives no table 'lake\.orders': .*URI"):
        IcebergTable("lake.orders", "none", None, None, "zstd").prepare(None)  # type: ignore[arg-type]
    monkeypatch.setattr(iceberg_table, "find_spec", lambda _: None)
    with pytest.raises(JobError, match=r"pip install 'duobus\[iceberg\]'"):
        iceberg.prepare(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_a_delta_table_takes_each_batch_once_and_names_it_in_its_log(tmp_path: Path, compression: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    table = DeltaTable(str(tmp_path / "orders"), compression)
    for batch in (0, 1, 1, 0, 2):
        table.append(Frame(range(batch * 10, batch * 10 + 10)), QUERY, batch)  # type: ignore[arg-type]
    table.append(Frame(range(30, 40)), "bbbbbbbb-1111", 0)  # type: ignore[arg-type]
    found = deltalake.DeltaTable(table.path)
    assert found.transaction_version(Mark(CAPTURE, QUERY, 0).application) == 2
    assert [one["duobus.batch"] for one in found.history()][::-1] == ["0", "1", "2", "0"]
    assert sum(file["num_records"] for file in pa.table(found.get_add_actions()).to_pylist()) == 40


def test_without_delta_in_session_and_python_it_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "find_spec", lambda name: None if name == "deltalake" else find_spec(name))
    with pytest.raises(JobError, match=r"needs Delta's JARs .* pip install 'duobus\[delta\]'"):
        DeltaTable(str(tmp_path), "zstd").prepare(Frame(range(0)).sparkSession)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"format": "iceberg"}, "'table' is needed"),
        ({"format": "iceberg", "table": "orders"}, "has to be a namespace and a name, as lake.orders"),
        ({"format": "iceberg", "table": "lake.orders", "path": "/x"}, "'path' is of the formats parquet and delta"),
        ({"format": "delta", "path": "/x", "table": "lake.orders"}, "'table' is of the format iceberg"),
        ({"path": "/x", "catalogUri": "sqlite://"}, "'catalogUri' is of the format iceberg"),
        ({"format": "delta"}, "'path' is needed"),
        ({"format": "hudi", "path": "/x"}, "'format' is 'hudi'"),
    ],
)
def test_options_of_another_format_are_told_by_name(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        capture.target_of(settings_of({"connectionStringEnv": "BUS", "queue": "q", **given}, capture.OPTIONS))


class Rows:
    """Rows of a stage of a pipeline as Spark hands them over, without Spark."""

    def __init__(self, *customers: str) -> None:
        self.sparkSession = Frame(range(0)).sparkSession
        self._customers = customers

    def toArrow(self) -> pa.Table:
        time = datetime(2026, 11, 20, 8, tzinfo=UTC)
        rows = [{"customer": name, "seen": [{"at": time}], "notes": [("a", "b")]} for name in self._customers]
        moment = pa.struct([pa.field("at", pa.timestamp("us", "Asia/Kolkata"), nullable=False)])
        schema = pa.schema(
            [
                pa.field("customer", pa.large_string(), nullable=False),
                ("seen", pa.list_(moment)),
                ("notes", pa.map_(pa.string(), pa.large_string())),
            ]
        )
        return pa.Table.from_pylist(rows, schema=schema)


def customers(table: IcebergTable | DeltaTable) -> list[str]:
    if isinstance(table, IcebergTable):
        found = table._catalog().load_table(table.table).scan().to_arrow()
    else:
        found = pytest.importorskip("deltalake").DeltaTable(table.path).to_pyarrow_table()
    return sorted(found["customer"].to_pylist())


@pytest.fixture(params=["delta", "iceberg"])
def stage_table(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergTable | DeltaTable:
    """A table that a stage of a pipeline writes, which is not there yet, nor is the folder of its catalog."""
    if request.param == "delta":
        pytest.importorskip("deltalake")
        return DeltaTable(str(tmp_path / "lake" / "seen"), "zstd", ("customer",))
    pytest.importorskip("pyiceberg")
    uri = f"sqlite:///{tmp_path}/lake/catalog.db"
    return IcebergTable("lake.seen", "default", uri, f"file://{tmp_path}/lake", "zstd", ("customer",))


def test_a_table_of_a_stream_takes_any_columns_and_each_batch_once(stage_table: IcebergTable | DeltaTable) -> None:
    stage_table.put(Rows(), Mark(STREAM, QUERY, 0))  # type: ignore[arg-type]
    for batch in (1, 1, 2, 1):
        stage_table.put(Rows(f"ann {batch}", "bob"), Mark(STREAM, QUERY, batch))  # type: ignore[arg-type]
    # A capture of the same number is another writer.
    stage_table.put(Rows("cid"), Mark(CAPTURE, QUERY, 1))  # type: ignore[arg-type]
    assert customers(stage_table) == ["ann 1", "ann 2", "bob", "bob", "cid"]


def test_a_table_of_a_report_is_replaced_as_a_whole_and_may_become_empty(
    stage_table: IcebergTable | DeltaTable,
) -> None:
    about = {"duobus.stage": "report", "duobus.run": "1"}
    for names in ((), ("ann", "bob"), ("bob",), (), ("cid",)):
        assert stage_table.replace(Rows(*names), about) == len(names)  # type: ignore[arg-type]
        assert customers(stage_table) == list(names)


def test_types_that_iceberg_does_not_know_are_told_as_those_that_it_makes_of_them() -> None:
    assert widened("smallint") == "int"
    assert widened("struct<a:tinyint,b:array<smallint>>") == "struct<a:int,b:array<int>>"
    assert widened("struct<smallint:bigint>") == "struct<smallint:bigint>"
