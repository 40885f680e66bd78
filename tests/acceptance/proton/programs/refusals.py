"""What plain clients ask for and do not get is a detach with an error that Proton can read."""

from common import GIVEN, connect, failure, tell
from proton.reactor import Copy

connection = connect()
found = {
    "missing": failure(lambda: connection.create_sender("missing")),
    "dynamic": failure(lambda: connection.create_receiver(None, dynamic=True)),
    "browsing": failure(lambda: connection.create_receiver(GIVEN["queue"], options=Copy())),
    "relay": failure(lambda: connection.create_sender(None)),
}
connection.close()

tell(**found)
