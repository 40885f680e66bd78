"""Which stores a database holds, and what time is kept there, looked at and changed while no server uses them.

An address may be written in many ways, and what is there decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import psycopg

from duobus.errors import StoreFailed
from duobus.storage.catalog_rows import StoreRow
from duobus.storage.postgres import schema
from duobus.storage.postgres.address import PostgresAddress, parse
from duobus.storage.postgres.reader import meta_of
from duobus.storage.postgres.rows import advance
from duobus.storage.postgres.session import failure
from duobus.storage.postgres.setup import open_session

_Link = psycopg.Connection[tuple[object, ...]]


def held_by(place: PostgresAddress, rows: Sequence[StoreRow], identity: int) -> set[int]:
    """Return the numbers of those stores of a catalog that are in the database of ``place``; nothing is changed.

    Each is looked for in its own schema: that of its path in the catalog, or that of ``place`` if it names one. It is
    that store if it says so itself, and belongs to this catalog or was never told of any.

    Raises:
        StoreFailed: The database cannot be reached.
    """
    found: set[int] = set()
    try:
        with _connected(place) as link:
            for row in rows:
                # Checked when the address was parsed: a name that needs no quotes.
                schema = place.schema or parse(row.path).schema
                if schema and _is_in(link, schema, row.store_id, identity):
                    found.add(row.store_id)
    except psycopg.Error as error:
        raise failure(place.url, "look for stores", error) from error
    return found


def _connected(place: PostgresAddress) -> _Link:
    conninfo, beside = place.conninfo()
    connect = partial(psycopg.connect, conninfo, autocommit=True, application_name="duobus-probe")
    # What lies beside the address has names of libpq, none of the driver's own options.
    return connect(**beside)  # type: ignore[arg-type]


def _has(link: _Link, schema: str | None, table: str) -> bool:
    return link.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.{table}",)).fetchone() == (True,)


def _is_in(link: _Link, schema: str, store_id: int, identity: int) -> bool:
    if not _has(link, schema, "meta") or not _has(link, schema, "migrations"):
        return False
    if link.execute(f"SELECT store_id FROM {schema}.meta".encode()).fetchone() != (store_id,):
        return False
    if not identity or not _has(link, schema, "belonging"):
        return True
    row = link.execute(f"SELECT identity FROM {schema}.belonging".encode()).fetchone()
    return row is None or row[0] in (0, identity)


def held_or_unknown(place: PostgresAddress, rows: Sequence[StoreRow], identity: int) -> set[int] | None:
    """The same, or None when the database cannot be reached now."""
    try:
        return held_by(place, rows, identity)
    except StoreFailed:
        return None


# The broker time that a store in PostgreSQL has recorded, and what a table of leases says of it.


def set_time(place: PostgresAddress, store_id: int, now_ms: int | None) -> int:
    """Have broker time begin at ``now_ms`` where a later one is recorded (None: only look); return what was recorded.

    Raises:
        StoreFailed: The store is not there, cannot be reached, or somebody has it open.
    """
    try:
        link = open_session(place, store_id)
        try:
            ((exists,),) = link.rows(f"SELECT to_regclass('{place.schema}.meta') IS NOT NULL")
            if not exists:
                raise StoreFailed(f"{place.url}: there is no messaging store")
            meta = meta_of(link.rows(schema.READ_META), place.url)
            if meta.store_id != store_id:
                raise StoreFailed(
                    f"{place.url}: this is store {meta.store_id}, not {store_id}; addresses were mixed up"
                )
            if now_ms is not None and meta.broker_ms > now_ms:
                link.run(f"BEGIN;{advance(meta, meta.advanced(broker_ms=now_ms), '0')};COMMIT")
            return meta.broker_ms
        finally:
            link.close()
    except (psycopg.Error, OSError) as error:
        raise failure(place.url, "set its time back", error) from error


def running_servers(place: PostgresAddress) -> list[str] | None:
    """Return the HTTP addresses of the servers that are alive by the table of leases at ``place``; None: there is none.

    Raises:
        StoreFailed: The database cannot be reached.
    """
    statement = "SELECT http_address FROM {}.nodes WHERE ends_at > clock_timestamp() ORDER BY 1"
    found = _asked(place, "nodes", statement, "look for servers")
    return None if found is None else [str(address) for (address,) in found]


def forget_times(place: PostgresAddress) -> None:
    """Have the table of leases at ``place`` know of no time (decision 0076); nothing happens where there is none.

    Raises:
        StoreFailed: The database cannot be reached.
    """
    _asked(place, "store_times", "DELETE FROM {}.store_times RETURNING store_id", "forget times")


def _asked(place: PostgresAddress, table: str, statement: str, purpose: str) -> list[tuple[object, ...]] | None:
    """What a statement gives, whose ``{}`` is the schema; None where the table is missing."""
    try:
        with _connected(place) as link:
            if not _has(link, place.schema, table):
                return None
            return link.execute(statement.format(place.schema).encode()).fetchall()
    except psycopg.Error as error:
        raise failure(place.url, purpose, error) from error
