"""Two namespaces that a test runs against: brokers of its own, or any two that the environment names.

DUOBUS_PAIR_PRIMARY and DUOBUS_PAIR_SECONDARY are their connection strings, DUOBUS_PAIR_QUEUE a queue of the first that
nobody else uses. Backlog queues ``<first label of the primary>/x-servicebus-transfer/0`` to 2 have to be in the second.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from azure.servicebus import ServiceBusClient as BlockingClient
from azure.servicebus import parse_connection_string
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.sdk import prompt_client
from kits.pair import Bus


class Place(NamedTuple):
    """Two namespaces.

    Attributes:
        primary, secondary: Their connection strings.
        queue: Where messages go.
        name: Of the primary, in the paths of the backlog queues.
        bus: The brokers, if they are our own.
    """

    primary: str
    secondary: str
    queue: str
    name: str
    bus: Bus | None

    def client(self, text: str) -> ServiceBusClient:
        """The SDK's client, without retries of its own."""
        return prompt_client(ServiceBusClient.from_connection_string(text, retry_total=0))

    def blocking_client(self, text: str) -> BlockingClient:
        """The same without asyncio."""
        return prompt_client(BlockingClient.from_connection_string(text, retry_total=0))


def place_of_environment() -> Place | None:
    """The two namespaces that the environment names, if it does."""
    primary = os.environ.get("DUOBUS_PAIR_PRIMARY")
    if not primary:
        return None
    host = parse_connection_string(primary).fully_qualified_namespace
    name = host.split(":")[0].split(".")[0]
    return Place(primary, os.environ["DUOBUS_PAIR_SECONDARY"], os.environ["DUOBUS_PAIR_QUEUE"], name, None)


def address(client: ServiceBusClient | BlockingClient) -> tuple[str, int]:
    """Where the SDK connects to."""
    host, _, port = str(client.fully_qualified_namespace).partition(":")
    return host, int(port or 5671)
