"""What a relay costs, printed as JSON: ``python -m benchmarks.relay [--quick]``.

Three comparisons, with interleaved rounds; the median of the rounds counts:

* Requests a second and their latency through a relay, beside a bare reverse proxy (aiohttp in a process of its own) in
  front of the same answer. The relay is a broker in a process of its own; its listener is in this process, as the
  service behind the proxy is.
* Bytes a second through ``expose``, the relay and ``forward``, beside a plain TCP connection to the same port; and
  through one WebSocket of the relay, without what ``expose`` and ``forward`` do.
* Messages a second that another client sends to the same broker and receives (workload C1x1, in a process of its own)
  while nobody uses the relay, while a listener waits, while requests go through the relay, and while bytes do. What the
  machine costs is told by two controls: the same requests through the bare proxy, and the same bytes over plain TCP.

There is no bound: the figures depend on the machine, and their ratios are what to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from aiohttp import ClientSession, web

from duobus.clock import Clock
from duobus.relay import RelayEndpoint, RelayError, RelayRequest, RelayResponse
from duobus.relay.aio import PendingConnection, RelayListener, RelaySender
from duobus.relay.tunnel import LocalPort, expose
from duobus.testing.server import ServerProcess, queues_config
from duobus_demo.scenarios.relay import KEY, KEY_NAME, create_relay

BODY: Final = b"x" * 1024
#: Requests under way at the same time.
CLIENTS: Final = 16
CHUNK: Final = 256 << 10
ROUNDS: Final = 5


def serve_proxy() -> None:
    """Be the reverse proxy: tell the port, and hand every request to the port that the command line names."""

    async def run(target: str) -> None:
        async with ClientSession() as session:

            async def answer(request: web.Request) -> web.Response:
                async with session.request(request.method, target, data=await request.read()) as found:
                    return web.Response(status=found.status, body=await found.read())

            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", answer)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            print(runner.addresses[0][1], flush=True)
            await asyncio.Event().wait()

    asyncio.run(run(sys.argv[2]))


async def requests_of(ask: Callable[[], Awaitable[bytes]], number: int) -> tuple[float, float]:
    """Send requests from all clients; return requests a second, and the median latency in ms."""
    latencies: list[float] = []

    async def client() -> None:
        for _ in range(number // CLIENTS):
            began = time.perf_counter()
            assert await ask() == BODY
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return len(latencies) / (time.perf_counter() - began), median(latencies) * 1000


async def transfer(host: str, port: int, size: int) -> float:
    """Read bytes from a port; return MB a second."""
    reader, writer = await asyncio.open_connection(host, port, limit=4 * CHUNK)
    began, received = time.perf_counter(), 0
    while received < size:
        received += len(await reader.read(CHUNK))
    seconds = time.perf_counter() - began
    writer.transport.abort()
    return received / 1e6 / seconds


async def _source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    block = bytes(CHUNK)
    try:
        while True:
            writer.write(block)
            await writer.drain()
    except ConnectionError:
        writer.close()


class Parties:
    """A broker with a relay; a service behind it, behind a bare proxy and behind a port; and their clients.

    Args:
        server: The broker.
        number: Requests of one measurement.
        size: Bytes of one measurement.
        seconds: Seconds for which the neighbour sends.
    """

    def __init__(self, server: ServerProcess, number: int, size: int, seconds: float) -> None:
        self._server = server
        self._number = number
        self._size = size
        self._seconds = seconds
        self.endpoint = RelayEndpoint(f"localhost:{server.ready['http_port']}", "bench", KEY_NAME, KEY, is_secure=False)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Parties:
        await asyncio.to_thread(create_relay, self.endpoint, Clock())

        async def plain(asked: web.Request) -> web.Response:
            return web.Response(body=await asked.read())

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", plain)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        source = await asyncio.start_server(_source, "127.0.0.1", 0)
        self._stack.callback(source.close)
        self._port = source.sockets[0].getsockname()[1]
        self._local = LocalPort("127.0.0.1", self._port, print)
        self._stack.push_async_callback(self._local.close)
        proxy = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from benchmarks.relay import serve_proxy; serve_proxy()", "proxy"),
            f"http://127.0.0.1:{runner.addresses[0][1]}/",
            stdout=asyncio.subprocess.PIPE,
        )
        self._stack.push_async_callback(proxy.wait)
        self._stack.callback(proxy.terminate)
        assert proxy.stdout is not None
        self._proxied = f"http://127.0.0.1:{int(await proxy.stdout.readline())}/"
        self._session = await self._stack.enter_async_context(ClientSession())
        self._sender = await self._stack.enter_async_context(RelaySender(self.endpoint))
        exposed = await expose("127.0.0.1", 0, self._sender.connect, print)
        self._stack.callback(exposed.close)
        self._tunnel_port = exposed.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def listener(self) -> RelayListener:
        """The service behind the relay: answers requests with their bodies, and carries connections to the port."""

        async def echo(asked: RelayRequest) -> RelayResponse:
            return RelayResponse(body=asked.body)

        async def on_connection(pending: PendingConnection) -> None:
            if pending.path != "/pour":
                await self._local.on_connection(pending)
                return
            async with await pending.accept() as connection:
                block = bytes(CHUNK)
                with suppress(RelayError):
                    while True:
                        await connection.send(block)

        return RelayListener(self.endpoint, echo, on_connection)

    async def _relayed(self) -> bytes:
        return (await self._sender.request("POST", body=BODY)).body

    async def _through_proxy(self) -> bytes:
        async with self._session.post(self._proxied, data=BODY) as answer:
            return await answer.read()

    async def _poured(self) -> float:
        """Read bytes from one WebSocket of the relay; return MB a second."""
        async with await self._sender.connect("pour") as connection:
            began, received = time.perf_counter(), 0
            while received < self._size:
                message = await connection.receive()
                assert isinstance(message, bytes)
                received += len(message)
            return received / 1e6 / (time.perf_counter() - began)

    async def costs(self) -> dict[str, float]:
        """One round of the first two comparisons."""
        relay_rate, relay_ms = await requests_of(self._relayed, self._number)
        proxy_rate, proxy_ms = await requests_of(self._through_proxy, self._number)
        return {
            "relay_requests_per_second": relay_rate,
            "relay_latency_ms": relay_ms,
            "proxy_requests_per_second": proxy_rate,
            "proxy_latency_ms": proxy_ms,
            "tunnel_mb_per_second": await transfer("127.0.0.1", self._tunnel_port, self._size),
            "websocket_mb_per_second": await self._poured(),
            "tcp_mb_per_second": await transfer("127.0.0.1", self._port, self._size),
        }

    async def neighbour(self, work: Callable[[], Awaitable[Any]] | None = None) -> float:
        """Messages a second of another client, while work is done again and again beside it."""

        async def beside() -> None:
            while work is not None:
                await work()

        running = asyncio.create_task(beside())
        try:
            load = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.load", "C1x1", "--json", "--address", "q"),
                *("--port", str(self._server.ready["amqp_port"]), "--seconds", str(self._seconds)),
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await load.communicate()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return float(json.loads(said)["rate"])

    async def neighbours(self) -> dict[str, float]:
        """One round of the third comparison, but for the row without a listener."""
        return {
            "messages_per_second_with_an_idle_listener": await self.neighbour(),
            "messages_per_second_beside_relayed_requests": await self.neighbour(
                lambda: requests_of(self._relayed, CLIENTS)
            ),
            "messages_per_second_beside_proxied_requests": await self.neighbour(
                lambda: requests_of(self._through_proxy, CLIENTS)
            ),
            "messages_per_second_beside_relayed_bytes": await self.neighbour(
                lambda: transfer("127.0.0.1", self._tunnel_port, self._size)
            ),
            "messages_per_second_beside_plain_bytes": await self.neighbour(
                lambda: transfer("127.0.0.1", self._port, self._size)
            ),
        }


async def measure(server: ServerProcess, number: int, size: int, seconds: float) -> dict[str, Any]:
    """Measure all comparisons."""
    rows: list[dict[str, float]] = []
    async with Parties(server, number, size, seconds) as parties:
        for _ in range(ROUNDS):
            row = {"messages_per_second_without_a_listener": await parties.neighbour()}
            async with parties.listener() as listener:
                await listener.wait_online()
                rows.append(row | await parties.costs() | await parties.neighbours())
    return {
        name: {"median": round(median(row[name] for row in rows), 2), "rounds": [round(row[name], 2) for row in rows]}
        for name in rows[0]
    }


def main() -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests and bytes")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), config=queues_config({"q": {}})) as server,
    ):
        result = asyncio.run(
            measure(server, 320 if quick else 3_200, (16 if quick else 256) << 20, 0.5 if quick else 3.0)
        )
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
