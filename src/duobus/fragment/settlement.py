"""Settlement inside a fragment: complete, abandon, defer, dead-letter, and what time does of the same kind.

Apply writes the records and takes the messages out of everyone's reach; release puts them where they belong.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from duobus.codec.decoder import decode as decode_value
from duobus.codec.encoder import encode
from duobus.errors import MessageLockLost, NotAllowed, ServiceBusError
from duobus.fragment import housekeeping as redelivery
from duobus.fragment.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER_OUTCOME,
    DEFER,
    Housekeeping,
    SettleBatch,
    SettleDetail,
)
from duobus.fragment.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    RESERVED,
    QueuedMessage,
    state_of,
    stored_state,
    sub_queue_of,
)
from duobus.fragment.sessions import sessions
from duobus.model.metadata import MessageMetadata, encoded, own
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source

#: Contract chapter 15: longer texts are cut.
DEAD_LETTER_TEXT_MAX: Final = 4096

_COUNT: Final = attrgetter("count")
_PAYLOAD: Final = attrgetter("payload")
_STATE: Final = attrgetter("state")

MAX_DELIVERY_COUNT_EXCEEDED: Final = "MaxDeliveryCountExceeded"
TTL_EXPIRED: Final = "TTLExpiredException"


def lock_lost() -> MessageLockLost:
    """The error of a settlement or renewal whose lock is gone."""
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        "queue. Receive the message again."
    )


def check(fragment: Fragment, command: SettleBatch) -> ServiceBusError | None:
    """Refuse settlements that cannot be done at all; single lost locks of a plain one are reported apart."""
    source = fragment.sources[command.source_no]
    if command.prefix != fragment.prefix:
        # A token of an earlier life of the fragment, or a forged one (I3).
        return lock_lost()
    if command.strict:
        error = sessions.settle_fault(source, command) if source.sessions is not None else None
        if error is not None:
            return error
        for first, number in command.ranges:
            if not all(lock in source.locks for lock in range(first, first + number)):
                return lock_lost()
    if command.outcome == ABANDON:
        return redelivery.fault(source.settings, command.detail)
    return _dead_letter_fault(source, command) if command.outcome == DEAD_LETTER_OUTCOME else None


def _dead_letter_fault(source: Source, command: SettleBatch) -> ServiceBusError | None:
    for first, number in command.ranges:
        for lock in range(first, first + number):
            slot = source.locks.get(lock)
            if slot is not None and sub_queue_of(slot.state) != MAIN:
                return NotAllowed("A dead letter cannot be dead-lettered again. Complete it instead.")
    return None


def apply(fragment: Fragment, source: Source, command: SettleBatch, now_ms: int, commit: CommitBatch) -> None:
    """Take the messages out of their locks and write down what becomes of them."""
    slots = command.slots
    if not command.is_claimed:
        _find_locked(source, command)
    if source.renewed:
        for slot in slots:
            source.renewed.pop(slot.lock, None)
    if command.outcome == COMPLETE:
        command.size = _uncount_all(source, slots)
        if source.sessions is not None:
            # They came session by session; in order of count they are ranges again.
            slots.sort(key=_COUNT)
        removals(source, slots, commit)
        return
    for slot in slots:
        slot.lock = RESERVED
        _apply_other(fragment, source, slot, command, now_ms, commit)


def _find_locked(source: Source, command: SettleBatch) -> None:
    pop = source.locks.pop
    slots = command.slots
    lost = command.lost
    for first, number in command.ranges:
        for lock in range(first, first + number):
            slot = pop(lock, None)
            if slot is None:
                lost.append(lock)
            else:
                slots.append(slot)
    if source.sessions is not None and command.outcome == ABANDON:
        sessions.expect(source.sessions, command, slots)


def _apply_other(
    fragment: Fragment, source: Source, slot: QueuedMessage, command: SettleBatch, now_ms: int, commit: CommitBatch
) -> None:
    detail = command.detail
    if detail is not None and detail.properties:
        is_abandon = command.outcome == ABANDON
        properties = redelivery.without_delay(source.settings, detail.properties) if is_abandon else detail.properties
        overlay(slot, properties)
    if command.outcome == ABANDON:
        if sub_queue_of(slot.state) == MAIN:
            # In a dead-letter queue the count stays what it was (contract chapter E, 8.4).
            slot.deliveries += 1
        if fragment.is_exhausted(source, slot):
            dead_letter(source, slot, MAX_DELIVERY_COUNT_EXCEEDED, exhausted_text(source))
        elif fragment.is_expired(source, slot, now_ms) and source.settings.dead_letter_on_expiration:
            dead_letter(source, slot, TTL_EXPIRED, TTL_TEXT)
        else:
            redelivery.put_off(source, slot, detail, now_ms)
    elif command.outcome == DEFER:
        source.counted(slot.state, -1)
        slot.state = state_of(sub_queue_of(slot.state), DEFERRED)
        source.counted(slot.state, 1)
        # It expires only when it is asked for: see ``Fragment.find_fault``.
        slot.expires_ms = 0
        if slot.count < source.inherited:
            slot.metadata = own(slot.metadata)
            slot.metadata.deferred_in = fragment.epoch & 0xFFFFFFFF
    else:
        assert command.outcome == DEAD_LETTER_OUTCOME
        detail = detail or SettleDetail(None, None, None)
        dead_letter(source, slot, detail.reason, detail.description)
    change(source, slot, commit, deliveries=slot.deliveries)


def release(fragment: Fragment, source: Source, command: SettleBatch, now_ms: int) -> None:
    """Removals final, the rest available in its new place."""
    if command.outcome == COMPLETE:
        _forget_all(source, command.slots, command.size)
    else:
        for slot in command.slots:
            slot.lock = 0
            fragment.place(source, slot, in_order=False)
        if command.expected:
            sessions.returned(fragment, source, command)
    command.slots = []


def _uncount_all(source: Source, slots: list[QueuedMessage]) -> int:
    """``Source.uncount`` for the hot end of every message's life; returns the bytes of all."""
    numbers = source.numbers
    for state in filter(None, map(_STATE, slots)):
        source.counted(state, -1)
        numbers[MAIN] += 1
    numbers[MAIN] -= len(slots)
    size = sum(map(len, map(_PAYLOAD, slots)))
    source.bytes -= size
    return size


