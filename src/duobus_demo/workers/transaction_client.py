"""A small blocking AMQP 1.0 client with transactions, which the SDK for Python lacks: the engine over one socket."""

from __future__ import annotations

import contextlib
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Self
from urllib.parse import urlsplit

from duobus.amqp import (
    ACCEPTED,
    PLAIN,
    Closed,
    Connection,
    ConnectionSettings,
    Coordinator,
    Declared,
    DeliveryState,
    Dispositions,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Session,
    SessionEnded,
    Source,
    Target,
    TransactionalState,
    Transfers,
    plain_response,
)
from duobus.amqp import Error as AmqpError
from duobus.clock import Clock
from duobus.codec import Described, Int, Symbol, UInt, ULong, application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, find_section

#: How long an answer may take, in seconds: longer than a store needs to get another owner.
ANSWER_S: Final = 15.0
#: What the broker says when there was no session in the time that was given.
NO_SESSION: Final = "com.microsoft:timeout"
_CAPABILITY: Final = "amqp:local-transactions"
_DECLARE: Final = ULong(0x31)
_DISCHARGE: Final = ULong(0x32)
_SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
_TIMEOUT: Final = Symbol("com.microsoft:timeout")
_TRANSFER_DESTINATION: Final = Symbol("com.microsoft:transfer-destination-address")
_PEEK: Final = "com.microsoft:peek-message"
_OK, _NOTHING = 200, 204
_READ_BYTES: Final = 1 << 16


class ConnectionLost(ConnectionError):
    """The connection ended, or an answer did not come in its time: what was not answered may be done or not."""


class LinkEnded(Exception):
    """The broker refused or ended a link.

    Attributes:
        error: Why.
    """

    def __init__(self, error: AmqpError | None) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def condition(self) -> str:
        """The condition of the error; empty when there is none."""
        return "" if self.error is None else str(self.error.condition)


