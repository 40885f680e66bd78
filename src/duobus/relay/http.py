"""HTTP requests and answers as listeners and senders have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from duobus.model.relay.headers import COOKIES, separated_cookies, value_of
from duobus.model.relay.messages import RemoteEndpoint

#: The header by which a service recognises a request that comes a second time, over the other endpoint of a pair.
REQUEST_ID_HEADER: Final = "x-duobus-request-id"
#: The largest body of a request or an answer, unless a program says otherwise.
BODY_BYTES_MAX: Final = 64 << 20
#: Methods that may be repeated, because doing them twice is doing them once (RFC 9110, 9.2.2).
REPEATABLE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """An HTTP request that reached a listener.

    Attributes:
        method: The method, in capitals.
        path: The path below that of the hybrid connection, as it was written; begins with a slash.
        query: The query without the question mark, as it was written.
        headers: Names to values; those of one name are joined with commas.
        body: The body.
        endpoint: Host and path of the endpoint over which the request came.
        remote: Where the sender is; older relays do not tell.
        id: The relay's id of the request.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    endpoint: str = ""
    remote: RemoteEndpoint | None = None
    id: str = ""

    @property
    def request_id(self) -> str | None:
        """What the sender named the request; the same when the request comes again over the other endpoint."""
        return value_of(self.headers, REQUEST_ID_HEADER)


@dataclass(frozen=True, slots=True)
class RelayResponse:
    """An answer to an HTTP request, as a listener gives and as a sender gets the answer.

    Attributes:
        status: The status code. A relay turns 502 and 504 of a listener into 500, because they are its own.
        headers: Names to values; those of one name are joined with commas.
        body: The body.
        reason: The reason phrase.
        endpoint: For a sender, host and path of the endpoint that answered.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reason: str = ""
    endpoint: str = ""

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name."""
        return value_of(self.headers, name)

    def values(self, name: str) -> list[str]:
        """The values of a header that may come several times, such as ``Set-Cookie``; none where there is none."""
        return values_of(self.headers, name)

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", "replace")


def values_of(headers: Mapping[str, str], name: str) -> list[str]:
    """The values of a header as several; a relay joins with commas what a service gave as several."""
    value = value_of(headers, name)
    if value is None:
        return []
    if name.lower() == COOKIES:
        return separated_cookies(value)
    return [part.strip() for part in value.split(",")]


def is_repeatable(method: str) -> bool:
    """Whether a request may be sent again though the first one may have been executed."""
    return method.upper() in REPEATABLE_METHODS
