"""Relays in the console: the list, one relay with its listeners, and the forms, for each right."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession

from duobus.console.screens import relays as screen
from duobus.model.descriptions import QueueDescription
from duobus.model.relay.description import HybridConnectionDescription
from kits.console import RULES, ConsoleClient, console, stream_of
from kits.gateway import in_loop
from kits.http_client import token
from kits.relay import Listener, Parties


@asynccontextmanager
async def opened(*relays: str, right: str = "manage") -> AsyncIterator[ConsoleClient]:
    """A console for a server with these relays."""
    async with console(QueueDescription(name="orders"), right=right) as client:
        for name in relays:
            client.server.unit.relays.create("ns", HybridConnectionDescription(name=name))
        yield client


@asynccontextmanager
async def listening(client: ConsoleClient, path: str) -> AsyncIterator[tuple[Parties, Listener]]:
    """A listener of one of them, and what connects to it."""
    async with ClientSession() as session:
        parties = Parties(client.server, session)
        try:
            yield parties, await parties.listen(path)
        finally:
            for socket in parties.sockets:
                socket._response.close()


async def served(parties: Parties, listener: Listener, path: str, status: int) -> None:
    """One request, answered with a status."""
    asking = asyncio.ensure_future(
        parties.ask("POST", path, data=b"12345", headers={"ServiceBusAuthorization": token(path, host="127.0.0.1")})
    )
    _, members = await listener.next()
    await listener.body()
    await listener.respond(members, status, body=b"x" * 1019)
    assert (await asking)[0].status == status


@in_loop
async def test_the_list_has_every_relay_with_its_numbers_and_can_be_searched() -> None:
    async with opened("eu/api", "us/api", "idle") as client, listening(client, "eu/api") as (parties, listener):
        await served(parties, listener, "eu/api", 200)
        await served(parties, listener, "eu/api", 500)
        page = await client.get("/relays")
        assert "3 relays" in page.words
        assert re.search(r"eu/api WebSocket and HTTP Active 1 0 0 2 · 1 failed 0 2\.0 KiB", page.words), page
        data = await client.data("/relays")
        assert [one["name"] for one in data["relays"]] == ["eu/api", "idle", "us/api"]
        assert data["relays"][0]["requests"] == [[200, 1], [500, 1]]
        assert data["totals"] == {"listeners": 1, "joined": 0, "waiting": 0, "bytes": 2048}
        found = await client.get("/relays?q=API+us")
        assert "1 of 3 relay" in found.words
        assert "No relay matches" in (await client.get("/relays?q=nothing")).words
        assert "Relays" in (await client.get("/")).words


@in_loop
async def test_one_relay_shows_who_listens_since_when_and_until_when_and_how_requests_ended() -> None:
    async with opened("eu/api") as client, listening(client, "eu/api") as (parties, listener):
        await served(parties, listener, "eu/api", 404)
        data = await client.data("/relay/eu/api")
        (one,) = data["listening"]
        assert one["rule"] == RULES["manage"][0]
        page = await client.get("/relay/eu/api")
        for text in (one["from"], one["trackingId"], f'data-since="{one["sinceMs"]}"', f'data-until="{one["until"]}"'):
            assert text in page.text
        assert "Requests by status" in page.words
        assert "404 1" in page.words
        assert (await client.get("/relay/missing")).status == 404


@in_loop
async def test_an_open_page_is_told_of_a_listener_that_comes_and_goes(monkeypatch: Any) -> None:
    monkeypatch.setattr(screen, "_LOOK_S", 0.02)
    async with opened("eu/api") as client:
        for path, before, after in (
            ("/relays/events", "eu/api", ">1<"),
            ("/relay-events/eu/api", "Nobody listens", "127.0.0.1:"),
        ):
            async with stream_of(client, path) as stream, asyncio.timeout(20):
                assert before in (await anext(stream))["html"]
                async with listening(client, "eu/api"):
                    assert after in (await anext(stream))["html"]
        async with stream_of(client, "/relay-events/eu/api") as stream, asyncio.timeout(20):
            await anext(stream)
            client.server.unit.relays.delete("ns", "eu/api")
            # The page is told so, and the stream ends.
            assert "There is no relay eu/api." in [data.get("text") async for data in stream]


@in_loop
async def test_a_relay_is_made_copied_changed_disabled_and_deleted() -> None:
    async with opened() as client:
        assert "There is no relay yet" in (await client.get("/relays")).words
        empty = await client.post("/create/relay", {"name": ""})
        assert (empty.status, "A name is needed." in empty.words) == (422, True)
        fields = {"name": "new/one", "senders": "http", "requiresClientAuthorization": "false", "userMetadata": "mine"}
        made = await client.post("/create/relay", fields)
        assert (made.status, made.headers["Location"]) == (303, "/relay/new/one")
        relay = client.server.unit.relays.find("ns", "new/one")
        about = relay.description
        assert (about.senders, about.requires_client_authorization, about.user_metadata) == ("http", False, "mine")
        again = await client.post("/create/relay", fields)
        assert (again.status, "exists already" in again.words) == (422, True)
        assert 'value="new/one-copy"' in (await client.get("/create/relay?copy=new/one")).text
        form = await client.get("/edit-relay/new/one")
        assert 'value="mine"' in form.text
        shown = (await client.data("/edit-relay/new/one"))["shown"]
        changed = await client.post(
            "/edit-relay/new/one", {"shown": shown, "senders": "any", "userMetadata": "", "status": "Active"}
        )
        assert changed.status == 303, changed
        assert (relay.description.senders, relay.description.user_metadata) == ("any", None)
        assert relay.description.requires_client_authorization is False
        # Somebody else has changed the relay since the form was shown.
        old = await client.post("/edit-relay/new/one", {"shown": shown, "senders": "websocket", "status": "Active"})
        assert (old.status, "Somebody else has changed this relay" in old.words) == (409, True)
        assert relay.description.senders == "any"
        assert (await client.post("/relay/new/one/status", {"status": "Disabled"})).status == 303
        assert not relay.is_active
        assert (await client.post("/relay/new/one/delete", {"confirm": "new"})).status == 422
        assert (await client.post("/relay/new/one/delete", {"confirm": "new/one"})).status == 303
        assert not client.server.unit.namespace("ns").relays


@in_loop
async def test_the_access_rules_of_a_relay_are_on_its_page() -> None:
    async with opened("eu/api") as client:
        assert "no access rules of its own" in (await client.get("/relay/eu/api?tab=access")).words
        fields = {"entity": "eu/api", "page": "relay", "name": "reader", "rights": "Listen"}
        added = await client.post("/access/add", fields)
        assert (added.status, added.headers["Location"]) == (303, "/relay/eu/api?tab=access")
        (rule,) = client.server.unit.relays.find("ns", "eu/api").description.authorization_rules
        page = await client.get("/relay/eu/api?tab=access")
        assert "reader" in page.words
        assert rule.primary_key not in page.text
        shown = await client.post("/relay/eu/api/access-rules/reader/show")
        assert rule.primary_key in shown.text
        assert "EntityPath=eu/api" in shown.text
        removed = await client.post("/access/reader/delete", {"entity": "eu/api", "page": "relay", "confirm": "reader"})
        assert removed.status == 303
        assert not client.server.unit.relays.find("ns", "eu/api").description.authorization_rules


@in_loop
async def test_a_key_to_listen_sees_numbers_and_no_form_and_a_key_to_send_sees_nothing() -> None:
    async with opened("eu/api", right="listen") as client, listening(client, "eu/api"):
        page = await client.get("/relays")
        assert (page.status, "Create a relay" in page.words) == (200, False)
        one = await client.get("/relay/eu/api?tab=access")
        assert "Listeners 1" in one.words
        assert not [
            word for word in ("Edit", "Delete", "Disable", "Tracking id", "Add an access rule") if word in one.words
        ]
        assert (
            json.loads((await client.ask("GET", "/relay/eu/api", headers={"Accept": "application/json"})).text)[
                "listening"
            ]
            is None
        )
        for path in ("/create/relay", "/edit-relay/eu/api"):
            assert (await client.get(path)).status == 403
        assert (await client.post("/relay/eu/api/delete", {"confirm": "eu/api"})).status == 403
    async with opened("eu/api", right="send") as client:
        assert (await client.get("/relays")).status == 403
        assert 'href="/relays"' not in (await client.get("/")).text
