"""Bodies of requests and answers that go piece by piece, so that neither side holds a whole one."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from duobus.model.relay.headers import value_of
from duobus.model.relay.messages import RemoteEndpoint
from duobus.relay.errors import AnswerTooLarge, BodyTooLarge, ConnectionDropped
from duobus.relay.http import BODY_BYTES_MAX, REQUEST_ID_HEADER, RelayResponse, values_of

if TYPE_CHECKING:
    from types import TracebackType

#: What a sender gives as the body of a request: all of it, its pieces, or a function that makes either.
Body = bytes | AsyncIterable[bytes] | Callable[[], bytes | AsyncIterable[bytes]]


class Source(Protocol):
    """Where the pieces of a body come from."""

    async def receive_piece(self) -> bytes:
        """Return the next piece; nothing at the end."""


class StreamedBody:
    """A body that comes piece by piece. It is read once, by iteration or by ``read``.

    Args:
        whole: The body, where it came as a whole.
        source: Where its pieces come from, where it did not.

    Attributes:
        whole: The body if it came as a whole; None if it comes piece by piece.
        is_broken: Whether the body broke off before its end.
    """

    def __init__(self, whole: bytes | None, source: Source | None = None) -> None:
        self.whole = whole
        self.is_broken = False
        self._rest = whole or b""
        self._source = source

    async def receive_piece(self) -> bytes:
        """Return the next piece; nothing at the end.

        Raises:
            ConnectionDropped: The other side, or the relay, went away before the end.
        """
        if self._source is not None:
            try:
                return await self._source.receive_piece()
            except ConnectionDropped:
                self.is_broken = True
                raise
        rest, self._rest = self._rest, b""
        return rest

    async def read(self, most: int = BODY_BYTES_MAX) -> bytes:
        """Return the rest of the body.

        Raises:
            BodyTooLarge: It has more than ``most`` bytes.
            ConnectionDropped: The other side, or the relay, went away before the end.
        """
        content = bytearray()
        while piece := await self.receive_piece():
            content += piece
            if len(content) > most:
                raise BodyTooLarge(f"the body has more than {most} bytes")
        return bytes(content)

    def __aiter__(self) -> StreamedBody:
        return self

    async def __anext__(self) -> bytes:
        piece = await self.receive_piece()
        if not piece:
            raise StopAsyncIteration
        return piece


@dataclass(frozen=True, slots=True)
class StreamedRequest:
    """An HTTP request that reached a listener, with its body still to come; see ``RelayRequest``.

    Attributes:
        method: The method, in capitals.
        path: The path below that of the hybrid connection, as it was written; begins with a slash.
        query: The query without the question mark, as it was written.
        headers: Names to values; those of one name are joined with commas.
        body: The body, piece by piece. A sender is held up while nobody reads.
        endpoint: Host and path of the endpoint over which the request came.
        remote: Where the sender is; older relays do not tell.
        id: The relay's id of the request.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: StreamedBody = field(default_factory=lambda: StreamedBody(b""))
    endpoint: str = ""
    remote: RemoteEndpoint | None = None
    id: str = ""

    @property
    def request_id(self) -> str | None:
        """What the sender named the request; the same when the request comes again over the other endpoint."""
        return value_of(self.headers, REQUEST_ID_HEADER)


class StreamedResponse:
    """An answer whose body goes piece by piece, as a listener gives and as a sender gets the answer.

    A sender reads it once, by iteration or by ``read``, and then closes it: ``async with`` does.

    Args:
        status: See ``RelayResponse``.
        headers: See ``RelayResponse``.
        body: The pieces of the body. They are asked for as the other side reads.
        reason: The reason phrase.
        endpoint: For a sender, host and path of the endpoint that answered.
        on_close: Awaited once, when the body was sent or is not wanted any more.
    """

    def __init__(
        self,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        body: AsyncIterable[bytes] | None = None,
        reason: str = "",
        endpoint: str = "",
        *,
        on_close: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = headers if headers is not None else {}
        self.body: AsyncIterable[bytes] = body if body is not None else StreamedBody(b"")
        self.reason = reason
        self.endpoint = endpoint
        self._on_close = on_close

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name."""
        return value_of(self.headers, name)

    def values(self, name: str) -> list[str]:
        """See ``RelayResponse.values``."""
        return values_of(self.headers, name)

    async def read(self, most: int = BODY_BYTES_MAX) -> bytes:
        """Return the rest of the body.

        Raises:
            AnswerTooLarge: It has more than ``most`` bytes.
            ConnectionDropped: The connection broke before the end.
        """
        content = bytearray()
        async for piece in self.body:
            content += piece
            if len(content) > most:
                raise AnswerTooLarge(f"the answer has more than {most} bytes", self.endpoint)
        return bytes(content)

    async def close(self) -> None:
        """Give the connection back; what was not read is dropped."""
        end_body = getattr(self.body, "aclose", None)
        if end_body is not None:
            await end_body()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await on_close()

    async def __aenter__(self) -> StreamedResponse:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


#: What a function that answers requests returns.
Answer = RelayResponse | StreamedResponse
