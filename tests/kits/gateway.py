"""A whole server in the test's own process and loop, and a client at the level of frames for any kind of stream."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Self, TypeVar

import msgspec
from aiohttp import ClientWebSocketResponse, WSMsgType

from duobus.amqp import (
    Connection,
    ConnectionSettings,
    Dispositions,
    Event,
    Link,
    LinkAttached,
    Source,
    Target,
    Transfers,
)
from duobus.clock import Clock, Entropy
from duobus.codec import build_message
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY, NamespaceConfig, Settings, load_settings

RULE = "RootManageSharedAccessKey"
#: Longest time that anything in these tests may take, unless it moves hundreds of megabytes.
LIMIT_S = 60.0

EventT = TypeVar("EventT", bound=Event)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]], limit_s: float = LIMIT_S) -> Callable[..., None]:
    """Run a coroutine as a test, in bounded time."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            try:
                async with asyncio.timeout(limit_s):
                    await test(*args, **kwargs)
            finally:
                while _OPEN:
                    await _OPEN.pop().close()

        asyncio.run(limited())

    return run


@asynccontextmanager
async def serving(*queues: QueueDescription, **options: Any) -> AsyncIterator[Server]:
    """A server on ports that the system picks, with everything in memory."""
    chosen: dict[str, Any] = {"data": None, "ephemeral": True, "emulator": True, "stores": 1}
    chosen |= {"port": 0, "tls_port": 0, "http_port": 0} | options
    settings = load_settings(Settings(**chosen))
    namespace = NamespaceConfig(name="ns", queues=queues or (QueueDescription(name="q"),))
    server = Server(msgspec.structs.replace(settings, namespaces=(namespace,)), Clock(), Entropy())
    await server.start()
    try:
        yield server
    finally:
        # Clients of tests do not wait for the server's close, so it need not wait for theirs.
        cut(server)
        await server.stop()


def cut(server: Server) -> None:
    """Every connection to a server ends."""
    for peer in list(server.amqp.peers):
        peer.abort()


def stop_reading(server: Server) -> None:
    """A server reads nothing more of what it is sent."""
    for peer in server.amqp.peers:
        assert isinstance(peer._transport, asyncio.ReadTransport)
        peer._transport.pause_reading()


class TcpStream:
    """Bytes over a TCP connection, plain or TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int, **options: Any) -> Self:
        found = cls(*await asyncio.open_connection("127.0.0.1", port, **options))
        _OPEN.append(found)
        return found

    async def read(self) -> bytes:
        return await self._reader.read(1 << 18)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def drop(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self.drop()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


#: What the running test has opened; closed at its end.
_OPEN: list[TcpStream] = []


class WebSocketStream:
    """Bytes over a WebSocket, cut into messages of a given size."""

    def __init__(self, socket: ClientWebSocketResponse, size: int = 1 << 16) -> None:
        self._socket = socket
        self._size = size
        self.messages: list[int] = []

    async def read(self) -> bytes:
        message = await self._socket.receive()
        if message.type is not WSMsgType.BINARY:
            return b""
        self.messages.append(len(message.data))
        return bytes(message.data)

    async def write(self, data: bytes) -> None:
        for pos in range(0, len(data), self._size):
            await self._socket.send_bytes(data[pos : pos + self._size])


class Client:
    """One connection of the project's engine as initiator, logged in over PLAIN."""

    def __init__(self, stream: TcpStream | WebSocketStream) -> None:
        self.stream = stream
        response = f"\0{RULE}\0{EMULATOR_KEY}".encode()
        settings = ConnectionSettings(
            uuid.uuid4().hex, hostname="localhost", mechanisms=("PLAIN",), sasl_response=response
        )
        self.engine = Connection(settings, acceptor=False)
        self.engine.open(0)
        self.session = self.engine.begin()
        self.events: list[Any] = []

    async def pump(self) -> None:
        """Write what there is, then wait for the next bytes."""
        await self.flush()
        data = await self.stream.read()
        assert data, f"the server closed the connection; there is {self.events}"
        self.events += self.engine.receive(data, time.monotonic_ns() // 1_000_000)

    async def flush(self) -> None:
        while output := self.engine.take_output(1 << 18):
            await self.stream.write(output)

    async def wait(self, kind: type[EventT], where: Callable[[EventT], bool] = lambda event: True) -> EventT:
        """Take the first event of a kind, waiting for it."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and where(event):
                    self.events.remove(event)
                    return event
            await self.pump()

    async def sender(self, queue: str = "q") -> Link:
        """Attach a link to send on, with credit."""
        link = self.session.attach_sender(uuid.uuid4().hex, Source(address="c"), Target(address=queue))
        await self.wait(LinkAttached, lambda event: event.link is link)
        while not link.sendable():
            await self.pump()
        return link

    async def receiver(self, queue: str = "q", credit: int = 0) -> Link:
        """Attach a link to receive on."""
        link = self.session.attach_receiver(uuid.uuid4().hex, Source(address=queue), Target(address="c"))
        await self.wait(LinkAttached, lambda event: event.link is link)
        if credit:
            link.grant(credit)
            await self.flush()
        return link

    async def send(self, link: Link, body: bytes) -> Any:
        """Send one message and return the outcome."""
        first = link.send_one(uuid.uuid4().bytes, message(body), False)
        event = await self.wait(Dispositions, lambda event: event.role and event.ranges[0][0] == first)
        return event.ranges[0][3]

    async def receive(self, link: Link) -> tuple[int, bytes]:
        """(delivery id, encoded message) of the next delivery; credit is the caller's business."""
        event = await self.wait(Transfers, lambda event: event.link is link)
        assert len(event.payloads) == 1
        return event.first_delivery_id, event.payloads[0]


def message(body: bytes) -> bytes:
    """An encoded message with one data section."""
    return build_message([uuid.uuid4().hex], data=body)


async def settled(what: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    while not what():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


async def closed_by_server(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Everything until the server closes."""
    found = b""
    while True:
        try:
            data = await read()
        except ConnectionError:
            return found
        if not data:
            return found
        found += data
