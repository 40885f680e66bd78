"""WebSockets and HTTP requests of one endpoint, by aiohttp: the only module that knows aiohttp's client.

The counterpart for threads has the same names. Errors of aiohttp become those of ``duobus.relay.errors`` here.
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from yarl import URL

from duobus.clock import Entropy
from duobus.model.relay.frames import accept_key
from duobus.model.relay.headers import combined, description_of, has_via
from duobus.model.relay.limits import (
    CLOSE_ABNORMAL,
    CLOSE_NORMAL,
    CLOSE_REASON_BYTES_MAX,
    DESCRIPTION_LENGTH_MAX,
    HEADERS_BYTES_MAX,
)
from duobus.relay.aio.message_sockets import MessageSocket
from duobus.relay.errors import (
    AnswerTooLarge,
    ConnectFailed,
    ConnectionDropped,
    RelayError,
    RelayRefused,
    RelayTimeout,
    handshake_error,
)
from duobus.relay.http import BODY_BYTES_MAX, RelayResponse

#: A relay, and whatever stands in front of the relay, learns by this that the client is there, and the client too.
HEARTBEAT_S: Final = 30.0
#: How long the other side has for its part of a close.
CLOSE_S: Final = 2.0
_REFUSAL_BYTES_MAX: Final = 4096
_LARGE_BYTES: Final = 1 << 20
_SWITCHING: Final = 101
_ERROR_FROM: Final = 400
#: The reason phrase of the answer to a handshake, which aiohttp's own error does not hold.
_reason: ContextVar[list[str] | None] = ContextVar("duobus_relay_reason", default=None)


class WebSocket:
    """One open WebSocket.

    Attributes:
        endpoint: Host and path.
        protocol: The sub-protocol that both sides agreed on; None for none.
        close_code: The code with which the connection ended; None while it is open. 1006 is an end without a close.
        close_reason: The text beside the code.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, endpoint: str) -> None:
        self._socket = socket
        self.endpoint = endpoint
        self.protocol = socket.protocol
        self.close_code: int | None = None
        self.close_reason = ""

    async def receive(self) -> str | bytes | None:
        """Return the next message; None when the connection has ended."""
        while True:
            message = await self._socket.receive()
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                data: str | bytes = message.data
                return data
            if message.type is aiohttp.WSMsgType.CLOSE:
                self._note_end(message.data, message.extra)
                return None
            if message.type in (aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
                self._note_end(self._socket.close_code, str(message.data or ""))
                return None

    def _note_end(self, code: int | None, reason: str | None) -> None:
        if self.close_code is None:
            self.close_code = code or CLOSE_ABNORMAL
            self.close_reason = reason or ""

    async def send(self, *messages: str | bytes) -> None:
        """Send messages, one directly behind the other; wait while the other side reads slowly.

        Raises:
            ConnectionDropped: The connection has ended.
        """
        try:
            for message in messages:
                if isinstance(message, str):
                    await self._socket.send_str(message)
                else:
                    await self._socket.send_bytes(message)
        except (ConnectionError, aiohttp.ClientError, RuntimeError) as error:
            raise ConnectionDropped(f"the connection has ended: {error}", self.endpoint) from error

    async def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; do nothing if it has ended."""
        self._note_end(code, reason)
        text = description_of(reason, CLOSE_REASON_BYTES_MAX).encode()
        await self._socket.close(code=code, message=text)


class AnswerStream:
    """The head of an answer, and its body as it comes.

    Attributes:
        status: The status.
        headers: Names to values.
        reason: The reason phrase.
        endpoint: Host and path.
    """

    def __init__(self, answer: aiohttp.ClientResponse, headers: dict[str, str], endpoint: str) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = headers
        self.reason = answer.reason or ""
        self.endpoint = endpoint

    async def receive_piece(self) -> bytes:
        """Return the next piece of the body; nothing at its end.

        Raises:
            RelayTimeout: Nothing came for long.
            ConnectionDropped: The connection broke before the end.
        """
        with _translated(self.endpoint):
            return await self._answer.content.readany()

    async def close(self) -> None:
        """Give the connection back; one whose body was not read to its end is closed."""
        self._answer.release()


class _Upload:
    """A body that a program makes piece by piece, and the error with which that failed."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces = pieces
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except Exception as error:
            self.error = error
            raise


class Connections:
    """The connections to one endpoint: a pool of its own, so that one endpoint never holds up another.

    Args:
        tls: Which certificates are trusted, and which one is shown; by default those of the machine.
        entropy: Randomness.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, entropy: Entropy | None = None) -> None:
        self._tls = tls
        self._entropy = entropy if entropy is not None else Entropy()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def open(
        self,
        address: str,
        headers: Mapping[str, str],
        endpoint: str,
        *,
        limit_s: float,
        protocols: Sequence[str] = (),
        message_max: int = BODY_BYTES_MAX,
    ) -> WebSocket:
        """Open a WebSocket.

        Args:
            address: The address, sent as it is.
            headers: Headers of the handshake.
            endpoint: Host and path, for error texts.
            limit_s: Longest time until the connection is open.
            protocols: Sub-protocols that are offered.
            message_max: Largest message that is taken, in bytes.

        Raises:
            RelayError: The connection could not be opened.
        """
        reason: list[str] = []
        token = _reason.set(reason)
        try:
            with _translated(endpoint):
                async with asyncio.timeout(limit_s):
                    socket = await self._opened().ws_connect(
                        URL(address, encoded=True),
                        headers=headers,
                        protocols=protocols,
                        heartbeat=HEARTBEAT_S,
                        max_msg_size=message_max,
                        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                    )
        except aiohttp.WSServerHandshakeError as error:
            found = combined(error.headers.items()) if error.headers is not None else {}
            said = reason[-1] if reason else ""
            is_of_listener = has_via(found, URL(address).authority)
            raise handshake_error(error.status, said, endpoint, is_of_listener=is_of_listener) from None
        finally:
            _reason.reset(token)
        return WebSocket(socket, endpoint)

    async def open_messages(self, address: str, endpoint: str, *, limit_s: float) -> MessageSocket:
        """Open a WebSocket over which a request or an answer goes piece by piece.

        Raises:
            RelayError: The connection could not be opened.
        """
        key = base64.b64encode(self._entropy.token(16)).decode()
        with _translated(endpoint):
            async with asyncio.timeout(limit_s):
                answer = await self._opened().get(
                    URL(address, encoded=True),
                    headers={
                        "Upgrade": "websocket",
                        "Connection": "Upgrade",
                        "Sec-WebSocket-Version": "13",
                        "Sec-WebSocket-Key": key,
                    },
                    read_until_eof=False,
                    allow_redirects=False,
                    skip_auto_headers=("Accept-Encoding", "User-Agent"),
                )
        try:
            if answer.status != _SWITCHING:
                is_of_listener = has_via(combined(answer.headers.items()), URL(address).authority)
                raise handshake_error(answer.status, answer.reason or "", endpoint, is_of_listener=is_of_listener)
            if answer.headers.get("Sec-WebSocket-Accept") != accept_key(key):
                raise ConnectionDropped("the other side does not speak WebSockets", endpoint)
            return MessageSocket(answer, endpoint, self._entropy)
        except BaseException:
            answer.close()
            raise

    async def stream(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes],
        endpoint: str,
        *,
        limit_s: float,
        connect_s: float,
        pause_s: float,
    ) -> AnswerStream:
        """Send a request; return the service's answer when its head is there.

        Args:
            method: The method.
            address: The address, sent as it is.
            headers: Headers of the request.
            body: The body, or its pieces.
            endpoint: Host and path, for error texts.
            limit_s: Longest time until the head is there; a body that is sent counts.
            connect_s: Longest time until the relay takes the connection.
            pause_s: Longest time between two pieces of the answer.

        Raises:
            RelayRefused: The relay itself answered, with a status of 400 or above.
            RelayError: There is no answer.
        """
        limits = aiohttp.ClientTimeout(sock_connect=connect_s, sock_read=pause_s, ceil_threshold=float("inf"))
        with _translated(endpoint):
            async with asyncio.timeout(limit_s):
                answer = await self._asked(method, address, headers, body, limits)
        try:
            return AnswerStream(answer, await _of_service(answer, address, endpoint, limit_s), endpoint)
        except BaseException:
            answer.close()
            raise

    async def request(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes],
        endpoint: str,
        *,
        limit_s: float,
        connect_s: float,
        body_max: int = BODY_BYTES_MAX,
    ) -> RelayResponse:
        """Send a request; return the service's answer, whatever its status.

        Raises:
            RelayRefused: The relay itself answered, with a status of 400 or above.
            RelayError: There is no answer.
        """
        limits = aiohttp.ClientTimeout(total=limit_s, sock_connect=connect_s, ceil_threshold=float("inf"))
        with _translated(endpoint):
            async with await self._asked(method, address, headers, body, limits) as answer:
                found = await _of_service(answer, address, endpoint, limit_s)
                content = bytearray()
                async for chunk in answer.content.iter_any():
                    content += chunk
                    if len(content) > body_max:
                        raise AnswerTooLarge(f"the answer has more than {body_max} bytes", endpoint)
                return RelayResponse(answer.status, found, bytes(content), answer.reason or "", endpoint)

    async def _asked(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes],
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Send a request; return the answer when its head is there."""
        upload: _Upload | None = None
        data: Any = body or None
        if not isinstance(body, bytes):
            data = upload = _Upload(body)
        elif len(body) > _LARGE_BYTES:
            # In pieces: aiohttp would hold up the event loop.
            data = io.BytesIO(body)
        try:
            return await self._opened().request(
                method,
                URL(address, encoded=True),
                headers=headers,
                data=data,
                timeout=limits,
                allow_redirects=False,
                skip_auto_headers=("Accept-Encoding", "Content-Type", "User-Agent"),
            )
        except aiohttp.ClientError:
            if upload is not None and upload.error is not None:
                raise upload.error from None
            raise

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            trace = aiohttp.TraceConfig()
            trace.on_request_end.append(_note_reason)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[trace],
                max_field_size=HEADERS_BYTES_MAX,
            )
            # Nobody else may send a request again: the pair counts how often a request may have been executed.
            self._session._retry_connection = False
        return self._session


