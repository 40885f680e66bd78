"""Three ways to log in, over TLS to an endpoint of our own, whose certificate is verified.

    export SERVICEBUS_ENDPOINT='sb://localhost:5671' SERVICEBUS_CA=/path/to/ca.pem
    export SERVICEBUS_KEY_NAME=RootManageSharedAccessKey SERVICEBUS_KEY=...
    python examples/authenticate.py queue.1

``duobus serve --tls-self-signed`` writes the path of its authority into its --ready-file.
"""

import base64
import hashlib
import hmac
import os
import sys
import time
from typing import Any
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage

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


def main(queue: str) -> None:
    """Send with a connection string, a named key and a signature; receive with the last."""
    text = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
    signature = AzureSasCredential(shared_access_signature(queue))
    clients = {
        "connection string": ServiceBusClient.from_connection_string(text, **route()),
        "named key": ServiceBusClient(HOST, AzureNamedKeyCredential(KEY_NAME, KEY), **route()),
        "signature": ServiceBusClient(HOST, signature, **route()),
    }
    for name, client in clients.items():
        with client, client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(f"sent with a {name}"))
    with (
        ServiceBusClient(HOST, signature, **route()) as client,
        client.get_queue_receiver(queue, max_wait_time=2) as receiver,
    ):
        for message in receiver:
            print(str(message))
            receiver.complete_message(message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: authenticate.py QUEUE")
    main(sys.argv[1])
