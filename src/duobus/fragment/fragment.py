"""Fragment: one part of an entity, as a pure state machine.

Command and time in, records and results out: no clock, I/O, randomness or asyncio. Its message broker calls, in
this order and never overlapping: ``tick``, then ``check`` and ``apply`` for every command of a commit, then,
when that commit is durable, ``release`` for the same commands in the same order. Between commits it hands out
locks (``lock``), which need no commit. When a commit fails the whole object is thrown away and made again from
the store, so nothing here can be undone, nor needs to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from duobus.errors import MessageNotFound, ServiceBusError
from duobus.fragment import forward_dedup, housekeeping, settlement, transfer
from duobus.fragment.claims.commands import note_claim
from duobus.fragment.commands import Command
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import (
    ACTIVE,
    DEFERRED,
    GONE,
    MAIN,
    NEVER,
    RESERVED,
    SCHEDULED,
    SESSION_STATE,
    TAKEN,
    TRANSFER,
    QueuedMessage,
    effective_ttl,
    kind_of,
    state_of,
    sub_queue_of,
)
from duobus.fragment.paged_tail import message_of_row, note_paged_expiry
from duobus.fragment.sessions import sessions
from duobus.fragment.sessions.delivery_counts import changed_counts
from duobus.fragment.source import WINDOW_COUNT, Source, SourceSettings
from duobus.fragment.topics import fanout
from duobus.fragment.topics.topic_state import TopicState
from duobus.storage.interface import CommitBatch, SourceRow, StoredMessage

#: Payload bytes of never delivered messages that a source keeps in memory, unless its store is short of room.
WINDOW_BYTES: Final = 32 << 20
#: Scheduled messages that one commit activates.
DUE_AT_ONCE: Final = 2000


class Fragment:
    """One part of a top-level entity; see the module.

    Attributes:
        handle: What commands and deliveries name this fragment by; opaque here.
        number: The fragment's number: upper 16 bits of its sequence numbers and lock tokens.
        epoch: Of this life of the fragment; in every lock token, so that tokens of an earlier life are lost.
        prefix: First 8 bytes of this life's lock tokens.
        fresh: (source number, sub-queue) pairs that got available messages since the broker last looked.
        notified: Locks of sessions that got such messages.
        ended: Locks of sessions that ran out since then.
        topic: What a topic's fragment knows of its subscriptions; None in a queue's.
        dirty: Sources of a topic whose rows the next commit writes; a queue's one source is always written.
        deadline: No housekeeping is due before this instant (broker time).
        armed: The instant for which the message broker has noted to look; its own business.
        window_bytes: Payload bytes that each source may keep in memory before new messages stay in the store only.
        window_count: Messages, likewise.
    """

    __slots__ = (
        "armed",
        "deadline",
        "dirty",
        "ended",
        "epoch",
        "fragment_key",
        "fresh",
        "handle",
        "next_lock",
        "notified",
        "number",
        "prefix",
        "sources",
        "topic",
        "window_bytes",
        "window_count",
    )

    def __init__(self, handle: Any, fragment_key: int, number: int, epoch: int, salt: bytes) -> None:
        """Make an empty fragment; ``salt`` is 10 unguessable bytes for this life's lock tokens."""
        self.handle = handle
        self.fragment_key = fragment_key
        self.number = number
        self.epoch = epoch
        self.prefix = number.to_bytes(2, "big") + (epoch & 0xFFFFFFFF).to_bytes(4, "big") + salt[:2]
        # 54 bits: the counter starts anywhere and still has room for ever in the 56 bits of a delivery tag.
        self.next_lock = int.from_bytes(salt[2:10], "big") >> 10
        self.sources: dict[int, Source] = {}
        self.topic: TopicState | None = None
        self.dirty: set[int] = set()
        self.fresh: set[tuple[int, int]] = set()
        self.notified: list[sessions.SessionLock] = []
        self.ended: list[sessions.SessionLock] = []
        self.deadline = NEVER
        self.armed = NEVER
        self.window_bytes = WINDOW_BYTES
        self.window_count = WINDOW_COUNT

    # -- life ---------------------------------------------------------------------------------------------------

    def add_source(self, row: SourceRow, settings: SourceSettings) -> Source:
        """Add a source as the store describes it, without its messages."""
        source = Source(row.source_key, row.source_no, settings)
        source.next_count = row.next_count
        source.highest_delivered = row.highest_delivered
        source.set_counters(row.counters)
        source.inherited = row.next_count
        forward_dedup.begin_in_doubt(source)
        self.sources[row.source_no] = source
        return source

    def recover(self, source_no: int, rows: Iterable[StoredMessage]) -> None:
        """Take in messages read back from the store, ascending; may be called again with the next rows."""
        source = self.sources[source_no]
        for row in rows:
            if row.state in (SESSION_STATE, TAKEN):
                continue
            message = message_of_row(row)
            # Locks do not survive, and a first delivery leaves no record of its own: what may have been
            # delivered counts as delivered once (I6). What is dead counts no deliveries.
            if message.count <= source.highest_delivered and message.deliveries == 0 and message.state == ACTIVE:
                message.deliveries = 1
            source.keep(message)
            note_claim(source, message)
            # What was put off or deferred had deliveries left: one that has none was locked as a deferred message.
            if kind_of(message.state) != SCHEDULED and self.is_exhausted(source, message):
                message.lock = RESERVED
                source.exhausted.append(message)
                self.deadline = 0
            else:
                self.place(source, message, in_order=True)

    def set_settings(self, settings: SourceSettings, source_no: int = 0) -> None:
        """Replace an entity's settings; held locks keep their end."""
        source = self.sources[source_no]
        source.settings = settings
        forward_dedup.settings_changed(self, source)
        self.deadline = 0

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Command]:
        """Do what is due and return what needs a commit. Call whenever ``now_ms`` has reached ``deadline``."""
        work: list[Command] = []
        self.deadline = NEVER
        for source in self.sources.values() if self.topic is None else fanout.busy_sources(self):
            keeping = Housekeeping(self.handle, source.source_no)
            keeping.exhausted, source.exhausted = source.exhausted, []
            self._end_locks(source, now_ms, keeping)
            if source.sessions is not None:
                sessions.end_locks(self, source, now_ms, keeping)
            housekeeping.expire(self, source, now_ms, keeping)
            self._wake_scheduled(source, now_ms, keeping)
            if source.delayed:
                housekeeping.wake(self, source, now_ms, keeping)
            source.compact()
            self.note_history(source, now_ms)
            if keeping.expired or keeping.exhausted or keeping.due:
                for message in keeping.expired:
                    message.lock = RESERVED
                work.append(keeping)
        return work

    def _end_locks(self, source: Source, now_ms: int, keeping: Housekeeping) -> None:
        renewed = source.renewed
        for ends in source.ends.values():
            while ends and ends[0][0] <= now_ms:
                _, first, number = ends.popleft()
                for lock in range(first, first + number):
                    if lock in source.locks and renewed.get(lock, 0) <= now_ms:
                        renewed.pop(lock, None)
                        self.return_message(source, source.locks.pop(lock), now_ms, counted=True, keeping=keeping)
            if ends:
                self.due_at(ends[0][0])

    def _wake_scheduled(self, source: Source, now_ms: int, keeping: Housekeeping) -> None:
        scheduled = source.scheduled
        if source.is_activating:
            return
        number = 0
        while scheduled and scheduled[0][0] <= now_ms:
            _, count = heappop(scheduled)
            message = source.by_count.get(count)
            if message is not None and message.state == SCHEDULED and not message.lock:
                message.lock = RESERVED
                keeping.due.append(message)
                number += 1 if self.topic is None else 1 + fanout.strain_of(self.topic, message.payload)
                if number >= DUE_AT_ONCE:
                    break
        if keeping.due:
            # The next ones wait for this commit: a million that are due at once are no single commit.
            source.is_activating = True
            keeping.at_topic = self.topic is not None
        elif scheduled:
            self.due_at(scheduled[0][0])

    def note_history(self, source: Source, now_ms: int | None = None) -> None:
        """See to it that ids are purged when they have run out; with ``now_ms``, purge those that have."""
        history, window_ms = source.history, source.settings.duplicate_window_ms
        if history is not None and window_ms is not None:
            self.due_at(history.due_ms(window_ms) if now_ms is None else history.tick(now_ms, window_ms))

    def due_at(self, instant_ms: int) -> None:
        """Housekeeping is due at this instant at the latest."""
        self.deadline = min(self.deadline, instant_ms)

    # -- check and apply ----------------------------------------------------------------------------------------

    def check(self, command: Command, now_ms: int) -> ServiceBusError | None:
        """Say why a command cannot be done, or None; changes nothing, but see ``find_fault``."""
        source = self.sources.get(command.source_no)
        if source is None:
            return MessageNotFound("The subscription is gone, and its messages with it.")
        return command.check(self, source, now_ms)

    def apply(self, command: Command, now_ms: int, commit: CommitBatch) -> None:
        """Do a checked command: decide, and write down what the store must keep. Cannot fail."""
        source = self.sources[command.source_no]
        if self.topic is not None:
            self.dirty.add(command.source_no)
        command.apply(self, source, now_ms, commit)

    def release(self, command: Command, now_ms: int) -> None:
        """Make a durable command's effects visible: messages available, removals final."""
        source = self.sources.get(command.source_no)
        # None: its subscription was deleted while the commit was under way.
        if source is not None:
            command.release(self, source, now_ms)

    # -- the inner interface: what the commands of this package share ------------------------------------------

    def find_fault(
        self, source: Source, counts: Sequence[int], state: int, word: str, now_ms: int
    ) -> ServiceBusError | None:
        """None when the messages with these numbers are all in ``state`` and free, else the error.

        A deferred message does not expire by itself. One that has run out of life when it is asked for is refused, and
        stands in the expiry index from now on: the next ``tick``, which is due at once, disposes of it.
        """
        missing: int | None = None
        for count in counts:
            message = source.by_count.get(count)
            if message is None or message.state != state or message.lock:
                missing = count if missing is None else missing
            elif self.has_run_out(source, message, now_ms):
                missing = count if missing is None else missing
                self.index_expiry(source, message, always=True)
        if missing is None:
            return None
        return MessageNotFound(f"No {word} message has the sequence number {self.number << 48 | missing}.")

    def has_room(self, size: int) -> bool:
        """Whether its entity would take so many bytes more now."""
        source = self.sources[0]
        max_bytes = source.settings.max_bytes
        elsewhere = 0 if self.topic is None else self.topic.bytes
        return max_bytes is None or source.bytes + elsewhere + size <= max_bytes

    @property
    def page_bytes(self) -> int:
        """Twice what is read ahead of receivers: they need no more, however much room there is."""
        return min(self.window_bytes, WINDOW_BYTES)

    def new_housekeeping(self, source_no: int) -> Housekeeping:
        """An empty command for what locks that end, or time, may ask for."""
        return Housekeeping(self.handle, source_no)

    def release_plain(self, source: Source, messages: list[QueuedMessage], size: int) -> None:
        """Make new messages available of which none has metadata, in a source without sessions."""
        first = messages[0].count
        main = source.sub_queues[MAIN]
        if source.tail_count or len(main.ready) >= self.window_count or source.memory_bytes >= self.window_bytes:
            source.page_out(first, len(messages), size)
            return
        if len(messages) == 1:
            source.by_count[first] = messages[0]
        else:
            source.by_count.update(zip(range(first, first + len(messages)), messages, strict=True))
        source.memory_bytes += size
        default_ttl = source.settings.default_ttl_ms
        if default_ttl is not None and not main.ready:
            self.due_at(messages[0].enqueued_ms + default_ttl)
        main.ready.extend(messages)
        self.fresh.add((source.source_no, MAIN))

    def release_with_metadata(self, source: Source, messages: list[QueuedMessage]) -> None:
        """Make new messages available of which at least one has metadata."""
        main = source.sub_queues[MAIN]
        for message in messages:
            is_full = len(main.ready) >= self.window_count or source.memory_bytes >= self.window_bytes
            # Whoever accepts a session wants all of it: the messages of sessions stay in memory.
            if message.state == ACTIVE and (source.tail_count or (is_full and source.sessions is None)):
                source.page_out(message.count, 1, len(message.payload))
                note_paged_expiry(self, source, message.count, message.enqueued_ms, message.metadata)
                continue
            source.keep(message)
            self.place(source, message, in_order=True)

    def place(self, source: Source, message: QueuedMessage, *, in_order: bool) -> None:
        """Put a message into the list or index where its state belongs.

        ``in_order``: its count is above all that stand in the sub-queue's ready list, and it was never delivered.
        """
        kind = kind_of(message.state)
        sub = sub_queue_of(message.state)
        if message.state == TRANSFER:
            transfer.place_transfer(self, source, message)
            return
        if kind == SCHEDULED:
            assert message.metadata is not None
            assert message.metadata.scheduled_ms is not None
            heappush(source.scheduled, (message.metadata.scheduled_ms, message.count))
            self.due_at(message.metadata.scheduled_ms)
            return
        if sub == MAIN:
            if kind == ACTIVE and message.metadata is not None and message.metadata.redeliver_at_ms is not None:
                housekeeping.park(self, source, message)
                return
            if kind != DEFERRED:
                is_apart = not in_order or message.deliveries > 0 or source.sessions is not None
                self.index_expiry(source, message, always=is_apart)
        if kind == ACTIVE:
            if sub == MAIN and source.sessions is not None:
                sessions.place(self, source, message)
                return
            sub_queue = source.sub_queues[sub]
            if in_order and sub == MAIN and message.deliveries == 0:
                sub_queue.ready.append(message)
                default_ttl = source.settings.default_ttl_ms
                if default_ttl is not None:
                    self.due_at(sub_queue.ready[0].enqueued_ms + default_ttl)
            else:
                sub_queue.give_back(message)
            self.fresh.add((source.source_no, sub))

    def paged(self, source: Source) -> None:
        """Ordinary messages were added to the end of the main list."""
        default_ttl = source.settings.default_ttl_ms
        if default_ttl is not None:
            self.due_at(source.sub_queues[MAIN].ready[0].enqueued_ms + default_ttl)
        self.fresh.add((source.source_no, MAIN))

    def index_expiry(self, source: Source, message: QueuedMessage, *, always: bool) -> None:
        """Enter a message into the expiry index: one with its own time to live, or one out of the ready order."""
        if message.expires_ms:
            return
        own = message.metadata.ttl_ms if message.metadata is not None else None
        if own is None and not always:
            return
        life = effective_ttl(own, source.settings.default_ttl_ms)
        if life is not None:
            message.expires_ms = message.enqueued_ms + life
            heappush(source.expiring, (message.expires_ms, message.count))
            self.due_at(message.expires_ms)

    # -- locks --------------------------------------------------------------------------------------------------

    def available(self, source_no: int, sub_queue: int) -> int:
        """Messages that a take would find and that are not promised to anyone."""
        queued = self.sources[source_no].sub_queues[sub_queue]
        return queued.available() - queued.promised

    def lock(self, source_no: int, sub_queue: int, limit: int, now_ms: int) -> tuple[int, list[QueuedMessage], int]:
        """Peek-lock up to ``limit`` messages: (first lock counter, messages, end of the locks). Needs no commit."""
        source = self.sources[source_no]
        messages = source.sub_queues[sub_queue].take(limit)
        first, until_ms = self._lock_messages(source, messages, now_ms)
        # take() is ascending, so the last is the highest.
        if messages and sub_queue == MAIN and messages[-1].count > source.highest_delivered:
            source.highest_delivered = messages[-1].count
            self.dirty.add(source_no)
        return first, messages, until_ms

    def lock_deferred(
        self, source_no: int, sub_queue: int, counts: Sequence[int], now_ms: int
    ) -> tuple[int, list[QueuedMessage], int]:
        """Lock deferred messages by number; all of them, or MessageNotFound for the first that is not deferred."""
        source = self.sources[source_no]
        error = self.find_fault(source, counts, state_of(sub_queue, DEFERRED), "deferred", now_ms)
        if error is not None:
            raise error
        messages = [source.by_count[count] for count in counts]
        first, until_ms = self._lock_messages(source, messages, now_ms)
        return first, messages, until_ms

    def _lock_messages(self, source: Source, messages: list[QueuedMessage], now_ms: int) -> tuple[int, int]:
        duration = source.settings.lock_duration_ms
        until_ms = now_ms + duration
        first = lock = self.next_lock
        locks = source.locks
        for message in messages:
            message.lock = lock
            locks[lock] = message
            lock += 1
            if message.deliveries:
                # A redelivery's count rides in the next commit; a first delivery is covered by highest_delivered.
                source.touched[message.count] = message
        self.next_lock = lock
        if messages:
            self._lock_ends(source, duration, until_ms, first, len(messages))
        return first, until_ms

    def _lock_ends(self, source: Source, duration: int, until_ms: int, first: int, number: int) -> None:
        ends = source.ends.get(duration)
        if ends is None:
            source.ends[duration] = ends = deque()
        ends.append((until_ms, first, number))
        self.due_at(until_ms)

    def renew(self, source_no: int, locks: Sequence[int], now_ms: int) -> int | None:
        """Renew locks: their new end, or None when one of them is not held (then none is renewed)."""
        source = self.sources[source_no]
        if not all(lock in source.locks for lock in locks) or self._any_in_session(source, locks):
            return None
        duration = source.settings.lock_duration_ms
        until_ms = now_ms + duration
        for lock in locks:
            source.renewed[lock] = until_ms
            self._lock_ends(source, duration, until_ms, lock, 1)
        return until_ms

    @staticmethod
    def _any_in_session(source: Source, locks: Sequence[int]) -> bool:
        """Whether one of these locks lasts as long as its session's, which alone can be renewed."""
        return source.sessions is not None and any(sub_queue_of(source.locks[lock].state) == MAIN for lock in locks)

    def unlock(self, source_no: int, ranges: Iterable[tuple[int, int]], now_ms: int, *, counted: bool) -> list[Command]:
        """Give locked messages back: to the front, at once (I19, I20). Returns what needs a commit.

        ``counted``: the delivery counts (connection gone); otherwise it does not (``released``).
        """
        source = self.sources[source_no]
        keeping = Housekeeping(self.handle, source_no)
        locks = source.locks
        for first, number in ranges:
            for lock in range(first, first + number):
                message = locks.pop(lock, None)
                if message is not None:
                    source.renewed.pop(lock, None)
                    self.return_message(source, message, now_ms, counted=counted, keeping=keeping)
        return [keeping] if keeping.expired or keeping.exhausted else []

    def return_message(
        self, source: Source, message: QueuedMessage, now_ms: int, *, counted: bool, keeping: Housekeeping
    ) -> None:
        """A lock ended without settlement: back to the front, unless the message has run out of life or attempts."""
        message.lock = 0
        if counted and sub_queue_of(message.state) == MAIN:
            # In a dead-letter queue the count stays what it was (docs/reference/errata.md).
            message.deliveries += 1
        if message.deliveries or source.sessions is not None:
            source.touched[message.count] = message
        if self.is_exhausted(source, message):
            message.lock = RESERVED
            keeping.exhausted.append(message)
        elif self.is_expired(source, message, now_ms):
            message.lock = RESERVED
            keeping.expired.append(message)
        else:
            self.place(source, message, in_order=False)

    @staticmethod
    def is_exhausted(source: Source, message: QueuedMessage) -> bool:
        """Whether an active message has used up its deliveries; dead letters never do."""
        return sub_queue_of(message.state) == MAIN and message.deliveries >= source.settings.max_delivery_count

    @classmethod
    def is_expired(cls, source: Source, message: QueuedMessage, now_ms: int) -> bool:
        """Whether a message has to go because it has run out of life; a deferred one stays until it is asked for."""
        return kind_of(message.state) != DEFERRED and cls.has_run_out(source, message, now_ms)

    @staticmethod
    def has_run_out(source: Source, message: QueuedMessage, now_ms: int) -> bool:
        """Whether a message in the main sub-queue has run out of life; one that is scheduled has not begun it."""
        if sub_queue_of(message.state) != MAIN or message.state == SCHEDULED:
            return False
        own = message.metadata.ttl_ms if message.metadata is not None else None
        life = effective_ttl(own, source.settings.default_ttl_ms)
        return life is not None and message.enqueued_ms + life <= now_ms

    # -- what rides in a commit ---------------------------------------------------------------------------------

    def touch(self, source: Source, commit: CommitBatch, room: int) -> int:
        """Write the source's row and up to ``room`` changed delivery counts into a commit (decision 0019).

        Returns:
            How many were looked at; the rest rides in the next commit.
        """
        looked_at = self._write_counts(source, commit, room) if source.touched or source.sessions is not None else 0
        if source.history is not None:
            source.history.write_outdated(source.source_key, commit)
        commit.sources.append((source.source_key, source.next_count, source.highest_delivered, source.counters()))
        return looked_at

    @staticmethod
    def _write_counts(source: Source, commit: CommitBatch, room: int) -> int:
        touched = source.touched
        counts = changed_counts(source, room)
        for count in counts:
            message = touched.pop(count)
            # Only what still exists and was not written by this commit's own commands.
            if source.by_count.get(count) is message and message.state != GONE:
                is_counted = message.lock > 0 and sub_queue_of(message.state) == MAIN
                settlement.write(source, message, commit, deliveries=message.deliveries + (1 if is_counted else 0))
        return len(counts)
