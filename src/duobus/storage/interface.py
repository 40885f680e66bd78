"""MessagingStore: how message brokers keep what they decided, and the columns in which it travels.

A store is blocking and single-threaded: a ``StoreWriter`` (``storage/writers.py``) owns the thread that calls
it. Nothing above this line knows SQL; nothing below it knows what a message means. A message's payload
(the bare message) and its ``metadata`` (keys, times and more, encoded by the fragment) are opaque bytes here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from duobus.errors import NotAllowed
from duobus.storage.catalog_identity import Belonging, CatalogMark

if TYPE_CHECKING:
    from duobus.storage.catalog_records import Kept

#: Highest format this version reads and writes; a newer one is refused (I65). 2: bodies that copies share; 3: copies
#: without a row of their own.
FORMAT_VERSION = 3
#: Of a file beside which a journal may hold commits that the file lacks (``journal/store.py``). Its rows have format 3;
#: earlier versions refuse it, since they would not look for the journal.
JOURNAL_VERSION = 4
#: Lowest format that ``open`` brings forward to it.
FORMAT_VERSION_MIN = 1

#: A row's integer key is ``source_key << COUNT_BITS | count``: 2**44 messages a source are 5.5 years at
#: 100,000 a second; 2**19 sources a store are left. A composite key without rowid measured 41 us a row
#: against 7.
COUNT_BITS = 44
SOURCE_KEY_MAX = (1 << 19) - 1
COUNT_MAX = (1 << COUNT_BITS) - 1

#: Counts that each source leaves out when it is restored from a backup: a week at 100,000 messages a second. Of 2**44
#: counts there are 256 times as many.
COUNTS_LEFT_OUT = 1 << 36

#: Payload bytes after which ``load`` and ``scan`` end, however few messages that are: what they return is in memory as
#: a whole, and a message may have 100 MB. Half of a window, so that only large messages make a page shorter.
READ_BYTES_MAX = 16 << 20


class FragmentRow:
    """One fragment of an entity as the store keeps it.

    Attributes:
        fragment_key: Store-local id, given by the store, 1 and up; never reused.
        entity_id: The catalog's id of the top-level entity.
        fragment_no: 16 bit number, unique in the entity for ever.
        epoch: Raised by a commit at every recovery or change of owner.
    """

    __slots__ = ("entity_id", "epoch", "fragment_key", "fragment_no")

    def __init__(self, fragment_key: int, entity_id: int, fragment_no: int, epoch: int) -> None:
        self.fragment_key = fragment_key
        self.entity_id = entity_id
        self.fragment_no = fragment_no
        self.epoch = epoch


class SourceRow:
    """One source (the queue or topic itself: 0; one per subscription) of a fragment.

    Attributes:
        source_key: Store-local id, 1 to SOURCE_KEY_MAX, given by the store, never reused.
        next_count: The count that the next message gets; counts start at 1 and are never reused (I7).
        highest_delivered: The highest count handed to a receiver so far; at recovery an active message at
            or below it has delivery count 1 at least (I6).
        counters: Opaque to the store: whatever numbers the fragment wants back at recovery.
    """

    __slots__ = ("counters", "fragment_key", "highest_delivered", "next_count", "source_key", "source_no")

    def __init__(
        self,
        source_key: int,
        fragment_key: int,
        source_no: int,
        next_count: int = 1,
        highest_delivered: int = 0,
        counters: bytes = b"",
    ) -> None:
        self.source_key = source_key
        self.fragment_key = fragment_key
        self.source_no = source_no
        self.next_count = next_count
        self.highest_delivered = highest_delivered
        self.counters = counters


class Put:
    """Messages of one source with consecutive counts, new in this commit.

    Attributes:
        all_metadata: Index into ``payloads`` to (state, deliveries, metadata) for the messages that are not
            plain, or None when all are: state 0 (active), no deliveries, no metadata.
        origins: For copies of a topic's messages, in sources other than 0: the count that each message had in source
            0 of the fragment; 0 for what is no copy. A negative count: the message has several copies, all of them in
            this commit and with the same payload, which is kept once until the last of them is removed. None: no
            copies.
        is_reserved: Its counts were used up before, for these messages, and have none yet.
        equal_metadata: In the place of ``all_metadata``, where all are active, never delivered, and have metadata: that
            of each.
    """

    __slots__ = (
        "all_metadata",
        "enqueued_ms",
        "equal_metadata",
        "first_count",
        "is_reserved",
        "origins",
        "payloads",
        "source_key",
    )

    def __init__(
        self,
        source_key: int,
        first_count: int,
        enqueued_ms: int,
        payloads: Sequence[bytes],
        all_metadata: dict[int, tuple[int, int, bytes | None]] | None = None,
        origins: Sequence[int] | None = None,
    ) -> None:
        self.source_key = source_key
        self.first_count = first_count
        self.enqueued_ms = enqueued_ms
        self.payloads = payloads
        self.all_metadata = all_metadata
        self.origins = origins
        self.equal_metadata: list[bytes] | None = None
        self.is_reserved = False

    def metadata_of(self, index: int) -> tuple[int, int, bytes | None] | None:
        """(state, deliveries, metadata) of a message; None when it is plain."""
        if self.equal_metadata is not None:
            return (0, 0, self.equal_metadata[index])
        return None if self.all_metadata is None else self.all_metadata.get(index)


class Tombstone:
    """A run whose commit was ambiguous and that was sent elsewhere (I27).

    Kept in the store that took the run over. When the store it speaks of is recovered and its last commit
    number is ``commit_no`` or later, and it has not been opened since (its generation still is
    ``generation``), the run's rows are deleted before the fragment opens.
    """

    __slots__ = ("commit_no", "first_count", "generation", "last_count", "source_key", "store_id")

    def __init__(
        self, store_id: int, generation: int, commit_no: int, source_key: int, first_count: int, last_count: int
    ) -> None:
        self.store_id = store_id
        self.generation = generation
        self.commit_no = commit_no
        self.source_key = source_key
        self.first_count = first_count
        self.last_count = last_count


class IdBlock:
    """Message ids that one run of messages entered into the duplicate history of its source.

    Attributes:
        source_key: Whose history.
        first_count: Count of the run's first message. Deleting the run deletes the block (I27): nobody was told that
            its messages are there, so nobody may be told that they came before.
        at_ms: Broker time of their acceptance.
        ids: Opaque to the store.
    """

    __slots__ = ("at_ms", "first_count", "ids", "source_key")

    def __init__(self, source_key: int, first_count: int, at_ms: int, ids: bytes) -> None:
        self.source_key = source_key
        self.first_count = first_count
        self.at_ms = at_ms
        self.ids = ids


class CommitBatch:
    """Everything that one transaction writes, in columns; all of it or nothing.

    Attributes:
        commit_no: One more than the store's last; kept by the store in the same transaction.
        broker_ms: Broker time when the commit started; kept too, time never goes back.
        epochs: (fragment_key, epoch) of every fragment touched; a difference refuses the whole commit.
        puts: New messages.
        removed: (source_key, first_count, last_count), inclusive; rows that do not exist are no error.
        changes: (source_key, count, state, deliveries, metadata): new state of messages that exist.
        sources: (source_key, next_count, highest_delivered, counters) of every source touched.
        tombstones: Runs of other stores that this commit takes over.
        forgotten: Tombstones that are done with, to be deleted: (store_id, generation).
        histories: New blocks of message ids.
        outdated: (source_key, last_count): blocks up to that first count are to be deleted.
        shared: Filled in by the store: ``StoreContents.shared`` of the fragments whose copies this commit changed.
    """

    __slots__ = (
        "broker_ms",
        "changes",
        "commit_no",
        "epochs",
        "forgotten",
        "histories",
        "outdated",
        "puts",
        "removed",
        "shared",
        "sources",
        "tombstones",
    )

    def __init__(self, commit_no: int, broker_ms: int) -> None:
        self.commit_no = commit_no
        self.broker_ms = broker_ms
        self.epochs: list[tuple[int, int]] = []
        self.puts: list[Put] = []
        self.removed: list[tuple[int, int, int]] = []
        self.changes: list[tuple[int, int, int, int, bytes | None]] = []
        self.sources: list[tuple[int, int, int, bytes]] = []
        self.tombstones: list[Tombstone] = []
        self.forgotten: list[tuple[int, int]] = []
        self.histories: list[IdBlock] = []
        self.outdated: list[tuple[int, int]] = []
        self.shared: dict[int, int] = {}


class StoredMessage:
    """One row read back and verified; ``origin``: of a copy, the count of its message in source 0; else 0."""

    __slots__ = ("count", "deliveries", "enqueued_ms", "metadata", "origin", "payload", "state")

    def __init__(
        self,
        count: int,
        enqueued_ms: int,
        state: int,
        deliveries: int,
        payload: bytes,
        metadata: bytes | None,
        origin: int = 0,
    ) -> None:
        self.count = count
        self.enqueued_ms = enqueued_ms
        self.state = state
        self.deliveries = deliveries
        self.payload = payload
        self.metadata = metadata
        self.origin = origin


class PlainColumns:
    """Verified plain messages in columns, their counts consecutive: active, no deliveries, no metadata."""

    __slots__ = ("enqueued_ms", "first_count", "payloads")

    def __init__(self, first_count: int, enqueued_ms: Sequence[int], payloads: Sequence[bytes]) -> None:
        self.first_count = first_count
        self.enqueued_ms = enqueued_ms
        self.payloads = payloads


class StoreContents:
    """What ``open`` found, read in one go.

    Attributes:
        shared: Source key of a topic's source 0 to the bytes that the copies of its messages take up in this store,
            each body that several share counted once.
        belonging: Which catalog it belongs to; None: this kind of store keeps nothing of that.
    """

    __slots__ = (
        "belonging",
        "broker_ms",
        "fragments",
        "generation",
        "last_commit_no",
        "shared",
        "sources",
        "tombstones",
    )

    def __init__(
        self,
        generation: int,
        last_commit_no: int,
        broker_ms: int,
        fragments: list[FragmentRow],
        sources: list[SourceRow],
        tombstones: list[Tombstone],
        shared: dict[int, int] | None = None,
        belonging: Belonging | None = None,
    ) -> None:
        self.belonging = belonging
        self.generation = generation
        self.last_commit_no = last_commit_no
        self.broker_ms = broker_ms
        self.fragments = fragments
        self.sources = sources
        self.tombstones = tombstones
        self.shared = shared or {}


class StoreUsage:
    """How full a store is: rows of messages, bytes of its files, bytes free on its disk (None: unknown)."""

    __slots__ = ("bytes_free", "bytes_used", "rows")

    def __init__(self, rows: int, bytes_used: int, bytes_free: int | None) -> None:
        self.rows = rows
        self.bytes_used = bytes_used
        self.bytes_free = bytes_free


class MessagingStore(ABC):
    """One messaging store. Every method blocks; only one thread at a time calls.

    Every method may raise StoreFailed; after that every call raises it again until ``close`` and then ``open``.

    Attributes:
        columns_least: Fewer messages than this are not worth asking ``load_columns`` for.
        mark: What the store is to keep of the catalog, written with the next commit other than of messages; None:
            nothing.
        is_prepared: It is being made for a catalog that may not know it yet; see ``Belonging``.
    """

    columns_least = 1
    mark: CatalogMark | None = None
    is_prepared = False

    @abstractmethod
    def open(self) -> StoreContents:
        """Open or create the store and return what it holds, messages excepted.

        Raises:
            StoreTooNew: A newer version wrote it; nothing was touched.
            StoreFailed: It cannot be opened or is malformed.
        """

    @abstractmethod
    def begin_generation(self, deletions: Iterable[Tombstone], counters: Mapping[int, bytes] | None = None) -> int:
        """Raise generation and the epoch of every fragment, delete the runs of ``deletions``; durable on return.

        The blocks of ids that belong to these runs go with them. ``counters``: by source key, what the sources count
        without these runs; all of it at once, since who comes up next finds the runs gone and cannot tell (I32).

        Called once between ``open`` and the first commit. Returns the new generation; every fragment's epoch is
        one more than ``open`` reported.
        """

    @abstractmethod
    def add_fragment(
        self, entity_id: int, fragment_no: int, source_nos: Sequence[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """Create a fragment with its sources, durable on return; what exists already is returned as it is.

        Source 0 comes first: bodies of the others' messages are kept beside it.

        Raises:
            ValueError: Other sources are to be made, and source 0 is neither there nor among them.
        """

    def add_fragments(
        self, asked: Sequence[tuple[int, int, Sequence[int]]]
    ) -> list[tuple[FragmentRow, list[SourceRow]]]:
        """Do ``add_fragment`` for several (entity id, fragment number, numbers of sources), at one go if it can."""
        return [self.add_fragment(*one) for one in asked]

    @abstractmethod
    def drop_entity(self, entity_id: int) -> None:
        """Delete every fragment, source and message of an entity, durable on return; none is no error."""

    def drop_fragment(self, entity_id: int, fragment_no: int, limit: int) -> bool:
        """Delete up to ``limit`` messages of one fragment of an entity, durable on return.

        Returns:
            Whether there is more to do. With the last messages goes the fragment; one that does not exist is no error.
        """
        raise NotAllowed(
            f"This kind of messaging store cannot give up fragment {fragment_no} of entity {entity_id} alone ({limit})."
        )

    def find_fragment(self, entity_id: int, fragment_no: int) -> tuple[FragmentRow, list[SourceRow], int] | None:
        """Return a fragment with all of its sources, as their rows are now; None when it does not exist.

        The number is what ``StoreContents.shared`` has for it.
        """
        raise NotAllowed(f"This kind of messaging store cannot look for fragment {fragment_no} of entity {entity_id}.")

    def relabel_fragment(self, entity_id: int, fragment_no: int, becomes: int, epoch: int) -> None:
        """Give a fragment to another entity number, and raise its epoch to ``epoch`` at least; durable on return.

        A fragment that is about to belong to another store is *set aside* so: under the negative number of its entity
        nobody who opens the store finds it, until the catalog has said where it is (``aside_of``). One that does not
        exist is no error.
        """
        raise NotAllowed(
            f"This kind of messaging store cannot set fragment {fragment_no} of entity {entity_id} aside "
            f"({becomes}, {epoch})."
        )

    @abstractmethod
    def drop_source(self, entity_id: int, source_no: int, limit: int) -> bool:
        """Delete up to ``limit`` messages of a source in every fragment of an entity, durable on return.

        Returns:
            Whether there is more to do. With the last messages go the sources; sources that do not exist are no error.
        """

    @abstractmethod
    def commit(self, batch: CommitBatch) -> None:
        """Write all of ``batch`` or nothing; on return it is on disk (fsync has returned).

        Raises:
            StoreStale: An epoch was not the fragment's; nothing was written.
            StoreFailed: Whether the batch is on disk is not known.
        """

    @abstractmethod
    def load(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """Return at most ``limit`` messages with counts from ``first_count``, ascending, checksums verified.

        With the message that makes them READ_BYTES_MAX bytes of payload the answer ends early, but never before its
        first message: see ``is_end``. A row whose checksum does not hold is left out and added to ``quarantined``.
        """

    def load_columns(self, _source_key: int, _first_count: int, _limit: int) -> Sequence[PlainColumns]:
        """Return up to ``limit`` messages as ``load`` does, verified and in columns, as far as they are plain.

        It ends before one that is not, and before anything that is amiss, which ``load`` then meets. Never raises, and
        may be called by another thread beside the other methods. So it may see commits that nobody was told of yet.
        """
        return ()

    @abstractmethod
    def scan(self, source_key: int, state: int, first_count: int, limit: int) -> list[StoredMessage]:
        """As ``load``, of one state other than 0 (active), by index."""

    @abstractmethod
    def occupied(self, states: Collection[int]) -> set[tuple[int, int]]:
        """Return each (source key, state) that may have rows, of these states other than 0.

        In all others ``scan`` finds nothing, and need not be called. Where it may find nothing, too, the last row of
        that state has gone since the store was opened.
        """

    @abstractmethod
    def load_ids(self, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """Return at most ``limit`` blocks of a source's duplicate history, ascending, checksums verified.

        As ``load``: a block whose checksum does not hold is left out and added to ``quarantined``.
        """

    @abstractmethod
    def quarantined(self) -> list[tuple[int, int, str]]:
        """Return (source_key, count, what was wrong) of the bad rows met since ``open``."""

    @abstractmethod
    def usage(self) -> StoreUsage:
        """Return how full the store is; cheap enough for once a second."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Move the write-ahead log's content home, outside any commit; may be a no-op."""

    @abstractmethod
    def probe(self) -> None:
        """Make one plain durable commit that changes no message."""

    def records(self) -> Mapping[str, Kept] | None:
        """Return what the store keeps of its catalog's rows (``catalog_records.py``); None: this kind keeps nothing."""
        return None

    def keep_records(self) -> None:  # noqa: B027 - what keeps nothing has nothing to write
        """Write what the store's mark has noted for it, durable on return; nothing is no error."""

    def bring_over(self) -> None:  # noqa: B027 - where commits go to the file itself, there is nothing to bring
        """Have the store's file itself hold all that was committed, durable on return, for those who read the file."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; never raises; closing twice is allowed."""


def aside_of(entity_id: int) -> int:
    """The number under which a store keeps the fragments of an entity that are set aside."""
    return -entity_id


def is_end(messages: Sequence[StoredMessage], limit: int) -> bool:
    """Whether what ``load`` or ``scan`` returned goes to the end, and was not cut by number or bytes."""
    return len(messages) < limit and sum(len(message.payload) for message in messages) < READ_BYTES_MAX


# Columns of messages that are in memory and verified: what ``load_columns`` returns where rows were read singly.


def columns_of(first_count: int, messages: Iterable[StoredMessage]) -> list[PlainColumns]:
    """Return as many of these messages as are plain and follow each other from ``first_count`` on."""
    found: list[StoredMessage] = []
    for message in messages:
        is_plain = not message.state and not message.deliveries and message.metadata is None and not message.origin
        if not is_plain or message.count != first_count + len(found):
            break
        found.append(message)
    return [PlainColumns(first_count, [m.enqueued_ms for m in found], [m.payload for m in found])] if found else []