def _forget_all(source: Source, slots: list[QueuedMessage], size: int) -> None:
    """``Source.forget`` for a list of so many bytes."""
    by_count = source.by_count
    for count in map(_COUNT, slots):
        del by_count[count]
    for slot in slots if source.expiring else ():
        slot.expires_ms = 0
    source.memory_bytes -= size


def apply_housekeeping(
    source: Source, command: Housekeeping, now_ms: int, commit: CommitBatch, fragment_number: int
) -> None:
    """Dead-letter, remove and activate what time has caught up with."""
    for slot in command.exhausted:
        dead_letter(source, slot, MAX_DELIVERY_COUNT_EXCEEDED, exhausted_text(source))
        change(source, slot, commit, deliveries=slot.deliveries)
    if source.settings.dead_letter_on_expiration:
        for slot in command.expired:
            dead_letter(source, slot, TTL_EXPIRED, TTL_TEXT)
            change(source, slot, commit, deliveries=slot.deliveries)
    else:
        source.uncount(command.expired)
        removals(source, command.expired, commit)
    if command.due and not command.at_topic:
        _apply_due(source, command, now_ms, commit, fragment_number)


def _apply_due(source: Source, command: Housekeeping, now_ms: int, commit: CommitBatch, fragment_number: int) -> None:
    """Activation gives a new number; the first stays as the enqueued sequence number (contract 13.1)."""
    first = source.next_count
    all_metadata: dict[int, tuple[int, int, bytes | None]] = {}
    for old in command.due:
        slot = QueuedMessage(source.next_count, old.payload, now_ms)
        source.next_count += 1
        metadata = MessageMetadata.decode(old.metadata.encode()) if old.metadata is not None else MessageMetadata()
        metadata.enqueued_sequence_number = fragment_number << 48 | old.count
        slot.metadata = metadata
        # The sender's annotation is shown as it was sent, but it no longer schedules anything.
        all_metadata[len(command.due_slots)] = (stored_state(ACTIVE, metadata), 0, metadata.encode())
        command.due_slots.append(slot)
    source.uncount(command.due)
    for slot in command.due_slots:
        source.counted(slot.state, 1)
        source.bytes += len(slot.payload)
    removals(source, command.due, commit)
    commit.puts.append(
        Put(source.source_key, first, now_ms, [slot.payload for slot in command.due_slots], all_metadata)
    )


