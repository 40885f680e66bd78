"""Housekeeping: what time makes of messages. They expire, use up their deliveries, fall due, or come back."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from duobus.fragment import forward_dedup, settlement
from duobus.fragment.commands import Command
from duobus.fragment.message import (
    ACTIVE,
    DEAD_LETTER,
    DELAYED,
    GONE,
    MAIN,
    RESERVED,
    QueuedMessage,
    effective_ttl,
    kind_of,
    stored_state,
    sub_queue_of,
)
from duobus.fragment.topics import fanout
from duobus.model.metadata import MessageMetadata
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source


class Housekeeping(Command):
    """What time has made of the messages of one source: the fragment itself asks for it.

    Attributes:
        expired: Ran out of life: removed, or dead-lettered with TTLExpiredException.
        exhausted: Reached MaxDeliveryCount: dead-lettered.
        due: Scheduled messages whose time has come.
        at_topic: They are messages of a topic, for its subscriptions.
        copies: After apply, at a topic: what each subscription gets of those.
        effort: As of a Run.
    """

    __slots__ = ("at_topic", "copies", "due", "due_messages", "effort", "exhausted", "expired")

    def __init__(self, handle: Any, source_no: int) -> None:
        super().__init__(handle, source_no, None)
        self.expired: list[QueuedMessage] = []
        self.exhausted: list[QueuedMessage] = []
        self.due: list[QueuedMessage] = []
        self.due_messages: list[QueuedMessage] = []
        self.at_topic = False
        self.copies: list[fanout.Copies] = []
        self.effort = 0

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Dead-letter, remove and activate what time has caught up with."""
        for message in self.exhausted:
            settlement.dead_letter(
                source, message, settlement.MAX_DELIVERY_COUNT_EXCEEDED, settlement.exhausted_text(source)
            )
            settlement.change(source, message, commit, deliveries=message.deliveries)
        if source.settings.dead_letter_on_expiration:
            for message in self.expired:
                settlement.dead_letter(source, message, settlement.TTL_EXPIRED, settlement.TTL_TEXT)
                settlement.change(source, message, commit, deliveries=message.deliveries)
        else:
            source.uncount(self.expired)
            source.write_removals(self.expired, commit)
        if self.due and not self.at_topic:
            self._activate(fragment, source, now_ms, commit)
        if self.at_topic and fragment.topic is not None:
            fanout.activate(fragment, fragment.topic, self, now_ms, commit)

    def _activate(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Activation gives a new number; the first stays as the enqueued sequence number."""
        first = source.next_count
        all_metadata: dict[int, tuple[int, int, bytes | None]] = {}
        for old in self.due:
            message = QueuedMessage(source.next_count, old.payload, now_ms)
            source.next_count += 1
            metadata = MessageMetadata.decode(old.metadata.encode()) if old.metadata is not None else MessageMetadata()
            metadata.enqueued_sequence_number = fragment.number << 48 | old.count
            message.metadata = metadata
            # The sender's annotation is shown as it was sent, but it no longer schedules anything.
            all_metadata[len(self.due_messages)] = (stored_state(ACTIVE, metadata), 0, metadata.encode())
            self.due_messages.append(message)
        source.uncount(self.due)
        for message in self.due_messages:
            source.counted(message.state, 1)
            source.bytes += len(message.payload)
        source.write_removals(self.due, commit)
        commit.puts.append(
            Put(source.source_key, first, now_ms, [message.payload for message in self.due_messages], all_metadata)
        )

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Make what was done visible: dead letters, activated messages, and what subscriptions got of those."""
        for message in self.exhausted:
            message.lock = 0
            fragment.place(source, message, in_order=False)
        for message in self.expired:
            if sub_queue_of(message.state) == DEAD_LETTER:
                message.lock = 0
                fragment.place(source, message, in_order=False)
            else:
                source.forget(message)
        for message in self.due:
            source.forget(message)
        fragment.release_with_metadata(source, self.due_messages)
        fanout.release(fragment, self.copies)
        if self.due:
            source.is_activating = False
            fragment.due_at(now_ms)

    def weight(self) -> tuple[int, int]:
        """What the rules of a topic did for it, in messages."""
        return self.effort, 0


# Messages that are put off: see ``settlement.put_off``.


def park(fragment: Fragment, source: Source, message: QueuedMessage) -> None:
    """Keep a message away until its instant."""
    assert message.metadata is not None
    at_ms = message.metadata.redeliver_at_ms
    assert at_ms is not None
    life = effective_ttl(message.metadata.ttl_ms, source.settings.default_ttl_ms)
    if life is not None:
        # It is not away for longer than it lives.
        at_ms = min(at_ms, message.enqueued_ms + life)
    message.lock = DELAYED
    heappush(source.delayed, (at_ms, message.count))
    fragment.due_at(at_ms)


def wake(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Make those available whose instant has come; one that has run out of life meanwhile expires."""
    delayed = source.delayed
    while delayed and delayed[0][0] <= now_ms:
        _, count = heappop(delayed)
        message = source.by_count.get(count)
        if message is None or message.lock != DELAYED or message.metadata is None:
            continue
        message.metadata.redeliver_at_ms = None
        message.lock = 0
        if fragment.is_expired(source, message, now_ms):
            message.lock = RESERVED
            keeping.expired.append(message)
        else:
            fragment.place(source, message, in_order=False)
    if delayed:
        fragment.due_at(delayed[0][0])


# Messages that have run out of life, found by order for the entity's default and by index for their own time.


def expire(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Collect what has run out of life; locked messages do not."""
    default_ttl = source.settings.default_ttl_ms
    ready = source.sub_queues[MAIN].ready
    if default_ttl is not None:
        while ready and (ready[0].state == GONE or ready[0].enqueued_ms + default_ttl <= now_ms):
            if (
                source.settings.forwards
                and ready[0].state != GONE
                and forward_dedup.is_in_doubt(source, ready[0].count)
            ):
                # Its forwarder takes it from here soon.
                break
            message = ready.popleft()
            if message.state == GONE:
                source.sub_queues[MAIN].stale -= 1
            else:
                # One with a life of its own stands in the index below, too, and must not expire twice.
                message.expires_ms = 0
                keeping.expired.append(message)
        if ready:
            due_ms = ready[0].enqueued_ms + default_ttl
            fragment.due_at(due_ms if due_ms > now_ms else now_ms + forward_dedup.LOOK_MS)
    _expire_own(fragment, source, now_ms, keeping)


def _expire_own(fragment: Fragment, source: Source, now_ms: int, keeping: Housekeeping) -> None:
    """Those with a time to live of their own, and those that left the order of the others."""
    expiring = source.expiring
    while expiring and expiring[0][0] <= now_ms:
        expires_ms, count = heappop(expiring)
        found = source.by_count.get(count)
        # A locked message does not expire under its holder (I22); its return looks at the time again.
        if found is None:
            if source.is_paged_out(count) and not (
                source.settings.forwards and forward_dedup.is_in_doubt(source, count)
            ):
                source.tail_due.append(count)
            continue
        if found.expires_ms != expires_ms:
            continue
        # The entry is used up; a message that was paged in may stand here twice, and must not expire twice.
        found.expires_ms = 0
        if found.lock:
            continue
        if source.settings.forwards and kind_of(found.state) == ACTIVE and forward_dedup.is_in_doubt(source, count):
            continue
        # Only what stands in a list of the main sub-queue has to leave it.
        keeping.expired.append(source.withdraw(found) if kind_of(found.state) == ACTIVE else found)
    if expiring:
        fragment.due_at(expiring[0][0])
