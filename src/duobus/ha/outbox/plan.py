"""The next messages of an outbox: order per key, retries, back-off, messages that can never be sent (invariant I53).

Pure: messages that are on disk and what became of sends go in with ``now_ms``, and the next messages to send come out.

Messages with the same key (session id, else partition key, else none) are a *key queue*. A key queue has one batch on
its way at a time, so that its messages arrive in the order in which they were stored; key queues overtake each other.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

#: Batches on their way at the same time, unless told otherwise.
IN_FLIGHT_DEFAULT: Final = 4
IN_FLIGHT_MAX: Final = 100
#: Messages and bytes of one batch: a list of them fits into one transfer of every tier, in a backlog queue too (PN11).
BATCH_MESSAGES_MAX: Final = 100
BATCH_BYTES_MAX: Final = 180_000
#: Pause of a key queue after a send that failed, doubled with each further one up to the second figure.
RETRY_FIRST_MS: Final = 100
RETRY_LAST_MS: Final = 60_000
#: Messages of a key queue that are sent one by one after lists of it were refused, at most.
SINGLY_MAX: Final = 10_000


class OutboxBatch:
    """Messages of one key queue that are sent together."""

    __slots__ = ("key", "numbers", "size")

    def __init__(self, key: str, numbers: list[int], size: int) -> None:
        self.key = key
        self.numbers = numbers
        self.size = size


class _KeyQueue:
    __slots__ = ("batch", "failures", "key", "refusals", "singly", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        #: Number and size, in order; those of the batch are among them until it is done.
        self.waiting: deque[tuple[int, int]] = deque()
        self.batch: OutboxBatch | None = None
        #: Sends in a row that failed.
        self.failures = 0
        #: Messages still to be sent one by one, and the lists in a row that were refused although each message was not.
        self.singly = 0
        self.refusals = 0


class OutboxPlan:
    """The messages of one outbox that wait to be sent.

    Args:
        in_flight: Batches on their way at the same time, 1 to 100.
        retry_first_ms: Pause after the first failure.
        retry_last_ms: Longest pause.
    """

    __slots__ = (
        "_delayed",
        "_first_ms",
        "_in_flight",
        "_in_transit",
        "_key_queues",
        "_last_ms",
        "_ready",
        "_ties",
        "_width",
        "messages",
        "size",
    )

    def __init__(
        self,
        in_flight: int = IN_FLIGHT_DEFAULT,
        retry_first_ms: int = RETRY_FIRST_MS,
        retry_last_ms: int = RETRY_LAST_MS,
    ) -> None:
        if not 1 <= in_flight <= IN_FLIGHT_MAX:
            raise ValueError(f"in_flight has to be 1 to {IN_FLIGHT_MAX}, not {in_flight}")
        if not 1 <= retry_first_ms <= retry_last_ms:
            raise ValueError(f"the first pause has to be 1 ms to the last one's {retry_last_ms}, not {retry_first_ms}")
        self._in_flight = in_flight
        self._first_ms = retry_first_ms
        self._last_ms = retry_last_ms
        #: Batches that may be on their way now: one while the namespace is away, doubled with each success.
        self._width = in_flight
        self._in_transit = 0
        self._key_queues: dict[str, _KeyQueue] = {}
        self._ready: deque[_KeyQueue] = deque()
        self._delayed: list[tuple[int, int, _KeyQueue]] = []
        self._ties = 0
        self.messages = 0
        self.size = 0

    def add(self, number: int, key: str, size: int) -> None:
        """A message was stored. Numbers only grow."""
        queue = self._key_queues.get(key)
        if queue is None:
            queue = self._key_queues[key] = _KeyQueue(key)
            self._ready.append(queue)
        queue.waiting.append((number, size))
        self.messages += 1
        self.size += size

    def take(self, now_ms: int) -> OutboxBatch | None:
        """Return what to send now; each key queue in its turn. None when nothing is due, or enough is on its way."""
        delayed, ready = self._delayed, self._ready
        while delayed and delayed[0][0] <= now_ms:
            ready.append(heapq.heappop(delayed)[2])
        if not ready or self._in_transit >= self._width:
            return None
        queue = ready.popleft()
        most = 1 if queue.singly else BATCH_MESSAGES_MAX
        numbers: list[int] = []
        total = 0
        for number, size in queue.waiting:
            if numbers and (len(numbers) == most or total + size > BATCH_BYTES_MAX):
                break
            numbers.append(number)
            total += size
        queue.batch = OutboxBatch(queue.key, numbers, total)
        self._in_transit += 1
        return queue.batch

    def next_ms(self) -> int | None:
        """When ``take`` has something again without anything else happening; None when only an event can tell."""
        if self._in_transit >= self._width or not self._delayed:
            return None
        return self._delayed[0][0]

    def on_sent(self, batch: OutboxBatch) -> bool:
        """The namespace took a batch; False if it was given back before, and so is sent once more."""
        queue = self._arrived(batch)
        if queue is None:
            return False
        self._width = min(self._in_flight, 2 * self._width)
        queue.failures = 0
        if len(batch.numbers) > 1:
            queue.refusals = 0
        self._leave(queue, batch)
        return True

    def on_away(self, batch: OutboxBatch, now_ms: int, share: float = 1.0) -> int:
        """The namespace did not take a batch and may take it later; return the pause in milliseconds.

        Args:
            batch: What was sent. It may have arrived all the same, and is sent again: at least once.
            now_ms: The time.
            share: Of the pause, 0.5 to 1; random, so that many programs do not come back at the same moment.
        """
        queue = self._arrived(batch)
        if queue is None:
            return 0
        # One at a time finds out as well as many whether the namespace is back.
        self._width = 1
        # Beyond 2**32 pauses it is the longest one by far; the bound keeps the number small.
        pause_ms = round(min(self._first_ms << min(queue.failures, 32), self._last_ms) * share)
        queue.failures += 1
        self._ties += 1
        heapq.heappush(self._delayed, (now_ms + pause_ms, self._ties, queue))
        return pause_ms

    def on_refused(self, batch: OutboxBatch) -> int | None:
        """The namespace will never take a batch; return the message that is to be set aside.

        None after a list: its messages are sent one by one, which finds those that are not taken. If each of them is,
        it was the list that was not, and each further such list makes twice as many go one by one.
        """
        queue = self._arrived(batch)
        if queue is None:
            return None
        queue.failures = 0
        if len(batch.numbers) > 1:
            queue.singly = min(len(batch.numbers) << min(queue.refusals, 16), SINGLY_MAX)
            queue.refusals += 1
            self._ready.appendleft(queue)
            return None
        queue.refusals = 0
        self._leave(queue, batch)
        return batch.numbers[0]

    def on_damaged(self, batch: OutboxBatch, numbers: list[int]) -> list[tuple[int, int]]:
        """Some messages of a batch cannot be read: they are out, the others wait again; return number and size."""
        queue = self._arrived(batch)
        if queue is None:
            return []
        there = set(numbers)
        out = [item for item in queue.waiting if item[0] in there]
        queue.waiting = deque(item for item in queue.waiting if item[0] not in there)
        self.messages -= len(out)
        self.size -= sum(size for _, size in out)
        self._ready_again(queue)
        return out

    def give_back(self) -> None:
        """Nobody sends any more: what was on its way waits again, and without a pause."""
        for queue in self._key_queues.values():
            queue.batch = None
            queue.failures = 0
        self._in_transit = 0
        self._width = self._in_flight
        self._delayed.clear()
        self._ready = deque(self._key_queues.values())

    def _arrived(self, batch: OutboxBatch) -> _KeyQueue | None:
        """Return the key queue of a batch; None for one that was given back."""
        queue = self._key_queues.get(batch.key)
        if queue is None or queue.batch is not batch:
            return None
        queue.batch = None
        self._in_transit -= 1
        return queue

    def _leave(self, queue: _KeyQueue, batch: OutboxBatch) -> None:
        for _ in batch.numbers:
            queue.waiting.popleft()
        self.messages -= len(batch.numbers)
        self.size -= batch.size
        queue.singly = max(0, queue.singly - len(batch.numbers))
        self._ready_again(queue)

    def _ready_again(self, queue: _KeyQueue) -> None:
        if queue.waiting:
            self._ready.append(queue)
        else:
            del self._key_queues[queue.key]
