# Generated from duobus/relay/aio/listener.py by `make twins`; change that one.
"""RelayListener: takes WebSocket connections and HTTP requests from a relay, to which only this side connects."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock, Entropy
from duobus.concurrency import sync as tasks
from duobus.model.relay.addresses import parse_handshake, rejected
from duobus.model.relay.limits import (
    CHANNEL_BODY_BYTES_MAX,
    CLOSE_ERROR,
    CLOSE_NORMAL,
    HEADERS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    RENDEZVOUS_S,
    RESPONSE_S,
)
from duobus.model.relay.messages import (
    Accept,
    MalformedMessage,
    Rendezvous,
    RenewToken,
    Request,
    Response,
    to_listener,
)
from duobus.relay.endpoint import RelayEndpoint
from duobus.relay.errors import (
    BodyTooLarge,
    ConnectionDropped,
    ConnectionTaken,
    RelayError,
    RelayRefused,
    RelayTimeout,
    StreamClosed,
    TokenFailed,
)
from duobus.relay.events import Event, ListenerOffline, ListenerOnline, Reporter, TokenNotRenewed
from duobus.relay.http import BODY_BYTES_MAX, RelayRequest, RelayResponse
from duobus.relay.metrics import metrics_of
from duobus.relay.sync.bodies import Answer, StreamedBody, StreamedRequest, StreamedResponse
from duobus.relay.sync.connections import Connections, WebSocket
from duobus.relay.sync.message_sockets import MessageSocket
from duobus.relay.sync.sender import RelayConnection
from duobus.relay.sync.tokens import TokenSource

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from azure.core.credentials import TokenCredential

_log = logging.getLogger("duobus.relay")

#: Pauses before a listener connects again, in seconds; the last one repeats.
DELAYS_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
#: A listener that was registered for so long begins with the first pause again.
STEADY_S: Final = 10.0
CONNECT_S: Final = 35.0
#: Requests that are worked on at the same time, and further ones that wait.
AT_ONCE_DEFAULT: Final = 256
WAITING_DEFAULT: Final = 1_024
#: Connections that wait for ``accept``; a relay gives each of them up after 30 s.
PENDING_DEFAULT: Final = 128
#: A token that could not be renewed is tried again after so many seconds.
RENEW_RETRY_S: Final = 15.0
END_S: Final = 10.0
_UNAUTHORIZED: Final = 401
_TO_BE_MENDED: Final = frozenset({400, 401, 403, 404})

_WITHOUT_BODY: Final = frozenset({204, 304})

Handler = Callable[[RelayRequest], Answer]
StreamHandler = Callable[[StreamedRequest], Answer]


class PendingConnection:
    """A sender that wants to connect: accept or reject it, within 30 s.

    Attributes:
        endpoint: Host and path of the endpoint.
        path: Path below that of the hybrid connection; begins with a slash.
        query: The sender's query, without the relay's own parameters.
        headers: Headers of the sender's handshake.
        offer: What the relay has told.
        asked_s: Time at which the relay told it, on the clock of ``tasks.now``.
    """

    def __init__(self, listener: RelayListener, offer: Accept, asked_s: float) -> None:
        self._listener = listener
        self._is_taken = False
        self.endpoint = listener.endpoint.name
        self.path, self.query = listener.endpoint.suffix_of(_target_of(offer.address))
        self.headers: Mapping[str, str] = offer.headers
        self.offer = offer
        self.asked_s = asked_s

    @property
    def protocols(self) -> Sequence[str]:
        """The sub-protocols that the sender offers, in its order."""
        found = next((value for name, value in self.headers.items() if name.lower() == "sec-websocket-protocol"), "")
        return [name.strip() for name in found.split(",") if name.strip()]

    def accept(self, protocol: str | None = None, *, message_max: int = BODY_BYTES_MAX) -> RelayConnection:
        """Take the connection.

        Args:
            protocol: The sub-protocol; by default the first one that the sender offers.
            message_max: Largest message that is taken, in bytes.

        Raises:
            ConnectionTaken: It was accepted or rejected before.
            RelayError: The connection cannot be opened; the sender has gone, or 30 s are over.
        """
        self._take()
        offered = self.protocols
        chosen = [protocol] if protocol is not None else offered[:1]
        socket = self._listener.open_rendezvous(self.offer.address, chosen, message_max)
        return RelayConnection(socket)

    def reject(self, status: int = 403, description: str = "") -> None:
        """Turn the sender away; the sender sees status and description.

        Raises:
            ConnectionTaken: It was accepted or rejected before.
        """
        self._take()
        # The relay answers a reject with 410; that the handshake fails is how it has to be.
        with contextlib.suppress(RelayError):
            socket = self._listener.open_rendezvous(
                rejected(self.offer.address, status, description), (), MESSAGE_BYTES_MAX
            )
            socket.close()

    def _take(self) -> None:
        # The address works once. A second use would be refused, or worse, reach another sender.
        if self._is_taken:
            raise ConnectionTaken("the connection was accepted or rejected before", self.endpoint)
        self._is_taken = True


class _Channel:
    """One control channel; messages of two parts are never mixed."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self._turn = tasks.Room(1)

    def send(self, *messages: str | bytes) -> None:
        self._turn.enter()
        try:
            self.socket.send(*messages)
        finally:
            self._turn.leave()


