"""FragmentHandle: what outlives a fragment's memory, so that queues and links can hold on to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from duobus.broker.fragment.fragment import Fragment
    from duobus.broker.message_broker import MessageBroker


class Taker(Protocol):
    """Who wants to hear of available messages: a Lender, an Acceptor, or what forwards."""

    def offer(self, handle: FragmentHandle, /) -> None:
        """A fragment has some."""


class FragmentHandle:
    """A fragment of an entity, whether its store is there or not.

    Attributes:
        broker: The message broker that runs it.
        entity_id: The catalog's id of the entity.
        number: The fragment's number in the entity.
        fragment: The engine while the store is open; None while it is away.
        lenders: (source number, sub-queue) to whoever wants to hear of available messages.
        waiting, waiting_bytes: New messages that wait for a commit of it to start; counted by ``backlog.py``.
    """

    __slots__ = ("broker", "entity_id", "fragment", "lenders", "number", "waiting", "waiting_bytes")

    def __init__(self, broker: MessageBroker, entity_id: int, number: int) -> None:
        self.broker = broker
        self.entity_id = entity_id
        self.number = number
        self.fragment: Fragment | None = None
        self.lenders: dict[tuple[int, int], Taker] = {}
        self.waiting = 0
        self.waiting_bytes = 0

    @property
    def online(self) -> bool:
        """Whether the fragment's store is open."""
        return self.fragment is not None
