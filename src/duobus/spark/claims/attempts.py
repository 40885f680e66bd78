"""The number of runs that have begun a batch: a batch that fails for ever is given up after a number of runs.

The count is kept beside the checkpoint and not in it, because the offset of a batch must stay as it was written. The
count is written before a batch is handed to tasks, so a run that crashes counts as well.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from duobus.spark.errors import CheckpointError

#: Bytes of the file.
FILE_BYTES_MAX: Final = 4_096
#: Why, in the dead-letter queue.
REASON: Final = "SparkMaxAttempts"


class Attempts:
    """Counts the runs of a query's present batch.

    Args:
        folder: Folder of the count; each query has its own. An empty text would mean the folder of the process.

    Raises:
        CheckpointError: The text is empty.
    """

    def __init__(self, folder: str) -> None:
        if not folder.strip():
            raise CheckpointError("The option 'attemptsPath' is empty; it has to name a folder of this query alone.")
        self._path = Path(folder) / "attempts.json"

    def begin(self, end: Any) -> int:
        """Count one more run of a batch; return its number.

        Raises:
            CheckpointError: The count cannot be kept.
        """
        which = hashlib.sha256(json.dumps(end, sort_keys=True).encode()).hexdigest()
        try:
            number = self._known(which) + 1
            self._path.parent.mkdir(parents=True, exist_ok=True)
            other = self._path.with_suffix(".new")
            other.write_text(json.dumps({"batch": which, "attempts": number}))
            other.replace(self._path)
        except OSError as error:
            raise CheckpointError(f"The option 'attemptsPath' names no folder that can be written: {error}") from None
        return number

    def _known(self, which: str) -> int:
        try:
            with self._path.open("rb") as file:
                kept = json.loads(file.read(FILE_BYTES_MAX))
            return int(kept["attempts"]) if kept["batch"] == which else 0
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"The file {os.fspath(self._path)} of 'attemptsPath' is damaged. Remove it: counting begins anew."
            ) from None
