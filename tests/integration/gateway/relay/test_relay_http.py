"""HTTP through the relay: small and large bodies both ways, and whose answer an answer is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientPayloadError, WSMsgType
from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError

from duobus.cli.remote import Remote
from duobus.model.descriptions import QueueDescription
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.relay.headers import has_via
from duobus.server.settings import EMULATOR_KEY
from kits.gateway import RULE, in_loop
from kits.http_client import token
from kits.relay import PATH, relaying


@in_loop
async def test_a_small_request_and_its_response_go_over_the_control_channel() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(
            parties.ask("POST", f"{PATH}/api/x?a=%2f1&sb-hc-token=&b", data=b"question", headers={"X-Case": "kept"})
        )
        kind, members = await listener.next()
        assert kind == "request"
        assert (members["method"], members["body"]) == ("POST", True)
        assert members["requestTarget"] == f"/{PATH}/api/x?a=%2f1&b"
        headers = members["requestHeaders"]
        assert headers["X-Case"] == "kept"
        assert headers["Via"] == f"1.1 {parties.host}"
        assert not {name.lower() for name in headers} & {"host", "content-length", "servicebusauthorization"}
        assert await listener.body() == b"question"
        await listener.respond(
            members, "201", b"answer", statusDescription="Made", responseHeaders={"x-own": "1", "Connection": "close"}
        )
        answer, body = await asking
        assert (answer.status, answer.reason, body) == (201, "Made", b"answer")
        assert answer.headers["x-own"] == "1"
        assert has_via(answer.headers, parties.host)


@pytest.mark.parametrize("is_chunked", [True, False])
@in_loop
async def test_a_large_body_and_one_of_unknown_size_take_a_rendezvous(is_chunked: bool) -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        data = bytes(range(256)) * 4000

        async def parts() -> AsyncIterator[bytes]:
            for pos in range(0, len(data), 10_000):
                yield data[pos : pos + 10_000]

        asking = asyncio.ensure_future(parties.ask("PUT", data=parts() if is_chunked else data))
        kind, members = await listener.next()
        assert (kind, list(members)) == ("request", ["address"])
        socket = await listener.open(members["address"])
        request = (await socket.receive_json())["request"]
        assert (request["method"], request["body"]) == ("PUT", True)
        assert await socket.receive_bytes() == data
        await listener.respond(request, body=data[::-1], socket=socket)
        answer, body = await asking
        assert (answer.status, body) == (200, data[::-1])
        assert has_via(answer.headers, parties.host)
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1000


@in_loop
async def test_a_large_response_to_a_small_request_takes_a_rendezvous_too() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        socket = await listener.open(members["address"])
        await listener.respond(members, body=b"z" * 3_000_000, socket=socket)
        answer, body = await asking
        assert (answer.status, len(body)) == (200, 3_000_000)


@in_loop
async def test_an_empty_message_behind_a_response_without_a_body_is_swallowed() -> None:
    """hyco-https sends one after 204 and after HEAD."""
    async with relaying() as parties:
        listener = await parties.listen()
        for method, status in (("GET", 204), ("HEAD", 200), ("GET", 200)):
            asking = asyncio.ensure_future(parties.ask(method))
            _, members = await listener.next()
            await listener.respond(members, status, None)
            await listener.socket.send_bytes(b"")
            answer, body = await asking
            assert (answer.status, body) == (status, b"")


@pytest.mark.parametrize(("status", "told"), [(502, 500), (504, 500), (503, 503), (404, 404), (500, 500)])
@in_loop
async def test_an_error_of_the_application_has_via_and_is_never_502_or_504(status: int, told: int) -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        await listener.respond(members, status)
        answer, _ = await asking
        assert answer.status == told
        assert has_via(answer.headers, parties.host)


@in_loop
async def test_errors_of_the_relay_have_no_via() -> None:
    async with relaying() as parties:
        parties.hub.response_s = 0.05
        found = [await parties.ask("GET")]
        listener = await parties.listen()
        found.append(await parties.ask("GET"))
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, old = await listener.next()
        _, members = await listener.next()
        assert old["id"] != members["id"]
        await listener.respond(members, "nonsense", None)
        found.append(await asking)
        found.append(await parties.ask("GET", headers={"ServiceBusAuthorization": "x"}))
        found.append(await parties.ask("GET", headers={"X-Large": "y" * 16_000, "X-Larger": "y" * 16_800}))
        assert [answer.status for answer, _ in found] == [502, 504, 502, 401, 431]
        for answer, body in found:
            assert "Via" not in answer.headers
            assert b"TrackingId:" in body


@in_loop
async def test_a_listener_that_leaves_two_requests_unanswered_is_cut_off() -> None:
    async with relaying() as parties:
        parties.hub.response_s = 0.05
        listener = await parties.listen()
        assert [(await parties.ask("GET"))[0].status for _ in range(3)] == [504, 504, 502]
        assert parties.hub.listeners_of(parties.server.unit.relays.find("ns", PATH)) == 0
        while not listener.socket.closed:
            await asyncio.wait_for(listener.socket.receive(), 5)


@in_loop
async def test_a_request_whose_listener_goes_gets_502_at_once() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        await listener.next()
        await listener.socket.close()
        assert (await asyncio.wait_for(asking, 5))[0].status == 502


@in_loop
async def test_a_queue_below_a_relay_stays_a_queue_and_a_relay_named_like_messages_is_no_queue() -> None:
    async with relaying(HybridConnectionDescription(name="r")) as parties:
        await parties.server.unit.create_queue("ns", QueueDescription(name="r/q"))
        listener = await parties.listen("r")
        everything = token(host="127.0.0.1")
        sent, _ = await parties.ask("POST", "r/q/messages", data=b"m", headers={"Authorization": everything})
        assert (sent.status, "Via" in sent.headers) == (201, False)
        asking = asyncio.ensure_future(
            parties.ask("POST", "r/messages", data=b"m", headers={"ServiceBusAuthorization": everything})
        )
        _, members = await listener.next()
        assert await listener.body() == b"m"
        await listener.respond(members)
        answer, _ = await asking
        assert (answer.status, has_via(answer.headers, parties.host)) == (200, True)


@in_loop
async def test_a_response_that_breaks_off_ends_the_connection_of_the_sender() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        socket = await listener.open(members["address"])
        await socket.send_json({"response": {"requestId": members["id"], "statusCode": 200, "body": True}})
        await socket.close()
        with pytest.raises(ClientPayloadError):
            await asyncio.wait_for(asking, 5)


@in_loop
async def test_a_rendezvous_that_is_closed_before_the_response_is_an_error_of_the_relay() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        await (await listener.open(members["address"])).close()
        answer, _ = await asyncio.wait_for(asking, 5)
        assert (answer.status, "Via" in answer.headers) == (502, False)


@in_loop
async def test_a_sender_whose_body_does_not_come_is_told_so_and_no_listener_is_blamed() -> None:
    async with relaying() as parties:
        parties.hub.response_s = 0.05
        await parties.listen()

        async def nothing() -> AsyncIterator[bytes]:
            yield b"h"
            await asyncio.sleep(5)

        answer, _ = await parties.ask("POST", data=nothing(), headers={"Content-Length": "5"})
        assert (answer.status, "Via" in answer.headers) == (408, False)


@in_loop
async def test_a_management_client_asks_about_queues_under_the_name_of_a_relay_and_the_service_hears_nothing() -> None:
    async with relaying(HybridConnectionDescription(name="r")) as parties:
        listener = await parties.listen("r")

        def manage() -> list[Any]:
            text = f"Endpoint=sb://localhost:{parties.server.port('http')};SharedAccessKeyName={RULE};"
            remote = Remote(f"{text}SharedAccessKey={EMULATOR_KEY};UseDevelopmentEmulator=true", None, None)
            found: list[Any] = []
            with remote.administration("queue") as client:
                for ask in (client.get_queue, client.create_queue, client.delete_queue):
                    try:
                        ask("r")
                    except AzureError as error:
                        found.append(type(error))
                # A queue may lie below a relay, and is a queue from then on.
                client.create_queue("r/q")
                found.append([queue.name for queue in client.list_queues()])
            return found

        found = await asyncio.to_thread(manage)
        assert found == [ResourceNotFoundError, ResourceExistsError, ResourceNotFoundError, ["q", "r/q"]]
        # A service of Atom is reached by the token of relays.
        headers = {"Accept": "application/atom+xml", "Authorization": token(host="127.0.0.1", key="of the service")}
        asking = asyncio.ensure_future(
            parties.ask(
                "GET",
                "r/entries?api-version=1",
                headers=headers | {"ServiceBusAuthorization": token("r", host="127.0.0.1")},
            )
        )
        _, members = await listener.next()
        assert members["requestTarget"] == "/r/entries?api-version=1"
        await listener.respond(members)
        assert (await asking)[0].status == 200
