from __future__ import annotations

from typing import Any

import pytest
from engine_pair import Pair, frames

from duobus.amqp import Closed, Link, LinkDetached, Session, SessionEnded, Transfers
from duobus.amqp.frames import frame
from duobus.codec import Described, Symbol, UInt, ULong, UShort, encode


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


@pytest.fixture
def ends(pair: Pair) -> tuple[Session, Link]:
    mine, _ = pair.session()
    return mine, pair.sender(mine)[0]


def _performative(code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> bytes:
    return frame(channel, encode(Described(ULong(code), list(fields))) + payload)


def _closed_with(pair: Pair, data: bytes, condition: str) -> None:
    events = pair.to_server(data)
    assert isinstance(events[-1], Closed)
    assert events[-1].by_peer is False
    assert events[-1].error is not None
    assert events[-1].error.condition == condition
    assert pair.server.is_closed
    last = frames(pair.server.take_output())[-1]
    assert last[2] == 0x18
    assert last[3][0].value[0] == condition
    assert pair.to_server(data) == []


def _ended_with(pair: Pair, data: bytes, condition: str) -> None:
    events = pair.to_server(data)
    assert [type(event) for event in events] == [SessionEnded]
    assert events[0].error.condition == condition
    last = frames(pair.server.take_output())[-1]
    assert last[2] == 0x17
    assert pair.server.is_open
    # What comes until the peer has seen the end is thrown away.
    assert pair.to_server(data) == []
    assert pair.to_server(_performative(0x17)) == []
    pair.client.forget_session(pair.client.sessions[0])
    pair.session()


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x01\x00\x01\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x02\x01\x00\x00", "amqp:connection:framing-error"),
        (frame(0, b"\x40"), "amqp:decode-error"),
        (frame(0, b"\x00\x53"), "amqp:decode-error"),
        (frame(0, encode(Described(ULong(0x19), []))), "amqp:decode-error"),
        (frame(0, encode(Described(Symbol("amqp:what:list"), []))), "amqp:decode-error"),
        (frame(0, encode(Described([1], []))), "amqp:decode-error"),
        (frame(0, encode(Described(ULong(0x12), {}))), "amqp:decode-error"),
        (_performative(0x12, "name", UInt(5)), "amqp:decode-error"),
        (_performative(0x12, 5, UInt(5), True), "amqp:decode-error"),
        (_performative(0x12, "n", UInt(5), True, None, None, Described(ULong(0x29), [])), "amqp:decode-error"),
        (_performative(0x12, "n", -1, True), "amqp:decode-error"),
        (_performative(0x13, *[UInt(1)] * 12), "amqp:decode-error"),
        (_performative(0x15, True, UInt(1), None, True, Described(ULong(0x99), [])), "amqp:decode-error"),
        (_performative(0x15, True, UInt(1), None, True, "accepted"), "amqp:decode-error"),
        (_performative(0x16, UInt(0), True, None, payload=b"x"), "amqp:decode-error"),
        (_performative(0x16, UInt(0), True, Described(ULong(0x1D), [5])), "amqp:decode-error"),
        (_performative(0x10, "again"), "amqp:illegal-state"),
        (_performative(0x13, UInt(0), UInt(1), UInt(0), UInt(1), channel=9), "amqp:not-allowed"),
        (_performative(0x15, True, UInt(0), UInt(0), True, None, channel=9), "amqp:not-allowed"),
        (_performative(0x11, None, UInt(0), UInt(1), UInt(1)), "amqp:not-allowed"),
        (_performative(0x11, None, UInt(0), UInt(1), UInt(1), channel=256), "amqp:not-allowed"),
        (_performative(0x11, UShort(7), UInt(0), UInt(1), UInt(1), channel=7), "amqp:not-allowed"),
        (_performative(0x12, "name", UInt(256), True), "amqp:not-allowed"),
    ],
)
def test_what_nobody_can_understand_or_allow_closes_the_connection(
    pair: Pair, ends: tuple[Session, Link], data: bytes, condition: str
) -> None:
    _closed_with(pair, data, condition)


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (_performative(0x14, UInt(9), UInt(0), b"t"), "amqp:session:unattached-handle"),
        (_performative(0x13, UInt(0), UInt(1), UInt(0), UInt(1), UInt(9)), "amqp:session:unattached-handle"),
        (_performative(0x16, UInt(9), True), "amqp:session:unattached-handle"),
        (_performative(0x12, "other", UInt(0), False), "amqp:session:handle-in-use"),
        (_performative(0x14, UInt(0), None, b"t"), "amqp:invalid-field"),
    ],
)
def test_what_breaks_a_session_ends_only_the_session(
    pair: Pair, ends: tuple[Session, Link], data: bytes, condition: str
) -> None:
    _ended_with(pair, data, condition)


