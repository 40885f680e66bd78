"""The figures of the documents out of the metering of real brokers: polls, syphoned messages, partitions (I59, PE6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.aio import Syphon, pair_namespace
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.events import Event, PrimaryHealthy, Reporter
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus.spark.jobs.usage import UsageConfig, usage
from duobus.testing.server import ServerProcess, queues_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

#: One hour of a syphon that polls ten queues every fifteen minutes, each poll cut from 900 s to a fifth of one.
QUEUES, POLLS_OF_AN_HOUR, POLL_S = 10, 4, 0.2
BIG = 100_000


def client(server: ServerProcess) -> ServiceBusClient:
    # Without retries of its own, so that a failure is seen at once.
    return prompt_client(ServiceBusClient.from_connection_string(server.connection_string, retry_total=0))


async def poll(sdk: ServiceBusClient, queue: str) -> None:
    """Poll like the syphon: a receiver for each poll."""
    for _ in range(POLLS_OF_AN_HOUR):
        async with sdk.get_queue_receiver(queue) as receiver:
            assert await receiver.receive_messages(1, max_wait_time=POLL_S) == []


async def use(sdk: ServiceBusClient, queue: str) -> None:
    """Everything that is metered, on one queue."""
    async with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
        await sender.send_messages(ServiceBusMessage(b"x" * BIG))
        assert len(await receiver.peek_messages(5)) == 5
        received = 0
        while received < 21:
            for message in await receiver.receive_messages(21, max_wait_time=2):
                await receiver.complete_message(message)
                received += 1


async def drain(sdk: ServiceBusClient, queue: str, number: int) -> None:
    async with sdk.get_queue_receiver(queue) as receiver:
        while number:
            for message in await receiver.receive_messages(20, max_wait_time=2):
                await receiver.complete_message(message)
                number -= 1


async def outage(primary: ServerProcess, secondary: ServerProcess, queues: list[str]) -> None:
    """Divert eleven messages, syphon them back and receive them."""
    healthy, carried = asyncio.Event(), asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(event, PrimaryHealthy):
            healthy.set()

    options = SendAvailabilityPairedNamespaceOptions(
        client(secondary),
        backlog_queue_count=len(queues),
        failover_interval=timedelta(0),
        ping_primary_interval=timedelta(seconds=1),
        primary_name="contoso",
        on_event=note,
    )
    async with await pair_namespace(client(primary), options) as pair:
        sender = pair.get_queue_sender("orders")
        primary.terminate()
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        await sender.send_messages(ServiceBusMessage(b"x" * BIG))
        primary.start()
        await healthy.wait()
    reporter = Reporter(lambda event: carried.set() if reporter.counts["Syphoned"] >= 11 else None)
    async with client(primary) as there, client(secondary) as behind:
        task = asyncio.create_task(Syphon(there, behind, queues, reporter=reporter).run())
        await carried.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with client(primary) as sdk:
        await drain(sdk, "orders", 11)


def test_the_figures_of_the_documents_come_out_of_real_metering(spark: Any, tmp_path: Path) -> None:
    polled = backlog.paths("idle", QUEUES)
    queues = backlog.paths("contoso", 2)
    parted = {"EnablePartitioning": True}
    config = queues_config({queue: {} for queue in polled} | {"plain": {}, "parted": parted})

    async def work() -> None:
        async with asyncio.timeout(90):
            with ServerProcess(tmp_path / "idle", config=config, arguments=("--emulator",)) as idle:
                async with client(idle) as sdk:
                    await asyncio.gather(*(poll(sdk, queue) for queue in polled))
                    await use(sdk, "plain")
                    await use(sdk, "parted")
            with (
                ServerProcess(tmp_path / "one", config=queues_config({"orders": {}}), arguments=("--emulator",)) as one,
                ServerProcess(
                    tmp_path / "two", config=queues_config({queue: {} for queue in queues}), arguments=("--emulator",)
                ) as two,
            ):
                await outage(one, two, queues)

    asyncio.run(work())
    data = tuple(str(tmp_path / name / "data") for name in ("idle", "one", "two"))
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\n[operations]\nempty-receive = 0.5\nsend = 1\nreceive = 1\n'
    )
    told = usage(
        spark, UsageConfig(str(tmp_path / "compacted"), str(tmp_path / "usage"), str(tmp_path / "prices.toml"), data)
    )
    assert told["compact"]["damaged"] == 0
    assert told["servers_incomplete"] == told["servers_doubled"] == []
    table = spark.read.parquet(str(tmp_path / "usage"))
    summed = table.groupBy("entity", "op").agg({"operations": "sum", "messages": "sum", "bytes": "sum", "cost": "sum"})
    found = {(row["entity"], row["op"]): row for row in summed.collect()}

    def operations(op: str, *entities: str) -> int:
        return sum(row["sum(operations)"] for (entity, kind), row in found.items() if kind == op and entity in entities)

    # An hour of an idle syphon; a day and thirty days are its multiples.
    an_hour = operations("empty-receive", *polled)
    assert (an_hour, 24 * an_hour, 30 * 24 * an_hour) == (40, 960, 28_800)
    assert sum(found[queue, "empty-receive"]["sum(cost)"] for queue in polled) == Decimal("0.00002")

    # Four stages of eleven messages, one of which has two operations.
    stages = [
        operations("send", *queues),
        operations("receive", *queues),
        operations("send", "orders"),
        operations("receive", "orders"),
    ]
    assert stages == [12, 12, 12, 12]
    assert sum(stages) == 4 * 12

    # Partitions cost nothing.
    plain, parts = (
        {op: tuple(row)[2:] for (entity, op), row in found.items() if entity == name} for name in ("plain", "parted")
    )
    assert plain == parts
    assert {op: operations(op, "plain") for op in plain} == {"send": 22, "receive": 22, "peek": 5, "settle": 21}
    # Everything was done with one key.
    assert [key["key"] for key in told["by_key"]] == ["RootManageSharedAccessKey"]
