"""The audit log from its end, a page at a time: what was changed last comes first.

A page is read backwards from a place in a file, so that it costs the same however long the log is. A change whose
second line stands behind that place is completed from a short look ahead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from duobus.telemetry.audit_log import UNKNOWN, files_of, parse_line

#: Bytes of the log that one page is made of at most: some milliseconds of reading.
PAGE_BYTES_MAX: Final = 1 << 20
#: Bytes behind a page in which outcomes of its changes are looked for.
AHEAD_BYTES_MAX: Final = 1 << 18


class Place(NamedTuple):
    """Where a page ends: before this byte of the file of this number."""

    file: int
    offset: int


class AuditPage(NamedTuple):
    """Changes, the latest first, and where the next page ends; None when there are no more."""

    changes: list[dict[str, Any]]
    following: Place | None


def read_audit_page(folder: Path, namespace: str, before: Place | None, limit: int) -> AuditPage:
    """Return the last changes of a namespace before a place, by default the end of the log; it blocks for the disk.

    A page may have fewer than ``limit`` changes, even none, and others may follow all the same: lines of other
    namespaces count towards the bytes that are read.
    """
    files = [(number, path) for number, path in files_of(folder) if before is None or number <= before.file]
    ends: dict[tuple[int, int], dict[str, Any]] = {}
    changes: list[dict[str, Any]] = []
    left = PAGE_BYTES_MAX
    for index, (number, path) in enumerate(reversed(files)):
        is_first = before is not None and number == before.file
        end = before.offset if before is not None and is_first else None
        if before is not None and is_first:
            _look_ahead(path, before.offset, ends)
        lines, start = _lines_before(path, end, left)
        left -= sum(len(text) for _, text in lines)
        for offset, text in reversed(lines):
            line = parse_line(text)
            if line is None:
                continue
            if "ended" in line:
                ends.setdefault((line["pid"], line["ended"]), line)
                continue
            ended = ends.pop((line.pop("pid"), line.pop("id")), None)
            if str(line.get("namespace", "")).lower() != namespace.lower():
                continue
            changes.append(line | _outcome(ended))
            if len(changes) >= limit:
                has_more = offset > 0 or index + 1 < len(files)
                return AuditPage(changes, Place(number, offset) if has_more else None)
        if start > 0:
            return AuditPage(changes, Place(number, start))
        if left <= 0 and index + 1 < len(files):
            return AuditPage(changes, Place(number, 0))
    return AuditPage(changes, None)


def _outcome(ended: dict[str, Any] | None) -> dict[str, Any]:
    if ended is None:
        return {"outcome": UNKNOWN}
    return {name: ended[name] for name in ("outcome", "until", "changes") if name in ended}


def _look_ahead(path: Path, offset: int, ends: dict[tuple[int, int], dict[str, Any]]) -> None:
    """Note the outcomes that stand a little behind a place; the first line that ends a change counts."""
    with path.open("rb") as file:
        file.seek(offset)
        for text in file.read(AHEAD_BYTES_MAX).splitlines():
            line = parse_line(text)
            if line is not None and "ended" in line:
                ends.setdefault((line["pid"], line["ended"]), line)


def _lines_before(path: Path, end: int | None, size: int) -> tuple[list[tuple[int, bytes]], int]:
    """The last lines before a byte with their offsets, of at most ``size`` bytes, and where they begin."""
    with path.open("rb") as file:
        end = min(path.stat().st_size, 1 << 62 if end is None else end)
        start = max(0, end - max(size, 0))
        file.seek(start)
        data = file.read(end - start)
    if start > 0:
        # The first line is whole in the next page only, unless it is longer than a page: then it is none of ours.
        cut = data.find(b"\n") + 1
        start, data = (start + cut, data[cut:]) if 0 < cut < len(data) else (start, b"")
    lines = []
    position = start
    for text in data.splitlines(keepends=True):
        lines.append((position, text))
        position += len(text)
    return lines, start
