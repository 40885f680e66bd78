# Generated from duobus/relay/aio/pair.py by `make twins`; change that one.
"""RelayPair: requests and connections over either of two endpoints of one service (IN6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Entropy
from duobus.concurrency import sync as tasks
from duobus.relay.endpoint import RelayEndpoint
from duobus.relay.errors import RelayError
from duobus.relay.events import BothFailed, EndpointFailed, Event, RelayRolesSwapped, Reporter, RequestReissued
from duobus.relay.http import BODY_BYTES_MAX, REQUEST_ID_HEADER, RelayResponse, is_repeatable
from duobus.relay.metrics import metrics_of
from duobus.relay.roles import SHARE_DEFAULT, Attempt, Choice, Operation, Roles
from duobus.relay.sync.bodies import StreamedResponse
from duobus.relay.sync.sender import CONNECT_S, REQUEST_S, RelayConnection, RelaySender

if TYPE_CHECKING:
    from types import TracebackType

_TWO: Final = 2

#: A body that can be sent twice: as bytes, or made anew for each attempt.
RepeatableBody = bytes | Callable[[], bytes | Iterable[bytes]]


class RelayPair:
    """Two endpoints of one service, in two namespaces; one of them is active.

    The first active endpoint is drawn at random. While it answers, all goes to it. When it fails as an outage does, the
    request is sent again, with the same request id, to the other endpoint, which is the active one from its answer on.
    An answer of the service itself, whatever its status, is returned and changes nothing.

    Args:
        endpoints: Two endpoints, connection strings with ``EntityPath``, or senders of your own.
        credentials: For each endpoint a credential, or None; the endpoints share nothing.
        share: The part of a deadline that is kept for the second endpoint.
        may_repeat: Whether requests such as POST are sent again though the first one may have been executed. The
            service then has to recognise the header ``x-duobus-request-id``.
        on_event: Called with every event; see ``duobus.relay.events``. The function must not block.
        entropy: Randomness.

    Raises:
        ValueError: There are not two endpoints, or they are one and the same.
    """

    def __init__(
        self,
        endpoints: Sequence[RelayEndpoint | str | RelaySender],
        *,
        credentials: Sequence[Any] = (None, None),
        share: float = SHARE_DEFAULT,
        may_repeat: bool = False,
        on_event: Callable[[Event], None] | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if len(endpoints) != _TWO or len(credentials) != _TWO:
            raise ValueError(f"a pair needs two endpoints, and two credentials or none, not {len(endpoints)}")
        if not 0 <= share < 1:
            raise ValueError(f"share has to be 0 to below 1, not {share}")
        self._senders = [
            one if isinstance(one, RelaySender) else RelaySender(one, credential)
            for one, credential in zip(endpoints, credentials, strict=True)
        ]
        if self._senders[0].endpoint.name.lower() == self._senders[1].endpoint.name.lower():
            raise ValueError(f"both endpoints are {self._senders[0].endpoint.name}: a pair needs two")
        self._share = share
        self._may_repeat = may_repeat
        self._entropy = entropy if entropy is not None else Entropy()
        self._roles = Roles(self._entropy.number(1))
        self._lock = tasks.lock()
        self.reporter = Reporter(on_event, metrics_of())

    @property
    def active(self) -> str:
        """Host and path of the active endpoint."""
        return self._senders[self._roles.choice.active].endpoint.name

    def request(
        self,
        method: str,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: RepeatableBody = b"",
        timeout: float = REQUEST_S,
        may_repeat: bool | None = None,
        request_id: str | None = None,
        body_max: int = BODY_BYTES_MAX,
    ) -> RelayResponse:
        """Send an HTTP request to the active endpoint, or else to the other one.

        Args:
            method: The method. GET, HEAD, OPTIONS, TRACE, PUT and DELETE may be sent twice; others are sent again only
                when it is certain that the service has not seen them.
            path: Path below that of the hybrid connection.
            query: Query, as it stands in an address.
            headers: Headers for the service.
            body: The body, or a function that makes the body, or its pieces, for each attempt.
            timeout: Seconds for both attempts together.
            may_repeat: Overrules what the method says.
            request_id: The value of ``x-duobus-request-id``; a random one by default.
            body_max: Largest answer that is taken, in bytes.

        Returns:
            The answer of the service; ``endpoint`` of the answer says which endpoint brought it.

        Raises:
            RelayError: No endpoint brought an answer. This is the error of the first attempt, and ``second`` is that
                of the second one.
            TypeError: The body is neither bytes nor a function, so that it could not be sent twice.
        """
        request_id = self._entropy.uuid_text() if request_id is None else request_id
        sent = {**(headers or {}), REQUEST_ID_HEADER: request_id}

        def attempt(sender: RelaySender, one: Attempt) -> RelayResponse:
            return sender.request(
                method,
                path,
                query=query,
                headers=sent,
                body=body,
                timeout=one.limit_ms / 1000,
                connect_timeout=one.connect_ms / 1000,
                body_max=body_max,
            )

        operation = self._operation(method, body, timeout, may_repeat)
        answer: RelayResponse = self._run(operation, attempt, request_id)
        return answer

    def stream(
        self,
        method: str,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: RepeatableBody = b"",
        timeout: float = REQUEST_S,
        may_repeat: bool | None = None,
        request_id: str | None = None,
        pause: float = REQUEST_S,
    ) -> StreamedResponse:
        """Send an HTTP request as ``request`` does; return the answer when its head is there.

        The head decides which endpoint has answered. An answer that breaks off later raises ``ConnectionDropped`` to
        whoever reads, and is asked for anew by the application.

        Args:
            method: As with ``request``.
            path: Path below that of the hybrid connection.
            query: Query, as it stands in an address.
            headers: Headers for the service.
            body: As with ``request``.
            timeout: Seconds until the head is there, for both attempts together.
            may_repeat: Overrules what the method says.
            request_id: The value of ``x-duobus-request-id``; a random one by default.
            pause: Seconds that the service may let pass between two pieces.

        Raises:
            RelayError: No endpoint brought an answer, as with ``request``.
            TypeError: The body is neither bytes nor a function, so that it could not be sent twice.
        """
        request_id = self._entropy.uuid_text() if request_id is None else request_id
        sent = {**(headers or {}), REQUEST_ID_HEADER: request_id}

        def attempt(sender: RelaySender, one: Attempt) -> StreamedResponse:
            return sender.stream(
                method,
                path,
                query=query,
                headers=sent,
                body=body,
                timeout=one.limit_ms / 1000,
                connect_timeout=one.connect_ms / 1000,
                pause=pause,
            )

        operation = self._operation(method, body, timeout, may_repeat)
        answer: StreamedResponse = self._run(operation, attempt, request_id)
        return answer

    def _operation(self, method: str, body: RepeatableBody, timeout: float, may_repeat: bool | None) -> Operation:
        if not isinstance(body, bytes) and not callable(body):
            raise TypeError(f"body has to be bytes, or a function that returns bytes, not {type(body).__name__}")
        if may_repeat is None:
            may_repeat = self._may_repeat or is_repeatable(method)
        with self._lock:
            return Operation(self._roles, _now_ms(), int(timeout * 1000), share=self._share, may_repeat=may_repeat)

    def connect(
        self,
        path: str = "",
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        protocols: Sequence[str] = (),
        timeout: float = 2 * CONNECT_S,
        message_max: int = BODY_BYTES_MAX,
        request_id: str | None = None,
    ) -> RelayConnection:
        """Open a WebSocket connection over the active endpoint, or else over the other one.

        A connection belongs to its endpoint: when it breaks, it raises, and the application connects again by this
        method. The connection after one that broke begins with the other endpoint.

        Args:
            path: Path below that of the hybrid connection.
            query: Query for the listener, as it stands in an address.
            headers: Headers for the listener.
            protocols: Sub-protocols that are offered.
            timeout: Seconds for both attempts together.
            message_max: Largest message that is taken, in bytes.
            request_id: The value of ``x-duobus-request-id``; a random one by default.

        Raises:
            ListenerRejected: The listener did not take the connection.
            RelayError: Neither endpoint took the connection, as with ``request``.
        """
        request_id = self._entropy.uuid_text() if request_id is None else request_id
        sent = {**(headers or {}), REQUEST_ID_HEADER: request_id}
        with self._lock:
            operation = Operation(self._roles, _now_ms(), int(timeout * 1000), share=self._share, is_connection=True)

        def attempt(sender: RelaySender, one: Attempt) -> RelayConnection:
            return sender.connect(
                path,
                query=query,
                headers=sent,
                protocols=protocols,
                timeout=one.limit_ms / 1000,
                message_max=message_max,
                on_end=partial(self._connection_ended, one.endpoint),
            )

        connection: RelayConnection = self._run(operation, attempt, request_id)
        return connection

    def _run(
        self,
        operation: Operation,
        attempt: Callable[[RelaySender, Attempt], Any],
        request_id: str,
    ) -> Any:
        one = operation.attempt
        while True:
            sender = self._senders[one.endpoint]
            try:
                answer = attempt(sender, one)
            except RelayError as error:
                one = self._after(operation, sender, error, request_id)
                continue
            with self._lock:
                is_swapped = operation.on_success()
            if is_swapped:
                was = self._senders[operation.choice.active].endpoint.name
                self.reporter.tell(RelayRolesSwapped(was, sender.endpoint.name, str(operation.error or "")))
            return answer

    def _after(self, operation: Operation, sender: RelaySender, error: RelayError, request_id: str) -> Attempt:
        """Return the attempt that follows a failed one; raise the first error if there is none."""
        if error.fails_over:
            self.reporter.tell(EndpointFailed(sender.endpoint.name, str(error)))
        following = operation.on_failure(error, _now_ms())
        if following is not None:
            backup = self._senders[following.endpoint].endpoint.name
            self.reporter.tell(RequestReissued(sender.endpoint.name, backup, request_id))
            return following
        first = operation.error
        if first is None or first is error:
            raise error
        active = self._senders[operation.choice.active].endpoint.name
        self.reporter.tell(BothFailed(active, str(first), str(error)))
        raise first from error

    def _connection_ended(self, endpoint: int, connection: RelayConnection) -> None:
        if connection.is_broken:
            with self._lock:
                choice = self._roles.choice
                if choice.active == endpoint:
                    self._roles.note_broken(Choice(endpoint, choice.generation))

    def close(self) -> None:
        """Close the connections to both endpoints."""
        for sender in self._senders:
            sender.close()

    def __enter__(self) -> RelayPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _now_ms() -> int:
    return int(tasks.now() * 1000)
