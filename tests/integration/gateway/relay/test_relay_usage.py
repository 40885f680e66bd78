"""What is told of the use of relays: metered operations, numbers for pages, and who listens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from duobus.model.descriptions import AccessRule, Right
from duobus.model.metering import RELAY_KINDS, RELAY_LISTENER, RELAY_MESSAGE, RELAY_REQUEST
from duobus.model.relay.description import HybridConnectionDescription
from kits.gateway import RULE, in_loop, settled
from kits.http_client import Http, token
from kits.relay import PATH, Parties, relaying

LISTENER = AccessRule(name="reader", primary_key="see" * 9, secondary_key="saw" * 9, rights=int(Right.LISTEN))


def metered(parties: Parties) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Messages, bytes and operations by kind and key, as the records of the running minute have them."""
    records = parties.server.metering.take(0)
    assert {record.entity for record in records if record.kind in RELAY_KINDS} <= {PATH, "open/one"}
    return {
        (record.kind, record.key): (record.messages, record.bytes, record.operations)
        for record in records
        if record.kind in RELAY_KINDS
    }


async def told(parties: Parties, path: str = PATH, **headers: str) -> Any:
    http = await Http.connect(parties.server.port("http") or 0)
    return json.loads((await http.ask("GET", f"/$duobus/relays/{path}", headers=headers)).text)


@in_loop
async def test_requests_with_their_bytes_are_metered_and_counted_by_status() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        serving = asyncio.ensure_future(listener.serve(lambda members, body: b"four"))
        assert (await parties.ask("POST", data=b"three"))[0].status == 200
        assert (await parties.ask("GET"))[0].status == 200
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        # A large body goes over a rendezvous, and the body of its answer as well.
        asking = asyncio.ensure_future(parties.ask("POST", data=b"x" * 70_000))
        _, members = await listener.next()
        socket = await listener.open(members["address"])
        request = json.loads(await socket.receive_str())["request"]
        assert len(await socket.receive_bytes()) == 70_000
        await listener.respond(request, status=404, body=b"y" * 80_000, socket=socket)
        assert (await asking)[0].status == 404
        await listener.socket.close()
        await settled(lambda: not parties.hub.use_of(parties.server.unit.relays.find("ns", PATH)).listeners.all())
        assert (await parties.ask("GET"))[0].status == 502
        # What finds no listener is no use of a relay.
        assert metered(parties)[RELAY_REQUEST, RULE] == (3, 150_013, 3)
        found = await told(parties)
        assert found["requests"] == {"200": 2, "404": 1, "502": 1}
        assert (found["bytes"], found["messages"], found["listeners"]) == (150_013, 0, 0)


@in_loop
async def test_messages_of_joined_websockets_are_metered_under_the_key_of_the_sender() -> None:
    about = HybridConnectionDescription(name="open/one", requires_client_authorization=False)
    async with relaying(HybridConnectionDescription(name=PATH), about) as parties:
        for path, key in ((PATH, RULE), ("open/one", "")):
            listener = await parties.listen(path)
            headers = {} if key else {"ServiceBusAuthorization": ""}
            connecting = asyncio.ensure_future(parties.connect(path, headers=headers))
            _, far = await listener.accept()
            near = await connecting
            await near.send_str("abc")
            await far.receive()
            await far.send_bytes(b"x" * 100_000)
            await near.receive()
            assert metered(parties)[RELAY_MESSAGE, key] == (2, 100_003, 2)
            found = await told(parties, path)
            assert (found["joined"], found["messages"], found["bytes"]) == (1, 2, 100_003)


@in_loop
async def test_the_seconds_of_listeners_are_metered_each_one_that_was_begun() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        # The first second counts from the beginning, so that a listener that comes and goes is metered, too.
        assert metered(parties)[RELAY_LISTENER, RULE] == (1, 0, 1)
        relay = parties.server.unit.relays.find("ns", PATH)
        (channel,) = parties.hub.use_of(relay).listeners.all()
        channel.count_time(channel._start_ms + 3_999)
        assert metered(parties)[RELAY_LISTENER, RULE] == (3, 0, 3)
        channel.count_time(channel._start_ms + 3_999)
        await listener.socket.close()
        await settled(lambda: not parties.hub.use_of(relay).listeners.all())
        assert RELAY_LISTENER not in {kind for kind, _ in metered(parties)}


@in_loop
async def test_managers_are_told_who_listens_and_keys_to_listen_see_numbers_alone() -> None:
    rule = AccessRule(name="own", primary_key="own 1", secondary_key="own 2", rights=int(Right.LISTEN))
    about = HybridConnectionDescription(name=PATH, authorization_rules=(rule,))
    async with relaying(about) as parties:
        signed = token(PATH, rule="own", key="own 1", host="127.0.0.1")
        await parties.listen(headers={"ServiceBusAuthorization": signed})
        found = await told(parties)
        (one,) = found["listening"]
        assert one["from"].startswith("127.0.0.1:")
        assert one["rule"] == "own"
        assert one["untilMs"] > one["sinceMs"] > 0
        assert found["authorizationRules"] == [{"keyName": "own", "rights": ["Listen"]}]
        assert (await told(parties, f"{PATH}?keys=true"))["authorizationRules"][0]["primaryKey"] == "own 1"
        seen = await told(parties, f"{PATH}?keys=true", Authorization=signed)
        assert seen["listeners"] == 1
        assert not seen.keys() & {"listening", "authorizationRules"}
        # What was shown can be sent back; what nobody sets is left alone.
        http = await Http.connect(parties.server.port("http") or 0)
        body = json.dumps(found | {"userMetadata": "mine"}).encode()
        answer = await http.ask("PUT", f"/$duobus/relays/{PATH}", body=body)
        assert (answer.status, json.loads(answer.text)["userMetadata"]) == (200, "mine")


@in_loop
async def test_the_access_rules_of_a_relay_are_changed_as_those_of_a_queue_and_count_at_once() -> None:
    async with relaying() as parties:
        http = await Http.connect(parties.server.port("http") or 0)
        made = await http.ask("PUT", f"/$duobus/keys/own?entity={PATH}&rights=Listen")
        assert made.status in (200, 201), made
        key = json.loads(made.text)["primaryKey"]
        signed = token(PATH, rule="own", key=key, host="127.0.0.1")
        await parties.listen(headers={"ServiceBusAuthorization": signed})
        assert (await http.ask("POST", f"/$duobus/keys/own/rotate?entity={PATH}&which=primary")).status == 200
        assert (await parties.refusal(action="listen", ServiceBusAuthorization=signed))[0] == 401
        listed = json.loads((await http.ask("GET", "/$duobus/keys")).text)
        assert (PATH, "own") in {(one["entity"], one["name"]) for one in listed}
        assert (await http.ask("DELETE", f"/$duobus/keys/own?entity={PATH}")).status == 200
        assert (await told(parties)).get("authorizationRules") is None
