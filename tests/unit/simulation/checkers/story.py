"""A history told in short: the hand-written runs of the checker tests."""

from __future__ import annotations

from typing import Any

from simulation.checkers import Setup, check
from simulation.history.events import (
    COMPLETE,
    DEFER,
    RECEIVE_AND_DELETE,
    Crash,
    Delivery,
    Drained,
    Fail,
    History,
    Info,
    LinkLost,
    Ok,
    RenewBegin,
    SendBegin,
    SettleBegin,
)

LOCK_MS = 30_000
REFUSED_TEXT = "No. TrackingId:1"


class Story:
    """Appends events with sensible defaults; ``now`` is broker and virtual time at once, in ms."""

    def __init__(self) -> None:
        self.now = 0
        self.history = History(lambda: self.now)
        self._tokens = 0
        self._counts: dict[tuple[str, int], int] = {}

    def begin(self, uid: str, entity: str = "q", **options: Any) -> int:
        op = self.history.next_op()
        connection = options.pop("connection", "c-send")
        self.history.append(SendBegin(op, "sender", connection, entity, uid, b"body-" + uid.encode(), **options))
        return op

    def ok(self, op: int, **options: Any) -> None:
        self.history.append(Ok(op, options.pop("broker_ms", self.now), **options))

    def fail(self, op: int, condition: str = "amqp:not-allowed", **options: Any) -> None:
        options.setdefault("text", REFUSED_TEXT)
        self.history.append(Fail(op, condition, broker_ms=self.now, **options))

    def info(self, op: int, reason: str = "link") -> None:
        self.history.append(Info(op, reason))

    def send(self, uid: str, entity: str = "q", **options: Any) -> int:
        op = self.begin(uid, entity, **options)
        self.now += 1
        self.ok(op)
        return op

    def deliver(self, uid: str, seq: int, entity: str = "q", **options: Any) -> Delivery:
        self._tokens += 1
        self._counts[entity, seq] = self._counts.get((entity, seq), 0) + 1
        deleted = options.get("mode") == RECEIVE_AND_DELETE
        broker_ms = options.pop("broker_ms", self.now)
        delivery = Delivery(
            entity,
            seq,
            uid,
            options.pop("body_sha", b"body-" + uid.encode()),
            options.pop("token", None if deleted else self._tokens.to_bytes(16, "big")),
            options.pop("locked_until_ms", 0 if deleted else broker_ms + LOCK_MS),
            options.pop("delivery_count", self._counts[entity, seq]),
            options.pop("receiver", "r1"),
            options.pop("connection", "c1"),
            broker_ms,
            **options,
        )
        self.history.append(delivery)
        self.now += 1
        return delivery

    def settlement(self, delivery: Delivery, outcome: str = COMPLETE, **options: Any) -> int:
        op = self.history.next_op()
        connection = options.pop("connection", delivery.connection)
        self.history.append(SettleBegin(op, connection, delivery.token or b"", outcome, **options))
        return op

    def settle(self, delivery: Delivery, outcome: str = COMPLETE, **options: Any) -> None:
        op = self.settlement(delivery, outcome, **options)
        self.now += 1
        self.ok(op)
        if outcome == DEFER:
            # A deferral does not count.
            self._counts[delivery.entity, delivery.seq] -= 1

    def renew(self, delivery: Delivery, locked_until_ms: int | None = None) -> None:
        op = self.history.next_op()
        self.history.append(RenewBegin(op, delivery.connection, delivery.token or b""))
        until = self.now + LOCK_MS if locked_until_ms is None else locked_until_ms
        self.ok(op, locked_until_ms=until)

    def crash(self) -> None:
        self.history.append(Crash(self.now))
        self.now += 1

    def lose_link(self, connection: str = "c1") -> None:
        self.history.append(LinkLost(connection, self.now))
        self.now += 1

    def drain(self, *retrievable: str) -> None:
        self.now += 1
        self.history.append(Drained(self.now, frozenset(retrievable)))

    def broken(self, setup: Setup | None = None) -> set[int]:
        """Return the numbers of the invariants that the story breaks."""
        return {violation.invariant for violation in check(self.history, setup)}
