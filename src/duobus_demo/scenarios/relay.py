"""Part ``relay``: a small HTTP service behind two relays on two brokers, each of which is killed and stopped in turn.

Every request is answered once or fails with an error; the service executes a request at most twice, and then with one
id; the roles of every pair are as its events tell; bytes of a tunnel are unaltered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from duobus.clock import Clock
from duobus.model.access_rules import sign_token
from duobus.relay import RelayEndpoint, RelayError, RelayRequest, RelayResponse
from duobus.relay.aio import PairListener, RelayPair
from duobus.relay.events import Event, RelayRolesSwapped
from duobus.relay.tunnel import LocalPort, expose
from duobus.testing.server import DemoFailed, ServerProcess, queues_config
from duobus_demo.progress import Watcher
from duobus_demo.registry import Scenario

#: Names differ, as those of two data centres do.
PATHS: Final = ("service-one", "service-two")
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
#: Seconds for a request, of which the second relay gets half.
REQUEST_S: Final = 6.0
#: Longer than the first relay has, so that its clients give up on it.
STOPPED_S: Final = 4.0
TRANSFER_CHUNK: Final = 1 << 20
_TOKEN_S: Final = 600


class Plan(NamedTuple):
    """How much is done.

    Attributes:
        requests: Number of requests.
        clients: Number of clients, each with a pair of its own.
        tunnel_bytes: Bytes that go through the tunnel, and come back.
    """

    requests: int
    clients: int
    tunnel_bytes: int


SHORT: Final = Plan(1_500, 6, 8 << 20)
LONG: Final = Plan(10_000, 8, 1 << 30)


class RelayScenario:
    """One play of the part."""

    def __init__(
        self, servers: tuple[ServerProcess, ServerProcess], plan: Plan, watcher: Watcher, clock: Clock, limit_s: float
    ) -> None:
        self._servers = servers
        self._plan = plan
        self._watcher = watcher
        self._clock = clock
        self._limit_s = limit_s
        self._began_ms = clock.monotonic_ms()
        self._endpoints = [
            RelayEndpoint(f"localhost:{server.ready['http_port']}", path, KEY_NAME, KEY, is_secure=False)
            for server, path in zip(servers, PATHS, strict=True)
        ]
        self._numbers = iter(range(plan.requests))
        #: Request id to the times that the service has executed the request, and to the numbers that it was given.
        self._executed: Counter[str] = Counter()
        self._ids: dict[int, set[str]] = {}
        self._answered: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._wrong = 0
        self._swaps = 0
        # Requests that have begun, and those that may begin until the next broker is killed or stopped.
        self._begun = self._may_begin = 0
        self._roles_wrong = 0
        self._timeline: list[dict[str, Any]] = []

    async def play(self) -> dict[str, Any]:
        """Run the part; return the members of its result."""
        for endpoint in self._endpoints:
            await asyncio.to_thread(create_relay, endpoint, self._clock)
        async with AsyncExitStack() as stack:
            echo = await asyncio.start_server(_echo, "127.0.0.1", 0)
            stack.callback(echo.close)
            local = LocalPort("127.0.0.1", echo.sockets[0].getsockname()[1], lambda what, text: None)
            stack.push_async_callback(local.close)
            listener = PairListener(self._endpoints, self._serve, local.on_connection)
            await stack.enter_async_context(listener)
            await self._until_registered(listener)
            clients = [asyncio.create_task(self._client()) for _ in range(self._plan.clients)]
            faults = asyncio.create_task(self._faults(listener))
            await asyncio.gather(faults, *clients)
            await self._until_registered(listener)
            altered, tunnel_s = await self._tunnel()
        return self._result(altered, tunnel_s)

    async def _until_registered(self, listener: PairListener) -> None:
        for one in listener.listeners:
            await one.wait_online(45.0)

    async def _serve(self, asked: RelayRequest) -> RelayResponse:
        number = int(asked.path.removeprefix("/"))
        request_id = asked.request_id or ""
        self._executed[request_id] += 1
        self._ids.setdefault(number, set()).add(request_id)
        return RelayResponse(200, body=asked.path.encode() + b" " + asked.body)

    async def _client(self) -> None:
        events: list[Event] = []
        async with RelayPair(self._endpoints, may_repeat=True, on_event=events.append) as pair:
            active = pair.active
            for number in self._numbers:
                # Where a broker takes long to come back, there are requests left for the next one that goes.
                await self._until(lambda: self._begun < self._may_begin)
                self._begun += 1
                body = f"request {number}".encode()
                try:
                    answer = await pair.request(
                        "POST" if number % 2 else "PUT", str(number), body=body, timeout=REQUEST_S
                    )
                except RelayError:
                    self._failed[number] += 1
                    continue
                self._answered[number] += 1
                self._wrong += answer.status != 200 or answer.body != f"/{number} ".encode() + body
                self._watcher.progress(len(self._answered), self._plan.requests)
            for event in events:
                if isinstance(event, RelayRolesSwapped):
                    self._swaps += 1
                    # Each swap begins where the last one ended.
                    self._roles_wrong += event.entity != active or event.active == active
                    active = event.active
            self._roles_wrong += pair.active != active

    async def _faults(self, listener: PairListener) -> None:
        """Kill and stop each broker, at moments at which requests are on their way."""
        steps = [(fault, place) for fault in ("kill", "stop") for place in (0, 1)]
        share = self._plan.requests // (len(steps) + 2)
        for number, (fault, place) in enumerate(steps, 1):
            self._may_begin = share * number + share // 2
            await self._until(partial(self._have_ended, share * number))
            server = self._servers[place]
            self._note(f"broker {place + 1} is {'killed' if fault == 'kill' else 'stopped'}")
            if fault == "kill":
                await asyncio.to_thread(server.restart)
            else:
                server.freeze()
                await asyncio.sleep(STOPPED_S)
                server.thaw()
            self._note(f"broker {place + 1} is back")
            # Otherwise the next fault would leave the service without any relay, which proves little.
            await listener.listeners[place].wait_online(60.0)
        self._may_begin = self._plan.requests

    def _have_ended(self, number: int) -> bool:
        return len(self._answered) + len(self._failed) >= number

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for something, no longer than the run may take."""
        while not is_reached():
            self._check()
            await asyncio.sleep(0.01)

    async def _tunnel(self) -> tuple[int, float]:
        """Send bytes through both ends of a tunnel and back; return how many differ, and the time."""
        async with RelayPair(self._endpoints) as pair:
            server = await expose("127.0.0.1", 0, pair.connect, lambda what, text: None)
            async with server:
                reader, writer = await asyncio.open_connection(
                    *server.sockets[0].getsockname()[:2], limit=TRANSFER_CHUNK
                )
                began_ms = self._clock.monotonic_ms()
                sent = asyncio.create_task(_send(writer, self._plan.tunnel_bytes))
                received, digest = 0, hashlib.sha256()
                while chunk := await reader.read(TRANSFER_CHUNK):
                    self._check()
                    digest.update(chunk)
                    received += len(chunk)
                expected = await sent
                writer.close()
                is_same = received == self._plan.tunnel_bytes and digest.hexdigest() == expected
                seconds = (self._clock.monotonic_ms() - began_ms) / 1000
                return (0 if is_same else max(1, self._plan.tunnel_bytes - received)), seconds

    def _note(self, what: str) -> None:
        at = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._timeline.append({"at": round(at, 2), "what": what})
        self._watcher.note(f"{at:.1f} s: {what}.")

    def _check(self) -> None:
        if self._clock.monotonic_ms() - self._began_ms > self._limit_s * 1000:
            raise DemoFailed(f"The run took longer than {self._limit_s:g} s and was ended.")

    def _result(self, altered: int, tunnel_s: float) -> dict[str, Any]:
        seconds = (self._clock.monotonic_ms() - self._began_ms) / 1000
        told = self._answered + self._failed
        return {
            "part": "relay",
            "sent": self._plan.requests,
            "received": len(self._answered),
            "failed": len(self._failed),
            "duplicates": sum(count == 2 for count in self._executed.values()),
            "executed_more": sum(count > 2 for count in self._executed.values()),
            "several_ids": sum(len(ids) > 1 for ids in self._ids.values()),
            "lost": sum(number not in told for number in range(self._plan.requests)),
            "told_twice": sum(count > 1 for count in told.values()),
            "altered": altered,
            "wrong": self._wrong,
            "swaps": self._swaps,
            "roles_wrong": self._roles_wrong,
            "tunnel_bytes": self._plan.tunnel_bytes,
            "tunnel_mb_per_second": round(2 * self._plan.tunnel_bytes / 1e6 / max(tunnel_s, 0.001), 1),
            "timeline": self._timeline,
            "seconds": round(seconds, 2),
        }


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(TRANSFER_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def _send(writer: asyncio.StreamWriter, size: int) -> str:
    digest, left, number = hashlib.sha256(), size, 0
    while left:
        block = hashlib.sha256(str(number).encode()).digest() * (TRANSFER_CHUNK // 32)
        block = block[:left]
        digest.update(block)
        writer.write(block)
        await writer.drain()
        left -= len(block)
        number += 1
    writer.write_eof()
    return digest.hexdigest()


def create_relay(endpoint: RelayEndpoint, clock: Clock) -> None:
    """Make a relay by the operations of the HTTP interface."""
    url = f"http://{endpoint.host}/$duobus/relays/{endpoint.path}"
    token = sign_token(f"http://{endpoint.host}/", KEY_NAME, KEY, clock.now_ms() // 1000 + _TOKEN_S)
    headers = {"Authorization": token, "Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps({}).encode(), headers, method="PUT")
    with urllib.request.urlopen(asked, timeout=10) as answer:
        answer.read()


def play(folder: Path, watcher: Watcher, clock: Clock, limit_s: float, plan: Plan) -> dict[str, Any]:
    """Run a plan in ``folder`` with two brokers of its own; return the result's members.

    Raises:
        DemoFailed: It could not be finished.
    """
    one, two = (
        ServerProcess(folder / name, config=queues_config({"unused": {}}), clock=clock) for name in ("one", "two")
    )
    with one, two:
        try:
            return asyncio.run(RelayScenario((one, two), plan, watcher, clock, limit_s).play())
        except RelayError as error:
            raise DemoFailed(f"A relay failed for good: {error}\n{one.log_tail()}\n{two.log_tail()}") from error


def play_relay(folder: Path, watcher: Watcher, clock: Clock, limit_s: float) -> dict[str, Any]:
    """Run the part in its short form."""
    return play(folder, watcher, clock, limit_s, SHORT)


def relay_failures(result: dict[str, Any]) -> list[str]:
    """Return what makes a result a failure, a sentence each."""
    failures = [
        f"{result[name]} {text}"
        for name, text in (
            ("lost", "requests were neither answered nor failed."),
            ("told_twice", "requests had more than one outcome."),
            ("wrong", "answers were those of other requests."),
            ("executed_more", "requests were executed more than twice."),
            ("several_ids", "requests reached the service under more than one id."),
            ("altered", "bytes of the tunnel were lost or altered."),
            ("roles_wrong", "times the roles were not as told."),
        )
        if result[name]
    ]
    if not result["swaps"]:
        failures.append("No roles were swapped, though each broker was killed and stopped.")
    if result["failed"] > result["sent"] // 10:
        failures.append(f"{result['failed']} of {result['sent']} requests failed.")
    return failures


PART = Scenario("A service behind two relays, each killed and stopped", play_relay, relay_failures)
