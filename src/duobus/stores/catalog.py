"""Catalog: what exists - namespaces with their access rules, entities, where each fragment lives, and the stores.

Small and outside all messaging stores; read whole at start, written by management operations only. While it is
lost, data goes on and management answers server-busy (design 3.3). Calls block: the owner keeps them off the loop.
Creating an entity: ``begin_create`` records the intent with its placement, the rows are made in the stores, and
``mark_live`` finishes; an intent or a deletion found at start is resumed or undone (I31).
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from duobus.clock import Entropy
from duobus.errors import EntityAlreadyExists, StoreFailed
from duobus.model.description import ALL_RIGHTS, AccessRule
from duobus.stores.belonging import CatalogMark

#: Name of the rule that every namespace has (HTTP contract B.2.4).
DEFAULT_RULE_NAME = "RootManageSharedAccessKey"

#: States of an entity: recorded but not finished, usable, being deleted.
INTENT = "intent"
LIVE = "live"
DELETING = "deleting"


class NamespaceRow(msgspec.Struct, frozen=True):
    """A namespace as the catalog keeps it: its name, lower case, and its access rules with their keys."""

    name: str
    rules: tuple[AccessRule, ...]


class SlotRow(msgspec.Struct, frozen=True):
    """Where one slot of an entity is: slot 0 and up, fragment number (16 bit, never reused), store."""

    slot: int
    fragment_no: int
    store_id: int


class EntityRow(msgspec.Struct, frozen=True):
    """One top-level entity.

    Attributes:
        entity_id: Given by the catalog, never reused.
        namespace: Name of its namespace.
        kind: ``queue`` or ``topic``.
        path: Name in the spelling of its creator; unique without regard to case.
        description: JSON of its description; opaque here.
        state: INTENT, LIVE or DELETING.
        partition_count: Number of slots.
        slots: Ascending by slot.
    """

    entity_id: int
    namespace: str
    kind: str
    path: str
    description: bytes
    state: str
    partition_count: int
    slots: tuple[SlotRow, ...]


class StoreRow(msgspec.Struct, frozen=True):
    """One messaging store: its id, 0 and up, never reused, and its path relative to the data folder."""

    store_id: int
    path: str


def store_path(store_id: int) -> str:
    """Return the path of an SQLite store in the data folder."""
    return f"stores/store-{store_id}.db"


class MoveRow(msgspec.Struct, frozen=True):
    """A fragment that is being moved to another store.

    Where the fragment is, its slot says, always: as long as that names ``from_store``, what ``to_store`` has of it is
    to be deleted should the move end; from then on, what ``from_store`` has.
    """

    entity_id: int
    fragment_no: int
    from_store: int
    to_store: int


class CatalogContents(msgspec.Struct, frozen=True):
    """Everything that ``read`` found.

    Attributes:
        lost: Stores that were given up, whose numbers are never used again.
        fragment_gap: Numbers that the next new fragment of an entity leaves out: they may have been given out after the
            backup was made from which all this was restored (I7).
        moves: Those that were begun and are not ended.
        identity: Drawn when the catalog was made; 0: it has none yet.
        revision: Raised with every change.
        last_id: The highest entity id that was ever given out.
        generations: (store id, generation) that the catalog has seen of stores in files.
    """

    namespaces: tuple[NamespaceRow, ...]
    entities: tuple[EntityRow, ...]
    stores: tuple[StoreRow, ...]
    lost: tuple[StoreRow, ...] = ()
    fragment_gap: int = 0
    moves: tuple[MoveRow, ...] = ()
    identity: int = 0
    revision: int = 0
    last_id: int = 0
    generations: tuple[tuple[int, int], ...] = ()


class Catalog(ABC):
    """What exists. Every method blocks and is durable on return; one thread at a time calls.

    Every method may raise StoreFailed: the catalog cannot be reached or refused the change, and whether the change
    is on disk is not known. The object stays usable: a later call opens it again.

    Attributes:
        mark: What its stores are to keep of it; follows what is read and changed here.
    """

    mark: CatalogMark

    @abstractmethod
    def identify(self, drawn: int) -> int:
        """Return the catalog's identity; one that has none gets ``drawn``."""

    @abstractmethod
    def read(self) -> CatalogContents:
        """Return the whole content, creating an empty catalog where there is none.

        Raises:
            StoreTooNew: A newer version wrote it; nothing was touched.
            StoreFailed: It cannot be opened, another process has it, or a row's checksum does not hold.
        """

    @abstractmethod
    def begin_create(self, namespace: str, kind: str, path: str, description: bytes, slots: Sequence[SlotRow]) -> int:
        """Record the intent to create an entity with its placement and return its new id.

        Raises:
            EntityAlreadyExists: An entity of either kind has the path, in whatever spelling or state.
        """

    @abstractmethod
    def mark_live(self, entity_id: int) -> None:
        """Say that the rows of an entity are in all its stores. Harmless when it is live already."""

    @abstractmethod
    def begin_delete(self, entity_id: int) -> None:
        """Say that an entity is gone for clients while its rows are being removed from the stores."""

    @abstractmethod
    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of an entity that could not be created: it takes another path, so that its own is free."""

    @abstractmethod
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity whose rows are gone from all stores; one that is forgotten already is no error."""

    @abstractmethod
    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace the description of an entity."""

    @abstractmethod
    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; one that is registered with the same path is no error."""

    @abstractmethod
    def replace_store(self, lost_id: int, store: StoreRow, slots: Sequence[tuple[int, SlotRow]]) -> None:
        """Give a store up, register another, say where slots (entity id, slot) are now: all of it or nothing."""

    def note_generations(self, _generations: Mapping[int, int]) -> None:  # noqa: B027 - most need not
        """Record how far stores have come, by their numbers: an older copy of one is known by that."""

    def begin_move(self, move: MoveRow) -> None:
        """Record that a fragment is about to be copied; once recorded already it is no error."""
        raise StoreFailed(f"This catalog knows no moves of fragments ({move}).")

    def switch_move(self, move: MoveRow) -> None:
        """Say that the fragment is in the other store from now on; the move goes on until that is cleared up."""
        raise StoreFailed(f"This catalog knows no moves of fragments ({move}).")

    def end_move(self, move: MoveRow) -> None:
        """Forget a move: only one store has anything of the fragment. One that is forgotten already is no error."""
        raise StoreFailed(f"This catalog knows no moves of fragments ({move}).")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what is called meanwhile in one commit, at its end, if this catalog can.

        A call that raises leaves nothing of its own behind, and the others go on. Nothing may wait in between.
        """
        yield

    @abstractmethod
    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add a namespace or replace its access rules."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; never raises; closing twice is allowed."""


