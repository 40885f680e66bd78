"""Hostile peers at a measured pace, one kind per process: ``python -m benchmarks.hostile KIND --port N``.

They keep their own processor time small, for they share the machine with the broker and with those that are measured:
twenty milliseconds pass between two bursts, and a burst is a few writes of bytes that were made before. Prints
``ready`` when all connections are open; ends with its standard input.
"""

import argparse
import contextlib
import select
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import cycle, repeat
from time import perf_counter, process_time, sleep

from benchmarks.load import wire
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE

TICK_SECONDS = 0.02
BAIT = "bait"
"""The queue that hostile receivers attach to; it should hold messages."""
HOT = "hot"
"""The partitioned queue of which one fragment gets all that a hot key brings."""
CREDIT_MAX = 0x7FFFFFFF
WINDOW = wire.uint(CREDIT_MAX)


def opening() -> bytes:
    """Everything up to a session, written in one go by a client that knows the key and waits for no answer."""
    response = f"\0{EMULATOR_RULE}\0{EMULATOR_KEY}".encode()
    init = wire.described(wire.SASL_INIT, [wire.symbol("PLAIN"), wire.binary(response), wire.string("localhost")])
    names = [wire.string("hostile"), wire.string("localhost"), wire.uint(65536), wire.ushort(255)]
    begin = [wire.NULL, wire.uint(0), WINDOW, WINDOW, wire.uint(CREDIT_MAX)]
    return (
        wire.SASL_HEADER
        + wire.frame(init, kind=1)
        + wire.AMQP_HEADER
        + wire.frame(wire.described(wire.OPEN, names))
        + wire.frame(wire.described(wire.BEGIN, begin))
    )


def attach(handle: int, name: str, *, properties: bytes = wire.NULL) -> bytes:
    """A receiver of BAIT."""
    source = wire.described(wire.SOURCE, [wire.string(BAIT)])
    target = wire.described(wire.TARGET, [wire.string("me")])
    fields = [wire.string(name), wire.uint(handle), wire.TRUE, wire.ubyte(0), wire.ubyte(0), source, target]
    return wire.frame(wire.described(wire.ATTACH, [*fields, *repeat(wire.NULL, 6), properties]))


def detach(handle: int) -> bytes:
    """The end of a link."""
    return wire.frame(wire.described(wire.DETACH, [wire.uint(handle), wire.TRUE]))


def huge_map() -> bytes:
    """A map of 4,000 symbols: as many values as a frame has room for, near enough."""
    body = b"".join(b"\xa3\x06" + b"k%05d" % number + b"\xa3\x05" + b"value" for number in range(4000))
    return b"\xd1" + struct.pack(">II", len(body) + 4, 8000) + body


def nested(levels: int) -> bytes:
    """Lists in lists."""
    value = b"\x40"
    for _ in range(levels):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


def lies() -> list[bytes]:
    """Frames whose sizes, offsets and counts are not what they say."""
    hollow = b"\x00\x53\x10\xd0" + struct.pack(">II", 0xFFFFFFF0, 0xFFFFFFFF)
    return [
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x04\x02\x00\x00\x00",
        b"\x00\x00\x00\x10\x01\x00\x00\x00" + bytes(8),
        b"\x00\x00\x00\x10\xff\x00\x00\x00" + bytes(8),
        wire.frame(b"\x00\x53\x99\x45"),
        wire.frame(hollow),
    ]


class Hostile(ABC):
    """A kind of peer; ``step`` is called once a tick. ``busy`` counts what was refused for that reason."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: deque[socket.socket] = deque()
        self._ticks = 0
        self.reads = True
        self.busy = 0

    def dial(self, data: bytes = b"") -> socket.socket:
        """Connect, write ``data``, and be remembered."""
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        self._sockets.append(sock)
        self.write(sock, data)
        sock.setblocking(False)
        return sock

    def write(self, sock: socket.socket, data: bytes) -> None:
        """Write what the socket takes: the broker may have closed it, or read no further."""
        with contextlib.suppress(OSError):
            sock.send(data)

    def drop_oldest(self) -> None:
        """Close the connection that is open for longest."""
        self._sockets.popleft().close()

    def tick(self) -> None:
        """Do the next step, then read what has come."""
        self._ticks += 1
        self.step()
        if self.reads:
            poll = select.poll()
            by_descriptor = {sock.fileno(): sock for sock in self._sockets}
            for descriptor in by_descriptor:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(0):
                with contextlib.suppress(OSError):
                    data = by_descriptor[descriptor].recv(1 << 18)
                    self.busy += data.count(b"com.microsoft:server-busy")
                    if not data:
                        self._sockets.remove(by_descriptor[descriptor])
                        by_descriptor[descriptor].close()

    @abstractmethod
    def step(self) -> None:
        """Be hostile once."""


class Drip(Hostile):
    """200 handshakes of one byte a second."""

    def step(self) -> None:
        while len(self._sockets) < 200:
            self.dial(wire.SASL_HEADER[:1])
        for _ in range(4):
            self._sockets.rotate(-1)
            self.write(self._sockets[0], wire.SASL_HEADER[1:2])


class Silent(Hostile):
    """500 connections that never finish their handshake, 50 of them new each second."""

    def step(self) -> None:
        while len(self._sockets) < 500:
            self.dial(wire.SASL_HEADER)
        self.drop_oldest()


class Flood(Hostile):
    """200 connections a second, dropped at once."""

    def step(self) -> None:
        while self._sockets:
            self.drop_oldest()
        for _ in range(4):
            self.dial(wire.SASL_HEADER)


class Liar(Hostile):
    """50 connections a second whose frames lie about sizes and counts."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._frames: Iterator[bytes] = cycle(lies())

    def step(self) -> None:
        if len(self._sockets) > 20:
            self.drop_oldest()
        self.dial(opening() + next(self._frames))


