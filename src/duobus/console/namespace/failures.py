"""Errors of a namespace, in the words of the broker.

The SDK and the HTTP requests tell the same refusal in different frames; here both become a ``NamespaceError`` with a
status of HTTP, the sentence of the broker, and the tracking id by which the operator finds the refusal in the logs.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from duobus.errors import ServiceBusError
from duobus.ha.outage import token_refusal

#: A text of the broker that is longer says nothing more to a person.
_TEXT_MAX: Final = 2_000
_PRINTED_BYTES: Final = re.compile(r"""(?<=failed\. )b(["'])(.*)\1\.""")
#: Behind the sentence: the tracking id, who answered, and when.
_TRACKING: Final = re.compile(r"(?i)\btracking_?id:\s*([0-9a-z_-]{8,80})", re.ASCII)
_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)

#: Errors of the SDK and their statuses; the first that fits counts.
_STATUSES: Final[tuple[tuple[type[BaseException], HTTPStatus], ...]] = (
    (MessagingEntityNotFoundError, HTTPStatus.NOT_FOUND),
    (ResourceNotFoundError, HTTPStatus.NOT_FOUND),
    (ServiceBusAuthenticationError, HTTPStatus.UNAUTHORIZED),
    (ServiceBusAuthorizationError, HTTPStatus.FORBIDDEN),
    (MessagingEntityAlreadyExistsError, HTTPStatus.CONFLICT),
    (ResourceExistsError, HTTPStatus.CONFLICT),
    (MessagingEntityDisabledError, HTTPStatus.CONFLICT),
    (MessageAlreadySettled, HTTPStatus.CONFLICT),
    (MessageLockLostError, HTTPStatus.GONE),
    (SessionLockLostError, HTTPStatus.GONE),
    (SessionCannotBeLockedError, HTTPStatus.CONFLICT),
    (MessageSizeExceededError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (ServiceBusQuotaExceededError, HTTPStatus.INSUFFICIENT_STORAGE),
    (ServiceBusServerBusyError, HTTPStatus.SERVICE_UNAVAILABLE),
    (OperationTimeoutError, HTTPStatus.GATEWAY_TIMEOUT),
    (TimeoutError, HTTPStatus.GATEWAY_TIMEOUT),
    (asyncio.CancelledError, HTTPStatus.GATEWAY_TIMEOUT),
    (ServiceBusConnectionError, HTTPStatus.BAD_GATEWAY),
    (ServiceRequestError, HTTPStatus.BAD_GATEWAY),
    (ServiceResponseError, HTTPStatus.BAD_GATEWAY),
    (OSError, HTTPStatus.BAD_GATEWAY),
    (ServiceBusError, HTTPStatus.BAD_REQUEST),
    (ValueError, HTTPStatus.BAD_REQUEST),
    (TypeError, HTTPStatus.BAD_REQUEST),
)

#: Errors after which nobody knows whether the namespace is there.
_UNREACHED: Final = (ServiceBusConnectionError, ServiceRequestError, ServiceResponseError, OSError)

#: What the SDK and aiohttp raise, as far as it is an answer of the namespace and no defect of the console.
TOLD: Final = (AzureError, OSError, TimeoutError, ValueError, TypeError)


class NamespaceError(Exception):
    """A namespace refused something, or did not answer.

    Attributes:
        status: The status of HTTP that fits.
        text: What the broker said, for people; without keys.
        tracking_id: What the operator of the namespace looks for in the logs; None when the broker told none.
    """

    def __init__(self, status: int, text: str, tracking_id: str | None = None) -> None:
        super().__init__(text)
        self.status = int(status)
        self.text = text
        self.tracking_id = tracking_id


def told(status: int, text: str) -> NamespaceError:
    """An error from a text of the broker, whose tracking id is put apart."""
    found = _TRACKING.search(text)
    if found is None:
        return NamespaceError(status, text)
    return NamespaceError(status, text[: found.start()].rstrip(), found[1])


def namespace_error(error: BaseException, what: str, place: str, masked: Callable[[str], str]) -> NamespaceError:
    """Return what an error of the SDK means.

    Args:
        error: Of the SDK or of the network.
        what: The thing that the call was about, as ``queue orders``, for a sentence.
        place: Address of the namespace, for a sentence.
        masked: Takes keys out of a text.
    """
    text = masked(said(error))
    status = _status_of(error)
    if token_refusal(error) is not None:
        return told(
            HTTPStatus.FORBIDDEN,
            f"The namespace took no token for {what}: the key does not open it, or there is no {what}. {text}".strip(),
        )
    if status == HTTPStatus.GATEWAY_TIMEOUT:
        text = f"{place} did not answer in time about {what}. {text}".strip()
    elif isinstance(error, _UNREACHED):
        text = f"{place} does not answer: {text or type(error).__name__}"
    elif status == HTTPStatus.NOT_FOUND:
        text = f"There is no {what}. {text}".strip()
    return told(status, text or f"{place} refused this without a reason.")


def _status_of(error: BaseException) -> int:
    # By its status first: the SDK replaces some errors of a class of their own by a common one.
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and HTTPStatus.BAD_REQUEST <= status < 600:
        return status
    for kind, meant in _STATUSES:
        if isinstance(error, kind):
            return meant
    return HTTPStatus.BAD_GATEWAY


def said(error: BaseException) -> str:
    """What an error of the SDK says, without the frame that the management API puts around the sentence."""
    text = str(getattr(error, "message", "") or error)
    for place in (text, _body_of(error)):
        detail = _DETAIL.search(place)
        if detail:
            return clean(html.unescape(detail[1]))
    # Of a management operation the SDK prints the server's sentence as Python writes bytes.
    return clean(_PRINTED_BYTES.sub(r"\2", text.replace("\n", " ")))


def detail_of(text: str) -> str:
    """The sentence of the broker in the body of an HTTP answer, which is XML or plain text."""
    detail = _DETAIL.search(text)
    return clean(html.unescape(detail[1]) if detail else text.strip())


def clean(text: str) -> str:
    """A text in one bounded line, without control characters."""
    text = text[:_TEXT_MAX] + ("…" if len(text) > _TEXT_MAX else "")
    return "".join(sign if sign.isprintable() else " " for sign in text).strip()


def _body_of(error: BaseException) -> str:
    """The answer that came with an error of the management API, as far as it was read."""
    response: Any = getattr(error, "response", None)
    read = getattr(response, "text", None)
    try:
        return str(read()) if callable(read) else ""
    except (AttributeError, RuntimeError, ValueError):
        # Nothing was read, or what was read is no text.
        return ""
