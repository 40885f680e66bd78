"""Forwarding inside a fragment: messages are taken from their list, leave, or go to the transfer dead-letter queue.

What is taken stands in no list and has no lock that time could end; its own life does not end either until it is given
back. Nothing of it is written before it leaves, so a crash simply finds it where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from duobus.codec.decoder import decode as decode_value
from duobus.codec.encoder import encode
from duobus.errors import InternalError, ServiceBusError
from duobus.fragment import forward_dedup
from duobus.fragment.commands import Command
from duobus.fragment.housekeeping import Housekeeping
from duobus.fragment.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    FORWARDING,
    MAIN,
    RESERVED,
    TRANSFER,
    TRANSFER_DEAD_LETTER,
    QueuedCopy,
    QueuedMessage,
    effective_ttl,
    kind_of,
    state_of,
    stored_state,
    sub_queue_of,
)
from duobus.fragment.settlement import change
from duobus.fragment.source import over_quota
from duobus.model.metadata import MessageMetadata, TransferRoute
from duobus.model.overlay import Overlay
from duobus.storage.interface import CommitBatch, Put

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.sessions.sessions import Sessions
    from duobus.fragment.source import Source
    from duobus.model.batches import Mailbox
    from duobus.storage.interface import CommitBatch

#: Hops of one message (Azure: autoforwarding); with the next it goes to the transfer dead-letter queue (I41).
HOPS_MAX: Final = 4
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
HOPS_TEXT: Final = f"The message was forwarded {HOPS_MAX} times already, which is the most that is allowed."

#: Texts that go into the transfer dead-letter queue with a message are cut.
_TEXT_MAX: Final = 4096
_TRANSFER_DEAD: Final = state_of(TRANSFER_DEAD_LETTER, ACTIVE)


class TransferCommand(Command):
    """Parent of what becomes of messages that were taken.

    Attributes:
        messages: The messages.
    """

    __slots__ = ("messages",)

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None, messages: list[QueuedMessage]) -> None:
        super().__init__(handle, source_no, reply)
        self.messages = messages

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why it cannot be done, or None: only what was taken, in this life of the fragment, can leave."""
        by_count = source.by_count
        for message in self.messages:
            if by_count.get(message.count) is not message or message.lock != FORWARDING:
                return InternalError("A message is to be forwarded that was not taken for that.")
        return None


class RemoveTransferred(TransferCommand):
    """Remove messages: their destination has them, or takes them in the same commit."""

    __slots__ = ()

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Write their removal."""
        for message in self.messages:
            message.lock = RESERVED
        source.uncount(self.messages)
        source.write_removals(self.messages, commit)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Forget them."""
        for message in self.messages:
            source.forget(message)
        if source.elsewhere:
            source.elsewhere.difference_update([message.count for message in self.messages])


