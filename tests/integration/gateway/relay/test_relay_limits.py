"""Limits of relays, each of them reached: what is refused, what is cut off, and what memory is held meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector, WSMsgType, WSServerHandshakeError

from duobus.gateway.relay import relay_use
from duobus.model.descriptions import AccessRule, Right
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.relay.limits import (
    BODY_AHEAD_BYTES,
    CHANNEL_BODY_BYTES_MAX,
    CHANNEL_UNREAD_BYTES_MAX,
    HEADERS_BYTES_MAX,
    LISTENERS_MAX,
)
from kits.gateway import RULE, in_loop, settled
from kits.http_client import token
from kits.relay import PATH, Listener, Parties, relaying

#: What the system holds of a connection on each side of the relay, at most, beside what the relay holds.
SOCKETS_BYTES = 8 << 20
LARGE = 64 << 20


def relay_in(parties: Parties) -> Any:
    return parties.server.unit.relays.find("ns", PATH)


async def joined(parties: Parties, listener: Listener) -> tuple[Any, Any]:
    """Both ends of a joined WebSocket: the sender's, and the listener's."""
    connecting = asyncio.ensure_future(parties.connect())
    _, far = await listener.accept()
    return await connecting, far


def stop_reading(socket: Any) -> None:
    socket._response.connection.protocol.pause_reading()


@in_loop
async def test_a_namespace_with_as_many_relay_connections_as_it_may_refuses_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_use, "CONNECTIONS_MAX", 2)
    async with relaying() as parties:
        listener = await parties.listen()
        near, _ = await joined(parties, listener)
        for action in ("listen", "connect"):
            status, reason = await parties.refusal(action=action)
            assert (status, "2 relay connections" in reason) == (503, True)
        answer, _ = await parties.ask("GET")
        assert (answer.status, "Via" in answer.headers) == (503, False)
        await near.close()
        room = parties.hub._rooms["ns"]
        await settled(lambda: room.connections == 1)
        await parties.listen()


@in_loop
async def test_so_many_senders_wait_at_a_relay_and_the_next_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_use, "PENDING_MAX", 3)
    async with relaying() as parties:
        listener = await parties.listen()
        waiting = [asyncio.ensure_future(parties.ask("GET")), asyncio.ensure_future(parties.connect())]
        waiting.append(asyncio.ensure_future(parties.connect()))
        for _ in waiting:
            await listener.next()
        status, reason = await parties.refusal()
        assert (status, "3 senders wait" in reason) == (503, True)
        await listener.socket.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        await settled(lambda: not parties.hub.use_of(relay_in(parties)).pending)
        assert (await parties.refusal())[0] == 404


@in_loop
async def test_a_listener_that_does_not_read_its_channel_is_taken_out_before_much_is_held() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        stop_reading(listener.socket)
        (channel,) = parties.hub.use_of(relay_in(parties)).listeners.all()
        most = 0
        asking = []
        while parties.hub.listeners_of(relay_in(parties)):
            asking.append(asyncio.ensure_future(parties.ask("POST", data=b"x" * CHANNEL_BODY_BYTES_MAX)))
            await asyncio.sleep(0)
            most = max(most, channel.end.unsent_bytes)
            assert len(asking) < (CHANNEL_UNREAD_BYTES_MAX + SOCKETS_BYTES) // CHANNEL_BODY_BYTES_MAX
            if len(asking) % 20 == 0:
                await asyncio.sleep(0.02)
        # One message more than what may be unread.
        assert most <= CHANNEL_UNREAD_BYTES_MAX + 2 * CHANNEL_BODY_BYTES_MAX
        answers = await asyncio.gather(*asking)
        assert {answer.status for answer, _ in answers} == {502}


@pytest.mark.parametrize("reader", ["listener", "sender"])
@in_loop
async def test_what_either_side_of_a_joined_websocket_does_not_read_is_held_back_at_the_other(reader: str) -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        near, far = await joined(parties, listener)
        source, target = (near, far) if reader == "listener" else (far, near)
        ends = list(parties.hub.use_of(relay_in(parties)).spliced)
        stop_reading(target)

        async def send() -> None:
            for _ in range(LARGE >> 20):
                await source.send_bytes(b"x" * (1 << 20))

        sending = asyncio.ensure_future(send())
        await settled(lambda: any(end.is_full for end in ends))
        await asyncio.sleep(0.2)
        assert not sending.done()
        # What is read at once comes on top of what may be unread.
        assert max(end.unsent_bytes for end in ends) < BODY_AHEAD_BYTES + (1 << 20)
        assert max(end.received_bytes for end in ends) < SOCKETS_BYTES + LARGE // 4
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@in_loop
async def test_a_listener_that_does_not_read_a_large_request_holds_the_sender_back() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        sent = 0

        async def body() -> Any:
            nonlocal sent
            for _ in range(LARGE >> 16):
                yield b"x" * (1 << 16)
                sent += 1 << 16

        asking = asyncio.ensure_future(parties.ask("POST", data=body()))
        _, members = await listener.next()
        socket = await listener.open(members["address"])
        await socket.receive()
        stop_reading(socket)
        (waiting,) = parties.hub.use_of(relay_in(parties)).pending
        await settled(lambda: waiting.end.is_full)
        await asyncio.sleep(0.2)
        assert waiting.end.unsent_bytes < BODY_AHEAD_BYTES + (1 << 20)
        assert sent < LARGE // 2
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@in_loop
async def test_a_sender_that_does_not_read_a_large_response_holds_the_listener_back() -> None:
    async with relaying() as parties, ClientSession(read_bufsize=1 << 12) as session:
        listener = await parties.listen()
        headers = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1")}
        asking = asyncio.ensure_future(session.get(parties.url(PATH), headers=headers))
        _, members = await listener.next()
        socket = await listener.open(members["address"])
        await socket.send_json({"response": {"requestId": members["id"], "statusCode": 200, "body": True}})
        sending = asyncio.ensure_future(socket.send_bytes(b"x" * LARGE))
        answer = await asking
        (waiting,) = parties.hub.use_of(relay_in(parties)).pending
        stream = waiting.end._receiver
        await settled(lambda: stream._is_paused)
        await asyncio.sleep(0.2)
        assert stream._size < BODY_AHEAD_BYTES + (1 << 20)
        assert waiting.end.received_bytes < SOCKETS_BYTES + LARGE // 4
        assert not sending.done()
        # Who reads after all gets everything.
        assert len(await asyncio.wait_for(answer.read(), 60)) == LARGE
        await sending


@in_loop
async def test_a_body_that_is_too_large_for_the_channel_closes_the_listener_with_1009() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        await listener.respond(members, body=b"x" * (CHANNEL_BODY_BYTES_MAX + 1))
        assert (await asking)[0].status == 502
        await asyncio.wait_for(listener.socket.receive(), 5)
        assert listener.socket.close_code == 1009


@in_loop
async def test_headers_of_64_kib_are_refused_on_both_ways_and_nobody_is_harmed() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        for headers in ({f"X-Large-{n}": "y" * 8_192 for n in range(8)}, {"X-Large": "y" * 65_536}):
            answer, _ = await parties.ask("GET", headers=headers)
            assert (answer.status in (400, 431), "Via" in answer.headers) == (True, False), answer.status
            assert (await parties.refusal(**headers))[0] in (400, 431)
        # The listener has seen none of these: what comes next is the first that it gets.
        asking = asyncio.ensure_future(parties.ask("GET", f"{PATH}/next"))
        _, members = await listener.next()
        assert members["requestTarget"] == f"/{PATH}/next"
        large = {f"X-Large-{n}": "y" * 8_192 for n in range(8)}
        await listener.respond(members, responseHeaders=large)
        answer, _ = await asking
        assert (answer.status, f"{HEADERS_BYTES_MAX} bytes" in (answer.reason or "")) == (502, True)
        asking = asyncio.ensure_future(parties.ask("GET"))
        _, members = await listener.next()
        fitting = {f"X-Fitting-{n}": "y" * 8_000 for n in range(4)}
        await listener.respond(members, responseHeaders=fitting)
        answer, _ = await asking
        assert (answer.status, {name: answer.headers[name] for name in fitting}) == (200, fitting)


@pytest.mark.parametrize(
    ("rule", "path", "status"),
    [("sender", PATH, 403), ("listener", PATH, None), ("listener", "relay/other", 401), (RULE, "relay/other", 403)],
)
@in_loop
async def test_a_listener_whose_token_is_for_something_else_or_lacks_the_right_is_refused(
    rule: str, path: str, status: int | None
) -> None:
    sender = AccessRule(name="sender", primary_key="own 1", secondary_key="own 2", rights=int(Right.SEND))
    rules = (sender, AccessRule(name="listener", primary_key="own 1", secondary_key="own 2", rights=int(Right.LISTEN)))
    async with relaying(HybridConnectionDescription(name=PATH, authorization_rules=rules)) as parties:
        key = {} if rule == RULE else {"key": "own 1"}
        signed = token(path, rule=rule, host="127.0.0.1", **key)
        if status is None:
            await parties.listen(headers={"ServiceBusAuthorization": signed})
        else:
            found, reason = await parties.refusal(action="listen", ServiceBusAuthorization=signed)
            assert (found, "TrackingId:" in reason) == (status, True)


@in_loop
async def test_a_flood_of_listeners_with_one_connection_string_is_bounded_and_leaves_the_relay_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short form of 10,000: as many handshakes at a time as this, again and again."""
    monkeypatch.setattr("duobus.gateway.relay.handshakes.TARPIT_S", 0.1)
    monkeypatch.setattr("duobus.gateway.relay.handshakes.TARPIT_MAX", 50)
    monkeypatch.setattr("duobus.gateway.relay.listeners.LISTENS_PER_S", 100)
    async with relaying() as parties, ClientSession(connector=TCPConnector(limit=0)) as session:
        headers = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1")}
        found: Counter[int] = Counter()
        late = 0

        async def listen() -> Any:
            try:
                return await session.ws_connect(parties.url(f"$hc/{PATH}?sb-hc-action=listen"), headers=headers)
            except WSServerHandshakeError as error:
                found[error.status] += 1
                return None

        flood = [asyncio.ensure_future(listen()) for _ in range(400)]
        while not all(one.done() for one in flood):
            late = max(late, parties.server.relays._handshakes._late)
            await asyncio.sleep(0.005)
        sockets = [socket for socket in await asyncio.gather(*flood) if socket is not None]
        assert len(sockets) == LISTENERS_MAX
        assert found == {503: 400 - LISTENERS_MAX}
        assert 0 < late <= 50
        assert len(parties.hub.rates) == 1
        # Senders are served meanwhile, by one of those that are there.
        asking = asyncio.ensure_future(parties.ask("GET"))
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(socket.receive()) for socket in sockets], return_when=asyncio.FIRST_COMPLETED
        )
        (message,) = [one.result() for one in done]
        assert message.type is WSMsgType.TEXT
        members = json.loads(message.data)["request"]
        relay = relay_in(parties)
        for socket in sockets:
            socket._response.close()
        assert (await asking)[0].status == 502
        assert members["requestTarget"] == f"/{PATH}"
        await settled(lambda: not parties.hub.listeners_of(relay))
        assert parties.hub._rooms["ns"].connections == 0
