"""Links, credit, deliveries and requests without measure."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hostile_kit import (
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    FLOW,
    MIB,
    TRANSFER,
    Bus,
    Wire,
    condition,
    holds_at_most,
    in_loop,
    message,
    until,
)

from duobus.amqp.frames import frame
from duobus.amqp.performatives import Detach, Flow
from duobus.codec import build_message
from duobus.gateway.amqp import server
from duobus.gateway.amqp.management import request_node

LIMIT = "amqp:resource-limit-exceeded"


@in_loop
async def test_links_beyond_the_limit_are_refused_and_the_others_live(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "LINKS_MAX", 20)
        wire = await Wire.known(bus)
        for handle in range(20):
            await wire.link("q", handle, receives=True)
        wire.ask_for_link("q", 20, receives=True)
        assert condition(await wire.hear(DETACH), 2) == LIMIT
        wire.credit(3, 1, echo=True)
        await wire.hear(FLOW)


@in_loop
async def test_attach_storms_that_ignore_refusals_end_the_connection(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "LINKS_MAX", 20)
        wire = await Wire.known(bus)
        for handle in range(60):
            wire.ask_for_link("q", handle, receives=True)
        assert await wire.ended() == LIMIT


@in_loop
async def test_an_attach_storm_of_a_stranger_ends_its_connection(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    await wire.begin()
    for handle in range(200):
        wire.ask_for_link("$cbs", handle, receives=True)
    assert await wire.ended() == LIMIT


@in_loop
async def test_a_handle_above_the_maximum_ends_the_connection(bus: Bus) -> None:
    wire = await Wire.known(bus)
    wire.ask_for_link("q", 256, receives=True)
    assert await wire.ended() == "amqp:not-allowed"


@in_loop
async def test_a_stranger_gets_no_link_but_that_for_tokens(bus: Bus) -> None:
    wire = await Wire.stranger(bus)
    await wire.begin()
    for handle, address in enumerate(("q", "Q", "q/$management", "q/$deadletterqueue", "nowhere")):
        wire.ask_for_link(address, handle, receives=True)
        assert condition(await wire.hear(DETACH), 2) == "amqp:unauthorized-access"
    await wire.link("$cbs", 9, receives=True)


@in_loop
async def test_attach_and_detach_in_a_loop_leave_nothing_behind(bus: Bus) -> None:
    wire = await Wire.known(bus)
    gc.collect()
    with holds_at_most(MIB):
        for _ in range(300):
            await wire.link("q", 0, receives=True)
            wire.say(0, Detach(handle=0, closed=True))
            await wire.hear(DETACH)
            wire.frames.clear()
            wire._taken = 0
        # Nothing for the collector, either: a link that is gone is in no circle.
        assert gc.collect() < 300
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 0)
    assert peer.engine.link_count == 0


@in_loop
async def test_a_link_of_the_same_name_is_refused_while_the_first_lives(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True, name="twin")
    wire.ask_for_link("q", 1, receives=True, name="twin")
    assert condition(await wire.hear(DETACH), 2) == "amqp:not-allowed"


@in_loop
async def test_a_transfer_without_credit_ends_its_link_only(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    await wire.link("q", 1, receives=False)
    await wire.link("q", 2, receives=False)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 3)
    for link in peer._endpoints:
        link._allowance = 0
    wire.transfer(0, 0, message(b"x"))
    assert condition(await wire.hear(DETACH), 2) == "amqp:link:transfer-limit-exceeded"
    wire.credit(1, 0, echo=True)
    await wire.hear(FLOW)


@in_loop
async def test_partial_deliveries_never_finished_hold_one_message_and_a_mebibyte(bus: Bus) -> None:
    wire = await Wire.known(bus)
    links = 40
    for handle in range(links):
        await wire.link("q", handle, receives=False)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == links)
    wire.frames.clear()
    wire._taken = 0
    with holds_at_most(2 * MIB):
        for _ in range(4):
            for handle in range(links):
                wire.transfer(handle, handle, b"p" * 50_000, more=True)
            await wire.flush()
        await asyncio.sleep(0.2)
        assert peer.engine.partial_bytes <= MIB + 256 * 1024 + 65_536
    # What was refused is told when it ends, and may be sent again at once.
    for handle in range(links):
        wire.transfer(handle, handle, b"", more=False)
    conditions = set()
    for _ in range(links):
        state = (await wire.hear(DISPOSITION))[4]
        conditions.add(condition(state.value, 0))
    assert "com.microsoft:server-busy" in conditions
    assert peer.engine.partial_bytes == 0


@in_loop
async def test_a_message_larger_than_announced_is_refused_and_not_kept(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    with holds_at_most(MIB):
        for _ in range(100):
            wire.transfer(0, 0, b"p" * 60_000, more=True)
            await wire.flush()
        wire.transfer(0, 0, b"", more=False)
        state = (await wire.hear(DISPOSITION))[4]
    assert condition(state.value, 0) == "amqp:link:message-size-exceeded"


@in_loop
async def test_an_aborted_delivery_frees_what_it_held(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 1)
    for number in range(100):
        wire.transfer(0, number, b"p" * 60_000, more=True)
        wire.transfer(0, number, b"", aborted=True)
    wire.transfer(0, 100, message(b"whole"))
    await wire.hear(DISPOSITION)
    assert peer.engine.partial_bytes == 0


@in_loop
async def test_another_delivery_within_an_unfinished_one_ends_its_link(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    wire.transfer(0, 0, b"p", more=True)
    wire.transfer(0, 1, message(b"x"))
    assert condition(await wire.hear(DETACH), 2) == "amqp:not-allowed"


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, 2**32 - 1])
@in_loop
async def test_absurd_credit_is_taken_and_still_delivers(bus: Bus, credit: int) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    await wire.link("q", 1, receives=False)
    wire.credit(0, credit)
    for number in range(1500):
        wire.transfer(1, number, message(b"x"), settled=True)
    for _ in range(1500):
        await wire.hear(TRANSFER)


@in_loop
async def test_a_flood_of_flows_is_worked_off_and_the_link_goes_on(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=True)
    flow = Flow(
        next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0, delivery_count=0
    )
    flood = b""
    for credit in range(50):
        flow.link_credit = credit % 2
        flood += frame(0, flow.to_bytes())
    with holds_at_most(2 * MIB):
        for _ in range(200):
            wire.write(flood)
            await wire.flush()
        wire.credit(0, 5, echo=True)
        await wire.hear(FLOW)


@in_loop
async def test_a_request_without_a_reply_link_is_taken_and_dropped(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q/$management", 0, receives=False)
    request = build_message(["m"], {"operation": "com.microsoft:peek-message"}, body_value={"message-count": 1})
    for number in range(90):
        wire.transfer(0, number, request)
    await wire.hear(DISPOSITION, lambda fields: fields[2] == 89)
    peer = next(peer for peer in bus.server.amqp.peers if peer.links == 1)
    await until(lambda: not peer._tasks)


@in_loop
async def test_replies_that_get_no_credit_end_the_reply_link(bus: Bus) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_node, "REPLY_BYTES_MAX", 5_000)
        wire = await Wire.known(bus)
        await wire.link("q/$management", 0, receives=True)
        await wire.link("q/$management", 1, receives=False)
        request = build_message(["m" * 300], {"operation": "nothing"}, body_value={})
        for number in range(60):
            wire.transfer(1, number, request)
        assert condition(await wire.hear(DETACH), 2) == LIMIT


@in_loop
async def test_a_request_larger_than_announced_is_rejected(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("q/$management", 0, receives=False)
    with holds_at_most(2 * MIB):
        for _ in range(40):
            wire.transfer(0, 0, b"p" * 60_000, more=True)
            await wire.flush()
        wire.transfer(0, 0, b"", more=False)
        state = (await wire.hear(DISPOSITION))[4]
    assert condition(state.value, 0) == "amqp:link:message-size-exceeded"


@in_loop
async def test_requests_that_are_no_messages_are_rejected_one_by_one(bus: Bus) -> None:
    wire = await Wire.known(bus)
    await wire.link("$cbs", 0, receives=False)
    for number in range(20):
        wire.transfer(0, number, bytes([number]) * 50)
        state = (await wire.hear(DISPOSITION))[4]
        assert condition(state.value, 0) in ("amqp:decode-error", "amqp:invalid-field")


@in_loop
async def test_a_close_within_everything_is_answered_with_a_close(bus: Bus) -> None:
    from duobus.amqp.performatives import Close

    wire = await Wire.known(bus)
    await wire.link("q", 0, receives=False)
    wire.transfer(0, 0, b"p" * 1000, more=True)
    wire.say(0, Close())
    wire.ask_for_link("q", 1, receives=True)
    assert await wire.ended() is None
    assert [code for _, code, _, _ in wire.frames].count(CLOSE) == 1
    assert [code for _, code, _, _ in wire.frames].count(ATTACH) == 1
