"""The parts of the demonstration, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from duobus.demo.errors import DemoFailed

if TYPE_CHECKING:
    from duobus.clock import Clock
    from duobus.demo.watcher import Watcher

#: Part to the module whose ``PART`` it is. Modules are loaded when a part is played, because they need the SDK;
#: ``--help`` names them without it.
#: The order is the one in which they are played when nothing else is asked for.
PARTS = {
    "queue": "duobus.demo.queue_part",
    "sessions": "duobus.demo.sessions_part",
    "fanout": "duobus.demo.fanout_part",
    "store-loss": "duobus.demo.store_loss_part",
    "paired": "duobus.demo.paired_part",
}

#: Parts that are played only when they are named, since they need more than Python.
EXTRA_PARTS = {
    "spark": "duobus.demo.spark_part",
    "cluster": "duobus.demo.cluster_part",
}


class Part(NamedTuple):
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


def load_part(name: str) -> Part:
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
    assert isinstance(part, Part)
    return part
