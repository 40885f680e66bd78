"""Health and metrics, read when somebody asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from duobus.gateway.rest.app import RestDoor
from duobus.telemetry.metrics import Metrics, Sample


async def asked(path: str, states: dict[int, str], *, ready: bool = True, samples: Any = tuple) -> tuple[int, str, Any]:
    """(status, text, content type) of a GET."""
    unit: Any = SimpleNamespace(brokers={number: SimpleNamespace(state=state) for number, state in states.items()})
    door = RestDoor(unit, Metrics(samples), lambda: ready)
    server = await asyncio.get_running_loop().create_server(await door.open(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text(), response.headers["Content-Type"]
    finally:
        server.close()
        await door.close()


@pytest.mark.parametrize(
    ("states", "ready", "status", "word"),
    [
        ({1: "open", 2: "open"}, True, 200, '"healthy"'),
        ({1: "open", 2: "failed"}, True, 200, '"degraded"'),
        ({1: "failed", 2: "opening"}, True, 503, '"unhealthy"'),
        ({1: "open"}, False, 503, '"unhealthy"'),
    ],
)
def test_health_tells_every_store_and_the_whole(states: dict[int, str], ready: bool, status: int, word: str) -> None:
    for path in ("/health", "/healthz"):
        found, text, _ = asyncio.run(asked(path, states, ready=ready))
        assert found == status
        assert word in text
        assert all(f'"{number}": "{state}"' in text for number, state in states.items())


def test_metrics_are_read_anew_at_each_scrape() -> None:
    reads: list[int] = []

    def samples() -> Any:
        reads.append(1)
        yield Sample("duobus_connections", (), 41 + len(reads))

    assert "duobus_connections 42" in asyncio.run(asked("/metrics", {}, samples=samples))[1]
    status, page, kind = asyncio.run(asked("/metrics", {}, samples=samples))
    assert (status, len(reads)) == (200, 2)
    assert "duobus_connections 43" in page
    assert kind.startswith("text/plain; version=0.0.4")


def test_other_paths_are_not_found() -> None:
    assert asyncio.run(asked("/secrets", {1: "open"}))[0] == 404
