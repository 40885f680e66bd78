"""In whose name operations are counted (design 3.13): the access rule or the identity that allowed them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gateway_kit import RULE, Client, TcpStream, in_loop, serving
from http_kit import Http, token

from duobus.auth.authorizer import Grant, Grants
from duobus.gateway.amqp import meter
from duobus.gateway.amqp.meter import Meter
from duobus.model.description import AccessRule, QueueDescription, Right
from duobus.model.metering import PEEK, RECEIVE, SEND, MeteringRecord
from duobus.server.build import Server
from duobus.telemetry import metering_log
from duobus.telemetry.metering_log import MeteringCounts

KEY = "bm90IGEgc2VjcmV0IGF0IGFsbA=="
#: The host that the audience of a put-token names.
HOST = "sb://localhost/"


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


class Door:
    """As much of the door as a meter sees."""

    def __init__(self) -> None:
        self.counted: list[tuple[Any, ...]] = []
        self.clock = SimpleNamespace(now_ms=lambda: 1_000)

    def meter(self, *counted: Any) -> None:
        self.counted.append(counted)


class Named(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_the_key_of_a_send_gives_the_right_to_send_and_a_new_token_is_seen_at_once() -> None:
    door, grants = Door(), Grants()
    grants.add(HOST + "orders", Grant(("orders",), Right.SEND, None, "writer"))
    grants.add(HOST, Grant((), Right.LISTEN, None, "reader"))
    counting = Meter(door, grants)  # type: ignore[arg-type]
    orders = Named(namespace="n", path="Orders")
    counting.count(orders, SEND, 1, 2, 3)
    counting.count(orders, PEEK, 1, 2, 3)
    grants.add(HOST + "orders", Grant(("orders",), Right.SEND, None, "second"))
    counting.count(orders, SEND, 1, 2, 3)
    assert door.counted == [
        ("n", "Orders", "send", 1, 2, 3, "writer"),
        ("n", "Orders", "peek", 1, 2, 3, "reader"),
        ("n", "Orders", "send", 1, 2, 3, "second"),
    ]


def test_a_connection_that_lives_long_remembers_only_so_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "KEYS_MAX", 3)
    door, grants = Door(), Grants()
    grants.set_login(Grant((), Right.SEND, None, "writer"))
    counting = Meter(door, grants)  # type: ignore[arg-type]
    for number in range(10):
        counting.count(Named(namespace="n", path=f"q{number}"), SEND, 1, 1, 1)
        assert len(counting._keys) <= 4
    assert {counted[-1] for counted in door.counted} == {"writer"}


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
