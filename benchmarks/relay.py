"""What a relay costs, printed as JSON: ``python -m benchmarks.relay [--quick]``.

Two comparisons, with interleaved rounds; the median of the rounds counts:

* Requests a second and their latency through a relay, beside a bare reverse proxy (aiohttp in a process of its own) in
  front of the same answer. The relay is a broker in a process of its own; its listener is in this process, as the
  service behind the proxy is.
* Bytes a second through ``expose``, the relay and ``forward``, beside a plain TCP connection to the same port.

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
from pathlib import Path
from statistics import median
from typing import Any, Final

from aiohttp import ClientSession, web

from duobus.clock import Clock
from duobus.relay import RelayEndpoint, RelayRequest, RelayResponse
from duobus.relay.aio import RelayListener, RelaySender
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


async def measure(server: ServerProcess, number: int, size: int) -> dict[str, Any]:
    """Measure both comparisons."""
    endpoint = RelayEndpoint(f"localhost:{server.ready['http_port']}", "bench", KEY_NAME, KEY, is_secure=False)
    await asyncio.to_thread(create_relay, endpoint, Clock())

    async def echo(asked: RelayRequest) -> RelayResponse:
        return RelayResponse(body=asked.body)

    async def plain(asked: web.Request) -> web.Response:
        return web.Response(body=await asked.read())

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", plain)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    source = await asyncio.start_server(_source, "127.0.0.1", 0)
    port = source.sockets[0].getsockname()[1]
    local = LocalPort("127.0.0.1", port, print)
    proxy = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from benchmarks.relay import serve_proxy; serve_proxy()", "proxy"),
        f"http://127.0.0.1:{runner.addresses[0][1]}/",
        stdout=asyncio.subprocess.PIPE,
    )
    assert proxy.stdout is not None
    proxied = f"http://127.0.0.1:{int(await proxy.stdout.readline())}/"
    rows: list[dict[str, float]] = []
    async with (
        RelayListener(endpoint, echo, local.on_connection) as listener,
        RelaySender(endpoint) as sender,
        ClientSession() as session,
    ):
        await listener.wait_online()
        exposed = await expose("127.0.0.1", 0, sender.connect, print)
        tunnel_port = exposed.sockets[0].getsockname()[1]

        async def through_relay() -> bytes:
            return (await sender.request("POST", body=BODY)).body

        async def through_proxy() -> bytes:
            async with session.post(proxied, data=BODY) as answer:
                return await answer.read()

        for _ in range(ROUNDS):
            relay_rate, relay_ms = await requests_of(through_relay, number)
            proxy_rate, proxy_ms = await requests_of(through_proxy, number)
            rows.append(
                {
                    "relay_requests_per_second": relay_rate,
                    "relay_latency_ms": relay_ms,
                    "proxy_requests_per_second": proxy_rate,
                    "proxy_latency_ms": proxy_ms,
                    "relay_mb_per_second": await transfer("127.0.0.1", tunnel_port, size),
                    "tcp_mb_per_second": await transfer("127.0.0.1", port, size),
                }
            )
        exposed.close()
    source.close()
    await local.close()
    await runner.cleanup()
    proxy.terminate()
    await proxy.wait()
    return {name: round(median(row[name] for row in rows), 2) for name in rows[0]}


def main() -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests and bytes")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder), config=queues_config({"q": {}})) as server,
    ):
        result = asyncio.run(measure(server, 320 if quick else 3_200, (16 if quick else 256) << 20))
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
