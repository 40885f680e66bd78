"""A client at the level of frames: the project's engine as initiator over a real socket, or bytes written by hand."""

from __future__ import annotations

import socket
import ssl
import struct
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from duobus.amqp import (
    Connection,
    ConnectionSettings,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Session,
    Source,
    Target,
    Transfers,
)
from duobus.codec import application_properties, build_message, decode, scan
from duobus.codec.sections import VALUE, find_section
from duobus.model.access_rules import sign_token
from duobus.server.settings import EMULATOR_KEY

_EventT = TypeVar("_EventT", bound=Event)
RULE = "RootManageSharedAccessKey"


def token(entity: str, life_s: float = 600, rule: str = RULE, key: str = EMULATOR_KEY) -> str:
    """A shared access signature for an entity."""
    return sign_token(f"sb://localhost/{entity}", rule, key, int(time.time() + life_s))


#: A wait that has taken this long will not end.
HANG_S: Final = 60.0


class Refused(Exception):
    """A link was refused; ``error`` says why."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


class RawClient:
    """One connection; every wait has a limit."""

    def __init__(
        self,
        port: int,
        *,
        mechanism: str = "ANONYMOUS",
        response: bytes = b"",
        idle_time_out_ms: int = 0,
        tls: ssl.SSLContext | None = None,
        hostname: str = "localhost",
    ) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        settings = ConnectionSettings(
            f"raw-{uuid.uuid4().hex}",
            hostname=hostname,
            mechanisms=(mechanism,),
            sasl_response=response,
            idle_time_out_ms=idle_time_out_ms,
        )
        self.engine = Connection(settings, acceptor=False)
        self.events: list[Any] = []
        self.bytes_read = bytearray()
        self.is_eof = False
        self.engine.open(_now_ms())
        self._session: Session | None = None
        self._names = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    # -- bytes --------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the engine has to say."""
        output = self.engine.take_output()
        if output:
            self.socket.sendall(output)

    def pump(self, limit_s: float = 0.05) -> bool:
        """Exchange bytes once; False when nothing came in that time."""
        self.flush()
        self.socket.settimeout(max(limit_s, 0.001))
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.is_eof = True
            return False
        self.bytes_read += data
        self.events += self.engine.receive(data, _now_ms())
        self.flush()
        return True

    def wait(
        self, kind: type[_EventT], limit_s: float = HANG_S, where: Callable[[_EventT], bool] = lambda event: True
    ) -> _EventT:
        """Take the first event of a kind, waiting for it."""
        deadline = time.monotonic() + limit_s
        while True:
            for event in self.events:
                if isinstance(event, kind) and where(event):
                    self.events.remove(event)
                    return event
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.__name__} within {limit_s} s; there is {self.events}"
            assert not self.is_eof, f"connection closed, no {kind.__name__}; there is {self.events}"
            self.pump(min(left, 0.2))

    def nothing_more(self, kind: type[Event], for_s: float) -> bool:
        """Whether no event of a kind comes for a while."""
        deadline = time.monotonic() + for_s
        while (left := deadline - time.monotonic()) > 0 and not self.is_eof:
            self.pump(left)
        return not any(isinstance(event, kind) for event in self.events)

    def until_eof(self, limit_s: float = HANG_S) -> None:
        """Wait until the broker closes the connection."""
        deadline = time.monotonic() + limit_s
        while not self.is_eof:
            assert time.monotonic() < deadline, "the broker keeps the connection open"
            self.pump(0.1)

    # -- links --------------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session of everything, unless a test makes others."""
        if self._session is None:
            self._session = self.engine.begin()
        return self._session

    def sender(self, address: str, session: Session | None = None, **options: Any) -> Link:
        """Attach a link to send on and wait for the answer."""
        self._names += 1
        name = options.pop("name", f"s{self._names}")
        target = options.pop("target", Target(address=address))
        link = (session or self.session).attach_sender(name, Source(address="client"), target, **options)
        return self._attached(link)

    def receiver(self, address: str, session: Session | None = None, **options: Any) -> Link:
        """Attach a link to receive on and wait for the answer; it has no credit yet."""
        self._names += 1
        name = options.pop("name", f"r{self._names}")
        source = options.pop("source", Source(address=address))
        target = options.pop("target", Target(address="client"))
        link = (session or self.session).attach_receiver(name, source, target, **options)
        return self._attached(link)

    def _attached(self, link: Link) -> Link:
        self.wait(LinkAttached, where=lambda event: event.link is link)
        remote = link.remote
        assert remote is not None
        if (remote.target if link.is_sender else remote.source) is None:
            raise Refused(self.wait(LinkDetached, where=lambda event: event.link is link).error)
        return link

    def credited(self, link: Link) -> Link:
        """Wait until a link may be sent on."""
        deadline = time.monotonic() + HANG_S
        while not link.sendable():
            assert time.monotonic() < deadline, "no credit came"
            self.pump(0.1)
        return link

    def send(self, link: Link, payload: bytes, *, settled: bool = False, tag: bytes | None = None) -> int:
        """Send one message and return its delivery id."""
        self.credited(link)
        first = link.session.next_delivery_id
        link.send_one(tag or uuid.uuid4().bytes, payload, settled)
        self.flush()
        return first

    def receive(self, link: Link, number: int, limit_s: float = HANG_S) -> list[tuple[int, bytes]]:
        """(delivery id, message) of ``number`` deliveries; credit is the caller's business."""
        found: list[tuple[int, bytes]] = []
        while len(found) < number:
            event = self.wait(Transfers, limit_s, where=lambda event: event.link is link)
            found += [(event.first_delivery_id + index, payload) for index, payload in enumerate(event.payloads)]
        return found

    # -- requests -----------------------------------------------------------------------------------------------

    def put_token(self, entity: str, text: str, message_id: Any = None) -> tuple[int, Any]:
        """Put a token as Python does, without reply-to; return (status code, correlation id)."""
        properties = {"operation": "put-token", "type": "jwt", "name": f"sb://localhost/{entity}"}
        reply = self.request("$cbs", properties, text, message_id=message_id or uuid.uuid4())
        return int(reply[0]["status-code"]), reply[2]

    def request(
        self, node: str, properties: dict[str, Any], body: Any, *, message_id: Any = None
    ) -> tuple[dict[str, Any], Any, Any]:
        """Ask a node over a new pair of links; return (application properties, body, correlation id)."""
        session = self.engine.begin()
        replies = self.receiver(node, session)
        requests = self.sender(node, session)
        replies.grant(10)
        message_id = message_id or uuid.uuid4().hex
        self.send(requests, build_message([message_id], properties, body_value=body))
        ((_, payload),) = self.receive(replies, 1)
        session.end()
        self.flush()
        return opened_reply(payload)


