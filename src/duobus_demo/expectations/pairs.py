"""What was sent through a pair, property by property, and what of it came out; and when what happened."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from duobus.clock import Clock
from duobus_demo.clients import body_of, message_id_of
from duobus_demo.corpus import DIGEST_PROPERTY, Outgoing, digest_of

ORDERS: Final = "orders"
VISITS: Final = "visits"
CARTS: Final = "carts"
QUEUES: Final = (ORDERS, VISITS, CARTS)
#: One message in so many goes to VISITS, which has sessions.
EVERY: Final = 4
SESSIONS: Final = 8
#: Keys of half of the messages to CARTS; the others have none.
KEYS: Final = 32
LIFE: Final = timedelta(hours=1)
MOMENT: Final = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)
_MOMENT_MS: Final = round(MOMENT.timestamp() * 1000)
_FAULTS_SHOWN: Final = 10


def queue_of(outgoing: Outgoing) -> str:
    """The queue that a message is meant for."""
    if outgoing.partition_key is not None:
        return CARTS
    return ORDERS if _number(outgoing.message_id) % EVERY else VISITS


def divide(messages: Iterable[Outgoing], *, with_carts: bool) -> None:
    """Say of messages whether they are for CARTS: every second one, if any; half of these have a key."""
    for index, outgoing in enumerate(messages):
        is_for_carts = with_carts and index % 2 == 0
        outgoing.partition_key = _key(_number(outgoing.message_id)) if is_for_carts else None


def key_of(outgoing: Outgoing) -> str | None:
    """The partition key of a message, if it has one."""
    return outgoing.partition_key or None


def message_of(outgoing: Outgoing) -> ServiceBusMessage:
    """A message with a value in everything that the way through a backlog queue could lose."""
    body, number = outgoing.read(), _number(outgoing.message_id)
    # The SDK takes more types than it says.
    properties: dict[str | bytes, Any] = {
        DIGEST_PROPERTY: digest_of(body),
        "text": f"grün {number}",
        "number": number,
        "long": {"TYPE": "LONG", "VALUE": 2**40 + number},
        "truth": bool(number & 1),
        "half": number / 2,
        "id": UUID(int=number),
        "when": MOMENT,
        # Named like what the pair writes itself.
        "x-ms-path": "mine",
    }
    return ServiceBusMessage(
        body,
        message_id=outgoing.message_id,
        correlation_id=f"c-{number}",
        subject="module",
        content_type="text/x-python",
        reply_to="answers",
        to="readers",
        time_to_live=LIFE,
        session_id=_session(number) if queue_of(outgoing) == VISITS else None,
        partition_key=key_of(outgoing),
        application_properties=properties,
    )


def differences(received: ServiceBusReceivedMessage, queue: str) -> list[str]:
    """Return what of a received message is not as ``message_of`` made it; names of properties."""
    number = _number(message_id_of(received))
    wanted: dict[str, Any] = {
        "correlation_id": f"c-{number}",
        "subject": "module",
        "content_type": "text/x-python",
        "reply_to": "answers",
        "to": "readers",
        "time_to_live": LIFE,
        "session_id": _session(number) if queue == VISITS else None,
        "partition_key": _key(number) or None if queue == CARTS else None,
    }
    found = {name: getattr(received, name) for name in wanted}
    # The SDK hands timestamps out as integers, and text as bytes.
    properties = {
        DIGEST_PROPERTY: digest_of(body_of(received)).encode(),
        "text": f"grün {number}".encode(),
        "number": number,
        "long": 2**40 + number,
        "truth": bool(number & 1),
        "half": number / 2,
        "id": UUID(int=number),
        "when": _MOMENT_MS,
        "x-ms-path": b"mine",
    }
    got = _properties(received)
    wrong = [name for name in wanted if wanted[name] != found[name]]
    return wrong + sorted(name for name in properties | got if properties.get(name) != got.get(name))


def digest_in(received: ServiceBusReceivedMessage) -> str | None:
    """The digest that a message brings with it."""
    found = _properties(received).get(DIGEST_PROPERTY)
    return found.decode() if isinstance(found, bytes) else None


def _properties(received: ServiceBusReceivedMessage) -> dict[str, Any]:
    found = received.application_properties or {}
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}


class PairExpectations:
    """Which messages took the way through a backlog queue; every method may be called from any thread.

    Args:
        clock: Time, for the timeline.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_ms = clock.monotonic_ms()
        self._diverted: set[str] = set()
        self._restored: set[str] = set()
        self._altered: dict[str, str] = {}
        self._timeline: list[dict[str, Any]] = []
        self._counts = {"diverted": 0, "syphoned": 0, "pings": 0}
        self._troubled: set[str] = set()

    def note(self, what: str) -> None:
        """Enter something into the timeline."""
        at = round((self._clock.monotonic_ms() - self._began_ms) / 1000, 2)
        with self._lock:
            self._timeline.append({"at": at, "what": what})

    def note_once(self, what: str) -> None:
        """Enter the first one of its kind."""
        if all(step["what"] != what for step in self.timeline):
            self.note(what)

    def count(self, name: str, number: int = 1) -> None:
        """Add to ``diverted``, ``syphoned`` or ``pings``."""
        with self._lock:
            self._counts[name] += number

    def engaged(self, entity: str) -> None:
        """An entity, or a fragment of it, has failed over."""
        with self._lock:
            self._troubled.add(entity)

    def healed(self, entity: str) -> None:
        """An entity, or a fragment of it, is healthy again."""
        with self._lock:
            self._troubled.discard(entity)

    def diverting(self, message_id: str) -> None:
        """This message went to a backlog queue."""
        with self._lock:
            self._diverted.add(message_id)

    def received(self, message: ServiceBusReceivedMessage, queue: str) -> None:
        """A message came out: all of it has to be as it was sent."""
        message_id, wrong = message_id_of(message), differences(message, queue)
        with self._lock:
            if wrong:
                self._altered[message_id] = f"differs in {', '.join(wrong)}"
            elif message_id in self._diverted:
                self._restored.add(message_id)

    @property
    def troubled(self) -> set[str]:
        """Entities, and fragments of them, that have failed over now."""
        with self._lock:
            return set(self._troubled)

    def diverted_of(self, outgoing: Iterable[Outgoing]) -> int:
        """How many of these messages went to a backlog queue."""
        with self._lock:
            return sum(one.message_id in self._diverted for one in outgoing)

    @property
    def diverted(self) -> int:
        """Messages that went to a backlog queue."""
        return self._counts["diverted"]

    @property
    def syphoned(self) -> int:
        """Messages that the syphon brought to the primary, those that it brought twice included."""
        return self._counts["syphoned"]

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """What happened, each with its second."""
        with self._lock:
            return list(self._timeline)

    def report(self) -> dict[str, Any]:
        """Return the counts as members of a result."""
        with self._lock:
            return {
                **self._counts,
                "diverted_ids": len(self._diverted),
                "restored": len(self._restored),
                "properties_lost": len(self._altered),
                "properties_lost_how": dict(list(self._altered.items())[:_FAULTS_SHOWN]),
            }


def _number(message_id: str) -> int:
    return zlib.crc32(message_id.encode()) >> 8


def _key(number: int) -> str:
    """The key of a message for CARTS; empty for none."""
    return "" if number & 1 else f"cart {number // 2 % KEYS}"


def _session(number: int) -> str:
    return f"session {number % SESSIONS}"
