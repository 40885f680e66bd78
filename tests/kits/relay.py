"""A relay in a server, and both of its parties at the level of the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession, ClientWebSocketResponse, WSMsgType
from yarl import URL

from duobus.model.relay.description import HybridConnectionDescription
from duobus.server.composition import Server
from kits.gateway import serving
from kits.http_client import token

PATH = "relay/one"


@asynccontextmanager
async def relaying(*relays: HybridConnectionDescription, **options: Any) -> AsyncIterator[Parties]:
    """A server with relays (one of the name PATH), and what connects to it."""
    async with serving(**options) as server:
        for relay in relays or (HybridConnectionDescription(name=PATH),):
            server.unit.relays.create("ns", relay)
        async with ClientSession() as session:
            parties = Parties(server, session)
            try:
                yield parties
            finally:
                for socket in parties.sockets:
                    socket._response.close()


class Parties:
    """Makes listeners and senders of one server."""

    def __init__(self, server: Server, session: ClientSession) -> None:
        self.server = server
        self.session = session
        self.sockets: list[ClientWebSocketResponse] = []
        self.host = f"127.0.0.1:{server.port('http')}"

    @property
    def hub(self) -> Any:
        return self.server.relays.hub

    def url(self, target: str, scheme: str = "http") -> URL:
        return URL(f"{scheme}://{self.host}/{target}", encoded=True)

    async def listen(self, path: str = PATH, **options: Any) -> Listener:
        """A control channel."""
        headers = {"ServiceBusAuthorization": token(path, host="127.0.0.1")} | options.pop("headers", {})
        return Listener(self, await self.open(self.url(f"$hc/{path}?sb-hc-action=listen"), headers=headers, **options))

    async def open(self, url: URL, **options: Any) -> ClientWebSocketResponse:
        """A WebSocket that lives until it is closed, or the test is over."""
        socket = await self.session.ws_connect(url, max_msg_size=0, **options)
        self.sockets.append(socket)
        return socket

    async def connect(self, path: str = PATH, query: str = "", **options: Any) -> ClientWebSocketResponse:
        """A sender's WebSocket."""
        headers = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1")} | options.pop("headers", {})
        target = f"$hc/{path}?sb-hc-action=connect{query}"
        return await self.open(self.url(target), headers=headers, **options)

    async def refusal(self, path: str = PATH, action: str = "connect", **headers: str) -> tuple[int, str]:
        """Status and reason phrase of a handshake that is refused; clients of WebSockets tell nothing else."""
        own = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1")}
        own |= {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "x",
            "Sec-WebSocket-Version": "13",
        }
        target = self.url(f"$hc/{path}?sb-hc-action={action}")
        async with self.session.get(target, headers=own | headers) as answer:
            return answer.status, answer.reason or ""

    async def ask(self, method: str, target: str = PATH, **options: Any) -> tuple[ClientResponse, bytes]:
        """An HTTP request and its answer with the body."""
        headers = {"ServiceBusAuthorization": token(PATH, host="127.0.0.1")} | options.pop("headers", {})
        async with self.session.request(method, self.url(target), headers=headers, **options) as answer:
            return answer, await answer.read()


class Listener:
    """A listener that does what a test says."""

    def __init__(self, parties: Parties, socket: ClientWebSocketResponse) -> None:
        self.parties = parties
        self.socket = socket

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next message: its kind and its members."""
        message = await asyncio.wait_for(self.socket.receive(), 10)
        assert message.type is WSMsgType.TEXT, message
        ((kind, members),) = json.loads(message.data).items()
        return kind, members

    async def body(self) -> bytes:
        """The body behind a message."""
        return await self.socket.receive_bytes(timeout=10)

    async def accept(self, **options: Any) -> tuple[dict[str, Any], ClientWebSocketResponse]:
        """Take the next sender."""
        kind, members = await self.next()
        assert kind == "accept"
        return members, await self.open(members["address"], **options)

    async def open(self, address: str, **options: Any) -> ClientWebSocketResponse:
        """Open a rendezvous."""
        return await self.parties.open(URL(address, encoded=True), **options)

    async def respond(
        self, members: dict[str, Any], status: Any = 200, body: bytes | None = b"", socket: Any = None, **more: Any
    ) -> None:
        """Answer a request, on a rendezvous if one is given."""
        socket = socket or self.socket
        response = {"requestId": members["id"], "statusCode": status, "body": body is not None} | more
        await socket.send_json({"response": response})
        if body is not None:
            await socket.send_bytes(body)

    async def serve(self, answer: Callable[[dict[str, Any], bytes], bytes]) -> None:
        """Answer every small request."""
        while True:
            _, members = await self.next()
            body = await self.body() if members["body"] else b""
            await self.respond(members, body=answer(members, body))
