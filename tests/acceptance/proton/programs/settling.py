"""PLAIN: send, receive, settle; a wrong key stays outside."""

from common import GIVEN, connect, failure, tell
from proton import Delivery, Message

connection = connect()
sender = connection.create_sender(GIVEN["queue"])
states = [sender.send(Message(id=index, body=f"message {index}")).remote_state for index in range(3)]
receiver = connection.create_receiver(GIVEN["queue"], credit=3)
bodies = []
for _ in range(3):
    message = receiver.receive()
    bodies.append(message.body)
    receiver.accept()
connection.close()

tell(
    accepted=states.count(Delivery.ACCEPTED),
    bodies=bodies,
    wrong=failure(lambda: connect(password="another key")),
)
