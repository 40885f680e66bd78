"""A handshake that another server answers: its head and all bytes behind that go through as they are, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from aiohttp import web

from duobus.gateway.relay.websocket_end import Upgraded
from duobus.model.relay.headers import description_of
from duobus.model.relay.limits import BODY_AHEAD_BYTES, HEADERS_BYTES_MAX, RENDEZVOUS_S

#: How long the other server may take to answer: as long as a listener, and a little.
_ANSWER_S: Final = RENDEZVOUS_S + 10
#: Bytes of the text of a refusal that are handed on.
_TEXT_MAX: Final = 16 << 10
_PIECE: Final = 1 << 16
#: What of a refusal goes to the sender beside its status, its reason and its text.
_KEPT: Final = ("via", "content-type", "www-authenticate")


class HeadTooLarge(Exception):
    """The other server's answer has a head that is longer than any of its heads."""


class ProxiedHandshake:
    """One handshake on its way to another server.

    Args:
        request: The handshake.
        reader, writer: The connection to the other server.
    """

    def __init__(self, request: web.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._request = request
        self._reader = reader
        self._writer = writer
        self._protocol = request.protocol
        self._is_waiting = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, more: Iterable[tuple[str, str]]) -> web.StreamResponse:
        """Send the handshake on, with more headers; return the answer, after the end of what was joined by it.

        Raises:
            OSError, TimeoutError, HeadTooLarge, asyncio.IncompleteReadError: The other server gives no answer.
        """
        request = self._request
        lines = [f"{request.method} {request.raw_path} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in request.raw_headers]
        lines += [f"{name}: {value}".encode() for name, value in more]
        self._writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        async with asyncio.timeout(_ANSWER_S):
            await self._writer.drain()
            try:
                head = await self._reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                raise HeadTooLarge(f"its head has more than {HEADERS_BYTES_MAX} bytes") from None
        first, *others = head.decode("latin-1").split("\r\n")
        _, status, reason = (first + "  ").split(" ", 2)
        if int(status) == 101:
            return await self._spliced(head)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in others if line)}
        length = int(headers.get("content-length", "0"))
        async with asyncio.timeout(_ANSWER_S):
            text = await self._reader.readexactly(min(length, _TEXT_MAX))
        kept = {name.title(): headers[name] for name in _KEPT if name in headers}
        return web.Response(status=int(status), reason=description_of(reason, 1024), body=text, headers=kept)

    async def _spliced(self, head: bytes) -> web.StreamResponse:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the sender is gone")
        transport.write(head)
        self._protocol.keep_alive(False)
        # aiohttp hands all further bytes to whatever has this parser's two methods.
        self._protocol.set_parser(self)  # type: ignore[arg-type]
        try:
            while data := await self._reader.read(_PIECE):
                if transport.is_closing():
                    break
                transport.write(data)
                if transport.get_write_buffer_size() > BODY_AHEAD_BYTES:
                    await self._protocol._drain_helper()
        except OSError:
            # Either side is gone, and the other one is told by the end of its connection.
            pass
        finally:
            transport.close()
        return Upgraded()

    def close(self) -> None:
        """Close the connection to the other server."""
        for task in self._tasks:
            task.cancel()
        self._writer.close()

    # -- what the sender sends --------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes of the sender; see aiohttp's parsers."""
        transport = self._writer.transport
        if not transport.is_closing():
            self._writer.write(data)
            if transport.get_write_buffer_size() > BODY_AHEAD_BYTES and not self._is_waiting:
                self._is_waiting = True
                self._pause()
                task = asyncio.get_running_loop().create_task(self._drained(), name="relay-drain")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return False, b""

    def feed_eof(self) -> None:
        """The sender is gone; see aiohttp's parsers."""
        self._writer.close()

    def _pause(self) -> None:
        if self._request.transport is not None:
            self._request.transport.pause_reading()

    async def _drained(self) -> None:
        """Read on once the other server has taken what was sent."""
        try:
            await self._writer.drain()
        except OSError:
            # The reading side notices as well.
            return
        finally:
            self._is_waiting = False
        if self._request.transport is not None:
            self._request.transport.resume_reading()
