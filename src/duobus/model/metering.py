"""MeteringRecord: what the usage report of one minute says (requirements PN13 and PN15).

One operation is a message sent or handed out, per 64 KiB begun; a receive that ends with nothing is one, and so is a
peek; settlements and renewals are recorded at price 0. Counted per batch, written once a minute.
"""

from __future__ import annotations

import msgspec

#: One operation covers so many bytes of one message.
OPERATION_BYTES = 65_536

SEND = "send"
#: A ping of a paired namespace: charged like any message (PN13), and no message that anyone gets.
PING = "ping"
RECEIVE = "receive"
EMPTY_RECEIVE = "empty-receive"
#: A message that is shown and stays: handed out all the same.
PEEK = "peek"
SETTLE = "settle"
RENEW = "renew"
#: An HTTP request to a relay, with the bytes of its body and of the body of its answer.
RELAY_REQUEST = "relay-request"
#: A message that went through joined WebSockets of a relay.
RELAY_MESSAGE = "relay-message"
#: A second, begun, in which a listener of a relay was there.
RELAY_LISTENER = "relay-listener"

#: Every kind that a record may have, and whether it costs.
KINDS: dict[str, bool] = {
    SEND: True,
    PING: True,
    RECEIVE: True,
    EMPTY_RECEIVE: True,
    PEEK: True,
    SETTLE: False,
    RENEW: False,
    RELAY_REQUEST: False,
    RELAY_MESSAGE: False,
    RELAY_LISTENER: False,
}
#: Those of relays: no price of messages fits them.
RELAY_KINDS = (RELAY_REQUEST, RELAY_MESSAGE, RELAY_LISTENER)


class MeteringRecord(msgspec.Struct, frozen=True):
    """Counts of one namespace, entity, kind and key over one minute.

    Attributes:
        server: Id of the server's run that counted; with ``number`` it tells a record from every other.
        number: 1 and up within ``server``, without gaps.
        minute_ms: Start of the minute, ms since the epoch.
        namespace: Name of the namespace.
        entity: Path of the queue, topic, subscription or relay.
        kind: One of KINDS.
        messages: Messages, or requests for a kind that moves none; of RELAY_LISTENER seconds.
        bytes: Sum of the payload sizes.
        operations: Billable operations; counted per message, since sums cannot be split again.
        key: Name of the access rule, or of the identity, that asked; empty where nobody is named.
    """

    server: str
    number: int
    minute_ms: int
    namespace: str
    entity: str
    kind: str
    messages: int
    bytes: int
    operations: int
    key: str = ""


def operations_of(size_bytes: int) -> int:
    """Return the operations of one message of this size: one per 64 KiB begun, and one for an empty one."""
    return (size_bytes + OPERATION_BYTES - 1) // OPERATION_BYTES or 1
