"""Peers that take their time, or say nothing: they are given up, and what they held is free again."""

from __future__ import annotations

import asyncio

import pytest
from hostile_kit import CLOSE, FLOW, MIB, TRANSFER, Bus, Wire, condition, holds_at_most, in_loop, message, until

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Begin, End, Open, SaslInit
from duobus.gateway import listener
from duobus.gateway import protocol_switch as switch
from duobus.gateway.amqp import server

UNAUTHORIZED = "amqp:unauthorized-access"
INIT = frame(0, SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="localhost").to_bytes(), TYPE_SASL)


@in_loop
async def test_a_peer_that_says_nothing_at_all_is_dropped(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "FIRST_BYTE_TIMEOUT_S", 0.1)
        wire = await Wire.dial(bus)
        assert await wire.reader.read() == b""


@in_loop
async def test_a_peer_that_stops_within_the_first_header_is_dropped(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "FIRST_BYTES_S", 0.1)
        wire = await Wire.dial(bus)
        wire.write(b"AM")
        assert await wire.ended() is None


@pytest.mark.parametrize("sent", [SASL_HEADER, SASL_HEADER + INIT, SASL_HEADER + INIT + AMQP_HEADER])
@in_loop
async def test_a_handshake_that_is_not_done_in_ten_seconds_is_dropped(bus: Bus, sent: bytes) -> None:
    wire = await Wire.dial(bus)
    wire.write(sent)
    await until(lambda: len(bus.server.amqp.peers) == 2)
    await asyncio.sleep(0.05)
    await bus.push(9)
    assert len(bus.server.amqp.peers) == 2
    await bus.push(2)
    assert await wire.ended() is None
    assert len(bus.server.amqp.peers) == 1


@in_loop
async def test_one_byte_a_second_does_not_prolong_the_handshake(bus: Bus) -> None:
    wire = await Wire.dial(bus)
    opening = SASL_HEADER + INIT + AMQP_HEADER + frame(0, Open(container_id="slow").to_bytes())
    wire.write(opening[:8])
    await until(lambda: len(bus.server.amqp.peers) == 2)
    sent = 8
    while len(bus.server.amqp.peers) == 2:
        wire.write(opening[sent : sent + 1])
        sent += 1
        await bus.push(1)
    assert sent <= 8 + 12 < len(opening)


@in_loop
async def test_a_connection_without_a_token_is_closed_after_twenty_seconds(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    await wire.begin()
    await wire.link("$cbs", 0, receives=True)
    await bus.push(19)
    wire.say(1, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    await wire.hear(0x11)
    await bus.push(2)
    assert condition(await wire.hear(CLOSE), 0) == UNAUTHORIZED
    # It never answers the close, and is dropped all the same.
    await bus.push(1)
    await bus.push(6)
    await wire.ended()
    assert len(bus.server.amqp.peers) == 1


@in_loop
async def test_a_login_counts_as_a_token_and_is_not_closed(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await bus.push(60)
    await wire.link("q", 0, receives=True)


@in_loop
async def test_a_half_open_connection_is_given_up_after_two_idle_time_outs(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    await bus.push(239)
    assert len(bus.server.amqp.peers) == 2
    for other in bus.wires[:1]:
        other.write(b"\x00\x00\x00\x08\x02\x00\x00\x00")
    await asyncio.sleep(0.05)
    await bus.push(2)
    assert await wire.ended() == "amqp:connection:forced"


@in_loop
async def test_a_half_closed_connection_is_treated_as_gone(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    wire.writer.write_eof()
    await wire.ended()
    await until(lambda: len(bus.server.amqp.peers) == 1)


@in_loop
async def test_a_peer_that_never_reads_is_not_read_from_and_dropped_at_last(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 1)
    # Every echo is answered with a flow that nobody reads.
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    echo = frame(0, _echo())
    while peer.can_write:
        wire.write(echo * 500)
        await asyncio.sleep(0)
    wire.write(echo * 20_000)
    await asyncio.sleep(0.1)
    assert peer.engine.output_size + peer._transport.get_write_buffer_size() < MIB + 65_536  # type: ignore[union-attr]
    await bus.push(220)
    for other in bus.wires[:1]:
        other.write(b"\x00\x00\x00\x08\x02\x00\x00\x00")
    await asyncio.sleep(0.05)
    await bus.push(25)
    await bus.push(6)
    assert peer not in bus.server.amqp.peers


def _echo() -> bytes:
    from duobus.amqp.performatives import Flow

    return Flow(next_incoming_id=0, incoming_window=5, next_outgoing_id=0, outgoing_window=5, echo=True).to_bytes()


@in_loop
async def test_a_receiver_with_absurd_credit_that_reads_nothing_holds_little(bus: Bus) -> None:
    await _fill(bus, 900, size=20_000)
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 1)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.credit(0, 2**32 - 1, window=2**32 - 1)
    await until(lambda: not peer.can_write)
    await asyncio.sleep(0.1)
    held = peer.engine.output_size + peer._transport.get_write_buffer_size()  # type: ignore[union-attr]
    assert held < MIB + 300_000
    # The rest is there for others.
    other = await Wire.known(bus)
    await other.link("q", 0, receives=True)
    other.credit(0, 1)
    await other.hear(TRANSFER)


@in_loop
async def test_messages_never_settled_come_back_when_their_locks_expire(bus: Bus) -> None:
    await _fill(bus, 1)
    hoarder = await Wire.known(bus)
    await hoarder.link("q", 0, receives=True)
    hoarder.credit(0, 1000)
    first = await hoarder.hear_all(TRANSFER, lambda fields: True)
    other = await Wire.known(bus)
    await other.link("q", 0, receives=True)
    other.credit(0, 1)
    hoarder.credit(0, 0, echo=True)
    await hoarder.hear(FLOW)
    await bus.push(61)
    again = await other.hear_all(TRANSFER, lambda fields: True)
    assert again[3][-100:] == first[3][-100:]


async def _fill(bus: Bus, number: int, size: int = 1500) -> None:
    sender = await Wire.known(bus)
    await sender.link("q", 0, receives=False)
    await sender.hear(FLOW)
    for index in range(number):
        sender.transfer(0, index, message(b"m" * size))
        if index % 500 == 499:
            await sender.flush()
            await sender.hear(0x15, lambda fields, last=index: fields[2] == last)
    if number % 500:
        await sender.hear(0x15)
    sender.drop()


@in_loop
async def test_strangers_beyond_the_limit_make_the_oldest_of_them_go(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "STRANGERS_MAX", 5)
        wires = [await Wire.stranger(bus) for _ in range(9)]
        for wire in wires[:4]:
            await wire.ended()
        assert len(bus.server.amqp.peers) == 6
        await wires[-1].begin()


@in_loop
async def test_a_session_storm_of_a_stranger_ends_its_connection(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    for channel in range(200):
        wire.say(channel, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert await wire.ended() == "amqp:resource-limit-exceeded"


@in_loop
async def test_sessions_begun_and_ended_without_end_leave_nothing_behind(bus: Bus) -> None:
    wire = await Wire.known(bus)
    begin = frame(1, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).to_bytes())
    end = frame(1, End().to_bytes())
    with holds_at_most(MIB):
        for _ in range(40):
            wire.write((begin + end) * 50)
            await wire.flush()
            for _ in range(50):
                await wire.hear(0x17)
            wire.frames.clear()
            wire._taken = 0
