"""TlsTransport between a listener and clients on real sockets: limits, goodbyes, and what a client may not do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock, Entropy
from duobus.gateway import listener as listener_module
from duobus.gateway import tls_transport as module
from duobus.gateway.listener import Listener
from duobus.gateway.tls import SelfSigned, server_context
from duobus.gateway.tls_engine import PIECE_BYTES, READ_BYTES, TlsBuffers
from duobus.gateway.tls_transport import TlsTransport
from duobus.server.turn_selector import TurnLoop
from duobus.telemetry.logs import Log

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
ALERT = 0x15


class Recorder(asyncio.Protocol):
    """Notes what happens.

    Attributes:
        made: All that were made, by age.
    """

    made: list[Recorder]

    def __init__(self) -> None:
        self.received = b""
        self.is_full = False
        self.was_full = False
        self.has_ended = False
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.on_data: Callable[[bytes], None] = lambda data: None
        type(self).made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.received += data
        self.on_data(data)

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        self.has_ended = True

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_full = self.was_full = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.lost.set_result(exc)


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on real sockets, for at most ten seconds each: in asyncio's loop, and in that of a server."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            problems: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            async with asyncio.timeout(10):
                await test(*args, **kwargs)
            assert problems == []

        for loop in (asyncio.SelectorEventLoop, TurnLoop):
            Recorder.made = []
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(limited())

    return run


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Contexts of a server and of a client that trusts it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    files = SelfSigned(folder, Clock(), Entropy()).ensure(["localhost"])
    return server_context(files.certificate, files.key), ssl.create_default_context(cafile=str(files.authority))


async def opened(contexts: Contexts) -> Listener:
    """A listener whose connections are Recorders."""
    found = Listener("test", Recorder, lambda: contexts[0], Log("test"))
    await found.open("127.0.0.1", 0)
    return found


async def connected(
    listener: Listener, contexts: Contexts
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Recorder]:
    """A client of a listener, and the server's side of it."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", listener.port, ssl=contexts[1], server_hostname="localhost"
    )
    await until(lambda: bool(Recorder.made) and hasattr(Recorder.made[-1], "transport"))
    return reader, writer, Recorder.made[-1]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that some turns of the loop bring."""
    loop = asyncio.get_running_loop()
    while not is_so():
        turn = loop.create_future()
        loop.call_later(0.001, turn.set_result, None)
        await turn


async def shut(writer: asyncio.StreamWriter, listener: Listener) -> None:
    """Close both sides."""
    # Before 3.11.5 a transport that was closed twice cannot be aborted any more.
    if not writer.transport.is_closing():
        writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    for recorder in Recorder.made:
        if hasattr(recorder, "transport"):
            recorder.transport.abort()
            await recorder.lost
    await listener.close()


@in_a_loop
async def test_a_protocol_sees_what_tls_knows_and_the_socket_below(contexts: Contexts) -> None:
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    transport = server.transport
    assert isinstance(transport, TlsTransport)
    assert transport.get_extra_info("sslcontext") is contexts[0]
    assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert transport.get_extra_info("cipher") == writer.get_extra_info("cipher")
    assert transport.get_extra_info("peercert") is None
    assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")
    assert transport.get_extra_info("nothing", 7) == 7
    assert not transport.can_write_eof()
    await shut(writer, listener)


@in_a_loop
async def test_a_client_that_does_not_read_fills_no_more_than_the_limit_allows(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer, server = await connected(listener, contexts)
    server.transport.set_write_buffer_limits(high=65_536)
    piece = bytes(range(256)) * 64
    sent = 0
    while not server.is_full:
        server.transport.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)
    assert 65_536 < server.transport.get_write_buffer_size() < 65_536 + 2 * len(piece)
    received = await reader.readexactly(sent)
    assert received == piece * (sent // len(piece))
    await until(lambda: not server.is_full)
    await shut(writer, listener)


@in_a_loop
async def test_megabytes_written_at_once_arrive_whole(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer, server = await connected(listener, contexts)
    data = bytes(range(256)) * 20_000
    server.transport.writelines([data[:1_000], data[1_000:]])
    assert await reader.readexactly(len(data)) == data
    writer.write(data)
    await until(lambda: len(server.received) == len(data))
    assert server.received == data
    await shut(writer, listener)


@in_a_loop
async def test_nothing_is_handed_on_while_reading_is_paused(contexts: Contexts) -> None:
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    server.transport.pause_reading()
    assert not server.transport.is_reading()
    writer.write(b"hello")
    await asyncio.sleep(0.05)
    assert server.received == b""
    server.transport.resume_reading()
    assert server.transport.is_reading()
    await until(lambda: server.received == b"hello")
    await shut(writer, listener)


@in_a_loop
async def test_what_was_written_before_a_close_arrives_with_a_goodbye_behind_it(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer, server = await connected(listener, contexts)
    data = b"x" * 3_000_000
    server.transport.write(data)
    server.transport.close()
    assert server.transport.is_closing()
    server.transport.write(b"too late")
    assert await reader.read() == data
    writer.close()
    await writer.wait_closed()
    assert await server.lost is None
    await listener.close()


@in_a_loop
async def test_a_close_while_reading_is_paused_still_hears_the_goodbye(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer, server = await connected(listener, contexts)
    server.transport.pause_reading()
    writer.write(b"never heard")
    await writer.drain()
    server.transport.close()
    assert await reader.read() == b""
    writer.close()
    assert await server.lost is None
    assert server.received == b""
    await listener.close()


@in_a_loop
async def test_a_client_that_never_says_goodbye_is_cut_off(contexts: Contexts) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHUTDOWN_TIMEOUT_S", 0.1)
        listener = await opened(contexts)
        _, writer, server = await connected(listener, contexts)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        server.transport.write(b"x" * 20_000_000)
        server.transport.close()
        await server.lost
        await shut(writer, listener)


@in_a_loop
async def test_the_goodbye_of_a_client_ends_the_connection_behind_its_last_bytes(contexts: Contexts) -> None:
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    writer.write(b"last")
    writer.close()
    await writer.wait_closed()
    assert await server.lost is None
    assert server.received == b"last"
    assert server.has_ended
    await listener.close()


@in_a_loop
async def test_a_client_that_ends_without_a_goodbye_is_gone_too(contexts: Contexts) -> None:
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    sock: socket.socket = writer.get_extra_info("socket")
    sock.shutdown(socket.SHUT_WR)
    assert await server.lost is None
    assert server.has_ended
    await shut(writer, listener)


@in_a_loop
async def test_bytes_that_are_no_tls_end_the_connection_with_their_error(contexts: Contexts) -> None:
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    # asyncio lets nobody write to the socket of a transport by that, so it is done by its number.
    os.write(writer.get_extra_info("socket").fileno(), b"this is no record of TLS")
    assert isinstance(await server.lost, ssl.SSLError)
    assert server.received == b""
    await shut(writer, listener)


@in_a_loop
async def test_a_protocol_may_close_or_abort_within_its_data(contexts: Contexts) -> None:
    for end in (TlsTransport.close, TlsTransport.abort):
        listener = await opened(contexts)
        reader, writer, server = await connected(listener, contexts)
        transport = server.transport
        assert isinstance(transport, TlsTransport)
        server.on_data = lambda _, end=end, transport=transport: end(transport)  # type: ignore[misc]
        writer.write(b"hello")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert await server.lost is None
        assert server.received == b"hello"
        await shut(writer, listener)


@in_a_loop
async def test_a_handshake_that_fails_is_answered_with_an_alert(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    # A record with a ClientHello that has no content.
    writer.write(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00")
    assert (await reader.read())[0] == ALERT
    assert not hasattr(Recorder.made[-1], "transport")
    await shut(writer, listener)


@in_a_loop
async def test_a_handshake_has_its_time(contexts: Contexts) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener_module, "TLS_HANDSHAKE_TIMEOUT_S", 0.1)
        listener = await opened(contexts)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await shut(writer, listener)


@in_a_loop
async def test_a_client_may_leave_within_the_handshake(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"\x16\x03\x01")
    writer.write_eof()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    await until(lambda: not listener._silent)
    await shut(writer, listener)


@in_a_loop
async def test_a_handshake_may_not_bring_as_much_at_once_as_an_open_connection(contexts: Contexts) -> None:
    buffers = TlsBuffers()
    transport = TlsTransport(contexts[0], buffers, Recorder())
    assert len(transport.get_buffer(-1)) == PIECE_BYTES
    listener = await opened(contexts)
    _, writer, server = await connected(listener, contexts)
    assert isinstance(server.transport, TlsTransport)
    assert len(server.transport.get_buffer(-1)) == READ_BYTES
    Recorder.made = [server]
    await shut(writer, listener)


@in_a_loop
async def test_bytes_that_come_with_the_end_of_the_handshake_are_handed_on(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts[1].wrap_bio(incoming, outgoing, server_hostname="localhost")
    is_open = False
    while not is_open:
        try:
            client.do_handshake()
            is_open = True
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65_536))
    client.write(b"at once")
    writer.write(outgoing.read())
    await until(lambda: Recorder.made[-1].received == b"at once")
    await shut(writer, listener)


@in_a_loop
async def test_closing_a_listener_ends_handshakes(contexts: Contexts) -> None:
    listener = await opened(contexts)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"\x16\x03\x01")
    await until(lambda: bool(Recorder.made))
    await listener.close()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
