"""The transport of plain connections, over a pair of sockets and a server's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from duobus.gateway.socket_transport import SocketTransport, watches
from duobus.server.turn_selector import TurnLoop

#: More than the buffers of a pair of sockets hold.
LARGE = bytes(range(256)) * 40_000
#: Longest time for a step, on a machine that has much else to do.
LIMIT_S = 30.0


class Recorder(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.data = b""
        self.keeps_open = False
        self.on_data: Callable[[bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.on_data is not None:
            self.on_data(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", type(exc)))


class Wire:
    """A connection: the transport on one side, a bare socket on the other."""

    def __init__(self, loop: TurnLoop) -> None:
        self.loop = loop
        here, self.far = socket.socketpair()
        here.setblocking(False)
        self.far.setblocking(False)
        self.protocol = Recorder()
        self.transport = SocketTransport(loop, here, self.protocol)

    def run_until(self, is_true: Callable[[], bool]) -> None:
        """Let the loop go on until something is true."""

        async def wait() -> None:
            async with asyncio.timeout(LIMIT_S):
                while not is_true():  # noqa: ASYNC110 - a socket tells no event
                    await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())

    def turn(self) -> None:
        """Let the loop do what can be done at once."""
        self.loop.run_until_complete(asyncio.sleep(0.01))

    def received(self, number: int) -> bytes:
        """What comes out on the other side, until it is so much or the connection ends there."""
        found = bytearray()
        is_over = False

        def read() -> bool:
            nonlocal is_over
            try:
                part = self.far.recv(1 << 16)
            except BlockingIOError:
                return False
            found.extend(part)
            is_over = not part
            return is_over or len(found) >= number

        self.run_until(read)
        return bytes(found)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(TurnLoop()) as loop:
        made = Wire(loop)
        yield made
        made.transport.abort()
        made.turn()
        made.far.close()


LOST = ("lost", type(None))


def test_only_a_server_s_loop_has_such_transports(wire: Wire) -> None:
    assert watches(wire.loop)
    with closing(asyncio.SelectorEventLoop()) as plain:
        assert not watches(plain)


def test_bytes_go_both_ways(wire: Wire) -> None:
    wire.far.send(b"question")
    wire.run_until(lambda: bool(wire.protocol.data))
    wire.transport.writelines([b"an", b"swer"])
    assert (wire.protocol.data, wire.received(6)) == (b"question", b"answer")


def test_what_the_socket_does_not_take_waits_and_the_protocol_is_told_when_to_pause(wire: Wire) -> None:
    changing = bytearray(LARGE)
    wire.transport.write(changing)
    wire.transport.write(b"end")
    changing[:] = bytes(len(LARGE))
    assert wire.protocol.told == ["made", "pause"]
    assert wire.transport.get_write_buffer_size() > 0
    assert wire.received(len(LARGE) + 3) == LARGE + b"end"
    assert wire.protocol.told == ["made", "pause", "resume"]
    assert wire.transport.get_write_buffer_size() == 0


def test_limits_say_how_much_may_wait(wire: Wire) -> None:
    wire.transport.set_write_buffer_limits(high=2 * len(LARGE))
    assert wire.transport.get_write_buffer_limits() == (len(LARGE) // 2, 2 * len(LARGE))
    wire.transport.write(LARGE)
    assert wire.protocol.told == ["made"]
    wire.transport.set_write_buffer_limits(high=10, low=0)
    assert wire.protocol.told == ["made", "pause"]


def test_a_close_sends_what_waits_first(wire: Wire) -> None:
    wire.transport.write(LARGE)
    wire.transport.close()
    wire.transport.close()
    wire.transport.write(b"dropped")
    assert wire.transport.is_closing()
    assert LOST not in wire.protocol.told
    assert wire.received(len(LARGE) + 1) == LARGE
    assert wire.protocol.told[-1] == LOST
    assert wire.protocol.told.count(LOST) == 1


def test_a_close_is_told_to_the_protocol_after_the_call(wire: Wire) -> None:
    wire.transport.close()
    assert wire.protocol.told == ["made"]
    wire.turn()
    assert wire.protocol.told == ["made", LOST]
    assert wire.received(1) == b""


def test_an_abort_drops_what_waits(wire: Wire) -> None:
    wire.transport.write(LARGE)
    wire.transport.close()
    wire.transport.abort()
    wire.turn()
    assert wire.protocol.told == ["made", "pause", LOST]
    assert len(wire.received(len(LARGE))) < len(LARGE)


@pytest.mark.parametrize("keeps_open", [False, True])
def test_the_end_of_the_other_side_closes_unless_the_protocol_objects(wire: Wire, keeps_open: bool) -> None:
    wire.protocol.keeps_open = keeps_open
    wire.far.shutdown(socket.SHUT_WR)
    wire.run_until(lambda: "eof" in wire.protocol.told)
    wire.turn()
    assert wire.protocol.told == (["made", "eof"] if keeps_open else ["made", "eof", LOST])
    wire.transport.write(b"late")
    assert wire.received(4) == (b"late" if keeps_open else b"")


def test_nothing_is_read_while_reading_is_paused(wire: Wire) -> None:
    wire.transport.pause_reading()
    wire.far.send(b"early")
    wire.turn()
    assert (wire.protocol.data, wire.transport.is_reading()) == (b"", False)
    wire.transport.resume_reading()
    wire.run_until(lambda: wire.protocol.data == b"early")
    assert wire.transport.is_reading()


def test_what_comes_while_bytes_wait_to_be_sent_is_read(wire: Wire) -> None:
    wire.transport.write(LARGE)
    wire.far.send(b"question")
    wire.run_until(lambda: wire.protocol.data == b"question")
    assert wire.received(len(LARGE)) == LARGE


def test_another_protocol_gets_what_comes_after_it_was_set(wire: Wire) -> None:
    second = Recorder()
    wire.protocol.on_data = lambda _: wire.transport.set_protocol(second)
    wire.far.send(b"first")
    wire.run_until(lambda: bool(wire.protocol.data))
    wire.far.send(b"second")
    wire.run_until(lambda: bool(second.data))
    assert wire.transport.get_protocol() is second
    assert (wire.protocol.data, second.data) == (b"first", b"second")


def test_a_fault_of_the_protocol_ends_its_connection_and_is_told(wire: Wire) -> None:
    told: list[object] = []
    wire.loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    fault = ValueError("a fault")

    def fail(_: bytes) -> None:
        raise fault

    wire.protocol.on_data = fail
    wire.far.send(b"x")
    wire.run_until(lambda: len(wire.protocol.told) > 1)
    assert told == [fault]
    assert wire.protocol.told == ["made", ("lost", ValueError)]


def test_a_connection_that_breaks_is_lost_with_the_reason(wire: Wire) -> None:
    wire.transport.write(LARGE)
    wire.far.close()
    wire.run_until(lambda: len(wire.protocol.told) > 2)
    assert wire.protocol.told[:2] == ["made", "pause"]
    assert wire.protocol.told[2] in [("lost", BrokenPipeError), ("lost", ConnectionResetError)]
    wire.transport.write(b"nobody is there")
    assert wire.transport.get_write_buffer_size() == 0


def test_a_connection_is_asked_for_its_addresses(wire: Wire) -> None:
    assert wire.transport.get_extra_info("socket").fileno() >= 0
    assert wire.transport.get_extra_info("peername") == wire.far.getsockname()
    assert wire.transport.get_extra_info("cipher") is None
