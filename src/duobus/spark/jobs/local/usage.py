"""Compaction and usage of small tables in Python, with the tables and the summary that the jobs on Spark make.

Starting a session takes longer than all of this. Either way may go on with what the other has written.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duobus.model.metering import KINDS
from duobus.spark.errors import OptionError
from duobus.spark.jobs.compact import FILES_TOLD_MAX, LINE_LENGTH_MAX, CompactConfig
from duobus.spark.jobs.job import RUNS_PATH, settings
from duobus.spark.jobs.local.tables import (
    append_day,
    are_small,
    metering_files,
    read_days,
    replace_day,
    replace_table,
    rows_of,
)
from duobus.spark.jobs.progress import Tell, untold
from duobus.spark.jobs.usage import HOUR, OPTIONS, SERVERS_TOLD_MAX, TOLD_MAX, UsageConfig, config_of, sources_of
from duobus.spark.jobs.work.tables import COMPACTED_DDL, DAY_MS, HOUR_MS, RECORD, USAGE_DDL
from duobus.spark.prices import Prices, amount, plain, read_prices

if TYPE_CHECKING:
    import pyarrow as pa

#: A line ends with a checksum over the rest of it, as telemetry.metering_log writes it.
_LINE: Final = re.compile(rb'(.*),"sum":(\d+)\}', re.DOTALL)
_COUNTS: Final = ("operations", "messages", "bytes")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def needs_no_spark(cfg: Mapping[str, Any]) -> bool:
    """Whether all tables are small and on this machine, so that Python is faster than a session's start."""
    parsed = settings(cfg, (*OPTIONS, RUNS_PATH))
    if parsed["runsPath"] is not None or parsed["compacted"] is None or parsed["out"] is None:
        return False
    tables = [text for text in (parsed["compacted"], parsed["out"], parsed["damaged"]) if text is not None]
    return are_small(parsed["metering"] or (), tables)


def run(_: Any, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Compute usage by the settings of the job ``usage``."""
    return {**local_usage(config_of(settings(cfg, (*OPTIONS, RUNS_PATH))), tell), "engine": "python"}


def local_compact(config: CompactConfig) -> dict[str, Any]:
    """Compact; see ``compact.compact``.

    Raises:
        OptionError: A folder is missing or holds something else; nothing was written.
    """
    if not config.metering:
        raise OptionError("No folder of metering files is named. Name the data folder of each server.")
    for folder in config.metering:
        if not Path(folder).exists():
            raise OptionError(f"There is no folder '{folder}'. A server writes its metering below its --data folder.")
    lines, records, good, damaged = _found(metering_files(config.metering))
    known = read_days(config.out, COMPACTED_DDL) or {}
    days = {_day(record["minute_ms"] // DAY_MS) for record in good.values()}
    for row in chain.from_iterable(rows_of(known.get(day, ())) for day in days):
        good.pop((row["server"], row["number"]), None)
    by_day: dict[str, list[Row]] = defaultdict(list)
    for record in good.values():
        by_day[_day(record["minute_ms"] // DAY_MS)].append(record)
    for day, rows in sorted(by_day.items()):
        rows.sort(key=lambda row: (row["namespace"], row["entity"], row["kind"], row["minute_ms"]))
        append_day(config.out, day, _table(rows, RECORD))
    if damaged and config.damaged is not None:
        replace_table(config.damaged, _table(damaged, (("file", "string"), ("reason", "string"), ("line", "string"))))
    reasons = Counter(row["reason"] for row in damaged)
    worst = sorted(Counter(row["file"] for row in damaged).items(), key=lambda item: (-item[1], item[0]))
    return {
        "job": "compact",
        "lines": lines,
        "records": len(good),
        "repeated": records - len(good),
        "damaged": len(damaged),
        "damaged_by_reason": dict(sorted(reasons.items())),
        "damaged_by_file": dict(worst[:FILES_TOLD_MAX]),
        "days": {day: len(rows) for day, rows in sorted(by_day.items())},
        "out": config.out,
    }


def _found(files: Iterable[Path]) -> tuple[int, int, dict[tuple[str, int], Row], list[Row]]:
    """The lines of metering files: how many, how many with a record, each record once, and what is damaged."""
    good: dict[tuple[str, int], Row] = {}
    damaged: list[Row] = []
    lines = 0
    for path in files:
        # The torn end of one line and the start of the next are parted by an empty one.
        for line in filter(None, path.read_bytes().split(b"\n")):
            lines += 1
            record, reason = _record_in(line)
            if record is None:
                text = line.decode(errors="replace")[:LINE_LENGTH_MAX]
                damaged.append({"file": path.absolute().as_uri(), "reason": reason, "line": text})
            else:
                good.setdefault((record["server"], record["number"]), record)
    return lines, lines - len(damaged), good, damaged


def _record_in(line: bytes) -> tuple[Row | None, str]:
    """The record of a line; or the reason why it has none."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None, "torn"
    text = found[1] + b"}"
    if found[2] != str(zlib.crc32(text)).encode():
        return None, "checksum"
    try:
        given = json.loads(text)
    except ValueError:
        return None, "fields"
    if not isinstance(given, dict):
        return None, "fields"
    record: Row = {name: given.get(name) for name, _ in RECORD}
    record["key"] = "" if record["key"] is None else record["key"]
    kinds = {"string": str, "bigint": int}
    if any(type(record[name]) is not kinds[kind] for name, kind in RECORD):
        return None, "fields"
    if record["number"] < 1 or any(record[name] < 0 for name in (*_COUNTS, "minute_ms")):
        return None, "fields"
    return record, ""


def _day(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).strftime("%Y-%m-%d")


def _table(rows: list[Row], columns: Iterable[tuple[str, str]]) -> pa.Table:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "decimal(18,9)": pa.decimal128(18, 9),
    }
    return pa.Table.from_pylist(rows, pa.schema([(name, types[kind]) for name, kind in columns]))


