"""Connections of the simulated network behave as asyncio's do, faults included."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from simulation.world.loop import SimulationLoop, UnhandledFailure
from simulation.world.network import SimulatedNetwork


class Recorder(asyncio.Protocol):
    """Keeps what happened to it."""

    made: list[Recorder]

    def __init__(self, keep_half_open: bool = False) -> None:
        self.data = bytearray()
        self.reads = 0
        self.log: list[Any] = []
        self.keep_half_open = keep_half_open
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.log.append("made")

    def data_received(self, data: bytes) -> None:
        assert self.log[0] == "made"
        self.data += data
        self.reads += 1

    def eof_received(self) -> bool:
        self.log.append("eof")
        return self.keep_half_open

    def pause_writing(self) -> None:
        self.log.append("pause")

    def resume_writing(self) -> None:
        self.log.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append(("lost", type(exc).__name__))


class World:
    """Two nodes and a server on one of them."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.loop = SimulationLoop(seed)
        self.net = SimulatedNetwork(self.loop, seed, **options)
        self.server, self.client = self.net.node("server"), self.net.node("client")
        self.server.start()
        self.client.start()
        self.accepted: list[Recorder] = []
        self.port = 5672
        self.half_open = False

    def accept(self) -> Recorder:
        self.accepted.append(Recorder(self.half_open))
        return self.accepted[-1]

    async def listen(self) -> Any:
        return await asyncio.get_running_loop().create_server(self.accept, "0.0.0.0", self.port)

    async def _open(self) -> Recorder:
        _, protocol = await asyncio.get_running_loop().create_connection(Recorder, "server", self.port)
        return protocol

    def connect(self) -> tuple[Recorder, Recorder]:
        async def main() -> Recorder:
            if not self.accepted:
                await self.server.spawn(self.listen())
            return await self.client.spawn(self._open())

        near = self.loop.run(main())
        self.loop.advance(1)
        return near, self.accepted[-1]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def test_bytes_arrive_whole_in_order_and_in_odd_pieces() -> None:
    for seed in range(20):
        world = World(seed, split_probability=0.7)
        near, remote = world.connect()
        sent = random.Random(seed).randbytes(20_000)
        for start in range(0, len(sent), 1000):
            near.transport.write(sent[start : start + 1000])
        remote.transport.writelines([sent[:10], sent[10:500]])
        world.loop.advance(5)
        assert bytes(remote.data) == sent
        assert bytes(near.data) == sent[:500]
        assert remote.reads > 1
        world.loop.close()


def test_both_ends_know_their_names(world: World) -> None:
    near, remote = world.connect()
    assert near.transport.get_extra_info("peername") == ("server", 5672)
    assert remote.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")
    assert remote.transport.get_extra_info("socket") is None


def test_close_delivers_everything_and_ends_both_sides(world: World) -> None:
    near, remote = world.connect()
    near.transport.write(b"last words")
    near.transport.close()
    assert near.transport.is_closing()
    near.transport.write(b"dropped")
    world.loop.advance(1)
    assert bytes(remote.data) == b"last words"
    assert near.log == ["made", ("lost", "NoneType")]
    assert remote.log == ["made", "eof", ("lost", "NoneType")]
    assert world.net.connections() == []


def test_abort_loses_what_is_buffered_and_resets_the_peer(world: World) -> None:
    near, remote = world.connect()
    near.transport.abort()
    world.loop.advance(1)
    assert near.log == ["made", ("lost", "NoneType")]
    assert remote.log == ["made", ("lost", "ConnectionResetError")]


def test_half_close_lets_the_other_direction_go_on() -> None:
    world = World()
    world.half_open = True
    near, remote = world.connect()
    near.transport.write(b"question")
    near.transport.write_eof()
    with pytest.raises(RuntimeError):
        near.transport.write(b"more")
    world.loop.advance(1)
    remote.transport.write(b"answer")
    remote.transport.close()
    world.loop.advance(1)
    assert bytes(remote.data) == b"question"
    assert bytes(near.data) == b"answer"
    assert near.log == ["made", "eof", ("lost", "NoneType")]
    assert remote.log == ["made", "eof", ("lost", "NoneType")]
    world.loop.close()


