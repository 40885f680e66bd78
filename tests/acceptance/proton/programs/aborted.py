"""A delivery that is aborted half way leaves nothing, and the link goes on."""

from typing import Any

from common import GIVEN, Program, tell
from proton import Delivery, Event, Message
from proton.reactor import Container


class Aborts(Program):
    """Streams part of a message, waits until it is under way, aborts it, sends a whole one, receives."""

    def __init__(self) -> None:
        super().__init__()
        self.half: Delivery | None = None
        self.bodies: list[str] = []
        self.accepted = 0

    def opened(self, container: Container, connection: Any) -> None:
        self.container = container
        self.sender = container.create_sender(connection, GIVEN["queue"])
        self.receiver = container.create_receiver(connection, GIVEN["queue"])

    def on_sendable(self, event: Event) -> None:
        if self.half is None:
            self.half = event.sender.delivery("half")
            event.sender.stream(Message(body="never" * 40_000).encode()[:150_000])
            self.container.schedule(0.2, self)

    def on_timer_task(self, event: Event) -> None:
        assert self.half is not None
        self.half.abort()
        self.sender.send(Message(body="whole"))

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        self.receiver.drain(5)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        event.delivery.update(Delivery.ACCEPTED)
        event.delivery.settle()

    def on_link_flow(self, event: Event) -> None:
        if event.receiver is not None and self.receiver.drain_mode and not self.receiver.credit:
            event.connection.close()


program = Aborts()
program.run()
tell(bodies=program.bodies, accepted=program.accepted)
