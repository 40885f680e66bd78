"""What tests of pipelines share."""

from __future__ import annotations

from typing import Any


class KeptSession:
    """The session of all tests, which a pipeline must not end."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Does nothing."""
