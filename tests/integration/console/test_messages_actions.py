"""Sending, receiving by hand, scheduling, following and purging messages in the console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData
from azure.servicebus import ServiceBusMessage

from duobus.clock import Clock
from duobus.console.screens.messages import purge_page
from duobus.model.descriptions import QueueDescription
from kits.console import ConsoleClient, Page, console, console_of
from kits.gateway import in_loop, settled
from kits.sockets import collect_sockets, sockets_forgiven

ORDERS = QueueDescription(name="orders")
VISITS = QueueDescription(name="visits", requires_session=True)


@pytest.fixture
def cut_connections() -> Iterator[None]:
    """For a test that cuts connections, of which the SDK closes no sockets."""
    with sockets_forgiven(lambda: True):
        yield


def session_of(client: ConsoleClient) -> Any:
    (session,) = client.console.sessions.all()
    return session


async def sent(client: ConsoleClient, *messages: Any, to: str = "orders") -> None:
    async with session_of(client).namespace.messaging.get_queue_sender(to) as sender:
        await sender.send_messages(list(messages))


async def told(client: ConsoleClient, page: Page) -> str:
    """The notice of the page to which a change leads."""
    assert page.status == 303, page
    words = (await client.get(page.headers["Location"])).text
    return " ".join(words.split('class="notice notice-')[-1].split(">", 1)[1].split("<")[0].split())


async def rows(client: ConsoleClient, path: str) -> list[Any]:
    return list((await client.data(path))["rows"])


async def held(client: ConsoleClient, path: str = "orders") -> list[Any]:
    found = (await client.data(f"/receive/{path}"))["receivers"]
    return [row for one in found for row in one["rows"]]


@in_loop
async def test_a_message_is_sent_with_everything_that_the_form_has() -> None:
    async with console(ORDERS) as client:
        fields = {
            "kind": "json",
            "body": '{"n": {{n}}}',
            "subject": "s",
            "id": "m-{{n}}",
            "ttl": "1h",
            "count": "3",
            "p_name": "size",
            "p_type": "short",
            "p_value": "5",
        }
        assert await told(client, await client.post("/send/orders", fields)) == "3 messages are sent to orders."
        record = await client.data("/messages/orders?number=2")
        assert record["message"]["properties"].items() >= {
            ("messageId", "m-2"),
            ("subject", "s"),
            ("contentType", "application/json"),
        }
        assert record["message"]["applicationProperties"] == {"size": {"$short": 5}}
        assert record["message"]["body"] == {"data": ['{"n": 2}']}
        assert record["message"]["header"]["timeToLive"] == "PT1H"
        form = FormData()
        form.add_field("kind", "file")
        form.add_field("count", "1")
        form.add_field("file", b"\x00\xff", filename="a.bin")
        assert (await client.post("/send/orders", form)).status == 303
        assert (await client.data("/messages/orders?number=4"))["message"]["body"]["data"] == [{"$binary": "AP8="}]


@in_loop
async def test_nothing_that_was_typed_is_lost_when_a_message_cannot_be_sent() -> None:
    async with console(ORDERS) as client:
        wrong = await client.post("/send/orders", {"kind": "json", "body": "{<oops>", "subject": "kept", "count": "1"})
        assert wrong.status == 422
        assert "line 1, column 2" in wrong.words
        assert "{&lt;oops&gt;" in wrong.text
        assert 'value="kept"' in wrong.text
        large = await client.post("/send/orders", {"body": "x" * 300_000, "count": "1"})
        assert large.status == 413
        assert "262144 bytes" in large.words
        more = await client.post("/send/orders", {"do": "rows", "p_name": "n", "p_type": "int", "p_value": "v"})
        assert more.text.count('name="p_name"') == 3
        missing = await client.post("/send/none", {"body": "b", "count": "1"})
        assert missing.status in (403, 404)
        assert "none" in missing.words


@in_loop
async def test_a_copy_of_a_message_is_edited_and_sent_and_files_of_messages_too() -> None:
    async with console(ORDERS) as client:
        await sent(client, ServiceBusMessage(b"\x00\xff", subject="old", application_properties={"n": 1}))
        form = await client.get("/send/orders?original=1&of=orders&place=active")
        assert "As in the original" in form.words
        fields = {
            "original": "1",
            "of": "orders",
            "place": "active",
            "kind": "original",
            "subject": "new",
            "count": "1",
        }
        assert (await client.post("/send/orders", fields)).status == 303
        line = (await client.ask("GET", "/messages/orders?number=2&download=message")).text
        record = json.loads(line)
        assert record["message"]["body"] == {"data": [{"$binary": "AP8="}]}
        assert record["message"]["properties"]["subject"] == "new"
        upload = FormData()
        upload.add_field("lines", (line * 3).encode(), filename="m.jsonl")
        assert await told(client, await client.post("/send-file/orders", upload)) == "3 messages of the file are sent."
        bad = FormData()
        bad.add_field("lines", line.encode() + b"{}}", filename="m.jsonl")
        assert "Line 2 is no message" in (await client.post("/send-file/orders", bad)).words
        assert len(await rows(client, "/messages/orders")) == 5
        gone = await client.post("/send/orders", fields | {"original": "77", "body": "typed"})
        assert gone.status == 404
        assert "typed" in gone.text


@in_loop
async def test_scheduled_messages_are_cancelled_or_sent_at_once() -> None:
    async with console(ORDERS) as client:
        fields = {"body": "later {{n}}", "count": "3", "schedule": "1h"}
        assert "3 messages are scheduled" in await told(client, await client.post("/send/orders", fields))
        assert len(await rows(client, "/messages/orders?place=scheduled")) == 3
        assert await told(client, await client.post("/scheduled/orders", {"do": "cancel", "number": "1"})) == (
            "Message 1 is cancelled."
        )
        now = FormData()
        for name, value in (("do", "now"), ("number", "2"), ("number", "3")):
            now.add_field(name, value)
        assert await told(client, await client.post("/scheduled/orders", now)) == "2 messages are sent."
        assert await rows(client, "/messages/orders?place=scheduled") == []
        assert [row["body"] for row in await rows(client, "/messages/orders?columns=body")] == ["later 2", "later 3"]
        none = await client.post("/scheduled/orders", {"do": "cancel"})
        assert await told(client, none) == "Choose messages first."


@in_loop
async def test_messages_are_received_and_settled_by_hand() -> None:
    async with console(ORDERS) as client:
        await sent(client, *(ServiceBusMessage(f"{number}") for number in range(6)))
        page = await client.post("/receive/orders", {"do": "receive", "count": "5", "wait": "2"})
        assert await told(client, page) == "5 messages are received and locked for you."
        assert [row["number"] for row in await held(client)] == [1, 2, 3, 4, 5]

        async def settle(way: str, number: int, **more: str) -> str:
            return await told(client, await client.post("/receive/orders", {"do": way, "number": str(number), **more}))

        assert await settle("renew", 1) == "1 lock is renewed."
        assert await settle("complete", 1) == "1 message is completed."
        assert await settle("abandon", 2) == "1 message is abandoned."
        assert await settle("defer", 3) == "1 message is deferred."
        assert await settle("dead-letter", 4, reason="R", description="D") == "1 message is dead-lettered."
        assert "is not held any more" in await settle("complete", 1)
        (dead,) = await rows(client, "/messages/orders?place=deadletter")
        assert (dead["reason"], dead["description"]) == ("R", "D")
        deferred = await client.post("/receive/orders", {"do": "deferred", "numbers": "3"})
        assert await told(client, deferred) == "1 deferred message is locked for you."
        assert await settle("complete", 3) == "1 message is completed."
        assert [row["number"] for row in await rows(client, "/messages/orders?place=deferred")] == []
        # The fifth is still locked; signing out gives it back.
        await client.ask("POST", "/sign-out", data={"csrf": client.csrf}, headers={"Origin": client.url})
        await client.sign_in()
        page = await client.post("/receive/orders", {"do": "receive", "count": "10", "wait": "2"})
        assert sorted(row["number"] for row in await held(client)) == [2, 5, 6]


@in_loop
async def test_two_people_settle_the_same_message_and_one_of_them_is_told() -> None:
    async with console(ORDERS) as client, console_of(client.server) as other:
        await sent(client, ServiceBusMessage("a"))
        await client.post("/receive/orders", {"do": "receive", "wait": "2"})
        nothing = await other.post("/receive/orders", {"do": "receive", "wait": "1"})
        assert await told(other, nothing) == "No message came within 1 s."
        lost = await other.post("/receive/orders", {"do": "complete", "number": "1"})
        assert await told(other, lost) == "0 messages are completed. Message 1 was not: it is not held any more."
        await client.post("/receive/orders", {"do": "release"})
        await other.post("/receive/orders", {"do": "receive", "wait": "2"})
        assert [row["deliveries"] for row in await held(other)] == [1]


@in_loop
async def test_what_comes_after_a_request_to_receive_is_not_locked_by_that_request() -> None:
    async with console(ORDERS) as client, console_of(client.server) as other:
        await other.post("/receive/orders", {"do": "receive", "count": "10", "wait": "1"})
        await sent(client, ServiceBusMessage("a"))
        await client.post("/receive/orders", {"do": "receive", "wait": "1"})
        assert [row["number"] for row in await held(client)] == [1]


@in_loop
async def test_what_a_person_does_with_messages_is_in_the_audit_log(tmp_path: Path) -> None:
    async with console(ORDERS, options={"data": tmp_path, "ephemeral": False}) as client:
        await client.post("/send/orders", {"body": "a", "count": "2"})
        await client.post("/receive/orders", {"do": "receive", "wait": "1"})
        await client.post("/receive/orders", {"do": "complete", "number": "1"})
        await client.post("/purge/orders", {"what": "deadletter", "confirm": "orders"})
        found = await session_of(client).namespace.operation("GET", "/$duobus/audit")
        lines = [(line["operation"], line["kind"], line["path"]) for line in found["changes"]]
        assert lines == [(name, "messages", "orders") for name in ("purge", "complete", "send")]


@in_loop
async def test_receive_and_delete_needs_the_name_and_shows_the_messages_whole() -> None:
    async with console(ORDERS) as client:
        await sent(client, ServiceBusMessage("one", message_id="a"), ServiceBusMessage("two"))
        for fields in ({}, {"confirm": "Orders"}):
            assert (await client.post("/receive-and-delete/orders", fields)).status == 422
        assert len(await rows(client, "/messages/orders")) == 2
        page = await client.post("/receive-and-delete/orders", {"confirm": "orders", "count": "1", "wait": "2"})
        assert page.status == 200
        assert '"messageId": "a"' in page.words
        assert [row["number"] for row in await rows(client, "/messages/orders")] == [2]


@in_loop
async def test_a_session_is_accepted_its_state_is_edited_and_its_messages_are_settled() -> None:
    async with console(VISITS) as client:
        await sent(
            client, ServiceBusMessage("a", session_id="c-1"), ServiceBusMessage("b", session_id="c-1"), to="visits"
        )
        hint = await told(client, await client.post("/receive/visits", {"do": "receive", "wait": "1"}))
        assert "Accept a session below" in hint
        accepted = await client.post("/receive/visits", {"do": "accept", "session": "", "wait": "2"})
        assert await told(client, accepted) == "2 messages are received of session c-1 and locked for you."
        mine = {"has_session": "1", "session": "c-1"}
        await client.post("/receive/visits", {"do": "state", "state": "step 2", **mine})
        (one,) = (await client.data("/receive/visits"))["receivers"]
        assert (one["session"], one["state"]["text"]) == ("c-1", "step 2")
        await client.post("/receive/visits", {"do": "state", "state": "AP8=", "form": "base64", **mine})
        (one,) = (await client.data("/receive/visits"))["receivers"]
        assert one["state"]["text"] is None
        assert one["state"]["hex"].startswith("00000000  00 ff")
        bad = await client.post("/receive/visits", {"do": "state", "state": "?", "form": "base64", **mine})
        assert "no base64" in await told(client, bad)
        number = str(one["rows"][0]["number"])
        done = await client.post("/receive/visits", {"do": "complete", "number": number, **mine})
        assert await told(client, done) == "1 message is completed."
        renewed = await client.post("/receive/visits", {"do": "renew-session", **mine})
        assert await told(client, renewed) == "The lock of the session is renewed."
        assert (await client.data("/sessions/visits"))["sessions"][0]["stateBytes"] == 2
        async with console_of(client.server) as other:
            taken = await other.post("/receive/visits", {"do": "accept", "session": "c-1", "wait": "1"})
            assert "c-1" in await told(other, taken)
            assert await held(other, "visits") == []


class SlowClock(Clock):
    """The clock of a machine that is behind; the signatures of requests are still good."""

    def now_ms(self) -> int:
        return super().now_ms() - 200_000


@pytest.mark.parametrize("entity", ["", "orders"])
@in_loop
async def test_a_purge_goes_by_the_clock_of_the_namespace(entity: str) -> None:
    async with console(ORDERS, clock=SlowClock()) as client:
        session = session_of(client)
        # A key for one entity only is told the time by the date of an answer.
        session.namespace.entity = entity
        await sent(client, ServiceBusMessage("a"), ServiceBusMessage("b"))
        await client.post("/purge/orders", {"what": "active", "confirm": "orders"})
        purges: list[purge_page.Purge] = session.memory["messages-purges"]
        await settled(lambda: purges[-1].state != "running")
        assert (purges[-1].state, purges[-1].removed) == ("done", 2)


@in_loop
async def test_a_purge_needs_the_name_goes_on_by_itself_and_leaves_what_is_held() -> None:
    async with console(ORDERS) as client:
        await sent(client, *(ServiceBusMessage(f"{number}") for number in range(50)))
        await client.post("/receive/orders", {"do": "receive", "count": "2", "wait": "2"})
        assert (await client.post("/purge/orders", {"what": "active"})).status == 422
        assert (await client.post("/purge/orders", {"what": "active", "confirm": "x"})).status == 422
        assert (await client.post("/purge/orders", {"what": "active", "confirm": "orders"})).status == 303
        purges: list[purge_page.Purge] = session_of(client).memory["messages-purges"]
        await settled(lambda: purges[-1].state != "running")
        assert (await client.data("/purge/orders"))["purges"][0] | {"label": ""} == {
            "what": "active",
            "label": "",
            "removed": 48,
            "held": None,
            "state": "done",
            "text": "",
        }
        await client.post("/receive/orders", {"do": "release"})
        await client.post("/purge/orders", {"what": "everything", "confirm": "orders"})
        await settled(lambda: purges[-1].state != "running")
        assert (purges[-1].removed, purges[-1].held) == (2, 0)
        assert await rows(client, "/messages/orders") == []


@in_loop
async def test_a_live_tail_shows_new_messages_and_consumes_none() -> None:
    partitioned = QueueDescription(name="orders", enable_partitioning=True)
    async with console(partitioned) as client:
        await sent(client, ServiceBusMessage("old"))
        async with client.session.get(f"{client.url}/tail/orders?events=1&text=new") as stream:
            lines = stream.content

            async def until(name: str) -> str:
                while True:
                    line = (await lines.readline()).decode()
                    if line.strip() == f"event: {name}":
                        return (await lines.readline()).decode()

            await until("state")
            await sent(
                client, ServiceBusMessage("new <b>", partition_key="7"), ServiceBusMessage("other", partition_key="7")
            )
            html = json.loads((await until("html")).removeprefix("data: "))["html"]
        assert "new &lt;b&gt;" in html
        assert "old" not in html
        assert "other" not in html
        assert len(await rows(client, "/messages/orders")) == 3


@in_loop
async def test_pages_come_back_after_a_restart_of_the_broker(cut_connections: None) -> None:
    async with console(ORDERS) as client:
        await sent(client, ServiceBusMessage("a"))
        assert len(await rows(client, "/messages/orders")) == 1
        await client.post("/receive/orders", {"do": "receive", "wait": "2"})
        for peer in list(client.server.amqp.peers):
            peer.abort()
        await asyncio.sleep(0)
        assert (await client.get("/messages/orders")).status in (200, 502)
        assert (await client.get("/messages/orders")).status == 200
        page = await client.post("/receive/orders", {"do": "complete", "number": "1"})
        assert page.status == 303
        assert (await client.get("/receive/orders")).status == 200
    # While there is a loop in which the sockets can be closed.
    collect_sockets()
