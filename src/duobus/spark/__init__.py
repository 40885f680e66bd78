"""Service Bus entities as Spark tables and streams, and jobs over them; the package does not depend on the server.

The package works with Azure and duobus alike. ``pip install duobus[spark]`` installs what it needs. Importing the
package loads neither Spark nor the SDK; modules that need them are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duobus.spark.data_source import DuobusDataSource
    from duobus.spark.recovery import dead_letter, release, sweep

__all__ = ["DuobusDataSource", "dead_letter", "release", "sweep"]

#: What is offered here, and the module that has it.
_OFFERED: Final = {
    "DuobusDataSource": "duobus.spark.data_source",
    "dead_letter": "duobus.spark.recovery",
    "release": "duobus.spark.recovery",
    "sweep": "duobus.spark.recovery",
}


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OFFERED[name]), name)
