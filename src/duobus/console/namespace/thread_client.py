"""The namespace as work on dead letters needs it: with calls that wait, which threads of the console make."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusClient

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.failures import TOLD, NamespaceError, clean, namespace_error, said, told
from duobus.console.namespace.operations import token_for
from duobus.console.settings import SETTINGS
from duobus.ha.sdk import prompt_client

if TYPE_CHECKING:
    from duobus.console.visits import Visit

_TOKEN_S: Final = 3_600


class WorkNamespace:
    """See ``duobus.dead_letters.namespace``; its errors are ``NamespaceError``.

    Args:
        address: The namespace, with the key of the person who began the work.
        ca: Certificate authority to trust, PEM.
        clock: For the end of tokens.
        is_duobus: Whether what only duobus offers is there.
    """

    def __init__(self, address: NamespaceAddress, ca: Path | None, clock: Clock, *, is_duobus: bool) -> None:
        self.is_duobus = is_duobus
        self._address = address
        self._ca = ca
        self._clock = clock
        self._token = ""
        self._token_until_ms = 0

    @property
    def name(self) -> str:
        """Host of the namespace, for people."""
        return self._address.netloc

    @property
    def netloc(self) -> str:
        """Host and port of the management API."""
        return self._address.url.partition("//")[2]

    @property
    def is_plain(self) -> bool:
        """Whether that is without TLS."""
        return self._address.is_plain

    @property
    def ca(self) -> str | None:
        """File of the certificate authority to trust."""
        return None if self._ca is None else str(self._ca)

    def authorization(self) -> str:
        """A token for a request."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._token_until_ms:
            self._token = token_for(self._address, now_ms // 1000 + _TOKEN_S)
            self._token_until_ms = now_ms + _TOKEN_S * 500
        return self._token

    def failure(self, status: int, text: str) -> NamespaceError:
        """The error for a refusal of the server."""
        return told(status, self._address.masked(clean(html.unescape(text))))

    def silence(self, reason: str) -> NamespaceError:
        """The error for a server that does not answer."""
        text = self._address.masked(f"{self._address.url} does not answer: {clean(reason)}")
        return NamespaceError(HTTPStatus.BAD_GATEWAY, text)

    def said(self, error: BaseException) -> str:
        """What an error of the SDK says."""
        return self._address.masked(said(error))

    @contextmanager
    def messaging(self, what: str) -> Iterator[ServiceBusClient]:
        """The SDK's client of messages."""
        options: dict[str, Any] = {"retry_total": 1}
        if self._address.messaging_endpoint is not None:
            options["custom_endpoint_address"] = self._address.messaging_endpoint
        if self._ca is not None:
            options["connection_verify"] = str(self._ca)
        try:
            with prompt_client(ServiceBusClient.from_connection_string(self._address.text, **options)) as client:
                yield client
        except NamespaceError:
            raise
        except TOLD as error:
            raise namespace_error(error, what, self._address.netloc, self._address.masked) from error


def namespace_of(visit: Visit) -> WorkNamespace:
    """The namespace of a visit, with the person's key."""
    namespace = visit.namespace
    ca = visit.request.app[SETTINGS].ca
    return WorkNamespace(namespace.address, ca, visit.clock, is_duobus=namespace.is_duobus)