def new_namespace(name: str, entropy: Entropy) -> NamespaceRow:
    """Return a namespace with the default rule under two fresh keys (base64 of 32 random bytes each)."""
    primary, secondary = (base64.b64encode(entropy.token(32)).decode() for _ in range(2))
    rule = AccessRule(name=DEFAULT_RULE_NAME, primary_key=primary, secondary_key=secondary, rights=int(ALL_RIGHTS))
    return NamespaceRow(name.lower(), (rule,))


class MemoryCatalog(Catalog):
    """The reference behaviour in dictionaries: for tests, simulation and ``--ephemeral``.

    Attributes:
        notes_generations: Whether it does; there are simulated disks that may forget them.
    """

    notes_generations = False

    def __init__(self) -> None:
        self._namespaces: dict[str, NamespaceRow] = {}
        self._entities: dict[int, EntityRow] = {}
        self._stores: dict[int, StoreRow] = {}
        self._lost: list[StoreRow] = []
        self._moves: dict[tuple[int, int], MoveRow] = {}
        self._generations: dict[int, int] = {}
        self._last_entity_id = 0
        self._revision = 0
        self.mark = CatalogMark()

    def identify(self, drawn: int) -> int:
        """Return the identity; see Catalog."""
        self.mark.identity = self.mark.identity or drawn
        return self.mark.identity

    def _changed(self) -> None:
        self._revision += 1
        self.mark.raise_to(self._revision, self._last_entity_id)

    def read(self) -> CatalogContents:
        """Return the whole content."""
        return CatalogContents(
            tuple(self._namespaces[name] for name in sorted(self._namespaces)),
            tuple(self._entities.values()),
            tuple(self._stores[store_id] for store_id in sorted(self._stores)),
            tuple(self._lost),
            moves=tuple(self._moves.values()),
            identity=self.mark.identity,
            revision=self._revision,
            last_id=self._last_entity_id,
            generations=tuple(self._generations.items()),
        )

    def begin_create(self, namespace: str, kind: str, path: str, description: bytes, slots: Sequence[SlotRow]) -> int:
        """Record the intent; see Catalog."""
        place = (namespace, path.lower())
        if any((entity.namespace, entity.path.lower()) == place for entity in self._entities.values()):
            raise exists_already(path)
        self._last_entity_id += 1
        self._entities[self._last_entity_id] = EntityRow(
            self._last_entity_id,
            namespace,
            kind,
            path,
            description,
            INTENT,
            len(slots),
            tuple(sorted(slots, key=lambda row: row.slot)),
        )
        self._changed()
        return self._last_entity_id

    def mark_live(self, entity_id: int) -> None:
        """Make an entity live; see Catalog."""
        self._change(entity_id, state=LIVE)

    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of what could not be created; see Catalog."""
        self._change(entity_id, state=DELETING, path=path)

    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        self._entities.pop(entity_id, None)
        self._changed()

    def update_description(self, entity_id: int, description: bytes) -> None:
        """Replace a description; see Catalog."""
        self._change(entity_id, description=description)

    def add_store(self, store_id: int, path: str) -> None:
        """Register a store; see Catalog."""
        self._stores[store_id] = StoreRow(store_id, path)
        self._changed()

    def replace_store(self, lost_id: int, store: StoreRow, slots: Sequence[tuple[int, SlotRow]]) -> None:
        """Give a store up; see Catalog."""
        self._lost.append(self._stores.pop(lost_id))
        self._stores[store.store_id] = store
        self._changed()
        for entity_id, new in slots:
            old = self._entities[entity_id].slots
            self._change(entity_id, slots=tuple(new if row.slot == new.slot else row for row in old))

    def begin_move(self, move: MoveRow) -> None:
        """Record a move; see Catalog."""
        self._moves[move.entity_id, move.fragment_no] = move
        self._changed()

    def switch_move(self, move: MoveRow) -> None:
        """Say where a fragment is now; see Catalog."""
        if move.entity_id not in self._entities:
            raise unknown_entity(move.entity_id)
        slots = tuple(
            msgspec.structs.replace(slot, store_id=move.to_store) if slot.fragment_no == move.fragment_no else slot
            for slot in self._entities[move.entity_id].slots
        )
        self._change(move.entity_id, slots=slots)

    def end_move(self, move: MoveRow) -> None:
        """Forget a move; see Catalog."""
        self._moves.pop((move.entity_id, move.fragment_no), None)
        self._changed()

    def note_generations(self, generations: Mapping[int, int]) -> None:
        """Record how far stores have come; see Catalog."""
        if self.notes_generations:
            self._generations |= generations

    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        self._namespaces[namespace.name] = namespace
        self._changed()

    def close(self) -> None:
        """Do nothing: the content lives as long as the object."""

    def _change(self, entity_id: int, **changes: object) -> None:
        if entity_id not in self._entities:
            raise unknown_entity(entity_id)
        self._entities[entity_id] = msgspec.structs.replace(self._entities[entity_id], **changes)
        self._changed()


def exists_already(path: str) -> EntityAlreadyExists:
    """The error for a path that is taken."""
    return EntityAlreadyExists(f"The entity '{path}' exists already. Choose another name, or use what exists.")


def unknown_entity(entity_id: int) -> StoreFailed:
    """The error for an entity that the catalog does not hold."""
    return StoreFailed(f"The catalog holds no entity {entity_id}.")
