"""How a task's messages get to their entities: by senders of the SDK, in batches of the size that the link allows.

When a broker refuses a batch as a whole, its messages are sent one by one: the error has to name the one bad message
among thousands, and a partitioned entity with duplicate detection accepts only messages of one partition in a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk

from duobus.ha.sdk_errors import explained, is_message_fault
from duobus.spark.connection import KEPT, Place, client
from duobus.spark.sink.batches import BatchKey
from duobus.spark.sink.messages import RowError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusSender
    from azure.servicebus.amqp import AmqpAnnotatedMessage

#: Bytes below a link's limit that stay free: what forwards or diverts a message later adds properties to it.
HEADROOM_BYTES: Final = 4_096
#: Room enough for any message, to measure one.
_MEASURE_BYTES: Final = 1 << 40


class SendFailed(RuntimeError):
    """An entity accepts nothing now; the task fails, and Spark tries it again with the same ids.

    Attributes:
        entity: Name of the entity.
        left: Number of messages of the batch that were not sent, as far as is known.
    """

    def __init__(self, entity: str, left: list[AmqpAnnotatedMessage], error: BaseException) -> None:
        # The SDK's words, not its chain: an exception that holds a connection cannot leave the worker.
        super().__init__(
            f"{len(left)} messages could not be sent to {entity!r}: {type(error).__name__}: "
            f"{explained(error).removesuffix('.')}. Rows sent before have the same ids when the task is tried again; "
            "where the entity detects duplicates they are dropped."
        )
        self.entity = entity
        self.left = left


class Refused(RowError):
    """A message that its entity refuses, and would refuse again.

    Attributes:
        message: The message.
        left: The messages of its batch that were to be sent after it.
    """

    def __init__(self, entity: str, message: AmqpAnnotatedMessage, error: BaseException) -> None:
        super().__init__(f"{entity!r} refuses the message {id_of_message(message)}: {type(error).__name__}: {error}")
        self.message = message
        self.left: list[AmqpAnnotatedMessage] = []


class OpenBatch:
    """A batch of the SDK, with its messages in case they have to be sent singly."""

    __slots__ = ("_batch", "messages")

    def __init__(self, batch: ServiceBusMessageBatch) -> None:
        self._batch = batch
        self.messages: list[AmqpAnnotatedMessage] = []

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def whole(self) -> ServiceBusMessageBatch:
        """As the SDK sends it."""
        return self._batch

    def add(self, message: AmqpAnnotatedMessage) -> bool:
        """Take a message; False if the batch would get too large."""
        try:
            self._batch.add_message(message)
        except sdk.MessageSizeExceededError:
            return False
        except (TypeError, ValueError, ArithmeticError, struct.error) as error:
            raise RowError(f"The message {id_of_message(message)} cannot be encoded: {error}") from None
        self.messages.append(message)
        return True


class Post:
    """Sends what one task writes.

    Args:
        sender_of: Returns the sender of an entity, which stays open for later tasks.
        forget: Closes the sender of an entity after it failed.
        pace: Called with the number of messages that were sent; returns when more may be sent.

    Attributes:
        messages: Number of messages sent so far.
        requests: Number of sends so far.
        bytes: Encoded size of the messages sent so far, with what a batch adds to each.
    """

    __slots__ = ("_forget", "_limits", "_pace", "_sender", "_singly", "bytes", "messages", "requests")

    def __init__(
        self,
        sender_of: Callable[[str], ServiceBusSender],
        forget: Callable[[str], None],
        pace: Callable[[int], None] | None = None,
    ) -> None:
        self._sender = sender_of
        self._forget = forget
        self._pace = pace
        self._limits: dict[str, int] = {}
        #: Entities that refused a batch without a key and took its messages.
        self._singly: set[str] = set()
        self.messages = 0
        self.requests = 0
        self.bytes = 0

    def make(self, batch_key: BatchKey) -> OpenBatch:
        """Open an empty batch.

        Raises:
            SendFailed: The entity cannot be reached, or there is none.
        """
        entity = batch_key[0]
        try:
            sender = self._sender(entity)
            limit = self._limits.get(entity)
            if limit is None:
                whole = sender.create_message_batch().max_size_in_bytes
                limit = self._limits[entity] = max(1, whole - HEADROOM_BYTES)
            return OpenBatch(sender.create_message_batch(limit))
        except Exception as error:  # noqa: BLE001 - nothing of it is about a message
            raise self._failed(entity, [], error) from None

    def send(self, batch_key: BatchKey, batch: OpenBatch) -> None:
        """Send a batch; it is with the broker on return.

        Raises:
            SendFailed: The entity takes nothing now.
            Refused: It refuses one of the messages.
        """
        entity, key = batch_key
        if len(batch) > 1 and not (key is None and entity in self._singly):
            try:
                self._sender(entity).send_messages(batch.whole)
            except Exception as error:  # noqa: BLE001 - the table says what it means
                if not is_message_fault(error):
                    raise self._failed(entity, batch.messages, error) from None
            else:
                self.bytes += batch.whole.size_in_bytes
                self._count(len(batch))
                return
        for index, message in enumerate(batch.messages):
            try:
                self._send_one(entity, message)
            except (SendFailed, Refused) as error:
                error.left += batch.messages[index + 1 :]
                raise
        self.bytes += batch.whole.size_in_bytes
        if len(batch) > 1 and key is None:
            self._singly.add(entity)

    def send_single(self, entity: str, message: AmqpAnnotatedMessage) -> bool:
        """Send a message that is too large for a batch; return False if it is too large for the entity as well.

        Raises:
            SendFailed: The entity takes nothing now.
            Refused: It refuses the message.
        """
        size = size_of(message)
        if size > self.limit_of(entity):
            return False
        self._send_one(entity, message)
        self.bytes += size
        return True

    def limit_of(self, entity: str) -> int:
        """Largest message that the entity accepts, in bytes; a batch for the entity must have been made before."""
        # On Premium, single messages may be larger than batches; the SDK tells it nowhere else.
        whole = getattr(self._sender(entity), "_max_message_size_on_link", 0)
        return max(whole - HEADROOM_BYTES, self._limits[entity])

    def _send_one(self, entity: str, message: AmqpAnnotatedMessage) -> None:
        try:
            self._sender(entity).send_messages(message)
        except Exception as error:  # noqa: BLE001 - the table says what it means
            if not is_message_fault(error):
                raise self._failed(entity, [message], error) from None
            raise Refused(entity, message, error) from None
        self._count(1)

    def _count(self, messages: int) -> None:
        self.messages += messages
        self.requests += 1
        if self._pace is not None:
            self._pace(messages)

    def _failed(self, entity: str, left: list[AmqpAnnotatedMessage], error: BaseException) -> SendFailed:
        self._forget(entity)
        return SendFailed(entity, left, error)


def size_of(message: AmqpAnnotatedMessage) -> int:
    """The encoded size of a message in bytes, with the few that a batch adds."""
    probe = ServiceBusMessageBatch(_MEASURE_BYTES)
    probe.add_message(message)
    return probe.size_in_bytes


def id_of_message(message: AmqpAnnotatedMessage) -> str:
    """The name of a message in errors."""
    properties: Any = message.properties
    found = None if properties is None else properties.message_id
    return "without an id" if found is None else repr(found)


# The senders of this process: they outlive the tasks, as attaching a link anew costs some round trips.


def post_to(place: Place, pace: Callable[[int], None] | None = None) -> Post:
    """Return a ``Post`` for the entities of a namespace.

    Args:
        place: The namespace.
        pace: Called with the number of messages that were sent; returns when more may be sent.
    """
    return Post(partial(_kept, place), partial(_drop, place), pace)


def _kept(place: Place, entity: str) -> ServiceBusSender:
    # Asked for each time: a client that looks idle would be closed under its senders.
    here = client(place)
    # Topics too: the SDK tells them apart by their argument's name only.
    found: ServiceBusSender = KEPT.get(("sender", place, entity), lambda: here.get_queue_sender(entity))
    return found


def _drop(place: Place, entity: str) -> None:
    KEPT.drop(("sender", place, entity))
