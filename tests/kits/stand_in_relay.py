"""A small relay in this process, for the tests of its clients: one hybrid connection, and faults that a test asks for.

The relay speaks the wire of Hybrid Connections with aiohttp and knows no broker. Tokens are taken apart and held
against their end, not against a key.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import Any

from aiohttp import WSMsgType, web

from duobus.model.relay.addresses import parse_handshake
from duobus.model.relay.headers import combined, end_to_end, via_appended, without
from duobus.model.relay.limits import CHANNEL_BODY_BYTES_MAX
from duobus.model.relay.messages import Accept, Rendezvous, RenewToken, Request, Response, to_relay
from duobus.relay import RelayEndpoint

NO_LISTENER = "There are no listeners connected for the endpoint. TrackingId:00_G0"


class StandInRelay:
    """One relay.

    Attributes:
        opened: How often each address of a rendezvous was opened.
        requests: (method, target, request id) of every request that was given to a listener.
        tokens: What listeners and senders showed, renewals included.
        refuses: A status with which everything is refused; None for none.
        reason: The reason phrase of such a refusal.
        is_silent: Takes connections and answers nothing.
        drops_answers: Cuts the connection of a sender when the listener has answered.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.opened: dict[str, int] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: list[str] = []
        self.refuses: int | None = None
        self.reason = "Refused."
        self.is_silent = False
        self.drops_answers = False
        self.listeners: list[web.WebSocketResponse] = []
        self.joined: list[web.WebSocketResponse] = []
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._answers: dict[str, asyncio.Future[tuple[Response, bytes]]] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def endpoint(self) -> RelayEndpoint:
        return RelayEndpoint(f"127.0.0.1:{self.port}", self.path, "key", "secret", is_secure=False)

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=key;SharedAccessKey=secret;"
            f"EntityPath={self.path};UseDevelopmentEmulator=true"
        )

    async def __aenter__(self) -> StandInRelay:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", r"/{tail:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End it as a kill does: connections break."""
        for socket in [*self.listeners, *self.joined]:
            await cut(socket)
        self.listeners.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def drop_listeners(self, code: int = 1011, reason: str = "dropped") -> None:
        for socket in list(self.listeners):
            await socket.close(code=code, message=reason.encode())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.is_silent:
            await asyncio.sleep(3600)
        if self.refuses is not None:
            return web.Response(status=self.refuses, reason=f"{self.reason} TrackingId:77_G1")
        target = parse_handshake(request.raw_path)
        if target is None:
            return await self._http(request)
        if "ServiceBusAuthorization" in request.headers:
            self.tokens.append(request.headers["ServiceBusAuthorization"])
        if target.action == "listen":
            return await self._listen(request)
        if target.action == "connect":
            return await self._connect(request, target.raw_path, target.query)
        return await self._rendezvous(request, target.id, target.status, target.description)

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=1 << 20)
        await socket.prepare(request)
        self.listeners.append(socket)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                told = to_relay(message.data)
                if isinstance(told, RenewToken):
                    self.tokens.append(told.token)
                elif told is not None:
                    body = (await socket.receive()).data if told.has_body else b""
                    self._answers.pop(told.request_id).set_result((told, body))
        finally:
            if socket in self.listeners:
                self.listeners.remove(socket)
        return socket

    def _address(self, action: str, number: str, path: str = "", query: str = "") -> str:
        text = f"ws://127.0.0.1:{self.port}/$hc{path or '/' + self.path}?sb-hc-action={action}&sb-hc-id={number}"
        return f"{text}&{query}" if query else text

    async def _connect(self, request: web.Request, path: str, query: str) -> web.StreamResponse:
        if not self.listeners:
            return web.Response(status=404, reason=NO_LISTENER)
        number = f"c{next(self._numbers)}"
        offered = without(request.headers.items(), "ServiceBusAuthorization", "Sec-WebSocket-Extensions")
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        address = self._address("accept", number, path, query)
        await random.choice(self.listeners).send_str(Accept(address, number, combined(offered)).to_json())
        found = await asyncio.wait_for(future, 30)
        if isinstance(found, tuple):
            return web.Response(status=found[0], reason=found[1], headers={"Via": f"1.1 {request.host}"})
        protocols = [found.headers["Sec-WebSocket-Protocol"]] if "Sec-WebSocket-Protocol" in found.headers else []
        socket = web.WebSocketResponse(protocols=protocols, max_msg_size=1 << 26)
        await socket.prepare(request)
        self.joined.append(socket)
        other = self._waiting.pop(number + ":socket")
        await asyncio.gather(splice(socket, other), splice(other, socket))
        self._waiting.pop(number + ":done").set_result(None)
        return socket

    async def _rendezvous(
        self, request: web.Request, number: str, status: int | None, description: str
    ) -> web.StreamResponse:
        self.opened[number] = self.opened.get(number, 0) + 1
        future = self._waiting.pop(number, None)
        if future is None:
            return web.Response(status=403, reason="The address was used before.")
        if status is not None:
            future.set_result((status, description))
            return web.Response(status=410, reason="Gone")
        offered = request.headers.get("Sec-WebSocket-Protocol")
        socket = web.WebSocketResponse(protocols=[offered] if offered else [], max_msg_size=1 << 26)
        await socket.prepare(request)
        self.joined.append(socket)
        if number.startswith("c"):
            loop = asyncio.get_running_loop()
            self._waiting[number + ":socket"] = socket  # type: ignore[assignment]
            done = self._waiting[number + ":done"] = loop.create_future()
            future.set_result(request)
            await done
        else:
            future.set_result(socket)
            told = to_relay((await socket.receive()).data)
            assert isinstance(told, Response)
            body = (await socket.receive()).data if told.has_body else b""
            self._answers.pop(told.request_id).set_result((told, body))
            await socket.close()
        return socket

    async def _http(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self.listeners:
            return web.Response(status=502, text=NO_LISTENER)
        number = f"r{next(self._numbers)}"
        headers = without(request.headers.items(), "ServiceBusAuthorization")
        sent = combined(via_appended(end_to_end(headers), request.host))
        self.requests.append((request.method, request.raw_path, sent.get("x-duobus-request-id", "")))
        address = self._address("request", number)
        told = Request(address, number, request.raw_path, request.method, sent, bool(body))
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        rendezvous = self._waiting[number] = loop.create_future()
        channel = random.choice(self.listeners)
        if len(body) <= CHANNEL_BODY_BYTES_MAX:
            await channel.send_str(told.to_json())
            if body:
                await channel.send_bytes(body)
        else:
            await channel.send_str(Rendezvous(address).to_json())
            socket = await rendezvous
            await socket.send_str(told.to_json())
            await socket.send_bytes(body)
        response, content = await answer
        if self.drops_answers:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        out = via_appended(end_to_end(response.headers.items()), request.host)
        return web.Response(
            status=response.status, reason=response.description or None, headers=dict(out), body=content
        )


async def splice(source: web.WebSocketResponse, target: web.WebSocketResponse) -> None:
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
    code = source.close_code
    await target.close(code=1011 if code in (None, 1006) else code)


async def cut(socket: web.WebSocketResponse) -> None:
    """Break a connection without a close."""
    if socket._req is not None and socket._req.transport is not None:
        socket._req.transport.abort()


def expiry_of(token: str) -> float:
    """Seconds until a token ends."""
    return int(token.partition("&se=")[2].partition("&")[0]) - time.time()
