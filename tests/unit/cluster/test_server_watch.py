"""What is reported of other servers whose processes end, stand still or cannot be reached (decision 0067)."""

from __future__ import annotations

import asyncio
from typing import Any

from duobus.cluster.watch import AGAIN_S, ServerWatch
from duobus.storage.catalog.leases import NodeEntry
from simulation.world.loop import SimulationLoop
from simulation.world.network import SimulatedNetwork

PORT = 5672


class _Servers:
    """Server "a" watches server "b", each on a node of its own."""

    def __init__(self) -> None:
        self.loop = SimulationLoop(1)
        self.network = SimulatedNetwork(self.loop)
        self.loop.network = self.network
        self.reports: list[str] = []
        self.a, self.b = self.network.node("a"), self.network.node("b")

    def run(self, script: Any) -> list[str]:
        """Run a script beside the watch, and return what was reported."""

        async def listen() -> None:
            await self.loop.create_server(asyncio.Protocol, "b", PORT)

        async def watch() -> None:
            watch = ServerWatch(
                "a", lambda name: self.reports.append(f"{name} gone"), lambda _: self.reports.append("back")
            )
            watch.see({name: NodeEntry(name, f"{name}:{PORT}", name, False) for name in ("a", "b")})

        async def main() -> None:
            self.a.start()
            self.b.start()
            self.b.spawn(listen())
            await asyncio.sleep(0.1)
            self.a.spawn(watch())
            await asyncio.sleep(1)
            assert self.reports == ["back"]
            del self.reports[:]
            await script(self)

        try:
            self.loop.run(main(), time_limit_s=60)
        finally:
            self.loop.close()
        return self.reports


def test_a_process_that_is_killed_is_reported_within_a_few_milliseconds() -> None:
    async def script(servers: _Servers) -> None:
        servers.b.kill()
        await asyncio.sleep(0.05)

    assert _Servers().run(script) == ["b gone"]


def test_a_process_that_stands_still_is_not_reported() -> None:
    async def script(servers: _Servers) -> None:
        servers.b.pause()
        await asyncio.sleep(5)

    assert _Servers().run(script) == []


def test_a_server_that_cannot_be_reached_is_not_reported() -> None:
    async def script(servers: _Servers) -> None:
        for route in (servers.network.route("a", "b"), servers.network.route("b", "a")):
            route.cut = True
        for connection in servers.network.connections("b"):
            connection.reset()
        await asyncio.sleep(10)

    assert _Servers().run(script) == []


def test_a_connection_that_breaks_is_made_again() -> None:
    async def script(servers: _Servers) -> None:
        for connection in servers.network.connections("b"):
            connection.reset()
        await asyncio.sleep(3 * AGAIN_S)

    assert _Servers().run(script) == ["back"]
