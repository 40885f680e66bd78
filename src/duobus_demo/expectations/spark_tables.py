"""What the tables of the part ``spark`` hold, read by DuckDB, which shares nothing with Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from duobus.testing.server import DemoFailed


def _rows(query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        import duckdb
    except ImportError as error:
        raise DemoFailed("The demonstration counts with DuckDB, which is not installed: pip install duckdb") from error
    with duckdb.connect() as connection:
        return connection.execute(query, list(values)).fetchall()


def captured(folder: Path) -> list[tuple[str, str]]:
    """(id, digest of the body) of every message of a captured table."""
    files = f"{folder}/entity=*/**/*.parquet"
    return [
        (str(message_id), str(digest))
        for message_id, digest in _rows(
            "select message_id, sha256(body) from read_parquet(?, hive_partitioning = true)", files
        )
    ]


def totals(folder: Path) -> dict[str, tuple[int, int]]:
    """Number and sum of the orders of each customer in the report."""
    rows = _rows("select customer, orders, amount from read_parquet(?)", f"{folder}/*.parquet")
    return {str(customer): (int(orders), int(amount)) for customer, orders, amount in rows}


def unfinished_in(folder: Path) -> list[str]:
    """Files and folders of writes that did not come to their end, below a folder."""
    found = []
    for place, below, names in os.walk(folder):
        hidden = (name for name in (*below, *names) if name.startswith((".spark-staging", "_temporary", ".")))
        found += [str(Path(place, name).relative_to(folder)) for name in hidden if not name.endswith(".crc")]
    return found
