"""Our listeners, senders and pairs against the relays of real servers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from integration.relay.test_relay_clients import First, asynchronous, echo, echo_connection, until
from integration.relay.test_relay_services import digest

from duobus.model.relay.description import HybridConnectionDescription
from duobus.relay import ListenerRejected, RelayEndpoint, RelayRefused, RelayRequest, RelayResponse
from duobus.relay.aio import (
    PairListener,
    PendingConnection,
    RelayListener,
    RelayPair,
    RelaySender,
    connect,
    request,
)
from duobus.relay.events import Event, RelayRolesSwapped
from duobus.relay.tunnel import LocalPort, expose
from kits.relay import Parties, relaying


def endpoint_of(parties: Parties, path: str = "relay/one", key: str = "SAS_KEY_VALUE") -> RelayEndpoint:
    return RelayEndpoint(parties.host, path, "RootManageSharedAccessKey", key, is_secure=False)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
@asynchronous
async def test_bodies_of_all_sizes_come_back_unaltered(size: int) -> None:
    body = random.Random(size).randbytes(size)
    async with relaying() as parties, RelayListener(endpoint_of(parties), echo) as listener:
        await listener.wait_online()
        answer = await request(endpoint_of(parties), "PUT", "a%20b", query="x=1", body=body)
        assert (answer.status, answer.body == body) == (200, True)
        assert (answer.header("x-path"), answer.header("x-query")) == ("/a%20b", "x=1")


@asynchronous
async def test_a_websocket_carries_messages_and_closes() -> None:
    async with (
        relaying() as parties,
        RelayListener(endpoint_of(parties), on_connection=echo_connection) as listener,
    ):
        await listener.wait_online()
        connection = await connect(endpoint_of(parties), "room", protocols=["p1"])
        assert connection.protocol == "p1"
        for message in ("grüße", b"\x00" * 1_000_000, "", b""):
            await connection.send(message)
            assert await connection.receive() == message
        await connection.close()


@asynchronous
async def test_a_listener_that_rejects_is_no_refusal_of_the_relay() -> None:
    async def reject(pending: PendingConnection) -> None:
        await pending.reject(404, "no such room")

    async with relaying() as parties, RelayListener(endpoint_of(parties), on_connection=reject) as listener:
        await listener.wait_online()
        with pytest.raises(ListenerRejected, match="no such room"):
            await connect(endpoint_of(parties))


@asynchronous
async def test_what_the_relay_refuses_is_told_and_what_precedes_delivery_is_known() -> None:
    async with relaying() as parties:
        for attempt, status in (
            (request(endpoint_of(parties), "GET"), 502),
            (connect(endpoint_of(parties)), 404),
        ):
            with pytest.raises(RelayRefused, match="no listener") as caught:
                await attempt
            assert (caught.value.status, caught.value.precedes_delivery) == (status, True)
        with pytest.raises(RelayRefused) as caught:
            await request(endpoint_of(parties, key="wrong"), "GET")
        assert caught.value.status == 401
        async with RelayListener(endpoint_of(parties, "other")) as listener:
            with pytest.raises(RelayRefused) as caught:
                await listener.wait_online()
            assert caught.value.status == 404


@asynchronous
async def test_a_tunnel_carries_bytes_unaltered_with_an_end_of_each_direction() -> None:
    async with relaying() as parties:
        server = await asyncio.start_server(digest, "127.0.0.1", 0)
        told: list[Any] = []
        local = LocalPort("127.0.0.1", server.sockets[0].getsockname()[1], lambda *words: told.append(words))
        async with (
            RelayListener(
                endpoint_of(parties), on_stream=local.on_stream, on_connection=local.on_connection
            ) as listener,
            RelaySender(endpoint_of(parties)) as sender,
        ):
            await listener.wait_online()
            exposed = await expose("127.0.0.1", 0, sender.connect, lambda *words: told.append(words))
            content = random.Random(5).randbytes(3_000_000)
            reader, writer = await asyncio.open_connection(*exposed.sockets[0].getsockname())
            writer.write(content)
            writer.write_eof()
            answer = await reader.read()
            assert answer[64:] == content
            writer.close()
            exposed.close()
        server.close()
        await local.close()
        assert told == []


@asynchronous
async def test_a_pair_goes_to_the_other_server_and_an_answer_of_the_service_changes_nothing() -> None:
    executed: list[str | None] = []

    async def serve(asked: RelayRequest) -> RelayResponse:
        executed.append(asked.request_id)
        return RelayResponse(int(asked.query or 200), body=asked.path.encode())

    events: list[Event] = []
    two_path = HybridConnectionDescription(name="second")
    async with relaying() as one, relaying(two_path) as two:
        endpoints = [endpoint_of(one), endpoint_of(two, "second")]
        async with (
            PairListener(endpoints, serve, echo_connection) as listener,
            RelayPair(endpoints, entropy=First(), on_event=events.append) as pair,
        ):
            for each in listener.listeners:
                await each.wait_online()
            for status in (200, 400, 404, 410, 500, 503):
                assert (await pair.request("POST", "x", query=str(status))).status == status
            assert (pair.active, events) == (endpoints[0].name, [])
            await listener.listeners[0].close()
            answer = await pair.request("POST", "x")
            assert (answer.endpoint, answer.text) == (endpoints[1].name, "/x")
            async with await pair.connect() as connection:
                await connection.send("x")
                assert await connection.receive() == "x"
            assert len(executed) == len(set(executed)) == 7
            assert sum(isinstance(event, RelayRolesSwapped) for event in events) == 1
            await until(lambda: pair.active == endpoints[1].name)
