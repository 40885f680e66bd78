"""What an outbox sends next: order per key, retries, back-off, and messages that can never be sent (invariant I53).

Pure: messages that are on disk and what became of sends go in with ``now_ms``, and the next messages to send come out.

Messages with the same key (session id, else partition key, else none) are a *lane*. A lane has one parcel on its way at
a time, so that its messages arrive in the order in which they were stored; lanes overtake each other.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

#: Parcels on their way at the same time, unless told otherwise.
IN_FLIGHT_DEFAULT: Final = 4
IN_FLIGHT_MAX: Final = 100
#: Messages and bytes of one parcel: a list of them fits into one transfer of every tier, in a backlog queue too (PN11).
PARCEL_MESSAGES_MAX: Final = 100
PARCEL_BYTES_MAX: Final = 180_000
#: Pause of a lane after a send that failed, doubled with each further one up to the second figure.
RETRY_FIRST_MS: Final = 100
RETRY_LAST_MS: Final = 60_000
#: Messages of a lane that are sent one by one after lists of it were refused, at most.
SINGLY_MAX: Final = 10_000


class OutboxBatch:
    """Messages of one lane that are sent together."""

    __slots__ = ("key", "numbers", "size")

    def __init__(self, key: str, numbers: list[int], size: int) -> None:
        self.key = key
        self.numbers = numbers
        self.size = size


class _KeyQueue:
    __slots__ = ("failures", "key", "parcel", "refusals", "singly", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        #: Number and size, in order; those of the parcel are among them until it is done.
        self.waiting: deque[tuple[int, int]] = deque()
        self.parcel: OutboxBatch | None = None
        #: Sends in a row that failed.
        self.failures = 0
        #: Messages still to be sent one by one, and the lists in a row that were refused although each message was not.
        self.singly = 0
        self.refusals = 0


class OutboxPlan:
    """The messages of one outbox that wait to be sent.

    Args:
        in_flight: Parcels on their way at the same time, 1 to 100.
        retry_first_ms: Pause after the first failure.
        retry_last_ms: Longest pause.
    """

    __slots__ = (
        "_delayed",
        "_first_ms",
        "_in_flight",
        "_lanes",
        "_last_ms",
        "_on_their_way",
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
        #: Parcels that may be on their way now: one while the namespace is away, doubled with each success.
        self._width = in_flight
        self._on_their_way = 0
        self._lanes: dict[str, _KeyQueue] = {}
        self._ready: deque[_KeyQueue] = deque()
        self._delayed: list[tuple[int, int, _KeyQueue]] = []
        self._ties = 0
        self.messages = 0
        self.size = 0

    def add(self, number: int, key: str, size: int) -> None:
        """A message was stored. Numbers only grow."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _KeyQueue(key)
            self._ready.append(lane)
        lane.waiting.append((number, size))
        self.messages += 1
        self.size += size

    def take(self, now_ms: int) -> OutboxBatch | None:
        """Return what to send now; each lane in its turn. None when nothing is due, or enough is on its way."""
        delayed, ready = self._delayed, self._ready
        while delayed and delayed[0][0] <= now_ms:
            ready.append(heapq.heappop(delayed)[2])
        if not ready or self._on_their_way >= self._width:
            return None
        lane = ready.popleft()
        most = 1 if lane.singly else PARCEL_MESSAGES_MAX
        numbers: list[int] = []
        total = 0
        for number, size in lane.waiting:
            if numbers and (len(numbers) == most or total + size > PARCEL_BYTES_MAX):
                break
            numbers.append(number)
            total += size
        lane.parcel = OutboxBatch(lane.key, numbers, total)
        self._on_their_way += 1
        return lane.parcel

    def next_ms(self) -> int | None:
        """When ``take`` has something again without anything else happening; None when only an event can tell."""
        if self._on_their_way >= self._width or not self._delayed:
            return None
        return self._delayed[0][0]

    def on_sent(self, parcel: OutboxBatch) -> bool:
        """The namespace took a parcel; False if it was given back before, and so is sent once more."""
        lane = self._arrived(parcel)
        if lane is None:
            return False
        self._width = min(self._in_flight, 2 * self._width)
        lane.failures = 0
        if len(parcel.numbers) > 1:
            lane.refusals = 0
        self._leave(lane, parcel)
        return True

    def on_away(self, parcel: OutboxBatch, now_ms: int, share: float = 1.0) -> int:
        """The namespace did not take a parcel and may take it later; return the pause in milliseconds.

        Args:
            parcel: What was sent. It may have arrived all the same, and is sent again: at least once.
            now_ms: The time.
            share: Of the pause, 0.5 to 1; random, so that many programs do not come back at the same moment.
        """
        lane = self._arrived(parcel)
        if lane is None:
            return 0
        # One at a time finds out as well as many whether the namespace is back.
        self._width = 1
        # Beyond 2**32 pauses it is the longest one by far; the bound keeps the number small.
        pause_ms = round(min(self._first_ms << min(lane.failures, 32), self._last_ms) * share)
        lane.failures += 1
        self._ties += 1
        heapq.heappush(self._delayed, (now_ms + pause_ms, self._ties, lane))
        return pause_ms

    def on_refused(self, parcel: OutboxBatch) -> int | None:
        """The namespace will never take a parcel; return the message that is to be set aside.

        None after a list: its messages are sent one by one, which finds those that are not taken. If each of them is,
        it was the list that was not, and each further such list makes twice as many go one by one.
        """
        lane = self._arrived(parcel)
        if lane is None:
            return None
        lane.failures = 0
        if len(parcel.numbers) > 1:
            lane.singly = min(len(parcel.numbers) << min(lane.refusals, 16), SINGLY_MAX)
            lane.refusals += 1
            self._ready.appendleft(lane)
            return None
        lane.refusals = 0
        self._leave(lane, parcel)
        return parcel.numbers[0]

    def on_damaged(self, parcel: OutboxBatch, numbers: list[int]) -> list[tuple[int, int]]:
        """Some messages of a parcel cannot be read: they are out, the others wait again; return number and size."""
        lane = self._arrived(parcel)
        if lane is None:
            return []
        there = set(numbers)
        out = [item for item in lane.waiting if item[0] in there]
        lane.waiting = deque(item for item in lane.waiting if item[0] not in there)
        self.messages -= len(out)
        self.size -= sum(size for _, size in out)
        self._ready_again(lane)
        return out

    def give_back(self) -> None:
        """Nobody sends any more: what was on its way waits again, and without a pause."""
        for lane in self._lanes.values():
            lane.parcel = None
            lane.failures = 0
        self._on_their_way = 0
        self._width = self._in_flight
        self._delayed.clear()
        self._ready = deque(self._lanes.values())

    def _arrived(self, parcel: OutboxBatch) -> _KeyQueue | None:
        """Return the lane of a parcel; None for one that was given back."""
        lane = self._lanes.get(parcel.key)
        if lane is None or lane.parcel is not parcel:
            return None
        lane.parcel = None
        self._on_their_way -= 1
        return lane

    def _leave(self, lane: _KeyQueue, parcel: OutboxBatch) -> None:
        for _ in parcel.numbers:
            lane.waiting.popleft()
        self.messages -= len(parcel.numbers)
        self.size -= parcel.size
        lane.singly = max(0, lane.singly - len(parcel.numbers))
        self._ready_again(lane)

    def _ready_again(self, lane: _KeyQueue) -> None:
        if lane.waiting:
            self._ready.append(lane)
        else:
            del self._lanes[lane.key]
