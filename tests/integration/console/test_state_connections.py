"""Connections and locks in the console."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage

from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens import connections
from duobus.model.descriptions import QueueDescription
from duobus.model.options import HttpOptions
from kits.console import console, stream_of
from kits.gateway import in_loop


@in_loop
async def test_without_clients_the_page_says_so() -> None:
    async with console() as client:
        assert "Nobody is connected" in (await client.get("/connections")).words


@in_loop
async def test_a_receiver_is_listed_with_its_links_and_the_locks_that_it_holds() -> None:
    async with console(QueueDescription(name="orders")) as client:
        bus = client.console.sessions.all()[0].namespace.messaging
        async with bus.get_queue_sender("orders") as sender, bus.get_queue_receiver("orders") as receiver:
            await sender.send_messages(ServiceBusMessage("x", message_id="<b>4711</b>"))
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            data = await client.data("/connections?q=orders")
            (row,) = [row for row in data["rows"] if row["receivers"]]
            assert data["can_close"]
            assert row["addresses"] == ["orders"]
            assert row["unsettled"] == 1
            page = await client.get(f"/connections/{row['connection']}")
            assert "&lt;b&gt;4711&lt;/b&gt;" in page.text
            assert "data-until=" in page.text
            assert f"number={message.sequence_number}" in page.text
            locks = await client.data("/connections/locks?entity=orders/$DeadLetterQueue")
            assert [lock["connection"] for lock in locks["rows"]] == [row["connection"]]
            assert (await client.data("/connections?q=nowhere"))["rows"] == []
            await receiver.complete_message(message)
        assert "Nothing of orders is locked" in (await client.get("/connections/locks?entity=orders")).words


@in_loop
async def test_a_connection_is_closed_only_when_its_name_is_typed_and_only_once() -> None:
    async with console(QueueDescription(name="orders")) as client:
        bus = client.console.sessions.all()[0].namespace.messaging
        async with bus.get_queue_sender("orders"):
            (row,) = (await client.data("/connections"))["rows"]
            url = f"/connections/{row['connection']}/close"
            assert (await client.post(url, {"confirm": "something"})).status == 422
            assert len((await client.data("/connections"))["rows"]) == 1
            assert (await client.post(url, {"confirm": row["connection"]})).status == 303
            again = await client.post(url, {"confirm": row["connection"]})
            # The server may still wait for the client's answer to the close.
            assert again.status in {303, 404}
            while (await client.data("/connections"))["rows"]:
                pass
            gone = await client.get(f"/connections/{row['connection']}")
            assert gone.status == 404
            assert "its client has gone, or it was closed" in gone.words


@in_loop
async def test_an_entity_that_is_not_there_is_told_in_the_words_of_the_broker() -> None:
    async with console() as client:
        page = await client.get("/connections/locks?entity=nowhere")
        assert page.status == 404
        assert "Tracking id" in page.words


@in_loop
async def test_keys_without_manage_see_no_connections_and_azure_has_none() -> None:
    for right in ("send", "listen"):
        async with console(right=right) as client:
            assert (await client.get("/connections")).status == 403
            assert 'href="/connections"' not in (await client.get("/")).text
            assert (await client.post("/connections/duobus-1-1/close", {"confirm": "duobus-1-1"})).status == 403
    async with console(options={"http": HttpOptions(operations=False)}) as client:
        assert (await client.get("/connections")).status == 404
        assert "/connections" not in (await client.get("/")).text


@in_loop
async def test_the_list_of_connections_is_live_and_quiet_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.02)
    async with console(QueueDescription(name="orders")) as client, stream_of(client, "/connections/events") as heard:
        assert "Nobody is connected" in (await anext(heard))["html"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(heard)
    async with console(QueueDescription(name="orders")) as client, stream_of(client, "/connections/events") as heard:
        assert "Nobody is connected" in (await anext(heard))["html"]
        bus = client.console.sessions.all()[0].namespace.messaging
        async with bus.get_queue_sender("orders"):
            part = await anext(heard)
            assert part["target"] == "#connections-live"
            assert "1 of 1 connections" in part["html"]


@in_loop
async def test_locks_come_and_go_on_the_open_page_with_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.02)
    async with (
        console(QueueDescription(name="orders")) as client,
        stream_of(client, "/connections/locks/events?entity=orders") as heard,
    ):
        assert "Nothing of orders is locked" in (await anext(heard))["html"]
        bus = client.console.sessions.all()[0].namespace.messaging
        async with bus.get_queue_sender("orders") as sender, bus.get_queue_receiver("orders") as receiver:
            await sender.send_messages(ServiceBusMessage("x"))
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            assert "data-until=" in (await anext(heard))["html"]
            await receiver.complete_message(message)
            assert "Nothing of orders is locked" in (await anext(heard))["html"]


@in_loop
async def test_the_open_page_of_a_connection_says_when_its_client_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.02)
    async with console(QueueDescription(name="orders")) as client:
        bus = client.console.sessions.all()[0].namespace.messaging
        sender = bus.get_queue_sender("orders")
        async with sender:
            (row,) = (await client.data("/connections"))["rows"]
            async with stream_of(client, f"/connections/{row['connection']}/events") as heard:
                assert "orders" in (await anext(heard))["html"]
                await sender.close()
                told = await anext(heard)
                while "text" not in told:
                    told = await anext(heard)
                assert "its client has gone" in told["text"]


@in_loop
async def test_an_open_list_says_that_the_broker_is_away_and_goes_on_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LOOK_S", 0.02)
    async with console() as client:
        namespace = client.console.sessions.all()[0].namespace
        async with stream_of(client, "/connections/events") as heard:
            assert "Nobody is connected" in (await anext(heard))["html"]
            ask = namespace.operation

            async def away(*_: object, **__: object) -> None:
                raise NamespaceError(502, "The namespace does not answer: it is being restarted.")

            namespace.operation = away  # type: ignore[method-assign]
            told = await anext(heard)
            assert (told["target"], "is being restarted" in told["html"]) == ("#connections-failure", True)
            namespace.operation = ask  # type: ignore[method-assign]
            assert await anext(heard) == {"target": "#connections-failure", "html": ""}
