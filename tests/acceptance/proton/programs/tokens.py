"""ANONYMOUS, and a token put by hand: refused before, served after."""

import base64
import hashlib
import hmac
import time
import uuid
from typing import Any
from urllib.parse import quote_plus

from common import GIVEN, connect, failure, tell
from proton import Message


def signature(key: str) -> str:
    """A shared access signature for the whole namespace."""
    resource, expiry = quote_plus("sb://localhost/"), int(time.time()) + 600
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signed = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={GIVEN['username']}"


def put(key: str) -> tuple[Any, Any]:
    """Put a token; returns the status of the reply and what it is about."""
    request = Message(
        id=uuid.uuid4(),
        reply_to="cbs-reply",
        properties={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "sb://localhost/"},
        body=signature(key),
    )
    to_node.send(request)
    reply = from_node.receive()
    return reply.properties["status-code"], reply.correlation_id == request.id


connection = connect(user=None, password=None, allowed_mechs="ANONYMOUS")
before = failure(lambda: connection.create_sender(GIVEN["queue"]))
to_node = connection.create_sender("$cbs")
from_node = connection.create_receiver("$cbs", credit=10)
wrong = put("another key")
right = put(GIVEN["password"])
connection.create_sender(GIVEN["queue"]).send(Message(body="in"))
receiver = connection.create_receiver(GIVEN["queue"], credit=1)
body = receiver.receive().body
receiver.accept()
connection.close()

tell(before=before, wrong=wrong, right=right, body=body)
