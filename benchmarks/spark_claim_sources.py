"""Two sources for ``spark_claims``: as it is, and with a driver that receives and defers; both note their calls' times.

The module is imported by name in Spark's processes, which have the project's root on their path.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.data_source import DuobusDataSource
from duobus.spark.source.claim_stream import ClaimStreamReader
from duobus.spark.source.settings import source_options

#: Environment variable with the file that the times of calls go to.
CALLS_ENV: Final = "SPARK_CLAIMS_CALLS"


class NotedReader(ClaimStreamReader):
    """A reader whose process notes how long each call took."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> Any:  # noqa: N802 - Spark's names, here and below
        """See the parent."""
        return self._noted("latestOffset", start, limit)

    def reportLatestOffset(self) -> Any:  # noqa: N802
        """See the parent."""
        return self._noted("reportLatestOffset")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        """See the parent."""
        return self._noted("partitions", start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """See the parent."""
        self._noted("commit", end)

    def _noted(self, name: str, *arguments: Any) -> Any:
        began, began_s = time.time(), time.perf_counter()
        found = getattr(super(), name)(*arguments)
        with Path(os.environ[CALLS_ENV]).open("a") as file:
            file.write(f"{name} {began} {(time.perf_counter() - began_s) * 1000}\n")
        return found


class ReceivingReader(NotedReader):
    """A reader that gives its stream no name, so that the broker claims nothing for it."""

    def _claims(self) -> ClaimRunner:
        made = super()._claims()
        made._engine._new_name = None
        return made


class ClaimingSource(DuobusDataSource):
    """The source as it is."""

    READER: type[NotedReader] = NotedReader

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "duobus_claimed"

    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        """A reader of a stream."""
        return self.READER(source_options(dict(self.options), "claim"), schema)


class ReceivingSource(ClaimingSource):
    """The source as it is against Azure."""

    READER = ReceivingReader

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "duobus_received"


SOURCES: Final[dict[str, type[ClaimingSource]]] = {"claimed": ClaimingSource, "received": ReceivingSource}
