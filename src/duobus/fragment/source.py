"""Source: the messages of a queue, or of one subscription, inside one fragment; lists and indexes only.

Nothing here decides; ``fragment.py`` does. A sub-queue hands out in order of count: what came back stands in a
small heap in front of the list of what was never delivered (I19).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.fragment import duplicate_detection as duplicates
from duobus.fragment.duplicate_detection import DuplicateHistory
from duobus.fragment.forward_dedup import ForwardDedup
from duobus.fragment.message import (
    DEFERRED,
    GONE,
    MAIN,
    SCHEDULED,
    SUB_QUEUES,
    TRANSFER,
    QueuedMessage,
    kind_of,
    message_like,
    sub_queue_of,
)
from duobus.fragment.sessions.delivery_counts import FirstDeliveries
from duobus.fragment.sessions.sessions import Sessions

if TYPE_CHECKING:
    from duobus.fragment.send import Run
    from duobus.storage.interface import CommitBatch

#: Indexes shorter than this are not worth compacting.
COMPACT_FROM: Final = 1024

#: The head window: never delivered messages that are kept in memory per source. Beyond it they are paged out.
WINDOW_COUNT: Final = 50_000
#: Rows of one page of the paged tail: some milliseconds of reading.
PAGE_COUNT: Final = 4_096

_COUNTERS: Final = struct.Struct(">6q")


def _stands(message: QueuedMessage | None, expires_ms: int) -> bool:
    """Whether an entry of the expiry index still speaks of a message."""
    return message is not None and message.expires_ms == expires_ms


class SourceSettings:
    """What a fragment needs to know of an entity's description; replaced as a whole when that changes.

    Attributes:
        lock_duration_ms: Life of a lock; holds from the next lock or renewal.
        max_delivery_count: Deliveries before a message is dead-lettered.
        default_ttl_ms: Life of messages that bring none of their own, and upper bound for the others; None: unlimited.
        dead_letter_on_expiration: Expired messages go to the dead-letter queue instead of nowhere.
        max_bytes: Size quota of this fragment's part; None: unlimited.
        duplicate_window_ms: For how long message ids are remembered; None: no duplicate detection, for ever.
        redelivery_delay_ms: What the first abandon of a message puts it off by; 0, the service's own way: not at all.
        redelivery_delay_maximum_ms: Longest delay of that kind.
        delayed_abandon: An abandon may say itself by how much.
        requires_session: Every message belongs to a session; never changes in an entity's life.
        forwards: The main sub-queue's messages go on to another entity.
    """

    __slots__ = (
        "dead_letter_on_expiration",
        "default_ttl_ms",
        "delayed_abandon",
        "duplicate_window_ms",
        "forwards",
        "lock_duration_ms",
        "max_bytes",
        "max_delivery_count",
        "redelivery_delay_maximum_ms",
        "redelivery_delay_ms",
        "requires_session",
    )

    def __init__(
        self,
        lock_duration_ms: int = 60_000,
        max_delivery_count: int = 10,
        default_ttl_ms: int | None = None,
        dead_letter_on_expiration: bool = False,
        duplicate_window_ms: int | None = None,
        max_bytes: int | None = None,
        redelivery_delay_ms: int = 0,
        redelivery_delay_maximum_ms: int = 0,
        delayed_abandon: bool = False,
        requires_session: bool = False,
        forwards: bool = False,
    ) -> None:
        self.lock_duration_ms = lock_duration_ms
        self.max_delivery_count = max_delivery_count
        self.default_ttl_ms = default_ttl_ms
        self.dead_letter_on_expiration = dead_letter_on_expiration
        self.duplicate_window_ms = duplicate_window_ms
        self.max_bytes = max_bytes
        self.redelivery_delay_ms = redelivery_delay_ms
        self.redelivery_delay_maximum_ms = redelivery_delay_maximum_ms
        self.delayed_abandon = delayed_abandon
        self.requires_session = requires_session
        self.forwards = forwards


class SubQueue:
    """What can be handed out: ``ready`` in order of count, in front of it ``returned``.

    Attributes:
        ready: Never delivered since recovery, ascending.
        returned: Heap of (count, message): came back from a receiver, or entered out of order.
        stale: Messages in either list that are GONE and still to be dropped.
        promised: Messages that receive-and-delete commands in waiting will take.
    """

    __slots__ = ("promised", "ready", "returned", "stale")

    def __init__(self) -> None:
        self.ready: deque[QueuedMessage] = deque()
        self.returned: list[tuple[int, QueuedMessage]] = []
        self.stale = 0
        self.promised = 0

    def available(self) -> int:
        """Number of messages that a take would find."""
        return len(self.ready) + len(self.returned) - self.stale

    def give_back(self, message: QueuedMessage) -> None:
        """Put a message back at its place in the order."""
        heappush(self.returned, (message.count, message))

    def drop_stale(self) -> None:
        """Forget the messages that are GONE, and the bytes that they hold."""
        self.ready = deque(message for message in self.ready if message.state != GONE)
        self.returned = [entry for entry in self.returned if entry[1].state != GONE]
        heapify(self.returned)
        self.stale = 0

    def take(self, limit: int) -> list[QueuedMessage]:
        """Take up to ``limit`` messages off, lowest count first."""
        ready = self.ready
        if not self.returned and not self.stale:
            if limit >= len(ready):
                messages = list(ready)
                ready.clear()
                return messages
            return [ready.popleft() for _ in range(limit)]
        messages = []
        returned = self.returned
        while len(messages) < limit and (returned or ready):
            if returned and (not ready or returned[0][0] < ready[0].count):
                message = heappop(returned)[1]
            else:
                message = ready.popleft()
            if message.state == GONE:
                self.stale -= 1
            else:
                messages.append(message)
        return messages


class Source:
    """The messages of one source, their locks, and what waits for its time.

    Attributes:
        by_count: Every message that the store holds for sure, by count.
        locks: Lock counter to the message it locks.
        ends: Per lock duration: (end, first lock, number of locks), ascending by construction.
        renewed: Lock counter to its later end, for the few that were renewed.
        expiring: Heap of (expires_ms, count): messages with a time to live of their own, and all that left the
            first-in-first-out order of the others.
        scheduled: Heap of (time, count).
        delayed: The same for messages that are put off.
        touched: Delivery counts that changed and ride in the next commit.
        firsts: With sessions, what was handed out of them since the last commit.
        exhausted: Recovered messages that have no delivery left; the next tick dead-letters them.
        numbers: Messages per sub-queue (locked ones included), then deferred and scheduled, paged ones included; as
            decided, so that what rides in a commit speaks of that commit too.
        bytes: Sum of the payload sizes, paged ones included.
        tail_first: First count of the paged tail: every active message from there on that is not in ``by_count`` lies
            in the store only. 0 when nothing is paged out.
        tail_end: No message from there on is known to be paged out: it may be in a commit that is under way.
        tail_count: Messages in the paged tail.
        tail_bytes: Their payload bytes.
        memory_bytes: Payload bytes in memory.
        is_activating: A commit that activates scheduled messages is under way.
        is_paging: A page of the paged tail is on its way.
        missing: Dead, deferred and scheduled messages that recovery was to find in the store and did not.
        tail_due: Counts of paged messages whose time to live has ended; they are fetched to be disposed of.
        history: Message ids of late, with duplicate detection; else None.
        sessions: The sessions of a source that requires them, instead of the main sub-queue's lists; None otherwise.
        transfers: Lower-case path to a heap of (count, message): what was sent via this entity and waits for that one.
        transferring: Messages of that kind, those that are on their way included.
        dedup: What it has taken over from sources of other stores.
        in_doubt_below: Messages with lower counts may have been sent on in an earlier life, and their destination has
            not answered yet whether it has them (``forward_dedup.py``); 0 when nothing is in doubt.
        elsewhere: Those of which it is known that they are.
        inherited: Messages with lower counts came in an earlier life of the fragment, whose last deliveries of them may
            be forgotten.
        claims: Id of a claim to the counts of its messages; see ``claims.commands``.
    """

    __slots__ = (
        "by_count",
        "bytes",
        "claims",
        "dedup",
        "delayed",
        "elsewhere",
        "ends",
        "exhausted",
        "expiring",
        "firsts",
        "highest_delivered",
        "history",
        "in_doubt_below",
        "inherited",
        "is_activating",
        "is_paging",
        "locks",
        "memory_bytes",
        "missing",
        "next_count",
        "numbers",
        "renewed",
        "scheduled",
        "sessions",
        "settings",
        "source_key",
        "source_no",
        "sub_queues",
        "tail_bytes",
        "tail_count",
        "tail_due",
        "tail_end",
        "tail_first",
        "touched",
        "transferring",
        "transfers",
    )

    def __init__(self, source_key: int, source_no: int, settings: SourceSettings) -> None:
        self.source_key = source_key
        self.source_no = source_no
        self.settings = settings
        self.next_count = 1
        self.highest_delivered = 0
        self.by_count: dict[int, QueuedMessage] = {}
        self.sub_queues = [SubQueue() for _ in range(SUB_QUEUES)]
        self.locks: dict[int, QueuedMessage] = {}
        self.ends: dict[int, deque[tuple[int, int, int]]] = {}
        self.renewed: dict[int, int] = {}
        self.expiring: list[tuple[int, int]] = []
        self.scheduled: list[tuple[int, int]] = []
        self.delayed: list[tuple[int, int]] = []
        self.touched: dict[int, QueuedMessage] = {}
        self.firsts = FirstDeliveries()
        self.exhausted: list[QueuedMessage] = []
        self.numbers = [0] * (SUB_QUEUES + 2)
        self.bytes = 0
        self.tail_first = 0
        self.tail_end = 0
        self.tail_count = 0
        self.tail_bytes = 0
        self.memory_bytes = 0
        self.is_activating = False
        self.is_paging = False
        self.missing = 0
        self.tail_due: list[int] = []
        self.history = None if settings.duplicate_window_ms is None else DuplicateHistory()
        self.sessions = Sessions() if settings.requires_session else None
        self.transfers: dict[str, list[tuple[int, QueuedMessage]]] = {}
        self.transferring = 0
        self.dedup = ForwardDedup()
        self.in_doubt_below = 0
        self.inherited = 0
        self.elsewhere: set[int] = set()
        self.claims: dict[str, list[int]] = {}

    @property
    def owes_commit(self) -> bool:
        """Whether something of it ought to be written though no command asks for it."""
        return bool(self.touched) or bool(self.firsts.given) or (self.history is not None and self.history.is_overdue)

    def counters(self) -> bytes:
        """The numbers that ride in the source's row of each commit."""
        return _COUNTERS.pack(*self.numbers, self.bytes)

    def counted(self, state: int, by: int) -> None:
        """Add ``by`` messages of ``state`` to the numbers."""
        kind = kind_of(state)
        if state == TRANSFER:
            self.transferring += by
        elif kind == DEFERRED:
            self.numbers[SUB_QUEUES] += by
        elif kind == SCHEDULED:
            self.numbers[SUB_QUEUES + 1] += by
        else:
            self.numbers[sub_queue_of(state)] += by

    def set_counters(self, counters: bytes) -> None:
        """Take the numbers back that ``counters`` gave; a source that never had a commit has none."""
        if counters:
            *numbers, self.bytes = _COUNTERS.unpack(counters)
            self.numbers = list(numbers)

    def keep(self, message: QueuedMessage) -> None:
        """Hold a message in memory."""
        self.by_count[message.count] = message
        self.memory_bytes += len(message.payload)

    def forget(self, message: QueuedMessage) -> None:
        """Drop a message from memory whose removal is durable."""
        del self.by_count[message.count]
        self.memory_bytes -= len(message.payload)
        message.expires_ms = 0

    def uncount(self, messages: Iterable[QueuedMessage]) -> None:
        """Take messages out of the numbers: their removal is decided."""
        for message in messages:
            self.counted(message.state, -1)
            self.bytes -= len(message.payload)

    def write_removals(self, messages: list[QueuedMessage], commit: CommitBatch) -> None:
        """Write the removal of messages into a commit, neighbours as one range."""
        if not messages:
            return
        if self.touched:
            for message in messages:
                self.touched.pop(message.count, None)
        key = self.source_key
        removed = commit.removed
        first = last = messages[0].count
        for message in messages:
            count = message.count
            if count == last + 1:
                last = count
            elif count != last:
                removed.append((key, first, last))
                first = last = count
        removed.append((key, first, last))

    # -- the paged tail ------------------------------------------------------------------------------------------

    def page_out(self, count: int, number: int, size: int) -> None:
        """Leave ``number`` new messages from ``count`` on to the store alone."""
        if not self.tail_count:
            self.tail_first = count
        self.tail_end = count + number
        self.tail_count += number
        self.tail_bytes += size

    def paged_in(self, number: int, size: int, next_count: int) -> None:
        """Messages came back into memory; the tail now begins at ``next_count``."""
        self.tail_count -= number
        self.tail_bytes -= size
        self.tail_first = next_count if self.tail_count else 0

    def is_paged_out(self, count: int) -> bool:
        """Whether a message with this count, if it is active, lies in the store only."""
        return 0 < self.tail_first <= count and count not in self.by_count

    def wanted_page(self, window_bytes: int, in_transit: int = 0) -> tuple[int, int] | None:
        """(first count, number of rows) of the page to read ahead now, or None; at most half a window.

        ``in_transit``: messages that were read, or are being read, and are not taken in yet.
        """
        if not self.tail_count:
            return None
        # Not the list's length: it may be full of messages that are gone, and who finds none takes none off.
        available = self.sub_queues[0].available() + in_transit
        if available > WINDOW_COUNT // 2:
            return None
        if available * max(1, self.tail_bytes // self.tail_count) > window_bytes // 2:
            return None
        return self.tail_first, self.page_rows(window_bytes)

    def page_rows(self, window_bytes: int) -> int:
        """Rows of a page of the paged tail: no more than half a window holds."""
        average = max(1, self.tail_bytes // self.tail_count) if self.tail_count else 1
        return max(1, min(PAGE_COUNT, window_bytes // 2 // average))

    def compact(self) -> None:
        """Drop what outlived its message from the indexes that are cleaned only by time.

        Without this, messages that were settled long before their lock or life ended would pile up there.
        """
        if len(self.expiring) > 2 * (len(self.by_count) + self.tail_count) + COMPACT_FROM:
            found = self.by_count
            self.expiring = [
                entry
                for entry in self.expiring
                if self.is_paged_out(entry[1]) or _stands(found.get(entry[1]), entry[0])
            ]
            heapify(self.expiring)
        if len(self.scheduled) > 2 * len(self.by_count) + COMPACT_FROM:
            self.scheduled = [e for e in self.scheduled if e[1] in self.by_count]
            heapify(self.scheduled)
        if len(self.delayed) > 2 * len(self.by_count) + COMPACT_FROM:
            self.delayed = [e for e in self.delayed if e[1] in self.by_count]
            heapify(self.delayed)
        for sub_queue in self.sub_queues:
            if sub_queue.stale > sub_queue.available() + COMPACT_FROM:
                sub_queue.drop_stale()
        for duration, ends in self.ends.items():
            if len(ends) > 2 * len(self.locks) + COMPACT_FROM:
                locks = self.locks
                self.ends[duration] = deque(
                    end for end in ends if any(lock in locks for lock in range(end[1], end[1] + end[2]))
                )

    def withdraw(self, message: QueuedMessage) -> QueuedMessage:
        """Take an available message out of the middle of its list and return its successor.

        The old object stays behind as GONE until its list comes across it, so this costs no search.
        """
        if self.sessions is not None and sub_queue_of(message.state) == MAIN:
            self.sessions.withdrawn(message)
            return message
        self.sub_queues[sub_queue_of(message.state)].stale += 1
        successor = message_like(message)
        successor.deliveries = message.deliveries
        successor.state = message.state
        successor.metadata = message.metadata
        self.by_count[message.count] = successor
        message.state = GONE
        message.expires_ms = 0
        return successor


# Whether a source has room for a run of messages: its size quota and its duplicate history, when a commit starts.


def check_room(source: Source, run: Run, now_ms: int, elsewhere: int = 0) -> ServiceBusError | None:
    """Say why a run cannot be taken in, or None; it is taken as a whole or not at all (I33, I40).

    ``elsewhere``: bytes that count beside those of the source.
    """
    settings = source.settings
    batch = run.batch
    used = source.bytes + elsewhere + run.beside
    if settings.max_bytes is not None and used + batch.bytes_total > settings.max_bytes:
        # A duplicate takes no room: whoever repeats what was stored is told so, however full the entity is.
        size = 0 if batch.ping else duplicates.stored_size(source, run)
        if size and used + size > settings.max_bytes:
            return over_quota(used, settings.max_bytes)
    if source.history is not None and settings.duplicate_window_ms is not None and batch.ids is not None:
        return duplicates.check(source.history, run, settings.duplicate_window_ms, now_ms)
    return None


def over_quota(size: int, limit: int) -> QuotaExceeded:
    """The error of a send to an entity that is full; receiving still works."""
    return QuotaExceeded(
        f"The maximum entity size has been reached or exceeded: the entity, or the fragment of it where the message "
        f"belongs, has {size} bytes of at most {limit}. Receive messages, or raise MaxSizeInMegabytes."
    )
