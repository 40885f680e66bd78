"""What a lane sends: parcels for the fragments of a destination, and the outlets at which they wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from duobus.broker.entities.destination import sub_batch
from duobus.errors import StoreUnavailable
from duobus.model.batches import Mailbox, SendBatch

if TYPE_CHECKING:
    from duobus.broker.forwarding.forwarder import Forwarder
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.message import QueuedMessage


class ForwardBatch:
    """Messages for one fragment of the destination.

    Attributes:
        slots: As they are here.
        batch: As they are there.
        is_keyless: Another fragment may take them as well.
    """

    __slots__ = ("batch", "is_keyless", "slots")

    def __init__(self, slots: list[QueuedMessage], batch: SendBatch, *, is_keyless: bool) -> None:
        self.slots = slots
        self.batch = batch
        self.is_keyless = is_keyless


class DestinationQueue:
    """What a lane has for one fragment of the destination.

    Attributes:
        handle: The fragment.
        parcels: In order.
        is_busy: One is on its way.
        is_waiting: It was refused for now.
    """

    __slots__ = ("handle", "is_busy", "is_waiting", "parcels")

    def __init__(self, handle: FragmentHandle) -> None:
        self.handle = handle
        self.parcels: deque[ForwardBatch] = deque()
        self.is_busy = False
        self.is_waiting = False


class PendingForward(Mailbox):
    """What a lane has on its way to its destination.

    Attributes:
        life: The fragment that it is of, in the life that it had then.
    """

    __slots__ = ("_lane", "life")

    def __init__(self, lane: Forwarder, life: Fragment) -> None:
        super().__init__()
        self._lane = lane
        self.life = life

    @property
    def destination(self) -> tuple[str, str]:
        """Namespace and path of where it goes."""
        return self._lane.namespace, self._lane.path

    @property
    def is_current(self) -> bool:
        """Whether the fragment lives on, and is this server's."""
        handle = self._lane.handle
        return handle.fragment is self.life and time_of(handle.broker) is not None


class InFlightBatch(PendingForward):
    """A parcel on its way.

    Attributes:
        outlet: Where to.
        parcel: The parcel.
        is_known: The destination has said whether it has it.
    """

    __slots__ = ("is_known", "outlet", "parcel")

    def __init__(self, lane: Forwarder, outlet: DestinationQueue, parcel: ForwardBatch, life: Fragment) -> None:
        super().__init__(lane, life)
        self.outlet = outlet
        self.parcel = parcel
        self.is_known = False

    def wake(self) -> None:
        """See Mailbox."""
        answers, self.ready = self.ready, []
        for answer in answers:
            self._lane.answered(self, answer)


class InDoubtQuery(PendingForward):
    """What a lane asks its destination about the messages that earlier lives of their fragment may have sent.

    Attributes:
        number: Of answers that are awaited.
    """

    __slots__ = ("number",)

    def __init__(self, lane: Forwarder, life: Fragment, number: int) -> None:
        super().__init__(lane, life)
        self.number = number

    def wake(self) -> None:
        """See Mailbox."""
        if len(self.ready) == self.number:
            self._lane.heard(self)


class NullMailbox(Mailbox):
    """A mailbox that no answer comes to."""

    __slots__ = ()

    def wake(self) -> None:
        """See Mailbox."""


#: Of batches whose outcome comes to those who sent the parcel.
NOBODY: Final = NullMailbox()


def origin_of(handle: FragmentHandle, source_no: int) -> tuple[int, int, int]:
    """What a ledger knows a source by."""
    return handle.entity_id, handle.number, source_no


def time_of(broker: MessageBroker) -> int | None:
    """The time of a message broker; None when its lease has ended, so that its memory goes at once."""
    try:
        return broker.now_ms()
    except StoreUnavailable:
        return None


def forward_batch_of(
    slots: list[QueuedMessage], batch: SendBatch, indices: list[int], *, is_keyless: bool
) -> ForwardBatch:
    """The messages at ``indices`` as a parcel of their own."""
    if len(indices) == len(slots):
        return ForwardBatch(slots, batch, is_keyless=is_keyless)
    made = SendBatch(0, [batch.payloads[index] for index in indices], False, NOBODY)
    return ForwardBatch([slots[index] for index in indices], sub_batch(batch, indices, made), is_keyless=is_keyless)
