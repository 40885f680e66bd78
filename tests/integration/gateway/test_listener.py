"""Telling TLS from the rest by the first byte, and connections that say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path

import pytest

from duobus.clock import Clock, Entropy
from duobus.gateway import listener as module
from duobus.gateway.listener import Listener
from duobus.gateway.tls import SelfSigned, server_context
from duobus.telemetry.logs import Log


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.transport.write(data)


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on real sockets, for at most five seconds."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return run


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    files = SelfSigned(folder, Clock(), Entropy()).ensure(["localhost"])
    return server_context(files.certificate, files.key), ssl.create_default_context(cafile=str(files.authority))


async def opened(tls: ssl.SSLContext | None) -> Listener:
    """A listener that echoes."""
    found = Listener("test", Echo, None if tls is None else lambda: tls, Log("test"))
    await found.open("127.0.0.1", 0)
    return found


async def shut(writer: asyncio.StreamWriter) -> None:
    """Close a client's side and wait for it; how the other side ended is not the question here."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def echoed(port: int, context: ssl.SSLContext | None, data: bytes = b"\x01hello") -> bytes:
    """What comes back; empty when the listener closes."""
    name = None if context is None else "localhost"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        writer.write(data)
        return await reader.read(len(data))
    finally:
        await shut(writer)


@in_a_loop
async def test_plain_and_tls_clients_are_served_on_one_port(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = certificates
    listener = await opened(server)
    assert listener.port > 0
    assert await echoed(listener.port, None) == b"\x01hello"
    assert await echoed(listener.port, client) == b"\x01hello"
    await listener.close()


@in_a_loop
async def test_a_tls_client_is_dropped_where_there_are_no_certificates(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    listener = await opened(None)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await echoed(listener.port, certificates[1])
    assert await echoed(listener.port, None) == b"\x01hello"
    await listener.close()


@in_a_loop
async def test_a_broken_tls_handshake_harms_nobody_else(certificates: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = certificates
    listener = await opened(server)
    assert b"hello" not in await echoed(listener.port, None, b"\x16nonsense hello")
    assert await echoed(listener.port, client) == b"\x01hello"
    await listener.close()


@in_a_loop
async def test_a_silent_connection_is_dropped_after_its_time() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_BYTE_TIMEOUT_S", 0.1)
        listener = await opened(None)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read(1) == b""
        await shut(writer)
        await listener.close()


@in_a_loop
async def test_a_connection_that_spoke_is_not_dropped_for_being_silent_later() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_BYTE_TIMEOUT_S", 0.1)
        listener = await opened(None)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        await asyncio.sleep(0.2)
        writer.write(b"b")
        assert await reader.read(1) == b"b"
        await shut(writer)
        await listener.close()


@in_a_loop
async def test_the_oldest_silent_connection_goes_when_there_are_too_many_and_others_are_served() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SILENT_MAX", 2)
        listener = await opened(None)
        held = []
        for _ in range(2):
            held.append(await asyncio.open_connection("127.0.0.1", listener.port))
            await asyncio.sleep(0.05)
        assert await echoed(listener.port, None) == b"\x01hello"
        (oldest, _), (newer, _) = held
        assert await oldest.read(1) == b""
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(newer.read(1), 0.05)
        assert len(listener._silent) <= 2
        for _, other in held:
            await shut(other)
        await listener.close()


@in_a_loop
async def test_of_connections_that_said_too_little_the_oldest_goes_when_these_are_more() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SILENT_MAX", 2)
        listener = Listener("test", Echo, None, Log("test"), http=Echo)
        await listener.open("127.0.0.1", 0)
        held = []
        for _ in range(2):
            held.append(await asyncio.open_connection("127.0.0.1", listener.port))
            held[-1][1].write(b"A")
            await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await held[0][0].read(1) == b""
        assert len(listener._undetermined) == 1
        for _, other in (*held, (reader, writer)):
            await shut(other)
        await listener.close()


@in_a_loop
async def test_connections_that_come_at_once_are_taken_one_after_the_other() -> None:
    taken: list[Echo] = []

    class Counted(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            taken.append(self)
            super().connection_made(transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ACCEPT_REST_S", 0.05)
        listener = Listener("test", Counted, None, Log("test"))
        await listener.open("127.0.0.1", 0)
        clients = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(4)]
        for _, writer in clients:
            writer.write(b"a")
        reader, _ = clients[0]
        assert await reader.read(1) == b"a"
        assert len(taken) < 4
        for reader, _ in clients[1:]:
            assert await reader.read(1) == b"a"
        for _, writer in clients:
            await shut(writer)
        await listener.close()


@in_a_loop
async def test_a_listener_that_is_closed_while_it_rests_stays_closed() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ACCEPT_REST_S", 0.02)
        listener = await opened(None)
        clients = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        await asyncio.sleep(0.01)
        await listener.close()
        await asyncio.sleep(0.03)
        for _, writer in clients:
            await shut(writer)


@in_a_loop
async def test_a_port_that_is_taken_is_an_error_and_closing_frees_it() -> None:
    listener = await opened(None)
    other = Listener("other", Echo, None, Log("test"))
    with pytest.raises(OSError, match="in use"):
        await other.open("127.0.0.1", listener.port)
    await listener.close()
    await other.open("127.0.0.1", listener.port)
    await other.close()
