from __future__ import annotations

import pytest
from engine_pair import Pair, frames

from duobus.amqp import Link, LinkDetached, LinkFlow, Transfers
from duobus.amqp.frames import flow_frame


def _flow(link: Link, windows: tuple[int, int, int, int], **fields: int | bool) -> bytes:
    """Write a flow as a peer would, with the handle of its own end."""
    values = (link.handle, int(fields.get("count", 0)), int(fields.get("credit", 0)))
    return flow_frame(link.session.channel, windows, values, bool(fields.get("drain", False)))


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


def test_credit_is_set_relative_to_the_delivery_count_and_not_added(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=10)
    for n in range(4):
        push.send_one(b"t%d" % n, b"m", True)
    # The peer has seen two of the four when it asks for five.
    link.session.connection.write(_flow(link, (2, 5000, 0, 5000), count=2, credit=5))
    pair.to_server(pair.client.take_output())
    assert push.credit == 3
    link.session.connection.write(_flow(link, (4, 5000, 0, 5000), count=4, credit=5))
    pair.to_server(pair.client.take_output())
    assert push.credit == 5
    link.session.connection.write(_flow(link, (4, 5000, 0, 5000), count=0, credit=1))
    pair.to_server(pair.client.take_output())
    assert push.credit == 0


def test_a_null_delivery_count_means_the_initial_one(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=10)
    push.send_one(b"t", b"m", True)
    fields = b"\x43" + b"\x52\xff" * 3 + b"\x43\x40\x52\x0a\x40\x42\x42\x40"
    body = b"\x00\x53\x13\xc0" + bytes((len(fields) + 1, 11)) + fields
    assert link.handle == 0
    link.session.connection.write_frame(0, body)
    pair.to_server(pair.client.take_output())
    assert push.credit == 9


def test_a_flow_without_a_change_is_no_event(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=10)
    assert len(pair.take(LinkFlow)) == 1
    link.grant(10)
    pair.pump()
    assert pair.take(LinkFlow) == []
    link.grant(11)
    pair.pump()
    assert [event.link for event in pair.take(LinkFlow)] == [push]


def test_credit_on_a_link_where_the_peer_sends_is_ignored(pair: Pair) -> None:
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=5)
    out.session.connection.write(_flow(out, (0, 5000, 0, 5000), credit=10_000))
    pair.pump()
    assert pair.take(LinkFlow) == []
    assert theirs.credit == 5


def test_a_drain_is_answered_with_all_credit_used_up(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=0)
    link.grant(10, drain=True)
    pair.pump()
    assert pair.take(LinkFlow)[0].link is push
    assert (push.drain, push.credit) == (True, 10)
    push.send_run(b"12345678", 0, [b""] * 3, [b"m"] * 3, False)
    push.drained()
    written = frames(pair.server.take_output())
    assert [frame[2] for frame in written] == [0x14, 0x14, 0x14, 0x13]
    assert written[-1][3] == [0, 5000, 3, 2**31 - 1, push.handle, 10, 0, 0, True, False, None]
    assert (push.drain, push.credit) == (False, 0)


def test_the_draining_side_learns_what_is_left(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=0)
    for n in (10, 4, 0):
        link.grant(n, drain=True)
        pair.pump()
        pair.take(LinkFlow)
        assert push.drain
        push.drained()
        pair.pump()
        assert [event.link for event in pair.take(LinkFlow, "client")] == [link]
        assert link.credit == push.credit == 0
        assert not link.drain
    link.grant(2)
    pair.pump()
    assert push.credit == 2


def test_a_drain_without_credit_is_answered_with_the_same_flow(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=0)
    link.grant(0, drain=True)
    pair.pump()
    assert pair.take(LinkFlow)[0].link is push
    push.drained()
    fields = frames(pair.server.take_output())[0][3]
    assert fields[4:10] == [push.handle, 0, 0, 0, True, False]


def test_an_echo_is_reported_and_answered_with_the_present_state(pair: Pair) -> None:
    mine, _ = pair.session()
    link, push = pair.receiver(mine, credit=5)
    pair.take(LinkFlow)
    raw = bytearray(_flow(link, (0, 5000, 0, 5000), credit=5))
    raw[-2] = 0x41
    link.session.connection.write(bytes(raw))
    pair.pump()
    assert pair.take(LinkFlow)[0].link is push
    assert push.echo
    push.flow()
    assert not push.echo
    assert frames(pair.server.take_output())[0][3][4:10] == [push.handle, 0, 5, 0, False, False]


def test_an_echo_for_the_session_or_a_receiving_link_is_answered_by_the_engine(pair: Pair) -> None:
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=5)
    for raw in (flow_frame(mine.channel, (0, 5000, 0, 5000)), _flow(out, (0, 5000, 0, 5000))):
        echo = bytearray(raw)
        echo[-2] = 0x41
        assert pair.to_server(bytes(echo)) == []
        answer = frames(pair.server.take_output())
        assert [frame[2] for frame in answer] == [0x13]
        assert answer[0][3][9] is False
    assert answer[0][3][4:7] == [theirs.handle, 0, 5]


def test_a_delivery_without_credit_costs_the_link_and_nothing_else(pair: Pair) -> None:
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=3)
    other, _ = pair.sender(mine, "other", credit=3)
    out.credit = 10
    out.send_run(b"12345678", 0, [b""] * 5, [b"m"] * 5, False)
    pair.pump()
    assert sum(len(event.payloads) for event in pair.take(Transfers)) == 3
    detached = pair.take(LinkDetached)
    assert [(event.link, event.error.condition) for event in detached] == [
        (theirs, "amqp:link:transfer-limit-exceeded")
    ]
    assert pair.take(LinkDetached, "client")[0].error.condition == "amqp:link:transfer-limit-exceeded"
    other.send_one(b"t", b"fine", True)
    pair.pump()
    assert pair.take(Transfers)[0].payloads == [b"fine"]


def test_credit_taken_back_may_still_be_used_by_deliveries_under_way(pair: Pair) -> None:
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=3)
    theirs.grant(0)
    out.send_run(b"12345678", 0, [b""] * 3, [b"m"] * 3, False)
    pair.pump()
    assert sum(len(event.payloads) for event in pair.take(Transfers)) == 3
    assert theirs.is_attached
    assert theirs.credit == out.credit == 0


def test_every_flow_to_a_sender_holds_delivery_count_and_credit(pair: Pair) -> None:
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=100)
    out.send_one(b"t", b"m", True)
    pair.pump()
    theirs.grant(200)
    assert frames(pair.server.take_output())[0][3] == [
        1, 5000, 0, 2**31 - 1, theirs.handle, 1, 200, 0, False, False, None,
    ]  # fmt: skip
    assert out.credit == 99
