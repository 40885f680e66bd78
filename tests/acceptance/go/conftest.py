"""Fixtures of the Go client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit_go import Go, GoBus, build


@pytest.fixture(scope="session")
def go() -> Go:
    """The programs, built where they were not; skips where they cannot be."""
    return Go(build())


@pytest.fixture(scope="session")
def go_bus(go: Go, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoBus]:
    """One broker for all programs; not started where they cannot run."""
    bus = GoBus(tmp_path_factory.mktemp("go-bus"))
    with bus.process:
        yield bus


@pytest.fixture(params=["tcp", "tls", "websocket"])
def route(request: pytest.FixtureRequest, go_bus: GoBus) -> dict[str, Any]:
    """The three transports of the SDK, one after the other."""
    return go_bus.route(request.param)


@pytest.fixture
def tcp(go_bus: GoBus) -> dict[str, Any]:
    """Plain TCP, for checks that have nothing to do with the transport."""
    return go_bus.route("tcp")