class TransactionClient:
    """One connection. Every wait has a limit.

    As a context manager it closes the connection: in good order, or without a word when an exception is on its way.

    Args:
        connection_string: For plain TCP, with a key.
        name: The container id.
        clock: Time.
        answer_s: How long an answer may take, in seconds.

    Raises:
        OSError: The server cannot be reached.
    """

    def __init__(self, connection_string: str, name: str, clock: Clock, answer_s: float = ANSWER_S) -> None:
        members = dict(part.split("=", 1) for part in connection_string.strip(";").split(";"))
        where = urlsplit(members["Endpoint"])
        self._clock = clock
        self._answer_ms = int(answer_s * 1000)
        self._name = name
        self._number = 0
        self._attached: set[Link] = set()
        self._ended: dict[Link, AmqpError | None] = {}
        self._arrived: defaultdict[Link, deque[tuple[int, bytes]]] = defaultdict(deque)
        # Of deliveries that were sent, by session and delivery id; None for those without an answer.
        self._answers: dict[tuple[Session, int], DeliveryState | None] = {}
        self._socket = socket.create_connection((where.hostname or "localhost", where.port or 0), timeout=answer_s)
        settings = ConnectionSettings(
            name,
            hostname=where.hostname,
            mechanisms=(PLAIN,),
            sasl_response=plain_response(members["SharedAccessKeyName"], members["SharedAccessKey"]),
        )
        self._engine = Connection(settings, acceptor=False)
        self._engine.open(clock.monotonic_ms())
        self._session = self._engine.begin()
        # In a session of AMQP of its own. In one that begins with a coordinator, where a message goes would depend on
        # the order in which links are attached.
        self._coordinator = self._engine.begin().attach_sender(
            "coordinator", Source(address=name), Coordinator(capabilities=[_CAPABILITY])
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        if kind is None:
            with contextlib.suppress(OSError):
                self._engine.close()
                self._flush()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the socket without a word."""
        self._socket.close()

    # -- links --------------------------------------------------------------------------------------------------

    def sender_via(self, between: str, destination: str) -> Link:
        """Attach a link whose messages go to ``destination`` by way of ``between``.

        Raises:
            LinkEnded: The broker refused it.
            ConnectionLost: The connection ended.
        """
        properties = {_TRANSFER_DESTINATION: destination}
        source, target = Source(address=self._name), Target(address=between)
        return self._opened(self._session.attach_sender(self._next_name(), source, target, properties=properties))

    def session_receiver(self, address: str, wait_s: float) -> Link | None:
        """Attach a link with the next available session, and without credit; None when there is none in that time.

        Raises:
            LinkEnded: The broker refused it for another reason.
            ConnectionLost: The connection ended.
        """
        link = self._session.attach_receiver(
            self._next_name(),
            Source(address=address, filter={_SESSION_FILTER: None}),
            Target(address=self._name),
            properties={_TIMEOUT: UInt(int(wait_s * 1000))},
        )
        try:
            return self._opened(link, int(wait_s * 1000))
        except LinkEnded as error:
            if error.condition == NO_SESSION:
                return None
            raise

    def detach(self, link: Link) -> None:
        """End a link and wait for the answer; a receiver's session is free then."""
        if link not in self._ended:
            link.detach()
            self._wait(lambda: link in self._ended)
        del self._ended[link]
        self._arrived.pop(link, None)

    def _next_name(self) -> str:
        self._number += 1
        return f"{self._name}-{self._number}"

    def _opened(self, link: Link, more_ms: int = 0) -> Link:
        def is_answered() -> bool:
            remote = link.remote if link in self._attached else None
            # A refusal is an attach without a terminus, and then a detach.
            return remote is not None and (remote.target if link.is_sender else remote.source) is not None

        self._wait(lambda: link in self._ended or is_answered(), more_ms)
        self._attached.discard(link)
        if link in self._ended:
            raise LinkEnded(self._ended.pop(link))
        return link

    # -- messages -----------------------------------------------------------------------------------------------

    def next_message(self, link: Link, wait_s: float) -> tuple[int, bytes] | None:
        """Return delivery id and content of the next message of a receiver; None when none comes in that time.

        Raises:
            LinkEnded: The link ended.
            ConnectionLost: The connection ended.
        """
        link.grant(1)
        arrived = self._arrived[link]
        until_ms = self._clock.monotonic_ms() + int(wait_s * 1000)
        while not arrived and link not in self._ended:
            if not self._exchange(until_ms):
                # The credit is taken back, so that no message comes that would stay locked.
                link.grant(1, drain=True)
                self._wait(lambda: arrived or link in self._ended or not link.drain)
                break
        if arrived:
            return arrived.popleft()
        self._demand(link)
        return None

    def complete(self, delivery_id: int) -> None:
        """Complete a message, outside of any transaction and without an answer."""
        self._session.disposition(True, delivery_id, delivery_id, ACCEPTED, True)

    def peek(self, entity: str, number: int) -> list[bytes]:
        """Return the first messages that lie in an entity, locked ones included.

        Raises:
            LinkEnded: The broker refused it.
            ConnectionLost: The connection ended, or not all of the entity could be looked at.
        """
        session, node = self._engine.begin(), f"{entity}/$management"
        replies_to, asks = Target(address=self._next_name()), Source(address=self._name)
        replies = self._opened(session.attach_receiver(self._next_name(), Source(address=node), replies_to))
        requests = self._opened(session.attach_sender(self._next_name(), asks, Target(address=node)))
        about = [self._next_name(), None, None, None, replies_to.address]
        body = {"from-sequence-number": 0, "message-count": Int(number)}
        self._put(requests, build_message(about, {"operation": _PEEK}, body_value=body))
        answer = self.next_message(replies, self._answer_ms / 1000)
        session.end()
        bare = b"" if answer is None else answer[1][scan(answer[1]).bare :]
        status = application_properties(bare).get("statusCode") if bare else None
        if status == _NOTHING:
            return []
        if status != _OK:
            raise ConnectionLost(f"'{entity}' could not be looked at: {status}.")
        found: dict[str, list[dict[str, bytes]]] = decode(bare, find_section(bare, VALUE)[1])[0]
        return [one["message"] for one in found["messages"]]

    def declare(self) -> bytes:
        """Begin a transaction and return its id.

        Raises:
            LinkEnded: The broker takes no transaction.
            ConnectionLost: The connection ended.
        """
        state = self._answer(self._coordinator, self._put(self._coordinator, _request(_DECLARE, None)))
        if not isinstance(state, Declared):
            raise LinkEnded(getattr(state, "error", None))
        return state.txn_id

    def complete_in(self, txn_id: bytes, delivery_id: int) -> None:
        """Complete a message in a transaction; the discharge says what became of it."""
        self._session.disposition(True, delivery_id, delivery_id, TransactionalState(txn_id, ACCEPTED), False)

    def send_in(self, txn_id: bytes, link: Link, message: bytes) -> None:
        """Send a message in a transaction; the discharge says what became of it.

        Raises:
            LinkEnded: The link ended before.
            ConnectionLost: The connection ended.
        """
        self._put(link, message, TransactionalState(txn_id))

    def discharge(self, txn_id: bytes, *, fail: bool) -> int:
        """Ask for the end of a transaction, and return what ``discharged`` wants to know.

        Raises:
            LinkEnded: The coordinator's link ended before.
            ConnectionLost: The connection ended.
        """
        number = self._put(self._coordinator, _request(_DISCHARGE, txn_id, fail))
        self._flush()
        return number

    def discharged(self, number: int) -> bool:
        """Wait for the end of a transaction; return whether it is as was asked for. Otherwise it is rolled back.

        Raises:
            LinkEnded: The coordinator's link ended: the outcome is unknown.
            ConnectionLost: The connection ended: the outcome is unknown.
        """
        return self._answer(self._coordinator, number) == ACCEPTED

    def _put(self, link: Link, message: bytes, state: DeliveryState | None = None) -> int:
        self._wait(lambda: link in self._ended or link.sendable() > 0)
        self._demand(link)
        self._number += 1
        delivery_id = link.send_one(self._number.to_bytes(8, "big"), message, False, state=state)
        if state is None:
            self._answers[link.session, delivery_id] = None
        return delivery_id

    def _answer(self, link: Link, delivery_id: int) -> DeliveryState:
        key = (link.session, delivery_id)
        self._wait(lambda: link in self._ended or self._answers[key] is not None)
        state = self._answers.pop(key)
        if state is None:
            self._demand(link)
        assert state is not None  # or the link has ended
        return state

    def _demand(self, link: Link) -> None:
        if link in self._ended:
            raise LinkEnded(self._ended[link])

    # -- bytes --------------------------------------------------------------------------------------------------

    def _wait(self, is_there: Callable[[], object], more_ms: int = 0) -> None:
        until_ms = self._clock.monotonic_ms() + self._answer_ms + more_ms
        while not is_there():
            if not self._exchange(until_ms):
                raise ConnectionLost(f"There was no answer within {self._answer_ms + more_ms} ms.")

    def _exchange(self, until_ms: int) -> bool:
        """Write what there is to write and read once; return False when the time is over."""
        now_ms = self._clock.monotonic_ms()
        self._take(self._engine.tick(now_ms))
        self._flush()
        if now_ms >= until_ms:
            return False
        due_ms = self._engine.next_deadline()
        wait_ms = (until_ms if due_ms is None else min(until_ms, due_ms)) - now_ms
        self._socket.settimeout(max(wait_ms, 1) / 1000)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return True
        if not data:
            raise ConnectionLost("The server has closed the connection.")
        self._take(self._engine.receive(data, self._clock.monotonic_ms()))
        return True

    def _flush(self) -> None:
        output = self._engine.take_output()
        if output:
            self._socket.settimeout(self._answer_ms / 1000)
            self._socket.sendall(output)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, LinkAttached):
                self._attached.add(event.link)
            elif isinstance(event, LinkDetached):
                self._ended[event.link] = event.error
            elif isinstance(event, Transfers):
                numbered = enumerate(event.payloads, event.first_delivery_id)
                self._arrived[event.link].extend(numbered)
            elif isinstance(event, Dispositions) and event.role:
                self._take_answers(event)
            elif isinstance(event, Closed) or (isinstance(event, SessionEnded) and event.error is not None):
                raise ConnectionLost(f"The server has ended the connection: {event.error}")

    def _take_answers(self, event: Dispositions) -> None:
        for session, number in self._answers:
            if session is event.session:
                for first, last, _, state in event.ranges:
                    if first <= number <= last:
                        self._answers[session, number] = state


def result_message(message_id: str, session_id: str, body: bytes) -> bytes:
    """Return an encoded message of a session that goes by way of the entity where the same session id has its place."""
    annotations: Mapping[Any, Any] = {Symbol("x-opt-via-partition-key"): session_id}
    return build_message([message_id, *[None] * 9, session_id], data=body, annotations=annotations)


def _request(what: ULong, *fields: object) -> bytes:
    return build_message(None, body_value=Described(what, list(fields)))
