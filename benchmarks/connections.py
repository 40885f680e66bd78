"""What an idle connection costs, plain and with TLS: ``python -m benchmarks.connections --count 10000``.

Each has one session, both links of ``$cbs`` after a token, and one receiver with credit. Printed as lines of JSON:
resident bytes of the server per connection, (RSS_n - RSS_0) / n, and the processor share of the idle server. The exit
status is 1 when a connection takes more than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import ssl
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from duobus.amqp import Connection, ConnectionSettings, LinkAttached, Source, Target, Transfers
from duobus.codec import build_message
from duobus.model.access_rules import sign_token
from duobus.server.settings import EMULATOR_KEY
from duobus.testing.server import ServerProcess, queues_config

QUEUE = "idle"
#: Resident bytes that a connection may take, plain and with TLS.
BYTES_MAX = {False: 24 * 1024, True: 64 * 1024}
#: Connections that are being opened at the same time.
AT_ONCE = 50
RULE = "RootManageSharedAccessKey"


class IdleClient(asyncio.Protocol):
    """Opens everything, then waits; ``ready`` is done when the receiver has its credit."""

    def __init__(self, token: str) -> None:
        settings = ConnectionSettings(
            uuid.uuid4().hex, hostname="localhost", mechanisms=("ANONYMOUS",), idle_time_out_ms=240_000
        )
        self.engine = Connection(settings, acceptor=False)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = 0
        self._token = token
        self._transport: Any = None
        self._links: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.engine.open(_now_ms())
        session = self.engine.begin()
        self._links["replies"] = session.attach_receiver("cbs-r", Source(address="$cbs"), Target(address="me"))
        self._links["requests"] = session.attach_sender("cbs-s", Source(address="me"), Target(address="$cbs"))
        self._write()

    def data_received(self, data: bytes) -> None:
        for event in self.engine.receive(data, _now_ms()):
            self._on(event)
        requests = self._links.get("requests")
        if requests is not None and requests.sendable():
            properties = {"operation": "put-token", "type": "jwt", "name": f"sb://localhost/{QUEUE}"}
            requests.send_one(b"t", build_message([uuid.uuid4()], properties, body_value=self._token), True)
            self._links.pop("requests")
        self._write()

    def _on(self, event: Any) -> None:
        if isinstance(event, LinkAttached):
            if event.link is self._links.get("replies"):
                event.link.grant(5)
            elif event.link is self._links.get("receiver"):
                event.link.grant(10)
                self.ready.set_result(None)
        elif isinstance(event, Transfers):
            if event.link is self._links["replies"]:
                session = event.link.session
                link = session.attach_receiver("receiver", Source(address=QUEUE), Target(address="me"))
                self._links["receiver"] = link
            else:
                self.received += len(event.payloads)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"closed by the server: {exc}"))

    def beat(self) -> None:
        """Send a heartbeat."""
        self._transport.write(b"\x00\x00\x00\x08\x02\x00\x00\x00")

    def drop(self) -> None:
        """Close without ceremony."""
        self._transport.abort()

    def _write(self) -> None:
        self._transport.write(self.engine.take_output())


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, pid: int, count: int, tls: ssl.SSLContext | None, idle_s: float) -> dict[str, Any]:
    """Open ``count`` connections and say what the server grew by."""
    loop = asyncio.get_running_loop()
    token = sign_token(f"sb://localhost/{QUEUE}", RULE, EMULATOR_KEY, int(time.time()) + 36_000)
    gate = asyncio.Semaphore(AT_ONCE)

    async def connect(index: int) -> IdleClient:
        async with gate:
            # Several source addresses, for each has 28,000 ports.
            source = (f"127.0.0.{1 + index // 15_000}", 0)
            _, client = await loop.create_connection(
                lambda: IdleClient(token),
                "127.0.0.1",
                port,
                ssl=tls,
                server_hostname="localhost" if tls else None,
                local_addr=source,
            )
            await client.ready
            return client

    # What the first connection loads is not the cost of a connection.
    warm = [await connect(0) for _ in range(20)]
    await asyncio.sleep(1)
    before = rss(pid)
    start = time.monotonic()
    clients = await asyncio.gather(*(connect(index) for index in range(count)))
    opened_s = time.monotonic() - start
    await asyncio.sleep(1.5)
    after = rss(pid)
    cpu = cpu_seconds(pid)
    start = time.monotonic()
    for client in clients:
        client.beat()
    await asyncio.sleep(idle_s)
    share = (cpu_seconds(pid) - cpu) / (time.monotonic() - start)
    for client in [*warm, *clients]:
        client.drop()
    return {
        "count": count,
        "tls": tls is not None,
        "rss_before": before,
        "rss_after": after,
        "bytes_per_connection": round((after - before) / count),
        "opened_per_s": round(count / opened_s, 1),
        "idle_cpu_share": round(share, 4),
    }


def run(count: int, *, tls: bool, idle_s: float = 5.0) -> dict[str, Any]:
    """Start a server and measure it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (
                "--emulator",
                "--quota",
                f"connections={count + 100}",
                *(("--tls-self-signed",) if tls else ()),
            )
            process = ServerProcess(Path(folder), config=queues_config({QUEUE: {}}), arguments=arguments)
            with process:
                context = ssl.create_default_context(cafile=process.ready["ca"]) if tls else None
                port = int(process.ready["tls_port" if tls else "amqp_port"])
                return asyncio.run(measure(port, int(process.ready["pid"]), count, context, idle_s))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    options = parser.parse_args()
    is_within = True
    for tls, limit in BYTES_MAX.items():
        result = run(options.count, tls=tls)
        print(json.dumps(result | {"bytes_max": limit}), flush=True)
        is_within = is_within and result["bytes_per_connection"] <= limit
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
