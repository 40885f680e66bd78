"""MemoryCatalog: the catalog in dictionaries, and the reference behaviour of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from duobus.model.descriptions import AccessRule
from duobus.storage.catalog.interface import (
    Catalog,
    RulesChange,
    exists_already,
    given_up,
    is_gone,
    unknown_entity,
    unknown_namespace,
)
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_rows import (
    DELETING,
    INTENT,
    LIVE,
    CatalogContents,
    EntityRow,
    MoveRow,
    NamespaceRow,
    SlotRow,
    StoreRow,
)


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

    def begin_create(
        self,
        namespace: str,
        kind: str,
        path: str,
        description: bytes,
        slots: Sequence[SlotRow],
        needed_id: int | None = None,
    ) -> int:
        """Record the intent; see Catalog."""
        needed = None if needed_id is None else self._entities.get(needed_id)
        if needed_id is not None and (needed is None or needed.state == DELETING):
            raise is_gone(path)
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
        if entity_id not in self._entities or self._entities[entity_id].state != DELETING:
            self._change(entity_id, state=LIVE)

    def begin_delete(self, entity_id: int) -> None:
        """Begin a deletion; see Catalog."""
        self._change(entity_id, state=DELETING)

    def begin_delete_while(self, entity_id: int, description: bytes, live_ids: Sequence[int]) -> bool:
        """Begin a deletion, if it may be; see Catalog."""
        rows = [self._entities.get(one) for one in (entity_id, *live_ids)]
        if not all(row is not None and row.state == LIVE for row in rows):
            return False
        if self._entities[entity_id].description != description:
            return False
        self._change(entity_id, state=DELETING)
        return True

    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of what could not be created; see Catalog."""
        self._change(entity_id, state=DELETING, path=path)

    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity; see Catalog."""
        self._entities.pop(entity_id, None)
        self._changed()

    def update_description(self, entity_id: int, description: bytes, instead_of: bytes | None = None) -> bool:
        """Replace a description; see Catalog."""
        kept = self._entities.get(entity_id)
        if kept is not None and instead_of is not None and (kept.description != instead_of or kept.state == DELETING):
            return False
        self._change(entity_id, description=description)
        return True

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

    def switch_moves(self, moves: Sequence[MoveRow]) -> None:
        """Say where several fragments are now; see Catalog."""
        if any(self._moves.get((move.entity_id, move.fragment_no)) != move for move in moves):
            raise given_up()
        for move in moves:
            self.switch_move(move)

    def give_up_move(self, move: MoveRow) -> None:
        """Say that a fragment stays where it is; see Catalog."""
        if self._moves.get((move.entity_id, move.fragment_no)) == move:
            self._moves[move.entity_id, move.fragment_no] = move.reversed()
            self._changed()

    def end_move(self, move: MoveRow) -> None:
        """Forget a move; see Catalog."""
        if self._moves.get((move.entity_id, move.fragment_no)) == move:
            del self._moves[move.entity_id, move.fragment_no]
        self._changed()

    def note_generations(self, generations: Mapping[int, int]) -> None:
        """Record how far stores have come; see Catalog."""
        if self.notes_generations:
            self._generations |= generations

    def put_namespace(self, namespace: NamespaceRow) -> None:
        """Add or replace a namespace; see Catalog."""
        self._namespaces[namespace.name] = namespace
        self._changed()

    def change_rules(self, namespace: str, change: RulesChange) -> tuple[AccessRule, ...]:
        """Change access rules; see Catalog."""
        row = self._namespaces.get(namespace)
        if row is None:
            raise unknown_namespace(namespace)
        rules = change(row.rules)
        self.put_namespace(NamespaceRow(row.name, rules))
        return rules

    def close(self) -> None:
        """Do nothing: the content lives as long as the object."""

    def _change(self, entity_id: int, **changes: object) -> None:
        if entity_id not in self._entities:
            raise unknown_entity(entity_id)
        self._entities[entity_id] = msgspec.structs.replace(self._entities[entity_id], **changes)
        self._changed()
