"""HTTP requests to a namespace: what only duobus offers, and the few of Azure's that the SDK does not have.

Each request carries a shared access signature that is made here and is good for minutes.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.failures import NamespaceError, detail_of, told

# The signature itself is the server's, so that it is written once. Nothing else of the server is used here.
from duobus.model.access_rules import sign_token

#: For how many seconds the signature of one request is good.
_TOKEN_S: Final = 300
#: How long one answer may take, in seconds, and how many bytes it may have.
TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 << 20

_UNKNOWN_SERVER: Final = "This is no duobus server: only those have this request."


class Answer(NamedTuple):
    """What came back for a request.

    Attributes:
        status: Of HTTP.
        text: The body.
        date: The header ``Date``: when the namespace answered, by its clock; empty when the namespace does not tell.
    """

    status: int
    text: str
    date: str = ""


class HttpOperations:
    """The HTTP requests of one namespace.

    Args:
        address: The namespace and the key.
        ca: Certificate authority to trust, PEM; None for those of the system.
        clock: For the end of signatures.
    """

    def __init__(self, address: NamespaceAddress, ca: Path | None, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._ssl: ssl.SSLContext | bool = True if ca is None else ssl.create_default_context(cafile=str(ca))
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections; another request would open new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
        signed: bool = True,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Send one request and return its answer, whatever its status is.

        Raises:
            NamespaceError: The namespace does not answer, not in time, or with more than is read.
        """
        headers = {"Content-Type": content_type}
        if signed:
            headers["Authorization"] = self._token()
        url = f"{self._address.url}{quote(path, safe='/$')}"
        if query:
            url += "?" + urlencode(query)
        try:
            async with self._opened().request(
                method,
                # Encoded above, so that a name with a percent sign or a question mark stays what it is.
                _encoded(url),
                data=data,
                headers=headers,
                ssl=self._ssl,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                body = await _bounded(response)
                return Answer(response.status, body.decode(errors="replace"), response.headers.get("Date", ""))
        except TimeoutError:
            raise NamespaceError(
                HTTPStatus.GATEWAY_TIMEOUT, f"{self._address.url} did not answer within {timeout_s:g} seconds."
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NamespaceError(
                HTTPStatus.BAD_GATEWAY, self._address.masked(f"{self._address.url} does not answer: {error}")
            ) from None

    async def operation(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """Send one request of duobus's own and return the decoded JSON of its answer; None when that is empty.

        Raises:
            NamespaceError: The namespace does not answer, does not know the request, or refuses.
        """
        text = await self.operation_text(method, path, query=query, body=body)
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise NamespaceError(HTTPStatus.BAD_GATEWAY, _UNKNOWN_SERVER) from None

    async def operation_text(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> str:
        """Send one request and return the text of its answer.

        Raises:
            NamespaceError: As of ``operation``.
        """
        data = None if body is None else json.dumps(body).encode()
        answer = await self.ask(method, path, query=query, data=data)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            said = self._address.masked(detail_of(answer.text))
            raise told(answer.status, said or f"{self._address.url} answered {answer.status}.")
        return answer.text

    def _token(self) -> str:
        return token_for(self._address, self._clock.now_ms() // 1000 + _TOKEN_S)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Without the proxies of the environment, and without cookies: a namespace knows neither.
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), connector=aiohttp.TCPConnector(limit=8)
            )
        return self._session


def token_for(address: NamespaceAddress, until_s: int) -> str:
    """A shared access signature for all that the key of an address opens.

    Args:
        address: The namespace, with the key.
        until_s: When the signature ends, in seconds since 1970.
    """
    resource = f"{address.url}/{quote(address.entity)}"
    return sign_token(resource, address.rule_name, address.key, until_s)


def _encoded(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(1 << 16):
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB")
        parts.append(part)
    return b"".join(parts)
