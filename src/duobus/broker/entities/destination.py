"""Destination: the entity to which messages are forwarded, as forwarding sees it, and what may be said against it.

A queue or a topic is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from duobus.broker.entities.placement import Placement, slot_of, string_key
from duobus.codec import DecodeError, TooLargeError, decode, scan, sent_size, with_application_properties
from duobus.errors import ArgumentInvalid, EntityDisabled, EntityNotFound, QuotaExceeded, ServiceBusError
from duobus.model.address import not_found
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED
from duobus.model.metadata import MessageMetadata, TransferRoute

if TYPE_CHECKING:
    from duobus.broker.delivery.credit_scheduler import CreditScheduler
    from duobus.broker.delivery.session_acceptor import SessionAcceptor
    from duobus.broker.entities.namespace import Namespace
    from duobus.broker.entities.queue import Queue
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.model.batches import SendBatch
    from duobus.model.descriptions import QueueDescription

#: DeadLetterReason of messages that went to the transfer dead-letter queue; the description says more.
SESSION_MISSING = "SessionIdIsNull"
HEADER_TOO_LARGE = "HeaderSizeExceeded"
MESSAGE_TOO_LARGE = "MessageSizeExceeded"
NOT_FOUND = "MessagingEntityNotFound"
DISABLED = "MessagingEntityDisabled"
FULL = "QuotaExceeded"
REFUSED = "ForwardingRefused"


class Unfit(ArgumentInvalid):
    """A destination can never take a message.

    Attributes:
        reason: DeadLetterReason.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Destination(Protocol):
    """What takes forwarded messages in.

    Attributes:
        fragments: In order of slot.
        placement: Which of them a message goes to.
        is_deleted: It is gone.
    """

    fragments: list[FragmentHandle]
    placement: Placement
    is_deleted: bool

    @property
    def path(self) -> str:
        """Its name."""

    @property
    def description(self) -> Any:
        """Its properties."""

    @property
    def is_partitioned(self) -> bool:
        """Whether keys matter for placement."""

    def prepare(self, batch: SendBatch) -> None:
        """Messages are about to be sent to it: they are a use of it, and get their identity."""

    def fragment_of_count(self, count: int) -> FragmentHandle | None:
        """Where a message without a key goes that has this count at its origin; None: to any fragment.

        The same each time: only the fragment that it was sent to before knows that it has it.
        """


class ForwardSource(Protocol):
    """What messages are forwarded from: a queue, or whatever else has sub-queues of one source.

    Attributes:
        namespace: Name of its namespace.
        fragments: In order of slot.
        schedulers: Sub-queue to the credit scheduler that grants credit to it.
        acceptor: Who takes the main sub-queue's messages instead, where sessions are required.
    """

    namespace: str
    fragments: list[FragmentHandle]
    schedulers: dict[int, CreditScheduler]
    acceptor: SessionAcceptor | None

    @property
    def path(self) -> str:
        """Its name, as a message tells where it was dead-lettered."""

    @property
    def description(self) -> Any:
        """Its properties."""


def find(home: Namespace, path: str) -> Destination:
    """The entity of this name, when it takes messages now.

    Raises:
        EntityDisabled: Its status forbids it.
        EntityNotFound: There is none.
        StoreUnavailable: Another server may have it, which is not known yet.
    """
    found = locate(home, path)
    demand_status(found)
    return found


def locate(home: Namespace, path: str) -> Destination:
    """The entity of this name, whether it takes messages or not.

    Raises:
        EntityNotFound: There is none.
        StoreUnavailable: Another server may have it, which is not known yet.
    """
    key = path.lower()
    found: Queue | None = home.queues.get(key) or home.topics.get(key)
    if found is None or found.is_sharded:
        remote = None if home.remote_entities is None else home.remote_entities.find(home.name, path)
        if remote is None:
            raise not_found(f"sb://{home.name}/{path}")
        return remote
    return found


def demand_status(entity: Destination) -> None:
    """Raise EntityDisabled when the status of an entity forbids that messages are forwarded to it."""
    status = entity.description.status
    if status not in (ACTIVE, RECEIVE_DISABLED):
        raise EntityDisabled(f"'{entity.path}' has the status {status}. Enable it, then messages are forwarded.")