class DeadLetterTransfer(TransferCommand):
    """Move messages that cannot be forwarded to the transfer dead-letter queue.

    Attributes:
        reason: DeadLetterReason.
        description: DeadLetterErrorDescription.
    """

    __slots__ = ("description", "reason")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        messages: list[QueuedMessage],
        *,
        reason: str,
        description: str,
    ) -> None:
        super().__init__(handle, source_no, reply, messages)
        self.reason = reason[:_TEXT_MAX]
        self.description = description[:_TEXT_MAX]

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Write where they are now."""
        for message in self.messages:
            message.lock = RESERVED
            _dead_letter_transfer(source, message, self)
            change(source, message, commit, deliveries=message.deliveries)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """Make them available there."""
        for message in self.messages:
            message.lock = 0
            fragment.place(source, message, in_order=False)


# -- taking and giving back -------------------------------------------------------------------------------------


def take(source: Source, sub_queue: int, limit: int, size: int) -> list[QueuedMessage]:
    """Take available messages of a sub-queue off, in order: at most ``limit``, until they have ``size`` bytes."""
    if sub_queue == MAIN and source.sessions is not None:
        return _take_of_sessions(source, source.sessions, limit, size)
    queued = source.sub_queues[sub_queue]
    messages = queued.take(limit)
    number = 0
    for message in messages:
        if size <= 0:
            break
        message.lock = FORWARDING
        size -= len(message.payload)
        number += 1
    for message in messages[number:]:
        queued.give_back(message)
    return messages[:number]


def has_available(source: Source, sub_queue: int) -> bool:
    """Whether ``take`` would find a message in memory."""
    if sub_queue == MAIN and source.sessions is not None:
        return source.sessions.next_free(source) is not None
    return source.sub_queues[sub_queue].available() > 0


def _take_of_sessions(source: Source, sessions: Sessions, limit: int, size: int) -> list[QueuedMessage]:
    """The same of messages of sessions: the oldest first, whatever its session, and none that somebody holds."""
    messages: list[QueuedMessage] = []
    while len(messages) < limit and size > 0:
        found = sessions.next_free(source)
        if found is None:
            break
        session, message = found
        sessions.take(source, session, 1)
        sessions.drop_if_idle(session)
        message.lock = FORWARDING
        messages.append(message)
        size -= len(message.payload)
    return messages


def take_transfers(source: Source, destination: str, limit: int, size: int) -> list[QueuedMessage]:
    """The same of what was sent via this entity to ``destination``, a path in lower case."""
    waiting = source.transfers.get(destination)
    messages: list[QueuedMessage] = []
    while waiting and len(messages) < limit and size > 0:
        message = heappop(waiting)[1]
        message.lock = FORWARDING
        messages.append(message)
        size -= len(message.payload)
    if waiting is not None and not waiting:
        del source.transfers[destination]
    return messages


def place_transfer(fragment: Fragment, source: Source, message: QueuedMessage) -> None:
    """Put a message into the transfer queue of its destination."""
    path = _route_of(message.metadata).to
    assert path is not None
    heappush(source.transfers.setdefault(path.lower(), []), (message.count, message))
    fragment.fresh.add((source.source_no, TRANSFER))


def give_back(fragment: Fragment, source: Source, messages: list[QueuedMessage], now_ms: int) -> list[Command]:
    """Put messages back where they were; those that ran out of life meanwhile expire. Returns what needs a commit."""
    keeping = Housekeeping(fragment.handle, source.source_no)
    for message in messages:
        if fragment.is_expired(source, message, now_ms) and not forward_dedup.is_in_doubt(source, message.count):
            message.lock = RESERVED
            keeping.expired.append(message)
        else:
            message.lock = 0
            fragment.place(source, message, in_order=False)
    return [keeping] if keeping.expired else []


def _dead_letter_transfer(source: Source, message: QueuedMessage, command: DeadLetterTransfer) -> None:
    source.counted(message.state, -1)
    metadata = message.metadata = message.metadata or MessageMetadata()
    if sub_queue_of(message.state) == DEAD_LETTER:
        # Why it was dead-lettered stays with it as properties of its own, under the reason why it stays here.
        _keep_reason(metadata)
    message.state = _TRANSFER_DEAD
    source.counted(message.state, 1)
    message.expires_ms = 0
    metadata.reason = command.reason
    metadata.description = command.description


# -- what a message is at its destination -----------------------------------------------------------------------


def onward(message: QueuedMessage, fragment_number: int, path: str, default_ttl_ms: int | None) -> MessageMetadata:
    """The metadata of a message when it has been forwarded; its bytes are those of ``onward_payload``.

    Kept are keys, session, header, annotations, overlay, and the number that it was first given. Its
    delivery count begins anew, and so does its life, which the entity may have cut. A dead letter does not expire, so
    it goes on with the reason why it was dead-lettered and without a life of its own (Azure: autoforwarding).

    Args:
        message: The message.
        fragment_number: Of the fragment where it is.
        path: Of the entity where it is.
        default_ttl_ms: That entity's.
    """
    old = message.metadata or _ORDINARY
    route = _route_of(message.metadata)
    # A copy was first given its number by the topic.
    first = message.origin if isinstance(message, QueuedCopy) else message.count
    new = MessageMetadata(
        ttl_ms=effective_ttl(old.ttl_ms, default_ttl_ms),
        scheduled_ms=old.scheduled_ms,
        partition_key=old.partition_key,
        via_partition_key=old.via_partition_key,
        session_id=old.session_id,
        priority=old.priority,
        annotations=old.annotations,
        annotations_count=old.annotations_count,
        overlay=old.overlay,
        enqueued_sequence_number=old.enqueued_sequence_number or fragment_number << 48 | first,
        dead_letter_source=old.dead_letter_source,
        route=TransferRoute(route.hops + 1),
        durable=old.durable,
        delivery_annotations=old.delivery_annotations,
        has_expiry=old.has_expiry,
    )
    if message.state == TRANSFER:
        # It was never a message of this entity, whose time to live is none of its business.
        new.ttl_ms = old.ttl_ms
        new.scheduled_ms = route.scheduled_ms
    elif sub_queue_of(message.state) == DEAD_LETTER:
        new.ttl_ms = None
        new.reason, new.description = old.reason, old.description
        new.dead_letter_source = path
        _keep_reason(new)
    return new


def onward_payload(message: QueuedMessage) -> bytes:
    """The bytes of a message when it is forwarded: those that came, with what a rule's action changed on this copy.

    The change is put in here and not handed on beside them, because a destination knows the message as it is now: its
    own rules look at it, and its limits hold for it.
    """
    metadata = message.metadata
    if metadata is None or metadata.changes is None:
        return message.payload
    return Overlay.decode(metadata.changes).apply_to(message.payload)


def hops_of(metadata: MessageMetadata) -> int:
    """How often a message has been forwarded."""
    return _route_of(metadata).hops


def _route_of(metadata: MessageMetadata | None) -> TransferRoute:
    return _NO_ROUTE if metadata is None or metadata.route is None else metadata.route


def _keep_reason(metadata: MessageMetadata) -> None:
    """Turn the reason of a dead letter into properties that the message keeps."""
    properties: dict[str, Any] = {}
    if metadata.overlay is not None:
        properties.update(decode_value(metadata.overlay)[0])
    if metadata.reason is not None:
        properties["DeadLetterReason"] = metadata.reason
    if metadata.description is not None:
        properties["DeadLetterErrorDescription"] = metadata.description
    metadata.overlay = encode(properties) if properties else None
    metadata.reason = metadata.description = None


_ORDINARY: Final = MessageMetadata()
_NO_ROUTE: Final = TransferRoute()


# Moving inside a fragment: messages are taken by number, and others are put straight into a sub-queue.
#
# What is put in this way was a message of the broker already, so it is no send: neither a topic's rules nor duplicate
# detection look at it. That is how a dead letter goes back to the one subscription that had it, and how an undone move
# makes dead letters again. ``transfer.py`` has the other half: how what was taken leaves, or is given back.

_MOVABLE: Final = (ACTIVE, DEFERRED)


class InsertMessages(TransferCommand):
    """Put messages into a sub-queue of a source, under new numbers.

    Attributes:
        messages: After apply: the messages.
        payloads, all_metadata: What they are.
        sub_queue: Where they go.
        grows: They are more than what leaves in the same commit, so that the size quota has a say.
    """

    __slots__ = ("all_metadata", "grows", "payloads", "sub_queue")

    def __init__(
        self,
        handle: Any,
        source_no: int,
        reply: Mailbox | None,
        payloads: list[bytes],
        all_metadata: list[MessageMetadata],
        sub_queue: int,
        *,
        grows: bool,
    ) -> None:
        super().__init__(handle, source_no, reply, [])
        self.payloads = payloads
        self.all_metadata = all_metadata
        self.sub_queue = sub_queue
        self.grows = grows

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why they cannot be put in now, or None."""
        size = sum([len(payload) for payload in self.payloads])
        if not self.grows or fragment.has_room(size):
            return None
        return over_quota(source.bytes, source.settings.max_bytes or 0)

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Number them and write them down."""
        first = source.next_count
        state = state_of(self.sub_queue, ACTIVE)
        rows: dict[int, tuple[int, int, bytes | None]] = {}
        for index, payload in enumerate(self.payloads):
            metadata = self.all_metadata[index]
            message = QueuedMessage(first + index, payload, now_ms)
            message.state = state
            message.metadata = metadata
            rows[index] = (stored_state(state, metadata), 0, metadata.encode())
            source.counted(state, 1)
            source.bytes += len(payload)
            self.messages.append(message)
        source.next_count = first + len(self.messages)
        commit.puts.append(Put(source.source_key, first, now_ms, self.payloads, rows))
        if fragment.topic is not None and source.source_no:
            fragment.topic.pending += sum([len(payload) for payload in self.payloads])

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """They are durable, so they can be had."""
        fragment.release_with_metadata(source, self.messages)


def take_counts(source: Source, sub_queue: int, counts: Iterable[int]) -> list[QueuedMessage]:
    """Take those messages of a sub-queue off that nobody has; they stand in no list until they leave or are back."""
    messages: list[QueuedMessage] = []
    for count in counts:
        message = source.by_count.get(count)
        if (
            message is None
            or message.lock
            or sub_queue_of(message.state) != sub_queue
            or kind_of(message.state) not in _MOVABLE
        ):
            continue
        if kind_of(message.state) == ACTIVE:
            message = source.withdraw(message)
        message.lock = FORWARDING
        messages.append(message)
    return messages
