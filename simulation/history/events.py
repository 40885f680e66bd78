"""What happened, in the order in which it was seen: the input of the checkers.

Clients, broker and nemesis append events; nothing is changed or removed. A send, a settlement, a renewal or a
cancellation begins once and ends in exactly one of ok (a positive answer was seen), fail (a definite negative
one) and info (no answer: timeout or disconnect); the events of one operation carry the same ``op``.

Two times occur. ``at_ms`` is virtual time and is stamped by the history on everything. ``broker_ms`` is broker
time (clock.BrokerTime) of the moment when the *broker* did the thing, as told by the broker's side of the
simulation; it is what orders deliveries of one message, which may overtake each other on the wire.
Sequence numbers are the full 64 bits: fragment in the upper 16.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

ACTIVE = 0

PEEK_LOCK = "peek-lock"
RECEIVE_AND_DELETE = "receive-and-delete"
DEFERRED = "deferred"

MAIN = ""
DEAD_LETTER = "dead-letter"
TRANSFER_DEAD_LETTER = "transfer-dead-letter"

COMPLETE = "complete"
ABANDON = "abandon"
RELEASE = "release"
DEAD_LETTERED = "dead-lettered"
DEFER = "defer"

LOST_LINK = "link"
TIMED_OUT = "timeout"
UNKNOWN = "unknown"


class Event:
    """Parent of all events.

    Attributes:
        index: Position in the history.
        at_ms: Virtual time when it was appended.
    """

    __slots__ = ("at_ms", "index")

    index: int
    at_ms: int

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) of the event's own fields, by name."""
        for name in self.__slots__:
            yield name, getattr(self, name)

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self.fields() if value not in (None, "", False))
        return f"#{self.index} {self.at_ms} ms {type(self).__name__}({text})"


E_ = TypeVar("E_", bound=Event)


class SendBegin(Event):
    """A client is about to send a message.

    Attributes:
        op: Number of the operation, from ``History.next_op``; a retry is another operation with the same uid.
        client: Who sends.
        connection: Name of the connection, as in LinkLost.
        entity: Queue or topic.
        uid: Unique name of the message, found again in every delivery.
        body_sha: Checksum of the body.
        props_sha: Checksum of properties and application properties.
        key: The key that places the message; None when it has none of any kind.
        fragment: Where the slot function places the key, if the simulation knows.
        settled: Pre-settled: no outcome is expected (I39).
        ping: Its content type is application/vnd.ms-servicebus-ping (I11).
        scheduled_ms: Scheduled enqueue time, broker time.
        ttl_ms: Own time to live.
        transaction: Name of the transaction it is sent in.
    """

    __slots__ = (
        "body_sha",
        "client",
        "connection",
        "entity",
        "fragment",
        "key",
        "op",
        "ping",
        "props_sha",
        "scheduled_ms",
        "settled",
        "transaction",
        "ttl_ms",
        "uid",
    )

    def __init__(
        self,
        op: int,
        client: str,
        connection: str,
        entity: str,
        uid: str,
        body_sha: bytes,
        *,
        props_sha: bytes | None = None,
        key: str | None = None,
        fragment: int | None = None,
        settled: bool = False,
        ping: bool = False,
        scheduled_ms: int | None = None,
        ttl_ms: int | None = None,
        transaction: str | None = None,
    ) -> None:
        self.op = op
        self.client = client
        self.connection = connection
        self.entity = entity
        self.uid = uid
        self.body_sha = body_sha
        self.props_sha = props_sha
        self.key = key
        self.fragment = fragment
        self.settled = settled
        self.ping = ping
        self.scheduled_ms = scheduled_ms
        self.ttl_ms = ttl_ms
        self.transaction = transaction


class SettleBegin(Event):
    """A client is about to settle a delivery.

    Attributes:
        op: Number of the operation.
        connection: Over which the request goes.
        token: Lock token of the delivery, 16 bytes.
        outcome: COMPLETE, ABANDON, RELEASE, DEAD_LETTERED or DEFER.
        management: True when the request goes to the management node by token, not by disposition.
        transaction: Name of the transaction that it is part of.
    """

    __slots__ = ("connection", "management", "op", "outcome", "token", "transaction")

    def __init__(
        self,
        op: int,
        connection: str,
        token: bytes,
        outcome: str,
        *,
        management: bool = False,
        transaction: str | None = None,
    ) -> None:
        self.op = op
        self.connection = connection
        self.token = token
        self.outcome = outcome
        self.management = management
        self.transaction = transaction


