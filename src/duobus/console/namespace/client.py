"""The client of one namespace, which lives as long as the session of the person who signed in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.failures import TOLD, NamespaceError, namespace_error
from duobus.console.namespace.operations import TIMEOUT_S, HttpOperations
from duobus.console.namespace.rights import Rights, find_rights, is_duobus
from duobus.ha.sdk import prompt_client

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

#: For how long the console relies on what it knows of the servers of a namespace, in milliseconds.
_SERVERS_MS: Final = 10_000
#: How long the end of a session waits for the SDK's connections to close, in seconds.
_CLOSE_S: Final = 5.0
_NO_QUERY: Final[Mapping[str, str]] = {}


class NamespaceClient:
    """How the console reaches one namespace; made by ``open_namespace``.

    Attributes:
        name: Host of the namespace, for people.
        entity: The only entity that the key is for; empty for the whole namespace.
        rule_name: Name of the access rule that opens the namespace.
        is_duobus: Whether what only duobus offers is there and answers.
        rights: What the key may do.
        clock: The clock of the console.
        administration: The SDK's administration client.
        messaging: The SDK's client of messages.
    """

    def __init__(self, address: NamespaceAddress, ca: Path | None, clock: Clock) -> None:
        self.name = address.netloc
        self.entity = address.entity
        self.rule_name = address.rule_name
        self.is_duobus = False
        self.rights = Rights(send=False, listen=False, manage=False)
        self._servers: list[str] = []
        self._servers_until_ms = 0
        self.clock = clock
        self._address = address
        self._operations = HttpOperations(address, ca, clock)
        self.administration = _administration_client(address, ca)
        self.messaging = _messaging_client(address, ca)

    @property
    def address(self) -> NamespaceAddress:
        """Where the namespace is, with the key; never for a page."""
        return self._address

    async def learn(self) -> None:
        """Ask the namespace what it is and what the key may do.

        Raises:
            NamespaceError: It does not answer, or does not take the key.
        """
        self.rights = await find_rights(self._operations, self.entity)
        self.is_duobus = await is_duobus(self._operations)

    async def servers(self) -> list[str]:
        """Addresses of the servers that share the namespace, the one that is asked first; empty for a lone server.

        Each of several servers tells of itself alone where only duobus tells something. What is known is used again for
        a while: servers come and go seldom.
        """
        may_ask = self.is_duobus and not self.entity and (self.rights.listen or self.rights.manage)
        now_ms = self.clock.monotonic_ms()
        if may_ask and now_ms >= self._servers_until_ms:
            try:
                self._servers = list((await self.operation("GET", "/$duobus/server")).get("servers", ()))
            except NamespaceError:
                # Whoever needs the answer to more than this asks, too, and is told.
                return self._servers
            self._servers_until_ms = now_ms + _SERVERS_MS
        return self._servers

    async def now_ms(self) -> int:
        """The time by the clock of the namespace, in ms since 1970.

        A duobus tells broker time to keys for the whole namespace. Every namespace dates its answers to the second;
        the end of that second is taken, so that what the namespace has enqueued before is earlier.

        Raises:
            NamespaceError: The namespace does not answer, or tells no time.
        """
        if self.is_duobus and not self.entity and (self.rights.listen or self.rights.manage):
            return int((await self.operation("GET", "/$duobus/server"))["nowMs"])
        answer = await self._operations.ask("GET", "/$namespaceinfo")
        try:
            return round(parsedate_to_datetime(answer.date).timestamp() * 1_000) + 1_000
        except (TypeError, ValueError):
            raise NamespaceError(HTTPStatus.BAD_GATEWAY, f"{self.name} does not tell the time.") from None

    async def close(self) -> None:
        """Close every connection."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.messaging.close()
                await self.administration.close()
        except TOLD as error:
            logging.getLogger("duobus.console").info("A client of %s closed badly: %r", self.name, error)
        finally:
            await self._operations.close()

    async def operation(self, method: str, path: str, *, query: Mapping[str, str] = _NO_QUERY, body: Any = None) -> Any:
        """Send a request of duobus's own, as ``GET /$duobus/stores``; return the decoded JSON of its answer.

        Args:
            method: Of HTTP.
            path: Not percent-encoded, as ``/$duobus/stores`` or ``/orders/eu/$desk``.
            query: Parameters of the request.
            body: What is sent as JSON.

        Raises:
            NamespaceError: The namespace does not answer, does not know the request, or refuses.
        """
        return await self._operations.operation(method, path, query=query, body=body)

    def telling(self, what: str, timeout_s: float = TIMEOUT_S) -> AbstractAsyncContextManager[None]:
        """Turn errors of the SDK into ``NamespaceError``, and end what takes longer than the time-out.

        Args:
            what: What the calls inside are about, as ``queue orders``; for the sentence of the error.
            timeout_s: How long the calls may take together.
        """
        return self._telling(what, timeout_s)

    @asynccontextmanager
    async def _telling(self, what: str, timeout_s: float) -> AsyncIterator[None]:
        task = asyncio.current_task()
        cancellations = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(timeout_s):
                yield
            # The SDK loses a cancellation at times: ``asyncio.wait_for`` of Python 3.11 returns the result when that
            # comes in the same moment. Without this a live page would go on asking after its reader has gone.
            if task is not None and task.cancelling() > cancellations:
                raise asyncio.CancelledError
        except NamespaceError:
            raise
        except TOLD as error:
            raise namespace_error(error, what, self.name, self._address.masked) from error


async def open_namespace(address: NamespaceAddress, ca: Path | None, clock: Clock) -> NamespaceClient:
    """Connect to a namespace.

    Raises:
        NamespaceError: It does not answer, or does not take the key.
    """
    client = NamespaceClient(address, ca, clock)
    try:
        await client.learn()
    except BaseException:
        await client.close()
        raise
    return client


def _administration_client(address: NamespaceAddress, ca: Path | None) -> ServiceBusAdministrationClient:
    # Nothing is tried again for long: a person waits, and can try again.
    options: dict[str, Any] = {"retry_connect": 0, "retry_total": 1}
    if address.is_plain:
        options["transport"] = _PlainTransport(use_env_settings=False)
    elif ca is not None:
        options["connection_verify"] = str(ca)
    return ServiceBusAdministrationClient.from_connection_string(address.management_text, **options)


def _messaging_client(address: NamespaceAddress, ca: Path | None) -> ServiceBusClient:
    options: dict[str, Any] = {"retry_total": 1}
    if address.messaging_endpoint is not None:
        # Over TLS the SDK drops the port of the namespace.
        options["custom_endpoint_address"] = address.messaging_endpoint
    if ca is not None:
        options["connection_verify"] = str(ca)
    return prompt_client(ServiceBusClient.from_connection_string(address.text, **options))


class _PlainTransport(AioHttpTransport):  # type: ignore[misc] # the class is loaded lazily by its module
    """HTTP without TLS: the SDK's administration client knows HTTPS only, but lets its transport be chosen."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https:", "http:", 1) if request.url.startswith("https:") else request.url
        return await super().send(request, **options)
