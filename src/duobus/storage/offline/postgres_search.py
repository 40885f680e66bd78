"""What stores in PostgreSQL hold that tells of their catalog, for ``catalog_rebuild.py``; nothing is changed there."""

from __future__ import annotations

from typing import Final

import psycopg

from duobus.errors import StoreFailed, StoreTooNew
from duobus.storage.interface import FragmentRow, SourceRow
from duobus.storage.offline.found_store import FoundStore
from duobus.storage.postgres import schema
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.postgres.reader import belonging_of, meta_of, records_in, verified
from duobus.storage.postgres.session import PostgresSession, failure
from duobus.storage.postgres.setup import open_session

#: Schemas that can be a store's: with its tables, and a name that needs no quotes.
_SCHEMAS: Final = (
    "SELECT n.nspname FROM pg_namespace n WHERE n.nspname ~ '^[a-z_][a-z0-9_]{0,62}$' AND (SELECT count(*)"
    " FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname IN ('meta', 'migrations', 'fragments', 'sources')) = 4"
    " ORDER BY 1"
)


class Finder:
    """Looks into stores, and keeps everybody else out of those that are taken until it is closed."""

    def __init__(self) -> None:
        self._links: list[PostgresSession] = []

    def schemas(self, place: PostgresAddress) -> list[str]:
        """Schemas of a database that hold a messaging store, whosever it is.

        Raises:
            StoreFailed: The database cannot be reached.
        """
        try:
            link = PostgresSession(place, "duobus-adopt")
            try:
                return [str(name) for (name,) in link.rows(_SCHEMAS)]
            finally:
                link.close()
        except (psycopg.Error, OSError) as error:
            raise failure(place.url, "look for stores", error) from error

    def look(self, place: PostgresAddress) -> FoundStore:
        """What a store holds, whether or not somebody has it open.

        Raises:
            StoreFailed: There is none, or it cannot be read.
            StoreTooNew: A newer version wrote it.
        """
        return self._look(place, is_aside=True)

    def take(self, place: PostgresAddress) -> FoundStore:
        """The same, and nobody else can open it until ``close``.

        Raises:
            StoreFailed: Somebody has it open, too.
        """
        return self._look(place, is_aside=False)

    def close(self) -> None:
        """Let others open what was taken."""
        links, self._links = self._links, []
        for link in links:
            link.close()

    def _look(self, place: PostgresAddress, *, is_aside: bool) -> FoundStore:
        try:
            link = open_session(place, 0, is_aside=is_aside)
            try:
                found = _read(link, place)
            except BaseException:
                link.close()
                raise
        except (psycopg.Error, OSError) as error:
            raise failure(place.url, "look into the store", error) from error
        if is_aside:
            link.close()
        else:
            self._links.append(link)
        return found


def _read(link: PostgresSession, place: PostgresAddress) -> FoundStore:
    ((exists,),) = link.rows(f"SELECT to_regclass('{place.schema}.migrations') IS NOT NULL")
    if not exists:
        raise StoreFailed(f"{place.url}: there is no messaging store")
    applied = [int(row[0]) for row in link.rows(schema.READ_MIGRATIONS)]
    if applied and applied[-1] > schema.FORMAT_VERSION:
        raise StoreTooNew(
            f"{place.url}: the store has format {applied[-1]}, this version reads up to {schema.FORMAT_VERSION};"
            " use the version of duobus that wrote it"
        )
    link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    meta = meta_of(link.rows(schema.READ_META), place.url)
    fragments = verified(link.rows(schema.READ_FRAGMENTS), place.url, "the row of a fragment")
    sources = verified(link.rows(schema.READ_SOURCES), place.url, "the row of a source")
    found = FoundStore(
        meta.store_id,
        place.url,
        belonging_of(link, place.url),
        [FragmentRow(*row) for row in fragments],
        [SourceRow(*row) for row in sources],
        records_in(link, place.url),
    )
    link.run("COMMIT")
    return found
