"""What relays have carried since the server began: counted for each relay for pages, and for each key for metering."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from duobus.broker.entities.relay import HybridConnection
from duobus.telemetry.metering_log import Count


class Metering(Protocol):
    """Where operations are metered; see ``telemetry/metering_log.py``."""

    minutes: int

    def count_of(self, namespace: str, entity: str, kind: str, key: str) -> Count:
        """Where one batch after the other is counted, until ``minutes`` changes."""

    def add_to(self, count: Count, messages: int, size_bytes: int, operations: int) -> None:
        """Count one batch."""


class RelayTotals:
    """What one relay has carried since the server began.

    Attributes:
        statuses: Answers to HTTP senders by status.
        messages: Messages of joined WebSockets.
        handed_on: Bytes of bodies and messages.
    """

    __slots__ = ("handed_on", "messages", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.messages = 0
        self.handed_on = 0


class UsageCounter:
    """Counts one kind of use of one relay by one key, for metering.

    Args:
        metering: Where.
        relay: Of what.
        kind: One of the kinds of metering.
        key: Name of the access rule, or of the identity; empty for an anonymous sender.
    """

    __slots__ = ("_count", "_key", "_kind", "_metering", "_minute", "_relay")

    def __init__(self, metering: Metering, relay: HybridConnection, kind: str, key: str) -> None:
        self._metering = metering
        self._relay = relay
        self._kind = kind
        self._key = key
        self._minute = -1
        self._count: Count | None = None

    def add(self, number: int, size_bytes: int) -> None:
        """Count so many requests, messages or seconds, and their bytes."""
        metering = self._metering
        if self._count is None or self._minute != metering.minutes:
            relay = self._relay
            self._count = metering.count_of(relay.namespace, relay.path, self._kind, self._key)
            self._minute = metering.minutes
        metering.add_to(self._count, number, size_bytes, number)
