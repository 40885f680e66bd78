"""What work on dead letters has to know of a namespace, and the error of such work that is no namespace's.

The command line and the console each have a namespace of their own, with errors of their own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient


class DeadLetterError(Exception):
    """The work cannot be done, or not go on; the text is for people."""


class Namespace(Protocol):
    """A namespace, with the key that opens it."""

    @property
    def netloc(self) -> str:
        """Host and port of the management API."""

    @property
    def is_plain(self) -> bool:
        """Whether that is without TLS."""

    @property
    def ca(self) -> str | None:
        """File of the certificate authority to trust; None for those of the system."""

    def authorization(self) -> str:
        """A token for a request; the same as before while that one is good for long enough."""

    def failure(self, status: int, text: str) -> Exception:
        """The error to raise when the server refuses, with a status of HTTP and what the server has said."""

    def silence(self, reason: str) -> Exception:
        """The error to raise when the server does not answer."""

    def said(self, error: BaseException) -> str:
        """What an error of the SDK says."""

    def messaging(self, what: str) -> AbstractContextManager[ServiceBusClient]:
        """The SDK's client of messages; errors of the SDK inside are raised as errors of this namespace."""