def test_what_breaks_a_link_detaches_only_the_link(pair: Pair, ends: tuple[Session, Link]) -> None:
    mine, link = ends
    _, push = pair.receiver(mine)
    events = pair.to_server(_performative(0x14, UInt(push.handle), UInt(0), b"t", payload=b"m"))
    assert [(type(event), event.link, event.error.condition) for event in events] == [
        (LinkDetached, push, "amqp:not-allowed")
    ]
    # A second delivery starts in the middle of the first.
    first = _performative(0x14, UInt(0), UInt(0), b"t", UInt(0), False, True, payload=b"a")
    second = _performative(0x14, UInt(0), UInt(1), b"u", UInt(0), False, True, payload=b"b")
    events = pair.to_server(first + second)
    assert [(type(event), event.error.condition) for event in events] == [(LinkDetached, "amqp:not-allowed")]
    assert pair.server.is_open
    assert mine.is_open
    # Frames that were under way are thrown away until the peer's own detach.
    assert pair.to_server(second) == []
    link.detach()
    assert pair.to_server(pair.client.take_output()) == []
    pair.sender(mine, "again")


def test_pyamqp_may_repeat_the_delivery_id_on_every_frame(pair: Pair, ends: tuple[Session, Link]) -> None:
    data = b"".join(
        _performative(0x14, UInt(0), UInt(n // 3), b"t", UInt(0), False, n % 3 < 2, payload=b"%d" % n) for n in range(6)
    )
    events = pair.to_server(data)
    assert [event.payloads for event in events if isinstance(event, Transfers)] == [[b"012", b"345"]]


def test_events_before_a_violation_are_not_lost(pair: Pair, ends: tuple[Session, Link]) -> None:
    _, link = ends
    link.send_run(b"12345678", 0, [b""] * 3, [b"m"] * 3, False)
    events = pair.to_server(pair.client.take_output() + b"\x00\x00\x00\x00garbage!")
    assert [type(event) for event in events] == [Transfers, Closed]
    assert len(events[0].payloads) == 3


def test_a_frame_size_below_the_minimum_of_the_specification_is_refused() -> None:
    pair = Pair(client={"max_frame_size": 511})
    pair.client.open(0)
    pair.pump()
    closed = pair.take(Closed)[0]
    assert closed.error.condition == "amqp:invalid-field"
    assert pair.take(Closed, "client")[0].error.condition == "amqp:invalid-field"


def test_a_frame_before_open_is_an_illegal_state() -> None:
    pair = Pair(server={"require_sasl": False}, client={"mechanisms": ()})
    events = pair.to_server(b"AMQP\x00\x01\x00\x00" + _performative(0x11, None, UInt(0), UInt(1), UInt(1)))
    assert events[-1].error.condition == "amqp:illegal-state"
    assert [item[2] for item in frames(pair.server.take_output())] == [0, 0x10, 0x18]


def test_nothing_is_written_or_reported_after_our_close(pair: Pair, ends: tuple[Session, Link]) -> None:
    mine, link = ends
    theirs = pair.server.sessions[0]
    push = theirs.links[0]
    link.send_one(b"t", b"m", False)
    pair.server.close("amqp:connection:forced", "bye")
    push.settle(0, 0, None)
    push.grant(5)
    push.detach()
    theirs.end()
    assert [item[2] for item in frames(pair.server.take_output())] == [0x18]
    assert pair.to_server(pair.client.take_output()) == []
    assert not push.is_attached
    assert mine.is_open
