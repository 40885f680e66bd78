"""What the HTTP side tells those who watch a server: the server, its entities, its connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from duobus.amqp import ACCEPTED, OpenReceived, Transfers
from duobus.clock import Clock, Entropy
from duobus.gateway.amqp.connection_list import CLIENT_CHARS_MAX, LINKS_MAX, client_of
from duobus.model.descriptions import AccessRule, QueueDescription, Right, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.server.monitoring.overview import ServerOverview
from duobus.server.settings import NamespaceConfig, Settings, load_settings
from kits.gateway import Client, TcpStream, in_loop, serving, settled
from kits.http_client import Http, Reply, token

WATCHER = AccessRule(name="watcher", primary_key="see" * 9, secondary_key="saw" * 9, rights=int(Right.LISTEN))
SENDER = AccessRule(name="sender", primary_key="put" * 9, secondary_key="set" * 9, rights=int(Right.SEND))


@asynccontextmanager
async def watched(*queues: QueueDescription) -> AsyncIterator[Server]:
    """A server with a rule that may listen and one that may send, beside the default one."""
    settings = load_settings(
        Settings(data=None, ephemeral=True, emulator=True, stores=1, port=0, tls_port=0, http_port=0)
    )
    namespaces = (
        NamespaceConfig(name="ns", queues=queues, rules=(WATCHER, SENDER)),
        NamespaceConfig(name="other", queues=(QueueDescription(name="elsewhere"),)),
    )
    server = Server(msgspec.structs.replace(settings, namespaces=namespaces), Clock(), Entropy())
    await server.start()
    try:
        yield server
    finally:
        for peer in list(server.amqp.peers):
            peer.abort()
        await server.stop()


async def ask(server: Server, path: str, rule: AccessRule | None = None) -> Reply:
    http = await Http.connect(server.port("http") or 0)
    signed = token() if rule is None else token(rule=rule.name, key=rule.primary_key)
    return await http.ask("GET", f"/$duobus/{path}", headers={"Authorization": signed})


async def told(server: Server, path: str) -> Any:
    reply = await ask(server, path)
    assert reply.status == 200, reply
    return json.loads(reply.text)


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


@in_loop
async def test_an_empty_server_tells_of_no_entities_and_no_connections() -> None:
    async with watched() as server:
        assert await told(server, "entities") == []
        assert await told(server, "connections") == []
        about = await told(server, "server")
        assert (about["connections"], about["links"], about["errors"], about["incomingBytes"]) == (0, 0, {}, 0)
        assert about["startedMs"] <= about["nowMs"]
        assert about["memoryBytes"] > 1 << 20
        assert about["certificate"] is None


@in_loop
async def test_a_server_with_tls_tells_what_its_certificate_says_of_itself(tmp_path: Path) -> None:
    async with serving(ephemeral=False, data=tmp_path, tls_self_signed=True) as server:
        certificate = (await told(server, "server"))["certificate"]
        assert (certificate["subject"], certificate["issuer"]) == ("CN=duobus", "CN=duobus self-signed authority")
        assert "localhost" in certificate["names"]
        days = (certificate["endMs"] - certificate["beginMs"]) / 86_400_000
        assert 300 < days < 400


@in_loop
async def test_stores_tell_their_generation_and_fragments_their_epoch_which_grow_with_each_opening() -> None:
    async with serving(allow_drills=True) as server:
        http = await Http.connect(server.port("http") or 0)

        async def numbers() -> tuple[int, int | None]:
            (store,), (fragment,) = await told(server, "stores"), await told(server, "fragments")
            return store["generation"], fragment["epoch"]

        generation, epoch = await numbers()
        assert epoch is not None
        await http.ask("POST", "/$duobus/stores/1/fail")
        await http.ask("POST", "/q/messages", b"x")
        await settled(lambda: server.unit.brokers[1].state == "failed")
        assert (await numbers())[1] is None
        await http.ask("POST", "/$duobus/stores/1/heal")
        await settled(lambda: server.unit.brokers[1].state == "open")
        assert await numbers() == (generation + 1, epoch + 1)


@in_loop
async def test_entities_tell_what_is_in_them_and_what_was_done_with_them() -> None:
    async with serving() as server:
        client = await connected(server)
        sender = await client.sender()
        for body in (b"one", b"two", b"three"):
            await client.send(sender, body)
        receiver = await client.receiver(credit=2)
        batch = await client.wait(Transfers, lambda event: event.link is receiver)
        assert len(batch.payloads) == 2
        receiver.settle(batch.first_delivery_id, batch.first_delivery_id, ACCEPTED)
        await client.flush()
        await settled(lambda: server.unit.namespace("ns").queues["q"].numbers()[0][0] == 2)
        (found,) = await told(server, "entities")
        assert {name: found[name] for name in ("entity", "kind", "available", "active", "locked", "deadLetter")} == {
            "entity": "q",
            "kind": "queue",
            "available": True,
            "active": 2,
            "locked": 1,
            "deadLetter": 0,
        }
        assert (found["sent"], found["received"], found["settled"]) == (3, 2, 1)
        assert found["sentBytes"] > found["receivedBytes"] > 0
        metrics = (await (await Http.connect(server.port("http") or 0)).ask("GET", "/metrics")).text
        assert 'duobus_messages_locked{entity="q",namespace="ns"} 1.0' in metrics


@in_loop
async def test_topics_and_their_subscriptions_are_entities_and_a_prefix_chooses() -> None:
    async with serving(QueueDescription(name="Orders"), QueueDescription(name="bills")) as server:
        topic = TopicDescription(name="News", subscriptions=(SubscriptionDescription(name="All"),))
        await server.unit.topics.create_topic("ns", topic)
        client = await connected(server)
        await client.send(await client.sender("News"), b"x")
        found = {row["entity"]: row for row in await told(server, "entities")}
        assert {name: row["kind"] for name, row in found.items()} == {
            "Orders": "queue",
            "bills": "queue",
            "News": "topic",
            "News/Subscriptions/All": "subscription",
        }
        assert (found["News"]["sent"], found["News/Subscriptions/All"]["active"]) == (1, 1)
        assert [row["entity"] for row in await told(server, "entities?prefix=ORD")] == ["Orders"]
        assert await told(server, "entities?prefix=nothing") == []


@in_loop
async def test_connections_tell_their_clients_and_links_and_no_more_than_may_be() -> None:
    async with serving() as server:
        client, other = await connected(server), await connected(server)
        sender = await client.sender()
        await client.receiver(credit=7)
        for _ in range(LINKS_MAX + 1):
            await other.receiver()
        first, second = await told(server, "connections")
        assert [link["role"] for link in first["links"]] == ["sender", "receiver"]
        assert {link["address"] for link in first["links"]} == {"q"}
        assert first["links"][1]["credit"] == 7
        assert first["rules"] == ["RootManageSharedAccessKey"]
        assert first["from"].startswith("127.0.0.1:")
        assert (second["linkCount"], len(second["links"])) == (LINKS_MAX + 1, LINKS_MAX)
        sender.detach()
        await client.flush()
        await settled(lambda: next(iter(server.amqp.peers)).links == 1)
        assert (await told(server, "connections"))[0]["linkCount"] == 1


@in_loop
async def test_a_client_may_say_of_itself_what_it_likes_and_little_of_that_is_kept() -> None:
    async with serving() as server:
        client = await connected(server)
        await client.sender()
        (peer,) = server.amqp.peers
        assert len(peer.client[0]) == 32
        assert peer.client[1] == ""
        opened = OpenReceived("c" * 5_000, None, 512, None, {"product": "p" * 5_000, "version": 7, "other": "x"})
        assert client_of(opened) == ("c" * CLIENT_CHARS_MAX, "p" * CLIENT_CHARS_MAX)
        assert client_of(OpenReceived("c", None, 512, None, {"product": "sdk", "version": "1.2"}))[1] == "sdk 1.2"


@in_loop
async def test_listen_is_enough_for_numbers_and_manage_is_needed_for_who_is_connected() -> None:
    async with watched(QueueDescription(name="q")) as server:
        for path, status in (("server", 200), ("entities", 200), ("connections", 401), ("stores", 401)):
            assert (await ask(server, path, WATCHER)).status == status, path
            assert (await ask(server, path, SENDER)).status == 401, path
            assert (await ask(server, path)).status == 200, path
        wrong = token(rule="watcher", key="wrong")
        http = await Http.connect(server.port("http") or 0)
        assert (await http.ask("GET", "/$duobus/server", headers={"Authorization": wrong})).status == 401
        assert (await http.ask("GET", "/$duobus/server", headers={"Authorization": ""})).status == 401
        reply = await http.ask("POST", "/$duobus/entities", headers={"Authorization": token()})
        assert reply.status == 405
        assert "/$duobus/entities" in reply.text


@in_loop
async def test_who_watches_one_namespace_sees_nothing_of_another() -> None:
    async with watched(QueueDescription(name="q")) as server:
        client = await connected(server)
        await client.sender()
        assert {row["entity"] for row in await told(server, "entities")} == {"q"}
        http = await Http.connect(server.port("http") or 0)
        rules = next(one for one in server.unit.namespaces.values() if one.name == "other")
        assert rules.queues
        reply = await http.ask(
            "GET",
            "/$duobus/connections",
            headers={"Authorization": token(host="other.localhost"), "Host": "other.localhost"},
        )
        assert (reply.status, reply.text) == (200, "[]")


@in_loop
async def test_many_entities_are_read_in_turns_between_which_others_are_served() -> None:
    async with serving(*(QueueDescription(name=f"q{number}") for number in range(350))) as server:
        overview = ServerOverview(server.unit, server.amqp, Clock(), 0)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        found = await overview.entities("ns", "Q")
        beside.cancel()
        assert len(found) == 350
        assert turns >= 3
