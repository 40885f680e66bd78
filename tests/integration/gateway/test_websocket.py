"""AMQP over WebSocket against a whole server: paths, sub-protocols, origins, the byte stream, back pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError, web
from yarl import URL

from duobus.amqp import ACCEPTED, Closed, Transfers
from duobus.gateway.websocket import CHUNK_BYTES, MESSAGE_BYTES_MAX, WebSocketTransport
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import Client, WebSocketStream, in_loop, serving, settled

PATH = "/$servicebus/websocket"


def _url(server: Server, path: str = PATH) -> URL:
    return URL(f"http://127.0.0.1:{server.port('http')}{path}", encoded=True)


@asynccontextmanager
async def _connected(
    server: Server, path: str = PATH, protocols: tuple[str, ...] = ("AMQPWSB10",), **options: Any
) -> AsyncIterator[ClientWebSocketResponse]:
    async with (
        ClientSession() as session,
        session.ws_connect(_url(server, path), protocols=protocols, **options) as socket,
    ):
        yield socket


@pytest.mark.parametrize("path", [PATH, PATH + "/", "/%24servicebus/websocket", "/%24servicebus/websocket/"])
@in_loop
async def test_every_form_of_the_path_leads_to_the_amqp_engine(path: str) -> None:
    async with serving() as server, _connected(server, path) as socket:
        client = Client(WebSocketStream(socket))
        assert await client.send(await client.sender(), b"body") is ACCEPTED


@pytest.mark.parametrize(
    ("asked", "echoed"),
    [(("AMQPWSB10",), "AMQPWSB10"), (("amqp",), "amqp"), (("mqtt", "amqp"), "amqp")],
)
@in_loop
async def test_the_sub_protocol_that_was_asked_for_is_echoed(asked: tuple[str, ...], echoed: str) -> None:
    async with serving() as server, _connected(server, protocols=asked) as socket:
        assert socket.protocol == echoed


@pytest.mark.parametrize("headers", [{}, {"Sec-WebSocket-Protocol": "mqtt"}, {"Sec-WebSocket-Protocol": "xamqp"}])
@in_loop
async def test_a_client_without_a_known_sub_protocol_is_told_which_to_ask_for(headers: dict[str, str]) -> None:
    async with serving() as server, ClientSession() as session:
        upgrade = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        async with session.get(_url(server), headers=upgrade | headers) as answer:
            assert answer.status == 400
            assert "AMQPWSB10" in await answer.text()


@in_loop
async def test_a_get_that_asks_for_no_upgrade_is_refused() -> None:
    headers = {"Sec-WebSocket-Protocol": "AMQPWSB10"}
    async with (
        serving() as server,
        ClientSession() as session,
        session.get(_url(server), headers=headers) as answer,
    ):
        assert answer.status == 400


@pytest.mark.parametrize("size", [1, 7, 1000])
@in_loop
async def test_frames_may_be_split_over_messages_of_any_size(size: int) -> None:
    async with serving() as server, _connected(server) as socket:
        client = Client(WebSocketStream(socket, size))
        link = await client.sender()
        assert await client.send(link, bytes(range(256)) * 4) is ACCEPTED
        receiver = await client.receiver(credit=1)
        assert bytes(range(256)) * 4 in (await client.receive(receiver))[1]


@in_loop
async def test_many_frames_in_one_message_are_all_taken() -> None:
    async with serving() as server, _connected(server) as socket:
        client = Client(WebSocketStream(socket, MESSAGE_BYTES_MAX))
        link = await client.sender()
        for index in range(50):
            link.send_one(index.to_bytes(16, "big"), b"\x00\x53\x75\xa0\x02hi", False)
        # All of it leaves in one message of the WebSocket.
        await client.flush()
        receiver = await client.receiver(credit=50)
        seen = 0
        while seen < 50:
            seen += len((await client.wait(Transfers, lambda event: event.link is receiver)).payloads)
        assert seen == 50


@in_loop
async def test_a_fragmented_message_is_put_together_again() -> None:
    async with serving() as server, _connected(server) as socket:
        client = Client(WebSocketStream(socket))
        output = client.engine.take_output()
        writer = socket._writer  # the client has no public way to send fragments
        assert writer is not None
        transport = writer.transport
        mask = b"\0\0\0\0"
        transport.write(b"\x02\x83" + mask + output[:3])
        transport.write(b"\x00\x82" + mask + output[3:5])
        # A ping between fragments is allowed and answered.
        transport.write(b"\x89\x80" + mask)
        rest = output[5:]
        transport.write(b"\x80\xfe" + len(rest).to_bytes(2, "big") + mask + rest)
        assert await client.send(await client.sender(), b"body") is ACCEPTED


@in_loop
async def test_a_ping_is_answered_with_its_own_payload() -> None:
    async with serving() as server, _connected(server, autoping=False) as socket:
        await socket.ping(b"are you there")
        answer = await socket.receive()
        assert (answer.type, bytes(answer.data)) == (WSMsgType.PONG, b"are you there")


@in_loop
async def test_a_text_message_is_closed_with_1003() -> None:
    async with serving() as server, _connected(server) as socket:
        await socket.send_str("AMQP")
        answer = await socket.receive()
        assert (answer.type, answer.data) == (WSMsgType.CLOSE, 1003)
        await settled(lambda: not server.amqp.peers)


@in_loop
async def test_a_message_above_the_limit_is_closed_with_1009() -> None:
    async with serving() as server, _connected(server) as socket:
        await socket.send_bytes(bytes(MESSAGE_BYTES_MAX + 1))
        answer = await socket.receive()
        assert (answer.type, answer.data) == (WSMsgType.CLOSE, 1009)


@in_loop
async def test_compression_is_not_agreed_to_when_offered() -> None:
    async with serving() as server, _connected(server, compress=15) as socket:
        assert socket.compress == 0


@pytest.mark.parametrize(
    "origin", ["http://localhost:8080", "https://LOCALHOST", "http://127.0.0.1", "http://mine.example"]
)
@in_loop
async def test_an_origin_that_is_ours_or_configured_may_connect(origin: str) -> None:
    async with serving(websocket_origins=("mine.example",)) as server, _connected(server, origin=origin) as socket:
        assert socket.protocol == "AMQPWSB10"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://[", "http://127.0.0.2"])
@in_loop
async def test_any_other_origin_is_forbidden_whatever_its_host_header(origin: str) -> None:
    async with serving() as server:
        with pytest.raises(WSServerHandshakeError) as refused:
            async with _connected(server, origin=origin, headers={"Host": "evil.example"}):
                pytest.fail("the origin was let in")
        assert refused.value.status == 403


@in_loop
async def test_a_star_lets_every_origin_connect() -> None:
    async with serving(websocket_origins=("*",)) as server, _connected(server, origin="http://evil.example") as socket:
        assert socket.protocol == "AMQPWSB10"


@in_loop
async def test_unknown_first_bytes_get_the_supported_header_and_a_close() -> None:
    async with serving() as server, _connected(server) as socket:
        await socket.send_bytes(b"MQTT\x04\x02\x00\x3c")
        assert await socket.receive_bytes() == b"AMQP\x03\x01\x00\x00"
        assert (await socket.receive()).type is WSMsgType.CLOSE


@in_loop
async def test_a_peer_that_vanishes_gives_its_messages_back_at_once() -> None:
    async with serving() as server:
        async with _connected(server) as socket:
            client = Client(WebSocketStream(socket))
            await client.send(await client.sender(), b"body")
            await client.receive(await client.receiver(credit=1))
            assert socket._response is not None
            connection = socket._response.connection
            assert connection is not None
            assert connection.transport is not None
            connection.transport.abort()
            await settled(lambda: not server.amqp.peers)
        async with _connected(server) as socket:
            client = Client(WebSocketStream(socket))
            assert b"body" in (await client.receive(await client.receiver(credit=1)))[1]


@in_loop
async def test_a_stopping_server_closes_websockets_without_waiting_for_long() -> None:
    async with serving() as server, _connected(server) as socket:
        client = Client(WebSocketStream(socket))
        await client.sender()
        stopping = asyncio.create_task(server.amqp.close(5.0))
        closed = await client.wait(Closed)
        assert closed.error is not None
        await client.flush()
        assert (await socket.receive()).type is WSMsgType.CLOSE
        await stopping
        assert not server.amqp.peers


@in_loop
async def test_a_reader_that_stops_holds_a_bounded_part_of_what_waits_for_it() -> None:
    big = QueueDescription(name="q", max_message_size_bytes=8 << 20)
    async with serving(big) as server:
        async with _connected(server) as socket:
            client = Client(WebSocketStream(socket))
            link = await client.sender()
            for _ in range(4):
                assert await client.send(link, bytes(7 << 20)) is ACCEPTED
        await settled(lambda: not server.amqp.peers)
        async with _connected(server) as socket:
            client = Client(WebSocketStream(socket))
            receiver = await client.receiver(credit=4)
            (peer,) = server.amqp.peers
            # Nothing is read here: the server runs until its limits stop it.
            await settled(lambda: not peer.can_write)
            transport = peer._transport
            assert isinstance(transport, WebSocketTransport)
            for _ in range(50):
                await asyncio.sleep(0)
                held = transport.get_write_buffer_size() + peer.engine.output_size
                assert held <= 3 << 20
            assert not transport.is_reading()
            # Whoever goes on reading gets everything.
            for _ in range(4):
                assert len((await client.receive(receiver))[1]) > 7 << 20
            await settled(lambda: peer.can_write and transport.is_reading())
            assert max(client.stream.messages) <= CHUNK_BYTES  # type: ignore[union-attr]


class _Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.lost = 0

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


@in_loop
async def test_a_paused_transport_hands_nothing_over_until_it_is_resumed() -> None:
    recorder = _Recorder()
    made: list[WebSocketTransport] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        assert request.transport is not None
        made.append(WebSocketTransport(socket, request.transport, recorder))
        await made[0].run()
        return socket

    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with (
            ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{runner.addresses[0][1]}/") as socket,
        ):
            await socket.send_bytes(b"one")
            await settled(lambda: recorder.received == [b"one"])
            made[0].pause_reading()
            await socket.send_bytes(b"two")
            await socket.send_bytes(b"three")
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert recorder.received == [b"one"]
            made[0].resume_reading()
            await settled(lambda: recorder.received == [b"one", b"two", b"three"])
            made[0].write(b"last words")
            made[0].close()
            assert await socket.receive_bytes() == b"last words"
            assert (await socket.receive()).type is WSMsgType.CLOSE
        await settled(lambda: recorder.lost == 1)
    finally:
        await runner.cleanup()
