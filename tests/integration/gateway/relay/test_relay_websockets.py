"""WebSockets through the relay: joined, rejected, refused, closed, and what each side is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError

from duobus.gateway.relay.listeners import Vigil
from duobus.model.descriptions import AccessRule
from duobus.model.relay.addresses import rejected
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.relay.limits import PING_S
from kits.gateway import in_loop, settled
from kits.http_client import token
from kits.relay import PATH, Listener, Parties, relaying

ENTITY_RULE = AccessRule(name="own", primary_key="own 1", secondary_key="own 2", rights=1)


async def _joined(parties: Parties, listener: Listener, **options: Any) -> tuple[dict[str, Any], Any, Any]:
    connecting = asyncio.ensure_future(parties.connect(**options))
    members, far = await listener.accept()
    return members, far, await connecting


@in_loop
async def test_a_sender_and_a_listener_are_joined_and_see_each_others_messages() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        members, far, near = await _joined(parties, listener, path=f"{PATH}/more%20here", query="&x=%2f1")
        assert members["address"].startswith(
            f"ws://{parties.host}/$hc/{PATH}/more%20here?sb-hc-action=accept&sb-hc-id="
        )
        assert members["address"].endswith("&x=%2f1")
        assert members["remoteEndpoint"]["address"] == "127.0.0.1"
        headers = {name.lower(): value for name, value in members["connectHeaders"].items()}
        assert headers["sec-websocket-key"]
        assert headers["sec-websocket-version"] == "13"
        assert not headers.keys() & {"servicebusauthorization", "sec-websocket-extensions"}
        await near.send_str("text \u00e9")
        assert await far.receive_str() == "text \u00e9"
        await far.send_bytes(b"\0\xff")
        assert await near.receive_bytes() == b"\0\xff"
        await near.close(code=4001, message=b"enough")
        closed = await far.receive()
        assert (closed.type, far.close_code, closed.extra) == (WSMsgType.CLOSE, 4001, "enough")
        await settled(lambda: not parties.hub.use_of(parties.server.unit.relays.find("ns", PATH)).spliced)


@in_loop
async def test_megabytes_go_through_unaltered_both_ways() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        _, far, near = await _joined(parties, listener)
        data = bytes(range(256)) * 4096 * 8
        for source, target in ((near, far), (far, near)):
            sending = asyncio.ensure_future(source.send_bytes(data))
            got = await asyncio.wait_for(target.receive_bytes(), 20)
            await sending
            assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()


@in_loop
async def test_what_a_slow_reader_leaves_is_held_back_at_the_sender() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        _, far, near = await _joined(parties, listener)
        await near.send_str("x")
        await far.receive()
        far._response.connection.protocol.pause_reading()
        (end,) = [one for one in _joined_ends(parties) if one.received_bytes == 0]

        async def send() -> None:
            for _ in range(64):
                await near.send_bytes(b"x" * (1 << 20))

        sending = asyncio.ensure_future(send())
        await asyncio.sleep(0.5)
        assert not sending.done()
        assert end.unsent_bytes < 2 << 20
        sending.cancel()
        await near.close()


def _joined_ends(parties: Parties) -> list[Any]:
    return list(parties.hub.use_of(parties.server.unit.relays.find("ns", PATH)).spliced)


@in_loop
async def test_the_listeners_sub_protocol_is_the_senders() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        connecting = asyncio.ensure_future(parties.connect(protocols=("a", "b")))
        members, far = await listener.accept(protocols=("b",))
        near = await connecting
        assert members["connectHeaders"]["Sec-WebSocket-Protocol"] == "a,b"
        assert (far.protocol, near.protocol) == ("b", "b")


@pytest.mark.parametrize("is_prefixed", [True, False])
@in_loop
async def test_a_reject_reaches_the_sender_with_status_and_description(is_prefixed: bool) -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        connecting = asyncio.ensure_future(parties.refusal())
        _, members = await listener.next()
        address = rejected(members["address"], 418, "not for you")
        if not is_prefixed:
            address = address.replace("sb-hc-status", "status")
        with pytest.raises(WSServerHandshakeError) as told:
            await listener.open(address)
        assert told.value.status == 410
        assert await connecting == (418, "not for you")


@in_loop
async def test_the_address_of_a_rendezvous_is_good_once() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        members, _, _ = await _joined(parties, listener)
        with pytest.raises(WSServerHandshakeError) as caught:
            await listener.open(members["address"])
        assert caught.value.status == 403


@in_loop
async def test_a_sender_whom_nobody_accepts_in_time_gets_504_and_the_address_is_void() -> None:
    async with relaying() as parties:
        parties.hub.rendezvous_s = 0.05
        listener = await parties.listen()
        with pytest.raises(WSServerHandshakeError) as caught:
            await parties.connect()
        assert caught.value.status == 504
        _, members = await listener.next()
        with pytest.raises(WSServerHandshakeError) as caught:
            await listener.open(members["address"])
        assert caught.value.status == 403
        assert len(parties.hub.promises) == 0


@in_loop
async def test_a_sender_finds_no_listener_or_loses_it() -> None:
    async with relaying() as parties:
        status, reason = await parties.refusal()
        assert (status, "has no listener" in reason, "TrackingId:" in reason) == (404, True, True)
        listener = await parties.listen()
        connecting = asyncio.ensure_future(parties.connect())
        await listener.next()
        await listener.socket.close()
        with pytest.raises(WSServerHandshakeError) as caught:
            await connecting
        assert caught.value.status == 502


@pytest.mark.parametrize(
    ("path", "signed", "status"),
    [
        ("nowhere", None, 404),
        (PATH, lambda: "", 401),
        (PATH, lambda: "nonsense", 401),
        (PATH, lambda: token(PATH, host="127.0.0.1", key="wrong"), 401),
        (PATH, lambda: token(PATH, host="127.0.0.1", expires_s=1_000_000_000), 401),
        (PATH, lambda: token("relay/other", host="127.0.0.1"), 403),
        (PATH, lambda: token(PATH, host="127.0.0.1", rule="own", key="own 1"), 403),
    ],
)
@in_loop
async def test_senders_without_the_right_are_told_why(path: str, signed: Callable[[], str] | None, status: int) -> None:
    relay = HybridConnectionDescription(name=PATH, authorization_rules=(ENTITY_RULE,))
    async with relaying(relay) as parties:
        await parties.listen()
        # Signed here: a token is good for a minute, and tests are collected long before they run.
        headers = {} if signed is None else {"ServiceBusAuthorization": signed()}
        found, reason = await parties.refusal(path, **headers)
        assert found == status
        assert "TrackingId:" in reason


@in_loop
async def test_a_path_of_odd_characters_is_refused_in_one_line_of_ascii() -> None:
    async with relaying() as parties:
        status, reason = await parties.refusal("caf%C3%A9%0D%0AX-Injected:1")
        assert (status, reason.isascii(), "TrackingId:" in reason) == (404, True, True)


@in_loop
async def test_a_rule_of_the_relay_lets_listen_and_nothing_else() -> None:
    relay = HybridConnectionDescription(name=PATH, authorization_rules=(ENTITY_RULE,))
    async with relaying(relay, HybridConnectionDescription(name="other")) as parties:
        own = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1", rule="own", key="own 2")}
        await parties.listen(headers=own)
        with pytest.raises(WSServerHandshakeError) as caught:
            await parties.listen("other", headers=own)
        assert caught.value.status == 401


@in_loop
async def test_an_anonymous_sender_may_come_where_that_is_allowed() -> None:
    async with relaying(HybridConnectionDescription(name=PATH, requires_client_authorization=False)) as parties:
        listener = await parties.listen()
        members, _, _ = await _joined(parties, listener, headers={"Authorization": "Basic app"})
        assert members["connectHeaders"]["Authorization"] == "Basic app"


@in_loop
async def test_a_deleted_relay_closes_its_listeners_and_what_is_joined() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        _, far, near = await _joined(parties, listener)
        parties.server.unit.relays.delete("ns", PATH)
        for socket in (listener.socket, far, near):
            await asyncio.wait_for(socket.receive(), 5)
            assert socket.close_code == 1001


@in_loop
async def test_what_is_joined_goes_on_when_its_listener_leaves_and_a_lost_side_is_told_with_1011() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        _, far, near = await _joined(parties, listener)
        await listener.socket.close()
        await near.send_str("still")
        assert await far.receive_str() == "still"
        near._response.connection.transport.abort()
        await asyncio.wait_for(far.receive(), 5)
        assert far.close_code == 1011


@in_loop
async def test_a_token_is_renewed_and_a_wrong_one_ends_the_channel_with_1008() -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        await listener.socket.send_json({"renewToken": {"token": token(PATH, host="127.0.0.1")}})
        await listener.socket.send_json({"renewToken": {"token": token("other", host="127.0.0.1")}})
        await asyncio.wait_for(listener.socket.receive(), 5)
        assert listener.socket.close_code == 1008
        await settled(lambda: not parties.hub.listeners_of(parties.server.unit.relays.find("ns", PATH)))


@in_loop
async def test_the_26th_listener_is_refused_and_one_that_hurries_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duobus.gateway.relay.handshakes.TARPIT_S", 0.01)
    async with relaying() as parties:
        for _ in range(5):
            await parties.listen()
        status, reason = await parties.refusal(action="listen")
        assert (status, "Too many" in reason) == (503, True)
        monkeypatch.setattr("duobus.gateway.relay.listeners.LISTENS_PER_S", 100)
        for _ in range(20):
            await parties.listen()
        status, reason = await parties.refusal(action="listen")
        assert (status, "25 listeners" in reason) == (503, True)


@pytest.mark.parametrize("text", ["{", "[]", '{"response":{}}', "x" * 300_000])
@in_loop
async def test_a_listener_that_sends_nonsense_is_closed_and_no_sender_comes_to_it(text: str) -> None:
    async with relaying() as parties:
        listener = await parties.listen()
        await listener.socket.send_str(text)
        await asyncio.wait_for(listener.socket.receive(), 5)
        assert listener.socket.close_code in {1009, 1011}
        assert parties.hub.listeners_of(parties.server.unit.relays.find("ns", PATH)) == 0


@pytest.mark.parametrize("cause", ["expired", "rule removed", "silent"])
@in_loop
async def test_a_listener_is_dropped_when_its_token_its_right_or_its_life_ends(cause: str) -> None:
    relay = HybridConnectionDescription(name=PATH, authorization_rules=(ENTITY_RULE,))
    async with relaying(relay) as parties:
        own = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1", rule="own", key="own 1")}
        listener = await parties.listen(headers=own)
        made = parties.server.unit.relays.find("ns", PATH)
        (channel,) = parties.hub.use_of(made).listeners.all()
        parties.hub._sweep()
        assert parties.hub.listeners_of(made) == 1
        if cause == "expired":
            channel.grant.expires_ms = parties.hub.clock.now_ms() - 1
        elif cause == "rule removed":
            parties.server.unit.relays.update("ns", HybridConnectionDescription(name=PATH))
        else:
            now_ms, pause_ms = parties.hub.clock.monotonic_ms(), round(PING_S * 1000)
            channel.vigil = Vigil(now_ms - 4 * pause_ms)
            assert all(channel.vigil.is_ping_due(now_ms - turns * pause_ms) for turns in (3, 2))
        parties.hub._sweep()
        assert parties.hub.listeners_of(made) == 0
        await asyncio.wait_for(listener.socket.receive(), 5)
        assert listener.socket.close_code == (1006 if cause == "silent" else 1008)
