"""Two namespaces, each a broker process of its own: what a pair is made of."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from kit_pair import BACKLOGS, TESTS_MAX, Bus
from kit_pair_place import Place, place_of_environment

from duobus.ha.aio import backlog
from duobus.testing.server import ServerProcess, queues_config


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The namespace that applications send to, and the one with backlog queues; a set of queues for each test."""
    folder = tmp_path_factory.mktemp("pair")
    sent_to = {f"{name}-{n}": {} for n in range(TESTS_MAX) for name in ("orders", "bills")}
    sent_to |= {f"visits-{n}": {"RequiresSession": True} for n in range(TESTS_MAX)}
    kept_in = {path: {} for n in range(TESTS_MAX) for path in backlog.paths(f"contoso-{n}", BACKLOGS)}
    with (
        ServerProcess(folder / "primary", config=queues_config(sent_to), arguments=("--emulator",)) as primary,
        ServerProcess(folder / "secondary", config=queues_config(kept_in), arguments=("--emulator",)) as secondary,
    ):
        yield primary, secondary


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
