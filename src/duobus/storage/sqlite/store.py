"""SqliteStore: a messaging store in one SQLite file, durable with every commit.

The writing half of the work is here; ``database.py`` opens the file safely, ``rows.py`` reads and verifies rows,
``schema.py`` holds the SQL. Speed comes from few long calls into the driver: 50 rows a statement, every statement
prepared once, ranges deleted as ranges.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import apsw

from duobus.errors import StoreFailed, StoreStale, StoreTooNew
from duobus.storage.catalog_identity import NOBODYS
from duobus.storage.catalog_records import Kept, handed_over
from duobus.storage.commit_checks import check_batch, check_run_owner
from duobus.storage.creation import Asked, Creation
from duobus.storage.interface import (
    COUNT_BITS,
    COUNT_MAX,
    FORMAT_VERSION,
    JOURNAL_VERSION,
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
from duobus.storage.memory import copy_of_fragment, copy_of_source, find_fragment
from duobus.storage.sqlite import copy_lookup, schema, shared_bodies
from duobus.storage.sqlite import duplicate_ids as history_rows
from duobus.storage.sqlite import log_space as log_room
from duobus.storage.sqlite import packed_refs as packed
from duobus.storage.sqlite import rows as table_rows
from duobus.storage.sqlite import shared_bodies as bodies
from duobus.storage.sqlite.file import (
    DAMAGED,
    DRIVER_ERRORS,
    StoreFile,
    StoreOptions,
    check_format,
    close,
    connect,
    empty_log,
    store_failed,
    use_log,
)
from duobus.storage.sqlite.log_watch import LogWatch
from duobus.storage.sqlite.read_ahead import Ahead
from duobus.storage.writers import PIECES_MIN, short_switch_interval

# Which states of which sources have rows, found in as many steps as there are such pairs.
#
# A recovery looks for each state in each source. For ten thousand entities that are a hundred thousand questions,
# nearly all of them about nothing; the index of exceptional rows answers them by leaps from one source to the next.


def states_of_sources(db: apsw.Connection, states: Iterable[int]) -> set[tuple[int, int]]:
    """Return (source key, state) of those that have a row, sound or not.

    A damaged row may be found where it does not belong; whoever reads it there verifies it.
    """
    found: set[tuple[int, int]] = set()
    for state in states:
        first_id = schema.LOWEST_ID
        while (row := db.execute(schema.NEXT_OF_STATE, (state, first_id)).fetchone()) is not None:
            source_key = row[0] >> COUNT_BITS
            found.add((source_key, state))
            first_id = (source_key + 1) << COUNT_BITS
            if first_id > schema.HIGHEST_ID:
                break
    return found


#: Rows that one transaction of ``drop_entity`` deletes: about 20 MiB of 1 KiB messages, 70 ms (measured).
_DROP_SLICE = 20_000


class SqliteStore(MessagingStore):
    """One messaging store in one file.

    After any StoreFailed the connections are closed at once: a store that has failed, an fsync above all,
    is dead until it has been reopened and recovered (L3).

    Args:
        path: The database file.
        store_id: The catalog's id of this store; a file with another id is refused.
        must_exist: The store has existed before: a missing or empty file is StoreFailed. From the first
            successful ``open`` on this is so in any case.
        options: See StoreOptions.
        takes_journal: Open a file with a journal beside it, too. The caller reads the journal.

    Attributes:
        has_journal: Whether the file says that there is a journal beside it.
    """

    columns_least = schema.STRETCH
    #: See ``checkpoint.Checkpointed``.
    any_thread = False

    def __init__(
        self,
        path: str,
        store_id: int,
        *,
        must_exist: bool = False,
        options: StoreOptions | None = None,
        takes_journal: bool = False,
    ) -> None:
        self._path = path
        self._takes_journal = takes_journal
        self.has_journal = False
        self._store_id = store_id
        self._must_exist = must_exist
        self._options = options or StoreOptions()
        self._file = StoreFile(path, is_virtual=self._options.vfs is not None)
        self._log: LogWatch | None = None
        # Where a VFS keeps the file there is no log to look at.
        if self._options.vfs is None:
            self._log = LogWatch(path, self._file.check_identity, is_marked=not self._options.unsafe_no_sync)
        self._db: apsw.Connection | None = None
        self._failure = "the store is not open"
        # Guards the second connection, of the checkpoint thread (and a third, to read ahead): the writer may close.
        self._aside_lock = threading.Lock()
        self._aside: apsw.Connection | None = None
        self._aside_failure: str | None = None
        # A third one.
        self._ahead = Ahead(path, self._options)
        self._meta = table_rows.SqliteMeta(store_id)
        self._fragments: dict[int, FragmentRow] = {}
        self._sources: dict[int, SourceRow] = {}
        #: Of topics: see ``shared_bodies.topic_keys_of``, what their copies take up, and those without rows.
        self._homes: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._packed = packed.PackedRefs()
        self._quarantine: dict[int, str] = {}
        self._belonging = NOBODYS
        #: Transactions committed since the object was made; lets a checkpoint thread see whether there is work.
        self.commits = 0

    def open(self) -> StoreContents:
        """Open or create the file, bring its log home, verify and return the rows of fragments and sources."""
        if self._db is not None:
            raise StoreFailed(f"{self._path}: the store is open already")
        try:
            self._file.prepare(must_exist=self._must_exist)
            if self._log is not None:
                self._log.demand(is_new=not self._must_exist)
                # SQLite keeps the log beside the file that a link leads to.
                log_room.cut(f"{os.path.realpath(self._path)}-wal")
            self._db = db = connect(self._path, self._options)
            contents = self._read(db)
            self._file.remove_index()
            if self._options.vfs is None:
                self._aside = connect(self._path, self._options)
            self._ahead.open()
            self._file.check_identity()
            if self._log is not None:
                self._log.begin(int(db.pragma("page_size")))
                db.set_wal_hook(self._log.see_pages)
        except (StoreFailed, StoreTooNew) as error:
            self._abandon(str(error))
            raise
        except DRIVER_ERRORS as error:
            failure = store_failed(self._path, "open the store", error)
            if self._log is not None and isinstance(error, DAMAGED):
                failure = self._log.doubted(failure)
            self._abandon(str(failure))
            raise failure from error
        self._must_exist = True
        return contents

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """Raise generation and epochs and delete ambiguous runs, in one transaction."""
        self._unpack()
        with self._telling_transaction("begin a generation") as db:
            deleted = 0
            copies = bodies.Changes(self._homes, self._shared, self._packed)
            for run in deletions:
                check_run_owner(self._store_id, run.store_id)
                span = (run.source_key, run.first_count, run.last_count)
                deleted += bodies.delete_run(db, copies, table_rows.ids(*span))
                history_rows.delete(db, *span)
            for fragment in self._fragments.values():
                table_rows.write_epoch(db, fragment, fragment.epoch + 1)
            table_rows.write_counters(db, self._sources, counters or {})
            shared, gone = copies.write(db)
            self._end_transaction(db, generation=self._meta.generation + 1, rows=self._meta.rows - deleted - gone)
        for fragment in self._fragments.values():
            fragment.epoch += 1
        for source_key, counted in (counters or {}).items():
            self._sources[source_key].counters = counted
        self._shared.update(shared)
        return self._meta.generation

    def add_fragment(
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """Create a fragment and those of its sources that are missing, in one transaction."""
        return self.add_fragments([(entity_id, fragment_no, source_nos)])[0]

    def add_fragments(self, asked: Sequence[Asked]) -> list[tuple[FragmentRow, list[SourceRow]]]:
        """Create fragments and those of their sources that are missing, in one transaction."""
        meta = self._meta
        new = Creation(self._fragments, self._sources, meta.next_fragment_key, meta.next_source_key, asked)
        if new.is_needed:
            with self._telling_transaction("create a fragment") as db:
                new.demand_keys(self._path)
                for fragment in new.fragments:
                    table_rows.insert_fragment(db, fragment)
                for source in new.sources:
                    table_rows.insert_source(db, source)
                self._end_transaction(db, next_fragment_key=new.next_fragment_key, next_source_key=new.next_source_key)
        self._fragments |= {row.fragment_key: row for row in new.fragments}
        self._sources |= {row.source_key: row for row in new.sources}
        self._homes |= bodies.topic_keys_of(new.changed)
        return new.answers()

    def drop_entity(self, entity_id: int) -> None:
        """Delete an entity in slices; after a crash in between the caller's intent makes it call again."""
        self._demand_open()
        for row in [row for row in self._fragments.values() if row.entity_id == entity_id]:
            while self.drop_fragment(entity_id, row.fragment_no, _DROP_SLICE):
                pass

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """Delete copies before the bodies that they share, in one transaction; the fragment's own rows come last."""
        self._unpack()
        fragment = find_fragment(self._fragments.values(), entity_id, fragment_no)
        if fragment is None:
            return False
        sources = [key for key, row in self._sources.items() if row.fragment_key == fragment.fragment_key]
        with self._telling_transaction("drop a fragment") as db:
            deleted = bodies.delete_sources(db, sources, limit)
            if deleted < limit:
                db.execute(schema.DELETE_FRAGMENT, (fragment.fragment_key,))
            self._end_transaction(db, rows=self._meta.rows - deleted, probes=self._meta.probes + 1)
        if deleted >= limit:
            return True
        for key in sources:
            del self._sources[key]
            self._shared.pop(key, None)
        del self._fragments[fragment.fragment_key]
        self._homes = bodies.topic_keys_of(self._sources)
        return False

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """Delete copies with what nobody else needs of their bodies, in one transaction; the sources come last."""
        fragments = {key for key, row in self._fragments.items() if row.entity_id == entity_id}
        keys = [k for k, row in self._sources.items() if row.fragment_key in fragments and row.source_no == source_no]
        if not keys:
            return False
        self._unpack()
        room = limit
        copies = bodies.Changes(self._homes, self._shared, self._packed)
        with self._telling_transaction("drop a source") as db:
            for key in keys:
                room -= copies.removed(bodies.delete_slice(db, table_rows.ids(key, 0, COUNT_MAX), max(0, room)))
            shared, gone = copies.write(db)
            if room > 0:
                for key in keys:
                    history_rows.delete(db, key, 0, COUNT_MAX)
                db.executemany(schema.DELETE_SOURCE, [(key,) for key in keys])
            self._end_transaction(db, rows=self._meta.rows - (limit - room) - gone, probes=self._meta.probes + 1)
        self._shared.update(shared)
        for key in keys if room > 0 else ():
            del self._sources[key]
            self._homes.pop(key, None)
        return room <= 0

    def commit(self, batch: CommitBatch) -> None:
        """Write ``batch`` in one transaction; nearly all values are bound and summed before it begins."""
        # As ``_operation`` does, but a context manager for each commit would cost 3 us.
        try:
            if len(batch.removed) < PIECES_MIN:
                self._commit(batch)
                return
            with short_switch_interval():
                self._commit(batch)
        except BaseException as error:
            failure = self._given_up("commit", error)
            if failure is error:
                raise
            raise failure from error

    def _commit(self, batch: CommitBatch) -> None:
        db = self._demand_open()
        try:
            check_batch(batch, self._meta.last_commit_no, self._fragments, self._sources)
        except StoreFailed as error:
            self._abandon(str(error))
            raise
        copies = bodies.Changes(self._homes, self._shared, self._packed) if self._homes else None
        puts = batch.puts if copies is None else copies.framed(batch.puts)
        removed, of_copies = bodies.parted(batch.removed, self._homes) if self._homes else (batch.removed, [])
        inserts = table_rows.put_values(puts) if puts else []
        at_once, is_kept = table_rows.rows_at_once(puts) if puts else (schema.ROWS_PER_STATEMENT, True)
        changes = table_rows.change_values(batch.changes) if batch.changes else []
        ranges, singles = table_rows.removals(removed) if removed else ([], [])
        sources = table_rows.source_values(batch.sources, self._sources)
        db.execute("BEGIN IMMEDIATE")
        if copies is not None:
            inserts.append((schema.INSERT_ORDINARY, copies.pack(batch.changes)))
        rows = self._meta.rows
        for statement, values in inserts:
            rows += table_rows.run(db, statement, values, rows=at_once, is_kept=is_kept)
        if changes:
            table_rows.run(db, schema.UPDATE_STATES, changes)
        for bounds in ranges:
            db.execute(schema.DELETE_RANGE, bounds)
            rows -= db.changes()
        if singles:
            rows -= table_rows.run(db, schema.DELETE_IDS, singles)
        if copies is not None:
            rows -= bodies.delete(db, copies, of_copies)
            batch.shared, gone = copies.write(db)
            rows -= gone
        table_rows.run(db, schema.UPDATE_SOURCES, sources)
        if batch.histories or batch.outdated or batch.tombstones or batch.forgotten:
            self._write_notes(db, batch)
        broker_ms = max(self._meta.broker_ms, batch.broker_ms)
        self._end_transaction(db, last_commit_no=batch.commit_no, broker_ms=broker_ms, rows=rows)
        for source_key, next_count, highest_delivered, counters in batch.sources:
            source = self._sources[source_key]
            source.next_count, source.highest_delivered, source.counters = next_count, highest_delivered, counters
        self._shared.update(batch.shared)

    @staticmethod
    def _write_notes(db: apsw.Connection, batch: CommitBatch) -> None:
        """Write what few commits have: ids for duplicate detection, and tombstones."""
        table_rows.run(db, schema.INSERT_HISTORIES, history_rows.values(batch.histories))
        for source_key, last_count in batch.outdated:
            history_rows.delete(db, source_key, 0, last_count)
        if batch.forgotten:
            db.executemany(schema.DELETE_TOMBSTONES, batch.forgotten)
        for tombstone in batch.tombstones:
            table_rows.insert_tombstone(db, tombstone)

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return verified messages by count; see ``bodies.read``."""
        self._unpack(source_key)
        with self._operation("read messages") as db:
            return bodies.read(db, self._quarantine, self._homes, source_key, None, first_count, limit)

    def load_columns(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """Read on a connection of its own, while commits go on; see ``columns.read``."""
        return [] if source_key in self._homes else self._ahead.read(source_key, first_count, limit)

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return verified messages of one state, found by the partial index."""
        with self._operation("read messages") as db:
            return bodies.read(db, self._quarantine, self._homes, source_key, state, first_count, limit)

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """Return which states of which sources have rows; see the top of this module."""
        with self._operation("look for messages") as db:
            return states_of_sources(db, states)

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """Return verified blocks of a duplicate history."""
        with self._operation("read a duplicate history") as db:
            return history_rows.load(db, self._quarantine, source_key, first_count, limit)

    def quarantined(self) -> list[tuple[int, int, str]]:
        """Return the bad rows met since ``open``, and each copy of a damaged body; they stay until they are removed."""
        return [(key >> COUNT_BITS, key & COUNT_MAX, fault) for key, fault in self._quarantine.items() if key >= 0]

    def verify(self) -> list[str]:
        """Read everything and return what is wrong, in words; empty when all is well. Takes as long as reading does.

        Finds what reading single ranges cannot: rows that have vanished, because a flipped bit in a key or in a
        page's pointers hides them.
        """
        self._unpack()
        with self._operation("verify the store") as db:
            found = table_rows.verify(db, self._meta.rows), history_rows.faults(db), packed.faults(db)
            return sum(found, shared_bodies.faults(db, self._homes))

    def usage(self) -> StoreUsage:
        """Return rows (counted in every commit, not by looking), bytes of the files and bytes free on the disk."""
        with self._operation("look at the files"):
            return StoreUsage(self._meta.rows + len(self._packed.where), *self._file.sizes())

    def checkpoint(self) -> None:
        """Copy the rest of the log home on the writer's own thread; the next commit starts the log afresh."""
        with self._operation("copy the log home") as db:
            if self._log is not None:
                self._log.demand_whole(self._meta.steps)
                self._log.copies(self._meta.steps)
            next(db.execute("PRAGMA wal_checkpoint(PASSIVE)"))

    def make_room(self, length: int) -> bool:
        """Lay the log out ahead of the commits, on the writer's own thread; see ``log_room.extend``."""
        with self._operation("make room in the log") as db:
            # What was cut off would have its length again, and zeros in it, be it needed or not.
            if self._log is not None:
                self._log.check(self._meta.steps)
                self._log.demand_whole(self._meta.steps)
            return log_room.extend(db.filename_wal, length)

    def checkpoint_aside(self) -> tuple[int, int]:
        """Copy the log home on a connection of its own while commits go on, and sync; called by another thread.

        SQLite itself syncs the database only at the end of a pass that has copied everything. Under load no pass beside
        the commits does, so that ``checkpoint`` would sync all that the passes before it have copied.

        Returns:
            Bytes in the log, and how many of them are still to be copied; (0, 0) when the store is not open.

        Raises:
            StoreFailed: The disk refused. The next call of any other method raises StoreFailed as well.
        """
        with self._aside_lock:
            if self._aside is None:
                return 0, 0
            try:
                steps = self._meta.steps
                if self._log is not None:
                    self._log.demand_whole(steps)
                    self._log.copies(steps)
                with self._file.sync_begun_ahead():
                    _, in_log, copied = next(self._aside.execute("PRAGMA wal_checkpoint(PASSIVE)"))
                page_size = int(self._aside.pragma("page_size"))
                if self._log is not None:
                    self._log.copied(in_log, steps)
                self._file.sync_copied()
                # What was committed during the pass is left, too. Both are -1 when another checkpoint was running.
                now_in_log = max(in_log, self._log.in_log) if self._log is not None and copied >= 0 else in_log
            except StoreFailed as error:
                self._aside_failure = str(error)
                raise
            except DRIVER_ERRORS as error:
                failure = store_failed(self._path, "copy the log home", error)
                self._aside_failure = str(failure)
                raise failure from error
            if self._ahead.is_forgetting_due():
                self._file.release_free_pages()
        return max(in_log, 0) * page_size, max(now_in_log - copied, 0) * page_size

    def probe(self) -> None:
        """Count the probe in the store's own row, and look, as all do, whether the file still is where it belongs.

        The count is there because SQLite neither writes nor syncs a row that is replaced by its like.
        """
        with self._transaction("probe") as db:
            self._end_transaction(db, probes=self._meta.probes + 1)

    def records(self) -> Mapping[str, Kept]:
        """Return what the file keeps of its catalog's rows."""
        with self._operation("read what is kept of the catalog") as db:
            return table_rows.read_records(db, self._path)

    def keep_records(self) -> None:
        """Write what is noted for this store; the count is there as in ``probe``."""
        with self._telling_transaction("keep what the catalog has") as db:
            self._end_transaction(db, probes=self._meta.probes + 1)

    def say_journal(self, *, is_there: bool) -> None:
        """Write down whether there is a journal beside the file, durable on return; see JOURNAL_VERSION."""
        if is_there == self.has_journal:
            return
        with self._transaction("note the journal") as db:
            db.execute(f"PRAGMA user_version={JOURNAL_VERSION if is_there else FORMAT_VERSION}")
            self._end_transaction(db, probes=self._meta.probes + 1)
        self.has_journal = is_there

    def rows_known(self) -> tuple[dict[int, FragmentRow], dict[int, SourceRow]]:
        """Return the caller's own copies of the rows of fragments and sources, by key."""
        fragments = {key: copy_of_fragment(row) for key, row in self._fragments.items()}
        return fragments, {key: copy_of_source(row) for key, row in self._sources.items()}

    @property
    def shared(self) -> Mapping[int, int]:
        """``StoreContents.shared`` as it is now."""
        return self._shared

    def copies_in(self, spans: list[tuple[int, int, int]]) -> list[copy_lookup.CopyFound]:
        """Return the copies in spans; see ``copy_lookup``."""
        with self._operation("look for copies") as db:
            return list(copy_lookup.copies_in(db, self._packed, spans))

    def bodies_of(self, keys: list[tuple[int, int]]) -> Mapping[tuple[int, int], tuple[int, int]]:
        """Return copies and bytes of bodies; see ``copy_lookup``."""
        with self._operation("look for copies") as db:
            return copy_lookup.bodies_of(db, self._packed, keys)

    def give_up(self, failure: str) -> None:
        """Close without writing anything; every call until ``open`` raises StoreFailed with these words."""
        self._abandon(failure)

    def close(self) -> None:
        """Empty the log if all is well, and give everything back."""
        with self._aside_lock:
            close(self._aside)
            self._aside = None
        self._ahead.close()
        if self._db is not None and self._aside_failure is None:
            # If that fails, nothing is lost: what is in the log is durable, and the next open brings it home.
            with suppress(apsw.Error, StoreFailed, OSError):
                if self._log is not None:
                    self._log.close(self._meta.steps)
                empty_log(self._db)
        self._abandon("the store is not open")

    def _read(self, db: apsw.Connection) -> StoreContents:
        if check_format(db, self._path, must_exist=self._must_exist, has_journal=self._takes_journal):
            use_log(db, self._options)
            self._demand_own(db)
            db.execute(schema.CREATE_HISTORIES)
            table_rows.bring_forward(db, self._path)
        else:
            use_log(db, self._options)
            self._create(db)
        empty_log(db)
        self.has_journal = int(db.pragma("user_version")) == JOURNAL_VERSION
        self._meta = meta = table_rows.read_meta(db, self._path)
        self._belonging = table_rows.read_belonging(db, self._path)
        self._fragments = {row.fragment_key: row for row in table_rows.read_fragments(db, self._path)}
        self._sources = {row.source_key: row for row in table_rows.read_sources(db, self._path)}
        self._homes = bodies.topic_keys_of(self._sources)
        self._shared = bodies.totals(db, self._homes, self._path)
        self._quarantine = {}
        self._packed = packed.read(db, self._quarantine, self._homes)
        return StoreContents(
            meta.generation,
            meta.last_commit_no,
            meta.broker_ms,
            [copy_of_fragment(row) for row in self._fragments.values()],
            [copy_of_source(row) for row in self._sources.values()],
            table_rows.read_tombstones(db, self._path),
            dict(self._shared),
            self._belonging,
        )

    def _demand_own(self, db: apsw.Connection) -> None:
        """Refuse what is another's, or older than what was committed, before its log gets into the file."""
        meta = table_rows.read_meta(db, self._path, int(db.pragma("user_version")))
        if meta.store_id != self._store_id:
            raise StoreFailed(f"{self._path}: this is store {meta.store_id}, not {self._store_id}; files were mixed up")
        if self._log is not None:
            self._log.demand_steps(meta.steps)

    def _create(self, db: apsw.Connection) -> None:
        # One transaction: a crash leaves an empty file or a whole store.
        with db:
            db.execute(schema.CREATE)
            db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
            table_rows.insert_meta(db, table_rows.SqliteMeta(self._store_id))

    def _unpack(self, source_key: int | None = None) -> None:
        """Give every copy a row of its own, for those who look for rows (of one source)."""
        self._demand_open()
        if self._packed.where and (source_key is None or source_key in self._homes):
            copies = bodies.Changes(self._homes, self._shared, self._packed)
            with self._transaction("unfold copies") as db:
                rows = self._meta.rows + bodies.unpack_all(db, copies)
                self._end_transaction(db, rows=rows, probes=self._meta.probes + 1)

    def _end_transaction(self, db: apsw.Connection, **numbers: int) -> None:
        """Write the store's own row, with these new numbers in it, and commit: the last step of every transaction.

        On return all is durable, in the file at our path.
        """
        meta = self._meta._replace(**numbers)
        if not table_rows.update_meta(db, self._meta, meta):
            raise StoreStale(f"{self._path}: another owner has taken the store over")
        if self._log is not None:
            self._log.check(self._meta.steps)
        db.execute("COMMIT")
        self._meta = meta
        self.commits += 1
        if self._log is not None:
            self._log.committed(meta.steps)

    def _demand_open(self) -> apsw.Connection:
        if self._aside_failure is not None:
            self._abandon(self._aside_failure)
        if self._db is None:
            raise StoreFailed(self._failure)
        return self._db

    @contextmanager
    def _operation(self, doing: str) -> Iterator[apsw.Connection]:
        """Lend the connection; on any error close everything and let only StoreFailed out for the driver's errors."""
        db = self._demand_open()
        try:
            yield db
        except BaseException as error:
            failure = self._given_up(doing, error)
            if failure is error:
                raise
            raise failure from error

    def _given_up(self, doing: str, error: BaseException) -> BaseException:
        """Close everything after an error; returns what to raise: the error itself, or StoreFailed for the driver's."""
        if isinstance(error, DRIVER_ERRORS):
            failure = store_failed(self._path, doing, error)
            self._abandon(str(failure))
            return failure
        if self._db is not None:
            # A fault of ours (or StoreFailed itself): a half-done transaction must not survive it.
            self._abandon(f"{self._path}: could not {doing}: {error}")
        return error

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[apsw.Connection]:
        """Run a transaction that ends with ``_end_transaction``; errors as in ``_operation``."""
        with self._operation(doing) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    @contextmanager
    def _telling_transaction(self, doing: str) -> Iterator[apsw.Connection]:
        """The same, and it takes along what the store is to keep of the catalog."""
        with self._operation(doing) as db:
            mark = self.mark
            told = mark.told(self._belonging, is_prepared=self.is_prepared) if mark is not None else None
            with handed_over(mark.copies if mark is not None else None, self._store_id) as records:
                db.execute("BEGIN IMMEDIATE")
                if told is not None:
                    table_rows.write_belonging(db, told)
                if records and mark is not None:
                    table_rows.write_records(db, mark.revision, records)
                yield db
            self._belonging = told or self._belonging

    def _abandon(self, failure: str) -> None:
        """Close both connections without writing anything, and remember why."""
        self._failure = failure
        with self._aside_lock:
            close(self._aside)
            self._aside = None
            self._aside_failure = None
        self._ahead.close()
        close(self._db)
        self._db = None
        if self._log is not None:
            self._log.end()
        self._file.release()
