"""What a task of ``syphon`` does with backlog messages: to their destinations, back into the backlog, or aside.

A destination that takes nothing holds up nobody else: its messages go back to the end of their backlog queue, to be
tried again later. The translation is that of the client library (``duobus.ha.transfer``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from azure.servicebus.amqp import AmqpAnnotatedMessage

from duobus.ha import transfer
from duobus.spark.sink.batches import Batches, Lane
from duobus.spark.sink.messages import RowError, messages_of
from duobus.spark.sink.sender import OpenBatch, Post, Refused, SendFailed

DELIVERED: Final = "delivered"
HELD: Final = "held"
BURIED: Final = "buried"

#: Reasons of dead letters, beside those of the translation; the in-process syphon has the same.
CANNOT_BE_DELIVERED: Final = "CannotBeDelivered"
EXPIRED: Final = "TTLExpiredException"
#: Longest description of a dead letter.
DESCRIPTION_LENGTH_MAX: Final = 1_024

_PARTITION_KEY: Final = "x-opt-partition-key"


class BacklogRow(NamedTuple):
    """A message of a backlog queue.

    Attributes:
        queue: Its backlog queue.
        number: Its sequence number.
        message: As it is sent again if it goes back.
        properties: Its application properties, as the SDK would have handed them out.
        own_id: Its id where it has none: of where it lay, the same in every attempt.
    """

    queue: str
    number: int
    message: AmqpAnnotatedMessage
    properties: dict[str, Any]
    own_id: str


class Outcome(NamedTuple):
    """What became of a message."""

    queue: str
    number: int
    path: str
    outcome: str
    reason: str | None = None
    description: str | None = None


def rows_of(columns: Mapping[str, list[Any]]) -> Iterable[BacklogRow]:
    """The backlog messages of some rows; times in microseconds, maps as pairs."""
    queues, numbers = columns["entity"], columns["sequence_number"]
    # When it was to be enqueued in the backlog is over; when in its destination, its properties say.
    sent = {name: values for name, values in columns.items() if name != "scheduled_enqueue_time"}
    outs = messages_of(sent, columns["message_id"], None, lambda index: f"{queues[index]} {numbers[index]}")
    for index, out in enumerate(outs):
        told = f"{columns['namespace'][index]}/{queues[index]}/{columns['enqueued_time'][index]}"
        own_id = f"backlog/{hashlib.sha256(told.encode()).hexdigest()[:32]}/{numbers[index]}"
        properties = {
            str(name): _received(name, value) for name, value in (out.message.application_properties or {}).items()
        }
        yield BacklogRow(queues[index], numbers[index], out.message, properties, own_id)


def _received(name: str | bytes, value: Any) -> Any:
    """A property as the SDK hands it out; a time span as milliseconds, which the translation takes as well."""
    if not isinstance(value, dict):
        return value
    if value["TYPE"] == "DESCRIBED":
        descriptor, inner = value["VALUE"]
        is_life = name == transfer.TIME_TO_LIVE and descriptor["VALUE"] == "com.microsoft:timespan"
        return inner["VALUE"] // 10_000 if is_life else inner["VALUE"]
    return value["VALUE"]


class SyphonTask:
    """Brings backlog messages where they belong.

    Args:
        there: Sends to the primary.
        back: Sends to the backlog.
        now_ms: The time, for held messages, and for times to live that go on.
        counts_time: Whether a time to live goes on while a message waits in the backlog.
        hold_ms: How long a message that was held is left alone.

    Attributes:
        outcomes: What became of each message.
    """

    def __init__(self, there: Post, back: Post, now_ms: int, *, counts_time: bool, hold_ms: int) -> None:
        self._there = there
        self._back = back
        self._now_ms = now_ms
        self._counts_time = counts_time
        self._hold_ms = hold_ms
        self._open: Batches[OpenBatch] = Batches(self._made, self._sent)
        self._origin: dict[int, tuple[BacklogRow, str]] = {}
        #: Destinations that take nothing, for the rest of this task.
        self._away: set[str] = set()
        self._held: list[tuple[BacklogRow, str]] = []
        self.outcomes: list[Outcome] = []

    def take(self, row: BacklogRow) -> None:
        """Carry a message; it may still be in an open batch on return."""
        try:
            restored = transfer.from_backlog(
                _with(row.message, row.properties), self._now_ms if self._counts_time else None
            )
        except transfer.Undeliverable as error:
            self._bury(row, "", error.reason, str(error))
            return
        if restored.is_expired:
            self._bury(row, restored.path, EXPIRED, "The time to live was over before the message left the backlog.")
            return
        message = restored.message
        if message.properties is not None and message.properties.message_id is None:
            message.properties.message_id = row.own_id
        self._origin[id(message)] = (row, restored.path)
        if restored.path in self._away:
            self._hold(message)
            return
        lane = (restored.path, _key_of(message))
        try:
            if self._open.add(lane, message):
                return
            if self._there.send_single(restored.path, message):
                self._done(message)
            else:
                self._bury(row, restored.path, CANNOT_BE_DELIVERED, f"{restored.path} takes no message of its size.")
        except SendFailed:
            self._away.add(restored.path)
            self._hold(message)
        except RowError as error:
            self._bury(row, restored.path, CANNOT_BE_DELIVERED, str(error))

    def finish(self) -> None:
        """Send what is still open, then put back what is held.

        Raises:
            SendFailed: The backlog takes nothing either; the task fails, and its messages stay claimed.
        """
        self._open.flush()
        back: Batches[OpenBatch] = Batches(self._back.make, self._back.send)
        until = {"TYPE": "TIMESTAMP", "VALUE": self._now_ms + self._hold_ms}
        for row, path in self._held:
            annotations: dict[str | bytes, Any] = dict(row.message.annotations or {})
            annotations["x-opt-scheduled-enqueue-time"] = until
            row.message.annotations = annotations
            lane = (row.queue, _key_of(row.message))
            if not back.add(lane, row.message) and not self._back.send_single(row.queue, row.message):
                raise RowError(f"The message {row.number} does not fit into its backlog queue {row.queue!r} again.")
            self.outcomes.append(Outcome(row.queue, row.number, path, HELD))
        back.flush()
        self._held.clear()

    def _made(self, lane: Lane) -> OpenBatch:
        return self._there.make(lane)

    def _sent(self, lane: Lane, batch: OpenBatch) -> None:
        if lane[0] in self._away:
            for message in batch.messages:
                self._hold(message)
            return
        left: list[AmqpAnnotatedMessage] = []
        try:
            self._there.send(lane, batch)
        except SendFailed as error:
            self._away.add(lane[0])
            left = error.left
        except Refused as error:
            self._bury_refused(error)
            left = self._singly(lane[0], error.left)
        waiting = {id(message) for message in left}
        for message in batch.messages:
            if id(message) in waiting:
                self._hold(message)
            elif id(message) in self._origin:
                self._done(message)

    def _singly(self, path: str, messages: list[AmqpAnnotatedMessage]) -> list[AmqpAnnotatedMessage]:
        """Send what was behind a message that was refused; those that remain when the destination goes away."""
        for index, message in enumerate(messages):
            try:
                self._there.send_single(path, message)
            except Refused as error:
                self._bury_refused(error)
            except SendFailed:
                self._away.add(path)
                return messages[index:]
        return []

    def _bury_refused(self, error: Refused) -> None:
        row, path = self._origin.pop(id(error.message))
        self._bury(row, path, CANNOT_BE_DELIVERED, str(error))

    def _done(self, message: AmqpAnnotatedMessage) -> None:
        row, path = self._origin.pop(id(message))
        self.outcomes.append(Outcome(row.queue, row.number, path, DELIVERED))

    def _hold(self, message: AmqpAnnotatedMessage) -> None:
        self._held.append(self._origin.pop(id(message)))

    def _bury(self, row: BacklogRow, path: str, reason: str, text: str) -> None:
        self.outcomes.append(Outcome(row.queue, row.number, path, BURIED, reason, text[:DESCRIPTION_LENGTH_MAX]))


def _with(message: AmqpAnnotatedMessage, properties: dict[str, Any]) -> AmqpAnnotatedMessage:
    """A copy of a message with other application properties, and without the time of its stay in the backlog."""
    kind = message.body_type.value
    body: Any = {f"{kind}_body": list(message.body) if kind in ("data", "sequence") else message.body}
    copy = AmqpAnnotatedMessage(
        application_properties=properties,
        annotations={str(key): value for key, value in (message.annotations or {}).items()} or None,
        **body,
    )
    if message.header is not None:
        copy.header = message.header
    if message.properties is not None:
        copy.properties = message.properties
    return copy


def _key_of(message: AmqpAnnotatedMessage) -> str | None:
    properties: Any = message.properties
    if properties is not None and properties.group_id is not None:
        return str(properties.group_id)
    key = (message.annotations or {}).get(_PARTITION_KEY)
    return None if key is None else str(key)
