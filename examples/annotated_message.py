"""AMQP messages whose body is bytes, a sequence or a value, with every section.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/annotated_message.py queue.1
"""

import os
import sys

from azure.servicebus import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType


def main(queue: str) -> None:
    """Send one message of each kind of body and read them part by part."""
    messages = [
        AmqpAnnotatedMessage(data_body=[b"two ", b"parts"], application_properties={"kind": "data"}),
        AmqpAnnotatedMessage(sequence_body=[[1, "one"], [2, "two"]], footer={"note": "at the end"}),
        AmqpAnnotatedMessage(value_body={"answer": 42}, annotations={"mark": "ours"}, header={"priority": 7}),
    ]
    with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        with client.get_queue_sender(queue) as sender:
            for message in messages:
                sender.send_messages(message)
        left = len(messages)
        with client.get_queue_receiver(queue) as receiver:
            while left:
                for received in receiver.receive_messages(max_message_count=left, max_wait_time=5):
                    left -= 1
                    raw = received.raw_amqp_message
                    if raw.body_type == AmqpMessageBodyType.DATA:
                        print(f"data {b''.join(raw.body)!r} {raw.application_properties}")
                    elif raw.body_type == AmqpMessageBodyType.SEQUENCE:
                        print(f"sequence {list(raw.body)} {raw.footer}")
                    else:
                        mark = (raw.annotations or {}).get(b"mark")
                        print(f"value {raw.body} mark {mark!r} priority {raw.header.priority}")
                    receiver.complete_message(received)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: annotated_message.py QUEUE")
    main(sys.argv[1])
