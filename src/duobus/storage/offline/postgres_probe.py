"""Which stores a database holds: an address may be written in many ways, and what is there decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import psycopg

from duobus.errors import StoreFailed
from duobus.storage.catalog_rows import StoreRow
from duobus.storage.postgres.address import PostgresAddress, parse
from duobus.storage.postgres.session import failure


def held_by(place: PostgresAddress, rows: Sequence[StoreRow], identity: int) -> set[int]:
    """Return the numbers of those stores of a catalog that are in the database of ``place``; nothing is changed.

    Each is looked for in its own schema: that of its path in the catalog, or that of ``place`` if it names one. It is
    that store if it says so itself, and belongs to this catalog or was never told of any.

    Raises:
        StoreFailed: The database cannot be reached.
    """
    conninfo, beside = place.conninfo()
    found: set[int] = set()
    try:
        connect = partial(psycopg.connect, conninfo, autocommit=True, application_name="duobus-probe")
        with connect(**beside) as link:  # type: ignore[arg-type]
            for row in rows:
                # Checked when the address was parsed: a name that needs no quotes.
                schema = place.schema or parse(row.path).schema
                if schema and _is_in(link, schema, row.store_id, identity):
                    found.add(row.store_id)
    except psycopg.Error as error:
        raise failure(place.url, "look for stores", error) from error
    return found


def _is_in(link: psycopg.Connection[tuple[object, ...]], schema: str, store_id: int, identity: int) -> bool:
    def has(table: str) -> bool:
        return link.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.{table}",)).fetchone() == (True,)

    if not has("meta") or not has("migrations"):
        return False
    if link.execute(f"SELECT store_id FROM {schema}.meta".encode()).fetchone() != (store_id,):
        return False
    if not identity or not has("belonging"):
        return True
    row = link.execute(f"SELECT identity FROM {schema}.belonging".encode()).fetchone()
    return row is None or row[0] in (0, identity)


def held_or_unknown(place: PostgresAddress, rows: Sequence[StoreRow], identity: int) -> set[int] | None:
    """The same, or None when the database cannot be reached now."""
    try:
        return held_by(place, rows, identity)
    except StoreFailed:
        return None
