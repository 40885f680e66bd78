"""Which stores in PostgreSQL a catalog is rebuilt from: those that are given, and those that records of others name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.catalog_records import LOST, STORE, key_of
from duobus.storage.offline.found_store import FoundStore
from duobus.storage.postgres.address import PostgresAddress, driver_needed, is_postgres, parse

if TYPE_CHECKING:
    from duobus.storage.offline.postgres_search import Finder


def finder() -> Finder:
    """What looks into stores in PostgreSQL.

    Raises:
        ConfigurationError: What is needed for that is not installed.
    """
    with driver_needed():
        from duobus.storage.offline.postgres_search import Finder
    return Finder()


class PostgresSearch:
    """Finds the stores in PostgreSQL that belong together with those that are known already.

    Args:
        stores: Those in files.
        places: Addresses; one without a schema stands for every store in its database that belongs to the same catalog.
        of_join: The shared catalog, of joined servers: its stores are in schemas that have its name and a number.
    """

    def __init__(
        self, stores: Iterable[FoundStore], places: Sequence[PostgresAddress], of_join: PostgresAddress | None
    ) -> None:
        self.found = list(stores)
        self._places = places
        self._join = of_join
        self._finder: Finder | None = None

    def close(self) -> None:
        """Let others open them."""
        if self._finder is not None:
            self._finder.close()

    def run(self) -> None:
        """Find them; from then on nobody else can open them.

        Raises:
            ConfigurationError: An address leads to no store, or stores of several catalogs are at it.
            StoreFailed: A database whose address is given cannot be reached, or somebody has one of its stores open.
            StoreTooNew: A newer version wrote one.
        """
        for place in self._places:
            if place.schema is not None:
                self._take(place)
        for place in self._places:
            if place.schema is None:
                self._search(place)
        tried: set[str] = set()
        while (missing := self._named() - tried) and missing:
            tried |= missing
            for path in sorted(missing):
                self._follow(path)

    def _looking(self) -> Finder:
        if self._finder is None:
            self._finder = finder()
        return self._finder

    def _take(self, place: PostgresAddress) -> None:
        if any(store.path == place.url for store in self.found):
            # As a start is given the address of a database once for each of its stores.
            return
        store = self._looking().take(place)
        same = [one.path for one in self.found if one.store_id == store.store_id]
        if same:
            raise ConfigurationError(
                f"Messaging store {store.store_id} is at {same[0]} and at {place.url}: one of them is a copy, or "
                "another server's, or one store was given under two addresses. Give that one which is right."
            )
        self.found.append(store)

    def _search(self, place: PostgresAddress) -> None:
        looking = self._looking()
        names = looking.schemas(place)
        if self._join is not None:
            form = re.compile(rf"{re.escape(self._join.schema or '')}_[1-9]\d*")
            names = [name for name in names if form.fullmatch(name)]
        seen = {name: looking.look(place.in_schema(name)).belonging.identity for name in names}
        wanted = {store.belonging.identity for store in self.found} - {0}
        if not wanted:
            wanted = set(seen.values()) - {0}
        if len(wanted) > 1:
            lists = "; ".join(
                ", ".join(name for name in names if seen[name] == identity) or "files" for identity in sorted(wanted)
            )
            raise ConfigurationError(
                f"The stores at {place.url} belong to different catalogs ({lists}). Give those of one server, each "
                "with its schema: --store postgresql://user@host/database?schema=..."
            )
        if not names:
            raise ConfigurationError(f"There is no messaging store at {place.url}.")
        for name in names:
            if seen[name] in wanted:
                self._take(place.in_schema(name))

    def _named(self) -> set[str]:
        """Addresses that records name, of stores that were not found yet."""
        here = {store.store_id for store in self.found}
        latest: dict[str, tuple[int, str]] = {}
        lost: set[str] = set()
        for store in self.found:
            for key, kept in store.records.items():
                kind, _, number = key.partition(":")
                if kind == LOST:
                    lost.add(key_of(STORE, number))
                elif kind == STORE and int(number) not in here and kept.revision >= latest.get(key, (0, ""))[0]:
                    latest[key] = kept.revision, msgspec.json.decode(kept.text, type=str)
        return {path for key, (_, path) in latest.items() if key not in lost and is_postgres(path)}

    def _follow(self, path: str) -> None:
        """Look whether the store is where a record says, with the password that was given for that database."""
        place = parse(path)
        given = (*self._places, *(() if self._join is None else (self._join,)))
        place = next((one for one in given if one.server == place.server), place).in_schema(place.schema or "")
        try:
            store = self._looking().look(place)
        except StoreFailed:
            # As a file that is not there: it is told of, and may come back.
            return
        if store.belonging.identity in {one.belonging.identity for one in self.found}:
            self._take(place)
