"""An ASGI application behind a relay, and TCP ports at both ends of one."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

import pytest
from integration.relay.test_relay_clients import asynchronous

from duobus.relay import ListenerRejected
from duobus.relay.aio import RelayListener, RelaySender, connect, request
from duobus.relay.asgi import AsgiService, LifespanFailed
from duobus.relay.tunnel import LocalPort, expose
from kits.stand_in_relay import StandInRelay

# -- ASGI -------------------------------------------------------------------------------------------------------------


class App:
    """An application that tells what it was asked."""

    def __init__(self, *, starts: bool = True) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.starts = starts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await getattr(self, scope["type"])(scope, receive, send)

    async def lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            self.told.append(kind)
            if kind == "lifespan.startup" and not self.starts:
                await send({"type": "lifespan.startup.failed", "message": "no database"})
                return
            scope["state"]["ready"] = "yes"
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/nothing":
            return
        headers = [(b"X-State", scope["state"]["ready"].encode()), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        for start in range(0, len(body), 70_000):
            await send({"type": "http.response.body", "body": body[start : start + 70_000], "more_body": True})
        await send({"type": "http.response.body"})
        assert (await receive())["type"] == "http.disconnect"

    async def websocket(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        assert (await receive())["type"] == "websocket.connect"
        if scope["path"] == "/closed":
            await send({"type": "websocket.close", "reason": "members only"})
            return
        await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][-1]})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", **{k: v for k, v in message.items() if k != "type"}})
        self.told.append(f"{message['type']} {message['code']}")


@asynchronous
async def test_an_asgi_application_answers_requests_in_pieces_and_has_a_lifespan() -> None:
    app = App()
    async with StandInRelay("svc") as relay, AsgiService(app) as service:
        async with RelayListener(
            relay.endpoint, on_stream=service.on_stream, on_connection=service.on_connection
        ) as listener:
            await listener.wait_online()
            body = random.Random(1).randbytes(200_000)
            answer = await request(relay.endpoint, "POST", "a%2Fb", query="q=%20", body=body, headers={"X-One": "1"})
            assert (answer.status, answer.body) == (201, body)
            assert answer.header("x-state") == "yes"
            assert (await request(relay.endpoint, "GET", "nothing")).status == 500
        scope = app.scopes[0]
        assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a/b", b"/a%2Fb", b"q=%20")
        assert (b"x-one", b"1") in scope["headers"]
        assert scope["method"] == "POST"
    assert app.told == ["lifespan.startup", "lifespan.shutdown"]


@asynchronous
async def test_an_asgi_application_accepts_and_rejects_websockets() -> None:
    app = App()
    async with (
        StandInRelay("svc") as relay,
        AsgiService(app) as service,
        RelayListener(relay.endpoint, on_stream=service.on_stream, on_connection=service.on_connection) as listener,
    ):
        await listener.wait_online()
        connection = await connect(relay.endpoint, "room", protocols=["a", "b"])
        assert connection.protocol == "b"
        await connection.send("text")
        await connection.send(b"bytes")
        assert [await connection.receive(), await connection.receive()] == ["text", b"bytes"]
        await connection.close(3000)
        with pytest.raises(ListenerRejected, match="members only"):
            await connect(relay.endpoint, "closed")
        while len(app.told) < 2:  # noqa: ASYNC110 - of the application
            await asyncio.sleep(0.005)
    assert app.told[1] == "websocket.disconnect 3000"


@asynchronous
async def test_an_application_that_cannot_start_says_why() -> None:
    with pytest.raises(LifespanFailed, match="no database"):
        async with AsgiService(App(starts=False)):
            pass


# -- TCP --------------------------------------------------------------------------------------------------------------


class Tunnel:
    """A TCP service, a relay in front of it, and a port that leads there."""

    def __init__(self, serve: Any) -> None:
        self.serve = serve
        self.told: list[tuple[str, str]] = []

    def tell(self, what: str, text: str) -> None:
        self.told.append((what, text))

    async def __aenter__(self) -> Tunnel:
        self.relay = StandInRelay("tcp")
        await self.relay.start()
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.local = LocalPort("127.0.0.1", self.server.sockets[0].getsockname()[1], self.tell)
        self.listener = RelayListener(
            self.relay.endpoint, on_stream=self.local.on_stream, on_connection=self.local.on_connection
        )
        self.listener.start()
        await self.listener.wait_online()
        self.sender = RelaySender(self.relay.endpoint)
        self.exposed = await expose("127.0.0.1", 0, self.sender.connect, self.tell)
        self.port = self.exposed.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (self.exposed, self.server):
            server.close()
        await self.listener.close()
        await self.sender.close()
        await self.local.close()
        await self.relay.stop()


async def digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, after the end of what was sent, with its checksum and then with all of it."""
    content = await reader.read()
    writer.write(hashlib.sha256(content).hexdigest().encode() + content)
    await writer.drain()
    writer.close()


@asynchronous
async def test_many_connections_carry_their_bytes_unaltered_and_each_direction_ends_by_itself() -> None:
    async with Tunnel(digest) as tunnel:

        async def exchange(seed: int) -> None:
            content = random.Random(seed).randbytes(seed * 150_000 + 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
            writer.write(content)
            writer.write_eof()
            answer = await reader.read()
            assert answer[:64].decode() == hashlib.sha256(content).hexdigest()
            assert answer[64:] == content
            writer.close()

        await asyncio.gather(*(exchange(seed) for seed in range(12)))
    assert tunnel.told == []


@asynchronous
async def test_a_port_that_takes_no_connections_is_told_at_both_ends() -> None:
    async with Tunnel(digest) as tunnel:
        tunnel.server.close()
        await tunnel.server.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        with pytest.raises(ConnectionError):
            await reader.read()
        writer.close()
        assert [what for what, _ in tunnel.told] == ["rejected", "failed"]
        assert "does not take connections" in tunnel.told[0][1]
        assert (await request(tunnel.relay.endpoint, "GET")).status == 503


@asynchronous
async def test_a_transfer_that_breaks_is_not_taken_for_a_whole_one() -> None:
    begun = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 1000)
        begun.set()
        await reader.read()
        writer.close()

    async with Tunnel(endless) as tunnel:
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        assert await reader.readexactly(1000)
        await tunnel.relay.joined[-1].close(code=1011)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@asynchronous
async def test_a_reader_that_does_not_read_holds_the_writer_up() -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                written += 65_536
        except ConnectionError:
            writer.close()

    async with Tunnel(flood) as tunnel:
        _, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        last = -1
        while written != last:  # until nothing moves any more
            last = written
            await asyncio.sleep(0.3)
        assert 0 < written < 64 << 20
        writer.transport.abort()


@asynchronous
async def test_http_requests_reach_the_port_as_http() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n")[0]
        writer.write(b"HTTP/1.1 404 Nothing\r\nX-Line: " + line + b"\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    async with Tunnel(serve) as tunnel:
        answer = await request(tunnel.relay.endpoint, "GET", "a/b", query="c=%2F")
        assert (answer.status, answer.reason, answer.body) == (404, "Nothing", b"no")
        assert answer.header("x-line") == "GET /a/b?c=%2F HTTP/1.1"
