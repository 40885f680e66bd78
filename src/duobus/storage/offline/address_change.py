"""Changing what a catalog has as the address of a store in PostgreSQL, offline, after looking what is there."""

from __future__ import annotations

from duobus.errors import ConfigurationError
from duobus.storage.catalog.interface import Catalog
from duobus.storage.postgres.address import catalog_place, is_postgres, parse


def shared_catalog(url: str) -> Catalog:
    """The catalog that joined servers share."""
    from duobus.storage.catalog.postgres import PostgresCatalog

    return PostgresCatalog(catalog_place(url))


def change_address(catalog: Catalog, store_id: int, address: str) -> tuple[str, str]:
    """Have the catalog find a store at another address, where it is already; returns both, without secrets.

    Raises:
        ConfigurationError: There is no such store in PostgreSQL, or it is not at that address.
        StoreFailed: The catalog cannot be changed, or the database not be reached.
    """
    # Here and not above: it needs the driver of PostgreSQL.
    try:
        from duobus.storage.offline.postgres_probe import held_by
    except ImportError as error:
        raise ConfigurationError(
            f"Stores in PostgreSQL need more than is installed ({error}): pip install 'duobus[postgres]'"
        ) from error
    place = parse(address)
    contents = catalog.read()
    row = next((row for row in contents.stores if row.store_id == store_id), None)
    if row is None or not is_postgres(row.path):
        known = ", ".join(str(row.store_id) for row in contents.stores if is_postgres(row.path))
        raise ConfigurationError(f"There is no messaging store {store_id} in PostgreSQL; there are: {known or 'none'}.")
    place = place.in_schema(place.schema or parse(row.path).schema or "")
    if store_id not in held_by(place, [row], contents.identity):
        raise ConfigurationError(
            f"Messaging store {store_id} of this catalog is not at {place.url}: there is nothing, or another store, or "
            "that of another catalog. Nothing was changed."
        )
    if place.url != row.path:
        catalog.add_store(store_id, place.url)
    return row.path, place.url
