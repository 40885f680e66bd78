"""Pipelines on a real session: run once, run again, interrupted, changed, and stopped while they go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusMessage
from kit_pipeline import KeptSession
from spark_bus import CONNECTION_ENV, Bus

from duobus.pipeline.document.parser import read_document
from duobus.pipeline.execution import stage_runs
from duobus.pipeline.execution.runner import run_pipeline
from duobus.pipeline.state_folder import StateFolder
from duobus.spark.connection import new_administration, new_client

# Connections of the SDK that broke leave their sockets open.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RULES = """
def large(totals):
    return totals.where("orders > 4").selectExpr(
        "concat('alert/', customer) as message_id", "to_json(struct(*)) as body"
    )
"""

SHOP = """
name = "shop"

[connections.shop]
connectionStringEnv = "{environment}"
managementEndpoint = "{management}"

[sources.incoming]
queue = "{queue}"
maxWaitTime = "1s"

[tables.orders]
path = "lake/orders"

[tables.totals]
path = "lake/totals"
columns = "customer string, orders bigint"

[views.by_customer]
sql = '''
select subject as customer,
  count(*) as orders
from orders group by subject'''

[views.large]
python = "{rules}:large"
from = "totals"

[sinks.alerts]
topic = "{topic}"
messageIdMode = "column"

[stages.capture]
from = "incoming"
to = "orders"

[stages.totals]
from = "by_customer"
to = "totals"
after = "capture"

[stages.alert]
from = "large"
to = "alerts"
after = "totals"
"""


REPORT = """
[tables.orders]
path = "orders.parquet"

[tables.totals]
path = "totals"
columns = "customer string, orders bigint"

[views.by_customer]
sql = '''{statement}'''

[stages.totals]
from = "by_customer"
to = "totals"
"""


class Shop:
    """The pipeline of a shop with a queue and a topic of its own."""

    def __init__(self, spark: Any, bus: Bus, folder: Path) -> None:
        self._spark = spark
        self._bus = bus
        self.folder = folder
        self.queue = bus.queue()
        self.topic, self.subscription = bus.subscription()
        self.document = folder / "shop.toml"
        # A module that was imported once keeps its name.
        rules = f"rules_of_{self.queue.replace('-', '_')}"
        (folder / f"{rules}.py").write_text(RULES)
        values = {"environment": CONNECTION_ENV, "management": bus.options["managementEndpoint"]}
        self.text = SHOP.format(**values, queue=self.queue, topic=self.topic, rules=rules)
        self.document.write_text(self.text)

    def change(self, old: str, new: str) -> None:
        assert old in self.text
        self.document.write_text(self.text.replace(old, new))

    def order(self, customer: str, count: int) -> None:
        self._bus.send(self.queue, [ServiceBusMessage("x", subject=customer) for _ in range(count)])

    def run(self, *, once: bool = True) -> dict[str, Any]:
        session: Any = KeptSession(self._spark)
        return run_pipeline(read_document(self.document), lambda: session, once=once)

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.folder / "shop.state")

    def totals(self) -> dict[str, int]:
        return dict(duckdb.sql(f"select customer, orders from '{self.folder}/lake/totals/*.parquet'").fetchall())

    def alerts(self) -> list[str]:
        found = []
        with (
            new_client(self._bus.place) as client,
            client.get_subscription_receiver(self.topic, self.subscription) as receiver,
        ):
            while messages := receiver.receive_messages(100, max_wait_time=1):
                for message in messages:
                    found.append(str(message.message_id))
                    receiver.complete_message(message)
        return found


@pytest.fixture
def shop(spark: Any, bus: Bus, tmp_path: Path) -> Shop:
    return Shop(spark, bus, tmp_path)


def states(result: dict[str, Any]) -> dict[str, str]:
    return {stage["stage"]: stage["state"] for stage in result["stages"]}


def test_orders_become_a_report_and_alerts_and_a_second_run_has_nothing_to_do(shop: Shop) -> None:
    shop.order("ann", 7)
    shop.order("bob", 2)
    first = shop.run()
    assert (first["failed"], states(first)) == ([], {"capture": "done", "totals": "done", "alert": "done"})
    assert shop.totals() == {"ann": 7, "bob": 2}
    assert shop.alerts() == ["alert/ann"]
    capture, totals, _ = first["stages"]
    assert (capture["rows"], capture["lag"], totals["rows"], totals["lag"]) == (9, 0, 2, 0)

    second = shop.run()
    assert states(second) == {"capture": "done", "totals": "unchanged", "alert": "unchanged"}
    assert shop.alerts() == []

    shop.order("bob", 3)
    assert shop.run()["failed"] == []
    assert shop.totals() == {"ann": 7, "bob": 5}
    assert sorted(shop.alerts()) == ["alert/ann", "alert/bob"]

    # A checkpoint belongs to the entity that it has claimed from.
    shop.change(f'queue = "{shop.queue}"', 'queue = "another"')
    refused = shop.run()
    assert refused["failed"] == ["alert", "capture", "totals"]
    told = refused["stages"][0]["error"]
    assert f"was made with '{shop.queue}' as its source, and the document says 'another' now" in told


def test_a_run_that_was_interrupted_is_done_again_over_the_same_rows_before_anything_else(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.order("ann", 6)
    replace = stage_runs.replace

    def killed(frame: Any, table: Any) -> int:
        replace(frame, table)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(stage_runs, "replace", killed)
        broken = shop.run()
    assert (broken["failed"], states(broken)["alert"]) == (["alert", "totals"], "held back")
    assert "killed" in broken["stages"][1]["error"]
    shop.order("ann", 1)
    ran: list[tuple[str, Any]] = []
    moved = stage_runs.StageRun._moved

    def noted(self: Any, number: int, plan: Any) -> Any:
        outcome = moved(self, number, plan)
        ran.append((self._stage.name, outcome.rows if self._stage.name == "alert" else shop.totals()))
        return outcome

    monkeypatch.setattr(stage_runs.StageRun, "_moved", noted)
    assert shop.run()["failed"] == []
    assert ran == [("totals", {"ann": 6}), ("totals", {"ann": 7}), ("alert", 1)]
    assert shop.alerts() == ["alert/ann"]


def test_wrong_names_in_sql_and_wrong_columns_are_told_in_one_sentence(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"subject": ["ann"], "amount": [3]}), tmp_path / "orders.parquet")
    document = tmp_path / "report.toml"

    def told(statement: str) -> str:
        document.write_text(REPORT.format(statement=statement))
        session: Any = KeptSession(spark)
        (stage,) = run_pipeline(read_document(document), lambda: session, once=True)["stages"]
        return str(stage["error"])

    view = "In the view 'by_customer' (line 2 of its statement): "
    assert told("select subject as customer,\n count(amunt) as orders from orders group by 1") == (
        f"{view}there is no column 'amunt'. Did you mean 'amount'?"
    )
    assert told("select subject as customer,\n cunt(*) as orders from orders group by 1") == (
        f"{view}there is no function 'cunt'."
    )
    assert told("select subject as customer,\n count(*) as order from orders group by 1") == (
        "The stage 'totals' gives a column 'order', which the table 'totals' does not have. Did you mean 'orders'?"
    )
    assert told("select subject as customer,\n count(*) as orders from orders group by subject") == "None"


def test_a_stream_through_views_writes_each_batch_once_and_sends_what_a_view_gives(shop: Shop) -> None:
    shop.document.write_text(
        shop.text[: shop.text.index("[views.by_customer]")].replace("lake/orders", "lake/plain")
        + """
