"""Giving a messaging store up: its fragments go on, empty, under new numbers on a new store (requirement IN1).

An outage is over when the store is back, and nothing is lost by it; a disaster is declared by an operator, once, here.
New fragment numbers keep every sequence number unique for ever, whatever the lost store had given out; the number of
the lost store is never used again, so that its file, should it turn up, is not taken for anything (I7, I31).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from duobus.clock import Entropy
from duobus.errors import ConfigurationError, StoreFailed
from duobus.model.descriptions import SUBSCRIPTION, TOPIC
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_identity import IDENTITY_BITS
from duobus.storage.catalog_rows import DELETING, CatalogContents, EntityRow, SlotRow, StoreRow, store_path
from duobus.storage.interface import MessagingStore
from duobus.storage.journal.store import store_in_file
from duobus.storage.postgres.address import is_postgres, parse
from duobus.storage.sqlite.store import SqliteStore

#: A sequence number has the fragment's number in its upper 16 bits and the count below (Azure: AMQP protocol guide).
COUNT_BITS: Final = 48
FRAGMENT_NO_MAX: Final = (1 << 16) - 1


class Loss(NamedTuple):
    """A fragment that is given up.

    Attributes:
        entity_id: The catalog's id of its entity.
        namespace: Where the entity is.
        entity: Its path.
        slot: The fragment's slot, which goes on.
        fragment_no: The number that is given up.
        new_fragment_no: The one that the slot has from now on.
        source_nos: Sources that the new fragment needs.
    """

    entity_id: int
    namespace: str
    entity: str
    slot: int
    fragment_no: int
    new_fragment_no: int
    source_nos: tuple[int, ...]

    @property
    def first_number(self) -> int:
        """The lowest sequence number that a message of it can have."""
        return self.fragment_no << COUNT_BITS | 1

    @property
    def last_number(self) -> int:
        """The highest one."""
        return (self.fragment_no + 1 << COUNT_BITS) - 1


def losses_of(contents: CatalogContents, store_id: int) -> list[Loss]:
    """Return what is given up with a store.

    Raises:
        ConfigurationError: There is no such store.
    """
    if all(row.store_id != store_id for row in contents.stores):
        known = ", ".join(str(row.store_id) for row in contents.stores)
        raise ConfigurationError(f"There is no messaging store {store_id}; there are {known}.")
    return [loss for entity in contents.entities for loss in _losses(entity, contents, store_id)]


def _losses(entity: EntityRow, contents: CatalogContents, store_id: int) -> Iterable[Loss]:
    highest = max((slot.fragment_no for slot in entity.slots), default=0) + contents.fragment_gap
    for slot in entity.slots:
        if slot.store_id == store_id:
            highest += 1
            if highest > FRAGMENT_NO_MAX:
                raise ConfigurationError(f"'{entity.path}' has no fragment numbers left; delete and create it anew")
            sources = (0, *_subscriptions(entity, contents.entities))
            yield Loss(entity.entity_id, entity.namespace, entity.path, slot.slot, slot.fragment_no, highest, sources)


def _subscriptions(topic: EntityRow, entities: Iterable[EntityRow]) -> list[int]:
    """A subscription is the source of its topic's fragments that has its entity id."""
    if topic.kind != TOPIC:
        return []
    start = f"{topic.path}/subscriptions/".lower()
    return sorted(
        row.entity_id
        for row in entities
        if row.kind == SUBSCRIPTION
        and row.namespace.lower() == topic.namespace.lower()
        and row.path.lower().startswith(start)
        and row.state != DELETING
    )


def replace_store(
    catalog: Catalog, store_id: int, make_store: Callable[[int], tuple[str, MessagingStore]]
) -> list[Loss]:
    """Give a store up for good; return what was lost with it.

    The fragments are made first and the catalog is changed then, in one transaction: after a crash in between, the
    same call does the same again.

    Args:
        catalog: Of a server that is not running.
        store_id: The store that is given up.
        make_store: From the number of the new store to its path in the catalog, and itself, not open.

    Raises:
        ConfigurationError: There is no such store.
        StoreFailed: The catalog or the new store failed; nothing is given up.
    """
    contents = catalog.read()
    losses = losses_of(contents, store_id)
    number = max(row.store_id for row in (*contents.stores, *contents.lost)) + 1
    path, store = make_store(number)
    # After a crash in between a server finds a store that the catalog does not know, and has to know it for what it is.
    store.mark, store.is_prepared = catalog.mark, True
    try:
        store.open()
        store.begin_generation(())
        for loss in losses:
            store.add_fragment(loss.entity_id, loss.new_fragment_no, loss.source_nos)
    finally:
        store.close()
    catalog.replace_store(
        store_id,
        StoreRow(number, path),
        [(loss.entity_id, SlotRow(loss.slot, loss.new_fragment_no, number)) for loss in losses],
    )
    return losses


# ``replace_store`` for a data folder of SQLite stores, as the command line needs it.


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
        return store_in_file(data / row.path, row.store_id, must_exist=True)
    from duobus.storage.postgres.store import PostgresStore

    return PostgresStore(parse(row.path), row.store_id, must_exist=True)
