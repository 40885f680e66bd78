"""Ordered messages of a session, with state that stays when the receiver goes.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/sessions.py queue.1

The queue requires sessions.
"""

import os
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

STEPS = ("cut", "glue", "paint", "dry")


def main(queue: str) -> None:
    """Send the steps of two works; do half of one, hand it over, and do the rest."""
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            for work in ("chair", "table"):
                sender.send_messages([ServiceBusMessage(step, session_id=work) for step in STEPS])
        for number in (2, 2):
            # While this receiver has the session nobody else gets a message of it.
            with client.get_queue_receiver(queue, session_id="chair") as receiver:
                session = receiver.session
                state = session.get_state()
                done = state.decode().split() if state else []
                print(f"chair so far: {done}")
                while number:
                    for message in receiver.receive_messages(max_message_count=number, max_wait_time=5):
                        number -= 1
                        done.append(str(message))
                        # State first: if we died now, the step would come again and we would know it.
                        session.set_state(" ".join(done))
                        receiver.complete_message(message)
                until = session.locked_until_utc
                print(f"chair now: {done}, lock renewed: {session.renew_lock() >= until}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: sessions.py QUEUE")
    main(sys.argv[1])
