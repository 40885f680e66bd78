"""The examples about schemas and state run as they are, against the broker of these tests."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kit_sink import drained, make_queue
from pyspark import cloudpickle
from schema_registry import TOKEN, schema_registry
from spark_bus import Bus

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, bus: Bus) -> Callable[[str], Any]:
    """Import an example, which then reads from the broker of these tests."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "spark"))

    def imported(name: str) -> Any:
        module = import_module(name)
        # Run as a program, its functions would travel to the workers whole, as they do now.
        cloudpickle.register_pickle_by_value(module)
        monkeypatch.setattr(module, "PLACE", bus.options)
        return module

    return imported


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row)[1:] for row in frame.orderBy("sequence_number").collect()]


def test_orders_in_json_are_typed_columns_and_other_bodies_stand_beside_them(
    spark: Any, bus: Bus, example: Callable[[str], Any]
) -> None:
    queue = bus.queue()
    good = {"id": "o1", "customer": "c", "amount": 7.25, "at": "2026-11-20T08:00:00Z"}
    bus.send(queue, [json.dumps(good), "no order"])
    found = rows(example("json_orders").orders(spark, queue))
    assert found == [
        ("o1", "c", Decimal("7.25"), datetime(2026, 11, 20, 8, tzinfo=UTC).astimezone().replace(tzinfo=None), None),
        (None, None, None, None, "no order"),
    ]


def test_orders_in_avro_are_read_by_the_schemas_of_two_kinds_of_registry(
    spark: Any, bus: Bus, example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fastavro = pytest.importorskip("fastavro")
    module = example("avro_orders")
    older = {**module.ORDER, "fields": module.ORDER["fields"][:2]}

    def encoded(schema: Any, order: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), order)
        return file.getvalue()

    with schema_registry({"7": older, "8": module.ORDER, "ab12": older}) as registry:
        confluent, azure = bus.queue(), bus.queue()
        bodies = [
            b"\0\0\0\0\7" + encoded(older, {"id": "o1", "amount": 1.5}),
            b"\0\0\0\0\10" + encoded(module.ORDER, {"id": "o2", "amount": 2.5, "currency": "CHF"}),
        ]
        bus.send(confluent, [ServiceBusMessage(body) for body in bodies])
        found = rows(module.orders(spark, confluent, module.Registry("confluent", registry.url)))
        assert found == [("o1", 1.5, "EUR"), ("o2", 2.5, "CHF")]
        assert sorted(registry.requests) == ["/schemas/ids/7", "/schemas/ids/8"]

        body = encoded(older, {"id": "o3", "amount": 3.5})
        bus.send(azure, [ServiceBusMessage(body, content_type="avro/binary+ab12")])
        # The workers of this session have their environment already, so the request has to be made in this process.
        monkeypatch.setenv("SCHEMA_REGISTRY_TOKEN", TOKEN)
        given = module.Registry("azure", registry.url)
        table = spark.read.format("duobus").options(**bus.options, queue=azure).load()
        batch = table.select("sequence_number", "body", "content_type").toArrow().to_batches()
        (decoded,) = module.decoded(iter(batch), given)
        assert decoded.to_pylist()[0] | {"sequence_number": 0} == {
            "sequence_number": 0, "id": "o3", "amount": 3.5, "currency": "EUR",
        }  # fmt: skip


def test_orders_in_protobuf_are_read_by_a_description_that_no_compiler_made(
    spark: Any, bus: Bus, example: Callable[[str], Any]
) -> None:
    pytest.importorskip("google.protobuf")
    module, queue = example("protobuf_orders"), bus.queue()
    order = module.order_class()(id="o1", amount=1.5, lines=3)
    # As another program encodes it: the field's number and kind, and the value.
    assert order.SerializeToString().startswith(b"\x0a\x02o1")
    bus.send(queue, [ServiceBusMessage(order.SerializeToString())])
    assert rows(module.orders(spark, queue)) == [("o1", 1.5, 3)]


