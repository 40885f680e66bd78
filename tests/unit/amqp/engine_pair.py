"""Two engines joined by a wire that cuts bytes as it likes, and what tests need around them."""

from __future__ import annotations

import random
from typing import Any

from duobus.amqp import (
    AttachReceived,
    Connection,
    ConnectionSettings,
    Event,
    Link,
    OpenReceived,
    SaslInitReceived,
    Session,
    SessionBegun,
    Source,
    Target,
)
from duobus.codec import Described, decode


class Pair:
    """A client (initiator) and a server (acceptor); ``pump`` carries bytes until both are quiet."""

    def __init__(
        self, seed: int = 0, server: dict[str, Any] | None = None, client: dict[str, Any] | None = None
    ) -> None:
        self.random = random.Random(seed)
        client_settings: dict[str, Any] = {"mechanisms": ("ANONYMOUS",), **(client or {})}
        self.client = Connection(ConnectionSettings("client", **client_settings), acceptor=False)
        self.server = Connection(ConnectionSettings("server", **(server or {})), acceptor=True)
        self.now_ms = 1_000
        self.at_client: list[Event] = []
        self.at_server: list[Event] = []
        self.sent_by_server = b""
        self.sent_by_client = b""
        self.sasl_ok = True
        self.answers_open = True

    def open(self) -> Pair:
        self.client.open(self.now_ms, "namespace")
        self.pump()
        assert self.client.is_open
        assert self.server.is_open
        return self

    def pump(self) -> None:
        while True:
            to_server = self.client.take_output()
            to_client = self.server.take_output()
            if not to_server and not to_client:
                return
            self.sent_by_client += to_server
            self.sent_by_server += to_client
            for piece in self._cut(to_server):
                self.to_server(piece)
            for piece in self._cut(to_client):
                self.at_client += self.client.receive(piece, self.now_ms)

    def to_server(self, data: bytes) -> list[Event]:
        found = events = self.server.receive(data, self.now_ms)
        while events and isinstance(events[-1], (SaslInitReceived, OpenReceived)):
            if isinstance(events[-1], SaslInitReceived):
                self.server.sasl_outcome(self.sasl_ok)
            elif self.answers_open:
                self.server.open(self.now_ms)
            else:
                break
            events = self.server.receive(b"", self.now_ms)
            found = found + events
        self.at_server += found
        return found

    def _cut(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self.random.choice((1, 7, 60, 500, 5_000, 1_000_000))
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def take(self, kind: type[Any], side: str = "server") -> list[Any]:
        """Return, and forget, the events of one kind."""
        events = self.at_server if side == "server" else self.at_client
        found = [event for event in events if type(event) is kind]
        events[:] = [event for event in events if type(event) is not kind]
        return found

    def session(self) -> tuple[Session, Session]:
        """Begin a session; return (the client's end, the server's end)."""
        mine = self.client.begin()
        self.pump()
        return mine, self.take(SessionBegun)[-1].session

    def sender(self, session: Session, name: str = "out", credit: int = 100, **accepted: Any) -> tuple[Link, Link]:
        """Attach a link on which the client sends; return (client's end, server's end)."""
        mine = session.attach_sender(name, Source(address="me"), Target(address="queue"))
        self.pump()
        theirs = self.take(AttachReceived)[-1].link
        theirs.accept(**accepted)
        if credit:
            theirs.grant(credit)
        self.pump()
        return mine, theirs

    def receiver(self, session: Session, name: str = "in", credit: int = 100) -> tuple[Link, Link]:
        """Attach a link on which the client receives; return (client's end, server's end)."""
        mine = session.attach_receiver(name, Source(address="queue"), Target(address="me"))
        self.pump()
        theirs = self.take(AttachReceived)[-1].link
        theirs.accept()
        self.pump()
        if credit:
            mine.grant(credit)
        self.pump()
        return mine, theirs


def frames(data: bytes) -> list[tuple[int, int, int, Any, bytes, bytes]]:
    """Cut bytes into (type, channel, code, fields, payload, raw body); protocol headers have type -1."""
    found: list[tuple[int, int, int, Any, bytes, bytes]] = []
    pos = 0
    while pos < len(data):
        if data[pos : pos + 4] == b"AMQP":
            found.append((-1, 0, data[pos + 4], None, b"", data[pos : pos + 8]))
            pos += 8
            continue
        stop = pos + int.from_bytes(data[pos : pos + 4], "big")
        kind, channel = data[pos + 5], int.from_bytes(data[pos + 6 : pos + 8], "big")
        if stop == pos + 8:
            found.append((kind, channel, 0, None, b"", b""))
        else:
            value, end = decode(data, pos + 8)
            assert isinstance(value, Described)
            found.append((kind, channel, value.descriptor, value.value, data[end:stop], data[pos + 8 : stop]))
        pos = stop
    return found
