"""An outage as clients saw it: how many messages succeeded, failed, were delayed, doubled, reordered, or lost.

The clients themselves report each call; nothing is read from a broker.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Final

from duobus.clock import Clock

#: A send that took longer than that was delayed; without faults they take milliseconds.
DELAYED_MS: Final = 1_000


class ClientReport:
    """Counts of what clients saw; every method may be called from any thread.

    Args:
        clock: Time, for the delays.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_ms: dict[str, int] = {}
        # Of the attempt under way.
        self._tried_ms: dict[str, int] = {}
        # Id to the place among the acknowledged sends, and to its key.
        self._accepted: dict[str, int] = {}
        self._keys: dict[str, str | None] = {}
        self._failed: Counter[str] = Counter()
        self._failed_keyless: Counter[str] = Counter()
        self._unknown: set[str] = set()
        self._received: dict[str, set[int]] = {}
        self._latest: dict[str, int] = {}
        self._delayed = 0
        self._reordered = 0
        self._again = 0
        self.slowest_ms = 0
        self.slowest_keyless_ms = 0
        self.slowest_attempt_ms = 0

    def sending(self, message_id: str, key: str | None = None) -> None:
        """Note that a send begins, or is repeated."""
        with self._lock:
            self._tried_ms[message_id] = self._clock.monotonic_ms()
            self._began_ms.setdefault(message_id, self._tried_ms[message_id])
            self._keys[message_id] = key

    def accepted(self, message_id: str) -> None:
        """Note that the message was acknowledged."""
        with self._lock:
            self._end_attempt(message_id)
            took_ms = self._clock.monotonic_ms() - self._began_ms.pop(message_id)
            self.slowest_ms = max(self.slowest_ms, took_ms)
            if self._keys[message_id] is None:
                self.slowest_keyless_ms = max(self.slowest_keyless_ms, took_ms)
            self._delayed += took_ms > DELAYED_MS
            self._accepted.setdefault(message_id, len(self._accepted))
            self._unknown.discard(message_id)

    def failed(self, message_id: str, why: str) -> None:
        """Note that the send raised; ``why`` is the name of the error. The message may have arrived."""
        with self._lock:
            self._end_attempt(message_id)
            self._failed[why] += 1
            if self._keys.get(message_id) is None:
                self._failed_keyless[why] += 1
            self._unknown.add(message_id)

    def _end_attempt(self, message_id: str) -> None:
        now_ms = self._clock.monotonic_ms()
        self.slowest_attempt_ms = max(self.slowest_attempt_ms, now_ms - self._tried_ms.pop(message_id, now_ms))

    def received(self, message_id: str, sequence_number: int) -> None:
        """Note that a receiver got the message."""
        with self._lock:
            numbers = self._received.setdefault(message_id, set())
            if sequence_number in numbers:
                self._again += 1
                return
            numbers.add(sequence_number)
            key, place = self._keys.get(message_id), self._accepted.get(message_id)
            if key is None or place is None or len(numbers) > 1:
                return
            self._reordered += place < self._latest.get(key, -1)
            self._latest[key] = max(place, self._latest.get(key, -1))

    def lost(self) -> list[str]:
        """Ids that were acknowledged and that nobody has received, sorted."""
        with self._lock:
            return sorted(self._accepted.keys() - self._received.keys())

    def summary(self) -> dict[str, Any]:
        """The counts.

        ``succeeded`` counts acknowledged ids, ``failed`` failed attempts by error, ``failed_keyless`` failed attempts
        of messages without a key, ``unknown`` ids without an outcome in the end, ``delayed`` sends that took longer
        than DELAYED_MS with all their attempts, ``doubled`` ids that were stored more than once, ``again`` deliveries
        of a message that had been delivered before, ``reordered`` first deliveries that came after the first delivery
        of a later message with the same key, and ``lost`` acknowledged ids that nobody received.
        ``slowest_ms`` is the longest time of a send with all its attempts, ``slowest_keyless_ms`` the longest time of a
        send of a message without a key, which needs no particular store, and ``slowest_attempt_ms`` the longest time of
        one attempt, whatever its outcome.
        """
        lost = self.lost()
        with self._lock:
            return {
                "succeeded": len(self._accepted),
                "failed": dict(sorted(self._failed.items())),
                "failed_keyless": dict(sorted(self._failed_keyless.items())),
                "unknown": len(self._unknown),
                "delayed": self._delayed,
                "slowest_ms": self.slowest_ms,
                "slowest_keyless_ms": self.slowest_keyless_ms,
                "slowest_attempt_ms": self.slowest_attempt_ms,
                "doubled": sum(len(numbers) > 1 for numbers in self._received.values()),
                "again": self._again,
                "reordered": self._reordered,
                "lost": len(lost),
            }

    def text(self) -> str:
        """The summary in a line for people."""
        found = self.summary()
        failed = ", ".join(f"{number} {why}" for why, number in found["failed"].items()) or "none"
        return (
            f"{found['succeeded']:,} sends succeeded, failed attempts: {failed}, {found['unknown']} unknown; "
            f"{found['delayed']} delayed (slowest {found['slowest_ms'] / 1000:.1f} s), {found['doubled']} doubled, "
            f"{found['again']} delivered again, {found['reordered']} reordered, {found['lost']} lost"
        )
