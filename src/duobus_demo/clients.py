"""Making SDK clients and messages, the same way for every worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, TransportType
from azure.servicebus import aio as azure_aio

from duobus.ha.sdk import prompt_client
from duobus.testing.server import ServerProcess
from duobus_demo.corpus import DIGEST_PROPERTY, Outgoing
from duobus_demo.message_account import MessageAccount

#: What the SDK raises when a connection breaks or the broker is away, after its own retries. What was asked for may
#: have been done or not.
UNKNOWN_OUTCOME = (AzureError, OSError)

#: The SDK's own retries: as many as by default, but after a restart there is no reason to wait for seconds.
_RETRIES: dict[str, Any] = {"retry_total": 3, "retry_backoff_factor": 0.02, "try_timeout": 20.0}


class Endpoint(NamedTuple):
    """One way to reach the broker: a connection string, and what the SDK's client needs beside it.

    Attributes:
        name: The transport; the message account counts messages by it.
        connection_string: With key, and for plain connections with ``UseDevelopmentEmulator=true``.
        options: Arguments of the SDK's client.
        sync_library: Module that the synchronous client needs for this transport, empty when none; the asyncio client
            makes do with what the broker itself depends on.
    """

    name: str
    connection_string: str
    options: dict[str, Any]
    sync_library: str = ""

    def client(self, **given: Any) -> ServiceBusClient:
        """Return a synchronous client; ``given``: options of the SDK in place of the usual ones."""
        options = {**_RETRIES, **self.options, **given}
        made = ServiceBusClient.from_connection_string(self.connection_string, **options)
        return prompt_client(made)

    def async_client(self) -> azure_aio.ServiceBusClient:
        """Return an asyncio client."""
        made = azure_aio.ServiceBusClient.from_connection_string(self.connection_string, **_RETRIES, **self.options)
        return prompt_client(made)


def endpoints_of(server: ServerProcess) -> list[Endpoint]:
    """Return plain TCP, and TLS and WebSocket with the broker's certificate verified (AMQP 1.0 WebSocket binding)."""
    tls = {
        "custom_endpoint_address": server.tls_endpoint,
        "transport_type": TransportType.Amqp,
        "connection_verify": server.ca,
    }
    # The port of HTTP tells TLS by its first byte; the SDK adds the path.
    websocket = {
        "custom_endpoint_address": server.websocket_endpoint,
        "transport_type": TransportType.AmqpOverWebsocket,
        "connection_verify": server.ca,
    }
    # The asyncio client reads its authorities for each connection, plain ones too. The usual 140 of them take 45 ms of
    # the processor: while a broker is down, clients that try to connect would do nothing else.
    plain = {"connection_verify": server.ca}
    return [
        Endpoint("tcp", server.connection_string, plain),
        Endpoint("tls", server.connection_string_tls, tls),
        Endpoint("websocket", server.connection_string_tls, websocket, sync_library="websocket"),
    ]


def sync_endpoints(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return those of ``endpoints`` that the synchronous client can use here."""
    return [
        endpoint for endpoint in endpoints if not endpoint.sync_library or find_spec(endpoint.sync_library) is not None
    ]


def message_of(outgoing: Outgoing, body: bytes, digest: str) -> ServiceBusMessage:
    """Return the SDK's message for ``outgoing``; a new one for each attempt, as the SDK changes what it sends."""
    return ServiceBusMessage(
        body,
        message_id=outgoing.message_id,
        partition_key=outgoing.partition_key,
        application_properties={DIGEST_PROPERTY: digest},
    )


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """Return the whole body of a received message."""
    return b"".join(message.body)


def record_received(account: MessageAccount, message: ServiceBusReceivedMessage) -> None:
    """Enter a received message into the message account, with everything that must be as it was sent."""
    properties = message.application_properties or {}
    # The SDK hands application properties out with keys and values of bytes.
    digest = properties.get(DIGEST_PROPERTY.encode(), properties.get(DIGEST_PROPERTY))
    account.received(
        message_id_of(message),
        body_of(message),
        digest=digest.decode() if isinstance(digest, bytes) else None if digest is None else str(digest),
        partition_key=message.partition_key,
        number=number_of(message),
        locked_until_ms=locked_until_ms(message),
    )


def message_id_of(message: ServiceBusReceivedMessage) -> str:
    """Return the message id; empty when the message has none."""
    return message.message_id or ""


def number_of(message: ServiceBusReceivedMessage) -> int:
    """Return the sequence number, which every received message has (Azure: AMQP protocol guide)."""
    return message.sequence_number or 0


def locked_until_ms(message: ServiceBusReceivedMessage) -> int | None:
    """Return the end of the lock of this delivery in the broker's time, None when it has none."""
    until = message.locked_until_utc
    return None if until is None else int(until.timestamp() * 1000)


class _Closeable(Protocol):
    def close(self) -> None: ...


class _AsyncCloseable(Protocol):
    async def close(self) -> None: ...


def close_quietly(link: _Closeable) -> None:
    """Close a sender or receiver whose connection is gone or may be."""
    try:
        link.close()
    except UNKNOWN_OUTCOME:
        return


async def close_quietly_async(link: _AsyncCloseable) -> None:
    """Close a sender or receiver whose connection is gone or may be."""
    try:
        await link.close()
    except UNKNOWN_OUTCOME:
        return


def silence_sdk_logs() -> None:
    """Keep the SDK's reports about connections that are meant to break out of the terminal."""
    for name in ("azure", "asyncio"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
