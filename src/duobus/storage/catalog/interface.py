"""Catalog: what exists - namespaces with their access rules, entities, where each fragment lives, and the stores.

Small and outside all messaging stores; read whole at start, written by management operations only. While it is
lost, data goes on and management answers server-busy. Calls block: the owner keeps them off the loop.
Creating an entity: ``begin_create`` records the intent with its placement, the rows are made in the stores, and
``mark_live`` finishes; an intent or a deletion found at start is resumed or undone (I31).
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from duobus.clock import Entropy
from duobus.errors import EntityAlreadyExists, EntityNotFound, NotAllowed, StoreFailed
from duobus.model.descriptions import ALL_RIGHTS, AccessRule
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_rows import (
    DEFAULT_RULE_NAME,
    CatalogContents,
    MoveRow,
    NamespaceRow,
    SlotRow,
    StoreRow,
)

#: A function from the access rules of a namespace to those that the namespace is to have.
RulesChange = Callable[[tuple[AccessRule, ...]], tuple[AccessRule, ...]]


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
    def begin_create(
        self,
        namespace: str,
        kind: str,
        path: str,
        description: bytes,
        slots: Sequence[SlotRow],
        needed_id: int | None = None,
    ) -> int:
        """Record the intent to create an entity with its placement and return its new id.

        ``needed_id``: another entity without which there is to be none.

        Raises:
            EntityAlreadyExists: An entity of either kind has the path, in whatever spelling or state.
            EntityNotFound: The other one is gone, or is being deleted.
        """

    @abstractmethod
    def mark_live(self, entity_id: int) -> None:
        """Say that the rows of an entity are in all its stores. Harmless when it is live, or being deleted, already."""

    @abstractmethod
    def begin_delete(self, entity_id: int) -> None:
        """Say that an entity is gone for clients while its rows are being removed from the stores."""

    @abstractmethod
    def begin_delete_while(self, entity_id: int, description: bytes, live_ids: Sequence[int]) -> bool:
        """``begin_delete`` what is live and has a description, if others are live at this moment; whether it was."""

    @abstractmethod
    def withdraw(self, entity_id: int, path: str) -> None:
        """Begin the deletion of an entity that could not be created: it takes another path, so that its own is free."""

    @abstractmethod
    def finish_delete(self, entity_id: int) -> None:
        """Forget an entity whose rows are gone from all stores; one that is forgotten already is no error."""

    @abstractmethod
    def update_description(self, entity_id: int, description: bytes, instead_of: bytes | None = None) -> bool:
        """Replace the description of an entity.

        Args:
            entity_id: The entity.
            description: What it is to be.
            instead_of: What it has to be until now; None: whatever it is.

        Returns:
            False: somebody else has changed it by now, or begun to delete the entity, and nothing was done.
        """

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

    def switch_moves(self, moves: Sequence[MoveRow]) -> None:
        """Say that all of these fragments are in the other store, if each move is recorded as it was begun.

        Raises:
            NotAllowed: One of them was given up meanwhile; nothing was changed.
        """
        raise StoreFailed(f"This catalog is no place where several servers decide about moves ({len(moves)}).")

    def give_up_move(self, move: MoveRow) -> None:
        """Say that a fragment stays where it is: its move cannot be switched any more, only be cleared up.

        From then on it is recorded the other way round, ``to_store`` to ``from_store``, since what is left to do is
        what is left after a move in that direction. A move that is not recorded as given is no error.
        """
        raise StoreFailed(f"This catalog is no place where several servers decide about moves ({move}).")

    def end_move(self, move: MoveRow) -> None:
        """Forget a move: only one store has anything of the fragment. One that is not recorded is no error."""
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
    def change_rules(self, namespace: str, change: RulesChange) -> tuple[AccessRule, ...]:
        """Make the access rules of a namespace what ``change`` makes of them, and return them.

        No other change of these rules comes in between, not even by another server. An exception of ``change`` is
        passed on, and the catalog is as before.

        Raises:
            EntityNotFound: The catalog holds no namespace of this name.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; never raises; closing twice is allowed."""


def new_namespace(name: str, entropy: Entropy) -> NamespaceRow:
    """Return a namespace with the default rule under two fresh keys (base64 of 32 random bytes each)."""
    primary, secondary = (base64.b64encode(entropy.token(32)).decode() for _ in range(2))
    rule = AccessRule(name=DEFAULT_RULE_NAME, primary_key=primary, secondary_key=secondary, rights=int(ALL_RIGHTS))
    return NamespaceRow(name.lower(), (rule,))


def given_up() -> NotAllowed:
    """The error for a move that another server has given up."""
    return NotAllowed("Another server has given the move up, because it got the store that the fragment is in.")


def exists_already(path: str) -> EntityAlreadyExists:
    """The error for a path that is taken."""
    return EntityAlreadyExists(f"The entity '{path}' exists already. Choose another name, or use what exists.")


def is_gone(path: str) -> EntityNotFound:
    """The error for an entity whose reason to be there is gone."""
    return EntityNotFound(f"'{path}' is a part of an entity that was deleted.")


def unknown_namespace(name: str) -> EntityNotFound:
    """The error for a namespace that the catalog does not hold."""
    return EntityNotFound(f"There is no namespace '{name}'.")


def unknown_entity(entity_id: int) -> StoreFailed:
    """The error for an entity that the catalog does not hold."""
    return StoreFailed(f"The catalog holds no entity {entity_id}.")
