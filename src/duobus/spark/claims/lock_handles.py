"""LockHandle: the part of a locked message that is kept; and how such messages are settled together."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duobus.spark.claims.engine import Seen
from duobus.spark.peek_decoder import DEFERRED_IN, Peeked
from duobus.spark.rows import size_of

#: Shorter locks may end between the two calls of a first batch, which were 1.5 s apart when measured.
LOCK_S_MIN: Final = 15.0


class LockHandle(NamedTuple):
    """The part of a locked message that is kept; the body is not kept.

    Attributes:
        number: The sequence number of the message.
        deliveries: The delivery count of the message.
        lock_token: The token of the lock.
        until_ms: The end of the lock.
        enqueued_ms: The enqueued time of the message.
        size: The size of the body.
    """

    number: int
    deliveries: int
    lock_token: Any
    until_ms: int
    enqueued_ms: int
    size: int

    @property
    def life(self) -> int:
        """The life of the message's fragment, which is part of a lock token of duobus."""
        return int.from_bytes(self.lock_token.bytes_le[2:6], "big")

    def is_safe(self, now_ms: int) -> bool:
        """Whether a third of the shortest lock is left: a disposition that comes too late leaves a message behind."""
        return self.until_ms - now_ms >= LOCK_S_MIN * 1000 / 3


def is_deferred(message: Any) -> bool:
    """Whether a peeked message is deferred."""
    state = message.state
    return state == "deferred" if type(message) is Peeked else bool(getattr(state, "value", state) == 1)


def seen_of(message: Any) -> Seen:
    """The state that a peeked message shows."""
    life = None
    if type(message) is not Peeked:
        annotations = getattr(getattr(message, "raw_amqp_message", None), "annotations", None) or {}
        life = annotations.get(DEFERRED_IN)
    return Seen(is_deferred(message), message.delivery_count or 0, life)


def is_active(message: Any) -> bool:
    """Whether a peeked message waits for receivers, or is locked by one."""
    state = message.state
    return bool(getattr(state, "value", state) == 0)


def lock_handle_of(message: Any) -> LockHandle:
    """The handle of a received message."""
    until, enqueued = message.locked_until_utc, message.enqueued_time_utc
    return LockHandle(
        message.sequence_number,
        message.delivery_count or 0,
        message.lock_token,
        0 if until is None else round(until.timestamp() * 1000),
        0 if enqueued is None else round(enqueued.timestamp() * 1000),
        size_of(message),
    )


def settle_all(receiver: Any, handles: list[LockHandle], how: str) -> None:
    """Defer or abandon messages by one request that is answered.

    The public methods of the SDK wait for an answer for each message, which is 10,000 answers for a batch. They also
    need the messages, whose bodies this process does not keep.

    Args:
        receiver: The receiver of the messages.
        handles: Handles of locked messages.
        how: ``defered``, as the protocol spells it, or ``abandoned``.

    Raises:
        MessageLockLostError: A message is no longer locked; some of the others may be settled.
    """
    receiver._settle_message_via_mgmt_link(how, [handle.lock_token for handle in handles])


def renew_all(receiver: Any, handles: list[LockHandle]) -> None:
    """Renew the locks of messages by one request; the public method of the SDK sends one for each message.

    Raises:
        MessageLockLostError: A message is no longer locked.
    """
    receiver._renew_locks(*(handle.lock_token for handle in handles))
