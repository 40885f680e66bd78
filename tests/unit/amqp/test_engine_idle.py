from __future__ import annotations

from engine_pair import Pair, frames

from duobus.amqp import Closed, Connection, ConnectionSettings

_HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"


def test_a_heartbeat_leaves_within_half_of_the_peers_time_out() -> None:
    pair = Pair(client={"idle_time_out_ms": 60_000}).open()
    due = pair.server.next_deadline()
    assert due is not None
    assert due - pair.now_ms <= 30_000
    assert pair.server.tick(due - 1) == []
    assert pair.server.take_output() == b""
    assert pair.server.tick(due) == []
    assert pair.server.take_output() == _HEARTBEAT
    following = pair.server.next_deadline()
    assert following is not None
    assert 0 < following - due <= 30_000


def test_other_traffic_puts_the_heartbeat_off() -> None:
    pair = Pair(client={"idle_time_out_ms": 60_000}).open()
    pair.now_ms += 20_000
    pair.session()
    due = pair.server.next_deadline()
    assert due is not None
    assert due > pair.now_ms + 20_000
    assert pair.server.tick(pair.now_ms + 20_000) == []
    assert pair.server.take_output() == b""


def test_heartbeats_keep_the_other_side_from_giving_up() -> None:
    pair = Pair(client={"idle_time_out_ms": 60_000}).open()
    start = pair.now_ms
    while pair.now_ms < start + 1_000_000:
        deadlines = [end.next_deadline() for end in (pair.client, pair.server)]
        pair.now_ms = min(deadline for deadline in deadlines if deadline is not None)
        for end in (pair.client, pair.server):
            assert end.tick(pair.now_ms) == []
        pair.pump()
    assert pair.client.is_open
    assert pair.server.is_open


def test_no_heartbeats_for_a_peer_that_asks_for_none() -> None:
    pair = Pair(client={"idle_time_out_ms": 0}, server={"idle_time_out_ms": 0}).open()
    assert pair.server.next_deadline() is None
    assert pair.server.tick(10**12) == []
    assert pair.server.take_output() == b""


def test_a_peer_that_is_silent_for_twice_the_limit_is_given_up() -> None:
    pair = Pair(server={"idle_time_out_ms": 1_000}).open()
    silent_since = pair.now_ms
    assert pair.server.tick(silent_since + 1_999) == []
    pair.server.take_output()
    events = pair.server.tick(silent_since + 2_000)
    assert isinstance(events[0], Closed)
    assert events[0].by_peer is False
    assert events[0].error is not None
    assert events[0].error.condition == "amqp:connection:forced"
    assert pair.server.is_closed
    written = frames(pair.server.take_output())
    assert [frame[2] for frame in written] == [0x18]
    assert pair.server.next_deadline() is None
    assert pair.server.tick(silent_since + 9_999) == []


def test_any_frame_even_an_empty_one_resets_the_silence() -> None:
    pair = Pair(server={"idle_time_out_ms": 1_000}).open()
    pair.now_ms += 1_500
    pair.to_server(_HEARTBEAT)
    assert pair.server.tick(pair.now_ms + 1_999) == []
    assert pair.server.is_open


def test_a_peer_that_never_answers_our_close_is_given_up() -> None:
    pair = Pair(server={"idle_time_out_ms": 1_000}).open()
    pair.server.close()
    pair.server.take_output()
    events = pair.server.tick(pair.now_ms + 2_000)
    assert [type(event) for event in events] == [Closed]
    assert pair.server.take_output() == b""


def test_before_open_there_are_no_deadlines() -> None:
    server = Connection(ConnectionSettings("s"), acceptor=True)
    assert server.next_deadline() is None
    assert server.tick(10**12) == []


def test_an_absurdly_impatient_peer_does_not_keep_us_busy() -> None:
    pair = Pair(client={"idle_time_out_ms": 1}).open()
    assert pair.server.next_deadline() == pair.now_ms + 250
