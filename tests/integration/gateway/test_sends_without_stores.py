"""What clients hear of messages that were under way when every store failed, and none comes back (I38)."""

from __future__ import annotations

from typing import NoReturn

import pytest

from duobus.amqp import Rejected
from duobus.broker import scale_unit
from duobus.errors import StoreFailed
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving
from kits.http_client import Http

PARTED = QueueDescription(name="p", enable_partitioning=True)


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_unit, "REFUSAL_S", 0.05)


def lose_all(server: Server) -> None:
    """Let every store fail at its next commit, and stay away."""

    def fails(*_: object) -> NoReturn:
        raise StoreFailed("planted")

    for broker in server.unit.brokers.values():
        broker.store.commit = fails  # type: ignore[method-assign]
        broker.store.open = fails  # type: ignore[method-assign]


@in_loop
async def test_an_amqp_sender_is_told_that_nobody_knows_and_the_next_one_that_the_stores_are_away() -> None:
    async with serving(PARTED, stores=4) as server:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        link = await client.sender("p")
        lose_all(server)
        outcomes = [await client.send(link, b"under way"), await client.send(link, b"later")]
        conditions = [outcome.error.condition for outcome in outcomes if isinstance(outcome, Rejected)]
        assert conditions == ["com.microsoft:timeout", "com.microsoft:server-busy"]


@in_loop
async def test_an_http_sender_is_told_that_nobody_knows_and_the_next_one_that_the_stores_are_away() -> None:
    async with serving(PARTED, stores=4) as server:
        http = await Http.connect(server.port("http") or 0)
        lose_all(server)
        under_way = await http.ask("POST", "/p/messages", b"x")
        assert (under_way.status, "none can tell yet" in under_way.text) == (500, True)
        assert (await http.ask("POST", "/p/messages", b"x")).status == 503


@in_loop
async def test_a_batch_over_http_is_answered_as_one_message_is() -> None:
    async with serving(PARTED, stores=4) as server:
        http = await Http.connect(server.port("http") or 0)
        lose_all(server)
        kind = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
        answer = await http.ask("POST", "/p/messages", '[{"Body":"a"},{"Body":"b"}]', kind)
        assert (answer.status, "none can tell yet" in answer.text) == (500, True)
