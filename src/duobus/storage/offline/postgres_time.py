"""The broker time that a store in PostgreSQL has recorded, read and set back offline."""

from __future__ import annotations

import psycopg

from duobus.errors import StoreFailed
from duobus.storage.postgres import schema
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.postgres.reader import meta_of
from duobus.storage.postgres.rows import advance
from duobus.storage.postgres.session import failure
from duobus.storage.postgres.setup import open_session


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
