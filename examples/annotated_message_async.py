"""What annotated_message.py does, on the SDK's asyncio client.

export SERVICEBUS_CONNECTION_STRING='Endpoint=sb://localhost:5672;...;UseDevelopmentEmulator=true;'
python examples/annotated_message_async.py queue.1
"""

import asyncio
import os
import sys

from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType


async def main(queue: str) -> None:
    """Send one message of each kind of body and read them part by part."""
    messages = [
        AmqpAnnotatedMessage(data_body=[b"two ", b"parts"], application_properties={"kind": "data"}),
        AmqpAnnotatedMessage(sequence_body=[[1, "one"], [2, "two"]], footer={"note": "at the end"}),
        AmqpAnnotatedMessage(value_body={"answer": 42}, annotations={"mark": "ours"}, header={"priority": 7}),
    ]
    async with ServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"]) as client:
        async with client.get_queue_sender(queue) as sender:
            for message in messages:
                await sender.send_messages(message)
        left = len(messages)
        async with client.get_queue_receiver(queue) as receiver:
            while left:
                for received in await receiver.receive_messages(max_message_count=left, max_wait_time=5):
                    left -= 1
                    raw = received.raw_amqp_message
                    if raw.body_type == AmqpMessageBodyType.DATA:
                        print(f"data {b''.join(raw.body)!r} {raw.application_properties}")
                    elif raw.body_type == AmqpMessageBodyType.SEQUENCE:
                        print(f"sequence {list(raw.body)} {raw.footer}")
                    else:
                        mark = (raw.annotations or {}).get(b"mark")
                        print(f"value {raw.body} mark {mark!r} priority {raw.header.priority}")
                    await receiver.complete_message(received)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: annotated_message_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