def check_targets(home: Namespace, description: QueueDescription, kept: QueueDescription | None = None) -> None:
    """Refuse an entity that is to forward to what does not exist (Azure: autoforwarding).

    What it forwards to already (``kept``) may be gone: its other properties can be changed. An entity may forward to
    itself or in a circle: the limit of hops ends that.

    Raises:
        ArgumentInvalid: A target does not exist.
    """
    for name, attribute in (
        ("ForwardTo", "forward_to"),
        ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    ):
        target: str | None = getattr(description, attribute)
        if target is None or (kept is not None and getattr(kept, attribute) == target):
            continue
        key = target.lower()
        if key == description.name.lower() or home.has(key):
            continue
        raise ArgumentInvalid(
            f"SubCode=40400. {name} of '{description.name}' is '{target}', which does not exist. Create it first."
        )


def fault(entity: Destination, payload: bytes, metadata: MessageMetadata) -> tuple[str, str] | None:
    """Why an entity can never take this message: (reason, description); None when it can."""
    about = entity.description
    limit = about.max_message_size_bytes
    if len(payload) > limit and sent_size(payload) > limit:
        return MESSAGE_TOO_LARGE, f"The message has {len(payload)} bytes; '{entity.path}' takes {limit} at most."
    if metadata.session_id is None and getattr(about, "requires_session", False):
        return SESSION_MISSING, f"'{entity.path}' requires sessions, and the message has no session id."
    if metadata.overlay is not None:
        try:
            scan(with_application_properties(payload, decode(metadata.overlay)[0]))
        except TooLargeError as error:
            return HEADER_TOO_LARGE, f"The properties of the message are too large for '{entity.path}': {error}."
        except DecodeError:
            # The gateway has checked it already and lets nothing through that is malformed.
            return None
    return None


def key_of(metadata: MessageMetadata) -> bytes | None:
    """What places a message: its session id, else its partition key."""
    text = metadata.session_id if metadata.session_id is not None else metadata.partition_key
    return None if text is None else string_key(text)


def fixed_fragment(entity: Destination, key: bytes | None, count: int) -> FragmentHandle | None:
    """The one fragment, there or not, of a message that has this key and count; None: it may go to any."""
    if key is not None:
        return entity.fragments[slot_of(key, len(entity.fragments))]
    return entity.fragment_of_count(count)


def is_retriable(error: ServiceBusError) -> bool:
    """Whether somebody can change what refuses messages, so that they wait before they are given up."""
    return isinstance(error, (EntityDisabled, EntityNotFound, QuotaExceeded))


def reason_of(error: ServiceBusError) -> str:
    """The DeadLetterReason of messages that a destination refused for this."""
    if isinstance(error, Unfit):
        return error.reason
    for kind, reason in ((EntityNotFound, NOT_FOUND), (EntityDisabled, DISABLED), (QuotaExceeded, FULL)):
        if isinstance(error, kind):
            return reason
    return REFUSED


def sub_batch(batch: SendBatch, indices: Sequence[int], made: SendBatch) -> SendBatch:
    """Fill ``made``, which has the payloads at ``indices`` of a batch, with everything else of them."""
    extra = batch.extra
    if extra is not None:
        made.extra = {position: extra[index] for position, index in enumerate(indices)}
    if batch.keys is not None:
        made.keys = [batch.keys[index] for index in indices]
    if batch.ids is not None:
        made.ids = [batch.ids[index] for index in indices]
    return made


# Sending via an entity to another: the message is stored here, and goes there when it is durable (Azure: transaction
# processing).
#
# So a transaction commits in one store, whatever the stores of those to which it sends, and a message to another entity
# is as safe as one to its own.


def address(batch: SendBatch, via: Queue, destination: str) -> None:
    """Mark messages that are sent via a queue: none of its receivers sees them, and its sessions do not matter.

    They are placed by the key that is meant for it; session id and partition key are the destination's, and so is the
    time for which they are scheduled.
    """
    extra = batch.extra or {}
    keys: list[bytes | None] = []
    for index in range(batch.n):
        metadata = extra.setdefault(index, MessageMetadata())
        metadata.route = TransferRoute(to=destination, scheduled_ms=metadata.scheduled_ms)
        metadata.scheduled_ms = None
        key = metadata.via_partition_key
        keys.append(None if key is None else string_key(key))
    batch.extra = extra
    batch.ids = None
    batch.keys = keys if via.is_partitioned and any(key is not None for key in keys) else None
