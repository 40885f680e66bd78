"""A credential provider, as users write one: called in each process."""

from __future__ import annotations

import os

from spark_bus import CONNECTION_ENV


def connection() -> str:
    """A connection string may be provided too."""
    return os.environ[CONNECTION_ENV]


def nothing() -> None:
    """What a provider with a fault returns."""