def test_a_reader_that_pauses_makes_the_writer_pause() -> None:
    world = World(capacity=1000)
    near, remote = world.connect()
    remote.transport.pause_reading()
    assert not remote.transport.is_reading()
    near.transport.set_write_buffer_limits(high=500)
    near.transport.write(bytes(1200))
    assert near.log == ["made"]
    near.transport.write(bytes(1000))
    world.loop.advance(10)
    assert near.log == ["made", "pause"]
    assert near.transport.get_write_buffer_size() == 1200
    assert len(remote.data) == 0
    remote.transport.resume_reading()
    world.loop.advance(10)
    assert near.log == ["made", "pause", "resume"]
    assert len(remote.data) == 2200
    world.loop.close()


def test_water_marks_are_set_as_asyncio_sets_them(world: World) -> None:
    near, _ = world.connect()
    transport: Any = near.transport
    assert transport.get_write_buffer_limits() == (16384, 65536)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    with pytest.raises(ValueError, match="must be >= low"):
        transport.set_write_buffer_limits(high=1, low=2)


def test_a_cut_stalls_bytes_until_it_heals(world: World) -> None:
    near, remote = world.connect()
    world.net.cut("client", "server", both=False)
    near.transport.write(b"stalled")
    remote.transport.write(b"other way")
    world.loop.advance(300)
    assert bytes(remote.data) == b""
    assert bytes(near.data) == b"other way"
    world.net.heal()
    world.loop.advance(1)
    assert bytes(remote.data) == b"stalled"


def test_one_connection_is_cut_while_its_neighbour_lives(world: World) -> None:
    near, remote = world.connect()
    near_2, far_2 = world.connect()
    world.net.connections("client")[0].cut()
    near.transport.write(b"a")
    near_2.transport.write(b"b")
    world.loop.advance(5)
    assert (bytes(remote.data), bytes(far_2.data)) == (b"", b"b")
    world.net.connections("client")[0].heal()
    world.loop.advance(5)
    assert bytes(remote.data) == b"a"


def test_a_clog_delays_and_then_lets_go(world: World) -> None:
    near, remote = world.connect()
    world.net.clog("client", "server", 5)
    near.transport.write(b"late")
    world.loop.advance(4.9)
    assert bytes(remote.data) == b""
    world.loop.advance(0.2)
    assert bytes(remote.data) == b"late"


def test_a_reset_is_seen_by_both_ends(world: World) -> None:
    near, remote = world.connect()
    near.transport.write(b"lost on the way")
    world.net.connections()[0].reset()
    world.loop.advance(1)
    assert bytes(remote.data) == b""
    assert near.log == remote.log == ["made", ("lost", "ConnectionResetError")]


def test_the_living_end_of_a_half_open_connection_hears_nothing() -> None:
    world = World(capacity=1000)
    near, remote = world.connect()
    world.net.connections()[0].half_open("client")
    world.loop.advance(1)
    assert near.log == ["made", ("lost", "ConnectionResetError")]
    remote.transport.write(bytes(200_000))
    world.loop.advance(600)
    assert remote.log == ["made", "pause"]
    world.loop.close()


def test_a_killed_process_resets_or_closes_its_connections(world: World) -> None:
    near, remote = world.connect()
    remote.transport.write(b"taken over by the kernel")
    world.server.kill()
    world.loop.advance(1)
    assert bytes(near.data) == b"taken over by the kernel"
    assert near.log == ["made", "eof", ("lost", "NoneType")]
    assert remote.log == ["made"]


def test_a_killed_process_with_unread_bytes_resets_its_peer(world: World) -> None:
    near, remote = world.connect()
    remote.transport.pause_reading()
    near.transport.write(b"never read")
    world.loop.advance(1)
    world.server.kill()
    world.loop.advance(1)
    assert near.log == ["made", ("lost", "ConnectionResetError")]


def test_after_a_power_cut_the_peer_hears_nothing_until_the_machine_is_back(world: World) -> None:
    near, _ = world.connect()
    world.server.kill(power=True)
    near.transport.write(b"into the void")
    world.loop.advance(100)
    assert near.log == ["made"]
    world.server.start()
    near.transport.write(b"again")
    world.loop.advance(1)
    assert near.log == ["made", ("lost", "ConnectionResetError")]


def test_a_dead_life_can_write_nothing_more(world: World) -> None:
    near, remote = world.connect()
    world.server.kill()
    remote.transport.write(b"from the grave")
    remote.transport.close()
    world.loop.advance(1)
    assert bytes(near.data) == b""


