"""The console on one of three servers: each screen tells of all of them, or says of which one it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import FormData
from azure.servicebus import ServiceBusMessage
from kit_cluster import Cluster

from kits.console import ConsoleClient, Page, console_at, stream_of
from kits.gateway import in_loop

pytestmark = [pytest.mark.slow]

QUEUES = tuple(f"q{number}" for number in range(6))
#: Screens whose numbers are those of the server that is asked.
OF_ONE = ("/", "/connections", "/stores", "/audit", "/usage")


@pytest.fixture(scope="module", autouse=True)
def entities(cluster: Cluster) -> None:
    """Queues of which some are elsewhere for each server, with messages, dead letters and sessions."""
    cluster.await_served()
    with cluster.admin(0) as admin:
        for name in QUEUES:
            admin.create_queue(name)
        for number in range(4):
            admin.create_queue(f"sessions{number}", requires_session=True)
            admin.create_topic(f"topic{number}")
            admin.create_subscription(f"topic{number}", "all")
    with cluster.client(0) as bus:
        for name in QUEUES:
            with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
                sender.send_messages([ServiceBusMessage(f"{name} {number}") for number in range(3)])
                (message,) = receiver.receive_messages(1, max_wait_time=5)
                receiver.dead_letter_message(message, reason="because")
        for number in range(4):
            with bus.get_queue_sender(f"sessions{number}") as sender:
                sender.send_messages(ServiceBusMessage("x", session_id=f"one of {number}"))


def server_of(cluster: Cluster, number: int) -> str:
    return cluster.http(number).partition("//")[2].replace("localhost", "127.0.0.1")


def says_one(page: Page) -> bool:
    return 'id="one-server"' in page.text


@in_loop
async def test_screens_that_tell_of_one_server_say_of_which(cluster: Cluster) -> None:
    for number in (0, 1):
        async with console_at(cluster.address(number)) as client:
            for path in OF_ONE:
                page = await client.get(path)
                assert page.status == 200, page
                assert says_one(page), path
                assert "one of 3 that share this namespace" in page.words, path
                told = (await client.data(path))["one_server"]
                assert told["number"] == 3
                assert told["server"].rpartition(":")[2] == server_of(cluster, number).rpartition(":")[2], path


@in_loop
async def test_the_list_of_entities_and_that_of_dead_letters_are_of_all_servers(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        for path in ("/entities", "/dead-letters", "/messages", "/pairs", "/topology"):
            assert not says_one(await client.get(path)), path
        rows = (await client.data("/entities?kind=queue"))["entities"]
        assert {*QUEUES} <= {row["path"] for row in rows}
        assert {row["dead_letters"] for row in rows if row["path"] in QUEUES} == {1}
        assert {*QUEUES} <= {row["path"] for row in (await client.data("/dead-letters"))["entities"]}
        causes = (await client.data("/dead-letter-causes"))["groups"]
        assert {group["path"] for group in causes} == {*QUEUES}


@in_loop
async def test_dead_letters_of_every_server_are_grouped_downloaded_and_resubmitted(cluster: Cluster) -> None:
    async with console_at(cluster.address(1)) as client:
        for name in QUEUES[:3]:
            (group,) = (await client.data(f"/dead-letters/{name}"))["groups"]
            assert group["reason"] == "because"
            (dead,) = (await client.data(f"/messages/{name}?place=deadletter"))["rows"]
            page = await client.get(f"/messages/{name}?place=deadletter&number={dead['number']}")
            assert "because" in page.words, name
            file = await client.get(f"/dead-letter-files/{name}?all=1")
            assert (file.status, file.text.count("\n")) == (200, 1)
            before = len((await client.data(f"/messages/{name}"))["rows"])
            page = await client.post("/dead-letter-runs", {"path": name, "action": "resubmit", "all": "1"})
            await ended(client, page)
            await ended(client, await client.post(f"{page.headers['Location']}/run", {}))
            assert len((await client.data(f"/messages/{name}"))["rows"]) == before + 1, name


@in_loop
async def test_messages_of_every_server_are_shown_sent_received_and_purged(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        for name in QUEUES:
            before = len((await client.data(f"/messages/{name}"))["rows"])
            assert before >= 2, name
            fields = {"kind": "text", "body": "by hand", "count": "1", "do": "send"}
            assert (await client.post(f"/send/{name}", fields)).status == 303, name
            assert len((await client.data(f"/messages/{name}"))["rows"]) == before + 1, name
            page = await client.post(f"/purge/{name}", {"what": "everything", "confirm": name})
            assert page.status == 303, page

            async def is_over(name: str = name) -> bool:
                return not (await client.data(f"/purge/{name}"))["is_running"]

            await until(is_over)
            assert (await client.data(f"/messages/{name}"))["rows"] == [], name


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(400):
        if await is_so():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("This takes too long.")


async def ended(client: ConsoleClient, page: Page) -> None:
    assert page.status == 303, page

    async def run() -> Any:
        return (await client.data(page.headers["Location"]))["run"]

    async def is_over() -> bool:
        return bool((await run())["has_ended"])

    await until(is_over)
    assert (await run())["state"] == "done"


@in_loop
async def test_sessions_and_live_tails_are_those_of_every_server(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        for number in range(4):
            found = await client.data(f"/sessions/sessions{number}")
            assert [one["session"] for one in found["sessions"]] == [f"one of {number}"]
        for name in QUEUES[:3]:
            async with stream_of(client, f"/tail/{name}?events=1") as heard:
                assert await anext(heard) == {"text": "Waiting for messages."}
                form = FormData({"kind": "text", "body": f"followed in {name}", "count": "1", "do": "send"})
                assert (await client.post(f"/send/{name}", form)).status == 303
                told = await anext(heard)
                while "html" not in told:
                    told = await anext(heard)
                assert f"followed in {name}" in told["html"]


@in_loop
async def test_the_fragments_of_every_entity_are_told_whichever_server_has_them(cluster: Cluster) -> None:
    """Of four stores, each server has one or two."""
    async with console_at(cluster.address(0)) as client:
        for name in (*QUEUES, *(f"topic{number}" for number in range(4))):
            page = await client.get(f"/entities/{name}")
            assert page.status == 200, page
            tab = await client.get(f"/entities/{name}?tab=fragments")
            assert tab.status == 200, tab
            assert "Another server holds them" not in tab.words, name
            page = await client.get(f"/stores/fragments/{name}")
            assert page.status == 200, page


@in_loop
async def test_locks_of_an_entity_are_those_of_the_server_that_has_it(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        bus = client.console.sessions.all()[0].namespace.messaging
        for name in QUEUES[:4]:
            async with bus.get_queue_sender(name) as sender, bus.get_queue_receiver(name) as receiver:
                await sender.send_messages(ServiceBusMessage(f"locked in {name}"))
                (message,) = await receiver.receive_messages(1, max_wait_time=5)
                locks = (await client.data(f"/connections/locks?entity={name}"))["rows"]
                assert [lock["sequenceNumber"] for lock in locks] == [message.sequence_number], name
                await receiver.complete_message(message)


@in_loop
async def test_rules_are_tried_wherever_the_subscription_is(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        for number in range(4):
            path = quote(f"topic{number}/Subscriptions/all")
            for fields in ({"m_subject": "x"}, {"m_subject": "x", "rule": "$Default"}):
                page = await client.post(f"/try-rule/{path}", fields)
                assert page.status == 200, page


@in_loop
async def test_the_screen_of_the_cluster_tells_servers_and_stores_and_moves_and_drains(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        data = await client.data("/cluster")
        assert data["is_cluster"]
        assert sorted(one["server"] for one in data["servers"]) == sorted(server_of(cluster, n) for n in range(3))
        assert [(one["store"], one["state"]) for one in data["stores"]] == [(n, "held") for n in (1, 2, 3, 4)]
        page = await client.get("/cluster")
        assert page.status == 200
        assert not says_one(page)
        assert all(server_of(cluster, number) in page.words for number in range(3))
        target = next(one["server"] for one in data["servers"] if one["server"] != data["stores"][0]["server"])

        # A name has to be typed; without it nothing changes.
        assert (await client.post("/cluster/stores/1/move", {"to": target})).status == 422
        moved = await client.post("/cluster/stores/1/move", {"to": target, "confirm": "store 1"})
        assert moved.status == 303, moved

        async def is_there() -> bool:
            first = (await client.data("/cluster"))["stores"][0]
            return bool(first["server"] == target and not first["isDisplaced"])

        await until(is_there)
        assert (await client.data("/cluster/stores/1"))["one"]["preference"] == target
        await client.post("/cluster/stores/1/move", {"to": "any", "confirm": "store 1"})
        assert (await client.data("/cluster/stores/1"))["one"]["preference"] is None

        about = f"/cluster/servers/{target}"
        assert (await client.post(f"{about}/drain", {"confirm": "another"})).status == 422
        drained = await client.post(f"{about}/drain", {"confirm": target})
        assert drained.status == 303, drained

        async def is_empty() -> bool:
            one = (await client.data(about))["one"]
            return bool(one["state"] == "drained" and one["stores"] == [])

        await until(is_empty)
        assert "End the drain" in (await client.get(about)).words
        ended_drain = await client.post(f"{about}/serve", {})
        assert ended_drain.status == 303, ended_drain

        async def is_serving() -> bool:
            # The server itself hears of it with its next heartbeat.
            return bool((await client.data(about))["one"]["state"] == "serving")

        await until(is_serving)
        lines = (await client.data("/audit"))["rows"]
        assert {f"store 1 to {target}", f"drain {target}", f"end the drain of {target}"} <= {
            line["path"] for line in lines
        }
    cluster.await_served()


@in_loop
async def test_what_the_cluster_does_not_have_is_said(cluster: Cluster) -> None:
    async with console_at(cluster.address(0)) as client:
        assert "no messaging store 9" in (await client.get("/cluster/stores/9")).words
        assert "no server nowhere:1" in (await client.get("/cluster/servers/nowhere:1")).words
        page = await client.post("/cluster/stores/1/move", {"to": "zone=none", "confirm": "store 1"})
        assert "No server has the label" in page.words, page


@in_loop
async def test_the_page_of_the_cluster_follows_a_drain_by_itself(cluster: Cluster) -> None:
    target = server_of(cluster, 2)
    async with console_at(cluster.address(0)) as client, stream_of(client, "/cluster/events") as events:
        await client.post(f"/cluster/servers/{target}/drain", {"confirm": target})
        async for event in events:
            if "drained" in event.get("html", ""):
                break
        await client.post(f"/cluster/servers/{target}/serve", {})
    cluster.await_served()
