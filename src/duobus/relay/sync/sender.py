# Generated from duobus/relay/aio/sender.py by `make twins`; change that one.
"""RelaySender: WebSocket connections and HTTP requests to the listeners behind a relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Entropy
from duobus.concurrency import sync as tasks
from duobus.model.relay.limits import CLOSE_NORMAL
from duobus.relay.endpoint import RelayEndpoint
from duobus.relay.errors import BROKEN_CODES, RelayRefused, RelayTimeout, StreamClosed
from duobus.relay.http import BODY_BYTES_MAX, RelayResponse
from duobus.relay.sync.bodies import Body, StreamedBody, StreamedResponse
from duobus.relay.sync.connections import AnswerStream, Connections, WebSocket
from duobus.relay.sync.tokens import TokenSource

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from azure.core.credentials import TokenCredential

#: A relay waits for a listener's answer for 60 s; a sender waits a little longer, so that the relay's word is heard.
REQUEST_S: Final = 65.0
CONNECT_S: Final = 35.0
_UNAUTHORIZED: Final = 401


class RelayConnection:
    """A WebSocket connection between a sender and a listener; both ends have this class.

    Attributes:
        endpoint: Host and path of the endpoint over which the connection runs.
        protocol: The sub-protocol; None for none.
    """

    def __init__(
        self,
        socket: WebSocket,
        *,
        on_end: Callable[[RelayConnection], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._on_end = on_end
        self._on_close = on_close
        self.endpoint = socket.endpoint
        self.protocol = socket.protocol

    @property
    def close_code(self) -> int | None:
        """The code with which the connection ended; None while it is open."""
        return self._socket.close_code

    @property
    def is_broken(self) -> bool:
        """Whether the connection ended without the application's doing."""
        return self._socket.close_code in BROKEN_CODES

    def receive(self) -> str | bytes | None:
        """Return the next message; None when the other side has closed the connection.

        Raises:
            StreamClosed: The connection broke, or the relay closed it.
        """
        message = self._socket.receive()
        if message is None:
            self._ended()
            if self.is_broken:
                raise StreamClosed(self._socket.close_code or 0, self._socket.close_reason, self.endpoint)
        return message

    def __iter__(self) -> RelayConnection:
        return self

    def __next__(self) -> str | bytes:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def send(self, message: str | bytes) -> None:
        """Send a message; wait while the other side reads slowly.

        Raises:
            ConnectionDropped: The connection has ended.
        """
        self._socket.send(message)

    def close(self, code: int = CLOSE_NORMAL, reason: str = "") -> None:
        """Close the connection; the other side sees code and reason."""
        self._ended()
        self._socket.close(code, reason)
        if self._on_close is not None:
            self._on_close()

    def _ended(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def __enter__(self) -> RelayConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RelaySender:
    """A sender of one endpoint.

    Args:
        endpoint: The endpoint, or a connection string with ``EntityPath``.
        credential: A credential such as those of azure-identity, in place of the key of the connection string.
        tls: Which certificates are trusted; by default those of the machine.
        tokens: Gives tokens; made of the endpoint and the credential by default.
        connections: Opens connections; made by default.
        entropy: Randomness.
    """

    def __init__(
        self,
        endpoint: RelayEndpoint | str,
        credential: TokenCredential | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        tokens: TokenSource | None = None,
        connections: Connections | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if isinstance(endpoint, str):
            endpoint = RelayEndpoint.from_connection_string(endpoint)
        self.endpoint = endpoint
        self._tokens = tokens if tokens is not None else TokenSource(endpoint, credential)
        self._connections = connections if connections is not None else Connections(tls)
        self._entropy = entropy if entropy is not None else Entropy()

    def request(
        self,
        method: str,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        timeout: float = REQUEST_S,
        connect_timeout: float | None = None,
        body_max: int = BODY_BYTES_MAX,
    ) -> RelayResponse:
        """Send an HTTP request; return the answer of the service behind the relay, whatever its status.

        Args:
            method: The method.
            path: Path below that of the hybrid connection.
            query: Query, as it stands in an address.
            headers: Headers for the service. An ``Authorization`` among them reaches the service.
            body: The body, its pieces, or a function that makes either. Pieces are sent as the relay takes them.
            timeout: Seconds for all of it, bodies included.
            connect_timeout: Seconds until the relay has taken the connection; by default ``timeout``.
            body_max: Largest answer that is taken, in bytes.

        Raises:
            RelayRefused: The relay itself refused.
            RelayError: There is no answer.
        """
        end = tasks.now() + timeout
        address = self.endpoint.request_address(path, query)

        def attempt(token: dict[str, str]) -> RelayResponse:
            left = self._left(end)
            return self._connections.request(
                method.upper(),
                address,
                {**(headers or {}), **token},
                body() if callable(body) else body,
                self.endpoint.name,
                limit_s=left,
                connect_s=min(left, timeout if connect_timeout is None else connect_timeout),
                body_max=body_max,
            )

        answer: RelayResponse = self._authorized(attempt, end, may_repeat=_is_repeatable(body))
        return answer

    def stream(
        self,
        method: str,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        timeout: float = REQUEST_S,
        connect_timeout: float | None = None,
        pause: float = REQUEST_S,
    ) -> StreamedResponse:
        """Send an HTTP request; return the answer of the service when its head is there, to be read piece by piece.

        The service is held up while the answer is not read. Close the answer, or use it with ``with``.

        Args:
            method: The method.
            path: Path below that of the hybrid connection.
            query: Query, as it stands in an address.
            headers: Headers for the service. An ``Authorization`` among them reaches the service.
            body: The body, its pieces, or a function that makes either. Pieces are sent as the relay takes them.
            timeout: Seconds until the head of the answer is there. Sending the body counts, reading not.
            connect_timeout: Seconds until the relay has taken the connection; by default ``timeout``.
            pause: Seconds that the service may let pass between two pieces.

        Raises:
            RelayRefused: The relay itself refused.
            RelayError: There is no answer.
        """
        end = tasks.now() + timeout
        address = self.endpoint.request_address(path, query)

        def attempt(token: dict[str, str]) -> AnswerStream:
            left = self._left(end)
            return self._connections.stream(
                method.upper(),
                address,
                {**(headers or {}), **token},
                body() if callable(body) else body,
                self.endpoint.name,
                limit_s=left,
                connect_s=min(left, timeout if connect_timeout is None else connect_timeout),
                pause_s=pause,
            )

        found: AnswerStream = self._authorized(attempt, end, may_repeat=_is_repeatable(body))
        content = StreamedBody(None, found)
        return StreamedResponse(
            found.status, found.headers, content, found.reason, self.endpoint.name, on_close=found.close
        )

    def connect(
        self,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
        timeout: float = CONNECT_S,
        message_max: int = BODY_BYTES_MAX,
        on_end: Callable[[RelayConnection], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> RelayConnection:
        """Open a WebSocket connection to a listener.

        Args:
            path: Path below that of the hybrid connection.
            query: Query for the listener, as it stands in an address.
            headers: Headers for the listener.
            protocols: Sub-protocols that are offered; the listener chooses one.
            timeout: Seconds for all of it.
            message_max: Largest message that is taken, in bytes.
            on_end: Called once, when the connection has ended.
            on_close: Awaited when the connection was closed by this side.

        Raises:
            ListenerRejected: The listener did not take the connection.
            RelayRefused: The relay itself refused, as it does without a listener.
            RelayError: The relay cannot be reached.
        """
        end = tasks.now() + timeout
        address = self.endpoint.connect_address(self._entropy.uuid_text(), path, query)

        def attempt(token: dict[str, str]) -> WebSocket:
            return self._connections.open(
                address,
                {**(headers or {}), **token},
                self.endpoint.name,
                limit_s=self._left(end),
                protocols=protocols,
                message_max=message_max,
            )

        return RelayConnection(self._authorized(attempt, end), on_end=on_end, on_close=on_close)

    def _authorized(self, attempt: Callable[[dict[str, str]], Any], end: float, *, may_repeat: bool = True) -> Any:
        """Make an attempt with the present token, and one more with a fresh token if the relay refuses that one."""
        try:
            return attempt(self._tokens.headers(limit_s=self._left(end)))
        except RelayRefused as error:
            if error.status != _UNAUTHORIZED or not may_repeat:
                raise
        return attempt(self._tokens.headers(is_fresh=True, limit_s=self._left(end)))

    def _left(self, end: float) -> float:
        left = end - tasks.now()
        if left <= 0:
            raise RelayTimeout("no answer in time", self.endpoint.name)
        return left

    def close(self) -> None:
        """Close the connections, those of WebSockets included."""
        self._connections.close()

    def __enter__(self) -> RelaySender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_repeatable(body: Body) -> bool:
    """Whether a body can be sent a second time: pieces that were made once are gone."""
    return isinstance(body, bytes) or callable(body)


def request(
    endpoint: RelayEndpoint | str,
    method: str,
    path: str = "",
    *,
    credential: TokenCredential | None = None,
    tls: ssl.SSLContext | None = None,
    **given: Any,
) -> RelayResponse:
    """Send one HTTP request through a relay; a ``RelaySender`` is quicker for many.

    Args:
        endpoint: The endpoint, or a connection string with ``EntityPath``.
        method: The method.
        path: Path below that of the hybrid connection.
        credential: As of ``RelaySender``.
        tls: As of ``RelaySender``.
        **given: Further arguments of ``RelaySender.request``.
    """
    with RelaySender(endpoint, credential, tls=tls) as sender:
        return sender.request(method, path, **given)


def connect(
    endpoint: RelayEndpoint | str,
    path: str = "",
    *,
    credential: TokenCredential | None = None,
    tls: ssl.SSLContext | None = None,
    **given: Any,
) -> RelayConnection:
    """Open one WebSocket connection through a relay.

    Args:
        endpoint: The endpoint, or a connection string with ``EntityPath``.
        path: Path below that of the hybrid connection.
        credential: As of ``RelaySender``.
        tls: As of ``RelaySender``.
        **given: Further arguments of ``RelaySender.connect``.
    """
    sender = RelaySender(endpoint, credential, tls=tls)
    try:
        return sender.connect(path, on_close=sender.close, **given)
    except BaseException:
        sender.close()
        raise
