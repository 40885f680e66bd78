"""A drain gives what there is and takes the rest of the credit; the link goes on afterwards."""

from typing import Any

from common import GIVEN, Program, tell
from proton import Delivery, Event, Message


class Drains(Program):
    """Two messages, a drain over credit 5, a drain on the empty queue, then plain credit and a third message."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[Any]] = []
        self.bodies: list[str] = []
        self.sent = self.accepted = 0

    def opened(self, container: Any, connection: Any) -> None:
        self.sender = container.create_sender(connection, GIVEN["queue"])
        self.receiver = container.create_receiver(connection, GIVEN["queue"])

    def on_sendable(self, event: Event) -> None:
        if not self.sent:
            self.sent = 2
            event.sender.send(Message(body="one"))
            event.sender.send(Message(body="two"))

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        if self.accepted == 2:
            self.receiver.drain(5)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        event.delivery.update(Delivery.ACCEPTED)
        event.delivery.settle()
        if event.message.body == "three":
            event.connection.close()

    def on_link_flow(self, event: Event) -> None:
        if event.receiver is None or self.receiver.credit or not self.receiver.drain_mode:
            return
        self.steps.append([list(self.bodies), self.receiver.credit])
        if len(self.steps) == 1:
            self.receiver.drain(3)
        elif len(self.steps) == 2:
            self.receiver.drain_mode = False
            self.receiver.flow(1)
            self.sender.send(Message(body="three"))


program = Drains()
program.run()
tell(steps=program.steps, bodies=program.bodies)