class DischargeBegin(Event):
    """A client is about to end a transaction; its sends and settlements end with it.

    Attributes:
        op: Number of the operation.
        connection: Over which the request goes.
        transaction: Name of the transaction.
        fail: True for a rollback.
    """

    __slots__ = ("connection", "fail", "op", "transaction")

    def __init__(self, op: int, connection: str, transaction: str, *, fail: bool) -> None:
        self.op = op
        self.connection = connection
        self.transaction = transaction
        self.fail = fail


class RenewBegin(Event):
    """A client is about to renew a lock."""

    __slots__ = ("connection", "op", "token")

    def __init__(self, op: int, connection: str, token: bytes) -> None:
        self.op = op
        self.connection = connection
        self.token = token


class CancelBegin(Event):
    """A client is about to cancel the scheduled message with this sequence number."""

    __slots__ = ("connection", "entity", "op", "seq")

    def __init__(self, op: int, connection: str, entity: str, seq: int) -> None:
        self.op = op
        self.connection = connection
        self.entity = entity
        self.seq = seq


class Ok(Event):
    """An operation ended well.

    Attributes:
        op: Number of the operation.
        broker_ms: Broker time of the result, None if not known.
        seq: Sequence number, when the answer told one (schedule-message).
        locked_until_ms: New end of the lock, for a renewal.
    """

    __slots__ = ("broker_ms", "locked_until_ms", "op", "seq")

    def __init__(
        self, op: int, broker_ms: int | None = None, *, seq: int | None = None, locked_until_ms: int | None = None
    ) -> None:
        self.op = op
        self.broker_ms = broker_ms
        self.seq = seq
        self.locked_until_ms = locked_until_ms


class Fail(Event):
    """An operation was refused.

    Attributes:
        op: Number of the operation.
        condition: The AMQP condition.
        text: The description.
        transient: Whether the condition advises to try again.
        broker_ms: Broker time of the refusal, None if not known.
    """

    __slots__ = ("broker_ms", "condition", "op", "text", "transient")

    def __init__(
        self, op: int, condition: str, text: str = "", *, transient: bool = False, broker_ms: int | None = None
    ) -> None:
        self.op = op
        self.condition = condition
        self.text = text
        self.transient = transient
        self.broker_ms = broker_ms


class Info(Event):
    """An operation got no answer, or one that nobody knows; ``reason`` is LOST_LINK, TIMED_OUT or UNKNOWN."""

    __slots__ = ("op", "reason")

    def __init__(self, op: int, reason: str = LOST_LINK) -> None:
        self.op = op
        self.reason = reason


class StrayOutcome(Event):
    """An outcome came for a delivery that was not waiting for one: never sent, pre-settled, or answered before."""

    __slots__ = ("connection", "delivery_id")

    def __init__(self, connection: str, delivery_id: int) -> None:
        self.connection = connection
        self.delivery_id = delivery_id


class Delivery(Event):
    """A client got a message.

    Attributes:
        entity: Queue or subscription from which it came, without sub-queue.
        seq: Sequence number.
        uid: The message's unique name.
        body_sha: Checksum of the body as received.
        token: Lock token; None for receive-and-delete.
        locked_until_ms: End of the lock, broker time; 0 for receive-and-delete.
        delivery_count: 1 on first delivery: the header's value plus one.
        receiver: Name of the receiving link.
        connection: Name of its connection, as in LinkLost.
        broker_ms: Broker time when the lock was granted or the message removed.
        mode: PEEK_LOCK, RECEIVE_AND_DELETE, or DEFERRED (fetched by sequence number).
        subqueue: MAIN, DEAD_LETTER or TRANSFER_DEAD_LETTER.
        epoch: Of the fragment, 0 if not known.
        enqueued_ms: Broker time of enqueuing, as annotated.
        session: Session id.
        reason: Dead-letter reason.
        props_sha: Checksum of properties and application properties as received.
        ping: Its content type is the ping's.
    """

    __slots__ = (
        "body_sha",
        "broker_ms",
        "connection",
        "delivery_count",
        "enqueued_ms",
        "entity",
        "epoch",
        "locked_until_ms",
        "mode",
        "ping",
        "props_sha",
        "reason",
        "receiver",
        "seq",
        "session",
        "subqueue",
        "token",
        "uid",
    )

    def __init__(
        self,
        entity: str,
        seq: int,
        uid: str,
        body_sha: bytes,
        token: bytes | None,
        locked_until_ms: int,
        delivery_count: int,
        receiver: str,
        connection: str,
        broker_ms: int,
        *,
        mode: str = PEEK_LOCK,
        subqueue: str = MAIN,
        epoch: int = 0,
        enqueued_ms: int | None = None,
        session: str | None = None,
        reason: str | None = None,
        props_sha: bytes | None = None,
        ping: bool = False,
    ) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid
        self.body_sha = body_sha
        self.token = token
        self.locked_until_ms = locked_until_ms
        self.delivery_count = delivery_count
        self.receiver = receiver
        self.connection = connection
        self.broker_ms = broker_ms
        self.mode = mode
        self.subqueue = subqueue
        self.epoch = epoch
        self.enqueued_ms = enqueued_ms
        self.session = session
        self.reason = reason
        self.props_sha = props_sha
        self.ping = ping

    @property
    def fragment(self) -> int:
        """Number of the fragment, from the sequence number."""
        return self.seq >> 48