def opened_reply(payload: bytes) -> tuple[dict[str, Any], Any, Any]:
    """(application properties, body, correlation id) of a reply, decoded by this project's codec."""
    bare = payload[scan(payload).bare :]
    start, value, _ = find_section(bare, VALUE)
    body = None if start == value else decode(bare, value)[0]
    return application_properties(bare), body, decode(bare, 0)[0].value[5]


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, body) of whole frames; a protocol header counts as one of type -1."""
    found = []
    pos = 0
    while pos + 8 <= len(data):
        if data[pos : pos + 4] == b"AMQP":
            found.append((-1, 0, data[pos : pos + 8]))
            pos += 8
            continue
        size, doff, kind, channel = struct.unpack_from(">IBBH", data, pos)
        if pos + size > len(data):
            break
        found.append((kind, channel, data[pos + 4 * doff : pos + size]))
        pos += size
    return found


def tags(client: RawClient) -> list[bytes]:
    """The delivery tag of every message that the broker wrote; replies have shorter ones."""
    found = []
    for kind, _, content in frames(bytes(client.bytes_read)):
        if kind == 0 and content[:3] == b"\x00\x53\x14" and b"\xa0\x10" in content[:24]:
            found.append(content[content.index(b"\xa0\x10") + 2 :][:16])
    return found


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
