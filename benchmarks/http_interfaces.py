"""What the HTTP interfaces cost, printed as JSON: ``python -m benchmarks.http_interfaces [--quick]``.

Three figures, each with its bound; the exit status is 1 when one is missed:

* Sends of 1 KiB to the runtime API on keep-alive connections, against what the bare HTTP server (aiohttp, on which the
  interfaces are built) answers to the same requests in a process of its own: at least half. Rounds are interleaved,
  and the median of the ratios of the rounds counts.
* Creating 1,000 plain and 100 partitioned queues over the management API: the last fifth takes at most twice as long as
  the first.
* A list of 10,000 queues, page by page: the last fifth of the pages takes at most 1.5 times as long as the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from aiohttp import web

from duobus.model.access_rules import sign_token
from duobus.server.settings import EMULATOR_KEY
from duobus.testing.server import ServerProcess, queues_config

ROOT: Final = Path(__file__).resolve().parents[1]
RULE: Final = "RootManageSharedAccessKey"
BODY: Final = b"x" * 1024
#: Keep-alive connections, each with one request under way.
CONNECTIONS: Final = 64
SEND_RATIO_MIN: Final = 0.5
#: Last fifth over first fifth. Creation is a commit each, which the disk makes vary.
CREATION_GROWTH_MAX: Final = 2.0
PAGE_GROWTH_MAX: Final = 1.5
PAGE: Final = 100

_QUEUE: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
    "<EnablePartitioning>{}</EnablePartitioning></QueueDescription></content></entry>"
)


class Client(asyncio.Protocol):
    """One keep-alive connection; ``ask`` sends a request and waits for the whole answer."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, rest = self._data.partition(b"\r\n\r\n")
        if not separator:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(fields.get(b"content-length", b"0"))
        if len(rest) < size or self._answer is None:
            return
        self._data = rest[size:]
        self._answer.set_result((int(head[9:12]), rest[:size]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; the future gets status and body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def connect(port: int) -> Client:
    """Open a connection."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


def request(method: str, path: str, token: str, body: bytes = b"", kind: str = "application/atom+xml") -> bytes:
    """The bytes of a request."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def rate(port: int, message: bytes, seconds: float) -> float:
    """Sends that are answered in a second."""
    clients = await asyncio.gather(*(connect(port) for _ in range(CONNECTIONS)))
    end = time.perf_counter() + seconds
    sent = 0

    async def sender(client: Client) -> None:
        nonlocal sent
        while time.perf_counter() < end:
            status, body = await client.ask(message)
            if status != 201:
                raise RuntimeError(f"a send was answered {status}: {body[:200]!r}")
            sent += 1

    started = time.perf_counter()
    await asyncio.gather(*map(sender, clients))
    took = time.perf_counter() - started
    for client in clients:
        client.close()
    return sent / took


async def serve_bare() -> None:
    """A server of nothing but aiohttp: it reads the body and answers 201. Prints its port, and runs until its end."""

    async def answer(about: web.Request) -> web.Response:
        await about.read()
        return web.Response(status=201)

    app = web.Application()
    app.router.add_route("*", "/{address:.*}", answer)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def sends(port: int, token: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Runtime API against bare server."""
    command = [sys.executable, "-m", "benchmarks.http_interfaces", "--bare"]
    message = request("POST", "/sends/messages", token, BODY, "text/plain")
    found: dict[str, list[float]] = {"bare": [], "runtime": []}
    # It ends when its standard input does.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as bare:
        assert bare.stdout is not None
        bare_port = int(bare.stdout.readline())
        for _ in range(rounds):
            found["bare"].append(asyncio.run(rate(bare_port, message, seconds)))
            found["runtime"].append(asyncio.run(rate(port, message, seconds)))
    ratios = [own / other for own, other in zip(found["runtime"], found["bare"], strict=True)]
    return {
        "bare_per_second": round(median(found["bare"])),
        "runtime_per_second": round(median(found["runtime"])),
        "ratio": round(median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "ratio_min": SEND_RATIO_MIN,
    }


def growth(times: Sequence[float]) -> dict[str, float]:
    """Median milliseconds in the first and last fifth, and by how much they grew."""
    fifth = max(1, len(times) // 5)
    first, last = median(times[:fifth]), median(times[-fifth:])
    return {
        "first_ms": round(1000 * first, 2),
        "last_ms": round(1000 * last, 2),
        "growth": round(last / first, 2),
        "seconds": round(sum(times), 2),
    }


async def creations(port: int, token: str, number: int, *, is_partitioned: bool) -> dict[str, float]:
    """Create queues, one after the other."""
    client = await connect(port)
    kind = "partitioned" if is_partitioned else "plain"
    body = _QUEUE.format(str(is_partitioned).lower()).encode()
    times = []
    for index in range(number):
        started = time.perf_counter()
        status, text = await client.ask(request("PUT", f"/{kind}-{index}?api-version=2021-05", token, body))
        times.append(time.perf_counter() - started)
        if status != 201:
            raise RuntimeError(f"a creation was answered {status}: {text[:200]!r}")
    client.close()
    return growth(times) | {"number": number, "growth_max": CREATION_GROWTH_MAX}


async def pages(port: int, token: str, number: int) -> dict[str, float]:
    """Read a list of so many queues, page by page, three times over; the fastest of each page counts."""
    client = await connect(port)
    times = [float("inf")] * -(-number // PAGE)
    for _ in range(3):
        seen = 0
        for index in range(len(times)):
            path = f"/$Resources/queues?$skip={index * PAGE}&$top={PAGE}&api-version=2021-05"
            started = time.perf_counter()
            status, text = await client.ask(request("GET", path, token))
            times[index] = min(times[index], time.perf_counter() - started)
            assert status == 200, text[:200]
            seen += text.count(b"<entry")
        assert seen == number, f"{seen} of {number} queues were listed"
    client.close()
    return growth(times) | {"number": number, "growth_max": PAGE_GROWTH_MAX}


def token_for(seconds: int = 3600) -> str:
    """A token for everything."""
    return sign_token("http://localhost/", RULE, EMULATOR_KEY, int(time.time()) + seconds)


def measure(folder: Path, rounds: int, seconds: float, scale: int = 1) -> dict[str, Any]:
    """All figures; numbers of entities are divided by ``scale``."""
    found: dict[str, Any] = {}
    with ServerProcess(folder / "one", config=queues_config({"sends": {}}), arguments=("--emulator",)) as process:
        port = int(process.ready["http_port"])
        found["sends"] = sends(port, token_for(), rounds, seconds)
    with ServerProcess(folder / "two", config=queues_config({}), arguments=("--emulator",)) as process:
        port = int(process.ready["http_port"])
        for number, is_partitioned in ((1000, False), (100, True)):
            name = "create_partitioned" if is_partitioned else "create_plain"
            work = creations(port, token_for(), number // scale, is_partitioned=is_partitioned)
            found[name] = asyncio.run(work)
    many: dict[str, dict[str, Any]] = {f"q{number:05}": {} for number in range(10_000 // scale)}
    server = ServerProcess(folder / "three", config=queues_config(many), arguments=("--emulator",))
    try:
        server.start(300)
        found["pages"] = asyncio.run(pages(int(server.ready["http_port"]), token_for(), len(many)))
    finally:
        server.terminate()
    return found


def is_within(found: dict[str, Any]) -> bool:
    """Whether all bounds hold."""
    grown = [found[name] for name in ("create_plain", "create_partitioned", "pages")]
    return found["sends"]["ratio"] >= SEND_RATIO_MIN and all(one["growth"] <= one["growth_max"] for one in grown)


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round of sends")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        asyncio.run(serve_bare())
        return 0
    with tempfile.TemporaryDirectory(prefix="duobus-http-") as folder:
        if options.quick:
            found = measure(Path(folder), 1, 0.2, 50)
        else:
            found = measure(Path(folder), options.rounds, options.seconds)
    print(json.dumps(found, indent=1))
    return 0 if options.quick or is_within(found) else 1


if __name__ == "__main__":
    sys.exit(main())
