"""A messaging store that fails or stalls when it is told to: drills for those who run a server (requirements PE4, IN1).

Only a server that was started for drills has one around each of its stores. What it does to its callers is what a disk
does that is gone or hangs: a failing store raises, a stalling one does not come back before it is healed, having
done what it was asked for, so that the outcome of a commit is known to nobody meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from duobus.errors import StoreFailed
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_records import Kept
from duobus.storage.interface import (
    CommitBatch,
    FragmentRow,
    IdBlock,
    MessagingStore,
    PlainColumns,
    SourceRow,
    StoreContents,
    StoredMessage,
    StoreUsage,
    Tombstone,
)

T = TypeVar("T")

#: What a store under drill can be.
HEALTHY: Final = "healthy"
FAILING: Final = "failing"
STALLING: Final = "stalling"
MODES: Final = (HEALTHY, FAILING, STALLING)


class DrillStore(MessagingStore):
    """A store that an operator can make fail; see ``MessagingStore`` for what the methods do.

    ``set_mode`` and ``mode`` may be used by any thread.

    Args:
        inner: The real store.
    """

    def __init__(self, inner: MessagingStore) -> None:
        self.inner = inner
        self.columns_least = inner.columns_least
        self._mode = HEALTHY
        self._changed = threading.Condition()
        # Must be closed and opened again before it is used, as every store that has failed.
        self._has_failed = False

    @property
    def mark(self) -> CatalogMark | None:
        """The real store's."""
        return self.inner.mark

    @mark.setter
    def mark(self, mark: CatalogMark | None) -> None:
        self.inner.mark = mark

    @property
    def mode(self) -> str:
        """Which of MODES."""
        return self._mode

    def set_mode(self, mode: str) -> None:
        """Fail or stall every call from now on, or heal the store: who waits goes on."""
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _do(self, call: Callable[[], T]) -> T:
        if self._mode == FAILING:
            self._has_failed = True
        if self._has_failed:
            raise StoreFailed("this store fails in a drill (duobus store heal ends it)")
        result = call()
        with self._changed:
            self._changed.wait_for(lambda: self._mode != STALLING)
        return result

    def open(self) -> StoreContents:  # noqa: D102
        return self._do(self.inner.open)

    def close(self) -> None:  # noqa: D102
        self.inner.close()
        self._has_failed = False

    def begin_generation(  # noqa: D102
        self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None
    ) -> int:
        return self._do(lambda: self.inner.begin_generation(deletions, counters))

    def add_fragment(  # noqa: D102
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        return self._do(lambda: self.inner.add_fragment(entity_id, fragment_no, source_nos))

    def add_fragments(  # noqa: D102
        self, asked: Sequence[tuple[int, int, Sequence[int]]]
    ) -> list[tuple[FragmentRow, list[SourceRow]]]:
        return self._do(lambda: self.inner.add_fragments(asked))

    def drop_entity(self, entity_id: int) -> None:  # noqa: D102
        return self._do(lambda: self.inner.drop_entity(entity_id))

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:  # noqa: D102
        return self._do(lambda: self.inner.drop_fragment(entity_id, fragment_no, limit))

    def find_fragment(  # noqa: D102
        self, entity_id: int, fragment_no: int
    ) -> tuple[FragmentRow, list[SourceRow], int] | None:
        return self._do(lambda: self.inner.find_fragment(entity_id, fragment_no))

    def relabel_fragment(self, entity_id: int, fragment_no: int, becomes: int, epoch: int) -> None:  # noqa: D102
        return self._do(lambda: self.inner.relabel_fragment(entity_id, fragment_no, becomes, epoch))

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:  # noqa: D102
        return self._do(lambda: self.inner.drop_source(entity_id, source_no, limit))

    def commit(self, batch: CommitBatch) -> None:  # noqa: D102
        return self._do(lambda: self.inner.commit(batch))

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:  # noqa: D102
        return self._do(lambda: self.inner.load(source_key, first_count, limit))

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:  # noqa: D102
        return self._do(lambda: self.inner.scan(source_key, state, first_count, limit))

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:  # noqa: D102
        return self._do(lambda: self.inner.occupied(states))

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:  # noqa: D102
        return self._do(lambda: self.inner.load_ids(source_key, first_count, limit))

    def usage(self) -> StoreUsage:  # noqa: D102
        return self._do(lambda: self.inner.usage())

    def checkpoint(self) -> None:  # noqa: D102
        return self._do(lambda: self.inner.checkpoint())

    def probe(self) -> None:  # noqa: D102
        return self._do(lambda: self.inner.probe())

    def load_columns(self, source_key: int, first_count: int, limit: int) -> Sequence[PlainColumns]:  # noqa: D102
        try:
            return self._do(lambda: self.inner.load_columns(source_key, first_count, limit))
        except StoreFailed:
            # It never raises: ``load`` meets what is wrong.
            return ()

    def records(self) -> Mapping[str, Kept] | None:  # noqa: D102
        return self._do(self.inner.records)

    def keep_records(self) -> None:  # noqa: D102
        return self._do(self.inner.keep_records)

    def bring_over(self) -> None:  # noqa: D102
        return self._do(self.inner.bring_over)

    def quarantined(self) -> list[tuple[int, int, str]]:  # noqa: D102
        return self.inner.quarantined()
