"""The folder of a capture: messages as Parquet files below their entity, date and hour, each message in one file.

A batch is written in three steps: its files, under names that no reader looks at; a note that says which files are
renamed how, and which messages are in them; and the renames. The note is the point from which on the batch counts: a
capture that is killed before it leaves nothing, and one that is killed after it is finished by the next one. The
messages are settled after the renames. Those that a kill leaves unsettled come again, and the note, which still lists
them, says that they are in the folder already.

The partitions are those of the Spark job: ``entity``, ``date`` and ``hour`` in UTC, and ``batch_id``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duobus.file_sync import sync_file, sync_folder, whole_file
from duobus.spark.jobs.lake.folder_lock import NOTES, writing
from duobus.spark.schema import NAMES, arrow_schema

try:
    import fcntl
except ImportError:  # Windows, where two captures into one folder are not noticed
    fcntl = None  # type: ignore[assignment]

#: The columns of a file; the name of the entity is in the path.
FILE_COLUMNS: Final = tuple(name for name in NAMES if name != "entity")
_NOTE: Final = "pending.json"
_VERSION: Final = 1
_PART: Final = ".part"
#: Characters that Spark, too, does not write into the names of folders as they are.
_ESCAPED: Final = re.compile(r'[\x00-\x1f\x7f"#%\'*/:=?\\{}\[\]^]')
_HOUR_US: Final = 3_600_000_000


class CaptureError(RuntimeError):
    """The folder cannot be captured into; the text says why. What was captured before is there."""


class Written(NamedTuple):
    """What a batch has become.

    Attributes:
        rows: Messages that were written.
        files: Files that hold them.
        size: Bytes of the files.
    """

    rows: int
    files: int
    size: int


class CaptureFolder:
    """The folder, for one entity of one namespace; a context manager that holds the folder for this process.

    Args:
        path: The folder of all entities.
        namespace: Name of the namespace.
        entity: Name of the entity, as the column ``entity`` has it.
        source: Name of the entity with its sub-queue.
        compression: Of the files.

    Attributes:
        unsettled: Messages that are in the folder, and of which it is not known that they are settled: sequence number
            to enqueued time in microseconds.
        recovered: Files of a killed capture that were finished when the folder was opened.

    Raises:
        CaptureError: Another process captures the same entity into the folder, or the folder is damaged.
    """

    def __init__(self, path: Path, namespace: str, entity: str, source: str, compression: str = "zstd") -> None:
        self._path = path
        self._namespace = namespace
        self._entity = entity
        self._source = source
        self._compression = compression
        self._notes = path / NOTES / escaped(source)
        self.unsettled: dict[int, int] = {}
        self.recovered = 0
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            _make_folders(self._notes)
            self._lock = os.open(self._notes / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CaptureError(f"The folder {self._path} cannot be written to: {error.strerror}.") from None
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise CaptureError(
                f"Another process captures '{self._entity}' into {self._path}. Each message is written once only if "
                "there is one such process at a time."
            ) from None
        try:
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_there(self, number: int, enqueued_us: int) -> bool:
        """Whether a message that comes again is in the folder; its time tells it from one of an earlier entity."""
        return self.unsettled.get(number) == enqueued_us

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write messages; when this returns they are in the folder, and ``unsettled`` has them.

        Args:
            batches: All columns, of messages that are not there.
        """
        table = pa.Table.from_batches(list(batches), schema=arrow_schema())
        if not table.num_rows:
            return Written(0, 0, 0)
        numbers = table.column("sequence_number").to_pylist()
        times = table.column("enqueued_time").cast(pa.int64())
        # Numbers begin anew in another namespace, in a sub-queue, and in an entity that was deleted and made again.
        origin = f"{self._namespace}/{self._source}/{pc.min(times).as_py()}"
        batch = f"{hashlib.sha256(origin.encode()).hexdigest()[:8]}-{min(numbers)}-{max(numbers)}"
        moves: list[tuple[str, str]] = []
        size = 0
        for (date, hour), some in _by_hour(table, times).items():
            place = f"entity={escaped(self._entity)}/date={date}/hour={hour}/batch_id={batch}/messages.parquet"
            part = f"{len(moves)}{_PART}"
            size += self._write_file(self._notes / part, some)
            moves.append((part, place))
        self.unsettled |= dict(zip(numbers, times.to_pylist(), strict=True))
        self._write_note(moves)
        self._move(moves)
        return Written(table.num_rows, len(moves), size)

    def settled(self, numbers: Iterable[int]) -> None:
        """Forget messages that are settled, or gone: they do not come again."""
        for number in numbers:
            self.unsettled.pop(number, None)
        if self.unsettled:
            self._write_note([])
        else:
            # A note that comes back after a power cut lists messages that do not come again, and does no harm.
            (self._notes / _NOTE).unlink(missing_ok=True)

    def _write_file(self, path: Path, table: pa.Table) -> int:
        with path.open("wb") as file:
            pq.write_table(table.select(FILE_COLUMNS), file, compression=self._compression)
            file.flush()
            sync_file(file.fileno())
            return file.tell()

    def _write_note(self, moves: list[tuple[str, str]]) -> None:
        note = {
            "version": _VERSION,
            "namespace": self._namespace,
            "entity": self._entity,
            "moves": moves,
            "unsettled": sorted(self.unsettled.items()),
        }
        with whole_file(self._notes / _NOTE) as file:
            file.write(json.dumps(note).encode())

    def _move(self, moves: Iterable[tuple[str, str]]) -> int:
        """Give files their names; those that have them already stay. Return how many were renamed."""
        # A compaction that changes the places of folders waits for this.
        with writing(str(self._path)):
            return self._moved(moves)

    def _moved(self, moves: Iterable[tuple[str, str]]) -> int:
        moved = 0
        for part, place in moves:
            source, target = self._notes / part, self._path / place
            if source.exists():
                _make_folders(target.parent)
                source.replace(target)
                sync_folder(target.parent)
                moved += 1
            elif not target.exists():
                raise CaptureError(
                    f"The file {target} is missing, which a capture had written. The note {self._notes / _NOTE} has "
                    "the numbers of its messages; move the note away to go on without them."
                )
        if moved:
            sync_folder(self._notes)
        return moved

    def _recover(self) -> None:
        """Finish what a killed capture has begun, before anything is claimed."""
        note = self._read_note()
        if note is not None:
            self.recovered = self._move([(str(part), str(place)) for part, place in note["moves"]])
            self.unsettled = {int(number): int(time) for number, time in note["unsettled"]}
        for left in self._notes.iterdir():
            if left.name.endswith(_PART):
                left.unlink()

    def _read_note(self) -> Mapping[str, Any] | None:
        path = self._notes / _NOTE
        try:
            note = json.loads(path.read_text("utf-8"))
            if note["version"] != _VERSION:
                raise CaptureError(f"The note {path} is of another version of duobus.")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CaptureError(f"The note {path} cannot be read: {error}") from None
        if note["namespace"] != self._namespace:
            raise CaptureError(
                f"The folder {self._path} has messages of '{self._entity}' of the namespace '{note['namespace']}', "
                f"whose capture has not ended. Capture '{self._namespace}' into another folder."
            )
        found: Mapping[str, Any] = note
        return found


def escaped(name: str) -> str:
    """A name as Spark writes it into the names of folders."""
    return _ESCAPED.sub(lambda sign: f"%{ord(sign[0]):02X}", name)


def _by_hour(table: pa.Table, times: pa.ChunkedArray) -> dict[tuple[str, int], pa.Table]:
    """Divide messages by the date and hour at which they were enqueued."""
    hours = pc.floor(pc.divide(pc.cast(times, pa.float64()), _HOUR_US)).cast(pa.int64())
    found: dict[tuple[str, int], pa.Table] = {}
    for hour in sorted(pc.unique(hours).to_pylist()):
        day = pc.strftime(pa.scalar(hour * _HOUR_US, pa.timestamp("us", tz="UTC")), format="%Y-%m-%d").as_py()
        found[day, hour % 24] = table.filter(pc.equal(hours, hour))
    return found


def _make_folders(folder: Path) -> None:
    """Make a folder with those above it, each of which stays after a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_folder(one.parent)
