"""Fixtures of the JavaScript clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit_node import Node, NodeBus, install, node_in


@pytest.fixture(scope="session")
def packages() -> Path:
    """The installed packages; skips where there are none to be had."""
    return install()


@pytest.fixture(scope="session")
def node_bus(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBus]:
    """One broker for all programs; not started where they cannot run."""
    bus = NodeBus(tmp_path_factory.mktemp("node-bus"))
    with bus.process:
        yield bus


@pytest.fixture(scope="session")
def node(packages: Path, node_bus: NodeBus, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Node with the programs beside the packages: modules are looked up from a program's own folder upwards."""
    return node_in(tmp_path_factory.mktemp("node"), packages, node_bus)


@pytest.fixture(scope="session")
def websockets(node_bus: NodeBus) -> bool:
    """Whether the broker takes WebSockets."""
    return node_bus.offers_websockets()


@pytest.fixture(params=["tcp", "tls", "websocket"])
def route(request: pytest.FixtureRequest, node_bus: NodeBus, websockets: bool) -> dict[str, Any]:
    """The three transports of the SDK, one after the other."""
    if request.param == "websocket" and not websockets:
        pytest.skip("the broker's HTTP port does not answer 101 on /$servicebus/websocket")
    return node_bus.route(request.param)


@pytest.fixture
def tcp(node_bus: NodeBus) -> dict[str, Any]:
    """Plain TCP, for checks that have nothing to do with the transport."""
    return node_bus.route("tcp")
