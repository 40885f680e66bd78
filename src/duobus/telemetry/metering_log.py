"""Metering: counts per namespace, entity, kind and key, added per batch and written once a minute.

``MeteringCounts`` is touched on the hot path, once a batch; ``MeteringLog`` writes files and blocks, so its calls
belong on a thread. A record is one JSON line that ends with a checksum over the rest of it. Counts of the running
minute are kept in a journal that survives the process (``metering_journal.py``).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from duobus.errors import InternalError
from duobus.file_sync import sync_file
from duobus.model.metering import MeteringRecord
from duobus.telemetry.metering_journal import MeteringJournal

#: A file that has grown to this size is followed by the next one: about 50,000 records.
FILE_BYTES_MAX = 10 * 1024 * 1024

#: Most files that are kept; the oldest goes when there are more (1 GiB in all).
FILES_MAX = 100

#: Counts of one minute that tell keys apart, some 30 MB. A key beyond them is counted without its name, so that an
#: issuer who names a new identity in each token cannot fill the memory; entities are bounded by the namespace's quota.
COUNTS_MAX: Final = 100_000

#: Numbers of this minute, with their place in the journal, and those since the start.
Count = tuple[list[int], list[int]]

_MINUTE_MS = 60_000
_DECODER: Final = msgspec.json.Decoder(MeteringRecord)
_FILE_NAME = re.compile(r"metering-(\d{8})\.jsonl")


class MeteringCounts:
    """Counts since the last ``take``; not for several threads at once.

    Attributes:
        server: Id of this run of the server.
        totals: By namespace, entity and kind: messages, bytes and operations since the start, for the metrics page.
        minutes: How often ``take`` was called: what ``count_of`` gave before is not counted any more.
    """

    __slots__ = ("_counts", "_journal", "_number", "minutes", "server", "totals")

    def __init__(self, server: str) -> None:
        self.server = server
        self.minutes = 0
        self.totals: dict[tuple[str, str, str], list[int]] = {}
        self._journal: MeteringJournal | None = None
        self._number = 0
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}

    def add(
        self, namespace: str, entity: str, kind: str, messages: int, size_bytes: int, operations: int, key: str = ""
    ) -> None:
        """Count one batch of one entity; see MeteringRecord for the meaning of the numbers."""
        self.add_to(self.count_of(namespace, entity, kind, key), messages, size_bytes, operations)

    def count_of(self, namespace: str, entity: str, kind: str, key: str) -> Count:
        """Where one batch after the other is counted, until ``minutes`` changes."""
        found = self._counts.get((namespace, entity, kind, key))
        if found is None:
            found = self._begin(namespace, entity, kind, key)
        total = self.totals.get((namespace, entity, kind))
        if total is None:
            total = self.totals[namespace, entity, kind] = [0, 0, 0]
        return found, total

    def add_to(self, count: Count, messages: int, size_bytes: int, operations: int) -> None:
        """Count one batch; ``count`` is of this minute."""
        found, total = count
        found[0] += messages
        found[1] += size_bytes
        found[2] += operations
        if found[3] and self._journal is not None:
            self._journal.put(found[3], found[0], found[1], found[2])
        total[0] += messages
        total[1] += size_bytes
        total[2] += operations

    def _begin(self, namespace: str, entity: str, kind: str, key: str) -> list[int]:
        """Begin to count something in this minute: its numbers, and its place in the journal."""
        if key and len(self._counts) >= COUNTS_MAX:
            key = ""
            if (namespace, entity, kind, key) in self._counts:
                return self._counts[namespace, entity, kind, key]
        place = 0
        if self._journal is not None:
            # A record's number is its turn in this minute.
            place = self._journal.enter(self._number + len(self._counts) + 1, namespace, entity, kind, key)
        found = self._counts[namespace, entity, kind, key] = [0, 0, 0, place]
        return found

    def write_to(self, journal: MeteringJournal) -> None:
        """Keep a journal of what is counted from now on, and of what is counted already."""
        self._journal = journal
        for turn, ((namespace, entity, kind, key), found) in enumerate(self._counts.items(), 1):
            found[3] = journal.enter(self._number + turn, namespace, entity, kind, key)
            if found[3]:
                journal.put(found[3], found[0], found[1], found[2])

    def take(self, now_ms: int) -> list[MeteringRecord]:
        """Return what was counted as records of the minute of ``now_ms``, and begin again at nothing."""
        counts, self._counts = self._counts, {}
        self.minutes += 1
        minute_ms = now_ms - now_ms % _MINUTE_MS
        records = []
        for (namespace, entity, kind, key), (messages, size, operations, _) in counts.items():
            self._number += 1
            record = MeteringRecord(
                self.server, self._number, minute_ms, namespace, entity, kind, messages, size, operations, key
            )
            records.append(record)
        return records


class MeteringLog:
    """Appends records to numbered files in a folder; both mode 0600/0700. Every call blocks."""

    def __init__(self, folder: Path, file_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX) -> None:
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max

    def write(self, records: list[MeteringRecord]) -> None:
        """Append records; they are on disk on return.

        Raises:
            InternalError: The disk refused; none or some were written, which their numbers tell. Trying again with
                the same records is right: a reader drops repeats by (server, number).
        """
        if not records:
            return
        content = b"".join(map(_line, records))
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._append(content)
        except OSError as error:
            raise InternalError(f"{len(records)} metering records could not be written: {error.strerror}.") from error

    def read(self) -> Iterator[MeteringRecord]:
        """Yield all records, oldest first; a line that is torn or altered is left out, a repeated record too."""
        seen: set[tuple[str, int]] = set()
        for _, path in self.files():
            for line in path.read_bytes().splitlines():
                record = parse_record(line)
                if record is not None and (record.server, record.number) not in seen:
                    seen.add((record.server, record.number))
                    yield record

    def _append(self, content: bytes) -> None:
        files = self.files()
        number = files[-1][0] if files else 1
        if files and files[-1][1].stat().st_size + len(content) > self._file_bytes_max:
            number += 1
            for _, path in files[: max(0, len(files) + 1 - self._files_max)]:
                path.unlink()
        path = self._folder / f"metering-{number:08d}.jsonl"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            size = file.tell()
            # A line torn by a crash must not swallow the next record. Any other ends where it should.
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write(b"\n" + content if is_torn else content)
            file.flush()
            sync_file(file.fileno())

    def files(self) -> list[tuple[int, Path]]:
        """The files with their numbers, the oldest first."""
        if not self._folder.is_dir():
            return []
        found = ((_FILE_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)


def _line(record: MeteringRecord) -> bytes:
    text = msgspec.json.encode(record)
    return text[:-1] + b',"sum":%d}\n' % zlib.crc32(text)


def parse_record(line: bytes) -> MeteringRecord | None:
    """Return the record of a line; None for one that is torn or altered."""
    body, separator, rest = line.rpartition(b',"sum":')
    text = body + b"}"
    if not separator or rest != b"%d}" % zlib.crc32(text):
        return None
    return _DECODER.decode(text)
