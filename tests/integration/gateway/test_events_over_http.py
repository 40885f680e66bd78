"""``/$duobus/events``: what happens is told to those who listen, bounded, and only as long as they may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from test_overview import WATCHER, ask, connected, watched

from duobus.clock import Clock
from duobus.gateway.rest.operations import event_endpoint
from duobus.server.composition import Server
from duobus.server.operations import events
from duobus.server.operations.events import LISTENERS_MAX, WAITING_MAX, EventFeed
from kits.gateway import in_loop, serving, settled
from kits.http_client import Http, entry, token


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[ClientResponse]:
    address = f"http://127.0.0.1:{server.port('http')}/$duobus/events"
    headers = {"Authorization": token(), "Host": "localhost"}
    async with ClientSession() as session, session.get(address, headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert (await event(response))[0] == "ready"
        yield response


async def event(response: ClientResponse) -> tuple[str, Any]:
    """The next event; comments are passed over."""
    name = ""
    while True:
        line = (await response.content.readline()).decode()
        if not line:
            return "", None
        if line.startswith("event: "):
            name = line[7:].strip()
        if line.startswith("data: "):
            return name, json.loads(line[6:])


async def event_named(response: ClientResponse, name: str) -> Any:
    while True:
        found, about = await event(response)
        assert found, f"the stream ended without {name}"
        if found == name:
            return about


@in_loop
async def test_changes_stores_connections_and_errors_are_told() -> None:
    async with serving(allow_drills=True) as server:
        async with listening(server) as response:
            http = await Http.connect(server.port("http") or 0)
            assert (await http.ask("PUT", "/made", entry())).status == 201
            told = await event_named(response, "change")
            assert {name: told[name] for name in ("operation", "kind", "path", "outcome")} == {
                "operation": "create",
                "kind": "queue",
                "path": "made",
                "outcome": "done",
            }
            client = await connected(server)
            await client.sender()
            about = await event_named(response, "connections")
            assert (about["opened"], about["closed"], about["now"]) == (1, 0, 1)
            server.amqp.errors["amqp:not-found"] = 3
            assert (await event_named(response, "errors"))["sent"] == {"amqp:not-found": 3}
            assert (await http.ask("POST", "/$duobus/stores/1/fail")).status == 200
            assert (await event_named(response, "change"))["path"] == "1/fail"
            await client.send(await client.sender(), b"x")
            told = await event_named(response, "store")
            assert (told["store"], told["what"]) == (1, "failed")
            assert (await http.ask("POST", "/$duobus/stores/1/heal")).status == 200
        await settled(lambda: not server._events._listeners)
        assert server._events._task is None


@in_loop
async def test_only_those_who_may_manage_listen_and_a_stream_ends_with_the_server() -> None:
    async with watched() as server:
        assert (await ask(server, "events", WATCHER)).status == 401
        async with listening(server) as response:
            server._events.close()
            assert await event(response) == ("", None)
        assert (await ask(server, "events")).status == 503


def test_a_stream_ends_when_its_token_is_not_good_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_endpoint, "HEARTBEAT_S", 0.05)

    @in_loop
    async def scenario() -> None:
        async with watched() as server, listening(server) as response:
            while await response.content.readline() != b": alive\n":
                pass
            rules = server._authorizer.namespace_of("localhost").rules
            rules.clear()
            assert "reason" in await event_named(response, "end")
            assert await event(response) == ("", None)

    scenario()


@in_loop
async def test_a_slow_listener_is_told_how_many_events_it_has_missed() -> None:
    feed = EventFeed(Clock())
    listener = feed.listen("ns")
    for number in range(WAITING_MAX + 20):
        feed.tell("change", "NS", number=number, text="x" * 1_000)
    feed.tell("change", "other", number=-1)
    found = await listener.take(1)
    assert found is not None
    # The first of those that went was the greeting.
    assert found[0] == ("dropped", {"number": 21})
    assert [about["number"] for _, about in found[1:]] == list(range(20, WAITING_MAX + 20))
    assert len(found[1][1]["text"]) == events.TEXT_LENGTH_MAX
    assert await listener.take(0) == []
    feed.close()
    assert await listener.take(1) is None
    feed.leave(listener)


@in_loop
async def test_there_are_only_so_many_listeners_and_nothing_runs_without_any() -> None:
    async with watched() as server:
        feed = server._events
        feed.tell("change", "ns", number=1)
        listeners = [feed.listen("ns") for _ in range(LISTENERS_MAX)]
        reply = await ask(server, "events")
        assert (reply.status, "Try again later" in reply.text) == (503, True)
        for listener in listeners:
            feed.leave(listener)
        assert feed._task is None
        await asyncio.sleep(0)
