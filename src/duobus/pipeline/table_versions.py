"""How far the tables of a pipeline are, from checkpoints and records of runs; nothing in here needs Spark.

A version is a mapping from a writer to how far that writer is: of a streaming query the number of its newest committed
batch, of a stage that replaces its table the number of its newest finished run. A table that no stage writes has a
digest of its files, or of its log of commits, or the name of its snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from duobus.pipeline.document.model import Form, Pipeline, Table
from duobus.pipeline.state_folder import StageState, StateFolder
from duobus.spark.jobs.lake.delta_table import LOG
from duobus.spark.jobs.lake.iceberg_table import IcebergTable

#: Digits of the id of a query that the names of its batches begin with.
_DIGITS: Final = 8
#: The one writer of a table that no stage writes.
FILES: Final = "files"

Version = Mapping[str, Any]


def query_of(stage: StageState) -> str | None:
    """What the names of a stage's batches begin with; None before its query has begun."""
    try:
        return str(json.loads((stage.checkpoint / "metadata").read_text())["id"])[:_DIGITS]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest_batch(stage: StageState) -> int | None:
    """Number of the newest batch that a streaming query has committed; None before the first."""
    with suppress(OSError):
        return max(
            (int(one.name) for one in (stage.checkpoint / "commits").iterdir() if one.name.isdecimal()), default=None
        )
    return None


def version_of(pipeline: Pipeline, state: StateFolder, table: str) -> dict[str, Any]:
    """How far a table is now; empty where nothing was written yet."""
    writers = pipeline.writers_of(table)
    if not writers:
        return {FILES: _state_of(pipeline.tables[table])}
    found: dict[str, Any] = {}
    for name in writers:
        stage = state.stage(name)
        if pipeline.stages[name].is_streaming:
            query, batch = query_of(stage), newest_batch(stage)
            if query is not None and batch is not None:
                found[query] = batch
        else:
            number, _, result = stage.newest()
            done = number if result is not None else number - 1
            if done > 0:
                found[name] = done
    return found


def behind(now: Version, then: Version) -> int:
    """How many batches or runs of a table came after a version."""
    total = 0
    for writer, newest in now.items():
        before = then.get(writer)
        if not isinstance(newest, int):
            total += newest != before
        else:
            total += newest - (before if isinstance(before, int) else -1)
    return total


def _state_of(table: Table) -> str:
    """Changes whenever somebody commits to a table that no stage writes."""
    if table.catalog is not None:
        try:
            # A catalog is one of many programs, each with errors of its own; the run that reads the table tells them.
            found = IcebergTable(*table.catalog, table.compression).present()
        except Exception as error:  # noqa: BLE001
            return f"unknown: {type(error).__name__}"
        return "none" if found is None else str(found.metadata_location)
    return _digest_of(Path(table.path) / LOG if table.form is Form.DELTA else Path(table.path))


def _digest_of(folder: Path) -> str:
    """Changes whenever a file of a folder does; empty for a folder of another file system."""
    digest = hashlib.sha256()
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith((".", "_")))
        for name in sorted(names):
            with suppress(OSError):
                about = (Path(place) / name).stat()
                digest.update(f"{place}/{name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
