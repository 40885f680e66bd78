"""What was sent and what came out, by message id; the verdict is made of nothing else.

Three outcomes, as in reference/reliability.md: a send or a completion is acknowledged, refused, or, when the
connection broke first, *unknown*. An unknown send may have arrived and is sent again; an unknown completion may have
been done, so that its message may stay away. Neither may turn an acknowledged send into a lost one.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, NamedTuple

from duobus.clock import Clock
from duobus_demo.corpus import digest_of

#: The fragment is in the upper 16 of a sequence number's 64 bits (Azure: AMQP protocol guide).
_FRAGMENT_SHIFT = 48


class _Sent(NamedTuple):
    digest: str
    partition_key: str | None


class MessageAccount:
    """Counts of one run; every method may be called from any thread.

    Args:
        clock: Time, for the rates.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[str, _Sent] = {}
        self._in_flight: set[str] = set()
        self._acknowledged: set[str] = set()
        self._too_large: set[str] = set()
        self._completions: Counter[str] = Counter()
        # Number to the end of the lock under which it was completed, None when nobody said.
        self._completed_numbers: dict[int, int | None] = {}
        self._uncertain: set[str] = set()
        self._numbers: dict[str, set[int]] = {}
        self._altered: dict[str, str] = {}
        self._per_fragment: Counter[int] = Counter()
        self._sent_over: Counter[str] = Counter()
        self._completed_over: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._first_send_ms: int | None = None
        self._last_acknowledged_ms = 0
        self._last_completed_ms = 0
        self._first_acknowledged_ms: int | None = None

    def sending(self, message_id: str, body: bytes, partition_key: str | None) -> None:
        """A send call begins; the second and further ones for an id count as repeats."""
        digest = digest_of(body)
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._first_send_ms is None:
                self._first_send_ms = now_ms
            if message_id in self._sent:
                self._counts["sent_again"] += 1
            self._sent[message_id] = _Sent(digest, partition_key)
            self._in_flight.add(message_id)

    def acknowledged(self, message_id: str, transport: str) -> None:
        """The send call returned: the broker has taken the message over, on a connection of this kind."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self._in_flight.remove(message_id)
            self._acknowledged.add(message_id)
            self._sent_over[transport] += 1
            self._last_acknowledged_ms = now_ms
            if self._first_acknowledged_ms is None:
                self._first_acknowledged_ms = now_ms

    def refused_as_too_large(self, message_id: str) -> None:
        """The send call raised the SDK's size error."""
        with self._lock:
            self._in_flight.remove(message_id)
            self._too_large.add(message_id)

    def send_unknown(self, message_id: str, _why: str = "") -> None:
        """The send call raised (an error of the name ``_why``): whether the message arrived is not known."""
        with self._lock:
            self._in_flight.remove(message_id)
            self._counts["sends_unknown"] += 1

    def received(
        self,
        message_id: str,
        body: bytes,
        *,
        digest: str | None,
        partition_key: str | None,
        number: int,
        locked_until_ms: int | None = None,
    ) -> None:
        """A message was handed to the application; ``number`` is its sequence number.

        ``locked_until_ms``: when its lock ends, by the broker's time, which tells deliveries of a message apart.
        """
        found = digest_of(body)
        with self._lock:
            self._counts["deliveries"] += 1
            if number in self._completed_numbers:
                self._counts[self._late_one(locked_until_ms, self._completed_numbers[number])] += 1
            numbers = self._numbers.setdefault(message_id, set())
            if number not in numbers:
                numbers.add(number)
                self._per_fragment[number >> _FRAGMENT_SHIFT] += 1
            sent = self._sent.get(message_id)
            if sent is None:
                self._altered[message_id] = "its message id was never sent"
            elif found != sent.digest:
                self._altered[message_id] = "its body differs"
            elif digest != sent.digest:
                self._altered[message_id] = "its application properties differ"
            elif partition_key != sent.partition_key:
                self._altered[message_id] = "its partition key differs"

    @staticmethod
    def _late_one(locked_until_ms: int | None, completed_until_ms: int | None) -> str:
        """What a delivery is that is seen after the completion of its message.

        A client holds messages for a while before it looks at them. When their store fails meanwhile, others get them
        again and may complete them first. A lock that ends before the one of the completion was granted before it, as
        all have one duration; anything else was handed out although it was done with (I17).
        """
        if locked_until_ms is not None and completed_until_ms is not None and locked_until_ms < completed_until_ms:
            return "overtaken"
        return "revived"

    def completed(self, message_id: str, number: int, transport: str, *, locked_until_ms: int | None = None) -> None:
        """A completion was acknowledged, on a connection of this kind: the message must never come again."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self._completions[message_id] += 1
            self._completed_numbers[number] = locked_until_ms
            self._completed_over[transport] += 1
            self._last_completed_ms = now_ms

    def completion_unknown(self, message_id: str) -> None:
        """A completion raised: the message may be gone, or may come again."""
        with self._lock:
            self._uncertain.add(message_id)
            self._counts["completions_unknown"] += 1

    def count(self, name: str) -> None:
        """Count something that needs no more than that: abandons, defers, dead letters."""
        with self._lock:
            self._counts[name] += 1

    def watch_sends(self) -> None:
        """From now on look for the next acknowledgement."""
        with self._lock:
            self._first_acknowledged_ms = None

    @property
    def first_acknowledged_ms(self) -> int | None:
        """Monotonic time of the first acknowledgement since ``watch_sends``; None until it came."""
        return self._first_acknowledged_ms

    @property
    def in_flight(self) -> int:
        """Number of send calls without an outcome."""
        return len(self._in_flight)

    @property
    def settled_sends(self) -> int:
        """Number of ids whose send is over: acknowledged or refused as too large."""
        return len(self._acknowledged) + len(self._too_large)

    @property
    def too_large(self) -> int:
        """Number of ids that the SDK's size error refused."""
        return len(self._too_large)

    @property
    def received_ids(self) -> int:
        """Number of ids whose completion was acknowledged."""
        return len(self._completions)

    @property
    def completions(self) -> int:
        """Number of completions that were acknowledged, those of duplicates included."""
        return len(self._completed_numbers)

    def missing(self) -> list[str]:
        """Return the ids that were acknowledged and never taken over by a receiver, sorted."""
        with self._lock:
            return sorted(self._acknowledged - self._completions.keys() - self._uncertain)

    def unfinished(self) -> int:
        """Return the number of acknowledged ids without an acknowledged completion."""
        with self._lock:
            return len(self._acknowledged - self._completions.keys())

    def altered(self) -> dict[str, str]:
        """Return the ids of messages that came out otherwise than they went in, each with what differs."""
        with self._lock:
            return dict(self._altered)

    def report(self) -> dict[str, Any]:
        """Return the counts as the members of a result.

        ``received`` counts ids, ``duplicates`` completions beyond the first of each id, ``stored_again`` ids that
        were stored more than once (their send was repeated because its outcome was unknown), ``revived`` deliveries
        of a message whose completion had been acknowledged (I17: must be 0), ``overtaken`` deliveries that were made
        before the completion and looked at after it, ``received_unconfirmed`` ids whose only completions had an unknown
        outcome. ``transports`` counts the acknowledgements of sends (``sent``) and of completions (``received``,
        duplicates included) by kind of connection.
        """
        missing = self.missing()
        with self._lock:
            unconfirmed = len((self._acknowledged & self._uncertain) - self._completions.keys())
            return {
                "sent": len(self._sent),
                "acknowledged": len(self._acknowledged),
                "received": len(self._completions) + unconfirmed,
                "duplicates": sum(self._completions.values()) - len(self._completions),
                "lost": len(missing),
                "altered": len(self._altered),
                "too_large": len(self._too_large),
                "revived": self._counts["revived"],
                "overtaken": self._counts["overtaken"],
                "stored_again": sum(len(numbers) > 1 for numbers in self._numbers.values()),
                "received_unconfirmed": unconfirmed,
                **{
                    name: self._counts[name]
                    for name in (
                        "sent_again",
                        "sends_unknown",
                        "completions_unknown",
                        "deliveries",
                        "abandoned",
                        "deferred",
                        "dead_lettered",
                    )
                },
                "per_fragment": {str(fragment): count for fragment, count in sorted(self._per_fragment.items())},
                "transports": {
                    name: {"sent": self._sent_over[name], "received": self._completed_over[name]}
                    for name in sorted(self._sent_over | self._completed_over)
                },
                "rates": {
                    "sent_per_second": self._rate(len(self._acknowledged), self._last_acknowledged_ms),
                    "received_per_second": self._rate(len(self._completions), self._last_completed_ms),
                },
            }

    def _rate(self, count: int, until_ms: int) -> float:
        # Over the whole time, kills and restarts included: what an application would see.
        elapsed_ms = until_ms - (self._first_send_ms or 0)
        return round(count * 1000 / elapsed_ms, 1) if count and elapsed_ms > 0 else 0.0


def loss_failures(result: dict[str, Any]) -> list[str]:
    """Return what the counts of a result with ``left``, ``missing`` and ``altered_how`` show as wrong."""
    failures = []
    if result["lost"]:
        failures.append(f"{result['lost']} acknowledged messages never came out, among them {result['missing']}.")
    if result["altered"]:
        failures.append(f"{result['altered']} messages came out altered, among them {result['altered_how']}.")
    if result["revived"]:
        failures.append(f"{result['revived']} deliveries of messages whose completion had been acknowledged.")
    if result["left"]:
        failures.append(f"{result['left']} messages are in the queue and are not delivered.")
    return failures
