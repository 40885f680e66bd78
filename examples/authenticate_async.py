"""What authenticate.py does, on the SDK's asyncio client.

    export SERVICEBUS_ENDPOINT='sb://localhost:5671' SERVICEBUS_CA=/path/to/ca.pem
    export SERVICEBUS_KEY_NAME=RootManageSharedAccessKey SERVICEBUS_KEY=...
    python examples/authenticate_async.py queue.1

``duobus serve --tls-self-signed`` writes the path of its authority into its --ready-file.
"""

import asyncio
import base64
import hashlib
import hmac
import os
import sys
import time
from typing import Any
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

KEY_NAME, KEY = os.environ.get("SERVICEBUS_KEY_NAME", ""), os.environ.get("SERVICEBUS_KEY", "")
TOKEN_LIFE_S = 600
#: The name that the token is for; where the broker really is says the custom endpoint.
HOST = "localhost"


def route() -> dict[str, Any]:
    """How every client here gets to the broker."""
    return {
        "custom_endpoint_address": os.environ["SERVICEBUS_ENDPOINT"],
        "connection_verify": os.environ["SERVICEBUS_CA"],
    }


def shared_access_signature(queue: str) -> str:
    """Sign a token for one queue; whoever has it needs no key."""
    resource = quote_plus(f"sb://{HOST}/{queue}")
    expiry = str(int(time.time()) + TOKEN_LIFE_S)
    digest = hmac.new(KEY.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return f"SharedAccessSignature sr={resource}&sig={quote_plus(base64.b64encode(digest))}&se={expiry}&skn={KEY_NAME}"


async def main(queue: str) -> None:
    """Send with a connection string, a named key and a signature; receive with the last."""
    text = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
    signature = AzureSasCredential(shared_access_signature(queue))
    clients = {
        "connection string": ServiceBusClient.from_connection_string(text, **route()),
        "named key": ServiceBusClient(HOST, AzureNamedKeyCredential(KEY_NAME, KEY), **route()),
        "signature": ServiceBusClient(HOST, signature, **route()),
    }
    for name, client in clients.items():
        async with client, client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage(f"sent with a {name}"))
    async with (
        ServiceBusClient(HOST, signature, **route()) as client,
        client.get_queue_receiver(queue, max_wait_time=2) as receiver,
    ):
        async for message in receiver:
            print(str(message))
            await receiver.complete_message(message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: authenticate_async.py QUEUE")
    asyncio.run(main(sys.argv[1]))
