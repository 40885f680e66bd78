"""TCP connections through a relay: a port of this machine behind a relay, and the relay behind a port.

Bytes travel in binary messages. When both ends are this program, they agree on the sub-protocol ``duobus-tcp``, in
which an empty text message says that one direction has ended; without it the end of either direction ends both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from socket import SO_LINGER, SOL_SOCKET
from typing import Final

import aiohttp
from yarl import URL

from duobus.model.relay.headers import combined, end_to_end
from duobus.model.relay.limits import CHANNEL_BODY_BYTES_MAX, CLOSE_ERROR, CLOSE_NORMAL
from duobus.relay.aio.bodies import Answer, StreamedBody, StreamedRequest, StreamedResponse
from duobus.relay.aio.listener import PendingConnection
from duobus.relay.aio.sender import RelayConnection
from duobus.relay.errors import ConnectionDropped, RelayError
from duobus.relay.http import RelayResponse

_log = logging.getLogger("duobus.relay")

PROTOCOL: Final = "duobus-tcp"
#: What is read from TCP at once: a message of this size costs little beside its bytes.
CHUNK_BYTES: Final = 256 << 10
CONNECT_S: Final = 10.0
#: An application that takes its time has as long as the relay allows.
REQUEST_S: Final = 60.0
#: An answer that is short and complete within this time goes over the control channel, every other one is streamed.
FLUSH_S: Final = 0.05
#: The largest body of a request that is gathered, so that the port gets its length; a larger one is sent in chunks.
WHOLE_BYTES_MAX: Final = 1 << 20

#: Told (what, text) of connections that fail.
Teller = Callable[[str, str], None]


async def carry(connection: RelayConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways until both directions have ended, or one has failed; close both sides then."""
    knows_ends = connection.protocol == PROTOCOL
    ended = asyncio.Event()
    outward = asyncio.create_task(_to_relay(connection, reader, knows_ends))
    inward = asyncio.create_task(_from_relay(connection, writer, ended))
    code = CLOSE_ERROR
    try:
        await asyncio.wait([outward, inward], return_when=asyncio.FIRST_COMPLETED)
        if knows_ends and not inward.done():
            # This side has said all. The other one goes on until it has, too; its pings are answered meanwhile.
            other_end = asyncio.create_task(ended.wait())
            await asyncio.wait([other_end, inward], return_when=asyncio.FIRST_COMPLETED)
            other_end.cancel()
        failures = [task.exception() for task in (outward, inward) if task.done()]
        if not any(failures) and not connection.is_broken:
            code = CLOSE_NORMAL
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)
        with contextlib.suppress(RelayError):
            await connection.close(code, "" if code == CLOSE_NORMAL else "the TCP connection broke")
        if code != CLOSE_NORMAL:
            reset(writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a TCP connection so that its other end sees an error: no broken transfer is taken for a whole one."""
    socket = writer.get_extra_info("socket")
    if socket is not None:
        with contextlib.suppress(OSError):
            # A close without waiting sends a reset in place of an end.
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _to_relay(connection: RelayConnection, reader: asyncio.StreamReader, knows_ends: bool) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await connection.send(data)
    if knows_ends:
        await connection.send("")


async def _from_relay(connection: RelayConnection, writer: asyncio.StreamWriter, ended: asyncio.Event) -> None:
    async for message in connection:
        if isinstance(message, bytes):
            writer.write(message)
            await writer.drain()
        elif not message:
            ended.set()
            if writer.can_write_eof():
                writer.write_eof()


class LocalPort:
    """What a listener hands to a TCP port of this machine: connections as bytes, requests as HTTP.

    Args:
        host: Host of the port.
        port: Number of the port.
        tell: Told of connections that fail.
    """

    def __init__(self, host: str, port: int, tell: Teller) -> None:
        self._host = host
        self._port = port
        self._tell = tell
        self._session: aiohttp.ClientSession | None = None

    async def on_connection(self, pending: PendingConnection) -> None:
        """Connect to the port, then take the sender; without the port the sender is rejected with 503."""
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=2 * CHUNK_BYTES)
        except (OSError, TimeoutError) as error:
            text = f"{self._host}:{self._port} does not take connections: {str(error) or type(error).__name__}"
            self._tell("rejected", text)
            await pending.reject(503, "The forwarded port does not take connections.")
            return
        try:
            connection = await pending.accept(PROTOCOL if PROTOCOL in pending.protocols else None)
        except BaseException:
            reset(writer)
            raise
        await carry(connection, reader, writer)

    async def on_stream(self, asked: StreamedRequest) -> Answer:
        """Send a request to the port by HTTP, and bring its answer; large bodies go piece by piece."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(sock_read=REQUEST_S, sock_connect=CONNECT_S),
            )
            # The sender decides whether a request may be sent again.
            self._session._retry_connection = False
        target = f"http://{self._host}:{self._port}{asked.path}{'?' if asked.query else ''}{asked.query}"
        try:
            answer = await self._session.request(
                asked.method,
                URL(target, encoded=True),
                headers=dict(end_to_end(asked.headers.items())),
                data=await _upload(asked.body) or None,
                allow_redirects=False,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            )
        except (RelayError, aiohttp.ClientError, OSError) as error:
            return self._failed(error)
        headers = combined(end_to_end(answer.headers.items()))
        begun = bytearray()
        try:
            async with asyncio.timeout(FLUSH_S):
                while len(begun) <= CHANNEL_BODY_BYTES_MAX:
                    piece = await answer.content.readany()
                    if not piece:
                        return RelayResponse(answer.status, headers, bytes(begun), answer.reason or "")
                    begun += piece
        except TimeoutError:
            pass
        except (aiohttp.ClientError, OSError) as error:
            answer.close()
            return self._failed(error)
        except BaseException:
            answer.close()
            raise

        async def close() -> None:
            answer.close()

        pieces = self._pieces(answer, bytes(begun))
        return StreamedResponse(answer.status, headers, pieces, answer.reason or "", on_close=close)

    async def _pieces(self, answer: aiohttp.ClientResponse, begun: bytes) -> AsyncIterator[bytes]:
        try:
            yield begun
            while piece := await answer.content.readany():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            self._failed(error)
            raise ConnectionDropped("the forwarded port broke its answer off") from error

    def _failed(self, error: Exception) -> RelayResponse:
        self._tell("failed", f"{self._host}:{self._port}: {str(error) or type(error).__name__}")
        return RelayResponse(503, body=b"The forwarded port does not answer.")

    async def close(self) -> None:
        """Close the connections of requests."""
        if self._session is not None:
            await self._session.close()


