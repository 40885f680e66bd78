"""Receive with the official SDK: ``python -m benchmarks.sdk_receiver CONNECTION_STRING QUEUE MESSAGES FILE``.

A process of its own, so that what the SDK costs is not shared with whoever measures. It receives and deletes, in lists
of up to 500, which is the quickest that the SDK offers; prints the seconds from its first list to its last; and writes
the marks of each message to FILE.
"""

import sys
from pathlib import Path
from time import perf_counter

from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

from benchmarks.load.message import MARKS

LIST = 500


def receive(connection_string: str, queue: str, messages: int) -> tuple[float, list[bytes]]:
    """Receive so many messages; returns the seconds that the lists after the first took, and the marks of all.

    Raises:
        RuntimeError: fewer came within ten seconds.
    """
    marks: list[bytes] = []
    began = 0.0
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        while len(marks) < messages:
            received = receiver.receive_messages(min(LIST, messages - len(marks)), max_wait_time=10)
            if not received:
                raise RuntimeError(f"{len(marks)} of {messages} messages came")
            # The first list has the opening of the link in it.
            began = began or perf_counter()
            marks += [b"".join(message.body)[-MARKS.size :] for message in received]
        seconds = perf_counter() - began
    return seconds, marks


def main(arguments: list[str]) -> int:
    """As the module says."""
    connection_string, queue, messages, path = arguments
    seconds, marks = receive(connection_string, queue, int(messages))
    Path(path).write_bytes(b"".join(marks))
    print(seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
