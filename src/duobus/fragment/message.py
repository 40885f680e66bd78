"""QueuedMessage: one message of a fragment in memory, and the states it can be in.

A state is ``sub_queue * 4 + kind``: the dead-letter queue is a state of the message, not another entity,
so that moving there is one record.
"""

from __future__ import annotations

from typing import Final

from duobus.model.metadata import MessageMetadata

MAIN: Final = 0
DEAD_LETTER: Final = 1
TRANSFER_DEAD_LETTER: Final = 2
SUB_QUEUES: Final = 3

ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
#: Only in stores: active, with a time to live of its own. Such rows are found by the index of exceptional rows, so
#: that recovery can note their ends without reading the tail.
TIMED: Final = 3
#: Only in stores: the state of a session, in a row of its own (behind the states of the last sub-queue).
SESSION_STATE: Final = SUB_QUEUES * 4
#: Only in stores: what a source has taken over from others by forwarding, in rows of their own (``forward_dedup.py``).
TAKEN: Final = SESSION_STATE + 1
#: Sent via this entity and on its way to another: in no sub-queue, so that no client receives it here.
TRANSFER: Final = SESSION_STATE + 2
#: Later than any instant, higher than any count.
NEVER: Final = 1 << 62
#: Set on a message that left its list out of turn; lists drop it when they come across it.
GONE: Final = -1
#: In ``QueuedMessage.lock`` of a message that a commit under way, or about to start, disposes of: no other command may.
RESERVED: Final = -1
#: ... of one that is put off until an instant; it stands in no list (``housekeeping.py``).
DELAYED: Final = -2
#: ... of one that is being forwarded: it stands in no list until it has left or is given back (``transfer.py``).
FORWARDING: Final = -3


def state_of(sub_queue: int, kind: int) -> int:
    """Return the state number under which stores keep (sub-queue, kind)."""
    return sub_queue * 4 + kind


def sub_queue_of(state: int) -> int:
    """Return the sub-queue of a state."""
    return state >> 2


def kind_of(state: int) -> int:
    """Return ACTIVE, DEFERRED or SCHEDULED of a state."""
    return state & 3


def stored_state(state: int, metadata: MessageMetadata | None) -> int:
    """The state under which a store keeps a message."""
    return TIMED if state == ACTIVE and metadata is not None and metadata.ttl_ms is not None else state


def state_in_memory(stored: int) -> int:
    """The inverse of ``stored_state``."""
    return ACTIVE if stored == TIMED else stored


class QueuedMessage:
    """One message in memory.

    Attributes:
        count: Lower 48 bits of the sequence number.
        payload: The bare message, exactly the bytes that came.
        enqueued_ms: Broker time of its acceptance (of its activation, when it was scheduled).
        expires_ms: Set while the message is in the expiry index; 0 otherwise. A message with no time to live
            of its own waits first in, first out and is not in that index.
        deliveries: Earlier deliveries that counted, as on the wire (0 on first delivery).
        state: ``state_of(sub_queue, kind)``, or GONE.
        lock: Lock counter while locked, RESERVED while a commit disposes of it, DELAYED while it is put
            off, FORWARDING while it is taken somewhere else, 0 otherwise.
        metadata: All but the payload, or None.
    """

    __slots__ = ("count", "deliveries", "enqueued_ms", "expires_ms", "lock", "metadata", "payload", "state")

    def __init__(self, count: int, payload: bytes, enqueued_ms: int) -> None:
        self.count = count
        self.payload = payload
        self.enqueued_ms = enqueued_ms
        self.expires_ms = 0
        self.deliveries = 0
        self.state = 0
        self.lock = 0
        self.metadata: MessageMetadata | None = None

    def __lt__(self, other: QueuedMessage) -> bool:
        """Heaps ask when counts are equal: a message is back that left there, out of turn, one that is GONE."""
        return False

    @property
    def size(self) -> int:
        """Bytes that count towards the entity's size."""
        return len(self.payload)


class QueuedCopy(QueuedMessage):
    """One message of a subscription.

    Attributes:
        origin: Lower 48 bits of the sequence number that the topic gave the message.
    """

    __slots__ = ("origin",)

    def __init__(self, count: int, payload: bytes, enqueued_ms: int, origin: int) -> None:
        # As QueuedMessage does it, without the call: one is made for every copy of a message.
        self.count = count
        self.payload = payload
        self.enqueued_ms = enqueued_ms
        self.expires_ms = 0
        self.deliveries = 0
        self.state = 0
        self.lock = 0
        self.metadata = None
        self.origin = origin


def message_like(message: QueuedMessage) -> QueuedMessage:
    """Another object for the same message, in the state of a new one."""
    if isinstance(message, QueuedCopy):
        return QueuedCopy(message.count, message.payload, message.enqueued_ms, message.origin)
    return QueuedMessage(message.count, message.payload, message.enqueued_ms)


def effective_ttl(own_ms: int | None, default_ms: int | None) -> int | None:
    """The shorter of a message's and its entity's time to live; None: unlimited."""
    if own_ms is None:
        return default_ms
    return own_ms if default_ms is None else min(own_ms, default_ms)
