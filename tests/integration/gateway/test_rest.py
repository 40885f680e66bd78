"""Health and metrics, read when somebody asks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from duobus.errors import ConfigurationError
from duobus.gateway.rest import health
from duobus.gateway.rest.server import RestServer
from duobus.server.access.metrics_token import MetricsToken
from duobus.telemetry.metrics import Metrics, Sample


async def asked(
    path: str,
    states: dict[int, str],
    *,
    ready: bool = True,
    draining: bool = False,
    samples: Any = tuple,
    token: MetricsToken | None = None,
    authorization: str | None = None,
) -> tuple[int, str, Any]:
    """(status, text, content type) of a GET."""
    kept = {"late": "open", "stalled": "failed"}
    unit: Any = SimpleNamespace(
        brokers={
            number: SimpleNamespace(
                state=kept.get(state, state), is_late=state == "late", is_stalled=state == "stalled"
            )
            for number, state in states.items()
        }
    )
    options: dict[str, Any] = {} if token is None else {"may_read_metrics": token.accepts}
    interface = RestServer(unit, Metrics(samples), lambda: ready, is_draining=lambda: draining, **options)
    headers = {} if authorization is None else {"Authorization": authorization}
    server = await asyncio.get_running_loop().create_server(await interface.open(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response,
        ):
            return response.status, await response.text(), response.headers["Content-Type"]
    finally:
        server.close()
        await interface.close()


@pytest.mark.parametrize(
    ("states", "ready", "status", "word", "message"),
    [
        ({1: "open", 2: "open"}, True, 200, "healthy", "Service is healthy."),
        ({1: "open", 2: "failed"}, True, 200, "degraded", "Service is degraded: messaging store 2 is failed"),
        ({1: "open", 2: "late"}, True, 200, "degraded", "messaging store 2 is late"),
        ({1: "open", 2: "stalled", 3: "failed"}, True, 200, "degraded", "store 2 is stalled, 3 is failed"),
        ({1: "failed", 2: "opening"}, True, 503, "unhealthy", "No messaging store accepts: 1 is failed, 2 is opening."),
        ({1: "stalled"}, True, 503, "unhealthy", "No messaging store accepts: 1 is stalled."),
        ({1: "open"}, False, 503, "unhealthy", "Service not available. Please try after some time."),
    ],
)
def test_health_tells_every_store_and_the_whole(
    states: dict[int, str], ready: bool, status: int, word: str, message: str
) -> None:
    for path in ("/health", "/healthz"):
        found, text, _ = asyncio.run(asked(path, states, ready=ready))
        told = json.loads(text)
        assert (found, told["status"]) == (status, word)
        assert message in told["message"]
        assert told["stores"] == {str(number): state for number, state in states.items()}
        assert ("healthy." in told["message"]) == (word == "healthy")


@pytest.mark.parametrize(
    ("states", "ready", "draining", "status"),
    [
        ({1: "open"}, True, False, 200),
        ({1: "open", 2: "failed"}, True, False, 200),
        ({1: "failed"}, True, False, 503),
        ({1: "open"}, True, True, 503),
        ({1: "open"}, False, False, 503),
    ],
)
def test_clients_are_wanted_while_a_store_accepts_and_no_drain_has_begun(
    states: dict[int, str], ready: bool, draining: bool, status: int
) -> None:
    found, text, _ = asyncio.run(asked("/health/ready", states, ready=ready, draining=draining))
    assert (found, json.loads(text)["status"]) == (status, "ready" if status == 200 else "not ready")


def test_the_start_is_over_when_the_server_is_ready() -> None:
    assert asyncio.run(asked("/health/started", {1: "failed"}, ready=False))[0] == 503
    assert asyncio.run(asked("/health/started", {1: "failed"}))[0] == 200


class Turning:
    """A loop that tells a time of the test: so much passes with each look at the clock."""

    def __init__(self, turn_s: float) -> None:
        self._turn_s = turn_s
        self._now_s = 0.0

    def time(self) -> float:
        self._now_s += self._turn_s
        return self._now_s


@pytest.mark.parametrize(("turn_s", "status"), [(0.01, 200), (0.9, 200), (1.1, 503)])
def test_a_server_lives_while_the_turns_of_its_loop_are_short(
    turn_s: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = Turning(turn_s)
    monkeypatch.setattr(health, "asyncio", SimpleNamespace(get_running_loop=lambda: loop, sleep=asyncio.sleep))
    found, text, _ = asyncio.run(asked("/health/live", {1: "failed"}))
    assert found == status
    assert json.loads(text)["status"] == ("live" if status == 200 else "late")


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


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer 0123456789abcdef", 200),
        ("bearer  0123456789abcdef ", 200),
        ("Bearer 0123456789abcdeF", 401),
        ("Bearer 0123456789abcdef0", 401),
        ("Bearer", 401),
        ("Basic 0123456789abcdef", 401),
        ("Bearer \u00e9", 401),
    ],
)
def test_metrics_are_for_who_has_the_token_where_there_is_one(
    authorization: str | None, status: int, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    token = MetricsToken(tmp_path / "token")

    def samples() -> Any:
        yield Sample("duobus_connections", (), 1)

    found, page, _ = asyncio.run(asked("/metrics", {}, samples=samples, token=token, authorization=authorization))
    assert found == status
    assert ("duobus_connections" in page) is (status == 200)
    assert asyncio.run(asked("/health", {1: "open"}, token=token))[0] == 200


def test_a_token_of_the_metrics_that_is_none_is_refused_and_a_new_one_is_read_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text in ("", "short", "two words of it 0123456789", "x" * 5000, "0123456789abcd\u00e9f"):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="--metrics-token-file has to hold one token"):
            MetricsToken(path)
    path.write_text("0123456789abcdef")
    token = MetricsToken(path)
    path.write_text("")
    with pytest.raises(ConfigurationError):
        token.reload()
    assert token.accepts("Bearer 0123456789abcdef")
    path.write_text("fedcba9876543210")
    token.reload()
    assert token.accepts("Bearer fedcba9876543210")
    assert not token.accepts("Bearer 0123456789abcdef")
    path.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        MetricsToken(path)


def test_other_paths_are_not_found() -> None:
    assert asyncio.run(asked("/secrets", {1: "open"}))[0] == 404
