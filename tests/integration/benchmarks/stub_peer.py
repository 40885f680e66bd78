"""A test double of a broker: queues in memory, one thread, AMQP 1.0 as far as the load generator uses it.

It writes its frames by hand, not with the encoders of the generator, and can be told to use rare encodings and to
misbehave. It is no yardstick of speed.
"""

import contextlib
import selectors
import socket
import ssl
import struct
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from benchmarks.load import wire
from benchmarks.load.link import Target

# an array8 of sym8: its size, two items, their constructor, then each with its length
MECHANISMS = b"\xe0\x12\x02\xa3\x05PLAIN\x09ANONYMOUS"
OK = b"\x00\x53\x24\x45"
REFUSAL = b"\x00\x53\x1d\xc0\x1a\x03\xa3\x0camqp:no-room\xa1\x08it is so\x40"


@dataclass
class Habits:
    """How the stub behaves.

    Attributes:
        credit: link credit that it gives to senders, again at half.
        window: incoming-window of its sessions, in frames.
        ranged: whether dispositions are ranges, or one for each delivery.
        rare_encoding: list32, smalluint delivery-ids, a null `last`.
        frame_payload: payload bytes per frame to receivers; smaller than a message splits it.
        reject_from: number of the message from which on all are rejected, None for none.
        refuse_attach: whether every attach is refused.
        repeat: number of a message that is delivered twice, None for none.
        mute_settlement: whether dispositions of receivers stay without an answer.
        lose: number of a message that is accepted and thrown away, None for none.
        skip_ids: how far the delivery-ids to receivers start above 0.
    """

    credit: int = 1000
    window: int = 5000
    ranged: bool = True
    rare_encoding: bool = False
    frame_payload: int = 60_000
    reject_from: int | None = None
    refuse_attach: bool = False
    repeat: int | None = None
    mute_settlement: bool = False
    lose: int | None = None
    skip_ids: int = 0


@dataclass
class _Peer:
    """One connection of the stub."""

    sock: socket.socket
    data: bytes = b""
    out: bytearray = field(default_factory=bytearray)
    headers: int = 0
    is_receiver: bool = False
    attached: bool = False
    credit_end: int = 0
    delivered: int = 0
    frames_in: int = 0
    deliveries_in: int = 0
    partial: bytes = b""
    address: str = ""
    accepted: list[int] = field(default_factory=list)