class NeverReads(Hostile):
    """Eight receivers with credit of 2^31 - 1 that read nothing, ten of them new each second."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.reads = False
        self._data = opening() + attach(0, "hog") + wire.flow(0, CREDIT_MAX, 0, CREDIT_MAX, 0, CREDIT_MAX)

    def step(self) -> None:
        if self._ticks % 5 == 0:
            self.drop_oldest()
        while len(self._sockets) < 8:
            self.dial(self._data)


class NeverSettles(Hostile):
    """Receivers that take 1,000 messages a second and settle none; ten minutes' worth of locks is not waited for."""

    def step(self) -> None:
        if len(self._sockets) < 4:
            self.dial(opening() + attach(0, "hoarder"))
        self._sockets.rotate(-1)
        count = self._ticks // 4 * 20
        self.write(self._sockets[0], wire.flow(0, CREDIT_MAX, 0, CREDIT_MAX, max(0, count - 20), 20))
        if self._ticks % 200 == 0:
            self.drop_oldest()


class Links(Hostile):
    """500 links a second, on connections that hold 900 each."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._handle = 0

    def step(self) -> None:
        if not self._sockets:
            self._handle = 0
            self.dial(opening())
        # Handles end at 255: every one is given back, the names are new each time.
        data = b"".join(attach(n % 200, f"l{n}") for n in range(self._handle, self._handle + 10))
        if self._handle >= 190:
            data += b"".join(detach(n % 200) for n in range(self._handle - 190, self._handle - 180))
        self._handle += 10
        self.write(self._sockets[0], data)


class Bombs(Hostile):
    """25 maps of 8,000 symbols and 25 lists nested too deep a second, each of them in an attach."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._huge = attach(0, "bomb", properties=huge_map()) + detach(0)
        self._deep = opening() + attach(0, "deep", properties=nested(5000))

    def step(self) -> None:
        if not self._sockets:
            self.dial(opening())
        if self._ticks % 2:
            self.write(self._sockets[0], self._huge)
        else:
            self.dial(self._deep)
            if len(self._sockets) > 20:
                self.drop_oldest()


class Flows(Hostile):
    """5,000 flow frames a second."""

    def step(self) -> None:
        if not self._sockets:
            self.dial(opening() + attach(0, "flows"))
        self.write(self._sockets[0], wire.flow(0, CREDIT_MAX, 0, CREDIT_MAX, 0, 0) * 100)


class HotKey(Hostile):
    """500 messages a second of one key, in bursts of five on each of two connections."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        target = wire.described(wire.TARGET, [wire.string(HOT)])
        source = wire.described(wire.SOURCE, [wire.string("me")])
        fields = [wire.string("hot"), wire.uint(0), wire.FALSE, wire.ubyte(0), wire.ubyte(0), source, target]
        nothing = [wire.NULL, wire.NULL]
        self._data = opening() + wire.frame(wire.described(wire.ATTACH, [*fields, *nothing, wire.uint(0)]))
        key = wire.symbol("x-opt-partition-key") + wire.string("hot")
        self._message = b"\x00\x53\x72\xc1" + bytes((len(key) + 1, 2)) + key + b"\x00\x53\x75\xa0\x40" + bytes(64)
        self._sent = 0

    def step(self) -> None:
        while len(self._sockets) < 2:
            self.dial(self._data)
        burst = b"".join(self._transfer(number) for number in range(self._sent, self._sent + 5))
        self._sent += 5
        for sock in self._sockets:
            self.write(sock, burst)

    def _transfer(self, number: int) -> bytes:
        fields = [wire.uint(0), wire.uint(number), wire.binary(struct.pack(">I", number)), wire.uint(0), wire.FALSE]
        return wire.frame(wire.described(wire.TRANSFER, fields) + self._message)


KINDS: dict[str, type[Hostile]] = {
    "one byte a second": Drip,
    "handshakes never finished": Silent,
    "connection flood": Flood,
    "lying frames": Liar,
    "never reads, much credit": NeverReads,
    "never settles": NeverSettles,
    "links without end": Links,
    "nesting and symbol bombs": Bombs,
    "flow flood": Flows,
    "hot key": HotKey,
}


def spin(share: float) -> None:
    """Use ``share`` of a processor until the standard input ends, in slices of a tick; talk to nobody."""
    print("ready", flush=True)
    while not _is_over(TICK_SECONDS * (1 - share)):
        until = perf_counter() + TICK_SECONDS * share
        while perf_counter() < until:
            pass


def attack(kind: str, port: int) -> None:
    """Be hostile until the standard input ends."""
    hostile = KINDS[kind](port)
    for _ in range(25):
        hostile.tick()
        sleep(TICK_SECONDS)
    print("ready", flush=True)
    began = perf_counter()
    used = process_time()
    while not _is_over(TICK_SECONDS):
        with contextlib.suppress(ConnectionError):
            hostile.tick()
    print((process_time() - used) / (perf_counter() - began), hostile.busy, flush=True)


def _is_over(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], max(0.0, seconds))[0])


def main() -> int:
    """Run one kind; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*KINDS, "spinner"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.0, help="of a processor, for the spinner")
    options = parser.parse_args()
    if options.kind == "spinner":
        spin(options.share)
    else:
        attack(options.kind, options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
