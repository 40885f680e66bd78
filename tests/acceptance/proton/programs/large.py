"""A message of many frames arrives bit-exact; one above the limit is rejected with the reason."""

import hashlib

from common import GIVEN, connect, failure, tell
from proton import Message

body = bytes(range(256)) * 6144

connection = connect(max_frame_size=65536)
sender = connection.create_sender(GIVEN["large"])
sender.send(Message(body=body))
receiver = connection.create_receiver(GIVEN["large"], credit=1)
message = receiver.receive()
# The body is a view into the message; it has to be copied while that is there.
back = bytes(message.body)
receiver.accept()
refused = failure(lambda: connection.create_sender(GIVEN["queue"]).send(Message(body=body)))
connection.close()

same = hashlib.sha256(back).digest() == hashlib.sha256(body).digest()
tell(size=len(back), same=same, refused=refused)