def release_housekeeping(fragment: Fragment, source: Source, command: Housekeeping) -> None:
    """Make the work of ``apply_housekeeping`` visible."""
    for slot in command.exhausted:
        slot.lock = 0
        fragment.place(source, slot, in_order=False)
    for slot in command.expired:
        if sub_queue_of(slot.state) == DEAD_LETTER:
            slot.lock = 0
            fragment.place(source, slot, in_order=False)
        else:
            source.forget(slot)
    for slot in command.due:
        source.forget(slot)
    fragment.release_with_metadata(source, command.due_slots)


def dead_letter(source: Source, slot: QueuedMessage, reason: str | None, description: str | None) -> None:
    """Turn a message into a dead letter: one record, atomic by nature (I23)."""
    source.counted(slot.state, -1)
    slot.state = state_of(DEAD_LETTER, ACTIVE)
    source.counted(slot.state, 1)
    slot.expires_ms = 0
    metadata = slot.metadata = own(slot.metadata)
    metadata.reason = reason[:DEAD_LETTER_TEXT_MAX] if reason is not None else None
    metadata.description = description[:DEAD_LETTER_TEXT_MAX] if description is not None else None


def overlay(slot: QueuedMessage, properties: dict[str, Any]) -> None:
    """Lay application properties over the message's own; the bytes that came stay as they are (design 3.12)."""
    metadata = slot.metadata = own(slot.metadata)
    merged: dict[str, Any] = {}
    if metadata.overlay is not None:
        merged.update(decode_value(metadata.overlay)[0])
    merged.update(properties)
    metadata.overlay = encode(merged)


def change(source: Source, slot: QueuedMessage, commit: CommitBatch, *, deliveries: int) -> None:
    """Write a message's new state into a commit, its delivery count included."""
    write(source, slot, commit, deliveries=deliveries)
    source.touched.pop(slot.count, None)


def write(source: Source, slot: QueuedMessage, commit: CommitBatch, *, deliveries: int) -> None:
    """Write a message's row into a commit."""
    metadata = encoded(slot.metadata) if slot.metadata is not None else None
    state = stored_state(slot.state, slot.metadata)
    commit.changes.append((source.source_key, slot.count, state, deliveries, metadata))


def removals(source: Source, slots: list[QueuedMessage], commit: CommitBatch) -> None:
    """Write the removal of messages into a commit, neighbours as one range."""
    if not slots:
        return
    if source.touched:
        for slot in slots:
            source.touched.pop(slot.count, None)
    key = source.source_key
    removed = commit.removed
    first = last = slots[0].count
    for slot in slots:
        count = slot.count
        if count == last + 1:
            last = count
        elif count != last:
            removed.append((key, first, last))
            first = last = count
    removed.append((key, first, last))


def exhausted_text(source: Source) -> str:
    """The description under which a message leaves that was delivered too often."""
    return (
        "Message could not be consumed after "
        f"{source.settings.max_delivery_count} delivery attempts (MaxDeliveryCount of the entity)."
    )


TTL_TEXT: Final = "The message expired and was dead lettered."
