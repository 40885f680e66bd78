"""What a forwarder sends: batches for the fragments of a destination, and the destination queues at which they wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from duobus.broker.entities.destination import sub_batch
from duobus.model.batches import Mailbox, SendBatch

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.commands import Group
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.message import QueuedMessage
    from duobus.fragment.transfer import RemoveTransferred


class BatchSender(Protocol):
    """What a batch or a query on its way belongs to, and what hears of the outcome: a forwarder.

    Attributes:
        path: Of the destination.
        handle: The fragment whose messages are forwarded.
    """

    path: str
    handle: FragmentHandle

    @property
    def namespace(self) -> str:
        """Of the destination."""

    def answered(self, in_flight: InFlightBatch, answer: Group | RemoveTransferred) -> None:
        """The destination has answered, or its store has."""

    def resolved(self, question: InDoubtQuery) -> None:
        """Every fragment of the destination has said which messages it has."""


class ForwardBatch:
    """Messages for one fragment of the destination.

    Attributes:
        messages: As they are here.
        batch: As they are there.
        is_keyless: Another fragment may take them as well.
    """

    __slots__ = ("batch", "is_keyless", "messages")

    def __init__(self, messages: list[QueuedMessage], batch: SendBatch, *, is_keyless: bool) -> None:
        self.messages = messages
        self.batch = batch
        self.is_keyless = is_keyless


class DestinationQueue:
    """What a forwarder has for one fragment of the destination.

    Attributes:
        handle: The fragment.
        forward_batches: In order.
        is_busy: One is on its way.
        is_waiting: It was refused for now.
    """

    __slots__ = ("forward_batches", "handle", "is_busy", "is_waiting")

    def __init__(self, handle: FragmentHandle) -> None:
        self.handle = handle
        self.forward_batches: deque[ForwardBatch] = deque()
        self.is_busy = False
        self.is_waiting = False


class PendingForward(Mailbox):
    """What a forwarder has on its way to its destination.

    Attributes:
        life: The fragment that it is of, in the life that it had then.
    """

    __slots__ = ("_sender", "life")

    def __init__(self, sender: BatchSender, life: Fragment) -> None:
        super().__init__()
        self._sender = sender
        self.life = life

    @property
    def destination(self) -> tuple[str, str]:
        """Namespace and path of where it goes."""
        return self._sender.namespace, self._sender.path

    @property
    def is_current(self) -> bool:
        """Whether the fragment lives on, and is this server's."""
        handle = self._sender.handle
        return handle.fragment is self.life and handle.now_ms_if_leased() is not None


class InFlightBatch(PendingForward):
    """A batch on its way.

    Attributes:
        queue: Where to.
        forward_batch: The batch.
        is_known: The destination has said whether it has it.
    """

    __slots__ = ("forward_batch", "is_known", "queue")

    def __init__(
        self, sender: BatchSender, queue: DestinationQueue, forward_batch: ForwardBatch, life: Fragment
    ) -> None:
        super().__init__(sender, life)
        self.queue = queue
        self.forward_batch = forward_batch
        self.is_known = False

    def wake(self) -> None:
        """See Mailbox."""
        answers, self.ready = self.ready, []
        for answer in answers:
            self._sender.answered(self, answer)


class InDoubtQuery(PendingForward):
    """What a forwarder asks its destination about the messages that earlier lives of their fragment may have sent.

    Attributes:
        number: Of answers that are awaited.
    """

    __slots__ = ("number",)

    def __init__(self, sender: BatchSender, life: Fragment, number: int) -> None:
        super().__init__(sender, life)
        self.number = number

    def wake(self) -> None:
        """See Mailbox."""
        if len(self.ready) == self.number:
            self._sender.resolved(self)


class NullMailbox(Mailbox):
    """A mailbox that no answer comes to."""

    __slots__ = ()

    def wake(self) -> None:
        """See Mailbox."""


#: Of batches whose outcome comes to those who sent the batch.
NOBODY: Final = NullMailbox()


def origin_of(handle: FragmentHandle, source_no: int) -> tuple[int, int, int]:
    """By what the forward dedup knows a source."""
    return handle.entity_id, handle.number, source_no


def forward_batch_of(
    messages: list[QueuedMessage], batch: SendBatch, indices: list[int], *, is_keyless: bool
) -> ForwardBatch:
    """The messages at ``indices`` as a batch of their own."""
    if len(indices) == len(messages):
        return ForwardBatch(messages, batch, is_keyless=is_keyless)
    made = SendBatch(0, [batch.payloads[index] for index in indices], False, NOBODY)
    return ForwardBatch([messages[index] for index in indices], sub_batch(batch, indices, made), is_keyless=is_keyless)
