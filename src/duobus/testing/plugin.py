"""The pytest plugin: a broker for a session, a namespace for every test.

Nothing of duobus is imported, started or changed until a test asks for one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from duobus.testing.drills import Drill
    from duobus.testing.namespace import Broker, Namespace

#: Name of the marker, and what it can ask for.
MARKER: Final = "duobus_drill"
_KINDS: Final = ("fail", "stall")
#: Short names of the fixtures, unless they are taken.
_ALIASES = ("broker", "namespace", "connection_string", "drill")


class _Aliases:
    """Holds the short fixtures where pytest does not look for them; ``pytest_configure`` hands out the free ones."""

    @staticmethod
    @pytest.fixture(scope="session")
    def broker(duobus_broker: Broker) -> Broker:
        """Short for ``duobus_broker``."""
        return duobus_broker

    @staticmethod
    @pytest.fixture
    def namespace(duobus_namespace: Namespace) -> Namespace:
        """Short for ``duobus_namespace``."""
        return duobus_namespace

    @staticmethod
    @pytest.fixture
    def drill(duobus_drill: Drill) -> Drill:
        """Short for ``duobus_drill``."""
        return duobus_drill

    @staticmethod
    @pytest.fixture
    def connection_string(duobus_connection_string: str) -> str:
        """Short for ``duobus_connection_string``."""
        return duobus_connection_string


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--duobus-process`` and the setting ``duobus_aliases``."""
    group = parser.getgroup("duobus")
    group.addoption(
        "--duobus-process", action="store_true", help="Run the duobus broker in a process of its own, not in a thread."
    )
    parser.addini(
        "duobus_aliases",
        "Offer the fixtures also as broker, namespace, connection_string and drill, unless another plugin has these.",
        type="bool",
        default=True,
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Offer the short names that are free; a conftest.py or test module that defines one wins by pytest's own rules."""
    config.addinivalue_line("markers", f"{MARKER}(store, how='fail'): a messaging store is away: 'fail' or 'stall'.")
    if not config.getini("duobus_aliases"):
        return
    others = config.pluginmanager.get_plugins()
    short = ModuleType("duobus_aliases")
    for name in _ALIASES:
        if not any(hasattr(plugin, name) for plugin in others):
            setattr(short, name, getattr(_Aliases, name))
    config.pluginmanager.register(short, "duobus_aliases")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a test with the marker begin when its fixtures are there and the store is away."""
    if isinstance(item, pytest.Function) and item.get_closest_marker(MARKER) is not None:
        # Set up last, since no entity is made while a store is away.
        item.fixturenames.append(_store_away.__name__)


@pytest.fixture(scope="session")
def duobus_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The broker of this session (of this worker, under pytest-xdist): in memory, on ports that the system picks."""
    from duobus.testing.namespace import Broker, BrokerProcess, Remote

    remote: Remote
    if request.config.getoption("--duobus-process"):
        remote = BrokerProcess()
    else:
        from duobus.testing.broker import BrokerThread

        remote = BrokerThread()
    broker = Broker(remote)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def duobus_namespace(duobus_broker: Broker) -> Iterator[Namespace]:
    """An empty namespace for this test alone; see ``duobus.testing.namespace.Namespace``."""
    with duobus_broker.namespace() as namespace:
        yield namespace


@pytest.fixture
def duobus_connection_string(duobus_namespace: Namespace) -> str:
    """The connection string of this test's namespace."""
    return duobus_namespace.connection_string


@pytest.fixture
def duobus_drill(duobus_broker: Broker) -> Iterator[Drill]:
    """Drills with the messaging stores of the broker; see ``duobus.testing.drills.Drill``. Healed after the test."""
    from duobus.testing.drills import Drill

    drill = Drill(duobus_broker)
    try:
        yield drill
    finally:
        drill.heal()


@pytest.fixture
def _store_away(request: pytest.FixtureRequest, duobus_drill: Drill) -> None:
    """The stores that the test's markers name fail or stall; ``duobus_drill`` heals them after the test."""
    for mark in request.node.iter_markers(MARKER):
        store, how = _told(*mark.args, **mark.kwargs)
        if how not in _KINDS:
            raise pytest.UsageError(f"@pytest.mark.{MARKER}: how is {how!r}, and can be {' or '.join(_KINDS)}.")
        getattr(duobus_drill, how)(store)


def _told(store: int, how: str = "fail") -> tuple[int, str]:
    return store, how