class Admitted(Event):
    """A commit of the broker that accepted a send became durable, on an entity with duplicate detection (I5).

    Attributes:
        entity: Where.
        uid: The message's unique name, which is its message id.
        key: Its session id or partition key, on an entity with several fragments.
        broker_ms: Broker time of the acceptance.
        stored: False when it was dropped as a duplicate.
    """

    __slots__ = ("broker_ms", "entity", "key", "stored", "uid")

    def __init__(self, entity: str, uid: str, key: str | None, broker_ms: int, *, stored: bool) -> None:
        self.entity = entity
        self.uid = uid
        self.key = key
        self.broker_ms = broker_ms
        self.stored = stored


class Peeked(Event):
    """A peek showed a message; ``state`` is 0 (active), or the broker's number for deferred, scheduled, ..."""

    __slots__ = ("broker_ms", "entity", "ping", "seq", "state", "subqueue", "uid")

    def __init__(
        self,
        entity: str,
        seq: int,
        uid: str,
        state: int,
        broker_ms: int,
        *,
        subqueue: str = MAIN,
        ping: bool = False,
    ) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid
        self.state = state
        self.broker_ms = broker_ms
        self.subqueue = subqueue
        self.ping = ping


class LockEnded(Event):
    """The broker ended a lock.

    Attributes:
        token: The lock.
        cause: ``settled``, ``expired``, ``released`` (by an outcome), ``link`` (its connection died), ``closed`` (its
            session was given back) or ``epoch``.
        broker_ms: When.
    """

    __slots__ = ("broker_ms", "cause", "token")

    def __init__(self, token: bytes, cause: str, broker_ms: int) -> None:
        self.token = token
        self.cause = cause
        self.broker_ms = broker_ms


class AskedFor(Event):
    """A client is about to ask for the deferred message with this sequence number."""

    __slots__ = ("entity", "seq")

    def __init__(self, entity: str, seq: int) -> None:
        self.entity = entity
        self.seq = seq


class Expired(Event):
    """The broker expired a message.

    Attributes:
        dead_lettered: Whether it moved to the dead-letter queue or was removed.
        was_deferred: Whether it was deferred, so that somebody has to have asked for it.
    """

    __slots__ = ("broker_ms", "dead_lettered", "entity", "seq", "uid", "was_deferred")

    def __init__(
        self,
        entity: str,
        seq: int,
        uid: str,
        broker_ms: int,
        *,
        dead_lettered: bool = False,
        was_deferred: bool = False,
    ) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid
        self.broker_ms = broker_ms
        self.dead_lettered = dead_lettered
        self.was_deferred = was_deferred


class WaitedInVain(Event):
    """A receiver had credit for a message that was there, or kept one without, for longer than it may (I29)."""

    __slots__ = ("entity", "for_ms", "link", "what")

    def __init__(self, entity: str, link: str, what: str, for_ms: int) -> None:
        self.entity = entity
        self.link = link
        self.what = what
        self.for_ms = for_ms


class Quarantined(Event):
    """The broker reported a damaged message (I57); ``uid`` when the simulation knows which it was."""

    __slots__ = ("entity", "seq", "uid")

    def __init__(self, entity: str, seq: int, uid: str | None = None) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid


