"""Senders and receivers of message sessions: every message belongs to one of 1,000 sessions, drawn at random.

Each receiver holds its share of the sessions, one link for each on one AMQP session, as a client with many session
receivers on one connection does.
"""

import random
import struct
from collections.abc import Callable
from itertools import repeat
from time import perf_counter

from benchmarks.load import wire
from benchmarks.load.link import WINDOW, Target
from benchmarks.load.message import FrameTemplate, Run, sections, transfer_head
from benchmarks.load.receiver import Receiver
from benchmarks.load.sender import BURST, Sender
from benchmarks.load.wire import Frame

SESSIONS = 1000
SUFFIX = "-sessions"
"""What the name of the queue that requires sessions has behind the name of the plain one."""

FILTER = "com.microsoft:session-filter"
CREDIT = 1 << 24
"""Of each link: never given again in a run."""
_NAMES = [b"%08x" % number for number in range(SESSIONS)]
_DRAWN = 1 << 16
_NO_FIELDS = 9
"""Fields of the properties between message-id and group-id."""


class SessionTemplate(FrameTemplate):
    """As FrameTemplate, with a group-id behind the message-id."""

    __slots__ = ("middle", "pack_session")

    def __init__(self, run: Run, sender: int, body_bytes: int) -> None:
        super().__init__(run, sender, body_bytes)
        self.middle = wire.NULL * _NO_FIELDS + b"\xa1\x08"
        head, rest = sections(run, sender, body_bytes, more_fields=_NO_FIELDS + 1, more_bytes=len(self.middle) + 8)
        whole = transfer_head(wire.uint(0), wire.binary(bytes(4)), b"\x43", wire.FALSE)
        self.size = 8 + len(whole) + len(head) + 8 + len(self.middle) + 8 + len(rest) + 4 + 8
        before_id = 8
        self.start = wire.frame(bytes(self.size - 8))[:8] + whole[:before_id]
        self.id_start = whole[before_id + 10 :] + head
        self.rest = rest
        lengths = [len(part) for part in (self.start, self.tag_start, self.id_start, self.middle, self.rest)]
        form = ">{}sI{}sI{}s8s{}s8s{}sId".format(*lengths)
        self.pack_session: Callable[..., bytes] = struct.Struct(form).pack


class SessionSender(Sender):
    """A sender whose messages belong to sessions."""

    __slots__ = ("_drawn", "_sessions")

    def __init__(self, target: Target, run: Run, number: int, window: int, body_bytes: int) -> None:
        drawn = random.Random(number)
        self._drawn = [drawn.choice(_NAMES) for _ in range(_DRAWN)]
        self._sessions = SessionTemplate(run, number, body_bytes)
        super().__init__(target, run, number, window, body_bytes)

    def pump(self, quota: int) -> int:
        """See Sender."""
        if self._out:
            return 0
        sent = self.sent
        limit = min(self.settled + self.window, self.credit_limit, sent + self.frame_limit - self.frames_out)
        limit = min(limit, sent + quota)
        t = self._sessions
        pack, start, tag, text, middle, rest = t.pack_session, t.start, t.tag_start, t.id_start, t.middle, t.rest
        drawn = self._drawn
        first = sent
        while sent < limit and not self._out:
            stop = min(limit, sent + BURST)
            now = perf_counter()
            self.sent_at.extend(repeat(now, stop - sent))
            self.write(
                b"".join(
                    [
                        pack(start, n, tag, n, text, b"%08x" % n, middle, drawn[n % _DRAWN], rest, n, now)
                        for n in range(sent, stop)
                    ]
                )
            )
            sent = stop
        self.sent = sent
        self.frames_out += sent - first
        return sent - first


class SessionReceiver(Receiver):
    """A connection that holds every ``of``-th session from its number on."""

    __slots__ = ("_attached", "_names")

    def __init__(self, target: Target, run: Run, number: int, of: int) -> None:
        self._names = [name.decode() for name in _NAMES[number::of]]
        self._attached = 0
        super().__init__(target, run, number, CREDIT)

    def _handshake(self) -> None:
        super()._handshake()
        attaches = [
            wire.frame(wire.described(wire.ATTACH, self._fields_of(handle))) for handle in range(1, len(self._names))
        ]
        self.sock.sendall(b"".join(attaches))
        while self._attached < len(self._names):
            self._control(self._next_frame(), 0.0)

    def _attach_fields(self) -> list[bytes]:
        return self._fields_of(0)

    def _fields_of(self, handle: int) -> list[bytes]:
        pair = wire.symbol(FILTER) + wire.string(self._names[handle])
        filters = bytes((0xC1, len(pair) + 1, 2)) + pair
        none = wire.NULL
        source = wire.described(wire.SOURCE, [wire.string(self.target.address), *[none] * 6, filters])
        target = wire.described(wire.TARGET, [wire.string(f"load-{self.name}")])
        modes = [wire.ubyte(0), wire.ubyte(1)]
        name = wire.string(f"{self.name}-{handle}")
        return [name, wire.uint(handle), wire.TRUE, *modes, source, target, *[none] * 7]

    def _opened(self, frame: Frame) -> None:
        super()._opened(frame)
        if frame.code == wire.ATTACH and frame.field(5) is not None:
            self._attached += 1

    def start(self) -> None:
        """Give all credit."""
        self._credit_end = CREDIT
        flows = []
        for handle in range(len(self._names)):
            window = [wire.uint(0), wire.uint(WINDOW), wire.uint(0), wire.uint(WINDOW)]
            rest = [wire.uint(0), wire.uint(CREDIT), wire.NULL, wire.FALSE, wire.FALSE, wire.NULL]
            flows.append(wire.frame(wire.described(wire.FLOW, [*window, wire.uint(handle), *rest])))
        self.write(b"".join(flows))