async def _of_service(answer: aiohttp.ClientResponse, address: str, endpoint: str, limit_s: float) -> dict[str, str]:
    """Return the headers of an answer of the service; raise RelayRefused for one of the relay itself."""
    found = combined(answer.headers.items())
    if answer.status >= _ERROR_FROM and not has_via(found, URL(address).authority):
        with _translated(endpoint):
            async with asyncio.timeout(limit_s):
                text = (await answer.content.read(_REFUSAL_BYTES_MAX)).decode("utf-8", "replace")
        said = description_of(f"{answer.reason or ''} {text}", DESCRIPTION_LENGTH_MAX)
        raise RelayRefused(answer.status, said, endpoint)
    return found


async def _note_reason(_session: Any, _context: Any, end: aiohttp.TraceRequestEndParams) -> None:
    reasons = _reason.get()
    if reasons is not None:
        reasons.append(end.response.reason or "")


@contextmanager
def _translated(endpoint: str) -> Iterator[None]:
    """Turn errors of aiohttp into those of relays; the answer to a handshake is left to the caller."""
    try:
        yield
    except (RelayError, aiohttp.WSServerHandshakeError):
        raise
    except aiohttp.ConnectionTimeoutError as error:
        raise ConnectFailed("the relay did not take the connection in time", endpoint) from error
    except aiohttp.ClientConnectorError as error:
        raise ConnectFailed(f"the relay cannot be reached: {error}", endpoint) from error
    except TimeoutError as error:
        raise RelayTimeout("no answer in time", endpoint) from error
    except aiohttp.InvalidURL as error:
        raise ConnectFailed(f"the address is none: {error}", endpoint) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ConnectionDropped(f"the connection broke: {str(error) or type(error).__name__}", endpoint) from error
