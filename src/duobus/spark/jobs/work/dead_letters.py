"""What a task of ``deadletters`` does with the dead letters of an entity: send some again, remove some, leave the rest.

A message is sent first and completed then, so that a crash in between may leave it on both sides and never on none. Its
id is made of where it lay: when it is sent again after such a crash, a destination that detects duplicates drops it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from azure.servicebus import exceptions as sdk

from duobus.spark.jobs.replay import ORIGINAL
from duobus.spark.sink.batches import Batches
from duobus.spark.sink.messages import RowError
from duobus.spark.sink.resend import resendable
from duobus.spark.sink.sender import OpenBatch, Post, Refused

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceiver
    from azure.servicebus.amqp import AmqpAnnotatedMessage

RESUBMIT: Final = "resubmit"
DELETE: Final = "delete"
HOLD: Final = "hold"
ACTIONS: Final = (RESUBMIT, DELETE, HOLD)

#: Messages of one receive.
RECEIVE: Final = 200
#: Messages that are passed over and given back at the end; of more than these the locks run out by themselves.
HELD_MAX: Final = 2_000
#: Times that one is tried whose lock ran out before it could be removed.
TRIES_MAX: Final = 3
#: How long a receive waits before the queue counts as empty.
_WAIT_S: Final = 2.0
_PARTITION_KEY: Final = "x-opt-partition-key"


class Done(NamedTuple):
    """What became of the chosen messages of an entity.

    Attributes:
        resubmitted: Sent again, and removed.
        deleted: Removed.
        refused: Not taken by the destination; they stay.
        missing: Not there any more, or never found.
        said: The first refusal.
    """

    resubmitted: int
    deleted: int
    refused: int
    missing: int
    said: str | None


def new_id(namespace: str, entity: str, number: int, enqueued_ms: int) -> str:
    """The id of a dead letter that is sent again: the same each time, and none that its sender used."""
    place = hashlib.sha256(f"{namespace}/{entity}/{enqueued_ms}".encode()).hexdigest()[:32]
    return f"dead/{place}/{number}"


def worked(
    receiver: ServiceBusReceiver,
    post: Post,
    target: str,
    actions: Mapping[int, str],
    id_of: Callable[[Any], str | None],
) -> Done:
    """Do what was decided.

    Args:
        receiver: Of the dead-letter queue, under peek-lock.
        post: Sends.
        target: Where to.
        actions: Sequence number to action.
        id_of: The new id of a message; None to keep its own.
    """
    work = _Work(receiver, post, target, dict(actions), id_of)
    try:
        while work.left and work.step():
            pass
    finally:
        work.give_back()
    return work.done()


class _Work:
    """The dead letters of one entity, receive after receive."""

    def __init__(
        self,
        receiver: ServiceBusReceiver,
        post: Post,
        target: str,
        actions: dict[int, str],
        id_of: Callable[[Any], str | None],
    ) -> None:
        self._receiver = receiver
        self._post = post
        self._target = target
        self._id_of = id_of
        self.left = {number: action for number, action in actions.items() if action in (RESUBMIT, DELETE)}
        self._held: list[Any] = []
        self._passed: set[int] = set()
        self._tries: Counter[int] = Counter()
        self._resubmitted = self._deleted = self._refused = 0
        self._said: str | None = None

    def step(self) -> bool:
        """Receive once, and do what is to be done; False when nothing new comes."""
        messages = self._receiver.receive_messages(RECEIVE, max_wait_time=_WAIT_S)
        is_new = False
        chosen: list[Any] = []
        for message in messages:
            number = message.sequence_number or 0
            if number in self.left:
                chosen.append(message)
                continue
            is_new = is_new or number not in self._passed
            self._passed.add(number)
            if len(self._held) < HELD_MAX:
                self._held.append(message)
        self._do(chosen)
        return bool(chosen) or is_new

    def give_back(self) -> None:
        """Give back what was passed over, which else stays locked for a while."""
        for message in self._held:
            try:
                self._receiver.abandon_message(message)
            except (sdk.ServiceBusError, ValueError):
                continue  # Its lock is over: it is back already.
        self._held.clear()

    def done(self) -> Done:
        return Done(self._resubmitted, self._deleted, self._refused, len(self.left), self._said)

    def _do(self, chosen: list[Any]) -> None:
        again = [message for message in chosen if self.left[message.sequence_number] == RESUBMIT]
        refused = self._send(again)
        for message in chosen:
            number = message.sequence_number
            action = self.left.pop(number)
            if id(message) in refused:
                self._refused += 1
                self._passed.add(number)
                self._held.append(message)
                continue
            try:
                self._receiver.complete_message(message)
            except (sdk.ServiceBusError, sdk.MessageAlreadySettled) as error:
                # Sent, and still there: it is tried again when it comes again, with the same id.
                self._said = self._said or f"{number}: {error}"
                self._tries[number] += 1
                if self._tries[number] < TRIES_MAX:
                    self.left[number] = action
                else:
                    self._refused += 1
                continue
            if action == RESUBMIT:
                self._resubmitted += 1
            else:
                self._deleted += 1

    def _send(self, messages: list[Any]) -> set[int]:
        """Send messages again; the identities of those that their destination refuses."""
        refused: set[int] = set()
        origin: dict[int, Any] = {}
        batches: Batches[OpenBatch] = Batches(
            self._post.make, lambda lane, batch: self._sent(lane[0], batch, origin, refused)
        )
        for message in messages:
            made = resendable(message, self._id_of(message), _originals(message))
            origin[id(made)] = message
            try:
                lane = (self._target, _key_of(made))
                if not batches.add(lane, made) and not self._post.send_single(self._target, made):
                    raise RowError(f"{message.sequence_number} is too large for {self._target!r}")
            except RowError as error:
                self._said = self._said or str(error)
                refused.add(id(message))
        batches.flush()
        return refused

    def _sent(self, entity: str, batch: OpenBatch, origin: dict[int, Any], refused: set[int]) -> None:
        try:
            self._post.send((entity, _key_of(batch.messages[0])), batch)
        except Refused as error:
            self._said = self._said or str(error)
            refused.add(id(origin[id(error.message)]))
            for message in error.left:
                try:
                    self._post.send_single(entity, message)
                except Refused:
                    refused.add(id(origin[id(message)]))


def _originals(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {f"{ORIGINAL}sequence-number": {"TYPE": "LONG", "VALUE": message.sequence_number}}
    if message.message_id is not None:
        found[f"{ORIGINAL}message-id"] = str(message.message_id)
    for name, value in (
        ("dead-letter-reason", message.dead_letter_reason),
        ("dead-letter-error-description", message.dead_letter_error_description),
    ):
        if value is not None:
            found[f"{ORIGINAL}{name}"] = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return found


def _key_of(message: AmqpAnnotatedMessage) -> str | None:
    properties: Any = message.properties
    if properties is not None and properties.group_id is not None:
        return str(properties.group_id)
    key = (message.annotations or {}).get(_PARTITION_KEY)
    return None if key is None else str(key)
