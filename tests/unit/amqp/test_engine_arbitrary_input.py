from __future__ import annotations

from typing import Any

import pytest
from engine_pair import Pair, frames
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.amqp import (
    ACCEPTED,
    Closed,
    Connection,
    ConnectionSettings,
    Modified,
    OpenReceived,
    SaslInitReceived,
    Transfers,
)
from duobus.amqp.frames import frame, read_flow_fields
from duobus.amqp.performatives import Flow
from duobus.codec import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort, encode

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 3).map(UInt),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=5),
    st.text(st.characters(max_codepoint=127), max_size=5).map(Symbol),
    st.binary(max_size=20),
    st.just(Timestamp(5)),
    st.just(Array(Symbol, [Symbol("a")])),
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(
            Described, st.sampled_from([ULong(code) for code in (0x1D, *range(0x23, 0x2A), 0x30, 0x33, 0x34)]), inner
        ),
    ),
    max_leaves=6,
)
_likely = {
    0x11: st.tuples(st.none(), st.just(UInt(0)), st.just(UInt(9)), st.just(UInt(9))),
    0x12: st.tuples(st.text(max_size=1), st.integers(0, 2).map(UInt), st.booleans()),
    0x13: st.tuples(
        st.just(UInt(0)), st.just(UInt(9)), st.just(UInt(0)), st.just(UInt(9)), st.integers(0, 2).map(UInt),
        st.just(UInt(0)), st.integers(0, 9).map(UInt), st.none(), st.booleans(), st.booleans(),
    ),
    0x14: st.tuples(
        st.integers(0, 2).map(UInt), st.integers(0, 3).map(UInt), st.just(b"t"), st.just(UInt(0)), st.booleans(),
        st.booleans(),
    ),
    0x15: st.tuples(st.booleans(), st.integers(0, 3).map(UInt), st.integers(0, 5).map(UInt), st.booleans()),
    0x16: st.tuples(st.integers(0, 2).map(UInt), st.booleans()),
    0x17: st.just(()),
}  # fmt: skip


@st.composite
def _frame(draw: Any) -> bytes:
    code = draw(st.sampled_from([*_likely, *_likely, 0x10, 0x18, 0x19, 0x41]))
    if code in _likely and draw(st.integers(0, 4)):
        fields = list(draw(_likely[code]))
    else:
        fields = draw(st.lists(_anything, max_size=15))
    body = bytearray(encode(Described(ULong(code), fields)) + (draw(st.binary(max_size=9)) if code == 0x14 else b""))
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return frame(draw(st.sampled_from([0, 0, 0, 1, 300])), bytes(body), draw(st.sampled_from([0] * 30 + [1, 2])))


def _opened() -> Pair:
    pair = Pair(server={"max_frame_size": 4_096, "partial_bytes_max": 500, "links_max": 5, "incoming_window": 10})
    pair.client.open(0)
    pair.pump()
    pair.server.take_output()
    return pair


@settings(max_examples=300, deadline=None)
@given(st.lists(_frame(), max_size=25), st.integers(1, 300))
def test_any_frames_end_in_events_or_in_our_close(wire: list[bytes], cut: int) -> None:
    pair = _opened()
    data = b"".join(wire)
    events = []
    for start in range(0, len(data), cut):
        found = pair.to_server(data[start : start + cut])
        for event in found:
            link = getattr(event, "link", None)
            if type(event).__name__ == "AttachReceived" and link.name:
                link.accept(max_message_size=20)
                link.grant(3)
            elif type(event).__name__ == "LinkFlow":
                link.drained()
        events += found
    server = pair.server
    assert server.partial_bytes <= 500 + 4_096
    assert server.link_count <= 5 + 256
    closed = [event for event in events if isinstance(event, Closed)]
    assert len(closed) == server.is_closed
    if closed:
        assert events[-1] is closed[0]
        assert frames(server.take_output())[-1][2] == 0x18
        assert server.link_count == 0
        assert server.partial_bytes == 0


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 4), st.booleans())
def test_arbitrary_bytes_at_any_phase_raise_nothing(noise: bytes, phase: int, require_sasl: bool) -> None:
    server = Connection(ConnectionSettings("s", require_sasl=require_sasl), acceptor=True)
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    start = client.take_output()
    ends = [0, 8, start.index(b"AMQP\x00"), start.index(b"AMQP\x00") + 8, len(start)]
    events = server.receive(start[: ends[phase]] + noise, 0)
    while events and isinstance(events[-1], (SaslInitReceived, OpenReceived)):
        if isinstance(events[-1], SaslInitReceived):
            server.sasl_outcome(True)
        else:
            server.open(0)
        events = server.receive(b"", 0)
    server.take_output()
    server.tick(10**9)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_a_client_survives_whatever_a_server_sends(noise: bytes) -> None:
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    client.begin()
    client.receive(b"AMQP\x03\x01\x00\x00" + noise, 0)
    other = Pair().open().client
    other.receive(noise, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_way_the_bytes_are_cut_never_changes_what_arrives(data: st.DataObject) -> None:
    pair = Pair(server={"max_frame_size": 700}).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine, credit=1_000)
    steps = data.draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2_000), st.booleans()), max_size=8))
    expected = []
    ranges = []
    for step, (n, size, settled) in enumerate(steps):
        bodies = [b"%d" % k * (size // (k + 1)) for k in range(n)]
        out.send_run(b"12345678", 0, [b""] * n, bodies, settled)
        state = ACCEPTED if settled else Modified(True, False, None)
        mine.disposition(True, step * 2, step * 2 + n % 2, state, settled)
        expected += bodies
        ranges += list(range(step * 2, step * 2 + n % 2 + 1))
    wire = pair.client.take_output()
    cut = data.draw(st.integers(1, 2_000))
    events: list[Any] = []
    for start in range(0, len(wire), cut):
        events += pair.to_server(wire[start : start + cut])
    assert [body for event in events if isinstance(event, Transfers) for body in event.payloads] == expected
    told = [event.ranges for event in events if type(event).__name__ == "Dispositions"]
    assert [n for part in told for first, last, _, _ in part for n in range(first, last + 1)] == ranges


@pytest.mark.parametrize("size", [100, 70_000])
def test_a_slow_trickle_of_bytes_takes_linear_time_and_room(size: int) -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    out.send_one(b"t", b"x" * size, False)
    wire = pair.client.take_output()
    events = []
    for n in range(len(wire)):
        events += pair.to_server(wire[n : n + 1])
        assert len(pair.server._pending) <= 65_536
    assert len(events) == 1


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.integers(0, 2**32 - 1).map(UInt), st.booleans(), st.text(max_size=2)), max_size=12
    ),
    st.data(),
)
def test_the_quick_reading_of_a_flow_agrees_with_the_thorough_one(fields: list[Any], data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        numbers = st.one_of(st.none(), st.integers(0, 999).map(UInt))
        flags = st.one_of(st.none(), st.booleans())
        fields = [*data.draw(st.lists(numbers, min_size=8, max_size=8)), data.draw(flags), data.draw(flags), None]
    wire = frame(3, encode(Described(ULong(0x13), fields)))
    quick = read_flow_fields(wire, 0, len(wire))
    try:
        thorough: Flow | None = Flow.read(fields)
    except ValueError:
        thorough = None
    if quick is not None:
        assert Flow.of(quick) == thorough
    for cut in range(8, len(wire)):
        assert read_flow_fields(wire[:cut], 0, cut) is None
