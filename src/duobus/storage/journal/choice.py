"""Which kind of store is opened for a file: with a journal, if the operator wants one or one is there already."""

from __future__ import annotations

from pathlib import Path

from duobus.clock import Clock
from duobus.storage.journal.segments import files_of
from duobus.storage.journal.store import JournalStore
from duobus.storage.sqlite.store import SqliteStore


def store_in_file(
    path: Path, store_id: int, *, must_exist: bool, has_journal: bool = False, clock: Clock | None = None
) -> SqliteStore | JournalStore:
    """Return the store of a file, not open.

    A store that was not closed in order may have a journal although ``has_journal`` does not ask for one: that store
    has the journal for one more life.
    """
    if has_journal or files_of(str(path.resolve())):
        return JournalStore(str(path), store_id, must_exist=must_exist, clock=clock)
    return SqliteStore(str(path), store_id, must_exist=must_exist)


def bring_left_over(path: Path, store_id: int) -> None:
    """Have the file of a store that nobody uses hold what its journal holds, if there is one.

    Raises:
        StoreFailed: The store cannot be opened.
    """
    if files_of(str(path.resolve())):
        store = JournalStore(str(path), store_id, must_exist=True, brings_over=False)
        try:
            store.open()
        finally:
            store.close()
