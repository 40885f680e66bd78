"""In whose name operations are counted: the access rule or the identity that allowed them."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from transaction_kit import Manager, coordinator, declare, discharge, settle, settle_plainly

from duobus.amqp import ACCEPTED
from duobus.auth.authorizer import Grant, Grants
from duobus.codec import Array, Int, Timestamp, tag_of
from duobus.gateway.amqp import meter
from duobus.gateway.amqp.meter import Meter
from duobus.model.descriptions import AccessRule, QueueDescription, Right
from duobus.model.metering import EMPTY_RECEIVE, PEEK, RECEIVE, RENEW, SEND, SETTLE, MeteringRecord
from duobus.server.composition import Server
from duobus.telemetry import metering_log
from duobus.telemetry.metering_log import Count, MeteringCounts
from kits.gateway import RULE, Client, TcpStream, in_loop, serving
from kits.http_client import Http, token

KEY = "bm90IGEgc2VjcmV0IGF0IGFsbA=="
#: The host that the audience of a put-token names.
HOST = "sb://localhost/"
DEAD = "q/$DeadLetterQueue"


def taken(server: Server) -> dict[tuple[str, str], MeteringRecord]:
    return {(record.kind, record.key): record for record in server.metering.take(0)}


@in_loop
async def test_a_connection_counts_in_the_name_of_its_login() -> None:
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        await client.send(await client.sender(), b"x")
        link = await client.receiver(credit=1)
        await client.receive(link)
        found = taken(server)
        assert {(SEND, RULE), (RECEIVE, RULE)} <= set(found)
        assert ("send", "") not in found


@in_loop
async def test_a_request_counts_in_the_name_of_the_rule_that_signed_its_token() -> None:
    rules = tuple(
        AccessRule(name=name, primary_key=KEY, secondary_key=KEY, rights=rights)
        for name, rights in (("writer", 2), ("reader", 1))
    )
    async with serving(QueueDescription(name="q", authorization_rules=rules)) as server:
        http = await Http.connect(server.port("http") or 0)
        by = {name: {"Authorization": token("q", rule=name, key=KEY)} for name in ("writer", "reader")}
        assert (await http.ask("POST", "/q/messages", b"x" * 70_000, by["writer"])).status == 201
        assert (await http.ask("DELETE", "/q/messages/head", b"", by["reader"])).status == 200
        assert (await http.ask("DELETE", "/q/messages/head?timeout=0", b"", by["reader"])).status == 204
        found = taken(server)
        assert found[SEND, "writer"].operations == 2
        assert found[RECEIVE, "reader"].operations == 2
        assert found["empty-receive", "reader"].messages == 1


def lock_tokens(server: Server) -> Array:
    """The tokens of every lock of ``q``, as a client shows them."""
    fragment = server.amqp.unit.namespace("ns").queues["q"].fragments[0].fragment
    assert fragment is not None
    tokens = [tag_of(fragment.prefix, lock) for lock in fragment.sources[0].locks]
    return Array(uuid.UUID, [uuid.UUID(bytes_le=token) for token in tokens])


async def with_dead_letters(server: Server, number: int) -> Client:
    """A client whose only right is to listen to the dead letters of ``q``, of which there are so many."""
    http = await Http.connect(server.port("http") or 0)
    items = [{"message": {"body": {"data": ["x"]}}, "reason": "r"} for _ in range(number)]
    assert (await http.ask("POST", f"/{DEAD}/$desk", json.dumps({"action": "bury", "items": items}))).status == 200
    client = Client(await TcpStream.connect(server.port("amqp") or 0))
    # Known once it is attached.
    (await client.sender()).detach()
    await client.flush()
    (peer,) = server.amqp.peers
    peer.grants.set_login(Grant((), 0, None, "login"))
    peer.grants.add(HOST + DEAD, Grant(tuple(DEAD.lower().split("/")), Right.LISTEN, None, "undertaker"))
    server.metering.take(0)
    return client


@in_loop
async def test_what_is_done_on_dead_letters_counts_in_the_name_of_the_token_for_them() -> None:
    async with serving() as server:
        client = await with_dead_letters(server, 6)
        link = await client.receiver(DEAD)
        link.grant(1)
        delivery, _ = await client.receive(link)
        assert await settle_plainly(client, delivery, ACCEPTED) == ACCEPTED
        manager = await Manager.attach(client, DEAD)
        assert (await manager.ask("peek-message", {"from-sequence-number": 1, "message-count": Int(1)}))[0] == 200
        link.grant(1)
        await client.receive(link)
        assert (await manager.ask("renew-lock", {"lock-tokens": lock_tokens(server)}))[0] == 200
        tokens = {"lock-tokens": lock_tokens(server), "disposition-status": "completed"}
        assert (await manager.ask("update-disposition", tokens))[0] == 200
        numbers = {"message-count": Int(1), "enqueued-time-utc": Timestamp(1 << 42)}
        assert (await manager.ask("batch-delete-messages", numbers))[0] == 200
        assert {(record.kind, record.entity, record.key, record.messages) for record in server.metering.take(0)} == {
            (RECEIVE, "q", "undertaker", 2),
            (SETTLE, "q", "undertaker", 3),
            (PEEK, "q", "undertaker", 1),
            (RENEW, "q", "undertaker", 1),
        }
        link.grant(10, drain=True)
        while link.drain:
            await client.pump()
        link.grant(10, drain=True)
        while link.drain:
            await client.pump()
        assert {(record.kind, record.key) for record in server.metering.take(0)} == {
            (RECEIVE, "undertaker"),
            (EMPTY_RECEIVE, "undertaker"),
        }


@in_loop
async def test_a_transaction_settles_dead_letters_in_the_name_of_the_token_for_them() -> None:
    async with serving() as server:
        client = await with_dead_letters(server, 2)
        link, receiver = await coordinator(client), await client.receiver(DEAD)
        manager = await Manager.attach(client, DEAD)
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await settle(client, txn, delivery, ACCEPTED)
        assert await discharge(client, link, txn) == ACCEPTED
        receiver.grant(1)
        await client.receive(receiver)
        txn = await declare(client, link)
        tokens = {"lock-tokens": lock_tokens(server), "disposition-status": "completed"}
        assert (await manager.ask("update-disposition", tokens, txn))[0] == 200
        assert await discharge(client, link, txn) == ACCEPTED
        records = {(record.kind, record.key, record.messages) for record in server.metering.take(0)}
        assert records == {(RECEIVE, "undertaker", 2), (SETTLE, "undertaker", 2)}


@in_loop
async def test_a_token_for_the_entity_names_what_is_done_on_its_dead_letters() -> None:
    async with serving() as server:
        client = await with_dead_letters(server, 1)
        (peer,) = server.amqp.peers
        peer.grants.add(HOST + "q", Grant(("q",), Right.LISTEN | Right.SEND, None, "owner"))
        await client.receive(await client.receiver(DEAD, credit=1))
        await client.send(await client.sender(), b"x")
        await client.receive(await client.receiver(credit=1))
        found = {(record.kind, record.key) for record in server.metering.take(0)}
        assert found == {(RECEIVE, "undertaker"), (RECEIVE, "owner"), (SEND, "owner")}


@in_loop
async def test_requests_for_dead_letters_count_in_the_name_of_the_rule_that_signed_their_token() -> None:
    rule = AccessRule(name="undertaker", primary_key=KEY, secondary_key=KEY, rights=Right.LISTEN)
    async with serving(QueueDescription(name="q", authorization_rules=(rule,))) as server:
        await with_dead_letters(server, 4)
        http = await Http.connect(server.port("http") or 0)
        by = {"Authorization": token(DEAD, rule="undertaker", key=KEY)}
        assert (await http.ask("DELETE", f"/{DEAD}/messages/head", b"", by)).status == 200
        locked = await http.ask("POST", f"/{DEAD}/messages/head", b"", by)
        assert locked.status == 201
        place = urlsplit(locked.header("Location") or "").path
        assert (await http.ask("POST", place, b"", by)).status == 200
        assert (await http.ask("DELETE", place, b"", by)).status == 200
        assert (await http.ask("POST", f"/{DEAD}/$desk", json.dumps({"action": "list"}), by)).status == 200
        records = server.metering.take(0)
        assert {record.kind for record in records} == {RECEIVE, RENEW, SETTLE, PEEK}
        assert {(record.entity, record.key) for record in records} == {("q", "undertaker")}


class RecordingCounts(MeteringCounts):
    """Keeps in order what was counted, with the names that each count was begun with."""

    def __init__(self, counted: list[tuple[Any, ...]]) -> None:
        super().__init__("s")
        self._counted = counted
        self._names: dict[int, tuple[str, str, str, str]] = {}

    def count_of(self, namespace: str, entity: str, kind: str, key: str) -> Count:
        count = super().count_of(namespace, entity, kind, key)
        self._names[id(count[0])] = namespace, entity, kind, key
        return count

    def add_to(self, count: Count, messages: int, size_bytes: int, operations: int) -> None:
        super().add_to(count, messages, size_bytes, operations)
        *names, key = self._names[id(count[0])]
        self._counted.append((*names, messages, size_bytes, operations, key))


class FakeServer:
    """As much of the admin as a meter sees."""

    def __init__(self) -> None:
        self.counted: list[tuple[Any, ...]] = []
        self.clock = SimpleNamespace(now_ms=lambda: 1_000)
        self.metering = RecordingCounts(self.counted)


class Named(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_the_key_of_a_send_gives_the_right_to_send_and_a_new_token_is_seen_at_once() -> None:
    server, grants = FakeServer(), Grants()
    grants.add(HOST + "orders", Grant(("orders",), Right.SEND, None, "writer"))
    grants.add(HOST, Grant((), Right.LISTEN, None, "reader"))
    counting = Meter(server, grants)  # type: ignore[arg-type]
    orders = Named(namespace="n", path="Orders")
    counting.count(orders, SEND, 1, 2, 3)
    counting.count(orders, PEEK, 1, 2, 3)
    grants.add(HOST + "orders", Grant(("orders",), Right.SEND, None, "second"))
    counting.count(orders, SEND, 1, 2, 3)
    assert server.counted == [
        ("n", "Orders", "send", 1, 2, 3, "writer"),
        ("n", "Orders", "peek", 1, 2, 3, "reader"),
        ("n", "Orders", "send", 1, 2, 3, "second"),
    ]


def test_the_key_of_what_is_counted_is_looked_up_once_until_another_token_comes() -> None:
    asked: list[Right] = []

    def who(segments: tuple[str, ...], right: Right, now_ms: int) -> str:
        asked.append(right)
        return "writer"

    grants = SimpleNamespace(changes=0, who=who)
    counting = Meter(FakeServer(), grants)  # type: ignore[arg-type]
    orders = Named(namespace="n", path="q")
    for _ in range(3):
        counting.count(orders, SEND, 1, 2, 3)
    assert asked == [Right.SEND]
    grants.changes += 1
    counting.count(orders, SEND, 1, 2, 3)
    assert asked == [Right.SEND] * 2


def test_what_is_counted_after_a_minute_is_in_the_next_one() -> None:
    server, grants = FakeServer(), Grants()
    grants.set_login(Grant((), Right.SEND, None, "writer"))
    counting = Meter(server, grants)  # type: ignore[arg-type]
    orders = Named(namespace="n", path="q")
    for number in range(1, 4):
        for _ in range(number):
            counting.count(orders, SEND, 1, 2, 3)
        records = server.metering.take(0)
        assert [(record.key, record.messages, record.bytes) for record in records] == [("writer", number, 2 * number)]
    assert server.metering.totals == {("n", "q", SEND): [6, 12, 18]}


def test_a_connection_that_lives_long_remembers_only_so_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "KEYS_MAX", 3)
    server, grants = FakeServer(), Grants()
    grants.set_login(Grant((), Right.SEND, None, "writer"))
    counting = Meter(server, grants)  # type: ignore[arg-type]
    for number in range(10):
        counting.count(Named(namespace="n", path=f"q{number}"), SEND, 1, 1, 1)
        assert len(counting._counts) <= 4
    assert {counted[-1] for counted in server.counted} == {"writer"}


def test_names_beyond_the_limit_are_counted_without_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_log, "COUNTS_MAX", 2)
    counts = MeteringCounts("s")
    for number in range(5):
        counts.add("n", "q", SEND, 1, 1, 1, f"identity-{number}")
    counts.add("n", "q", SEND, 1, 1, 1, "identity-1")
    assert [(record.key, record.operations) for record in counts.take(0)] == [
        ("identity-0", 1),
        ("identity-1", 2),
        ("", 3),
    ]


def test_what_is_done_in_a_share_of_a_queue_is_counted_for_the_queue() -> None:
    server = FakeServer()
    counting = Meter(server, Grants())  # type: ignore[arg-type]
    for path in ("a/b/q/~share/2", "a/b/q", "q/~share/1"):
        counting.count(Named(namespace="n", path=path), SEND, 1, 2, 3)
    assert [counted[1] for counted in server.counted] == ["a/b/q", "a/b/q", "q"]
