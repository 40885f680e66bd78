"""JournalStore: a store in a SQLite file with a journal before it. A commit is one append and one sync (decision 0059).

    commit     ──record──sync──answer──record──sync──answer──          the thread that owns the store
    bring over ────────────────────── many commits, one transaction ── a thread of this store, up to a second later

What is gone by the time it would be brought over never reaches SQLite. Whatever reads SQLite, or changes other things
than messages, has all commits brought over first; large commits of messages that stay are written to SQLite at once.

The commits that wait are in memory, too, and in the journal until SQLite has synced them; opening a store replays the
journal. Of a file with a journal beside it, the format says so (``interface.JOURNAL_VERSION``), from before the first
record until a close in order has brought everything over and removed the journal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from duobus.clock import Clock, Entropy
from duobus.errors import StoreFailed
from duobus.storage.catalog_identity import CatalogMark
from duobus.storage.catalog_records import Kept
from duobus.storage.commit_checks import check_batch
from duobus.storage.creation import Asked
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
from duobus.storage.journal.backlog import BYTES_MAX, Backlog, LargeCommits, is_for_tables
from duobus.storage.journal.copy_sizes import CopySizes
from duobus.storage.journal.files import SYSTEM_FILES, JournalFiles
from duobus.storage.journal.mark import JournalMark, read_mark, remove_mark
from duobus.storage.journal.merge import merged
from duobus.storage.journal.replay import Position, missing_commits
from duobus.storage.journal.segments import FIRST_BYTES, SEGMENT_BYTES, Segments, files_of, remove_files
from duobus.storage.journal.writeback import WritebackThread
from duobus.storage.memory import copy_of_fragment, copy_of_source
from duobus.storage.sqlite.copy_lookup import CopyFound
from duobus.storage.sqlite.file import StoreOptions, store_failed
from duobus.storage.sqlite.shared_bodies import topic_keys_of
from duobus.storage.sqlite.store import SqliteStore

#: Segments of a journal at the most: 96 MiB. Behind a full journal commits wait.
SEGMENTS: Final = 6


class JournalStore(MessagingStore):
    """One messaging store in one SQLite file with a journal before it.

    After any StoreFailed, of whichever thread, everything is closed at once, as in ``SqliteStore`` (L3).

    Args:
        path, store_id, must_exist, options: As of ``SqliteStore``.
        salt: Draws the salts of segments.
        clock: Tells the age of commits.
        brings_over: Whether a thread brings commits over; without one, ``bring_over_due`` is the caller's to call.
        segment_bytes, first_bytes: Length of a segment, and of the first one.
        files: The disk of the journal; the one of a VFS, if the options name one.
    """

    columns_least = SqliteStore.columns_least
    #: Whoever uses SQLite's connection has ``_turn``; a commit that the journal takes does not need it.
    any_thread = True

    def __init__(
        self,
        path: str,
        store_id: int,
        *,
        must_exist: bool = False,
        options: StoreOptions | None = None,
        salt: Callable[[int], bytes] | None = None,
        clock: Clock | None = None,
        brings_over: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        first_bytes: int = FIRST_BYTES,
        files: JournalFiles = SYSTEM_FILES,
    ) -> None:
        self._files = files
        self._sqlite = SqliteStore(path, store_id, must_exist=must_exist, options=options, takes_journal=True)
        self._name = path
        # SQLite keeps its log beside the file that a link leads to, and so do we.
        self._path = os.path.realpath(path) if options is None or options.vfs is None else path
        self._store_id = store_id
        self._salt = salt or Entropy().token
        self._clock = clock or Clock()
        self._brings_over = brings_over
        self._lengths = segment_bytes, first_bytes
        #: Held by the thread that uses SQLite's connection for commits and reads.
        self._turn = threading.RLock()
        self._backlog = Backlog()
        self._large = LargeCommits()
        self._journal: Segments | None = None
        self._mark: JournalMark | None = None
        self._thread: WritebackThread | None = None
        self._failure: str | None = None
        self._generation = 0
        # How far the journal has come, which is further than SQLite.
        self._commit_no = 0
        self._fragments: dict[int, FragmentRow] = {}
        self._sources: dict[int, SourceRow] = {}
        # See ``shared_bodies.topic_keys_of``.
        self._homes: Mapping[int, int] = {}
        self._sizes = CopySizes({}, {}, self)

    # -- opening and closing ------------------------------------------------------------------------------------

    def open(self) -> StoreContents:
        """Open SQLite's file, bring over what the journal has and the file lacks, and begin the journal anew."""
        if self._journal is not None and self._failure is not None:
            self.close()
        # Whoever sees to the log may look at any time, and has to find the store open or not.
        with self._turn:
            return self._open()

    def _open(self) -> StoreContents:
        contents = self._sqlite.open()
        try:
            contents = self._replayed(contents)
            self._begin_journal()
        except (StoreFailed, OSError) as error:
            failure = error if isinstance(error, StoreFailed) else store_failed(self._name, "open the journal", error)
            self._close_files()
            self._sqlite.give_up(str(failure))
            raise failure from error
        self._failure = None
        self._generation, self._commit_no = contents.generation, contents.last_commit_no
        self._learn_rows()
        if self._brings_over:
            self._thread = WritebackThread(self.bring_over_due)
            self._thread.start()
        return contents

    def _replayed(self, contents: StoreContents) -> StoreContents:
        if not self._sqlite.has_journal:
            # By the file's own word it lacks nothing: a close was cut short, or an opening.
            return contents
        found = Segments.read(self._path, self._files)
        if not found:
            raise StoreFailed(
                f"{self._name}: the store's journal is missing, and messages that were accepted may stand in it alone."
                " Put it back. If it cannot be found, stop the server and take the store without it, by which messages"
                " that were accepted are lost: duobus store accept-loss"
            )
        marked_no = read_mark(self._path, self._files)
        position = Position(self._store_id, contents.generation, contents.last_commit_no, marked_no)
        missing = missing_commits(self._name, found, position)
        if missing:
            self._sqlite.commit(merged(missing))
            # What is read back is what every other opening reads.
            self._sqlite.close()
            contents = self._sqlite.open()
        return contents

    def _begin_journal(self) -> None:
        # The file lacks nothing now, so the store may do without a journal until the new one is there.
        self._sqlite.say_journal(is_there=False)
        remove_mark(self._path, self._files)
        length, first = self._lengths
        self._journal = Segments(
            self._path, self._store_id, self._salt, SEGMENTS, segment_bytes=length, first_bytes=first, files=self._files
        )
        if self._journal.begin(0):
            self._mark = JournalMark(self._path, self._files)
            self._sqlite.say_journal(is_there=True)
        # Else the disk has no room for one: in this life every commit goes to SQLite.

    def close(self) -> None:
        """Bring everything over, remove the journal, and give everything back."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
        with self._turn:
            if self._journal is not None and self._failure is None:
                # If that fails, nothing is lost: what is in the journal is durable, and the next open brings it over.
                with suppress(StoreFailed, OSError):
                    self._bring_over(len(self._backlog))
                    self._sqlite.say_journal(is_there=False)
                    self._close_files()
                    remove_files(self._path, self._files)
                    remove_mark(self._path, self._files)
            self._close_files()
            self._backlog.clear()
            self._failure = None
            self._sqlite.close()

    def _close_files(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()

    def _give_up(self, doing: str, error: BaseException) -> BaseException:
        """Close everything after an error, of whichever thread; returns what to raise."""
        with self._turn:
            failure = store_failed(self._name, doing, error) if isinstance(error, OSError) else error
            if self._failure is None:
                self._failure = str(failure)
            self._sqlite.give_up(self._failure)
        # The journal's files stay open until ``close``: the owner of the store may be in the middle of an append, and
        # the number of a file that is closed is soon another file's.
        return failure

    def _opened(self) -> Segments:
        if self._failure is not None:
            raise StoreFailed(self._failure)
        journal = self._journal
        if journal is None:
            raise StoreFailed("the store is not open")
        return journal

    # -- commits ------------------------------------------------------------------------------------------------

    def commit(self, batch: CommitBatch) -> None:
        """Append a record, durable on return, or have SQLite write the batch with all that waits."""
        journal = self._journal
        if journal is None or self._failure is not None:
            journal = self._opened()
        try:
            is_large = self._large.is_one(batch)
            if is_large and not self._backlog.size:
                # SQLite has come as far as the journal and checks the batch itself; twice would cost a large one 2 %.
                self._commit_behind(batch)
            else:
                check_batch(batch, self._commit_no, self._fragments, self._sources)
                if batch.commit_no != self._commit_no + 1 or is_for_tables(batch):
                    self._commit_behind(batch)
                else:
                    bodies = 0
                    if self._homes and not is_large and self._sizes.concerns(batch):
                        bodies = self._sizes.note(batch)
                    # No room in the journal is as good as a large commit.
                    if is_large or not journal.append(batch, self._generation):
                        with self._turn:
                            self._bring_over(len(self._backlog), batch)
                            batch.shared |= self._sizes_anew()
                    else:
                        self._wait_for_sqlite(batch, journal, bodies)
        except BaseException as error:
            failure = self._give_up("commit", error)
            if failure is error:
                raise
            raise failure from error
        self._commit_no = batch.commit_no
        for source_key, next_count, highest_delivered, counters in batch.sources:
            source = self._sources[source_key]
            source.next_count, source.highest_delivered, source.counters = next_count, highest_delivered, counters

    def _commit_behind(self, batch: CommitBatch) -> None:
        """Have SQLite write a batch as it is, behind all that waits."""
        with self._turn:
            self._bring_over(len(self._backlog))
            self._sqlite.commit(batch)
            self._sizes_anew()

    def _sizes_anew(self) -> dict[int, int]:
        """Take what SQLite, which has everything, says of the sizes of topics; returns those that are others now."""
        known, totals = self._sizes.totals, dict(self._sqlite.shared)
        self._sizes = CopySizes(self._homes, totals, self)
        return {key: size for key, size in totals.items() if size != known.get(key, 0)}

    def copies_in(self, spans: list[tuple[int, int, int]]) -> list[CopyFound]:
        """See ``SqliteStore.copies_in``: of what SQLite has so far."""
        with self._beside("look for copies") as store:
            return store.copies_in(spans)

    def bodies_of(self, keys: list[tuple[int, int]]) -> Mapping[tuple[int, int], tuple[int, int]]:
        """See ``SqliteStore.bodies_of``: of what SQLite has so far."""
        with self._beside("look for copies") as store:
            return store.bodies_of(keys)

    def _wait_for_sqlite(self, batch: CommitBatch, journal: Segments, bodies: int) -> None:
        """Note a commit that the journal has, with the shared bodies that it adds; it is brought over some time."""
        is_first = not self._backlog.size
        self._backlog.add(batch, self._clock.monotonic_ms(), bodies, self._large.measured)
        if self._backlog.size > 2 * BYTES_MAX:
            with self._turn:
                self._bring_over(len(self._backlog))
        elif self._thread is not None and (is_first or journal.wants_segment or self._backlog.size > BYTES_MAX):
            self._thread.bell.set()

    # -- bringing over ------------------------------------------------------------------------------------------

    def bring_over(self) -> None:
        """Have SQLite's file hold everything, durable on return."""
        with self._whole("bring the journal over"):
            pass

    def bring_over_due(self) -> bool:
        """Bring over what is old enough, and see to the journal's files; whether anything still waits.

        Called by the thread that brings over. An error closes the store, and the owner's next call tells of it.
        """
        with self._turn:
            journal = self._journal
            if journal is None or self._failure is not None:
                return False
            try:
                try:
                    journal.demand_files()
                except OSError:
                    # The commits are here still: SQLite gets them before the store fails.
                    self._bring_over(len(self._backlog))
                    raise
                if self._mark is not None:
                    self._mark.write(self._commit_no)
                is_short = not journal.prepare()
                self._bring_over(self._backlog.due(self._clock.monotonic_ms(), is_short=is_short))
                if is_short:
                    # Segments may be free now.
                    journal.prepare()
            except BaseException as error:  # noqa: BLE001 - the next call of the store's owner raises it
                self._give_up("bring the journal over", error)
                return False
            return bool(self._backlog)

    def _bring_over(self, number: int, another: CommitBatch | None = None) -> None:
        """Bring the first of the commits that wait to SQLite (or all, and another one), in one transaction."""
        known = self._backlog.batches()
        batches = known[:number]
        if another is not None:
            batches.append(another)
        if not batches:
            return
        is_alone = len(batches) == 1 and another is not None
        brought = batches[0] if is_alone else merged(batches, known[number:])
        self._sqlite.commit(brought)
        self._backlog.take(number)
        self._backlog.sources = len(brought.sources)
        self._sizes.brought_no = batches[-1].commit_no
        self._opened().release(batches[-1].commit_no)

    @contextmanager
    def _whole(self, doing: str) -> Iterator[SqliteStore]:
        """Lend SQLite's side, to which everything has been brought over."""
        with self._beside(doing) as store:
            self._bring_over(len(self._backlog))
            yield store

    @contextmanager
    def _beside(self, doing: str) -> Iterator[SqliteStore]:
        """Lend SQLite's side as it is, for what has nothing to do with messages."""
        self._opened()
        with self._turn:
            self._opened()
            try:
                yield self._sqlite
            except BaseException as error:
                failure = self._failed(doing, error)
                if failure is error:
                    raise
                raise failure from error

    def _failed(self, doing: str, error: BaseException) -> BaseException:
        """What to raise after an error of SQLite's side: some of its errors leave the store open."""
        return self._give_up(doing, error) if isinstance(error, StoreFailed | OSError) else error

    def _learn_rows(self) -> None:
        self._fragments, self._sources = self._sqlite.rows_known()
        self._rows_changed()

    def _rows_changed(self) -> None:
        self._homes = topic_keys_of(self._sources)
        self._sizes_anew()

    # -- everything else is SQLite's ----------------------------------------------------------------------------

    @property
    def mark(self) -> CatalogMark | None:
        """See ``MessagingStore``."""
        return self._sqlite.mark

    @mark.setter
    def mark(self, mark: CatalogMark | None) -> None:
        self._sqlite.mark = mark

    @property
    def is_prepared(self) -> bool:
        """See ``MessagingStore``."""
        return self._sqlite.is_prepared

    @is_prepared.setter
    def is_prepared(self, is_prepared: bool) -> None:
        self._sqlite.is_prepared = is_prepared

    @property
    def commits(self) -> int:
        """Transactions of SQLite's; see ``checkpoint.Checkpointed``."""
        return self._sqlite.commits

    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """See ``MessagingStore.begin_generation``."""
        with self._whole("begin a generation") as store:
            self._generation = store.begin_generation(deletions, counters)
            self._learn_rows()
            return self._generation

    def add_fragment(
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """See ``MessagingStore.add_fragment``."""
        return self.add_fragments([(entity_id, fragment_no, source_nos)])[0]

    def add_fragments(self, asked: Sequence[Asked]) -> list[tuple[FragmentRow, list[SourceRow]]]:
        """See ``MessagingStore.add_fragments``."""
        with self._whole("create a fragment") as store:
            answers = store.add_fragments(asked)
            # Copies of all rows would make each creation dearer than the one before.
            self._fragments |= {row.fragment_key: copy_of_fragment(row) for row, _ in answers}
            self._sources |= {row.source_key: copy_of_source(row) for _, rows in answers for row in rows}
            self._rows_changed()
            return answers

    def drop_entity(self, entity_id: int) -> None:
        """See ``MessagingStore.drop_entity``."""
        with self._whole("drop an entity") as store:
            store.drop_entity(entity_id)
            self._learn_rows()

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """See ``MessagingStore.drop_fragment``."""
        with self._whole("drop a fragment") as store:
            is_more = store.drop_fragment(entity_id, fragment_no, limit)
            self._learn_rows()
            return is_more

    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """See ``MessagingStore.drop_source``."""
        with self._whole("drop a source") as store:
            is_more = store.drop_source(entity_id, source_no, limit)
            self._learn_rows()
            return is_more

    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """See ``MessagingStore.load``."""
        with self._whole("read messages") as store:
            return store.load(source_key, first_count, limit)

    def load_columns(self, source_key: int, first_count: int, limit: int) -> list[PlainColumns]:
        """See ``MessagingStore.load_columns``: it ends before what SQLite does not have yet."""
        return self._sqlite.load_columns(source_key, first_count, limit)

    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """See ``MessagingStore.scan``."""
        with self._whole("read messages") as store:
            return store.scan(source_key, state, first_count, limit)

    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """See ``MessagingStore.occupied``."""
        with self._whole("look for messages") as store:
            return store.occupied(states)

    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """See ``MessagingStore.load_ids``."""
        with self._whole("read a duplicate history") as store:
            return store.load_ids(source_key, first_count, limit)

    def quarantined(self) -> list[tuple[int, int, str]]:
        """See ``MessagingStore.quarantined``."""
        return self._sqlite.quarantined()

    def verify(self) -> list[str]:
        """See ``SqliteStore.verify``."""
        with self._whole("verify the store") as store:
            return store.verify()

    def usage(self) -> StoreUsage:
        """Return how full SQLite's file and the journal are; what waits is counted by what its commits say."""
        with self._beside("look at the files") as store:
            journal, waiting = self._opened().size, self._backlog.rows
            found = store.usage()
            return StoreUsage(max(0, found.rows + waiting), found.bytes_used + journal, found.bytes_free)

    def checkpoint(self) -> None:
        """See ``SqliteStore.checkpoint``."""
        with self._beside("copy the log home") as store:
            store.checkpoint()

    def make_room(self, length: int) -> bool:
        """See ``SqliteStore.make_room``."""
        with self._beside("make room in the log") as store:
            return store.make_room(length)

    def checkpoint_aside(self) -> tuple[int, int]:
        """See ``SqliteStore.checkpoint_aside``."""
        return self._sqlite.checkpoint_aside()

    def probe(self) -> None:
        """See ``MessagingStore.probe``."""
        with self._beside("probe") as store:
            store.probe()

    def records(self) -> Mapping[str, Kept]:
        """See ``MessagingStore.records``."""
        with self._whole("read what is kept of the catalog") as store:
            return store.records()

    def keep_records(self) -> None:
        """See ``MessagingStore.keep_records``."""
        with self._whole("keep what the catalog has") as store:
            store.keep_records()


def store_in_file(
    path: Path, store_id: int, *, must_exist: bool, has_journal: bool = False, clock: Clock | None = None
) -> SqliteStore | JournalStore:
    """Return the store of a file, not open.

    A store that was not closed in order may have a journal although ``has_journal`` does not ask for one: that store
    has the journal for one more life, until a close has brought everything over.
    """
    if has_journal or files_of(str(path.resolve())):
        return JournalStore(str(path), store_id, must_exist=must_exist, clock=clock)
    return SqliteStore(str(path), store_id, must_exist=must_exist)


def bring_left_over(path: Path, store_id: int) -> bool:
    """Have the file of a store that is not in use hold what its journal holds; whether there was one.

    Raises:
        StoreFailed: The store cannot be opened.
    """
    if not files_of(str(path.resolve())):
        return False
    store = JournalStore(str(path), store_id, must_exist=True, brings_over=False)
    try:
        store.open()
    finally:
        store.close()
    return True