class PlacementTurn(Event):
    """Keyless placement chose a fragment for ``messages`` messages, as its commit started (I26)."""

    __slots__ = ("entity", "fragment", "messages")

    def __init__(self, entity: str, fragment: int, messages: int) -> None:
        self.entity = entity
        self.fragment = fragment
        self.messages = messages


class LinkLost(Event):
    """A connection is gone; appended by whoever does it or sees it first, the nemesis included.

    Attributes:
        connection: Its name.
        broker_ms: Broker time.
    """

    __slots__ = ("broker_ms", "connection")

    def __init__(self, connection: str, broker_ms: int) -> None:
        self.connection = connection
        self.broker_ms = broker_ms


class Crash(Event):
    """Memory of fragments was lost: the process died, or a store failed and was recovered.

    Attributes:
        broker_ms: Broker time reached before it.
        fragments: (entity, fragment) of those concerned; None for all.
    """

    __slots__ = ("broker_ms", "fragments")

    def __init__(self, broker_ms: int, fragments: frozenset[tuple[str, int]] | None = None) -> None:
        self.broker_ms = broker_ms
        self.fragments = fragments


class FragmentsDown(Event):
    """From now on these fragments, (entity, fragment), cannot be served; the others can."""

    __slots__ = ("fragments",)

    def __init__(self, fragments: frozenset[tuple[str, int]]) -> None:
        self.fragments = fragments


class FragmentsUp(Event):
    """From now on these fragments are served again."""

    __slots__ = ("fragments",)

    def __init__(self, fragments: frozenset[tuple[str, int]]) -> None:
        self.fragments = fragments


class Drained(Event):
    """Faults are healed, locks expired, and everything was received and completed until nothing came.

    Attributes:
        broker_ms: Broker time.
        retrievable: uids that a peek still shows or that wait in a transfer: deferred, scheduled, ...
    """

    __slots__ = ("broker_ms", "retrievable")

    def __init__(self, broker_ms: int, retrievable: frozenset[str] = frozenset()) -> None:
        self.broker_ms = broker_ms
        self.retrievable = retrievable


class History:
    """Append-only list of events.

    Args:
        now_ms: Gives virtual time; for a simulation ``loop.time_ms``.
    """

    __slots__ = ("_last_op", "_now_ms", "events")

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._last_op = 0
        self.events: list[Event] = []

    def next_op(self) -> int:
        """Return a number for an operation that begins."""
        self._last_op += 1
        return self._last_op

    def append(self, event: E_) -> E_:
        """Stamp and keep an event; returns it."""
        event.index = len(self.events)
        event.at_ms = self._now_ms()
        self.events.append(event)
        return event

    def digest(self) -> int:
        """Return a checksum of everything; equal runs have equal digests."""
        checksum = 0
        for event in self.events:
            row = [f"{event.at_ms} {type(event).__name__}"]
            row += [f"{name}={_canonical(value)}" for name, value in event.fields()]
            checksum = zlib.crc32(" ".join(row).encode(), checksum)
        return checksum

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


def _canonical(value: Any) -> str:
    """Sets have no order of their own that would repeat from process to process."""
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)


# What happened to entities and their numbers: events of ``events.py`` that only some runs have.


class NumberTold(Event):
    """A client was told the sequence number of a message before that was stored; it may never be (I7)."""

    __slots__ = ("entity", "seq", "uid")

    def __init__(self, entity: str, seq: int, uid: str) -> None:
        self.entity = entity
        self.seq = seq
        self.uid = uid


# What the simulation notes of stores that are late, and of messages that wait for them although they need not.


class FragmentsLate(Event):
    """The store of these fragments, (entity, fragment), has not answered for a while: it is passed over until it does.

    Turns that are taken meanwhile are not in the history. Or they have a new owner, which begins anew with their turns.
    """

    __slots__ = ("fragments",)

    def __init__(self, fragments: frozenset[tuple[str, int]]) -> None:
        self.fragments = fragments


class KeylessLate(Event):
    """A message without a key waited for a store although another of its entity was well (PE4).

    Attributes:
        entity: The queue.
        store: Where it waits.
        waited_ms: For so long, counted from the beginning of the last fault of a store of its entity.
    """

    __slots__ = ("entity", "store", "waited_ms")

    def __init__(self, entity: str, store: int, waited_ms: int) -> None:
        self.entity = entity
        self.store = store
        self.waited_ms = waited_ms
