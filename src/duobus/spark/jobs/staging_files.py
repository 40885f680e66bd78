"""Files of a write of Spark that was killed: they lie in hidden folders below the path, and Spark does not clear them.

Spark writes a batch into ``.spark-staging-*`` below the path and moves its folders from there. Readers such as Spark,
pandas and pyarrow ignore names that begin with a dot or an underscore. Other readers do not, and find half of a file,
or rows that the next attempt has written again.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Final

from duobus.clock import Clock
from duobus.spark.source.query_end import local_folder

#: How folders are called in which Spark has files that are not finished.
STAGING: Final = (".spark-staging-", "_temporary")
#: After so long without a change even what is not known to be of this query is nobody's: no batch takes so long.
STALE_S: Final = 86_400
#: Folders of one staging folder that are looked at for whose it is.
LOOKS_MAX: Final = 100_000

_log = logging.getLogger("duobus.spark")


def clear_staging(path: str, query: str, clock: Clock | None = None) -> list[str]:
    """Remove files that killed writes of a query have left below a path; never fails.

    Args:
        path: Folder of all batches. If it is not on this machine's disks, nothing is done.
        query: The text with which the names of the query's batches begin. Other queries may be writing into the path
            now, so their folders are left alone, unless nothing has changed in them for a day.
        clock: Time.

    Returns:
        The names of the folders that were removed.
    """
    folder = local_folder(path)
    if folder is None or not folder.is_dir():
        return []
    now_s = (clock or Clock()).now_ms() / 1000
    removed = []
    for place in sorted(folder.iterdir()):
        if place.name.startswith(STAGING) and place.is_dir() and not place.is_symlink():
            is_left, changed_s = _looked_at(place, f"batch_id={query}-")
            if is_left or now_s - changed_s > STALE_S:
                shutil.rmtree(place, ignore_errors=True)
                removed.append(place.name)
    if removed:
        _log.info("removed what a killed capture had left in %s: %s", path, ", ".join(removed))
    return removed


def _looked_at(place: Path, batch: str) -> tuple[bool, float]:
    """Whether a folder has a folder of one of these batches, and when anything in it has changed last."""
    changed_s = place.stat().st_mtime
    for looks, (folder, below, _) in enumerate(os.walk(place)):
        if looks >= LOOKS_MAX:
            break
        try:
            changed_s = max(changed_s, Path(folder).stat().st_mtime)
        except OSError:
            continue  # It is gone, so somebody is at work here.
        if any(name.startswith(batch) for name in below):
            return True, changed_s
    return False, changed_s
