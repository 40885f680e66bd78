"""The parts of the demonstration, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from duobus.testing.server import DemoFailed

if TYPE_CHECKING:
    from duobus.clock import Clock
    from duobus_demo.progress import Watcher

#: Part to the module whose ``PART`` it is. Modules are loaded when a part is played, because they need the SDK;
#: ``--help`` names them without it.
#: The order is the one in which they are played when nothing else is asked for.
PARTS = {
    "queue": "duobus_demo.scenarios.queue",
    "sessions": "duobus_demo.scenarios.sessions",
    "fanout": "duobus_demo.scenarios.fanout",
    "store-loss": "duobus_demo.scenarios.store_loss",
    "paired": "duobus_demo.scenarios.paired",
    "rate": "duobus_demo.scenarios.rate",
}

#: Parts that are played only when they are named, since they need more than Python.
EXTRA_PARTS = {
    "spark": "duobus_demo.scenarios.spark",
    "cluster": "duobus_demo.scenarios.cluster",
    "relay": "duobus_demo.scenarios.relay",
}


class Scenario(NamedTuple):
    """One part.

    Attributes:
        title: Heading of its table.
        play: Runs it in a folder with a time limit in seconds and returns the members of its result, the first of
            them ``part``; raises DemoFailed.
        failures: What makes such a result a failure, a sentence each.
    """

    title: str
    play: Callable[[Path, Watcher, Clock, float], dict[str, Any]]
    failures: Callable[[dict[str, Any]], list[str]]


def load_scenario(name: str) -> Scenario:
    """Return a part.

    Raises:
        DemoFailed: The SDK is not installed.
    """
    # find_spec and not an import: what fails inside an installed SDK must be seen as what it is.
    if find_spec("azure") is None or find_spec("azure.servicebus") is None:
        raise DemoFailed(
            "The demonstration uses the official SDK, azure-servicebus, which is not installed. "
            "Install it with: pip install 'duobus[ha]'"
        )
    part = import_module({**PARTS, **EXTRA_PARTS}[name]).PART
    assert isinstance(part, Scenario)
    return part