class StubPeer:
    """Serve on `port` (0: of the system's choice) for as long as the `with` lasts.

    Attributes:
        queues: the messages that nobody has taken, by address.
        queue: those of the address of `target`.
        stored: messages stored so far, those of batches counted singly.
        flows: link flows that came from receivers.
        peak: the most messages that ever lay in the queue.
        settled_by_receivers: deliveries that a receiver settled for itself.
        logins: the SASL mechanism and initial response of each connection.
    """

    def __init__(self, habits: Habits | None = None, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.habits = habits or Habits()
        self.queues: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.queue = self.queues["plain"]
        self.settled_by_receivers = 0
        self._tls = tls
        self.stored = 0
        self.flows = 0
        self.peak = 0
        self.logins: list[tuple[str, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._peers: list[_Peer] = []
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def target(self, user: str = "rule", password: str = "key") -> Target:
        return Target("127.0.0.1", self.port, "plain", user, password)

    def __enter__(self) -> "StubPeer":
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopper.send(b"x")
        self._thread.join(60)
        for sock in [self._stop, self._stopper, self._listener, *(peer.sock for peer in self._peers)]:
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stop:
                    return
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if self._tls is not None:
                        sock = self._tls.wrap_socket(sock, server_side=True)
                    peer = _Peer(sock)
                    self._peers.append(peer)
                    self._selector.register(sock, selectors.EVENT_READ, peer)
                else:
                    self._read(key.data)
            self._deliver()
            for peer in self._peers:
                if peer.out:
                    with contextlib.suppress(OSError):
                        peer.sock.sendall(peer.out)
                    peer.out.clear()

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(1 << 18)
            # the selector does not tell of what TLS has read already
            while isinstance(peer.sock, ssl.SSLSocket) and peer.sock.pending():
                data += peer.sock.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(peer.sock)
            peer.sock.close()
            self._peers.remove(peer)
            return
        peer.data += data
        while len(peer.data) >= 8:
            if peer.headers < 2 and peer.data.startswith(b"AMQP"):
                peer.headers += 1
                peer.out += peer.data[:8]
                if peer.headers == 1:
                    peer.out += _frame(b"\x00\x53\x40\xc0\x15\x01" + MECHANISMS, kind=1)
                peer.data = peer.data[8:]
                continue
            (size,) = struct.unpack_from(">I", peer.data)
            if len(peer.data) < size:
                break
            frame = wire.read_frame(peer.data, 0, size)
            peer.data = peer.data[size:]
            self._handle(peer, frame)
        self._settle(peer)

    def _handle(self, peer: _Peer, frame: wire.Frame) -> None:
        answers = {
            wire.SASL_INIT: self._login,
            wire.ATTACH: self._attach,
            wire.FLOW: self._flow,
            wire.TRANSFER: self._transfer,
            wire.DISPOSITION: self._disposition,
        }
        if frame.code in answers:
            answers[frame.code](peer, frame)
        elif frame.code == wire.OPEN:
            peer.out += _frame(_list(0x10, b"\xa1\x04stub", b"\x40", _uint(65536), *[b"\x40"] * 7))
        elif frame.code == wire.BEGIN:
            window = _uint(self.habits.window)
            peer.out += _frame(_list(0x11, b"\x60\0\0", b"\x43", window, window, _uint(255), *[b"\x40"] * 3))
        elif frame.code == wire.DETACH:
            peer.attached = False
            peer.out += _frame(_list(0x16, b"\x43", b"\x41", b"\x40"))
        elif frame.code == wire.CLOSE:
            peer.out += _frame(_list(0x18, b"\x40"))

    def _login(self, peer: _Peer, frame: wire.Frame) -> None:
        self.logins.append((frame.field(0), frame.field(1)))
        code = 1 if frame.field(1).endswith(b"wrong") else 0
        peer.out += _frame(_list(0x44, bytes((0x50, code)), b"\x40"), kind=1)

    def _attach(self, peer: _Peer, frame: wire.Frame) -> None:
        peer.is_receiver = frame.field(2)
        peer.address = frame.field(5 if peer.is_receiver else 6).value[0]
        name = frame.field(0).encode()
        role = b"\x42" if peer.is_receiver else b"\x41"
        ends = [_list(0x28, b"\xa1\x01s"), _list(0x29, b"\xa1\x01t")]
        if self.habits.refuse_attach:
            ends = [b"\x40", b"\x40"]
        head = [b"\xa1" + bytes((len(name),)) + name, b"\x43", role, b"\x50\x00", b"\x50\x01"]
        peer.out += _frame(_list(0x12, *head, *ends, b"\x40", b"\x40", b"\x43", *[b"\x40"] * 4))
        if self.habits.refuse_attach:
            peer.out += _frame(_list(0x16, b"\x43", b"\x41", REFUSAL))
            return
        peer.attached = True
        if not peer.is_receiver:
            self._give_credit(peer)

    def _give_credit(self, peer: _Peer) -> None:
        peer.credit_end = peer.deliveries_in + self.habits.credit
        windows = [_uint(peer.frames_in), _uint(self.habits.window), b"\x43", _uint(5000)]
        link = [b"\x43", _uint(peer.deliveries_in), _uint(self.habits.credit), b"\x40", b"\x42", b"\x42", b"\x40"]
        peer.out += _frame(_list(0x13, *windows, *link))

    def _flow(self, peer: _Peer, frame: wire.Frame) -> None:
        if peer.is_receiver:
            self.flows += 1
            peer.credit_end = frame.field(5) + frame.field(6)

    def _transfer(self, peer: _Peer, frame: wire.Frame) -> None:
        peer.frames_in += 1
        peer.partial += frame.payload
        if frame.field(5):
            return
        payload, peer.partial = peer.partial, b""
        peer.deliveries_in += 1
        peer.accepted.append(frame.field(1))
        messages = _unpack_batch(payload) if frame.field(3) == wire.BATCH_FORMAT else [payload]
        for message in messages:
            queue = self.queues[peer.address]
            if self.stored == self.habits.repeat:
                queue.append(message)
            if self.stored != self.habits.lose:
                queue.append(message)
            self.stored += 1
            self.peak = max(self.peak, len(queue))

    def _disposition(self, peer: _Peer, frame: wire.Frame) -> None:
        first, last = frame.field(1), frame.field(2)
        if frame.field(3):
            self.settled_by_receivers += last - first + 1
            return
        if self.habits.mute_settlement:
            return
        peer.out += self._settled(b"\x42", first, last, OK)

    def _settle(self, peer: _Peer) -> None:
        """Answer what a sender sent in this read."""
        ids, peer.accepted = peer.accepted, []
        if not ids:
            return
        reject_from = self.habits.reject_from
        if reject_from is not None and ids[-1] >= reject_from:
            refused = max(ids[0], reject_from)
            peer.out += self._settled(b"\x41", refused, ids[-1], _list(0x25, REFUSAL))
            ids = ids[: refused - ids[0]]
        if ids and self.habits.ranged:
            peer.out += self._settled(b"\x41", ids[0], ids[-1], OK)
        elif ids:
            for one in reversed(ids):
                peer.out += self._settled(b"\x41", one, one, OK)
        if peer.credit_end - peer.deliveries_in <= self.habits.credit // 2:
            self._give_credit(peer)

    def _settled(self, role: bytes, first: int, last: int, state: bytes) -> bytes:
        small = self.habits.rare_encoding
        end = b"\x40" if small and first == last else _uint(last, small=small)
        body = [role, _uint(first, small=small), end, b"\x41", state, b"\x40"]
        return _frame(_list(0x15, *body, wide=small))

    def _deliver(self) -> None:
        """Hand each queue to its receivers with credit, one message each in turn."""
        busy = True
        while busy:
            busy = False
            for peer in self._peers:
                if peer.attached and peer.is_receiver and peer.delivered < peer.credit_end:
                    queue = self.queues[peer.address]
                    if queue:
                        self._deliver_one(peer, queue.popleft())
                        busy = True

    def _deliver_one(self, peer: _Peer, message: bytes) -> None:
        small = self.habits.rare_encoding
        number = _uint(peer.delivered + self.habits.skip_ids, small=small)
        tag = b"\xa0\x10" + peer.delivered.to_bytes(16, "big")
        room = self.habits.frame_payload
        for at in range(0, len(message), room):
            more = b"\x41" if at + room < len(message) else b"\x42"
            handle = b"\x52\x00" if small else b"\x43"
            if at and small:
                number = b"\x40"
            head = [handle, number, tag, b"\x43", b"\x42", more, *[b"\x40"] * 5]
            peer.out += _frame(_list(0x14, *head, wide=small) + message[at : at + room])
        peer.delivered += 1


def _uint(value: int, small: bool = False) -> bytes:
    if small and value == 0:
        return b"\x43"
    if small and value < 256:
        return bytes((0x52, value))
    return b"\x70" + struct.pack(">I", value)


def _list(code: int, *fields: bytes, wide: bool = False) -> bytes:
    body = b"".join(fields)
    if wide or len(body) > 254:
        return bytes((0, 0x53, code, 0xD0)) + struct.pack(">II", len(body) + 4, len(fields)) + body
    return bytes((0, 0x53, code, 0xC0, len(body) + 1, len(fields))) + body


def _frame(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


def _unpack_batch(payload: bytes) -> list[bytes]:
    messages: list[bytes] = []
    at = 0
    while at < len(payload):
        section: Any
        section, at = wire.decode(payload, at)
        messages.append(section.value)
    return messages
