"""What was metered, by entity, hour and kind: the metering files read from their end, as far as a bound allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from duobus.telemetry.metering_log import MeteringLog, parse_record

#: Bytes of metering files that one answer is made of, some 160,000 records: a third of a second.
READ_BYTES_MAX: Final = 32 << 20
#: Rows of one answer; of more, the latest hours are told.
ROWS_MAX: Final = 20_000

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


class MeteredHours(NamedTuple):
    """What was found.

    Attributes:
        rows: The latest hour first; in an hour by entity and kind.
        since_ms: From when on the rows are complete.
    """

    rows: list[dict[str, Any]]
    since_ms: int


def read_metered_hours(folder: Path, namespace: str, from_ms: int, to_ms: int) -> MeteredHours:
    """Return what was metered in a namespace between two instants; it blocks for the disk.

    Records that several runs of the server have written are all there, and one that was written twice counts once.
    """
    sums: dict[tuple[int, str, str], list[int]] = {}
    seen: set[tuple[str, int]] = set()
    left = READ_BYTES_MAX
    since_ms = from_ms
    files = MeteringLog(folder).files()
    for number, path in reversed(files):
        content = path.read_bytes()
        left -= len(content)
        earliest_ms = to_ms
        for line in content.splitlines():
            record = parse_record(line)
            if record is None or (record.server, record.number) in seen:
                continue
            earliest_ms = min(earliest_ms, record.minute_ms)
            if not from_ms <= record.minute_ms < to_ms or record.namespace != namespace:
                continue
            seen.add((record.server, record.number))
            hour_ms = record.minute_ms - record.minute_ms % _HOUR_MS
            found = sums.setdefault((-hour_ms, record.entity, record.kind), [0, 0, 0])
            found[0] += record.messages
            found[1] += record.bytes
            found[2] += record.operations
        if earliest_ms < from_ms:
            break
        if left <= 0 and number != files[0][0]:
            # A part of its first minute may stand in the file before.
            since_ms = min(earliest_ms + _MINUTE_MS, to_ms)
            break
    keys = sorted(sums)
    if len(keys) > ROWS_MAX:
        # The hour that is cut is left out as a whole.
        cut = keys[ROWS_MAX][0]
        keys = [key for key in keys[:ROWS_MAX] if key[0] != cut]
        since_ms = max(since_ms, _HOUR_MS - cut)
    rows = [dict(zip(_MEMBERS, (-key[0], *key[1:], *sums[key]), strict=True)) for key in keys]
    return MeteredHours(rows, since_ms)


_MEMBERS: Final = ("hourMs", "entity", "kind", "messages", "bytes", "operations")
