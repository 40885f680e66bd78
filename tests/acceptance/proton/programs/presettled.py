"""Presettled both ways: what is sent has no outcome, what is received is gone."""

from common import GIVEN, connect, failure, tell
from proton import Message
from proton.reactor import AtMostOnce

NUMBER = 50

connection = connect()
sender = connection.create_sender(GIVEN["queue"], options=AtMostOnce())
for index in range(NUMBER):
    sender.link.send(Message(body=index))
connection.wait(lambda: not sender.link.queued)
receiver = connection.create_receiver(GIVEN["queue"], credit=NUMBER, options=AtMostOnce())
bodies = [receiver.receive().body for _ in range(NUMBER)]
settled = receiver.link.remote_snd_settle_mode == receiver.link.SND_SETTLED
receiver.close()
rest = failure(lambda: connection.create_receiver(GIVEN["queue"], credit=1).receive(timeout=0.5))
connection.close()

tell(bodies=bodies, settled=settled, rest=rest[0])
