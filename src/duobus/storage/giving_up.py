"""``replace_store`` for a data folder of SQLite stores, as the command line needs it."""

from __future__ import annotations

from pathlib import Path

from duobus.clock import Entropy
from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_identity import IDENTITY_BITS
from duobus.storage.catalog_rows import StoreRow, store_path
from duobus.storage.interface import MessagingStore
from duobus.storage.postgres.address import is_postgres, parse
from duobus.storage.replacement import Loss, losses_of, replace_store
from duobus.storage.sqlite.store import SqliteStore


def give_up(data: Path, store_id: int, *, although_readable: bool = False) -> list[Loss]:
    """Give a store of a data folder up; return what was lost with it.

    Raises:
        ConfigurationError: There is no such store or no catalog, or the store can be read and ``although_readable``
            was not said.
        StoreFailed: The catalog cannot be changed, as while a server uses it.
    """
    if not (data / "catalog.db").exists():
        raise ConfigurationError(f"{data} is no data folder of duobus: it has no catalog.db.")
    catalog = SqliteCatalog(data / "catalog.db")
    try:
        catalog.identify(Entropy().number(IDENTITY_BITS) or 1)
        contents = catalog.read()
        losses_of(contents, store_id)
        (row,) = [row for row in contents.stores if row.store_id == store_id]
        if not although_readable and _is_readable(data, row):
            raise ConfigurationError(
                f"Messaging store {store_id} can be read, so nothing has to be given up: start the server. To give it "
                "up all the same, with everything in it: --although-readable."
            )

        def make(number: int) -> tuple[str, MessagingStore]:
            return store_path(number), SqliteStore(str(data / store_path(number)), number)

        return replace_store(catalog, store_id, make)
    finally:
        catalog.close()


def _is_readable(data: Path, row: StoreRow) -> bool:
    store = _store_of(data, row)
    try:
        store.open()
    except StoreFailed:
        return False
    finally:
        store.close()
    return True


def _store_of(data: Path, row: StoreRow) -> MessagingStore:
    if not is_postgres(row.path):
        return SqliteStore(str(data / row.path), row.store_id, must_exist=True)
    from duobus.storage.postgres.store import PostgresStore

    return PostgresStore(parse(row.path), row.store_id, must_exist=True)
