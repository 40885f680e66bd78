"""A relay before a namespace, which the SDK's connections are led through: it cuts, refuses or delays."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Relay:
    """What the connections of this process to one address go through.

    The SDK's own address stays as it is, and so does the name that TLS verifies.

    Attributes:
        delay_s: Every piece of either direction waits so long.
        is_cut: Bytes are swallowed, and neither end learns of it.
        is_refusing: New connections end at once, as those did that were there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self.delay_s = 0.0
        self.is_cut = False
        self.is_refusing = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connect = asyncio.open_connection

    async def listen(self) -> int:
        """Begin; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lead the SDK's connections here from now on."""
        near = await self.listen()

        async def open_connection(host: Any = None, port: Any = None, **options: Any) -> Any:
            if (host, port) == (self._host, self._port):
                host, port = "127.0.0.1", near
            return await self._connect(host=host, port=port, **options)

        monkeypatch.setattr(asyncio, "open_connection", open_connection)

    def refuse(self) -> None:
        """End all connections, and those to come."""
        self.is_refusing = True
        for writer in list(self._writers):
            writer.close()

    def heal(self) -> None:
        """Let everything through; connections that were cut have lost bytes, and end."""
        was_cut = self.is_cut
        self.delay_s, self.is_cut, self.is_refusing = 0.0, False, False
        if was_cut:
            for writer in list(self._writers):
                writer.close()

    async def close(self) -> None:
        """End everything."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.close()
            return
        try:
            far_reader, far_writer = await self._connect(host=self._host, port=self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not self.is_cut:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()
            self._writers.discard(sink)


@contextmanager
def relay_of_threads(host: str, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A relay for the SDK without asyncio, in a loop of a thread of its own; gives a function that calls it there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = Relay(host, port)
    near = asyncio.run_coroutine_threadsafe(relay.listen(), loop).result()
    connect = socket.create_connection

    def create_connection(address: Any, *args: Any, **options: Any) -> Any:
        return connect(("127.0.0.1", near) if tuple(address) == (host, port) else address, *args, **options)

    async def call(function: Callable[[Relay], None]) -> None:
        function(relay)

    monkeypatch.setattr(socket, "create_connection", create_connection)
    try:
        yield lambda function: asyncio.run_coroutine_threadsafe(call(function), loop).result()
    finally:
        monkeypatch.setattr(socket, "create_connection", connect)
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