def test_cloud_events_are_read_in_both_of_their_forms(spark: Any, bus: Bus, example: Callable[[str], Any]) -> None:
    queue = bus.queue()
    attributes = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.placed"}
    structured = json.dumps({**attributes, "datacontenttype": "application/json", "data": {"order": 1}})
    binary = {f"cloudEvents{sign}{name}": value for sign, name, value in (
        (":", "specversion", "1.0"), (":", "id", "e2"), ("_", "source", "/shop"), ("_", "type", "order.paid"),
    )}  # fmt: skip
    bus.send(
        queue,
        [
            ServiceBusMessage(structured, content_type="application/cloudevents+json; charset=utf-8"),
            ServiceBusMessage('{"order":2}', content_type="application/json", application_properties=binary),
            ServiceBusMessage("no event"),
        ],
    )
    found = rows(example("cloud_events").events(spark, queue))
    kind = "application/json"
    assert found == [
        ("1.0", "e1", "/shop", "order.placed", None, None, kind, '{"order":1}'),
        ("1.0", "e2", "/shop", "order.paid", None, None, kind, '{"order":2}'),
    ]


def test_an_id_that_comes_again_is_written_once_and_messages_without_an_id_are_all_written(
    spark: Any, bus: Bus, example: Callable[[str], Any], tmp_path: Path
) -> None:
    queue, module = bus.queue(), example("deduplicate")
    path, checkpoint = str(tmp_path / "orders"), str(tmp_path / "checkpoint")
    for ids in (["a", "b", "a"], ["b", "c"]):
        bus.send(queue, [*(ServiceBusMessage("x", message_id=one) for one in ids), ServiceBusMessage("y")])
        module.start(spark, queue, path, checkpoint).awaitTermination()
    found = [(row.message_id, bytes(row.body)) for row in spark.read.parquet(path).collect()]
    assert sorted(one for one, body in found if body == b"x") == ["a", "b", "c"]
    assert len([one for one, body in found if body == b"y"]) == 2


def test_clicks_become_visits_that_end_after_half_an_hour(
    spark: Any, bus: Bus, example: Callable[[str], Any], tmp_path: Path
) -> None:
    pytest.importorskip("google.protobuf")
    queue, module = bus.queue(), example("visits")
    path, checkpoint = str(tmp_path / "visits"), str(tmp_path / "checkpoint")
    began = datetime(2026, 11, 20, 8, tzinfo=UTC)
    provider = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    # RocksDB's store needs the usual file system, which the session of these tests replaces by a quicker one.
    usual = {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem", "fs.file.impl.disable.cache": "true"}
    for name, value in usual.items():
        spark.conf.set(name, value)
    try:
        # The click of another visitor, three days later, moves the watermark past the pause of the last visit.
        for clicks in ([("v1", 0), ("v2", 5), ("v1", 20), ("v1", 90)], [("v3", 4_320)]):
            times = [(one, began + timedelta(minutes=minutes)) for one, minutes in clicks]
            bus.send(queue, [json.dumps({"visitor": one, "at": at.isoformat()}) for one, at in times])
            module.start(spark, queue, path, checkpoint).awaitTermination()
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
        for name in usual:
            spark.conf.unset(name)
    found = spark.read.parquet(path).selectExpr("visitor", "unix_seconds(began)", "unix_seconds(ended)", "clicks")
    start = began.timestamp()
    minutes = [(row[0], (row[1] - start) / 60, (row[2] - start) / 60, row[3]) for row in found.collect()]
    assert sorted(minutes) == [("v1", 0, 20, 2), ("v1", 90, 90, 1), ("v2", 5, 5, 1)]


def test_orders_that_come_too_late_go_to_a_queue_and_the_others_to_files(
    spark: Any, bus: Bus, example: Callable[[str], Any], tmp_path: Path
) -> None:
    queue, module = bus.queue(), example("late_orders")
    late = make_queue(bus.options, f"{queue}-late", detects_duplicates=True)
    now = datetime.now(UTC)
    times = {"new": now, "old": now - timedelta(days=3), "yesterday": now - timedelta(days=1)}
    bus.send(queue, [json.dumps({"id": name, "at": at.isoformat()}) for name, at in times.items()])
    path = str(tmp_path / "orders")
    module.start(spark, queue, late, path, str(tmp_path / "checkpoint")).awaitTermination()
    assert sorted(row.id for row in spark.read.parquet(path).collect()) == ["new", "yesterday"]
    assert [message.message_id for message in drained(bus.options, late)] == ["late-old"]
    assert bus.counts(queue) == (0, 0)
