"""A server in the test's own loop whose clock can be pushed, a client that writes frames by hand, and a neighbour."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, Self

import msgspec

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Attach, Begin, Flow, Open, Performative, SaslInit, Source, Target, Transfer
from duobus.clock import Clock, Entropy
from duobus.codec import Described, build_message, decode
from duobus.model.access_rules import sign_token
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY, NamespaceConfig, Settings, load_settings

RULE = "RootManageSharedAccessKey"
LIMIT_S = 60.0
MIB = 1 << 20

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)


class PushedClock(Clock):
    """The real clocks, and what a test adds to them."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class Bus:
    """The server under attack."""

    def __init__(self, server: Server, clock: PushedClock) -> None:
        self.server = server
        self.clock = clock
        self.wires: list[Wire] = []

    @property
    def port(self) -> int:
        port = self.server.port("amqp")
        assert port is not None
        return port

    async def push(self, seconds: float) -> None:
        """Let time pass for the server, and its second-hand look at every connection."""
        self.clock.ahead_ms += int(seconds * 1000)
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        for peer in list(self.server.amqp.peers):
            peer.tick(now_ms, monotonic_ms)
        for broker in self.server.unit.brokers.values():
            # Its timer counts in real time.
            broker.time_moved()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def attacked(*queues: QueueDescription, **options: Any) -> AsyncIterator[Bus]:
    """A server with everything in memory, on ports that the system picks."""
    settings = load_settings(
        Settings(data=None, ephemeral=True, emulator=True, stores=1, port=0, tls_port=0, http_port=0, **options)
    )
    namespace = NamespaceConfig(name="ns", queues=(QueueDescription(name="q"), QueueDescription(name="calm"), *queues))
    clock = PushedClock()
    server = Server(msgspec.structs.replace(settings, namespaces=(namespace,)), clock, Entropy())
    await server.start()
    try:
        yield Bus(server, clock)
    finally:
        await server.stop()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test, in bounded time, against a server that has to serve a neighbour all the while."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S), attacked() as bus:
                neighbour = await Wire.known(bus)
                await neighbour.round_trip()
                try:
                    await test(bus, *args, **kwargs)
                    await neighbour.round_trip()
                finally:
                    for wire in bus.wires:
                        wire.drop()
                    await asyncio.sleep(0.01)

        asyncio.run(limited())

    # Parameters belong to pytest, the first one to us.
    del run.__wrapped__
    names = list(test.__annotations__)[1:]
    run.__signature__ = _signature([name for name in names if name != "return"])  # type: ignore[attr-defined]
    return run


def _signature(names: list[str]) -> Any:
    from inspect import Parameter, Signature

    return Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])


def token(
    entity: str = "", life_s: float = 600, rule: str = RULE, key: str = EMULATOR_KEY, host: str = "localhost"
) -> str:
    """A shared access signature."""
    return sign_token(f"sb://{host}/{entity}", rule, key, int(time.time() + life_s))


class Gone(Exception):
    """The server closed the connection; the frames that came before are in ``frames``."""


