"""Looking into a fragment without changing it: what is in memory, a bounded stretch at a time (I30)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from duobus.fragment.message import DEFERRED, RESERVED, QueuedMessage, kind_of, message_like, sub_queue_of
from duobus.fragment.paged_tail import message_of_row
from duobus.storage.interface import StoredMessage

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source

#: Counts looked at in one go: about a millisecond.
SPAN = 20_000
#: Counts from which on it is worth while to look for the next one that is there: a restored backup leaves out as many
#: as may have been given out since (``storage/backup/restore.py``).
HOLE_LEAST: Final = 1 << 32
#: What a message takes in a reply beside its own bytes, about: header, annotations, and a place in a list.
ENVELOPE_BYTES = 200


class PeekProgress:
    """What somebody who peeks is still looking for.

    Attributes:
        sub_queue: Where.
        first: Lowest count that was not looked at yet.
        limit: Messages that are still wanted.
        session_id: Only messages of this session; None: of any and of none.
        partition_key: The same for the key by which the sender chose the fragment.
        size: Bytes that there is still room for; the message that passes it is found all the same.
        found: Copies of the messages so far: others go on with the messages themselves before a reply is written.
        is_early: A commit that is not durable yet disposes of one of them, so the reply has to wait for it.
    """

    __slots__ = ("first", "found", "is_early", "limit", "partition_key", "session_id", "size", "sub_queue")

    def __init__(
        self,
        sub_queue: int,
        first: int,
        limit: int,
        size: int,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.sub_queue = sub_queue
        self.first = max(first, 1)
        self.limit = limit
        self.size = size
        self.session_id = session_id
        self.partition_key = partition_key
        self.found: list[QueuedMessage] = []
        self.is_early = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more is wanted."""
        return self.limit <= 0 or self.size <= 0

    def offer(self, fragment: Fragment, source: Source, message: QueuedMessage, now_ms: int) -> None:
        """Take a message if it is one of those sought; those elsewhere and expired ones are not."""
        if sub_queue_of(message.state) != self.sub_queue:
            return
        metadata = message.metadata
        if self.session_id is not None and (metadata is None or metadata.session_id != self.session_id):
            return
        if self.partition_key is not None and (metadata is None or metadata.partition_key != self.partition_key):
            return
        if _shows(fragment, source, message, now_ms):
            self.found.append(_copy(message))
            self.is_early = self.is_early or message.lock == RESERVED
            self.limit -= 1
            self.size -= len(message.payload) + ENVELOPE_BYTES


def peek(fragment: Fragment, source_no: int, sought: PeekProgress, end: int, now_ms: int) -> bool:
    """Look at messages in memory with counts below ``end``, ascending; True when there are none left to look at."""
    source = fragment.sources[source_no]
    by_count = source.by_count
    last = min(end, source.next_count)
    counts: Iterable[int]
    if last - sought.first <= 4 * len(by_count) or len(by_count) > SPAN:
        first = sought.first
        if last - first > HOLE_LEAST:
            first = min((count for count in by_count if count >= first), default=last)
        stop = min(last, first + SPAN)
        counts = range(first, stop)
    else:
        # Few are left of many that were there once.
        stop = last
        counts = sorted(count for count in by_count if sought.first <= count < last)
    for count in counts:
        if sought.is_full:
            sought.first = count
            return False
        message = by_count.get(count)
        if message is not None:
            sought.offer(fragment, source, message, now_ms)
    sought.first = max(sought.first, stop)
    return sought.first >= last


def peek_rows(
    fragment: Fragment, source_no: int, sought: PeekProgress, rows: Iterable[StoredMessage], now_ms: int
) -> None:
    """The same for rows that the store gave; memory knows better where it has them."""
    source = fragment.sources[source_no]
    for row in rows:
        if sought.is_full:
            return
        sought.first = row.count + 1
        message = source.by_count.get(row.count)
        if message is None and source.is_paged_out(row.count):
            message = message_of_row(row)
        if message is not None:
            sought.offer(fragment, source, message, now_ms)


def _copy(message: QueuedMessage) -> QueuedMessage:
    if type(message) is QueuedMessage:
        copy = QueuedMessage(message.count, message.payload, message.enqueued_ms)
    else:
        copy = message_like(message)
    copy.state = message.state
    copy.deliveries = message.deliveries
    copy.lock = message.lock
    copy.metadata = message.metadata
    return copy


def _shows(fragment: Fragment, source: Source, message: QueuedMessage, now_ms: int) -> bool:
    """Whether a message is to be seen: it has life left, or is deferred, or its life has not begun."""
    if kind_of(message.state) != DEFERRED:
        return not fragment.is_expired(source, message, now_ms)
    if message.expires_ms or message.lock == RESERVED:
        # It was asked for, and is about to be disposed of if it has run out of life.
        return not fragment.has_run_out(source, message, now_ms)
    return True