[views.plain]
sql = "select subject as customer, cast(body as string) as body from incoming"
[views.counted]
sql = "select customer, count(*) as orders from orders group by customer"
[stages.plain]
from = "plain"
to = "orders"
[stages.totals]
from = "counted"
to = "totals"
"""
    )
    for count in (3, 2):
        shop.order("ann", count)
        result = shop.run()
        assert result["failed"] == []
        assert result["stages"][0]["rows"] == count
    # What a stage reads of the table is what the stream has committed to it.
    assert shop.totals() == {"ann": 5}
    files = f"{shop.folder}/lake/plain/batch_id=*/*.parquet"
    counted = duckdb.sql(
        f"select count(*), count(distinct batch_id) from read_parquet('{files}', hive_partitioning = true)"
    )
    assert counted.fetchall() == [(5, 2)]
    # A view that gives other columns than the table has, later on.
    shop.document.write_text(shop.document.read_text().replace("as body from incoming", "as bodies from incoming"))
    assert "Did you mean 'body'?" in shop.run()["stages"][0]["error"]


def test_a_pipeline_that_goes_on_is_stopped_in_order_by_a_signal(shop: Shop) -> None:
    shop.change('to = "orders"\n', 'to = "orders"\ntrigger = "500ms"\n')
    shop.order("ann", 5)
    over = threading.Event()

    def stop_when(reached: Callable[[], bool]) -> None:
        while not reached() and not over.wait(0.1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    def is_alerted() -> bool:
        return shop.state.stage("alert").status().get("state") == "done"

    watcher = threading.Thread(target=stop_when, args=(is_alerted,), daemon=True)
    watcher.start()
    try:
        result = shop.run(once=False)
    finally:
        over.set()
        watcher.join()
    assert (result["signal"], result["failed"], result["isRunning"]) == (signal.SIGTERM, [], True)
    assert states(result) == {"capture": "stopped", "totals": "done", "alert": "done"}
    assert shop.totals() == {"ann": 5}
    assert shop.alerts() == ["alert/ann"]
    with new_administration(shop._bus.place) as management:
        assert management.get_queue_runtime_properties(shop.queue).total_message_count == 0
