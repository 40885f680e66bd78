"""``/$duobus/locks``, ``sessions`` and ``connections``: who holds what, and how a connection is closed."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

from duobus.amqp import ACCEPTED, Closed, Link, LinkAttached, Source, Target, Transfers
from duobus.codec import Symbol, build_message
from duobus.model.descriptions import AccessRule, QueueDescription, Right, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.telemetry.audit_log import read_audit
from kits.gateway import Client, TcpStream, in_loop, serving, settled
from kits.http_client import Http, Reply, token

LISTENS = AccessRule(name="listens", primary_key="see" * 9, secondary_key="saw" * 9, rights=int(Right.LISTEN))
MANAGES = AccessRule(name="manages", primary_key="own" * 9, secondary_key="our" * 9, rights=7)


async def ask(server: Server, method: str, path: str, authorization: str | None = None) -> Reply:
    http = await Http.connect(server.port("http") or 0)
    return await http.ask(method, f"/$duobus/{path}", headers={"Authorization": authorization or token()})


async def told(server: Server, path: str, method: str = "GET") -> Any:
    reply = await ask(server, method, path)
    assert reply.status == 200, reply
    return json.loads(reply.text)


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


async def filled(server: Server, number: int, queue: str = "q", sessions: tuple[str, ...] = ()) -> Client:
    """A connection that has sent so many messages, in these sessions in turn."""
    client = await connected(server)
    sender = await client.sender(queue)
    for index in range(number):
        fields: list[Any] = [f"m{index}"]
        if sessions:
            fields += [None] * 9 + [sessions[index % len(sessions)]]
        sender.send_one(uuid.uuid4().bytes, build_message(fields, data=b"x"), True)
    await client.flush()
    await settled(lambda: server.unit.namespace("ns").queues[queue].numbers()[0][0] == number)
    return client


async def received(client: Client, link: Link, number: int) -> list[int]:
    """The delivery ids of so many messages."""
    found: list[int] = []
    while len(found) < number:
        batch = await client.wait(Transfers, lambda event: event.link is link)
        found += range(batch.first_delivery_id, batch.first_delivery_id + len(batch.payloads))
    return found


async def session_receiver(client: Client, session_id: str, credit: int, queue: str = "s") -> Link:
    source = Source(address=queue, filter={Symbol("com.microsoft:session-filter"): session_id})
    link = client.session.attach_receiver(uuid.uuid4().hex, source, Target(address="c"))
    await client.wait(LinkAttached, lambda event: event.link is link)
    link.grant(credit)
    await client.flush()
    return link


@in_loop
async def test_a_queue_without_locks_and_sessions_tells_of_none() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="s", requires_session=True)) as server:
        assert await told(server, "locks?entity=q") == {"entity": "q", "locks": [], "next": None}
        assert await told(server, "locks?entity=s") == {"entity": "s", "locks": [], "next": None}
        assert await told(server, "sessions?entity=S") == {"entity": "s", "sessions": [], "next": None}


@in_loop
async def test_locks_tell_which_message_is_held_by_whom_and_until_when() -> None:
    async with serving(QueueDescription(name="q", lock_duration_ms=30_000)) as server:
        await filled(server, 5)
        one, other = await connected(server), await connected(server)
        first = await one.receiver(credit=2)
        await received(one, first, 2)
        second = await other.receiver(credit=2)
        deliveries = await received(other, second, 2)
        found = await told(server, "locks?entity=q")
        rows = found["locks"]
        assert [(row["messageId"], row["deliveryCount"], row["state"]) for row in rows] == [
            (f"m{index}", 0, "active") for index in range(4)
        ]
        assert all(row["untilMs"] - row["sinceMs"] == 30_000 for row in rows)
        assert len({row["sequenceNumber"] for row in rows}) == 4
        connections = await told(server, "connections")
        by_name = {row["connection"]: row for row in connections}
        assert [by_name[row["connection"]]["from"] for row in rows] == [row["from"] for row in rows]
        assert rows[0]["connection"] == rows[1]["connection"] != rows[2]["connection"] == rows[3]["connection"]
        assert [len(row["client"]) for row in rows] == [32] * 4
        assert by_name[rows[0]["connection"]]["unsettled"] == 2
        assert by_name[rows[0]["connection"]]["links"][0]["unsettled"] == 2
        second.settle(deliveries[0], deliveries[0], ACCEPTED)
        await other.flush()
        await settled(lambda: server.unit.namespace("ns").queues["q"].locked() == 3)
        assert [row["messageId"] for row in (await told(server, "locks?entity=q"))["locks"]] == ["m0", "m1", "m3"]


@in_loop
async def test_locks_come_in_pages_over_all_fragments_and_none_comes_twice() -> None:
    async with serving(QueueDescription(name="q", enable_partitioning=True)) as server:
        client = await filled(server, 60)
        link = await client.receiver(credit=60)
        await received(client, link, 60)
        names, after, pages = [], "", 0
        while after is not None:
            page = await told(server, f"locks?entity=q&limit=7&after={after}")
            assert len(page["locks"]) <= 7
            names += [row["messageId"] for row in page["locks"]]
            assert all(row["connection"] for row in page["locks"])
            after, pages = page["next"], pages + 1
        assert sorted(names) == sorted(f"m{index}" for index in range(60))
        assert pages == 9


@in_loop
async def test_a_message_that_is_locked_over_http_is_held_by_no_connection() -> None:
    async with serving() as server:
        await filled(server, 1)
        http = await Http.connect(server.port("http") or 0)
        assert (await http.ask("POST", "/q/messages/head?timeout=5")).status == 201
        (row,) = (await told(server, "locks?entity=q"))["locks"]
        assert (row["connection"], row["from"], row["client"]) == (None, None, None)
        assert row["untilMs"] > row["sinceMs"]


@in_loop
async def test_sessions_that_are_held_stand_among_the_locks_with_their_messages() -> None:
    async with serving(QueueDescription(name="s", requires_session=True)) as server:
        await filled(server, 6, "s", ("a", "b", "c"))
        client = await connected(server)
        link = await session_receiver(client, "b", 1)
        await received(client, link, 1)
        await session_receiver(client, "new", 1)
        locks = (await told(server, "locks?entity=s"))["locks"]
        assert [(row["kind"], row["session"]) for row in locks] == [
            ("session", "b"),
            ("session", "new"),
            ("message", "b"),
        ]
        assert [row["messages"] for row in locks[:2]] == [1, 0]
        assert len({(row["connection"], row["client"]) for row in locks}) == 1
        assert locks[2]["untilMs"] == locks[0]["untilMs"]
        assert (await told(server, "locks?entity=s&limit=1"))["locks"] == locks[:1]
        sessions = (await told(server, "sessions?entity=s"))["sessions"]
        assert [(row["session"], row["active"], row["locked"], row["held"]) for row in sessions] == [
            ("a", 2, 0, False),
            ("b", 1, 1, True),
            ("c", 2, 0, False),
            ("new", 0, 0, True),
        ]
        assert all(row["lastActivityMs"] for row in sessions)
        assert {row["stateBytes"] for row in sessions} == {None}


@in_loop
async def test_sessions_come_in_pages_in_the_order_of_their_ids_over_all_fragments() -> None:
    async with serving(QueueDescription(name="s", requires_session=True, enable_partitioning=True)) as server:
        names = ["", "ä", *(f"n{index:03}" for index in range(40))]
        await filled(server, len(names), "s", tuple(names))
        first = await told(server, "sessions?entity=s&limit=1")
        assert [row["session"] for row in first["sessions"]] == [""]
        found, after = [], first["next"]
        assert after == ""
        while after is not None:
            page = await told(server, f"sessions?entity=s&limit=9&after={quote(after)}")
            found += [row["session"] for row in page["sessions"]]
            after = page["next"]
        assert found == sorted(names)[1:]


@in_loop
async def test_a_state_shows_its_size_though_its_session_has_no_messages() -> None:
    async with serving(QueueDescription(name="s", requires_session=True)) as server:
        (source,) = (h.fragment.sources[0] for h in server.unit.namespace("ns").queues["s"].fragments if h.fragment)
        assert source.sessions is not None
        source.sessions.states["kept"] = (1, 17, 1_700_000_000_000)
        (row,) = (await told(server, "sessions?entity=s"))["sessions"]
        assert (row["session"], row["active"], row["held"], row["stateBytes"]) == ("kept", 0, False, 17)
        assert row["lastActivityMs"] == row["stateSetMs"] == 1_700_000_000_000


@in_loop
async def test_locks_of_a_subscription_name_its_messages() -> None:
    async with serving() as server:
        topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),))
        await server.unit.topics.create_topic("ns", topic)
        client = await connected(server)
        await client.send(await client.sender("t"), b"x")
        link = await client.receiver("t/subscriptions/s", credit=1)
        await received(client, link, 1)
        found = await told(server, "locks?entity=t/Subscriptions/s")
        assert (found["entity"], len(found["locks"])) == ("t/Subscriptions/s", 1)
        assert found["locks"][0]["connection"]
        assert (await ask(server, "GET", "locks?entity=t")).status == 400


@in_loop
async def test_a_right_on_the_entity_is_enough_and_listen_shows_no_locks() -> None:
    rules = (LISTENS, MANAGES)
    queues = QueueDescription(name="s", requires_session=True, authorization_rules=rules), QueueDescription(name="q")
    async with serving(*queues) as server:
        listens, manages = (token("s", rule=rule.name, key=rule.primary_key) for rule in rules)
        for path, authorization, status in (
            ("locks?entity=s", manages, 200),
            ("locks?entity=s", listens, 401),
            ("sessions?entity=s", listens, 200),
            ("sessions?entity=q", manages, 401),
            ("locks?entity=q", manages, 401),
            ("locks?entity=s", token(key="wrong"), 401),
            ("connections", manages, 401),
        ):
            assert (await ask(server, "GET", path, authorization)).status == status, path
        assert (await ask(server, "DELETE", "connections/x", manages)).status == 401


@in_loop
async def test_wrong_questions_are_refused_with_a_sentence() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="s", requires_session=True)) as server:
        for path, status, words in (
            ("locks", 400, "?entity="),
            ("locks?entity=none", 404, "could not be found"),
            ("locks?entity=q/$DeadLetterQueue", 400, "itself"),
            ("locks?entity=q&after=1", 400, "next of an earlier answer"),
            ("locks?entity=q&limit=-1", 400, "whole number"),
            ("locks?entity=q&limit=x", 400, "whole number"),
            ("sessions?entity=q", 400, "does not require sessions"),
            ("sessions?entity=$cbs", 400, "itself"),
            ("locks/more?entity=q", 405, "/$duobus/locks"),
        ):
            reply = await ask(server, "GET", path)
            assert (reply.status, words in reply.text) == (status, True), (path, reply)
        assert (await ask(server, "POST", "locks?entity=q")).status == 405


@in_loop
async def test_an_operator_closes_one_connection_and_its_client_is_told_why(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False) as server:
        client, other = await connected(server), await connected(server)
        await client.sender()
        await other.sender()
        first, second = await told(server, "connections")
        assert abs(first["openedMs"] - server.amqp.clock.now_ms()) < 60_000
        closed = await told(server, f"connections/{first['connection'].upper()}", "DELETE")
        assert closed == {name: first[name] for name in ("connection", "from", "client")}
        event = await client.wait(Closed)
        assert event.error is not None
        assert str(event.error.condition) == "amqp:connection:forced"
        assert "An operator asked the server to close this connection." in str(event.error.description)
        client.stream.drop()  # type: ignore[union-attr]
        await settled(lambda: len(server.amqp.peers) == 1)
        assert [row["connection"] for row in await told(server, "connections")] == [second["connection"]]
        reply = await ask(server, "DELETE", f"connections/{first['connection']}")
        assert (reply.status, "GET /$duobus/connections" in reply.text) == (404, True)
        (line,) = (line for line in read_audit(tmp_path / "audit") if line["kind"] == "connection")
        assert (line["operation"], line["path"], line["outcome"]) == ("delete", first["connection"], "done")
        assert line["who"] == "RootManageSharedAccessKey"
        assert line["changes"]["from"] == [first["from"], None]
