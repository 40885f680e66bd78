"""Pairs in the console: two brokers, the backlog of the one in the other, and the syphon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.aio import pair_namespace
from duobus.ha.failover import State
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.reports.message import Report, state_queue
from duobus.ha.transfer import to_backlog
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.console import ConsoleClient, broker, connection_string, console, console_of
from kits.gateway import in_loop

#: Nothing listens there.
NOBODY = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
BACKLOG = "localhost/x-servicebus-transfer/0"


@asynccontextmanager
async def pair(right: str = "manage") -> AsyncIterator[tuple[ConsoleClient, Server]]:
    """A console for the primary, and the secondary."""
    async with (
        broker(QueueDescription(name="orders")) as primary,
        broker(QueueDescription(name=BACKLOG), QueueDescription(name="localhost/x-servicebus-transfer/1")) as secondary,
        console_of(primary, right=right) as client,
    ):
        yield client, secondary


async def divert(client: ConsoleClient, secondary: Server, *bodies: str) -> None:
    """Put messages into the backlog as a paired client does; the other namespace has to be open."""
    (session,) = client.console.sessions.all()
    (other,) = session.others.values()
    async with other.messaging.get_queue_sender(BACKLOG) as sender:
        await sender.send_messages([to_backlog(ServiceBusMessage(body), "orders", 1) for body in bodies])


async def finished(client: ConsoleClient) -> dict[str, Any]:
    """The run of the syphon, at its end."""
    while True:
        run: dict[str, Any] = (await client.data("/pairs"))["run"]
        if run["is_over"]:
            return run
        await asyncio.sleep(0.02)


@in_loop
async def test_without_a_pair_the_page_says_what_one_is_and_asks_for_the_other_namespace() -> None:
    async with console() as client:
        page = await client.get("/pairs")
        assert "No backlog waits" in page.words
        assert "Open the other namespace of a pair" in page.words
        assert (await client.post("/pairs/syphon")).status == 409


@in_loop
async def test_the_backlog_is_told_by_destination_and_the_syphon_carries_it_to_the_primary() -> None:
    async with pair() as (client, secondary):
        key = connection_string(secondary)
        opened = await client.post("/pairs/other", {"role": "secondary", "connection_string": key})
        assert opened.status == 303
        await divert(client, secondary, "1", "2", "3")
        data = await client.data("/pairs")
        (backlog,) = data["other"]["backlogs"]
        assert (backlog["primary"], backlog["waiting"], len(backlog["queues"])) == ("localhost", 3, 2)
        assert backlog["destinations"] == [{"entity": "orders", "is_unnamed": False, "messages": 3}]
        assert backlog["oldest_age_ms"] is not None
        page = await client.get("/pairs")
        assert "state unknown" in page.words
        assert "SharedAccessKey=" not in page.text
        assert (await client.post("/pairs/syphon")).status == 303
        assert (await client.post("/pairs/syphon")).status == 409
        run = await finished(client)
        assert (run["carried"], run["by_entity"], run["reason"]) == (
            3, {"orders": 3}, "Nothing is left in the backlog queues.",
        )  # fmt: skip
        assert (await client.data("/"))["active"] == 3
        assert (await client.data("/pairs"))["other"]["backlogs"][0]["waiting"] == 0


@in_loop
async def test_in_the_secondary_the_backlog_shows_without_the_primary_and_on_the_overview() -> None:
    async with console(QueueDescription(name="contoso/x-servicebus-transfer/0")) as client:
        (session,) = client.console.sessions.all()
        async with session.namespace.messaging.get_queue_sender("contoso/x-servicebus-transfer/0") as sender:
            await sender.send_messages([ServiceBusMessage("not of a pair")])
        (backlog,) = (await client.data("/pairs"))["backlogs"]
        assert (backlog["primary"], backlog["destinations"][0]["is_unnamed"]) == ("contoso", True)
        assert "none: not written by a paired client" in (await client.get("/pairs")).words
        assert "Backlog of contoso" in (await client.get("/")).words


@in_loop
async def test_a_namespace_that_cannot_be_opened_is_told_without_its_key() -> None:
    async with pair() as (client, secondary):
        wrong = connection_string(secondary).replace("SharedAccessKey=", "SharedAccessKey=wrong")
        for text in (wrong, "nonsense", connection_string(client.server)):
            page = await client.post("/pairs/other", {"connection_string": text})
            assert page.status == 422, text
            assert "wrongSAS" not in page.text
            assert 'role="alert"' in page.text
        assert (await client.data("/pairs"))["other"] is None


@in_loop
async def test_a_key_that_may_only_listen_sees_the_pair_and_cannot_run_the_syphon() -> None:
    async with pair("listen") as (client, secondary):
        await client.post("/pairs/other", {"connection_string": connection_string(secondary)})
        page = await client.get("/pairs")
        assert "Run the syphon now" not in page.words
        assert (await client.post("/pairs/syphon")).status == 403
        assert (await client.post("/pairs/close")).status == 303
        assert (await client.data("/pairs"))["other"] is None
    async with console(right="send") as client:
        assert (await client.get("/pairs")).status == 403


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@in_loop
async def test_clients_that_report_tell_the_state_of_entities_and_are_told_that_one_is_healthy() -> None:
    async with pair() as (client, secondary):
        key = connection_string(secondary)
        await client.post("/pairs/other", {"connection_string": key})
        assert (await client.data("/pairs"))["other"]["states"] is None
        assert (await client.post("/pairs/mark-healthy", {"entity": ""})).status == 422
        (session,) = client.console.sessions.all()
        (other,) = session.others.values()
        await other.administration.create_queue(state_queue("localhost"))
        away = ServiceBusClient.from_connection_string(
            "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true",
            retry_total=0,
        )
        options = SendAvailabilityPairedNamespaceOptions(
            ServiceBusClient.from_connection_string(key, retry_total=0),
            backlog_queue_count=1,
            failover_interval=timedelta(0),
            report_state=True,
        )
        async with await pair_namespace(away, options) as paired:
            await paired.get_queue_sender("orders").send_messages(ServiceBusMessage("diverted"))
            while True:
                states = (await client.data("/pairs"))["other"]["states"]
                if states is not None and states["entities"]:
                    break
                await asyncio.sleep(0.02)
            assert states["entities"] == [{"entity": "orders", "fragment": "", "failed_over": 1, "suspect": 0}]
            page = await client.get("/pairs")
            assert "failed over 1 of 1 0 of 1 Mark healthy" in page.words
            # The overview names the failover first, for the primary with the pair open, and for the secondary itself.
            await client.post("/pairs/close")
            await client.post("/pairs/other", {"connection_string": key})
            while True:
                if failovers := (await client.data("/"))["failovers"]:
                    break
                await asyncio.sleep(0.02)
            assert failovers == [{"primary": "localhost", "states": states, "failure": ""}]
            async with console_of(secondary) as there:
                assert [pair["states"]["entities"] for pair in (await there.data("/"))["failovers"]] == [
                    states["entities"]
                ]
                for one in (client, there):
                    first = (await one.data("/"))["findings"][0]
                    assert (first["kind"], first["title"]) == ("bad", "Entities of localhost have failed over")
                    assert first["text"].endswith("backlog queues in place of localhost: orders (1 of 1 clients).")
                    assert "orders (1 of 1 clients)" in (await one.get("/")).words
            assert (await client.post("/pairs/mark-healthy", {"entity": "orders"})).status == 303
            # The next look at the queue, which the client would take within ten seconds.
            assert paired._reports is not None
            await paired._reports._look(Report("", 0, (), 0, 0))
            assert paired.state("orders") is State.HEALTHY