#: Columns of usage, without the day, which is a folder.
_USAGE: Final = tuple(
    (name, kind) for name, kind in re.findall(r"`(\w+)` ([a-z]+(?:\(\d+,\d+\))?)", USAGE_DDL) if name != "day"
)


def local_usage(config: UsageConfig, tell: Tell = untold) -> dict[str, Any]:
    """Compute the days that are not computed yet; see ``usage.usage``.

    Raises:
        OptionError: Prices, folders or tables are missing or wrong; nothing was written.
    """
    prices = read_prices(config.prices)
    compacted = None
    if config.metering:
        tell("compacting metering files")
        compacted = local_compact(CompactConfig(config.metering, config.compacted, config.damaged))
    records = read_days(config.compacted, COMPACTED_DDL)
    if records is None:
        raise OptionError(f"There are no compacted records in '{config.compacted}'. Name the data folders to compact.")
    known = read_days(config.out, USAGE_DDL) or {}
    tell("checking records")
    servers = checked(chain.from_iterable(map(rows_of, records.values()))) if config.check else []
    doubled = [server for server in servers if server["doubled"]]
    sources = sources_of((f"/day={day}/{name}" for day, files in records.items() for name, _ in files), prices)
    done = {day: row["source"] for day, files in known.items() for row in rows_of(files)}
    stale = sorted(day for day, source in sources.items() if done.get(day) != source)
    before = _hours(known, stale)
    tell(f"computing {len(stale)} days")
    for day in stale:
        rows: Iterable[Row] = rows_of(records[day])
        if doubled:
            rows = {(row["server"], row["number"]): row for row in rows}.values()
        made = [{**row, "source": sources[day]} for row in priced(rows, prices)]
        made.sort(key=lambda row: (row["namespace"], row["entity"], row["hour"]))
        replace_day(config.out, day, _table(made, _USAGE))
    result = read_days(config.out, USAGE_DDL) or {}
    after = _hours(result, stale) if before else {}
    return {
        "job": "usage",
        "compact": compacted,
        "currency": prices.currency,
        "days_computed": stale,
        "hours_reopened": sorted(hour for hour, numbers in after.items() if before.get(hour, numbers) != numbers),
        "servers_incomplete": [server for server in servers if server["missing"]][:SERVERS_TOLD_MAX],
        "servers_doubled": doubled[:SERVERS_TOLD_MAX],
        **_totals([row for files in result.values() for row in rows_of(files)], prices),
        "out": config.out,
    }


