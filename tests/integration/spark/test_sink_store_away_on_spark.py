"""Jobs of Spark that write while one of four messaging stores is away, and after its return (PE17, IN2, SP3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from duobus.spark import DuobusDataSource
from duobus.spark.sink.sender import SendFailed
from duobus.spark.sink.writer import BatchWriter, batch_writer
from kits.four_stores import FourStores, four_stores, heal

pytestmark = pytest.mark.slow

ROWS = 12


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourStores]:
    with four_stores(tmp_path_factory.mktemp("four-stores")) as found:
        yield found


def options(stores: FourStores, entity: str | None = None) -> dict[str, str]:
    """Without retries of the SDK, which would take seconds to come to the same end."""
    given = {"connectionString": stores.server.connection_string, "retryTotal": "0"}
    return given if entity is None else {**given, "topic" if entity.startswith("topic") else "queue": entity}


def rows(spark: Any, keys: list[str | None], name: str = "row", entity: str = "") -> Any:
    """Twelve rows for an entity, their keys in turn, in one task."""
    made = [(f"{name} {number}", keys[number % len(keys)], entity) for number in range(ROWS)]
    return spark.createDataFrame(made, "body string, partition_key string, entity string").coalesce(1)


def texts(name: str = "row") -> list[str]:
    return sorted(f"{name} {number}" for number in range(ROWS))


def write(frame: Any, given: dict[str, str], write_id: str, form: str = "duobus") -> None:
    frame.write.format(form).options(**given, writeId=write_id).mode("append").save()


@pytest.mark.parametrize(("how", "is_topic"), [("fail", False), ("stall", True)])
def test_a_job_ends_with_the_name_of_what_is_away_and_loses_nothing_when_it_is_run_again(
    spark: Any, stores: FourStores, how: str, is_topic: bool
) -> None:
    entity = stores.create(is_topic=is_topic, enable_partitioning=True)
    lost, elsewhere = (stores.keys(entity, lost=is_lost) for is_lost in (True, False))
    job = rows(spark, [*lost, *elsewhere])
    with stores.away(how):
        there = rows(spark, [None], "keyless", entity).union(rows(spark, [*elsewhere], "elsewhere", entity))
        write(there.coalesce(1), options(stores), "there")
        with pytest.raises(Exception, match=rf"could not be sent to '{entity}': .*StoreUnavailable:{entity}, Frag"):
            write(job, options(stores, entity), "job")
    write(job, options(stores, entity), "job")
    found = stores.texts(entity)
    # The job sends some of its rows twice, as the entity detects no duplicates.
    assert {text for text in found if text.startswith("row")} == {*texts()}
    assert sorted(text for text in found if not text.startswith("row")) == texts("elsewhere") + texts("keyless")


@pytest.mark.parametrize(("how", "is_topic"), [("fail", True), ("stall", False)])
def test_a_job_whose_store_is_back_before_the_next_attempt_of_its_task_succeeds(
    spark: Any, stores: FourStores, tmp_path: Path, how: str, is_topic: bool
) -> None:
    entity = stores.create(is_topic=is_topic, enable_partitioning=True)
    refused = tmp_path / "refused"
    connection_string = stores.server.connection_string

    class HealingWriter(BatchWriter):
        def write(self, iterator: Any) -> Any:
            try:
                return super().write(iterator)
            except SendFailed as error:
                refused.write_text(str(error))
                heal(connection_string)
                raise

    class Healing(DuobusDataSource):
        @classmethod
        def name(cls) -> str:
            return "healing"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return HealingWriter(batch_writer(dict(self.options), schema, overwrite).settings)

    spark.dataSource.register(Healing)
    with stores.away(how):
        write(rows(spark, [*stores.keys(entity, lost=True)]), options(stores, entity), "once", "healing")
    assert f"StoreUnavailable:{entity}, Fragment:" in refused.read_text()
    assert sorted(set(stores.texts(entity))) == texts()


@pytest.mark.parametrize(("how", "is_topic"), [("fail", False), ("stall", True)])
def test_a_streaming_query_ends_while_the_store_is_away_and_writes_its_batch_when_it_is_started_again(
    spark: Any, stores: FourStores, tmp_path: Path, how: str, is_topic: bool
) -> None:
    entity = stores.create(is_topic=is_topic, requires_duplicate_detection=True)
    source = str(tmp_path / "rows")
    rows(spark, [None]).drop("entity").write.parquet(source)

    def run() -> None:
        lines = spark.readStream.schema("body string, partition_key string").parquet(source)
        query = (
            lines.writeStream.format("duobus")
            .options(**options(stores, entity), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    with stores.away(how), pytest.raises(StreamingQueryException, match=f"StoreUnavailable:{entity} "):
        run()
    run()
    assert sorted(stores.texts(entity)) == texts(), "each once, as the entity detects duplicates"
