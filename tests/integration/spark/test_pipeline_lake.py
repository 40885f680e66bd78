"""Pipelines whose tables are of Delta and Iceberg: exactly once behind failures at the worst moment, and read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kit_pipeline import KeptSession
from spark_bus import CONNECTION_ENV, Bus

from duobus.pipeline.document.parser import read_document
from duobus.pipeline.execution import tables
from duobus.pipeline.execution.runner import run_pipeline
from duobus.spark.jobs import capture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: One queue is captured, another one is written through a view, and a report is made of both.
DOCUMENT = """
name = "shop"

[connections.shop]
connectionStringEnv = "{environment}"
managementEndpoint = "{management}"

[sources.incoming]
queue = "{orders}"
maxWaitTime = "1s"

[sources.clicks]
queue = "{clicks}"
maxWaitTime = "1s"

[tables.orders]
format = "iceberg"
table = "shop.orders"
catalogUri = "sqlite:///lake/catalog.db"
warehouse = "lake"

[tables.seen]
format = "delta"
path = "lake/seen"
partitionBy = "customer"

[tables.totals]
format = "iceberg"
table = "shop.totals"
catalogUri = "sqlite:///lake/catalog.db"
warehouse = "lake"
columns = "customer string, messages bigint, batches bigint, latest timestamp"

[views.clicked]
sql = "select subject as customer, enqueued_time from clicks"

[views.both]
sql = '''
select customer, count(*) as messages, count(distinct batch_id) as batches, max(enqueued_time) as latest from (
  select subject as customer, enqueued_time, batch_id from orders
  union all select customer, enqueued_time, batch_id from seen) group by customer'''

[sinks.back]
queue = "{back}"

[stages.orders]
from = "incoming"
to = "orders"

[stages.seen]
from = "clicked"
to = "seen"

[stages.totals]
from = "both"
to = "totals"

[stages.replay]
job = "replay"
from = "orders"
to = "back"
dedupe = "original"
"""


def failing(work: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The same work, which fails behind its end as often as ``left`` has numbers."""

    def fails(*arguments: Any) -> Any:
        result = work(*arguments)
        if left:
            left.pop()
            raise RuntimeError("the driver is out of order")
        return result

    return fails


def test_tables_of_delta_and_iceberg_have_each_batch_once_though_the_driver_fails_behind_their_commits(
    spark: Any, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake, catalogs = pytest.importorskip("deltalake"), pytest.importorskip("pyiceberg.catalog")
    document, queues = tmp_path / "shop.toml", {name: bus.queue() for name in ("orders", "clicks", "back")}
    values = {"environment": CONNECTION_ENV, "management": bus.options["managementEndpoint"]}
    document.write_text(DOCUMENT.format(**values, **queues))
    for writer in (capture.Writer, tables.BatchWriter):
        monkeypatch.setattr(writer, "__call__", failing(writer.__call__, [1]))

    def failed() -> list[str]:
        session: Any = KeptSession(spark)
        found = run_pipeline(read_document(document), lambda: session, once=True)
        return [f"{one['stage']}: {one['error']}" for one in found["stages"] if one["stage"] in found["failed"]]

    def rows_of(name: str) -> list[dict[str, Any]]:
        """The rows of a table, by a library that knows nothing of Spark."""
        if name == "seen":
            return list(deltalake.DeltaTable(str(tmp_path / "lake" / name)).to_pyarrow_table().to_pylist())
        catalog = catalogs.load_catalog("default", uri=f"sqlite:///{tmp_path}/lake/catalog.db")
        return list(catalog.load_table(f"shop.{name}").scan().to_arrow().to_pylist())

    for name in ("orders", "clicks"):
        bus.send(queues[name], [ServiceBusMessage(f"{number}", subject="ann") for number in range(4)])
    out_of_order = "the driver is out of order"
    assert failed() == [f"orders: {out_of_order}", f"seen: {out_of_order}", "totals: None", "replay: None"]
    assert [len(rows_of(name)) for name in ("orders", "seen")] == [4, 4]
    # The batches are in the tables and not in the checkpoints: they are not written again, and others come behind.
    for name in ("orders", "clicks"):
        bus.send(queues[name], [ServiceBusMessage("x", subject="bob")])
    assert failed() == []
    assert [len(rows_of(name)) for name in ("orders", "seen")] == [5, 5]
    totals = sorted((row["customer"], row["messages"], row["batches"]) for row in rows_of("totals"))
    assert totals == [("ann", 8, 2), ("bob", 2, 2)]
    assert bus.counts(queues["back"]) == (5, 0)
