"""Bursts are cut: what one peer writes at once is worked off in slices, and others are served between them."""

from __future__ import annotations

import asyncio

import pytest
from hostile_kit import ATTACH, TRANSFER, Bus, Wire, in_loop, message, until

from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, flow_frame, frame
from duobus.amqp.performatives import Attach, Begin, Detach, Open, SaslInit, Source, Target
from duobus.gateway.amqp import pacing as slices
from duobus.gateway.amqp.pacing import ASKED_FIRST, ASKED_MAX, RELEASED_MAX, SlowStart
from duobus.gateway.amqp.peer import OUTPUT_BYTES_FIRST, Peer

#: Long enough for a look at what stands between two slices.
SLOWLY_S = 0.02


def peer_of(bus: Bus, links: int) -> Peer:
    return next(peer for peer in bus.server.amqp.peers if peer.links == links)


def attach(handle: int, name: str) -> bytes:
    made = Attach(name=name, handle=handle, role=True, source=Source(address="q"), target=Target(address="me"))
    return frame(0, made.to_bytes())


async def fill(bus: Bus, number: int, size: int = 10) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    for start in range(0, number, 500):
        for index in range(start, min(number, start + 500)):
            wire.transfer(0, index, message(bytes(size)), settled=True)
        await wire.flush()
        await asyncio.sleep(0)
    handle = bus.server.unit.namespace("ns").queues["q"].fragments[0]
    await until(lambda: handle.fragment is not None and handle.fragment.available(0, 0) == number)
    wire.drop()


@in_loop
async def test_links_attached_at_once_are_attached_one_after_the_other(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duobus.gateway.amqp.peer.REST_S", SLOWLY_S)
        wire = await Wire.known(bus)
        peer = next(peer for peer in bus.server.amqp.peers if peer.links == 0)
        wire.write(b"".join(attach(number, f"n{number}") for number in range(20)))
        await until(lambda: peer.links > 0)
        assert peer.links <= 2
        # Who writes on meanwhile is not read from.
        await until(lambda: peer.links == 3)
        assert peer._paused
        for number in range(20):
            assert (await wire.hear(ATTACH))[0] == f"n{number}"
        await until(lambda: not peer._paused)
        await wire.link("q", 20, receives=True)


@in_loop
async def test_everything_of_a_client_that_waits_for_no_answer_is_done_in_order(bus: Bus) -> None:
    wire = await Wire.dial(bus)
    init = SaslInit(mechanism="PLAIN", initial_response=_login(), hostname="localhost")
    wire.write(
        SASL_HEADER
        + frame(0, init.to_bytes(), TYPE_SASL)
        + AMQP_HEADER
        + frame(0, Open(container_id="c", hostname="localhost", max_frame_size=65536).to_bytes())
        + frame(0, Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5).to_bytes())
        + b"".join(attach(0, f"n{n}") + frame(0, Detach(handle=0, closed=True).to_bytes()) for n in range(30))
        + flow_frame(0, (0, 100, 0, 100)) * 100
        + attach(1, "last")
    )
    await wire.hear(ATTACH, lambda fields: fields[0] == "last")
    assert [fields[0] for _, code, fields, _ in wire.frames if code == ATTACH] == [
        *(f"n{n}" for n in range(30)),
        "last",
    ]


def _login() -> bytes:
    from duobus.server.settings import EMULATOR_KEY

    return f"\0RootManageSharedAccessKey\0{EMULATOR_KEY}".encode()


@in_loop
async def test_what_is_left_of_a_burst_goes_with_its_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 0)
    wire.write(b"".join(attach(number, f"n{number}") for number in range(200)))
    await until(lambda: peer.links > 5)
    wire.drop()
    # It reads no further while it is behind, so that it learns of the end when it has caught up.
    await until(lambda: peer.is_gone)
    schedulers = bus.server.unit.namespace("ns").queues["q"].schedulers.values()
    await until(lambda: not any(scheduler.receivers for scheduler in schedulers))


@in_loop
async def test_a_receiver_is_given_little_until_it_has_shown_that_it_reads(bus: Bus) -> None:
    await fill(bus, 1000)
    fragment = bus.server.unit.namespace("ns").queues["q"].fragments[0].fragment
    assert fragment is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duobus.gateway.amqp.links.outgoing_link.REST_S", SLOWLY_S)
        wire = await Wire.known(bus)
        await wire.link("q", 0, receives=True)
        wire.credit(0, 500)
        await wire.hear(TRANSFER)
        assert len(fragment.sources[0].locks) == ASKED_FIRST
        # All that it has credit for comes to it, though it says nothing more.
        await until(lambda: len(fragment.sources[0].locks) == 500)
    wire.drop()
    await until(lambda: fragment.available(0, 0) == 1000)


def test_the_pace_doubles_with_what_is_heard_after_something_was_written() -> None:
    pace = SlowStart()
    assert not pace.on_progress()
    assert pace.asked == ASKED_FIRST
    full = []
    for _ in range(6):
        pace.wrote()
        full.append(pace.on_progress())
        assert not pace.on_progress()
    assert full == [False] * 4 + [True, False]
    assert pace.asked == ASKED_MAX
    assert pace.is_full


@in_loop
async def test_little_is_made_for_a_peer_that_never_reads(bus: Bus) -> None:
    await fill(bus, 3000, size=2000)
    fragment = bus.server.unit.namespace("ns").queues["q"].fragments[0].fragment
    assert fragment is not None
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    peer = peer_of(bus, 1)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.credit(0, 2**31 - 1, window=2**31 - 1)
    await until(lambda: not peer.can_write)
    await asyncio.sleep(0.05)
    assert peer._transport is not None
    assert peer.engine.output_size + peer._transport.get_write_buffer_size() < 2 * OUTPUT_BYTES_FIRST + 200_000
    locked = len(fragment.sources[0].locks)
    wire.drop()
    await until(lambda: peer.is_gone)
    # In slices, all the same soon.
    await until(lambda: not fragment.sources[0].locks)
    assert fragment.available(0, 0) == 3000
    assert locked < 3000


@in_loop
async def test_a_lost_connection_gives_back_a_slice_at_a_time(bus: Bus) -> None:
    await fill(bus, 500)
    fragment = bus.server.unit.namespace("ns").queues["q"].fragments[0].fragment
    assert fragment is not None
    locks = fragment.sources[0].locks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "REST_S", SLOWLY_S)
        wire = await Wire.known(bus)
        await wire.link("q", 0, receives=True)
        wire.credit(0, 500)
        await until(lambda: len(locks) == 500)
        wire.drop()
        seen = set()
        while locks:
            seen.add(len(locks))
            await asyncio.sleep(0.002)
    assert len(seen) >= 4
    assert max(a - b for a, b in zip(sorted(seen)[1:], sorted(seen), strict=False)) <= 2 * RELEASED_MAX
    assert fragment.available(0, 0) == 500


@in_loop
async def test_a_neighbour_is_served_in_the_middle_of_a_burst(bus: Bus) -> None:
    neighbour = await Wire.known(bus)
    await neighbour.round_trip()
    wire = await Wire.known(bus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("duobus.gateway.amqp.peer.REST_S", SLOWLY_S)
        peer = next(peer for peer in bus.server.amqp.peers if peer.links == 0)
        wire.write(b"".join(attach(number, f"n{number}") for number in range(100)))
        await until(lambda: peer.links > 0)
        await neighbour.round_trip()
        assert peer.links < 100
