"""A client at the level of frames that waits for each answer: the project's own engine over a socket."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from duobus.amqp import (
    ACCEPTED,
    Connection,
    ConnectionSettings,
    Coordinator,
    DeliveryState,
    Dispositions,
    Event,
    Link,
    LinkAttached,
    Source,
    Target,
    Transfers,
)
from duobus.codec import build_message

#: The emulator's well-known key.
KEY: Final = "SAS_KEY_VALUE"
LIMIT_S: Final = 60.0

EventT = TypeVar("EventT", bound=Event)


class WireClient:
    """The other end of a connection, in the thread of the test: it waits for each answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        response = f"\0RootManageSharedAccessKey\0{KEY}".encode()
        self._engine = Connection(
            ConnectionSettings(uuid.uuid4().hex, hostname="localhost", mechanisms=("PLAIN",), sasl_response=response),
            acceptor=False,
        )
        self._engine.open(0)
        self.session = self._engine.begin()
        self._events: list[Any] = []

    def flush(self) -> None:
        while output := self._engine.take_output(1 << 18):
            self._socket.sendall(output)

    def wait(self, kind: type[EventT], where: Callable[[EventT], bool] = lambda event: True) -> EventT:
        while True:
            for event in self._events:
                if isinstance(event, kind) and where(event):
                    self._events.remove(event)
                    return event
            self.pump()

    def pump(self) -> None:
        self.flush()
        data = self._socket.recv(1 << 18)
        assert data, f"the server closed the connection; there is {self._events}"
        self._events += self._engine.receive(data, time.monotonic_ns() // 1_000_000)

    def sender(self, queue: str = "q", *, target: Target | Coordinator | None = None) -> Link:
        """Attach a link to send on, and wait for credit."""
        link = self.session.attach_sender(uuid.uuid4().hex, Source(address="c"), target or Target(address=queue))
        self.wait(LinkAttached, lambda event: event.link is link)
        while not link.sendable():
            self.pump()
        return link

    def receiver(self, queue: str = "q") -> Link:
        """Attach a link to receive on, without credit."""
        link = self.session.attach_receiver(uuid.uuid4().hex, Source(address=queue), Target(address="c"))
        self.wait(LinkAttached, lambda event: event.link is link)
        return link

    def send(self, link: Link, body: bytes = b"body") -> None:
        """Send one message and wait until it has been accepted."""
        assert self.put(link, build_message([uuid.uuid4().hex], data=body)) == ACCEPTED

    def put(self, link: Link, payload: bytes, state: DeliveryState | None = None) -> DeliveryState | None:
        """Send one message; what the server says of it."""
        sent = link.send_one(uuid.uuid4().bytes, payload, False, state=state)
        answer = self.wait(Dispositions, lambda event: event.role and event.ranges[0][0] == sent)
        return answer.ranges[0][3]

    def receive(self, link: Link) -> int:
        """Ask for one message; returns the number of its delivery."""
        link.grant(1)
        return self.wait(Transfers, lambda event: event.link is link).first_delivery_id

    def complete(self, delivery: int, state: DeliveryState = ACCEPTED) -> None:
        """Complete a message, or settle it otherwise, and wait for the answer."""
        self.session.disposition(True, delivery, delivery, state, False)
        self.wait(Dispositions, lambda event: not event.role)

    def close(self) -> None:
        self._socket.close()
