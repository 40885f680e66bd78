"""Small tables of metering on this machine's disks, read and written without Spark, in the form that Spark has them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from duobus.clock import Entropy
from duobus.spark.errors import OptionError
from duobus.spark.jobs.compact import FILES
from duobus.spark.jobs.work.tables import demand_columns

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of metering files, and of the Parquet files of a table, up to which Python is faster than a session's start.
LINES_BYTES_MAX: Final = 64 << 20
TABLE_BYTES_MAX: Final = 32 << 20


def are_small(folders: Iterable[str], tables: Iterable[str]) -> bool:
    """Whether metering files and tables are on this machine, and small.

    Args:
        folders: Where the metering files are; a pattern is left to Spark.
        tables: Folders of Parquet.
    """
    here = [*folders, *tables]
    if any(urlsplit(place).scheme or any(sign in place for sign in "*?[{") for place in here):
        return False
    lines = sum(path.stat().st_size for path in metering_files(folders))
    return lines <= LINES_BYTES_MAX and all(
        sum(path.stat().st_size for path in table_files(Path(table))) <= TABLE_BYTES_MAX for table in tables
    )


def metering_files(folders: Iterable[str]) -> list[Path]:
    """The metering files of data folders, or of folders that hold them."""
    found: list[Path] = []
    for folder in folders:
        inner = Path(folder) / "metering"
        place = inner if inner.is_dir() else Path(folder)
        found += [place] if place.is_file() else sorted(place.glob(FILES))
    return found


def table_files(folder: Path) -> list[Path]:
    """The files of a table, without what Spark and others hide."""
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder).parts)
    )


def _is_hidden(parts: tuple[str, ...]) -> bool:
    # A partition such as ``_x=1`` is none of metering.
    return any(part[:1] in "._" for part in parts)


def read_days(folder: str, ddl: str) -> dict[str, list[tuple[str, pa.Table]]] | None:
    """The tables of each day, with the names of their files; None where there is no table yet.

    Raises:
        OptionError: There is something else.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = table_files(Path(folder))
    if not files:
        return None
    found: dict[str, list[tuple[str, pa.Table]]] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise OptionError(f"'{folder}' holds no Parquet that can be read: {error}") from error
        demand_columns({field.name: _kind(field.type) for field in table.schema}, ddl, folder)
        name = path.parent.name
        if not name.startswith("day="):
            raise OptionError(f"'{path}' is in no folder of a day, day=YYYY-MM-DD.")
        found.setdefault(name.removeprefix("day="), []).append((path.name, table))
    return found


def _kind(kind: pa.DataType) -> str:
    """What Spark calls a type."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return {pa.int64(): "bigint", pa.string(): "string"}.get(kind, str(kind))


def rows_of(tables: Iterable[tuple[str, pa.Table]]) -> Iterator[dict[str, Any]]:
    """The rows of the tables of a day."""
    for _, table in tables:
        yield from table.to_pylist()


def append_day(folder: str, day: str, table: pa.Table) -> None:
    """Add a file to a day."""
    _written(Path(folder) / f"day={day}", table)


def replace_day(folder: str, day: str, table: pa.Table) -> None:
    """Let a day have these rows and no others.

    The old files go first: a process that dies in between leaves a day without rows, which the next run computes.
    """
    place = Path(folder) / f"day={day}"
    for path in table_files(place):
        path.unlink()
    _written(place, table)


def replace_table(folder: str, table: pa.Table) -> None:
    """Let a folder have these rows and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    _written(Path(folder), table)


def _written(place: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    place.mkdir(parents=True, exist_ok=True)
    name = f"part-00000-{Entropy().uuid_text()}.c000.snappy.parquet"
    # Readers ignore a name that begins with a dot, so that nobody reads half a file.
    hidden = place / f".{name}"
    pq.write_table(table, hidden, compression="snappy")
    hidden.rename(place / name)
