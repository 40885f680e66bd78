"""Bytes that are no AMQP, or too much of it: the right error or a closed connection, and nobody else suffers."""

from __future__ import annotations

import struct

import pytest
from hostile_kit import ATTACH, CLOSE, DETACH, END, MIB, Bus, Gone, Wire, condition, holds_at_most, in_loop, message

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, disposition_frame, frame
from duobus.amqp.performatives import Begin, Detach, End, Flow
from duobus.codec import Symbol, encode

FRAMING = "amqp:connection:framing-error"
DECODE = "amqp:decode-error"


@pytest.mark.parametrize("size", [0, 7, 65_537, 2**31, 2**32 - 1])
@in_loop
async def test_a_frame_that_lies_about_its_size_ends_the_connection(bus: Bus, size: int) -> None:
    wire = await Wire.known(bus)
    with holds_at_most(MIB):
        wire.write(struct.pack(">IBBH", size, 2, 0, 0) + b"\x00" * 100)
        assert await wire.ended() == FRAMING


@pytest.mark.parametrize("doff", [0, 1, 200])
@in_loop
async def test_a_data_offset_outside_its_frame_ends_the_connection(bus: Bus, doff: int) -> None:
    wire = await Wire.known(bus)
    wire.write(struct.pack(">IBBH", 16, doff, 0, 0) + b"\x00" * 8)
    assert await wire.ended() == FRAMING


@in_loop
async def test_an_open_of_more_than_eight_kilobytes_is_a_framing_error(bus: Bus) -> None:
    wire = await Wire.dial(bus)
    wire.write(SASL_HEADER + struct.pack(">IBBH", 8193, 2, 1, 0))
    await wire.ended()
    assert not [code for _, code, _, _ in wire.frames if code == 0x10]


@pytest.mark.parametrize("header", [b"AMQP\x00\x02\x00\x00", b"AMQP\x01\x01\x00\x00", b"XMPP\x00\x01\x00\x00"])
@in_loop
async def test_an_unknown_protocol_header_is_answered_with_ours(bus: Bus, header: bytes) -> None:
    wire = await Wire.dial(bus)
    wire.write(header)
    assert await wire.reader.read() == SASL_HEADER


@in_loop
async def test_amqp_without_sasl_is_answered_with_the_sasl_header(bus: Bus) -> None:
    wire = await Wire.dial(bus)
    wire.write(AMQP_HEADER)
    assert await wire.reader.read() == SASL_HEADER


@in_loop
async def test_values_nested_too_deep_end_the_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    bomb = b"\x45"
    for _ in range(200):
        bomb = b"\xd0" + struct.pack(">II", len(bomb) + 4, 1) + bomb
    wire.write(frame(0, b"\x00\x53\x11" + bomb))
    assert await wire.ended() == DECODE


@in_loop
async def test_descriptors_described_without_end_end_the_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    wire.write(frame(0, b"\x00" * 60_000))
    assert await wire.ended() == DECODE


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xd0" + struct.pack(">II", 4, 2**32 - 1),
        b"\xd1" + struct.pack(">II", 100, 2**31),
        b"\xf0" + struct.pack(">II", 5, 5_000_000) + b"\x40",
        b"\xb3" + struct.pack(">I", 2**32 - 1),
    ],
    ids=["list", "map", "array-of-nulls", "symbol"],
)
@in_loop
async def test_counts_and_sizes_that_lie_end_the_connection(bus: Bus, bomb: bytes) -> None:
    wire = await Wire.known(bus)
    with holds_at_most(MIB):
        wire.write(frame(0, b"\x00\x53\x12" + bomb))
        assert await wire.ended() == DECODE


@in_loop
async def test_huge_attach_properties_are_forgotten_after_the_attach(bus: Bus) -> None:
    wire = await Wire.known(bus)
    huge = {Symbol(f"key-{index}"): index for index in range(3_000)}
    with holds_at_most(MIB // 2):
        for handle in range(30):
            options = {"properties": huge, "desired_capabilities": ["c"] * 500}
            assert (await wire.link("q", handle, receives=bool(handle % 2), **options))[0]
            wire.frames.clear()
            wire._taken = 0


@in_loop
async def test_a_link_with_a_huge_name_ends_its_session_only(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.begin(1)
    wire.ask_for_link("q", 0, receives=True, channel=1, name="n" * 40_000)
    assert condition(await wire.hear(END), 0) == "amqp:invalid-field"
    await wire.link("q", 0, receives=False)


@in_loop
async def test_a_link_with_a_huge_address_is_refused_alone(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 1, receives=True, target=None)
    wire.ask_for_link("q" * 40_000, 0, receives=True)
    assert (await wire.hear(ATTACH))[5] is None
    assert condition(await wire.hear(DETACH), 2) == "amqp:invalid-field"


@pytest.mark.parametrize("code", [0x00, 0x0F, 0x19, 0x40, 0x70, 0xFF])
@in_loop
async def test_an_unknown_performative_ends_the_connection(bus: Bus, code: int) -> None:
    wire = await Wire.known(bus)
    wire.write(frame(0, b"\x00\x53" + bytes([code]) + b"\x45"))
    assert await wire.ended() == DECODE


@in_loop
async def test_a_performative_with_a_field_of_another_type_ends_the_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    wire.write(frame(0, b"\x00\x53\x11" + encode(["no", "numbers", [], {}])))
    assert await wire.ended() == DECODE


@pytest.mark.parametrize(
    "performative", [Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), Detach(handle=0), End()]
)
@in_loop
async def test_a_frame_on_an_unknown_channel_ends_the_connection(bus: Bus, performative: Flow | Detach | End) -> None:
    wire = await Wire.known(bus)
    wire.say(77, performative)
    assert await wire.ended() == "amqp:not-allowed"


@in_loop
async def test_an_unknown_handle_ends_its_session_and_no_other(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.begin(1)
    wire.transfer(5, 0, message(b"x"), channel=1)
    assert condition(await wire.hear(END), 0) == "amqp:session:unattached-handle"
    await wire.link("q", 0, receives=False)


@in_loop
async def test_a_handle_used_twice_ends_its_session(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    wire.ask_for_link("q", 0, receives=True)
    assert condition(await wire.hear(END), 0) == "amqp:session:handle-in-use"


@in_loop
async def test_a_channel_begun_twice_ends_the_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    wire.say(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert await wire.ended() == "amqp:not-allowed"


@in_loop
async def test_dispositions_of_ids_never_sent_over_half_of_all_numbers_do_nothing(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    await wire.link("q", 1, receives=False)
    for first in (0, 1, 2**31, 2**32 - 1):
        last = (first + 2**31 - 1) & 0xFFFFFFFF
        wire.write(disposition_frame(0, True, first, last, True, b"\x00\x53\x24\x45") * 200)
        wire.write(disposition_frame(0, False, first, last, True, b"\x00\x53\x24\x45") * 200)
    wire.transfer(1, 0, message(b"still served"))
    await wire.hear(0x15)


@in_loop
async def test_a_disposition_that_runs_backwards_ends_its_session(bus: Bus) -> None:
    wire = await Wire.known(bus)
    wire.write(disposition_frame(0, True, 5, 4, True, b"\x00\x53\x24\x45"))
    assert condition(await wire.hear(END), 0) == "amqp:invalid-field"


@in_loop
async def test_garbage_after_the_handshake_never_stops_the_server(bus: Bus) -> None:
    for first in range(0, 256, 16):
        wire = await Wire.known(bus)
        wire.write(bytes((first + index * 37) & 0xFF for index in range(4096)))
        with pytest.raises(Gone):
            await wire.hear(CLOSE, lambda fields: False)
