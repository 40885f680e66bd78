"""Mistakes of moves between servers, to be found: ``python -m simulation.campaign --world server-moves``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from duobus.broker.fragment_moves.copy import FragmentCopy
from duobus.cluster.moves.coordinator import ClusterMoves
from duobus.cluster.moves.entity_move import EntityMove
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import ACTIVE
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog_rows import CatalogContents
from duobus.storage.interface import StoredMessage


async def _nothing(*_arguments: Any) -> None:
    """Do nothing."""


@contextmanager
def served_from_the_old_place() -> Iterator[None]:
    """Who had the entity goes on with it: nothing is set aside, and nobody lets go of what is elsewhere."""

    def hold(self: EntityMove) -> None:
        self.is_held = True

    def elsewhere(_self: ClusterMoves, _contents: CatalogContents) -> list[Any]:
        return []

    with (
        mock.patch.object(EntityMove, "_hold", hold),
        mock.patch.object(EntityMove, "_set_aside", _nothing),
        mock.patch.object(ClusterMoves, "_elsewhere", elsewhere),
    ):
        yield


@contextmanager
def duplicate_let_through_after_a_move() -> Iterator[None]:
    """The message ids that duplicate detection remembers stay behind."""
    with mock.patch.object(FragmentCopy, "_copy_ids", _nothing):
        yield


@contextmanager
def lock_outlives_its_server() -> Iterator[None]:
    """What the last owner had handed out stays locked for whoever held it: nobody is left who could end that."""
    original = Fragment.recover

    def recover(self: Fragment, source_no: int, rows: Iterable[StoredMessage]) -> None:
        to = self.sources[source_no].highest_delivered
        free = [row for row in rows if row.state != ACTIVE or not (row.deliveries or row.count <= to)]
        original(self, source_no, free)

    with mock.patch.object(Fragment, "recover", recover):
        yield


@contextmanager
def nobody_gives_up() -> Iterator[None]:
    """Moves that their server has left are left by the next one, too: what was set aside is never served again."""
    with (
        mock.patch.object(MemoryCatalog, "give_up_move", return_value=None),
        mock.patch.object(ClusterMoves, "_bring_in", _nothing),
    ):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "served-from-the-old-place": served_from_the_old_place,
    "duplicate-let-through-after-a-move": duplicate_let_through_after_a_move,
    "lock-outlives-its-server": lock_outlives_its_server,
    "nobody-gives-up": nobody_gives_up,
}