class RelayListener:
    """A listener of one endpoint.

    Connects to the relay and stays connected: after a loss the listener tries again after 0, 1, 2, 5, 10 and then every
    30 s. The token is renewed before it ends. ``with`` starts the listener and closes it at the end.

    Args:
        endpoint: The endpoint, or a connection string with ``EntityPath``.
        on_request: Answers HTTP requests, whose bodies are gathered before; several run at the same time.
        on_connection: Called with each ``PendingConnection``; without it ``accept`` returns them.
        on_stream: Answers HTTP requests in place of ``on_request``, and reads their bodies as they come. Without
            either function HTTP requests get 501.
        credential: A credential such as those of azure-identity, in place of the key of the connection string.
        tls: Which certificates are trusted; by default those of the machine.
        at_once: Requests that are worked on at the same time.
        waiting: Further requests that wait for their turn; beyond that the answer is 503.
        pending: Connections that wait for ``accept``; beyond that senders are rejected with 503.
        body_max: Largest body of a request that ``on_request`` gets, in bytes; beyond that the answer is 413.
        on_event: Called with every event; see ``duobus.relay.events``. The function must not block.
        tokens: Gives tokens; made of the endpoint and the credential by default.
        connections: Opens connections; made by default.
        clock: Wall clock time, for the ends of tokens.
        entropy: Randomness.

    Raises:
        ValueError: Both ``on_request`` and ``on_stream`` are given.
    """

    def __init__(
        self,
        endpoint: RelayEndpoint | str,
        on_request: Handler | None = None,
        on_connection: Callable[[PendingConnection], None] | None = None,
        *,
        on_stream: StreamHandler | None = None,
        credential: TokenCredential | None = None,
        tls: ssl.SSLContext | None = None,
        at_once: int = AT_ONCE_DEFAULT,
        waiting: int = WAITING_DEFAULT,
        pending: int = PENDING_DEFAULT,
        body_max: int = BODY_BYTES_MAX,
        on_event: Callable[[Event], None] | None = None,
        tokens: TokenSource | None = None,
        connections: Connections | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if isinstance(endpoint, str):
            endpoint = RelayEndpoint.from_connection_string(endpoint)
        self.endpoint = endpoint
        if on_request is not None and on_stream is not None:
            raise ValueError("on_request and on_stream both answer requests: give one of them")
        self._on_request = on_request
        self._on_stream = on_stream
        self._on_connection = on_connection
        self._clock = clock if clock is not None else Clock()
        self._tokens = tokens if tokens is not None else TokenSource(endpoint, credential, clock=self._clock)
        self._connections = connections if connections is not None else Connections(tls)
        self._entropy = entropy if entropy is not None else Entropy()
        self._room = tasks.Room(at_once)
        self._most = at_once + waiting
        self._working = 0
        self._body_max = body_max
        self._pending: deque[PendingConnection] = deque()
        self._pending_max = pending
        self._arrived = tasks.Signal()
        self._changed = tasks.Signal()
        self._channel: _Channel | None = None
        self._runner: tasks.Task | None = None
        self._at_work: set[tasks.Task] = set()
        self._lock = tasks.lock()
        self.reporter = Reporter(on_event, metrics_of())
        self.last_error: RelayError | None = None
        #: Tries to register that failed since the listener was registered last.
        self.failed_tries = 0
        self.on_change: Callable[[], None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def is_online(self) -> bool:
        """Whether the listener is registered with its relay."""
        return self._channel is not None

    @property
    def is_refused(self) -> bool:
        """Whether the relay knows the listener and refuses it, so that somebody has to mend the configuration."""
        error = self.last_error
        return isinstance(error, RelayRefused) and error.status in _TO_BE_MENDED

    def start(self) -> None:
        """Begin to connect; returns at once."""
        if self._runner is None:
            self._runner = tasks.spawn(self._run, name=f"duobus relay listener {self.endpoint.name}")

    def wait_online(
        self,
        timeout: float = CONNECT_S,
        *,
        tries: int | None = None,
    ) -> None:
        """Wait until the listener is registered.

        Args:
            timeout: Seconds to wait.
            tries: Failed tries after which there is no more waiting; any number by default.

        Raises:
            RelayError: It could not register in time, or was refused; this is why. The listener goes on trying.
        """
        end = tasks.now() + timeout
        while not self.is_online:
            left = end - tasks.now()
            self._changed.clear()
            is_lost = self.is_refused or (tries is not None and self.failed_tries >= tries)
            if is_lost or left <= 0 or not self._changed.wait(left):
                raise self.last_error or RelayTimeout("the listener did not register in time", self.endpoint.name)

    def accept(self) -> PendingConnection:
        """Return the next sender that wants to connect; wait until there is one."""
        while True:
            while self._pending:
                one = self._pending.popleft()
                if tasks.now() - one.asked_s < RENDEZVOUS_S:
                    return one
            self._arrived.clear()
            self._arrived.wait()

    def close(self) -> None:
        """Stop listening, and close all connections; requests that are being answered are given up."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.socket.close()
        with self._lock:
            left = list(self._at_work)
        for task in left:
            task.cancel()
        # Before the tasks are waited for: a thread ends when the connection that it reads is closed.
        self._connections.close()
        tasks.all_ended([*left, runner] if runner is not None else left, END_S)

    def __enter__(self) -> RelayListener:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- the control channel ------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while True:
            tasks.check()
            began = tasks.now()
            lost = self._lost()
            if self._channel is not None and tasks.now() - began >= STEADY_S:
                failures = 0
            self._channel = None
            delay = DELAYS_S[min(failures, len(DELAYS_S) - 1)]
            failures += 1
            self.failed_tries += 1
            self.last_error = lost
            self.reporter.tell(ListenerOffline(self.endpoint.name, str(lost), int(delay * 1000)))
            self._tell_change()
            tasks.sleep(delay)

    def _lost(self) -> RelayError:
        """Register, and serve until the channel ends; return why."""
        try:
            return self._listen()
        except RelayError as error:
            return error
        except Exception as error:  # noqa: BLE001 - it is logged and told
            # A listener outlives errors of every kind.
            _log.exception("%s: listening failed", self.endpoint.name)
            return ConnectionDropped(f"unexpected: {error!r}", self.endpoint.name)

    def _tell_change(self) -> None:
        self._changed.set()
        if self.on_change is not None:
            self.on_change()

    def _listen(self) -> RelayError:
        last = self.last_error
        socket = self._open(is_fresh=isinstance(last, RelayRefused) and last.status == _UNAUTHORIZED)
        channel = _Channel(socket)
        renewal = tasks.spawn(self._renew, channel, name="duobus relay token")
        self._channel = channel
        self.last_error = None
        self.failed_tries = 0
        self.reporter.tell(ListenerOnline(self.endpoint.name))
        self._tell_change()
        try:
            self._read(channel)
            return StreamClosed(socket.close_code or 0, socket.close_reason, self.endpoint.name)
        finally:
            renewal.cancel()
            socket.close()

    def _open(self, *, is_fresh: bool) -> WebSocket:
        return self._connections.open(
            self.endpoint.listen_address(self._entropy.uuid_text()),
            self._tokens.headers(is_fresh=is_fresh),
            self.endpoint.name,
            limit_s=CONNECT_S,
            message_max=MESSAGE_BYTES_MAX + CHANNEL_BODY_BYTES_MAX,
        )

    def _renew(self, channel: _Channel) -> None:
        """Send a new token before the old one ends; without one, leave the channel when the old one ends."""
        token = self._tokens.token()
        while True:
            tasks.sleep(max(0.0, (token.renew_ms - self._clock.now_ms()) / 1000))
            try:
                token = self._tokens.token(is_fresh=True)
                channel.send(RenewToken(token.text).to_json())
                continue
            except ConnectionDropped:
                return
            except TokenFailed as error:
                left_ms = token.expires_ms - self._clock.now_ms()
                self.reporter.tell(TokenNotRenewed(self.endpoint.name, str(error), max(0, left_ms)))
            if left_ms <= 0:
                # Whoever asks must not be told that this listener is registered: the relay may not choose it.
                channel.socket.close(CLOSE_NORMAL, "token expired")
                return
            tasks.sleep(min(RENEW_RETRY_S, left_ms / 1000))

    def _read(self, channel: _Channel) -> None:
        while (message := channel.socket.receive()) is not None:
            if isinstance(message, bytes):
                continue  # The body of what was not understood.
            try:
                told = to_listener(message)
            except MalformedMessage as error:
                _log.warning("%s: %s", self.endpoint.name, error)
                continue
            if isinstance(told, Accept):
                self._on_accept(told)
            elif isinstance(told, Rendezvous):
                self._begin(self._serve_rendezvous, told)
            elif isinstance(told, Request):
                body = channel.socket.receive() if told.has_body else b""
                if isinstance(body, bytes):
                    self._begin(self._serve_on_channel, channel, told, body)

    def _begin(self, function: Callable[..., None], *args: Any) -> None:
        with self._lock:
            self._at_work = {task for task in self._at_work if not task.is_over}
            self._at_work.add(tasks.spawn(function, *args, name="duobus relay request"))

    def open_rendezvous(self, address: str, protocols: Sequence[str], message_max: int) -> WebSocket:
        """Open an address that the relay has told; once, because the address works once."""
        return self._connections.open(
            address, {}, self.endpoint.name, limit_s=RENDEZVOUS_S, protocols=protocols, message_max=message_max
        )

    # -- WebSocket connections ----------------------------------------------------------------------------------

    def _on_accept(self, offer: Accept) -> None:
        one = PendingConnection(self, offer, tasks.now())
        if self._on_connection is not None:
            self._begin(self._connected, one)
        elif len(self._pending) < self._pending_max:
            self._pending.append(one)
            self._arrived.set()
        else:
            self._begin(one.reject, 503, "The listener is busy.")

    def _connected(self, one: PendingConnection) -> None:
        assert self._on_connection is not None
        try:
            self._on_connection(one)
        except RelayError as error:
            _log.info("%s", error)
        except Exception:  # noqa: BLE001 - the application's own
            _log.exception("%s: on_connection raised", self.endpoint.name)
            with contextlib.suppress(RelayError):
                one.reject(500, "The listener failed.")

    # -- HTTP requests ------------------------------------------------------------------------------------------

    def _serve_on_channel(self, channel: _Channel, told: Request, content: bytes) -> None:
        """Answer a request that came over the control channel."""

        def deliver(answer: Answer) -> None:
            if isinstance(answer, RelayResponse) and len(answer.body) <= CHANNEL_BODY_BYTES_MAX:
                channel.send(*([_head(told, answer)] + ([answer.body] if _has_body(told, answer) else [])))
                return
            socket = self._connections.open_messages(told.address, self.endpoint.name, limit_s=RENDEZVOUS_S)
            try:
                _send(socket, told, answer)
            finally:
                socket.finish(RESPONSE_S)

        self._serve(told, StreamedBody(content), deliver)

    def _serve_rendezvous(self, told: Rendezvous) -> None:
        """Fetch a request whose body is large or of unknown size, and answer it at the same place."""
        try:
            socket = self._connections.open_messages(told.address, self.endpoint.name, limit_s=RENDEZVOUS_S)
        except RelayError as error:
            _log.info("a request was not fetched: %s", error)
            return
        try:
            message = socket.receive_text()
            request = None if message is None else to_listener(message)
            if isinstance(request, Request):
                body = StreamedBody(None, socket) if request.has_body else StreamedBody(b"")
                self._serve(request, body, partial(_send, socket, request))
        except MalformedMessage as error:
            _log.info("a request over a rendezvous failed: %s", error)
        finally:
            socket.finish(RESPONSE_S)

    def _serve(self, told: Request, body: StreamedBody, deliver: Callable[[Answer], None]) -> None:
        """Have a request answered in its turn, and deliver the answer; an error of the application is one, too."""
        if self._working >= self._most:
            _delivered(
                deliver, RelayResponse(503, {"Retry-After": "1"}, b"The listener has too many requests at once.")
            )
            return
        with self._lock:
            self._working += 1
        try:
            self._room.enter()
            try:
                _delivered(deliver, _answerable(self._answer(told, body)))
            finally:
                self._room.leave()
        finally:
            with self._lock:
                self._working -= 1

    def _answer(self, told: Request, body: StreamedBody) -> Answer:
        path, query = self.endpoint.suffix_of(told.target)
        method, name = told.method.upper(), self.endpoint.name
        try:
            if self._on_stream is not None:
                return self._on_stream(
                    StreamedRequest(method, path, query, told.headers, body, name, told.remote, told.id)
                )
            if self._on_request is None:
                return RelayResponse(501, body=b"This listener takes WebSocket connections only.")
            content = body.read(self._body_max)
            return self._on_request(
                RelayRequest(method, path, query, told.headers, content, name, told.remote, told.id)
            )
        except BodyTooLarge as error:
            return RelayResponse(413, body=str(error).encode())
        except Exception as error:  # noqa: BLE001 - the application's own
            if body.is_broken:
                _log.info("%s: a sender left within its request: %s", name, error)
            else:
                _log.exception("%s: on_request raised", name)
            return RelayResponse(500, body=b"The service failed.")


class PairListener:
    """Listens at both endpoints of a pair; the service is up while at least one endpoint has registered it (IN6).

    The two listeners share nothing but the functions that answer: each has its own connections, its own token and its
    own pauses, so that the failure of one endpoint never delays the other.

    Args:
        endpoints: Two endpoints, connection strings with ``EntityPath``, or listeners of your own.
        on_request: As of ``RelayListener``. The same request may come twice; ``DuplicateFilter`` recognises it.
        on_connection: As of ``RelayListener``.
        credentials: For each endpoint a credential, or None.
        **given: Further arguments of both listeners.
    """

    def __init__(
        self,
        endpoints: Sequence[RelayEndpoint | str | RelayListener],
        on_request: Handler | None = None,
        on_connection: Callable[[PendingConnection], None] | None = None,
        *,
        credentials: Sequence[Any] = (None, None),
        **given: Any,
    ) -> None:
        self.listeners = [
            one
            if isinstance(one, RelayListener)
            else RelayListener(one, on_request, on_connection, credential=credential, **given)
            for one, credential in zip(endpoints, credentials, strict=True)
        ]
        self._changed = tasks.Signal()
        for listener in self.listeners:
            listener.on_change = self._changed.set

    @property
    def is_up(self) -> bool:
        """Whether at least one endpoint has registered the service."""
        return any(listener.is_online for listener in self.listeners)

    def start(self) -> None:
        """Begin to connect to both; returns at once."""
        for listener in self.listeners:
            listener.start()

    def wait_up(
        self,
        timeout: float = CONNECT_S,
        *,
        tries: int | None = None,
    ) -> None:
        """Wait until one endpoint has registered the service.

        Args:
            timeout: Seconds to wait.
            tries: Failed tries at each endpoint after which there is no more waiting; any number by default.

        Raises:
            RelayError: Neither endpoint did in time, or both refuse; the error of the first one, with ``second``.
        """
        end = tasks.now() + timeout
        while not self.is_up:
            left = end - tasks.now()
            self._changed.clear()
            is_lost = all(
                listener.is_refused or (tries is not None and listener.failed_tries >= tries)
                for listener in self.listeners
            )
            if is_lost or left <= 0 or not self._changed.wait(left):
                first, second = (listener.last_error for listener in self.listeners)
                error = first or second or RelayTimeout("no endpoint registered the service in time")
                error.second = second if error is first else None
                raise error

    def close(self) -> None:
        """Stop listening at both."""
        for listener in self.listeners:
            listener.close()

    def __enter__(self) -> PairListener:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _target_of(address: str) -> str:
    """Path and query of the address of a rendezvous, as the sender wrote them."""
    target = "/" + address.partition("://")[2].partition("/")[2]
    found = parse_handshake(target)
    if found is None:
        return target
    return f"{found.raw_path}?{found.query}" if found.query else found.raw_path


def _answerable(answer: Answer) -> Answer:
    """The answer; 500 in place of one that no relay would take."""
    size = sum(len(name) + len(value) for name, value in answer.headers.items())
    if not 200 <= answer.status <= 999 or size > HEADERS_BYTES_MAX:
        return RelayResponse(500, body=b"The service gave an answer that is none.")
    return answer


def _has_body(told: Request, answer: Answer) -> bool:
    if told.method.upper() == "HEAD" or answer.status in _WITHOUT_BODY:
        return False
    return isinstance(answer, StreamedResponse) or bool(answer.body)


def _head(told: Request, answer: Answer) -> str:
    """The text message of an answer."""
    headers = {name: str(value) for name, value in answer.headers.items() if name.lower() != "content-length"}
    return Response(told.id, answer.status, answer.reason, headers, _has_body(told, answer)).to_json()


def _send(socket: MessageSocket, told: Request, answer: Answer) -> None:
    """Send an answer over a rendezvous, its body piece by piece as the relay takes them."""
    socket.send_text(_head(told, answer))
    if not _has_body(told, answer):
        return
    if isinstance(answer, RelayResponse):
        socket.send_piece(answer.body, is_first=True, is_last=True)
        return
    is_first = True
    try:
        for piece in answer.body:
            if piece:
                socket.send_piece(piece, is_first=is_first, is_last=False)
                is_first = False
    except BaseException:
        # The relay breaks the sender's connection off then, so that nobody takes this for a whole body.
        socket.close(CLOSE_ERROR, "The answer broke off.")
        raise
    socket.send_piece(b"", is_first=is_first, is_last=True)


def _delivered(deliver: Callable[[Answer], None], answer: Answer) -> None:
    """Deliver an answer; the service learns of a failure by the end of the pieces that it gives."""
    try:
        deliver(answer)
    except RelayError as error:
        _log.info("an answer was not delivered: %s", error)
    except Exception:  # noqa: BLE001 - the application's own, which makes the pieces of the body
        _log.exception("an answer broke off")
    finally:
        if isinstance(answer, StreamedResponse):
            answer.close()
