"""A stage that sends what is new in a captured table, beside a compaction of the table's small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kit_pipeline import KeptSession
from spark_bus import CONNECTION_ENV, Bus

from duobus.pipeline.document.parser import read_document
from duobus.pipeline.execution import stage_runs
from duobus.pipeline.execution.runner import run_pipeline
from duobus.spark.jobs import compact

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOCUMENT = """
name = "forward"

[connections.shop]
connectionStringEnv = "{environment}"
managementEndpoint = "{management}"

[sources.incoming]
queue = "{orders}"
maxWaitTime = "1s"

[tables.orders]
path = "lake/orders"

[views.outgoing]
sql = "select body, concat('again/', message_id) as message_id from orders"

[sinks.back]
queue = "{back}"
messageIdMode = "column"

[stages.capture]
from = "incoming"
to = "orders"

[stages.forward]
from = "outgoing"
to = "back"
newRowsOf = "orders"
"""


class Forwarding:
    """The pipeline, and what is sent and compacted around it."""

    def __init__(self, spark: Any, bus: Bus, folder: Path) -> None:
        self._session: Any = KeptSession(spark)
        self._bus = bus
        self._folder = folder
        self.orders, self.back = bus.queue(), bus.queue()
        self._document = folder / "forward.toml"
        values = {"environment": CONNECTION_ENV, "management": bus.options["managementEndpoint"]}
        self._document.write_text(DOCUMENT.format(**values, orders=self.orders, back=self.back))

    def order(self, *names: str) -> None:
        self._bus.send(self.orders, [ServiceBusMessage("x", message_id=name) for name in names])

    def run(self) -> list[str]:
        """Run once; returns the stages that failed."""
        return list(run_pipeline(read_document(self._document), lambda: self._session, once=True)["failed"])

    def compact(self) -> dict[str, Any]:
        checkpoint = self._folder / "forward.state" / "stages" / "capture" / "checkpoint"
        assert checkpoint.is_dir(), sorted(self._folder.rglob("commits"))
        given = {"captured": str(self._folder / "lake" / "orders"), "checkpoints": str(checkpoint), "quiet": "0s"}
        return compact.run(None, given)  # type: ignore[arg-type]

    def batches(self) -> list[Path]:
        return sorted((self._folder / "lake" / "orders").glob("entity=*/date=*/hour=*/batch_id=*"))


@pytest.fixture
def forwarding(spark: Any, bus: Bus, tmp_path: Path) -> Forwarding:
    return Forwarding(spark, bus, tmp_path)


def test_each_row_is_sent_once_though_the_table_is_compacted_before_the_stage_has_read_it(
    forwarding: Forwarding, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwarding.order("1", "2")
    assert forwarding.run() == []
    assert bus.counts(forwarding.back) == (2, 0)
    with monkeypatch.context() as patch:

        def fails(*_arguments: Any) -> int:
            raise RuntimeError("the namespace does not answer")

        patch.setattr(stage_runs.StageRun, "_sent", fails)
        for name in ("3", "4"):
            forwarding.order(name)
            assert forwarding.run() == ["forward"]
    before = forwarding.batches()
    told = forwarding.compact()
    assert [text for text in told["left_alone"] if "'forward'" in text and "has not read 2 of" in text]
    assert forwarding.batches() == before
    # The run that was begun has the third, and the next one the fourth.
    assert forwarding.run() == []
    assert forwarding.run() == []
    assert bus.counts(forwarding.back) == (4, 0)
    told = forwarding.compact()
    # Of one hour, unless the clock has just struck.
    assert (told["left_alone"], told["messages"]) == ([], 4) or len({batch.parent for batch in before}) > 1
