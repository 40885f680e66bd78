"""Ways between processes of this machine on which everything can arrive late, each piece by another time.

What is sent keeps its order, as with TCP: a piece that is late holds up those behind it. The ways are in a process of
their own: in that of the tests they would wait for the interpreter behind clients of the SDK, and be later than was
asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

#: Bytes read at once.
_PIECE: Final = 1 << 16
#: Pieces on their way in one direction; whoever sends more waits.
_PIECES_MAX: Final = 256
#: Longest time for an answer of the process, in seconds.
_ANSWER_S: Final = 20.0


class Way(NamedTuple):
    """Where connections are taken, and where they lead."""

    host: str
    port: int
    target_host: str
    target_port: int


class LateNetwork:
    """The ways, as seen by a test.

    Args:
        channel: To the process of the ways.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def be_late(self, jitter_s: float) -> int:
        """Let each piece be on its way for a time between zero and this from now on, in seconds, each as likely.

        Returns:
            How many connections were taken so far.
        """
        self._channel.sendall(f"{jitter_s}\n".encode())
        return int(self._channel.recv(32))


class _Ways:
    """Passes connections on, at once until something else is said.

    Args:
        seed: Of the times that pieces take.
    """

    def __init__(self, seed: int) -> None:
        self._jitter_s = 0.0
        self._connections = 0
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, ways: Iterable[Way], channel: socket.socket) -> None:
        """Pass on, and answer who asks by ``channel``, until that ends."""
        servers = [await self._listen(way) for way in ways]
        reader, writer = await asyncio.open_connection(sock=channel)
        writer.write(b"0")
        while line := await reader.readline():
            self._jitter_s = float(line)
            writer.write(b"%d" % self._connections)
        writer.close()
        for server in servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, way: Way) -> asyncio.Server:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections += 1
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
                await pieces.put((asyncio.get_running_loop().time() + self._random.uniform(0, self._jitter_s), piece))

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@contextmanager
def late_network(ways: Iterable[Way], seed: int) -> Iterator[LateNetwork]:
    """A network with these ways, as long as this lasts."""
    ours, theirs = socket.socketpair()
    ours.settimeout(_ANSWER_S)
    with ours:
        with theirs:
            arguments = [str(theirs.fileno()), str(seed), json.dumps(list(ways))]
            process = subprocess.Popen([sys.executable, __file__, *arguments], pass_fds=[theirs.fileno()])
        try:
            assert ours.recv(32) == b"0", "nothing listens"
            yield LateNetwork(ours)
        finally:
            ours.shutdown(socket.SHUT_WR)
            process.wait(_ANSWER_S)


if __name__ == "__main__":
    _channel, _seed, _ways = sys.argv[1:]
    asyncio.run(_Ways(int(_seed)).serve([Way(*way) for way in json.loads(_ways)], socket.socket(fileno=int(_channel))))
