"""What those who read captured messages piece by piece have read: a compaction leaves alone what one of them has not.

Files of a compaction have lost the ids of their batches, by which such a reader tells what is new to it. So a reader
notes the newest batch of each query that it has read, before its first run and behind each run, and what is newer stays
as it is until then. The note is written under the lock that a compaction holds while folders change places, and the
compaction looks at the notes again under this lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from duobus.file_sync import whole_file
from duobus.spark.errors import OptionError
from duobus.spark.jobs.lake.folder_lock import HAS_LOCKS, NOTES, changing
from duobus.spark.source.query_end import local_folder

#: Below the notes: a note of each reader.
READERS: Final = "readers"

#: First digits of the id of a query to the number of the newest batch that was read.
Newest = Mapping[str, int]


class ReaderMark(NamedTuple):
    """How far a reader has read.

    Attributes:
        reader: Its name.
        newest: How far.
    """

    reader: str
    newest: Newest

    def has(self, query: str, number: int) -> bool:
        """Whether it has read a batch."""
        return number <= self.newest.get(query, -1)


def note_read(location: str, reader: str, newest: Newest) -> None:
    """Note how far a reader has read; durable when this returns.

    Args:
        location: Folder of the captured messages; elsewhere than on a disk of this machine nothing is noted, as nothing
            is compacted there.
        reader: The reader's name, the same for ever.
        newest: How far.
    """
    folder = local_folder(location)
    if folder is None or not HAS_LOCKS or not folder.is_dir():
        return
    path = note_path(folder, reader)
    if _read(path) == ReaderMark(reader, newest):
        return
    with changing(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(json.dumps({"reader": reader, "newest": dict(newest)}).encode())


def note_path(root: Path, reader: str) -> Path:
    """The file in which a reader of a folder of captured messages notes how far it has read."""
    return root / NOTES / READERS / f"{hashlib.sha256(reader.encode()).hexdigest()[:16]}.json"


def marks_in(root: Path) -> tuple[ReaderMark, ...]:
    """How far each reader of a folder of captured messages has read.

    Raises:
        OptionError: A note cannot be read.
    """
    found = (_read(path) for path in sorted((root / NOTES / READERS).glob("*.json")))
    return tuple(mark for mark in found if mark is not None)


def _read(path: Path) -> ReaderMark | None:
    try:
        note = json.loads(path.read_text("utf-8"))
        return ReaderMark(str(note["reader"]), {str(query): int(last) for query, last in note["newest"].items()})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"The note {path} of a reader of these messages cannot be read: {error}. If no pipeline reads them with "
            "newRowsOf any more, remove it."
        ) from None
