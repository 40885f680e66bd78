"""Small files of captured messages to few: each hour on its own, and for readers at one instant.

The files of an hour are written anew into a folder that readers pass over, together with links to what stays as it is.
Then the new folder and that of the hour change places, which the system does in one step: whoever lists the hour sees
either all old files or all new ones. What was put aside is removed. A compaction that is killed before the change
leaves the hour as it was, and one that is killed after it leaves nothing to do; the next one removes what lies about.

Needs a file system that lets two folders change places, so it works on Linux and on a disk of this machine.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from duobus.file_sync import sync_file, sync_folder
from duobus.spark.errors import OptionError
from duobus.spark.jobs.job import JobError
from duobus.spark.jobs.lake.folder_lock import NOTES, changing
from duobus.spark.jobs.lake.hour_folders import (
    BatchFolder,
    Finished,
    batches_of,
    compacted_name,
    hours_in,
    to_compact,
)
from duobus.spark.jobs.lake.reader_marks import marks_in, note_path

try:
    import fcntl
except ImportError:  # Windows, where folders cannot change places
    fcntl = None  # type: ignore[assignment]

#: Below the notes: the hour that is being written, and the lock that one compaction holds.
_NEW: Final = "compaction"
_LOCK: Final = "compaction.lock"
#: Of Linux: the paths are not below an open folder; two places change.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: Rows of a row group of a new file, and its compression.
_GROUP_ROWS: Final = 50_000
COMPRESSION: Final = "zstd"
#: Sentences of the summary about readers that are behind and hours that were left alone.
TOLD_MAX: Final = 20

Tell = Callable[[str], None]


class LeftAlone(RuntimeError):
    """An hour stays as it is; the text says why."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is compacted.

    Attributes:
        finished: Which batches nothing writes again.
        until_s: Batches that were changed after this time, in seconds since 1970, are left for the next time: a power
            cut may take back what a commit log says of them.
        target: Bytes that a file may have.
    """

    finished: Finished
    until_s: float
    target: int


def compact_folder(root: Path, rules: Rules, tell: Tell) -> dict[str, Any]:
    """Compact a folder of captured messages.

    Args:
        root: The folder.
        rules: What is compacted.
        tell: Called with the progress.

    Returns:
        Hours that were compacted, files before and after, messages in them, batches that were left alone because they
        may be written again or a stage of a pipeline has not read them, and sentences about hours that were left alone.

    Raises:
        OptionError: There is no such folder.
        JobError: Another compaction is at work, or the file system cannot let folders change places. Hours that were
            compacted before stay so.
    """
    if not root.is_dir():
        raise OptionError(f"There is no folder '{root}' on this machine.")
    counts = dict.fromkeys(("hours", "files_before", "files_after", "messages", "batches_left"), 0)
    left: list[str] = []
    behind: Counter[str] = Counter()
    with _Alone(root):
        shutil.rmtree(root / NOTES / _NEW, ignore_errors=True)
        for hour in hours_in(root):
            place = hour.relative_to(root).as_posix()
            batches = batches_of(hour)
            ready = [one for one in batches if rules.finished.has(place, one.name) and one.changed_s <= rules.until_s]
            counts["batches_left"] += len(batches) - len(ready)
            behind.update(reader for one in batches for reader in rules.finished.behind(one.name))
            chosen, files = to_compact(ready, rules.target)
            if not chosen:
                continue
            tell(f"{counts['hours']} hours, now {place}")
            try:
                counts["messages"] += _compact_hour(root, hour, chosen, files, rules)
            except LeftAlone as error:
                shutil.rmtree(root / NOTES / _NEW)
                left.append(str(error))
                continue
            counts["hours"] += 1
            counts["files_before"] += sum(len(batch.files) for batch in chosen)
            counts["files_after"] += files
    # Readers first: one that will never run again holds batches back until an operator removes its note.
    told = [
        f"{reader} has not read {count} of the batches, and until it has they stay as they are. If it will never run "
        f"again, remove its note {note_path(root, reader)}."
        for reader, count in sorted(behind.items())
    ] + left
    if len(told) > TOLD_MAX:
        told[TOLD_MAX - 1 :] = [f"{len(told) - TOLD_MAX + 1} more reasons are not shown here."]
    return {**counts, "left_alone": told}


def _compact_hour(root: Path, hour: Path, chosen: Sequence[BatchFolder], files: int, rules: Rules) -> int:
    """Compact an hour; returns how many messages are in the new files."""
    new = root / NOTES / _NEW
    target = new / compacted_name(chosen)
    target.mkdir(parents=True)
    messages = written([file for batch in chosen for file in batch.files], target, files)
    with changing(root):
        # No capture moves files now. What came since the hour was looked at comes along.
        there = {batch.name: batch for batch in batches_of(hour)}
        if any(there.get(batch.name) != batch for batch in chosen):
            raise LeftAlone(f"The files of {hour} were changed meanwhile; it stays as it is.")
        now = replace(rules.finished, readers=marks_in(root))
        if not all(now.has(hour.relative_to(root).as_posix(), batch.name) for batch in chosen):
            raise LeftAlone(f"A stage of a pipeline has begun to read {hour} batch by batch; the hour stays as it is.")
        taken = {batch.name for batch in chosen}
        for folder in sorted(hour.iterdir()):
            if folder.name not in taken:
                _link(folder, new / folder.name)
        sync_folder(new)
        exchange(new, hour)
        sync_folder(hour.parent)
        sync_folder(new.parent)
    shutil.rmtree(new)
    return messages


def written(sources: Sequence[Path], target: Path, files: int) -> int:
    """Write the rows of some files of Parquet into fewer, in the order of the files; returns how many rows there are.

    Args:
        sources: The files.
        target: Folder of the new files.
        files: How many new files there shall be.

    Raises:
        LeftAlone: The files have different columns, or one cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = [pq.read_metadata(source).num_rows for source in sources]
        schemas = [pq.read_schema(source).remove_metadata() for source in sources]
    except (pa.ArrowException, OSError) as error:
        raise LeftAlone(f"A file cannot be read, and its hour stays as it is: {str(error).splitlines()[0]}") from None
    for source, schema in zip(sources, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise LeftAlone(f"The file {source} has other columns than {sources[0]}; their hour stays as it is.")
    share = max(1, -(-sum(rows) // files))
    batches = (batch for source in sources for batch in pq.ParquetFile(source).iter_batches(_GROUP_ROWS))
    waiting: list[pa.RecordBatch] = []
    for number in range(files):
        path = target / f"part-{number:05d}.{COMPRESSION}.parquet"
        with path.open("w+b") as file, pq.ParquetWriter(file, schemas[0], compression=COMPRESSION) as writer:
            room = share
            while room and (batch := waiting.pop() if waiting else next(batches, None)) is not None:
                writer.write_batch(batch.slice(0, room))
                if batch.num_rows > room:
                    waiting.append(batch.slice(room))
                room -= min(room, batch.num_rows)
            writer.close()
            file.flush()
            sync_file(file.fileno())
    sync_folder(target)
    there = sum(int(pq.read_metadata(path).num_rows) for path in target.iterdir())
    if there != sum(rows):
        raise LeftAlone(f"{target} has {there} messages of {sum(rows)}; the hour stays as it is.")
    return there


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places, in one step.

    Raises:
        JobError: The system or the file system cannot do that.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        raise JobError("This system cannot let two folders change places in one step; Linux can.") from None
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        text = os.strerror(ctypes.get_errno())
        raise JobError(f"The file system of {other} cannot let two folders change places in one step: {text}.")


def _link(source: Path, target: Path) -> None:
    """Give everything below a place a second name below another one."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        target.hardlink_to(source)


class _Alone:
    """Holds the lock of the one compaction of a folder; a context manager.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._file = -1

    def __enter__(self) -> None:
        if fcntl is None:
            raise JobError("This system cannot let two folders change places in one step; Linux can.")
        place = self._root / NOTES
        place.mkdir(exist_ok=True)
        self._file = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise JobError(f"Another compaction is at work in '{self._root}'.") from None

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
