"""What goes on at one relay: its listeners, the senders that wait for them, and what is joined. Pure.

How many relay connections a namespace has is kept as a number that changes with each of them, so that a request does
not add up all relays.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from duobus.gateway.relay.listeners import Listeners
from duobus.gateway.relay.refusals import RelayRefusal
from duobus.model.relay.limits import CONNECTIONS_MAX, PENDING_MAX

ListenerT = TypeVar("ListenerT")
SenderT = TypeVar("SenderT")
EndT = TypeVar("EndT")


class NamespaceRoom:
    """How many relay connections a namespace has.

    Attributes:
        connections: Control channels, joined senders, and senders that wait for a listener or an answer.
    """

    __slots__ = ("connections",)

    def __init__(self) -> None:
        self.connections = 0


class RelayUse(Generic[ListenerT, SenderT, EndT]):
    """What goes on at one relay.

    Args:
        room: That of the namespace.

    Attributes:
        listeners: Its control channels.
        pending: Senders that wait for one of these, and HTTP requests until they are answered, each with its listener.
        spliced: Ends of WebSockets that are joined.
    """

    __slots__ = ("_room", "listeners", "pending", "spliced")

    def __init__(self, room: NamespaceRoom) -> None:
        self._room = room
        self.listeners: Listeners[ListenerT] = Listeners()
        self.pending: dict[SenderT, ListenerT] = {}
        self.spliced: set[EndT] = set()

    @property
    def connections(self) -> int:
        """How many relay connections these are."""
        return len(self.listeners) + self.spliced_senders + len(self.pending)

    @property
    def spliced_senders(self) -> int:
        """How many senders are joined with a listener."""
        return len(self.spliced) // 2

    def demand_room(self, path: str) -> None:
        """Raise RelayRefusal when there are as many connections as there may be."""
        if self._room.connections >= CONNECTIONS_MAX:
            raise RelayRefusal(503, f"The namespace has {CONNECTIONS_MAX} relay connections, which is the most.")
        if len(self.pending) >= PENDING_MAX:
            raise RelayRefusal(503, f"{PENDING_MAX} senders wait for listeners of '{path}', which is the most.")

    def listen(self, listener: ListenerT, path: str) -> None:
        """A listener has come; raises RelayRefusal when there are as many as there may be."""
        self.listeners.add(listener, path)
        self._room.connections += 1

    def leave(self, listener: ListenerT) -> bool:
        """A listener has gone; return whether it was there until now."""
        is_gone = self.listeners.remove(listener)
        self._room.connections -= is_gone
        return is_gone

    def wait(self, sender: SenderT, listener: ListenerT) -> None:
        """A sender waits for a listener."""
        self.pending[sender] = listener
        self._room.connections += 1

    def waited(self, sender: SenderT) -> None:
        """A sender waits no longer."""
        if self.pending.pop(sender, None) is not None:
            self._room.connections -= 1

    def join(self, ends: Collection[EndT]) -> None:
        """Two ends are joined."""
        before = self.spliced_senders
        self.spliced.update(ends)
        self._room.connections += self.spliced_senders - before

    def part(self, end: EndT) -> None:
        """An end is joined no longer."""
        before = self.spliced_senders
        self.spliced.discard(end)
        self._room.connections += self.spliced_senders - before