def priced(records: Iterable[Mapping[str, Any]], prices: Prices) -> list[Row]:
    """Usage with its cost, by namespace, entity, hour, kind and key; without the source."""
    sums: dict[tuple[str, str, int, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in records:
        place = row["namespace"], row["entity"], row["minute_ms"] // HOUR_MS, row["kind"], row["key"]
        for at, name in enumerate(_COUNTS):
            sums[place][at] += row[name]
    found = [_usage(*place, counts, prices.cost(place[3], counts[0], counts[2])) for place, counts in sums.items()]
    if prices.namespace_hour:
        hours = dict.fromkeys((namespace, hour) for namespace, _, hour, _, _ in sums)
        charge = amount(prices.namespace_hour)
        found += [_usage(namespace, "", hour, HOUR, "", [0, 0, 0], charge) for namespace, hour in hours]
    return found


def _usage(namespace: str, entity: str, hour: int, kind: str, key: str, counts: list[int], cost: Decimal) -> Row:
    at = _EPOCH + timedelta(hours=hour)
    about = {"namespace": namespace, "entity": entity, "hour": at, "op": kind, "key": key}
    return about | dict(zip(_COUNTS, counts, strict=True)) | {"cost": cost}


def checked(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Servers whose records, which are numbered from 1 on, are not there exactly once each."""
    numbers: dict[str, Counter[int]] = defaultdict(Counter)
    for row in records:
        numbers[row["server"]][row["number"]] += 1
    found = (
        {"server": server, "missing": max(seen) - len(seen), "doubled": seen.total() - len(seen)}
        for server, seen in sorted(numbers.items())
    )
    return [server for server in found if server["missing"] or server["doubled"]]


def _hours(days: Mapping[str, Any], names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """What stands in each hour of some days."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in chain.from_iterable(rows_of(days.get(day, ())) for day in names):
        hour = row["hour"] if row["hour"].tzinfo is not None else row["hour"].replace(tzinfo=UTC)
        for at, name in enumerate(_COUNTS):
            found[hour.strftime("%Y-%m-%dT%H:00Z")][at] += row[name]
    return {hour: tuple(counts) for hour, counts in found.items()}


def _totals(result: list[Row], prices: Prices) -> dict[str, Any]:
    by_kind = dict(sorted(_summed(result, lambda row: row["op"]).items()))
    entities = _summed(result, lambda row: (row["namespace"], row["entity"]))
    dearest = sorted(entities.items(), key=lambda item: (-item[1]["cost"], -item[1]["operations"], item[0][1]))
    keys = _summed((row for row in result if row["op"] != HOUR), lambda row: row["key"])
    billed = [numbers for kind, numbers in by_kind.items() if KINDS.get(kind, True)]
    return {
        "operations": sum(numbers["operations"] for numbers in billed),
        "cost": plain(sum((numbers["cost"] for numbers in by_kind.values()), Decimal(0))),
        "by_kind": {kind: _plain(numbers) for kind, numbers in by_kind.items()},
        "by_entity": [
            {"namespace": namespace, "entity": entity, **_plain(numbers)}
            for (namespace, entity), numbers in dearest[:TOLD_MAX]
        ],
        "by_key": [
            {"key": key, **_plain(numbers)}
            for key, numbers in sorted(keys.items(), key=lambda item: (-item[1]["cost"], item[0]))[:TOLD_MAX]
        ],
        "unpriced": prices.unpriced({kind for kind in by_kind if kind != HOUR}),
    }


def _summed(rows: Iterable[Row], place_of: Callable[[Row], Any]) -> dict[Any, Row]:
    found: dict[Any, Row] = {}
    for row in rows:
        sums = found.setdefault(place_of(row), {**dict.fromkeys(_COUNTS, 0), "cost": Decimal(0)})
        for name in (*_COUNTS, "cost"):
            sums[name] += row[name]
    return found


def _plain(numbers: Row) -> Row:
    return {**{name: numbers[name] for name in _COUNTS}, "cost": plain(numbers["cost"])}
