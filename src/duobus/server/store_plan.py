"""Which messaging stores a server has, and where: what the catalog knows and what the command line gives, together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from duobus.clock import Entropy
from duobus.errors import ConfigurationError
from duobus.storage.catalog_rows import CatalogContents, StoreRow, store_path
from duobus.storage.postgres.address import PostgresAddress, driver_needed, is_postgres, parse

if TYPE_CHECKING:
    from duobus.storage.postgres.store import PostgresStore


class PlannedStore(NamedTuple):
    """One store that is to be opened.

    Attributes:
        store_id: Its number.
        path: What the catalog says of it, or is to say.
        place: Where it is, if it is in PostgreSQL.
        is_new: Whether it has to be created.
        is_moved: Whether the catalog has another address of it.
    """

    store_id: int
    path: str
    place: PostgresAddress | None
    is_new: bool
    is_moved: bool = False


#: Numbers of those stores of a catalog that are where a place leads to; None: it leads nowhere now.
Holds = Callable[[PostgresAddress, Sequence[StoreRow]], set[int] | None]


def nobody_knows(_place: PostgresAddress, _rows: Sequence[StoreRow]) -> None:
    """No database is asked."""


def plan_stores(
    contents: CatalogContents,
    files: int,
    places: Sequence[PostgresAddress],
    entropy: Entropy,
    holds: Holds = nobody_knows,
) -> list[PlannedStore]:
    """Return all stores, ascending.

    Args:
        contents: Of the catalog.
        files: How many stores in files there are to be.
        places: Addresses of those in PostgreSQL.
        entropy: For the names of new schemas: the name is what tells the stores of two servers in one database apart.
        holds: Asked of addresses that are not written as in the catalog.

    Raises:
        ConfigurationError: Fewer stores are asked for than there are; the text says what to give.
    """
    known = [row for row in contents.stores if not is_postgres(row.path)]
    if len(known) > files:
        raise ConfigurationError(
            f"--stores {files} is fewer than the {len(known)} messaging stores of this data "
            f"folder. Give --stores {len(known)} or more."
        )
    planned = [PlannedStore(row.store_id, row.path, None, is_new=False) for row in known]
    left = list(places)
    elsewhere = [row for row in contents.stores if is_postgres(row.path)]
    for row, place in _matched(elsewhere, left, holds):
        moved = place.in_schema(parse(row.path).schema or "")
        planned.append(PlannedStore(row.store_id, moved.url, moved, is_new=False, is_moved=moved.url != row.path))
    # The number of a store that was given up is never used again: its file, if it turns up, is left alone.
    number = max((row.store_id for row in (*contents.stores, *contents.lost)), default=0)
    for _ in range(files - len(known)):
        number += 1
        planned.append(PlannedStore(number, store_path(number), None, is_new=True))
    for place in left:
        _demand_new(place, elsewhere, holds)
        number += 1
        made = place.in_schema(place.schema or f"duobus_{number}_{entropy.token(6).hex()}")
        planned.append(PlannedStore(number, made.url, made, is_new=True))
    return sorted(planned)


def _demand_new(place: PostgresAddress, rows: Sequence[StoreRow], holds: Holds) -> None:
    """Refuse the address of a store that another address of this start leads to already."""
    if place.schema is None:
        return
    same = [row for row in rows if parse(row.path).schema == place.schema]
    if same and (found := holds(place, same)):
        raise ConfigurationError(
            f"{place.url} is messaging store {min(found)}, which another --store of this start leads to already. Give "
            "each store once."
        )


def _matched(
    rows: Sequence[StoreRow], left: list[PostgresAddress], holds: Holds
) -> list[tuple[StoreRow, PostgresAddress]]:
    """The address given for each store: one of its database, however it is written, or else one that leads nowhere now.

    That may be where the database is after it has moved: when it can be reached, the store itself says whether it is.
    """
    found: dict[int, PostgresAddress] = {}

    def match(row: StoreRow, place: PostgresAddress) -> None:
        found[row.store_id] = place
        left.remove(place)

    for row in rows:
        known = parse(row.path)
        same = [place for place in left if place.server == known.server and place.schema in (None, known.schema)]
        if same:
            # One that names the schema first: another store of the same database may be named by the others.
            match(row, max(same, key=lambda place: place.schema is not None))
    others = [row for row in rows if row.store_id not in found]
    held = {id(place): holds(place, others) for place in left} if others else {}
    for row in others:
        there = [place for place in left if row.store_id in (held[id(place)] or ())]
        if there:
            match(row, max(there, key=lambda place: place.schema is not None))
    for row in rows:
        if row.store_id not in found:
            unknown = [place for place in left if held.get(id(place)) is None]
            if not unknown:
                raise ConfigurationError(
                    f"Messaging store {row.store_id} is at {row.path}. Give --store with that address, or with the one"
                    " that its database has now." + (" None of the others that are given leads to it." if left else "")
                )
            match(row, unknown[0])
    return [(row, found[row.store_id]) for row in rows]


def postgres_store(planned: PlannedStore, place: PostgresAddress) -> PostgresStore:
    """Make a store in PostgreSQL, not open.

    Raises:
        ConfigurationError: What is needed for it is not installed.
    """
    with driver_needed():
        from duobus.storage.postgres.store import PostgresStore
    return PostgresStore(place, planned.store_id, must_exist=not planned.is_new)