class Wire:
    """One connection, frames written by hand; ``frames`` holds all that came: (channel, code, fields, payload)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames: list[tuple[int, int, list[Any], bytes]] = []
        self.raw = bytearray()
        self.is_gone = False
        self._names = 0
        self._taken = 0

    @classmethod
    async def dial(cls, bus: Bus) -> Self:
        """Connect and say nothing."""
        wire = cls(*await asyncio.open_connection("127.0.0.1", bus.port))
        bus.wires.append(wire)
        return wire

    @classmethod
    async def stranger(cls, bus: Bus, **options: Any) -> Self:
        """Connect anonymously, as every SDK does before its first token."""
        wire = await cls.dial(bus)
        await wire.greet(SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="localhost"), **options)
        return wire

    @classmethod
    async def known(cls, bus: Bus, **options: Any) -> Self:
        """Connect with a login that may do everything, and begin a session."""
        wire = await cls.dial(bus)
        response = f"\0{RULE}\0{EMULATOR_KEY}".encode()
        await wire.greet(SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost"), **options)
        await wire.begin()
        return wire

    async def greet(self, init: SaslInit, **options: Any) -> None:
        opening = {"container_id": "wire", "hostname": "localhost", "max_frame_size": 65_536} | options
        self.write(SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL) + AMQP_HEADER)
        self.say(0, Open(**opening))
        await self.hear(OPEN)

    # -- bytes and frames ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def flush(self) -> None:
        await self.writer.drain()

    def say(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.write(frame(channel, performative.to_bytes() + payload))

    async def _more(self) -> None:
        try:
            data = await self.reader.read(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self.is_gone = True
            raise Gone(str(self.frames[-3:]))
        self.raw += data
        pos = 0
        raw = bytes(self.raw)
        while len(raw) - pos >= 8:
            size = 8 if raw[pos : pos + 4] == b"AMQP" else int.from_bytes(raw[pos : pos + 4], "big")
            if len(raw) - pos < size:
                break
            if raw[pos : pos + 4] != b"AMQP" and size > 8:
                value, end = decode(raw, pos + 8)
                assert isinstance(value, Described)
                channel = int.from_bytes(raw[pos + 6 : pos + 8], "big")
                self.frames.append((channel, int(value.descriptor), value.value, raw[end : pos + size]))
            pos += size
        del self.raw[:pos]

    async def hear(self, code: int, where: Callable[[list[Any]], bool] = lambda fields: True) -> list[Any]:
        """The fields of the next frame of a kind; what came before it is passed over."""
        return (await self.hear_all(code, where))[2]

    async def hear_all(self, code: int, where: Callable[[list[Any]], bool]) -> tuple[int, int, list[Any], bytes]:
        while True:
            while self._taken < len(self.frames):
                found = self.frames[self._taken]
                self._taken += 1
                if found[1] == code and where(found[2]):
                    return found
            await self._more()

    async def ended(self) -> str | None:
        """Wait for the end of the connection; the condition of the close, None without one."""
        try:
            while True:
                await self._more()
        except Gone:
            pass
        closes = [fields for _, code, fields, _ in self.frames if code == CLOSE]
        return condition(closes[-1], 0) if closes else None

    def drop(self) -> None:
        self.writer.transport.abort()

    # -- shortcuts ----------------------------------------------------------------------------------------------

    async def begin(self, channel: int = 0, window: int = 10_000) -> None:
        self.say(channel, Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=5000))
        await self.hear(BEGIN)

    def ask_for_link(
        self, address: str | None, handle: int, *, receives: bool, channel: int = 0, **options: Any
    ) -> None:
        """Attach, and do not wait."""
        self._names += 1
        fields: dict[str, Any] = {
            "name": f"l{self._names}",
            "handle": handle,
            "role": receives,
            "source": Source(address=address if receives else "me"),
            "target": Target(address="me" if receives else address),
            "initial_delivery_count": None if receives else 0,
        }
        self.say(channel, Attach(**fields | options))

    async def link(self, address: str, handle: int, *, receives: bool, channel: int = 0, **options: Any) -> list[Any]:
        """Attach and wait for the answer."""
        self.ask_for_link(address, handle, receives=receives, channel=channel, **options)
        return await self.hear(ATTACH)

    def credit(self, handle: int, credit: int, *, window: int = 10_000, channel: int = 0, **options: Any) -> None:
        fields: dict[str, Any] = {
            "next_incoming_id": 0,
            "incoming_window": window,
            "next_outgoing_id": 0,
            "outgoing_window": 5000,
            "handle": handle,
            "delivery_count": 0,
            "link_credit": credit,
        }
        self.say(channel, Flow(**fields | options))

    def transfer(self, handle: int, number: int, payload: bytes, *, channel: int = 0, **options: Any) -> None:
        fields: dict[str, Any] = {
            "handle": handle,
            "delivery_id": number,
            "delivery_tag": number.to_bytes(4, "big"),
            "message_format": 0,
            "settled": False,
        }
        self.say(channel, Transfer(**fields | options), payload)

    async def put_token(self, audience: str, text: Any) -> int:
        """Ask ``$cbs`` over links 200 and 201 of a session of their own; returns the status code."""
        await self.begin(9)
        await self.link("$cbs", 0, receives=True, channel=9)
        await self.link("$cbs", 1, receives=False, channel=9)
        self.credit(0, 10, channel=9)
        properties = {"operation": "put-token", "type": "jwt", "name": audience}
        self.transfer(1, 0, build_message([uuid.uuid4()], properties, body_value=text), channel=9)
        frame_ = await self.hear_all(TRANSFER, lambda fields: True)
        from duobus.codec import application_properties, scan

        return int(application_properties(frame_[3][scan(frame_[3]).bare :])["status-code"])

    async def round_trip(self) -> None:
        """Send a message to the calm queue, see it accepted, receive and complete it."""
        if not self._names:
            await self.link("calm", 0, receives=False)
            await self.link("calm", 1, receives=True)
            self._sent = 0
        body = uuid.uuid4().bytes
        self.transfer(0, self._sent, message(body))
        await self.hear(DISPOSITION)
        self.credit(1, 1, delivery_count=self._sent, next_incoming_id=self._sent)
        found = await self.hear_all(TRANSFER, lambda fields: True)
        assert body in found[3]
        from duobus.amqp.frames import disposition_frame

        self.write(disposition_frame(0, True, found[2][1], found[2][1], True, b"\x00\x53\x24\x45"))
        self._sent += 1


def condition(fields: list[Any], index: int) -> str | None:
    """The condition of the error at a place of a performative."""
    error = fields[index] if len(fields) > index else None
    return None if error is None else str(error.value[0])


def message(body: bytes) -> bytes:
    """An encoded message with one data section."""
    return build_message([uuid.uuid4().hex], data=body)


async def until(what: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; the test's limit bounds it."""
    while not what():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


@contextmanager
def holds_at_most(limit: int) -> Iterator[None]:
    """What is still held at the end of the block and was not before is at most ``limit`` bytes.

    What the collector would find does not count: when it looks depends on what else this process has made.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held <= limit, f"{held} bytes are held, {limit} are allowed"
