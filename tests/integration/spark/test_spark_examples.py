"""The examples of the pipeline run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from spark_bus import Bus

from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def test_an_example_counts_what_waits(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "spark"))
    import count_messages
    from azure.servicebus import ServiceBusClient

    config = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties": {}}]}]}}
    with ServerProcess(tmp_path, config=config, arguments=("--emulator",)) as server:
        connection = tmp_path / "connection.txt"
        connection.write_text(server.connection_string)
        # Workers of this session have their environment already, so they read the file.
        monkeypatch.setattr(count_messages, "PLACE", {"connectionStringFile": str(connection)})
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("q") as sender,
        ):
            messages = [ServiceBusMessage("x", application_properties={"sender": name}) for name in ("a", "b", "a")]
            sender.send_messages([*messages, ServiceBusMessage("y")])
        rows = count_messages.count(spark, "q").collect()
    assert {row["sender"]: row["messages"] for row in rows} == {"a": 2, "b": 1, "nobody": 1}


def test_a_view_in_sql_counts_what_waits_by_subject(spark: Any, bus: Bus) -> None:
    queue = bus.queue()
    bus.send(queue, [ServiceBusMessage("x", subject=name) for name in ("paid", "new", "paid")])
    text = (ROOT / "examples" / "spark" / "count_messages.sql").read_text()
    assert "\n".join(text.splitlines()[1:]) in (ROOT / "docs" / "reference" / "spark.md").read_text()
    options = ", ".join(f"{name} '{value}'" for name, value in bus.options.items())
    text = text.replace("connectionStringEnv 'ORDERS_BUS', queue 'orders'", f"{options}, queue '{queue}'")
    view, query = (statement for statement in text.split(";") if statement.strip())
    spark.sql(view)
    try:
        assert [tuple(row) for row in spark.sql(query).collect()] == [("paid", 2), ("new", 1)]
    finally:
        spark.catalog.dropTempView("orders")
    assert bus.counts(queue) == (3, 0)


def test_a_table_in_sql_is_refused_in_words(spark: Any, bus: Bus) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in {**bus.options, "queue": bus.queue()}.items())
    with pytest.raises(Exception, match=r"A table cannot be read from duobus.* make a view: CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE orders_table USING duobus OPTIONS ({options})")
