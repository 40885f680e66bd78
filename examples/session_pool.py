"""Work on whatever session is next, with several workers.

    export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
    python examples/session_pool.py queue.1

The queue requires sessions.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

SESSIONS, MESSAGES, WORKERS = 6, 3, 3


def main(queue: str) -> None:
    """Fill several sessions and empty them side by side."""
    with (
        ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for name in range(SESSIONS):
            sender.send_messages(
                [ServiceBusMessage(str(number), session_id=f"room {name}") for number in range(MESSAGES)]
            )
    with ThreadPoolExecutor(WORKERS) as pool:
        found = [line for lines in pool.map(work, [queue] * WORKERS) for line in lines]
    print("\n".join(sorted(found)))


def work(queue: str) -> list[str]:
    """Take one session after the other until there is none."""
    found = []
    # A client is one thread's own. No retries: that there is no further session is the end, and no failure.
    connection = os.environ["SERVICEBUS_CONNECTION_STRING"]
    with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
        while True:
            try:
                # max_wait_time counts for the session, and then for each further message.
                receiver = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
                with receiver:
                    bodies = []
                    for message in receiver:
                        bodies.append(str(message))
                        receiver.complete_message(message)
                    found.append(f"{receiver.session.session_id}: {' '.join(bodies)}")
            except OperationTimeoutError:
                return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: session_pool.py QUEUE")
    main(sys.argv[1])