def test_connecting_to_nobody_is_refused(world: World) -> None:
    with pytest.raises(ConnectionRefusedError):
        world.loop.run(world.loop.create_connection(Recorder, "server", 1))
    with pytest.raises(socket.gaierror):
        world.loop.run(world.loop.create_connection(Recorder, "nowhere", 1))


def test_connecting_through_a_cut_times_out_or_waits_for_healing(world: World) -> None:
    world.connect()
    world.net.cut("outside", "server")
    with pytest.raises(TimeoutError):
        world.loop.run(world.loop.create_connection(Recorder, "server", 5672))
    assert world.loop.time() > 60
    world.loop.call_later(10, world.net.heal)
    transport, _ = world.loop.run(world.loop.create_connection(Recorder, "server", 5672))
    assert not transport.is_closing()


def test_a_port_is_taken_until_the_server_closes_or_dies(world: World) -> None:
    async def reopen() -> None:
        server = await world.listen()
        with pytest.raises(OSError, match="in use"):
            await world.listen()
        assert server.sockets[0].getsockname() == ("server", 5672)
        server.close()
        await server.wait_closed()
        assert not server.sockets
        await world.listen()

    async def main() -> None:
        await world.server.spawn(reopen())
        world.server.kill()
        world.server.start()
        await world.server.spawn(world.listen())

    world.loop.run(main())


def test_port_zero_gives_every_server_its_own(world: World) -> None:
    world.port = 0

    async def main() -> set[int]:
        return {(await world.listen()).sockets[0].getsockname()[1] for _ in range(5)}

    assert len(world.loop.run(main())) == 5


def test_aliases_and_loopback_lead_to_the_right_node(world: World) -> None:
    world.connect()
    world.net.alias("ns.example", "server")
    world.loop.run(world.loop.create_connection(Recorder, "ns.example", 5672))

    async def local() -> None:
        await asyncio.get_running_loop().create_connection(Recorder, "127.0.0.1", 5672)

    async def main() -> None:
        await world.server.spawn(local())

    world.loop.run(main())
    world.loop.advance(1)
    assert len(world.accepted) == 3


def test_tls_is_refused_in_clear_words(world: World) -> None:
    with pytest.raises(ValueError, match="plain bytes only"):
        world.loop.run(world.loop.create_connection(Recorder, "server", 5671, ssl=True))


def test_a_protocol_that_raises_loses_its_connection_and_fails_the_run(world: World) -> None:
    near, remote = world.connect()

    def explode(data: bytes) -> None:
        raise ValueError("bad frame")

    remote.data_received = explode  # type: ignore[method-assign]
    near.transport.write(b"x")
    with pytest.raises(UnhandledFailure, match="bad frame"):
        world.loop.advance(1)
    assert remote.log == ["made", ("lost", "ValueError")]
    assert near.log == ["made", ("lost", "ConnectionResetError")]


def test_closing_with_a_full_buffer_ends_when_the_peer_is_gone() -> None:
    world = World(capacity=1000)
    near, remote = world.connect()
    remote.transport.pause_reading()
    near.transport.write(bytes(5000))
    near.transport.close()
    world.loop.advance(10)
    assert near.log == ["made"]
    world.server.kill()
    world.loop.advance(10)
    assert near.log[-1] == ("lost", "ConnectionResetError")
    world.loop.close()


def test_buffered_protocols_get_their_bytes_in_their_own_buffer(world: World) -> None:
    got = bytearray()

    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(3)

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            got.extend(self.buffer[:nbytes])

    async def main() -> None:
        await world.loop.create_server(Buffered, None, 7000)
        transport, _ = await world.loop.create_connection(Recorder, "localhost", 7000)
        transport.write(b"abcdefgh")
        await asyncio.sleep(1)

    world.loop.run(main())
    assert bytes(got) == b"abcdefgh"


def test_streams_of_asyncio_work_over_the_network(world: World) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def main() -> bytes:
        await asyncio.start_server(echo, None, 7000)
        reader, writer = await asyncio.open_connection("localhost", 7000)
        writer.write(b"hello\nworld\n")
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    assert world.loop.run(main()) == b"HELLO\nWORLD\n"


def test_the_same_seed_gives_the_same_traffic() -> None:
    def run() -> tuple[int, int, int]:
        world = World(5)
        near, remote = world.connect()
        for _ in range(50):
            near.transport.write(bytes(100))
            world.loop.advance(0.001)
        world.loop.advance(1)
        world.loop.close()
        return remote.reads, world.loop.callbacks, world.loop.digest()

    assert run() == run()
