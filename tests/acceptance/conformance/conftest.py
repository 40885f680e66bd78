"""Fixtures of the conformance checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit_bus import Bus
from kit_place import Place
from kit_sdk import Sdk

from duobus.testing.broker import BrokerThread
from duobus.testing.namespace import Broker, Namespace
from kits.raw_client import RawClient, token
from kits.sockets import collect_sockets


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One broker for all checks that leave it alive."""
    found = Bus(tmp_path_factory.mktemp("bus"), most=None)
    with found.process:
        yield found
        # What clients left open is not waited for.
        found.process.kill()


@pytest.fixture(params=["sync", "asyncio"])
def sdk(request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """The Python SDK, both ways."""
    if request.param == "asyncio":
        # It leaves sockets unclosed when its connection ends before it says so. The broker is another process, so that
        # nothing of ours is hidden; collected at once, they do not fail whichever test comes later.
        request.node.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    yield Sdk(request.param)
    if request.param == "asyncio":
        collect_sockets()


@pytest.fixture
def raw(bus: Bus) -> Iterator[RawClient]:
    """A frame-level client with a token for the whole namespace."""
    with RawClient(bus.port) as client:
        assert client.put_token("", token(""))[0] == 202
        yield client


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker in this process, whose time tests move."""
    made = Broker(BrokerThread())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def namespace(broker: Broker) -> Iterator[Namespace]:
    """A namespace of its own in it."""
    with broker.namespace() as found:
        yield found


@pytest.fixture
def place(broker: Broker, namespace: Namespace) -> Place:
    """The same, for a frame-level client."""
    return Place(broker, namespace)
