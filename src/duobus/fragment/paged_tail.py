"""The paged tail: messages that lie in the store only, because no receiver is near them yet (decision 0013).

Resident are the head window and whatever is locked, deferred, scheduled or dead. A deep queue costs its window, and
a recovery does not grow with the backlog.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

from duobus.fragment.commands import Command
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import (
    ACTIVE,
    MAIN,
    NEVER,
    RESERVED,
    QueuedCopy,
    QueuedMessage,
    effective_ttl,
    state_in_memory,
)
from duobus.model.metadata import MessageMetadata
from duobus.storage.interface import PlainColumns, StoredMessage

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source


def recovered(fragment: Fragment, source_no: int) -> None:
    """All that recovery reads has been taken in; whatever else is active is the paged tail.

    Dead, deferred and scheduled messages that the store could not give back count no more (I57).
    """
    source = fragment.sources[source_no]
    counted, source.numbers = source.numbers, [0] * len(source.numbers)
    for message in source.by_count.values():
        source.counted(message.state, 1)
    size = sum(len(message.payload) for message in source.by_count.values())
    if source.sessions is not None:
        # All of it has been read: the sessions of the messages have to be known.
        source.missing = sum(counted) - sum(source.numbers)
        source.bytes = size
        return
    source.missing = sum(counted[MAIN + 1 :]) - sum(source.numbers[MAIN + 1 :])
    source.tail_count = counted[MAIN] - source.numbers[MAIN]
    source.numbers[MAIN] = counted[MAIN]
    if not source.tail_count:
        source.bytes = size
    source.tail_bytes = source.bytes - size
    source.tail_first = source.highest_delivered + 1 if source.tail_count else 0
    source.tail_end = source.next_count


def note_expiry(fragment: Fragment, source_no: int, row: StoredMessage) -> None:
    """Recovery met a message with a time to live of its own in the paged tail: only its end is kept."""
    metadata = MessageMetadata.decode(row.metadata) if row.metadata is not None else None
    note_paged_expiry(fragment, fragment.sources[source_no], row.count, row.enqueued_ms, metadata)


def note_paged_expiry(
    fragment: Fragment, source: Source, count: int, enqueued_ms: int, metadata: MessageMetadata | None
) -> None:
    """Note when a paged message with a time to live of its own ends."""
    own = metadata.ttl_ms if metadata is not None else None
    life = effective_ttl(own, source.settings.default_ttl_ms)
    if own is not None and life is not None:
        heappush(source.expiring, (enqueued_ms + life, count))
        fragment.due_at(enqueued_ms + life)


def page_in(fragment: Fragment, source_no: int, rows: list[StoredMessage], *, is_last: bool) -> int:
    """Take a page of the paged tail into the head window; returns how many messages turned out to be missing.

    ``rows`` are the source's rows from ``tail_first`` on; ``is_last``: there are none behind them. Rows that the
    store could not verify are missing for good: it has quarantined and reported them (I57).
    """
    source = fragment.sources[source_no]
    source.is_paging = False
    number = size = plain = plain_size = 0
    next_count = source.tail_first
    by_count, ready = source.by_count, source.sub_queues[MAIN].ready
    for row in rows:
        count = row.count
        next_count = count + 1
        # Scheduled and dead messages are in memory anyway, and so is what is being disposed of.
        if count in by_count or state_in_memory(row.state) != ACTIVE:
            continue
        if row.state == ACTIVE and row.metadata is None and not row.deliveries and not row.origin:
            # ``place`` of a plain message comes to this.
            message = by_count[count] = QueuedMessage(count, row.payload, row.enqueued_ms)
            ready.append(message)
            plain += 1
            plain_size += len(row.payload)
            continue
        message = message_of_row(row)
        source.keep(message)
        fragment.place(source, message, in_order=True)
        number += 1
        size += len(message.payload)
    if plain:
        number += plain
        size += plain_size
        source.memory_bytes += plain_size
        fragment.paged(source)
    source.paged_in(number, size, next_count)
    missing = source.tail_count if is_last else 0
    if is_last:
        # Whatever is left of number or bytes belongs to messages that could not be read.
        source.numbers[MAIN] -= missing
        source.bytes -= source.tail_bytes
        source.paged_in(missing, source.tail_bytes, 0)
        fragment.dirty.add(source_no)
    return missing


class TailPage:
    """Plain messages of a paged tail, their counts consecutive, ready to be taken in; any thread may make it.

    Attributes:
        first_count: Of the first.
        end_count: Behind the last.
        size: Bytes of all payloads.
        messages: The messages.
    """

    __slots__ = ("end_count", "first_count", "messages", "size")

    def __init__(self, plain: PlainColumns, first: int, limit: int) -> None:
        """Up to ``limit`` messages of ``plain``, from the one with index ``first`` on."""
        payloads = plain.payloads[first : first + limit]
        self.first_count = plain.first_count + first
        self.end_count = self.first_count + len(payloads)
        self.size = sum(map(len, payloads))
        # ``place`` of plain messages comes to this.
        counts = range(self.first_count, self.end_count)
        self.messages = list(map(QueuedMessage, counts, payloads, plain.enqueued_ms[first : first + limit]))


def is_kept_in_memory(source: Source, part: TailPage) -> bool:
    """Whether none of these messages is in memory."""
    return source.by_count.keys().isdisjoint(range(part.first_count, part.end_count))


def take_in(fragment: Fragment, source_no: int, part: TailPage) -> None:
    """Take plain messages of the paged tail that are ``is_apart`` into the head window."""
    source = fragment.sources[source_no]
    messages = part.messages
    source.by_count.update(zip(range(part.first_count, part.end_count), messages, strict=True))
    source.sub_queues[MAIN].ready.extend(messages)
    source.memory_bytes += part.size
    fragment.paged(source)
    source.paged_in(len(messages), part.size, part.end_count)


def fetched(fragment: Fragment, source_no: int, rows: list[StoredMessage]) -> list[Command]:
    """Dispose of paged messages whose time to live has ended; returns what needs a commit."""
    source = fragment.sources[source_no]
    source.is_paging = False
    keeping = Housekeeping(fragment.handle, source_no)
    due = set(source.tail_due)
    for row in rows:
        if row.count not in due or not source.is_paged_out(row.count) or state_in_memory(row.state) != ACTIVE:
            continue
        message = message_of_row(row)
        source.keep(message)
        message.lock = RESERVED
        keeping.expired.append(message)
    number, size = len(keeping.expired), sum(len(message.payload) for message in keeping.expired)
    source.paged_in(number, size, source.tail_first)
    # Those behind the last row come with the next fetch.
    last = rows[-1].count if rows else NEVER
    source.tail_due = sorted(count for count in due if count > last and source.is_paged_out(count))
    return [keeping] if keeping.expired else []


def message_of_row(row: StoredMessage) -> QueuedMessage:
    """A message as the store gave it back."""
    message = QueuedMessage(row.count, row.payload, row.enqueued_ms)
    if row.origin:
        message = QueuedCopy(row.count, row.payload, row.enqueued_ms, row.origin)
    message.state = state_in_memory(row.state)
    message.deliveries = row.deliveries
    if row.metadata is not None:
        message.metadata = MessageMetadata.decode(row.metadata)
    return message
