"""Rows of a catalog in a database: each carries a checksum over all of it, verified when it is read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from duobus.errors import StoreFailed


def row_sum(values: Iterable[object]) -> int:
    """Checksum of a row in a database: over all of its other values, in order (design, decision 5)."""
    return zlib.crc32(json.dumps(list(values), separators=(",", ":")).encode())


def summed(*values: object) -> tuple[object, ...]:
    """A row with its checksum behind it."""
    return (*values, row_sum(values))


def checked(table: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows that were written with their checksums, without them; StoreFailed at the first that is altered."""
    for *values, found in rows:
        if row_sum(values) != found:
            raise StoreFailed(
                f"The checksum of a row in the catalog's table {table} is wrong; restore it from a backup."
            )
        yield tuple(values)
