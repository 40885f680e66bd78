"""Two namespaces, each a broker process of its own: what a pair is made of."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from kit_pair_place import Place, place_of_environment

from duobus.testing.server import ServerProcess, queues_config
from kits.pair import Bus


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The namespace that applications send to, and the one with backlog queues; each test makes its own queues."""
    folder = tmp_path_factory.mktemp("pair")
    config = queues_config({})
    with (
        ServerProcess(folder / "primary", config=config, arguments=("--emulator",)) as primary,
        ServerProcess(folder / "secondary", config=config, arguments=("--emulator",)) as secondary,
    ):
        yield primary, secondary
        # What clients left open is not waited for.
        primary.kill()
        secondary.kill()


@pytest.fixture
def bus(servers: tuple[ServerProcess, ServerProcess]) -> Iterator[Bus]:
    """Both servers, running, with queues that no other test has touched."""
    for server in servers:
        if not server.is_running:
            server.start()
    yield Bus(*servers)
    # The SDK leaves open what a server ended before it said so; collected here, no other test hears of it.
    gc.collect()


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Two namespaces: those of the environment, or brokers of our own."""
    there = place_of_environment()
    if there is None:
        bus: Bus = request.getfixturevalue("bus")
        there = Place(bus.primary.connection_string, bus.secondary.connection_string, bus.orders, bus.name, bus)
    yield there
    gc.collect()
