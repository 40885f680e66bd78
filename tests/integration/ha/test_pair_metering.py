"""What real servers meter for a pair: four operations a syphoned message, pings, polls (PN13 to PN15, PE6, I59)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from duobus.ha.aio import Syphon, pair_namespace
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.events import Event, PingSent, PrimaryHealthy, Reporter, SyphonPolled
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.model.metering import EMPTY_RECEIVE, PING, RECEIVE, SEND, MeteringRecord
from duobus.telemetry.metering_log import MeteringLog
from duobus.testing.server import ServerProcess, queues_config
from kits.pair import Events, bounded, client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def metered(folder: Path, kind: str, *entities: str) -> int:
    """Operations of a kind on these entities, over all runs of a server."""
    found: list[MeteringRecord] = list(MeteringLog(folder / "data" / "metering").read())
    return sum(record.operations for record in found if record.kind == kind and record.entity in entities)


def server(folder: Path, queues: Iterable[str], how: Mapping[str, Any] | None = None) -> ServerProcess:
    config = queues_config({queue: how or {} for queue in queues})
    return ServerProcess(folder, config=config, arguments=("--emulator",))


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_a_diverted_message_is_four_operations_and_an_accepted_ping_is_one(tmp_path: Path, partitioned: bool) -> None:
    queues = backlog.paths("contoso", 2)
    how = {"EnablePartitioning": partitioned}
    one, two = tmp_path / "primary", tmp_path / "secondary"

    @bounded
    async def outage() -> None:
        with (
            ServerProcess(one, config=queues_config({"orders": how}), arguments=("--emulator",)) as primary,
            ServerProcess(
                two, config=queues_config(dict.fromkeys(queues, how)), arguments=("--emulator",)
            ) as secondary,
        ):
            events = Events()
            options = SendAvailabilityPairedNamespaceOptions(
                client(secondary),
                backlog_queue_count=2,
                failover_interval=timedelta(0),
                ping_primary_interval=timedelta(seconds=1),
                primary_name="contoso",
                on_event=events,
            )
            async with await pair_namespace(client(primary), options) as pair:
                sender = pair.get_queue_sender("orders")
                primary.terminate()
                await sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
                await sender.send_messages(ServiceBusMessage(b"x" * 100_000))
                primary.start()
                await events.wait(PrimaryHealthy)
            await carry(primary, secondary, queues, 11)
            async with client(primary) as sdk, sdk.get_queue_receiver("orders") as receiver:
                received = 0
                while received < 11:
                    for message in await receiver.receive_messages(20, max_wait_time=2):
                        await receiver.complete_message(message)
                        received += 1
            assert len([event for event in events.of(PingSent) if not event.error]) == 1

    outage()
    # Ten of one operation, and one of two since it has more than 64 KiB.
    assert metered(two, SEND, *queues) == 12
    assert metered(two, RECEIVE, *queues) == 12
    assert metered(one, SEND, "orders") == 12
    assert metered(one, RECEIVE, "orders") == 12
    assert metered(one, PING, "orders") == 1
    told = cost(one, two)
    assert told["metered_to_backlog"] + told["metered_from_backlog"] == 24
    assert (told["metered_pings"], told["metered_messages_to_backlog"]) == (1, 11)


async def carry(primary: ServerProcess, secondary: ServerProcess, queues: list[str], number: int) -> None:
    """Syphon so many messages."""
    done = asyncio.Event()
    reporter = Reporter(lambda event: done.set() if reporter.counts["Syphoned"] >= number else None)
    async with client(primary) as there, client(secondary) as behind:
        task = asyncio.create_task(Syphon(there, behind, queues, reporter=reporter).run())
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def cost(*folders: Path) -> dict[str, int]:
    words = [word for folder in folders for word in ("--data", str(folder / "data"))]
    done = subprocess.run(
        [sys.executable, "-m", "duobus", "pair", "cost", "--json", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_each_poll_of_an_idle_syphon_is_metered_as_one_receive(tmp_path: Path) -> None:
    queues = backlog.paths("contoso", 2)
    polled: list[Event] = []

    @bounded
    async def idle() -> None:
        with server(tmp_path, queues) as secondary:
            done = asyncio.Event()

            def note(event: Event) -> None:
                if isinstance(event, SyphonPolled):
                    polled.append(event)
                    if len(polled) == 6:
                        done.set()

            async with client(secondary) as behind:
                reporter = Reporter(note)
                syphon = Syphon(behind, behind, queues, poll=timedelta(seconds=1), reporter=reporter)
                task = asyncio.create_task(syphon.run())
                await done.wait()
                # The link of the last poll is closed at once; a moment later both would be in the next one.
                await asyncio.sleep(0.2)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    idle()
    # A receive that is broken off by closing its link has ended with nothing, too: at most one more for each queue.
    assert 6 <= metered(tmp_path, EMPTY_RECEIVE, *queues) <= 8
