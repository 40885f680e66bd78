"""Which catalog a messaging store belongs to, and how far that catalog had come when the store was last told.

A store knows entities by the numbers that the catalog has given them. Another catalog, or an older copy of the same
one, gives the same numbers to other entities, whose clients would then be handed messages that are not theirs. So a
catalog has an identity, drawn when it is made, and a revision, raised with every change of it. Each store keeps both,
with the highest number it has seen, written down in commits that it makes anyway: at its opening, and when fragments
come or go. The catalog is durable first, always; so a store that is ahead of its catalog shows that the catalog is not
the one it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from duobus.errors import StoreForeign
from duobus.model.descriptions import QUEUE, TOPIC
from duobus.storage.catalog_rows import LIVE

if TYPE_CHECKING:
    from duobus.storage.catalog_records import CopyKeeper
    from duobus.storage.catalog_rows import CatalogContents
    from duobus.storage.interface import StoreContents

#: The same where servers share the catalog, whose stores keep no rows of it.
SHARED_ADVICE: Final = (
    "Bring back the shared catalog as it was last, or restore catalog and stores from one backup of their databases"
)

#: Bits of an identity; never 0, which stands for none.
IDENTITY_BITS: Final = 62

#: What to do when a catalog and a store do not fit.
ADVICE: Final = (
    "Put back the catalog that belongs to these stores (catalog.db with catalog.db-wal), or restore a whole backup into"
    " an empty folder (duobus restore), or rebuild the catalog from its stores (duobus store adopt)"
)


class Belonging(NamedTuple):
    """What a store has kept of its catalog.

    Attributes:
        identity: Of the catalog; 0: it was never told.
        revision: Of the catalog, when it was last told.
        highest_id: The highest number of an entity that the catalog had given out by then.
        is_prepared: It was made to take the place of a store that is given up, and the catalog may not know it yet;
            it holds no messages.
    """

    identity: int
    revision: int
    highest_id: int
    is_prepared: int = 0


#: Of a store that was never told.
NOBODYS: Final = Belonging(0, 0, 0)


class CatalogMark:
    """What the stores of a catalog are to keep of it: what is durable in it, never more.

    The loop writes it and the threads of stores read it; whoever reads a revision that has just been raised is right.

    Attributes:
        identity, revision, last_id: See ``Belonging``. Identity 0: stores are told nothing, and not asked.
        copies: What stores are to keep of its rows (``catalog_records.py``); None: nothing.
        advice: What to do when a store does not fit.
    """

    __slots__ = ("advice", "copies", "identity", "last_id", "revision")

    def __init__(self, advice: str = "") -> None:
        self.advice = advice or ADVICE
        self.copies: CopyKeeper | None = None
        self.identity = 0
        self.revision = 0
        self.last_id = 0

    def see(self, contents: CatalogContents) -> None:
        """Take over what was read."""
        self.identity = contents.identity
        self.raise_to(contents.revision, contents.last_id)

    def raise_to(self, revision: int, last_id: int = 0) -> None:
        """A change is durable."""
        self.revision = max(self.revision, revision)
        self.last_id = max(self.last_id, last_id)

    def told(self, before: Belonging, *, is_prepared: bool = False) -> Belonging | None:
        """What a store is to write down now; None when it has that already, or there is nothing to be told."""
        if not self.identity:
            return None
        # The revision first: the other number may be later than it, and never earlier.
        revision = self.revision
        now = Belonging(self.identity, revision, max(self.last_id, before.highest_id), int(is_prepared))
        return None if now == before else now


def highest_of(contents: StoreContents) -> int:
    """The highest number of an entity of which a store has, or had, anything."""
    known = 0 if contents.belonging is None else contents.belonging.highest_id
    # Subscriptions are entities, too: theirs are the numbers of sources.
    entities = max((row.entity_id for row in contents.fragments), default=0)
    return max(known, entities, max((row.source_no for row in contents.sources), default=0))


def demand_own(mark: CatalogMark, contents: StoreContents, what: str) -> None:
    """Raise StoreForeign when a store, named by ``what``, is not one that this catalog may use."""
    if not mark.identity:
        return
    own = contents.belonging or NOBODYS
    highest = highest_of(contents)
    if own.identity and own.identity != mark.identity:
        raise StoreForeign(
            f"{what} belongs to another catalog than this one: it was moved here from another server's folder, or the "
            f"catalog was lost and another one has taken its place. {mark.advice}; move a store of another server "
            "back to where it was."
        )
    if own.identity and own.revision > mark.revision:
        raise StoreForeign(
            f"{what} has been told of revision {own.revision} of the catalog, and the catalog is at revision "
            f"{mark.revision}: it is an older copy, or changes of it were lost. {mark.advice}."
        )
    if highest > mark.last_id:
        raise StoreForeign(
            f"{what} holds an entity with the number {highest}, and the highest that the catalog has given out is "
            f"{mark.last_id}: the catalog is an older copy, or not the one of this store. {mark.advice}."
        )


def missing_from(catalog: CatalogContents, store_id: int, found: set[tuple[int, int]]) -> list[str]:
    """What clients use and a store should have, but has not, in words; ``found``: (entity id, fragment number).

    An entity is live when its rows are in its stores, and they go only after it is live no more. What is spread over
    the stores of several servers has a slot for its name alone: its fragments are those of its shards.
    """
    return [
        f"fragment {slot.fragment_no} of '{row.path}'"
        for row in catalog.entities
        if row.state == LIVE and row.kind in (QUEUE, TOPIC)
        for slot in row.slots
        if slot.store_id == store_id and (row.entity_id, slot.fragment_no) not in found
    ]


def unknown_to(catalog: CatalogContents, store_id: int, found: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """What a store has although nothing in the catalog tells of it: no entity, no deletion, no move."""
    explained = {
        (row.entity_id, slot.fragment_no) for row in catalog.entities for slot in row.slots if slot.store_id == store_id
    }
    explained |= {
        (move.entity_id, move.fragment_no) for move in catalog.moves if store_id in (move.from_store, move.to_store)
    }
    return found - explained
