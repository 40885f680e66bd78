"""A store in PostgreSQL that is used only while its lease lasts (I55)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from duobus.errors import StoreFailed
from duobus.storage.interface import CommitBatch, StoreContents, Tombstone
from duobus.storage.postgres.address import Place
from duobus.storage.postgres.store import PostgresStore


class LeasedStore(PostgresStore):
    """Refuses to begin what could end behind the lease; the generation in the database refuses the rest.

    Args:
        place, store_id, must_exist: As of PostgresStore.
        is_mine: Whether this server may act for the store now; asked in the store's thread.
    """

    def __init__(self, place: Place, store_id: int, *, must_exist: bool, is_mine: Callable[[], bool]) -> None:
        # Whoever had it before has lost its lease, though its session may last: it is ended.
        super().__init__(place, store_id, must_exist=must_exist, take_over=True)
        self._is_mine = is_mine

    def _demand(self) -> None:
        if not self._is_mine():
            raise StoreFailed("the lease of this store has ended; another server has it")

    def open(self) -> StoreContents:
        """See MessagingStore."""
        self._demand()
        return super().open()

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """See MessagingStore."""
        self._demand()
        return super().begin_generation(deletions, counters)

    def commit(self, batch: CommitBatch) -> None:
        """See MessagingStore."""
        self._demand()
        super().commit(batch)
