"""How a batch is filled from one receiver: until it is full, or nothing comes any more.

A receive of the SDK ends a fixed while after its *first* message, whatever is still on its way. On a busy machine it
returns with a part of what waits, so one that is short says nothing about the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from duobus.clock import Clock
from duobus.spark.claims.lock_handles import LockHandle, lock_handle_of

#: Messages that one receive asks for.
RECEIVE_MAX: Final = 2_000
#: And the first one of a batch whose bytes are limited: nothing tells how large messages are, and a larger number of
#: them could be many times the limit.
FIRST_MAX: Final = 1
#: Each further receive asks for so many times what has come until then at most, as small messages say little about the
#: next ones.
GROWTH: Final = 8
#: A batch ends when no message came for this time after an earlier one.
GAP_S: Final = 0.2
#: How long a batch goes on while messages come singly: what trickles is handed over, not collected.
TRICKLE_MS: Final = 1_000
#: A receive that brought so many is no trickle: the batch goes on as long as its first lock allows.
STREAM_MIN: Final = 20


class Limits(NamedTuple):
    """When a batch of one receiver ends.

    Attributes:
        messages: At most.
        max_bytes: Of the bodies; what comes after the first message is asked for by the average size of those before.
            None: any.
        min_messages: Wait for so many, for ``delay_s`` at most.
        delay_s: See above.
        wait_s: Longest wait for the first message.
    """

    messages: int
    max_bytes: int | None = None
    min_messages: int = 1
    delay_s: float = 0.0
    wait_s: float = 30.0

    def asked(self, had: int, size: int) -> int:
        """How many messages the next receive asks for; by the bytes of those before when bytes are limited."""
        most = min(RECEIVE_MAX, self.messages - had)
        if self.max_bytes is None:
            return most
        if not had:
            return min(most, FIRST_MAX)
        return max(1, min(most, had * GROWTH, (self.max_bytes - size) * had // max(size, 1)))

    def is_full(self, had: int, size: int) -> bool:
        """Whether nothing more may be asked for."""
        return had >= self.messages or (self.max_bytes is not None and size >= self.max_bytes)


class Filled(NamedTuple):
    """The messages that were received.

    Attributes:
        handles: Of the messages.
        has_credit: The receiver may still be sent messages that nobody waits for.
    """

    handles: list[LockHandle]
    has_credit: bool


def fill(receiver: Any, limits: Limits, clock: Clock, is_hurried: Callable[[], bool] = lambda: False) -> Filled:
    """Receive a batch.

    Args:
        receiver: Of the SDK.
        limits: When the batch ends.
        clock: Time.
        is_hurried: Somebody else has messages that should not wait for ``min_messages``.
    """
    found: list[LockHandle] = []
    size, has_credit = 0, False
    started_ms, delay_ms = clock.monotonic_ms(), int(limits.delay_s * 1000)
    first_ms = room_ms = 0
    while not limits.is_full(len(found), size):
        wants_more = 0 < len(found) < limits.min_messages
        wait = GAP_S if found else limits.wait_s
        if wants_more:
            wait = max(GAP_S, (started_ms + delay_ms - clock.monotonic_ms()) / 1000)
        asked = limits.asked(len(found), size)
        page = receiver.receive_messages(max_message_count=asked, max_wait_time=wait)
        now_ms = clock.monotonic_ms()
        handles = [lock_handle_of(message) for message in page]
        if handles and not found:
            # The first lock has to last until the messages are deferred. Those of a session have none of their own: it
            # is left as soon as a receive is short, since other sessions wait.
            first_ms, room_ms = now_ms, (handles[0].until_ms - clock.now_ms()) // 3
            delay_ms = min(delay_ms, room_ms)
        found += handles
        size += sum(handle.size for handle in handles)
        if len(page) == asked:
            if 0 < room_ms <= now_ms - first_ms:
                break
            continue
        has_credit = True
        if wants_more and now_ms - started_ms < delay_ms and not is_hurried():
            continue
        may_last_ms = room_ms if len(page) >= STREAM_MIN else min(TRICKLE_MS, room_ms)
        if not page or now_ms - first_ms >= may_last_ms:
            break
    return Filled(found, has_credit)
