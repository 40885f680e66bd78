"""The folders of an hour of captured messages: which of their files a compaction may take together.

A file is taken only when nothing writes its folder again. Of a batch of Spark the commit log of its query tells so: up
to the newest batch that is committed, batches are over. Of a batch of ``duobus message capture`` the note of the
capture tells so: a batch that the note does not list is over. Batches of unknown origin stay as they are, and so do
batches that a reader has not read yet which knows new batches by their names (``reader_marks``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from duobus.spark.errors import CheckpointError, OptionError
from duobus.spark.jobs.lake.captured_columns import short
from duobus.spark.jobs.lake.folder_lock import NOTES
from duobus.spark.jobs.lake.reader_marks import ReaderMark, marks_in
from duobus.spark.recovery import batches_in

#: How the folder of a batch begins, and that of a batch that a compaction made.
BATCH: Final = "batch_id="
COMPACTED: Final = "batch_id=compacted-"
_OF_SPARK: Final = re.compile(r"batch_id=([0-9a-f]{8})-(\d{8,})")
_OF_MESSAGES: Final = re.compile(r"batch_id=[0-9a-f]{8}-\d+-\d+")
_NOTE: Final = "pending.json"


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """The folder of a batch in an hour.

    Attributes:
        name: Name of the folder.
        files: Its Parquet files.
        size: Bytes of the files.
        changed_s: When the newest of them was changed, in seconds since 1970.
    """

    name: str
    files: tuple[Path, ...]
    size: int
    changed_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Which batches nothing writes again, and no reader has to know by their names.

    Attributes:
        newest: First digits of the id of a query to the number of its newest committed batch; None: all its batches.
        pending: Places, below the folder of all messages, that a capture without Spark still gives to files.
        readers: How far those have come that tell new batches by their names.
    """

    newest: Mapping[str, int | None]
    pending: frozenset[str]
    readers: tuple[ReaderMark, ...] = ()

    def has(self, hour: str, name: str) -> bool:
        """Whether a batch is over for those who write and for those who read.

        Args:
            hour: Place of the hour's folder, below the folder of all messages.
            name: Name of the batch's folder.
        """
        if name.startswith(COMPACTED):
            return True
        if (found := _OF_SPARK.fullmatch(name)) is not None:
            last, query, number = self.newest.get(found[1], -1), found[1], int(found[2])
            return (last is None or number <= last) and all(mark.has(query, number) for mark in self.readers)
        if _OF_MESSAGES.fullmatch(name) is None:
            return False
        return not any(place.startswith(f"{hour}/{name}/") for place in self.pending)

    def behind(self, name: str) -> list[str]:
        """The readers that have not read a batch, by the name of its folder."""
        found = _OF_SPARK.fullmatch(name)
        return [] if found is None else [m.reader for m in self.readers if not m.has(found[1], int(found[2]))]


def finished(root: Path, checkpoints: Iterable[str], queries: Iterable[str] = ()) -> Finished:
    """Read which batches are over.

    Args:
        root: Folder of all messages.
        checkpoints: Checkpoints of the queries that capture into it.
        queries: Ids, or their first digits, of queries whose checkpoints are gone.

    Raises:
        OptionError: A checkpoint is none, or the note of a reader cannot be read.
        CheckpointError: A file of a checkpoint cannot be read.
    """
    newest: dict[str, int | None] = {}
    for checkpoint in checkpoints:
        folder = Path(checkpoint)
        try:
            query = str(json.loads((folder / "metadata").read_text())["id"])
        except FileNotFoundError:
            raise OptionError(f"'{checkpoint}' is no checkpoint of a query that has run.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"The checkpoint '{checkpoint}' cannot be read: {error}") from None
        newest[short(query)] = max(batches_in(folder / "commits"), default=-1)
    newest |= dict.fromkeys((short(query) for query in queries), None)
    pending = [str(place) for note in (root / NOTES).glob(f"*/{_NOTE}") for _, place in _note(note).get("moves", ())]
    return Finished(newest, frozenset(pending), marks_in(root))


def _note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise OptionError(f"The note {path} of a capture cannot be read: {error}") from None
    return dict(note)


def hours_in(root: Path) -> Iterator[Path]:
    """The folders of hours, in order."""
    yield from sorted(place for place in root.glob("entity=*/date=*/hour=*") if place.is_dir())


def batches_of(hour: Path) -> list[BatchFolder]:
    """The batches of an hour, in order."""
    found = []
    for folder in sorted(hour.glob(f"{BATCH}*")):
        files = tuple(sorted(file for file in folder.rglob("*.parquet") if not file.name.startswith((".", "_"))))
        known = [file.stat() for file in files]
        size, changed_s = sum(one.st_size for one in known), max((one.st_mtime for one in known), default=0.0)
        found.append(BatchFolder(folder.name, files, size, changed_s))
    return found


def to_compact(batches: Iterable[BatchFolder], target: int) -> tuple[list[BatchFolder], int]:
    """Choose the batches that a compaction takes together.

    Args:
        batches: Batches of an hour that are over.
        target: Bytes that a file may have.

    Returns:
        The batches, and of how many files they shall be; none, unless there are fewer files afterwards.
    """
    small = [batch for batch in batches if batch.files and batch.size / len(batch.files) < target]
    files = max(1, -(-sum(batch.size for batch in small) // target))
    return (small, files) if files < sum(len(batch.files) for batch in small) else ([], 0)


def compacted_name(batches: Iterable[BatchFolder]) -> str:
    """The name of the folder into which some batches go: the same for the same batches."""
    text = "\n".join(sorted(batch.name for batch in batches))
    return f"{COMPACTED}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
