"""The rendezvous of a listener at the level of frames, in virtual time: silence, slow relays, broken rules, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from duobus.clock import Entropy
from duobus.model.relay.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Control,
    FrameDecoder,
    Piece,
    close_payload,
    frame,
)
from duobus.model.relay.limits import BODY_AHEAD_BYTES, MESSAGE_BYTES_MAX
from duobus.relay import ConnectionDropped
from duobus.relay.aio.message_sockets import MessageSocket
from simulation.world.loop import SimulationLoop


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        loop = SimulationLoop(test.__name__)
        try:
            loop.run(test())
        finally:
            loop.close()

    run.__name__ = test.__name__
    return run


class Wire:
    """What aiohttp has made: an answer, its connection, the protocol and the transport; and the relay behind them.

    Attributes:
        sent: Frames that reached the relay.
        unsent: Bytes that the relay has not taken.
        takes: Bytes that the relay takes each time that somebody waits for it to take some.
    """

    read_timeout: float | None = 5.0

    def __init__(self) -> None:
        self.connection = self
        self.transport = self
        self.protocol = self
        self.sent: list[Piece | Control] = []
        self.is_paused = False
        self.is_closed = False
        self.unsent = 0
        self.takes = 0
        self._decoder = FrameDecoder()
        self.socket = MessageSocket(self, "h/p", Entropy())  # type: ignore[arg-type]

    def set_parser(self, parser: Any, payload: Any) -> None:
        self.parser = parser

    def feed(self, *frames: bytes) -> None:
        self.parser.feed_data(b"".join(frames))

    def write(self, data: bytes) -> None:
        self.sent += list(self._decoder.feed(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    @property
    def writing_paused(self) -> bool:
        return self.unsent > 0

    async def _drain_helper(self) -> None:
        while self.unsent:
            await asyncio.sleep(50)
            self.unsent -= min(self.takes, self.unsent)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_relay_that_is_silent_is_asked_and_then_given_up() -> None:
    wire = Wire()
    assert wire.read_timeout is None
    assert await wire.socket.receive_text() is None
    assert (now(), wire.sent) == (60, [Control(PING, b"")])
    with pytest.raises(ConnectionDropped, match="silent"):
        await wire.socket.receive_piece()


@in_virtual_time
async def test_a_relay_that_answers_pings_is_waited_for() -> None:
    wire = Wire()
    waiting = asyncio.create_task(wire.socket.receive_text())
    for _ in range(10):
        await asyncio.sleep(31)
        wire.feed(frame(PONG, b""))
    wire.feed(frame(TEXT, b"here"))
    assert await waiting == "here"
    assert wire.sent == [Control(PING, b"")] * 10


@in_virtual_time
async def test_a_relay_that_takes_a_little_is_waited_for_and_one_that_takes_nothing_is_given_up() -> None:
    wire = Wire()
    wire.unsent, wire.takes = 10, 1
    await wire.socket.send_piece(b"x", is_first=True, is_last=False)
    began = now()
    assert began > 500
    wire.unsent, wire.takes = 10, 0
    with pytest.raises(ConnectionDropped, match="takes nothing"):
        await wire.socket.send_piece(b"x", is_first=False, is_last=True)
    assert (now() - began, wire.is_closed) == (60, True)


@in_virtual_time
async def test_reading_pauses_while_pieces_wait_and_goes_on_when_they_are_taken() -> None:
    wire = Wire()
    wire.feed(frame(BINARY, bytes(BODY_AHEAD_BYTES), is_last=False))
    assert not wire.is_paused
    wire.feed(frame(CONTINUATION, b"x", is_last=False))
    assert wire.is_paused
    assert len(await wire.socket.receive_piece()) == BODY_AHEAD_BYTES + 1
    assert not wire.is_paused
    wire.feed(frame(CONTINUATION, b""))
    assert await wire.socket.receive_piece() == b""


@in_virtual_time
async def test_a_large_piece_is_sent_as_several_frames_of_one_message() -> None:
    wire = Wire()
    await wire.socket.send_text("head")
    await wire.socket.send_piece(bytes(2 * BODY_AHEAD_BYTES + 1), is_first=True, is_last=False)
    await wire.socket.send_piece(b"", is_first=False, is_last=True)
    pieces = [event for event in wire.sent if isinstance(event, Piece)]
    assert [(piece.opcode, len(piece.data), piece.is_first, piece.is_last) for piece in pieces] == [
        (TEXT, 4, True, True),
        (BINARY, BODY_AHEAD_BYTES, True, False),
        (BINARY, BODY_AHEAD_BYTES, False, False),
        (BINARY, 1, False, False),
        (BINARY, 0, False, True),
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\xc1\x00", 1002), (b"\x81\x80\x00\x00\x00\x00", 1002), (frame(TEXT, bytes(MESSAGE_BYTES_MAX + 1)), 1009)],
    ids=["reserved bit", "mask", "long text"],
)
def test_a_relay_that_breaks_a_rule_is_told_which_and_left(data: bytes, code: int) -> None:
    @in_virtual_time
    async def test() -> None:
        wire = Wire()
        wire.feed(data)
        (told,) = wire.sent
        assert (told.data[:2], isinstance(told, Control)) == (code.to_bytes(2, "big"), True)
        assert await wire.socket.receive_text() is None
        with pytest.raises(ConnectionDropped):
            await wire.socket.send_text("x")

    test()


@in_virtual_time
async def test_a_ping_and_a_close_are_answered() -> None:
    wire = Wire()
    wire.feed(frame(PING, b"1"), frame(CLOSE, close_payload(1001, "stops")))
    assert wire.sent == [Control(PONG, b"1"), Control(CLOSE, close_payload(1001, ""))]
    with pytest.raises(ConnectionDropped, match="1001: stops"):
        await wire.socket.receive_piece()
    await wire.socket.close()
    assert wire.is_closed
    assert now() == 0


@in_virtual_time
async def test_a_close_waits_two_seconds_for_that_of_the_relay_and_a_finish_for_its_time() -> None:
    wire = Wire()
    await wire.socket.close(1011, "broke")
    assert (now(), wire.sent) == (2, [Control(CLOSE, close_payload(1011, "broke"))])
    wire = Wire()
    wire.feed(frame(BINARY, bytes(BODY_AHEAD_BYTES + 1), is_last=False))
    asyncio.get_running_loop().call_later(10, wire.feed, frame(CLOSE, close_payload(1000, "")))
    await wire.socket.finish(60)
    assert (now(), wire.is_paused, wire.is_closed) == (12, False, True)
