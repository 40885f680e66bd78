"""Released gives back uncounted, modified counted, undeliverable here defers, rejected dead-letters."""

from typing import Any

from common import GIVEN, Program, connect, failure, tell
from proton import Condition, Delivery, Event, Message

NAMES = ["released", "modified", "elsewhere", "rejected"]

connection = connect()
sender = connection.create_sender(GIVEN["queue"])
for name in NAMES:
    sender.send(Message(id=name, body=name))
sender.close()


class Settles(Program):
    """Gives each message the outcome that it is named after."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = 0

    def opened(self, container: Any, connection: Any) -> None:
        container.create_receiver(connection, GIVEN["queue"]).flow(len(NAMES))

    def on_message(self, event: Event) -> None:
        name, delivery = event.message.body, event.delivery
        if name == "released":
            delivery.update(Delivery.RELEASED)
        elif name == "rejected":
            delivery.local.condition = Condition("test:broken", "beyond repair")
            delivery.update(Delivery.REJECTED)
        else:
            delivery.local.failed = True
            delivery.local.undeliverable = name == "elsewhere"
            delivery.update(Delivery.MODIFIED)
        delivery.settle()
        self.settled += 1
        if self.settled == len(NAMES):
            event.receiver.close()
            event.connection.close()


Settles().run()

receiver = connection.create_receiver(GIVEN["queue"], credit=10)
again = []
for _ in range(2):
    message = receiver.receive()
    again.append([message.body, message.delivery_count])
    receiver.accept()
rest = failure(lambda: receiver.receive(timeout=0.5))
letters = connection.create_receiver(f"{GIVEN['queue']}/$DeadLetterQueue", credit=1)
letter = letters.receive()
letters.accept()
connection.close()

tell(again=sorted(again), rest=rest[0], letter=letter.body, properties=letter.properties)
