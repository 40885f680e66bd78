"""What an operator can do to the stores of servers that are stopped: take one without its lost log, set time back.

And have a catalog find a store in PostgreSQL at another address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import apsw

from duobus.errors import ConfigurationError, StoreFailed
from duobus.storage.backup.restore import fence_store
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import CatalogContents, StoreRow
from duobus.storage.interface import JOURNAL_VERSION
from duobus.storage.journal.mark import read_mark as read_journal_mark
from duobus.storage.journal.mark import remove_mark as remove_journal_mark
from duobus.storage.journal.replay import Position, missing_commits
from duobus.storage.journal.segments import Segments, remove_files
from duobus.storage.journal.store import bring_left_over
from duobus.storage.postgres.address import (
    PostgresAddress,
    catalog_place,
    driver_needed,
    is_postgres,
    leases_schema,
    parse,
)
from duobus.storage.sqlite import rows
from duobus.storage.sqlite.file import (
    DRIVER_ERRORS,
    StoreFile,
    StoreOptions,
    check_format,
    close,
    connect,
    store_failed,
)
from duobus.storage.sqlite.log_watch import demand_log, put_aside, read_mark, remove_mark


class StoreTime(NamedTuple):
    """A store, and the latest broker time that it has recorded."""

    store: int
    broker_ms: int


@contextmanager
def _stores(data: Path) -> Iterator[list[StoreRow]]:
    """The stores of a data folder that no server uses, which holding its catalog makes sure of."""
    if not (data / "catalog.db").exists():
        raise ConfigurationError(f"{data} is no data folder of duobus: it has no catalog.db.")
    catalog = SqliteCatalog(data / "catalog.db")
    try:
        yield list(catalog.read().stores)
    finally:
        catalog.close()


@contextmanager
def _opened(path: Path, *, has_journal: bool = False) -> Iterator[apsw.Connection]:
    file = StoreFile(str(path), is_virtual=False)
    db: apsw.Connection | None = None
    try:
        file.prepare(must_exist=True)
        db = connect(str(path), StoreOptions())
        check_format(db, str(path), must_exist=True, has_journal=has_journal)
        yield db
    except DRIVER_ERRORS as error:
        raise store_failed(str(path), "be changed", error) from error
    finally:
        close(db)
        file.release()


def accept_loss(data: Path, store_id: int) -> None:
    """Take a store as it is, without what is gone.

    Counts that it may have given out since are not given out again (I7).

    Raises:
        ConfigurationError: There is no such store, or nothing is missing.
        StoreFailed: A server uses it, or what is left is damaged.
    """
    with _stores(data) as found:
        files = [row for row in found if not is_postgres(row.path)]
        paths = [data / row.path for row in files if row.store_id == store_id]
        if not paths:
            known = ", ".join(str(row.store_id) for row in files)
            raise ConfigurationError(f"There is no messaging store {store_id} in a file of {data}; there are {known}.")
        path = paths[0].resolve()
        is_whole = False
        try:
            demand_log(str(path))
        except StoreFailed:
            # What stands there is no log of this store, or the rest of one.
            put_aside(f"{path}-wal")
        else:
            is_whole = _is_whole(path, store_id) and _has_whole_journal(path)
        if is_whole:
            raise ConfigurationError(f"Messaging store {store_id} lacks nothing: start the server.")
        faults = _faults(path)
        if faults:
            raise StoreFailed(
                f"{path}: what is left is damaged ({faults}). Give it up: duobus store replace {store_id}"
            )
        # The journal goes first: beside a file that has been fenced, its commits would be another life's.
        remove_files(str(path))
        remove_journal_mark(str(path))
        fence_store(path)
        remove_mark(str(path))


def _is_whole(path: Path, store_id: int) -> bool:
    """Whether nothing is missing; a log that would only make it worse gets another name."""
    found, alone = _meta_of(path, is_with_log=True), _meta_of(path, is_with_log=False)
    mark = read_mark(str(path))
    is_own = found is not None and found.store_id == store_id
    steps = found.steps if found is not None and is_own else -1
    if is_own and (mark is None or steps >= mark.steps):
        return True
    # Another store's, or one that the file has left behind: some of its pages would go over newer ones.
    if alone is not None and alone.store_id == store_id and steps < alone.steps:
        put_aside(f"{path}-wal")
    return False


def _has_whole_journal(path: Path) -> bool:
    """Whether a file that needs its journal has all of it."""
    with _opened(path, has_journal=True) as db:
        if int(db.pragma("user_version")) != JOURNAL_VERSION:
            return True
        meta = rows.read_meta(db, str(path))
    position = Position(meta.store_id, meta.generation, meta.last_commit_no, read_journal_mark(str(path)))
    try:
        found = Segments.read(str(path))
        missing_commits(str(path), found, position)
    except StoreFailed:
        return False
    return bool(found)


def _meta_of(path: Path, *, is_with_log: bool) -> rows.SqliteMeta | None:
    """What a file says of itself, with its log or without; None when that cannot be read."""
    file = StoreFile(str(path), is_virtual=False)
    db: apsw.Connection | None = None
    try:
        file.prepare(must_exist=True)
        with suppress(apsw.Error, StoreFailed):
            if is_with_log:
                db = connect(str(path), StoreOptions())
            else:
                flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
                db = apsw.Connection(f"{path.as_uri()}?immutable=1", flags)
            return rows.read_meta(db, str(path), int(db.pragma("user_version")))
        return None
    finally:
        close(db)
        file.release()


def _faults(path: Path) -> str:
    """What is wrong with a file and its log, as far as SQLite can tell."""
    try:
        with _opened(path, has_journal=True) as db:
            found = [str(fault) for (fault,) in db.execute("PRAGMA quick_check(3)")]
    except StoreFailed as error:
        if isinstance(error.__cause__, apsw.CorruptError):
            return str(error.__cause__)
        raise
    return "" if found == ["ok"] else found[0]


def write_back(data: Path) -> dict[int, bool]:
    """Have the file of every store hold what its journal holds, and remove the journals; earlier versions read that.

    Returns:
        By the number of each store in a file: whether it had a journal.

    Raises:
        StoreFailed: A server uses a store, or its journal is damaged.
    """
    with _stores(data) as found:
        written: dict[int, bool] = {}
        for row in found:
            if not is_postgres(row.path):
                path = data / row.path
                demand_log(str(path.resolve()))
                written[row.store_id] = bring_left_over(path, row.store_id)
        return written


def recorded_times(data: Path, places: Sequence[PostgresAddress] = ()) -> list[StoreTime]:
    """Return the latest broker time that each store has recorded; ``places``: addresses that have passwords."""
    return _times(data, places, None)


def set_times_back(data: Path, now_ms: int, places: Sequence[PostgresAddress] = ()) -> list[StoreTime]:
    """Have broker time begin at ``now_ms`` in each store that recorded a later one; return what they had.

    Messages stay as they are: what was enqueued while time was ahead keeps that time, and expires that much later.
    """
    return _times(data, places, now_ms)


def _times(data: Path, places: Sequence[PostgresAddress], now_ms: int | None) -> list[StoreTime]:
    with _stores(data) as found:
        if now_ms is not None:
            # One that cannot be reached is met before any is changed: the latest time of all is what counts.
            for row in found:
                if is_postgres(row.path):
                    _set_postgres_time(row, places, None)
        return [
            StoreTime(
                row.store_id,
                _set_postgres_time(row, places, now_ms)
                if is_postgres(row.path)
                else _set_time(data / row.path, row.store_id, now_ms),
            )
            for row in found
        ]


def shared_times(url: str, now_ms: int | None = None, places: Sequence[PostgresAddress] = ()) -> list[StoreTime]:
    """Return what the stores of servers that share a catalog have recorded, and set later times back to ``now_ms``.

    Args:
        url: Of the catalog.
        now_ms: None: only look.
        places: Addresses that have passwords.

    Raises:
        ConfigurationError: There is no such catalog, or a server is running.
        StoreFailed: A database cannot be reached, or somebody has a store open. The command can be given again.
    """
    with driver_needed():
        from duobus.storage.offline.postgres_probe import forget_times, running_servers
    place = catalog_place(url)
    running = running_servers(place)
    if running is None:
        raise ConfigurationError(f"There is no catalog of joined servers at {place.url}.")
    if running:
        raise ConfigurationError(
            f"{', '.join(running)} is running, or was killed a moment ago. Stop all servers of this catalog first."
        )
    with closing(shared_catalog(url)) as catalog:
        contents = catalog.read()
    known = (place, *places)
    found = [StoreTime(row.store_id, _set_postgres_time(row, known, None)) for row in contents.stores]
    if now_ms is not None:
        # First what the tables of leases would have a server go on at.
        for table in _lease_places(place, contents, known):
            forget_times(table)
        for row in contents.stores:
            _set_postgres_time(row, known, now_ms)
    return found


def _lease_places(
    catalog: PostgresAddress, contents: CatalogContents, places: Sequence[PostgresAddress]
) -> list[PostgresAddress]:
    """Where the tables of leases are: beside the catalog, and in each other database with stores."""
    homes = {place.server: place for place in (_given(row, places) for row in contents.stores)}
    homes.pop(catalog.server, None)
    return [catalog, *(place.in_schema(leases_schema(contents.identity)) for place in homes.values())]


def _given(row: StoreRow, places: Sequence[PostgresAddress]) -> PostgresAddress:
    """The address of a store, with the password that it was given with."""
    place = parse(row.path)
    return next((one for one in places if one.server == place.server), place)


def _set_postgres_time(row: StoreRow, places: Sequence[PostgresAddress], now_ms: int | None) -> int:
    with driver_needed():
        from duobus.storage.offline.postgres_probe import set_time
    return set_time(_given(row, places).in_schema(parse(row.path).schema or ""), row.store_id, now_ms)


def _set_time(path: Path, store_id: int, now_ms: int | None) -> int:
    demand_log(str(path.resolve()))
    bring_left_over(path, store_id)
    with _opened(path) as db:
        version = int(db.pragma("user_version"))
        meta = rows.read_meta(db, str(path), version)
        if now_ms is not None and meta.broker_ms > now_ms:
            with db:
                if not rows.update_meta(db, meta, meta._replace(broker_ms=now_ms)):
                    raise StoreFailed(f"{path}: its own row could not be changed")
        return meta.broker_ms


def shared_catalog(url: str) -> Catalog:
    """The catalog that joined servers share."""
    from duobus.storage.catalog.postgres import PostgresCatalog

    return PostgresCatalog(catalog_place(url))


def change_address(catalog: Catalog, store_id: int, address: str) -> tuple[str, str]:
    """Have the catalog find a store at another address, where it is already; returns both, without secrets.

    Raises:
        ConfigurationError: There is no such store in PostgreSQL, or it is not at that address.
        StoreFailed: The catalog cannot be changed, or the database not be reached.
    """
    with driver_needed():
        from duobus.storage.offline.postgres_probe import held_by
    place = parse(address)
    contents = catalog.read()
    row = next((row for row in contents.stores if row.store_id == store_id), None)
    if row is None or not is_postgres(row.path):
        known = ", ".join(str(row.store_id) for row in contents.stores if is_postgres(row.path))
        raise ConfigurationError(f"There is no messaging store {store_id} in PostgreSQL; there are: {known or 'none'}.")
    place = place.in_schema(place.schema or parse(row.path).schema or "")
    if store_id not in held_by(place, [row], contents.identity):
        raise ConfigurationError(
            f"Messaging store {store_id} of this catalog is not at {place.url}: there is nothing, or another store, or "
            "that of another catalog. Nothing was changed."
        )
    if place.url != row.path:
        catalog.add_store(store_id, place.url)
    return row.path, place.url
