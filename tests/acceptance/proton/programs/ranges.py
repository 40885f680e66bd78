"""One hundred deliveries settled in one turn: Proton says so in one disposition over their range."""

from typing import Any

from common import GIVEN, Program, tell
from proton import Delivery, Event, Message

NUMBER = 100


class Ranges(Program):
    """Sends, receives all, settles all at once, then drains to see that nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.deliveries: list[Delivery] = []
        self.again = 0

    def opened(self, container: Any, connection: Any) -> None:
        self.sender = container.create_sender(connection, GIVEN["queue"])
        self.receiver = container.create_receiver(connection, GIVEN["queue"])
        self.receiver.flow(NUMBER)

    def on_sendable(self, event: Event) -> None:
        while event.sender.credit and self.sent < NUMBER:
            event.sender.send(Message(body=self.sent))
            self.sent += 1

    def on_message(self, event: Event) -> None:
        if len(self.deliveries) == NUMBER:
            self.again += 1
            return
        self.deliveries.append(event.delivery)
        if len(self.deliveries) == NUMBER:
            for delivery in self.deliveries:
                delivery.update(Delivery.ACCEPTED)
                delivery.settle()
            self.receiver.drain(10)

    def on_link_flow(self, event: Event) -> None:
        if event.receiver is not None and self.receiver.drain_mode and not self.receiver.credit:
            event.connection.close()


program = Ranges()
program.run()
tell(sent=program.sent, received=len(program.deliveries), again=program.again)
