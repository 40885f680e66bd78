"""FragmentHandle: what outlives a fragment's memory, so that queues and links can hold on to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duobus.errors import StoreUnavailable

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.fragment.fragment import Fragment


class AvailabilityListener(Protocol):
    """Is notified of available messages: a CreditScheduler, a SessionAcceptor, or what forwards."""

    def offer(self, handle: FragmentHandle, /) -> None:
        """A fragment has some."""


class FragmentHandle:
    """A fragment of an entity, whether its store is there or not.

    Attributes:
        broker: The message broker that runs it.
        entity_id: The catalog's id of the entity.
        number: The fragment's number in the entity.
        fragment: The engine while the store is open; None while it is away.
        home: The handle of the whole fragment: this one, or the topic's when this is a subscription's.
        parts: Of a topic's fragment: source number to the handle that the subscription has of it.
        schedulers: (source number, sub-queue) to the listener that is notified of available messages.
        slot, slots: Which keys belong to it: those of this slot, of so many of the entity; see ``placement.py``.
        waiting, waiting_bytes: New messages that wait for a commit of it to start; counted by ``backlog.py``.
    """

    __slots__ = (
        "broker",
        "entity_id",
        "fragment",
        "home",
        "number",
        "parts",
        "schedulers",
        "slot",
        "slots",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, broker: MessageBroker, entity_id: int, number: int, home: FragmentHandle | None = None) -> None:
        self.broker = broker
        self.entity_id = entity_id
        self.number = number
        self.fragment: Fragment | None = None if home is None else home.fragment
        self.home = home or self
        self.parts: dict[int, FragmentHandle] = {}
        self.schedulers: dict[tuple[int, int], AvailabilityListener] = {}
        self.slot = 0
        self.slots = 1
        self.waiting = 0
        self.waiting_bytes = 0

    def become(self, fragment: Fragment | None) -> None:
        """The fragment is there, or away; for the subscriptions that it has, too."""
        self.fragment = fragment
        for part in self.parts.values():
            part.fragment = fragment

    def move_to(self, broker: MessageBroker) -> None:
        """Another message broker runs it from now on."""
        self.broker = broker
        for part in self.parts.values():
            part.broker = broker

    def part(self, source_no: int) -> FragmentHandle:
        """The handle of those who use this source."""
        return self.parts.get(source_no, self)

    def unavailable(self, broker: MessageBroker | None = None) -> StoreUnavailable:
        """The error for whoever needs this fragment now; it says which one of the entity's that is.

        ``broker``: the one that does not have it, if that is not the one that should.
        """
        error = (broker or self.broker).unavailable()
        if self.slots > 1:
            error.fragments = (self.slot, self.slot, self.slots)
        return error

    @property
    def online(self) -> bool:
        """Whether the fragment's store is open."""
        return self.fragment is not None
