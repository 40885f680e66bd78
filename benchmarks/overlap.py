"""A hundred sends one after the other, and overlapped, over a link with the latency of a distant namespace (TL4).

The documents have a round trip of 70 ms and 10 ms to store: 8 s in sequence, under 1 s overlapped. The broker here is a
real one on this machine; a relay in between holds every byte up for half of the latency in each direction.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.aio import OverlappedSender
from duobus.testing.server import ServerProcess, queues_config

QUEUE = "overlap"
ROUND_TRIP_S, STORE_S = 0.070, 0.010
CHUNK = 65_536


async def _hold_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Hand on what comes, each piece ``delay_s`` after it came; pieces overtake nothing and wait for nothing else."""
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1_000)
    loop = asyncio.get_running_loop()

    async def read() -> None:
        while data := await reader.read(CHUNK):
            await pieces.put((loop.time() + delay_s, data))
        await pieces.put((0.0, b""))

    task = asyncio.create_task(read())
    try:
        while True:
            due, data = await pieces.get()
            if not data:
                return
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        task.cancel()
        writer.close()


@asynccontextmanager
async def relay(port: int, there_s: float, back_s: float) -> AsyncIterator[int]:
    """A way to ``port`` on this machine that takes its time; gives the port to connect to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                _hold_up(reader, inner_writer, there_s), _hold_up(inner_reader, writer, back_s), return_exceptions=True
            )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def measure(connection_string: str, sends: int, in_flight: int) -> dict[str, float]:
    """Return what both ways took, links being open."""
    async with ServiceBusClient.from_connection_string(connection_string) as client:
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("the link is open"))
            start = time.perf_counter()
            for number in range(sends):
                await sender.send_messages(ServiceBusMessage(str(number)))
            serial = time.perf_counter() - start
        async with OverlappedSender(lambda: client.get_queue_sender(QUEUE), in_flight) as overlapped:
            for _ in range(in_flight):
                await overlapped.send(ServiceBusMessage("the links are open"))
            await overlapped.flush()
            start = time.perf_counter()
            for number in range(sends):
                await overlapped.send(ServiceBusMessage(str(number)))
            await overlapped.flush()
            together = time.perf_counter() - start
    return {"serial_s": round(serial, 3), "overlapped_s": round(together, 3), "ratio": round(serial / together, 2)}


async def run(sends: int, in_flight: int) -> dict[str, float]:
    """Measure against a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="duobus-overlap-") as folder:
        config = queues_config({QUEUE: {}})
        with ServerProcess(Path(folder) / "data", config=config, arguments=("--emulator",)) as server:
            found = re.search(r"(?<=Endpoint=sb://)([^:/;]+):(\d+)", server.connection_string)
            assert found is not None
            # The broker stores in a fraction of a millisecond; the 10 ms are held up on the way back.
            async with relay(int(found[2]), ROUND_TRIP_S / 2, ROUND_TRIP_S / 2 + STORE_S) as port:
                there = server.connection_string.replace(found[0], f"{found[1]}:{port}")
                return {"sends": sends, "in_flight": in_flight} | await measure(there, sends, in_flight)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sends", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=10)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(run(arguments.sends, arguments.in_flight))))


if __name__ == "__main__":
    main()