async def _upload(body: StreamedBody) -> bytes | AsyncIterator[bytes]:
    """A body for the port: as a whole, and so with its length, up to a size; many small servers need the length."""
    begun = bytearray()
    while len(begun) <= WHOLE_BYTES_MAX:
        piece = await body.receive_piece()
        if not piece:
            return bytes(begun)
        begun += piece

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(begun)
        async for piece in body:
            yield piece

    return pieces()


async def expose(
    host: str, port: int, open_connection: Callable[..., Awaitable[RelayConnection]], tell: Teller
) -> asyncio.Server:
    """Listen on a TCP port; each connection becomes one through a relay.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        open_connection: ``connect`` of a ``RelaySender`` or a ``RelayPair``.
        tell: Told of connections that fail.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await open_connection(protocols=[PROTOCOL])
        except RelayError as error:
            tell("failed", str(error))
            reset(writer)
            return
        except asyncio.CancelledError:
            reset(writer)
            raise
        await carry(connection, reader, writer)

    return await asyncio.start_server(serve, host, port, limit=2 * CHUNK_BYTES)


def parse_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[::1]:PORT`` or ``PORT``.

    Raises:
        ValueError: The text is of none of these forms.
    """
    host, _, number = text.strip().rpartition(":")
    if not number.isascii() or not number.isdigit() or int(number) > 65_535:
        raise ValueError(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:8000.")
    return host.strip("[]") or "127.0.0.1", int(number)
