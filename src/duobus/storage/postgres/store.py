"""PostgresStore: a messaging store in a schema of a PostgreSQL database, durable with every commit.

One session writes. A session lock of the server keeps a second owner out, as ``flock`` does for a file; and should that
be lost, with the session or with the server, every transaction demands the generation and the revision that it knows of
(``advance`` in ``schema.py``). Two more sessions, for other threads, read ahead and vacuum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from duobus.errors import StoreFailed, StoreTooNew
from duobus.storage.catalog_identity import NOBODYS
from duobus.storage.catalog_records import Kept, handed_over
from duobus.storage.checksums import numbers_sum
from duobus.storage.commit_checks import check_batch, check_run_owner
from duobus.storage.creation import Asked, Creation
from duobus.storage.interface import (
    COUNT_BITS,
    COUNT_MAX,
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
    columns_of,
)
from duobus.storage.memory import copy_of_fragment, copy_of_source, find_fragment, fragment_with_sources
from duobus.storage.postgres import commit_call as postgres_call
from duobus.storage.postgres import rows as table_rows
from duobus.storage.postgres import schema as postgres_schema
from duobus.storage.postgres import verification as postgres_faults
from duobus.storage.postgres.address import PostgresAddress
from duobus.storage.postgres.reader import (
    READ_STATES,
    States,
    belonging_of,
    meta_of,
    read,
    read_ids,
    records_in,
    verified,
)
from duobus.storage.postgres.session import VACUUM_MS_MAX, PostgresSession, SpareConnection, failure
from duobus.storage.postgres.setup import open_session, prepare
from duobus.storage.sqlite.shared_bodies import body_key_of, parted, topic_keys_of

#: Rows that one transaction of ``drop_entity`` deletes.
_DROP_SLICE: Final = 20_000
#: Rows removed after which the table is vacuumed: 50 MB of messages of 1 KiB, so that room is used again at once.
_VACUUM_ROWS: Final = 50_000


class PostgresStore(MessagingStore):
    """One messaging store in one schema.

    After any StoreFailed the sessions are closed at once: a store that has failed is dead until it has been reopened
    and recovered.

    Args:
        place: The database, with a schema.
        store_id: The catalog's id of this store; a schema with another one is refused.
        must_exist: The store has existed before: a schema without it is StoreFailed. From the first successful
            ``open`` on this is so in any case.
        take_over: End the session of another owner instead of refusing to open. Only for those who know that it lost
            the store.
    """

    columns_least = 1024
    #: See ``sqlite.checkpoint.Checkpointed``.
    any_thread = False

    def __init__(
        self, place: PostgresAddress, store_id: int, *, must_exist: bool = False, take_over: bool = False
    ) -> None:
        self._place = place
        self._store_id = store_id
        self._must_exist = must_exist
        self._take_over = take_over
        self._link: PostgresSession | None = None
        self._last_pid = 0
        self._failure = "the store is not open"
        #: For other threads: one reads ahead, and one vacuums, which can take long.
        self._ahead = SpareConnection(self._make_spare)
        self._vacuum = SpareConnection(self._make_spare)
        self._meta = table_rows.PostgresMeta(store_id)
        self._belonging = NOBODYS
        #: Generation and commit that were acknowledged last; a server that lacks them has lost data.
        self._acknowledged = (0, 0)
        self._fragments: dict[int, FragmentRow] = {}
        self._sources: dict[int, SourceRow] = {}
        #: Of topics: see ``shared_bodies.topic_keys_of``, and what their copies take up.
        self._homes: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._quarantine: dict[int, str] = {}
        self._states = States()
        self._removed = 0
        #: Transactions committed since the object was made; lets a checkpoint thread see whether there is work.
        self.commits = 0

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        return self._place.url

    def open(self) -> StoreContents:
        """Open or create the schema, keep others out, verify and return the rows of fragments and sources."""
        if self._link is not None:
            raise StoreFailed(f"{self.place}: the store is open already")
        try:
            self._link = link = open_session(
                self._place, self._store_id, last_pid=self._last_pid, take_over=self._take_over
            )
            self._last_pid = link.pid
            prepare(link, self._place, self._store_id, must_exist=self._must_exist)
            contents = self._read(link)
        except (StoreFailed, StoreTooNew) as error:
            self._abandon(str(error))
            raise
        except (psycopg.Error, OSError) as error:
            found = failure(self.place, "open the store", error)
            self._abandon(str(found))
            raise found from error
        self._must_exist = True
        for spare in (self._ahead, self._vacuum):
            spare.begin()
        return contents

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """Raise generation and epochs and delete ambiguous runs, in one transaction."""
        runs = list(deletions)
        with self._operation("begin a generation"):
            for run in runs:
                check_run_owner(self._store_id, run.store_id)
        spans = [(run.source_key, run.first_count, run.last_count) for run in runs]
        removed, of_copies = parted(spans, self._homes)
        counted = counters or {}
        texts = [table_rows.forget_ids(*span) for span in spans]
        rows = [(self._sources[key], value) for key, value in counted.items()]
        changed = [(row.source_key, row.next_count, row.highest_delivered, value) for row, value in rows]
        texts += table_rows.write_sources(changed, self._sources)
        raised = [table_rows.fragment_values(row, row.epoch + 1) for row in self._fragments.values()]
        if raised:
            keys, numbers, sums = (table_rows.integers(row[column] for row in raised) for column in (0, 3, 4))
            texts.append(
                "UPDATE fragments f SET epoch = n.epoch, row_sum = n.row_sum FROM"
                f" unnest({keys}::int8[], {numbers}::int8[], {sums}::int8[]) AS n(fragment_key, epoch, row_sum)"
                " WHERE f.fragment_key = n.fragment_key"
            )
        change = f"-{table_rows.removal(removed)}-{table_rows.copy_removal(of_copies)}"
        self._transaction("begin a generation", texts, change, is_telling=True, generation=self._meta.generation + 1)
        for fragment in self._fragments.values():
            fragment.epoch += 1
        for source_key, value in counted.items():
            self._sources[source_key].counters = value
        if of_copies:
            with self._operation("read the sizes of topics") as link:
                self._shared = dict(link.rows(postgres_schema.READ_TOTALS))
        self._acknowledged = (self._meta.generation, self._meta.last_commit_no)
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
            with self._operation("create a fragment"):
                new.demand_keys(self.place)
            texts = [table_rows.insert_source(source) for source in new.sources]
            for fragment in new.fragments:
                values = ",".join(map(str, table_rows.fragment_values(fragment, fragment.epoch)))
                texts.append(f"INSERT INTO fragments VALUES ({values})")
            next_keys = (new.next_fragment_key, new.next_source_key)
            self._transaction("create a fragment", texts, is_telling=True, next_keys=next_keys)
        self._fragments |= {row.fragment_key: row for row in new.fragments}
        self._sources |= {row.source_key: row for row in new.sources}
        self._homes |= topic_keys_of(new.changed)
        return new.answers()

    def find_fragment(self, entity_id: int, fragment_no: int) -> tuple[FragmentRow, list[SourceRow], int] | None:
        """Return a fragment with its sources; the rows of all of them are known."""
        self._demand_open()
        return fragment_with_sources(self._fragments, self._sources, self._shared, entity_id, fragment_no)

    def relabel_fragment(self, entity_id: int, fragment_no: int, becomes: int, epoch: int) -> None:
        """Give a fragment to another entity number, in a transaction of its own."""
        self._demand_open()
        row = find_fragment(self._fragments.values(), entity_id, fragment_no)
        if row is None:
            return
        new = FragmentRow(row.fragment_key, becomes, fragment_no, max(row.epoch, epoch))
        key, _, _, raised, check = table_rows.fragment_values(new, new.epoch)
        text = f"UPDATE fragments SET entity_id = {becomes}, epoch = {raised}, row_sum = {check}"
        self._transaction("set a fragment aside", [f"{text} WHERE fragment_key = {key}"], is_telling=True)
        self._fragments[key] = new

    def drop_entity(self, entity_id: int) -> None:
        """Delete an entity in slices; after a crash in between the caller's intent makes it call again."""
        self._demand_open()
        for row in [row for row in self._fragments.values() if row.entity_id == entity_id]:
            while self.drop_fragment(entity_id, row.fragment_no, _DROP_SLICE):
                pass

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """Delete copies before the bodies that they share, a slice in a transaction; the fragment's own rows come last.

        Returns:
            Whether there is more to do: up to ``limit`` messages are deleted.
        """
        self._demand_open()
        fragment = find_fragment(self._fragments.values(), entity_id, fragment_no)
        if fragment is None:
            return False
        sources = [key for key, row in self._sources.items() if row.fragment_key == fragment.fragment_key]
        room = limit
        for key in [*sources, *map(body_key_of, sources)]:
            before = self._meta.rows
            first, last = key << COUNT_BITS, key << COUNT_BITS | COUNT_MAX
            self._transaction("drop a fragment", (), f"-remove_slice({first},{last},{room})")
            room -= before - self._meta.rows
            if room <= 0:
                return True
        texts = [table_rows.forget_ids(key, 0, COUNT_MAX) for key in sources]
        keys = table_rows.integers(sources)
        texts += [
            f"DELETE FROM {table} = ANY({keys}::int8[])" for table in ("totals WHERE home", "sources WHERE source_key")
        ]
        texts.append(f"DELETE FROM fragments WHERE fragment_key = {fragment.fragment_key}")
        self._transaction("drop a fragment", texts, is_telling=True)
        for key in sources:
            del self._sources[key]
            self._shared.pop(key, None)
        del self._fragments[fragment.fragment_key]
        self._states.forget(sources)
        self._homes = topic_keys_of(self._sources)
        return False

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """Delete copies with what nobody else needs of their bodies, in one transaction; the sources come last."""
        self._demand_open()
        fragments = {key for key, row in self._fragments.items() if row.entity_id == entity_id}
        keys = [k for k, row in self._sources.items() if row.fragment_key in fragments and row.source_no == source_no]
        if not keys:
            return False
        room = limit
        removed: list[tuple[int, int, int]] = []
        with self._operation("drop a source") as link:
            for key in keys:
                bounds = key << COUNT_BITS, key << COUNT_BITS | COUNT_MAX
                found = link.rows(postgres_schema.READ_IDS, *bounds, max(0, room))
                room -= len(found)
                if found:
                    removed.append((key, 0, found[-1][0] & COUNT_MAX))
        texts = []
        if room > 0:
            texts = [table_rows.forget_ids(key, 0, COUNT_MAX) for key in keys]
        plain, of_copies = parted(removed, self._homes)
        change = f"-{table_rows.removal(plain)}-{table_rows.copy_removal(of_copies)}"
        # What the rows of copies say of their fragment is read while they are removed: their sources go after that.
        after = [f"DELETE FROM sources WHERE source_key = ANY({table_rows.integers(keys)}::int8[])"] if room > 0 else []
        self._transaction("drop a source", texts, change, is_telling=True, after=after)
        with self._operation("read the sizes of topics") as link:
            self._shared = dict(link.rows(postgres_schema.READ_TOTALS))
        for key in keys if room > 0 else ():
            del self._sources[key]
            self._homes.pop(key, None)
        self._states.forget(keys if room > 0 else ())
        return room <= 0

    def commit(self, batch: CommitBatch) -> None:
        """Write ``batch`` in one transaction, and in two round trips at most; nearly all is ready before it begins."""
        self._demand_open()
        try:
            check_batch(batch, self._meta.last_commit_no, self._fragments, self._sources)
        except StoreFailed as error:
            self._abandon(str(error))
            raise
        self._states.note(batch.puts, batch.changes)
        if postgres_call.is_plain(batch, self._homes):
            self._call(batch)
        else:
            self._write(batch)
        self._acknowledged = (self._meta.generation, batch.commit_no)
        for source_key, next_count, highest_delivered, counters in batch.sources:
            source = self._sources[source_key]
            source.next_count, source.highest_delivered, source.counters = next_count, highest_delivered, counters

    def _call(self, batch: CommitBatch) -> None:
        with self._operation("commit") as link:
            old = self._meta
            meta = old.advanced(last_commit_no=batch.commit_no, broker_ms=max(old.broker_ms, batch.broker_ms))
            meta.rows = link.call(postgres_call.NAME, postgres_call.values(batch, self._sources, old, meta))
            self._follow(meta, sum(len(put.payloads) for put in batch.puts))

    def _write(self, batch: CommitBatch) -> None:
        new = table_rows.NewRows(self._homes)
        new.add(batch.puts)
        removed, of_copies = parted(batch.removed, self._homes)
        texts = []
        if new.sizes:
            sizes = new.sizes
            texts.append(f"SELECT add_totals({table_rows.integers(sizes)},{table_rows.integers(sizes.values())})")
        texts += table_rows.statements(batch, self._sources)
        if batch.epochs:
            texts.append(table_rows.epochs(batch.epochs))
        change = str(new.number)
        if removed:
            change += f"-{table_rows.removal(removed)}"
        if of_copies:
            change += f"-{table_rows.copy_removal(of_copies)}"
        homes = {self._homes[row[0]] for row in of_copies} | new.sizes.keys()
        after = (
            [f"SELECT home, size FROM totals WHERE home = ANY({table_rows.integers(homes)}::int8[])"] if homes else []
        )
        results = self._transaction(
            "commit",
            texts,
            change,
            new,
            after=after,
            last_commit_no=batch.commit_no,
            broker_ms=max(self._meta.broker_ms, batch.broker_ms),
        )
        if homes:
            found = results[-2]
            for row in range(found.ntuples):
                home, size = (int(found.get_value(row, column) or b"0") for column in (0, 1))
                if self._shared.get(home, 0) != size:
                    batch.shared[home] = self._shared[home] = size

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return verified messages by count."""
        return self._page(source_key, None, first_count, limit)

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return verified messages of one state, found by the partial index."""
        return self._page(source_key, state, first_count, limit)

    def _page(self, source_key: int, state: int | None, first_count: int, limit: int) -> list[StoredMessage]:
        """Messages of one state or (None) of all; no query where there can be none."""
        if not self._states.may_have(source_key, state or 0):
            self._demand_open()
            return []
        with self._operation("read messages") as link:
            return read(link, self._quarantine, self._homes, source_key, state, first_count, limit)

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """Return which states of which sources may have rows, without a query."""
        self._demand_open()
        return self._states.among(states)

    def load_columns(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """Read in a session of its own, while commits go on."""
        if source_key in self._homes:
            return []

        def page(link: PostgresSession) -> list[StoredMessage]:
            # Verified here already; what is damaged is left to ``load``, which notes it.
            return read(link, {}, {}, source_key, None, first_count, limit)

        return columns_of(first_count, self._ahead.use(page) or ())

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """Return verified blocks of a duplicate history."""
        with self._operation("read a duplicate history") as link:
            return read_ids(link, self._quarantine, source_key, first_count, limit)

    def quarantined(self) -> list[tuple[int, int, str]]:
        """Return the bad rows met since ``open``; they stay in the table until they are removed."""
        return [(key >> COUNT_BITS, key & COUNT_MAX, fault) for key, fault in self._quarantine.items() if key >= 0]

    def verify(self) -> list[str]:
        """Read everything and return what is wrong, in words; empty when all is well."""
        with self._operation("verify the store") as link:
            return postgres_faults.faults(link, self._meta.rows, self._homes)

    def usage(self) -> StoreUsage:
        """Return rows (counted in every commit) and bytes of the tables; what the server has left it does not tell."""
        with self._operation("look at the tables") as link:
            ((size,),) = link.rows(postgres_schema.READ_SIZE)
        return StoreUsage(self._meta.rows, size, None)

    def checkpoint(self) -> None:
        """Do nothing: the server keeps its log by itself."""
        self._demand_open()

    def make_room(self, _length: int) -> bool:
        """Do nothing: the server lays its log out by itself."""
        return False

    def checkpoint_aside(self) -> tuple[int, int]:
        """Vacuum when enough is gone, in a session of its own; called by another thread (see ``checkpoint.py``).

        Returns:
            (0, 0): there is no log here that somebody would have to cut.
        """
        if self._removed >= _VACUUM_ROWS:
            self._removed = 0
            text = "VACUUM (SKIP_LOCKED, TRUNCATE off, PROCESS_TOAST on) messages"
            self._vacuum.use(lambda link: link.run(text, silence_ms=VACUUM_MS_MAX))
        return 0, 0

    def probe(self) -> None:
        """Count the probe in the store's own row."""
        self._transaction("probe", ())

    def records(self) -> Mapping[str, Kept]:
        """Return what the schema keeps of its catalog's rows."""
        with self._operation("read what is kept of the catalog") as link:
            return records_in(link, self.place)

    def keep_records(self) -> None:
        """Write what is noted for this store, as ``probe`` does nothing."""
        self._transaction("keep what the catalog has", (), is_telling=True)

    def close(self) -> None:
        """Give everything back."""
        self._vacuum.end(is_hasty=self._link is not None)
        self._abandon("the store is not open")

    def _read(self, link: PostgresSession) -> StoreContents:
        place = self.place
        link.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._meta = meta = meta_of(link.rows(postgres_schema.READ_META), place)
        if meta.store_id != self._store_id:
            raise StoreFailed(f"{place}: this is store {meta.store_id}, not {self._store_id}; addresses were mixed up")
        if (meta.generation, meta.last_commit_no) < self._acknowledged:
            raise StoreFailed(
                f"{place}: the server is at commit {meta.last_commit_no} of generation {meta.generation}, but commit"
                f" {self._acknowledged[1]} of generation {self._acknowledged[0]} was acknowledged: it is an old"
                " primary, or a standby that was promoted and did not have everything. Bring the right one back, or"
                " restart duobus to go on without what is missing"
            )
        self._belonging = belonging_of(link, place)
        rows = link.rows(postgres_schema.READ_FRAGMENTS)
        self._fragments = {row[0]: FragmentRow(*row) for row in verified(rows, place, "the row of a fragment")}
        rows = link.rows(postgres_schema.READ_SOURCES)
        self._sources = {row[0]: SourceRow(*row) for row in verified(rows, place, "the row of a source")}
        rows = link.rows(postgres_schema.READ_TOMBSTONES)
        tombstones = [Tombstone(*row) for row in verified(rows, place, "a tombstone")]
        self._homes = topic_keys_of(self._sources)
        self._shared = dict(link.rows(postgres_schema.READ_TOTALS))
        self._quarantine = {}
        self._states = States(link.rows(READ_STATES))
        link.run("COMMIT")
        return StoreContents(
            meta.generation,
            meta.last_commit_no,
            meta.broker_ms,
            [copy_of_fragment(row) for row in self._fragments.values()],
            [copy_of_source(row) for row in self._sources.values()],
            tombstones,
            {home: size for home, size in self._shared.items() if size},
            self._belonging,
        )

    def _transaction(
        self,
        doing: str,
        texts: Sequence[str],
        change: str = "0",
        new: table_rows.NewRows | None = None,
        *,
        is_telling: bool = False,
        after: Sequence[str] = (),
        generation: int | None = None,
        last_commit_no: int | None = None,
        broker_ms: int | None = None,
        next_keys: tuple[int, int] | None = None,
    ) -> list[Any]:
        """Run a transaction in one string; what it did is durable on return.

        Args:
            doing: What it is for, in an error.
            texts: Statements.
            change: By how much the number of rows changes, as an expression; removals are calls in it.
            new: Rows to add first.
            is_telling: It takes along what the store is to keep of the catalog.
            after: Statements after these.
            generation: New value of the store's own row, as are those that follow; None: as it was.
            last_commit_no: See ``generation``.
            broker_ms: See ``generation``.
            next_keys: The next fragment key and the next source key.
        """
        mark = self.mark if is_telling else None
        told = mark.told(self._belonging, is_prepared=self.is_prepared) if mark is not None else None
        if told is not None:
            write = postgres_schema.WRITE_BELONGING.format(*told, numbers_sum(told))
            texts = [postgres_schema.CREATE_BELONGING, write, *texts]
        with (
            handed_over(mark.copies if mark is not None else None, self._store_id) as records,
            self._operation(doing) as link,
        ):
            if records and mark is not None:
                texts = [*table_rows.write_records(mark.revision, records), *texts]
            old = self._meta
            meta = old.advanced(generation, last_commit_no, broker_ms, next_keys)
            is_copying = new is not None and new.number > 0
            head = ["BEGIN", postgres_schema.COPY_MESSAGES] if is_copying else ["BEGIN"]
            # Not ``texts`` alone: the number of rows is the answer of one statement, wherever it stands.
            text = ";".join([*head, *texts, table_rows.advance(old, meta, change), *after, "COMMIT"])
            results = link.run(text, [new.pieces()] if new is not None and is_copying else ())
            meta.rows = int(results[-2 - len(after)].get_value(0, 0) or b"0")
            self._follow(meta, new.number if new is not None else 0)
            self._belonging = told or self._belonging
        return results

    def _follow(self, meta: table_rows.PostgresMeta, added: int) -> None:
        self._removed += max(0, self._meta.rows + added - meta.rows)
        self._meta = meta
        self.commits += 1

    def _make_spare(self) -> PostgresSession:
        return open_session(self._place, self._store_id, is_aside=True)

    def _demand_open(self) -> PostgresSession:
        if self._link is None:
            raise StoreFailed(self._failure)
        return self._link

    @contextmanager
    def _operation(self, doing: str) -> Iterator[PostgresSession]:
        """Lend the session; on any error close everything and let only StoreFailed out for the driver's errors."""
        link = self._demand_open()
        try:
            yield link
        except (psycopg.Error, OSError) as error:
            found = failure(self.place, doing, error)
            self._abandon(str(found))
            raise found from error
        except BaseException as error:
            # A fault of ours (or StoreFailed itself): a half-done transaction must not survive it.
            self._abandon(f"{self.place}: could not {doing}: {error}")
            raise

    def _abandon(self, why: str) -> None:
        """Close the sessions without writing anything, and remember why."""
        self._failure = why
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for spare in (self._ahead, self._vacuum):
            spare.end()
