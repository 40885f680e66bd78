"""Queues and subscriptions as Arrow data, without Spark: for Polars, pandas, DuckDB, and files of Parquet.

The package works with Azure and duobus alike. ``pip install duobus[arrow]`` installs what it needs. Importing the
package loads neither pyarrow nor the SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duobus.arrow.claims import Claim, Settled
    from duobus.arrow.reader import read_queue

__all__ = ["Claim", "Settled", "read_queue"]

#: What is offered here, and the module that has it.
_OFFERED: Final = {
    "Claim": "duobus.arrow.claims",
    "Settled": "duobus.arrow.claims",
    "read_queue": "duobus.arrow.reader",
}
#: Packages that the extra brings.
_NEEDED: Final = ("pyarrow", "azure")


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERED[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise ImportError(
            f"duobus.arrow.{name} needs the package {error.name}: pip install 'duobus[arrow]'", name=error.name
        ) from error
