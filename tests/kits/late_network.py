"""Ways between processes of this machine on which everything can arrive late, each piece by another time.

What is sent keeps its order, as with TCP: a piece that is late holds up those behind it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

#: Bytes read at once.
_PIECE: Final = 1 << 16
#: Pieces on their way in one direction; whoever sends more waits.
_PIECES_MAX: Final = 256


class Way(NamedTuple):
    """Where connections are taken, and where they lead."""

    host: str
    port: int
    target_host: str
    target_port: int


class LateNetwork:
    """Passes connections on.

    Args:
        seed: Of the times that pieces take.

    Attributes:
        jitter_s: Each piece is on its way for a time between zero and this, in seconds, each as likely; zero at first.
        connections: How many were taken so far.
    """

    def __init__(self, seed: int) -> None:
        self.jitter_s = 0.0
        self.connections = 0
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, ways: Iterable[Way], is_listening: threading.Event) -> None:
        """Pass on until `end` is called; the thread that calls this does nothing else."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(list(ways), is_listening))

    def end(self) -> None:
        """Close everything; called by another thread."""
        self._loop.call_soon_threadsafe(self._is_over.set)

    async def _serve(self, ways: list[Way], is_listening: threading.Event) -> None:
        servers = [await self._listen(way) for way in ways]
        is_listening.set()
        await self._is_over.wait()
        for server in servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, way: Way) -> asyncio.Server:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer, way)
            writer.close()

        return await asyncio.start_server(take, way.host, way.port)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        target_reader, target_writer = await asyncio.open_connection(way.target_host, way.target_port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, target_writer))
                group.create_task(self._carry(target_reader, writer))
        except* OSError:
            pass
        finally:
            target_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction to its end, which arrives late, too."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_MAX)

        async def read() -> None:
            piece = b"-"
            while piece:
                piece = await reader.read(_PIECE)
                await pieces.put((self._loop.time() + self._random.uniform(0, self.jitter_s), piece))

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(due - self._loop.time())
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@contextmanager
def late_network(ways: Iterable[Way], seed: int) -> Iterator[LateNetwork]:
    """A network with these ways, as long as this lasts."""
    network, is_listening = LateNetwork(seed), threading.Event()
    thread = threading.Thread(target=network.begin, args=(ways, is_listening))
    thread.start()
    try:
        assert is_listening.wait(20), "nothing listens"
        yield network
    finally:
        network.end()
        thread.join()
