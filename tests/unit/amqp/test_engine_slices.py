"""What one call of ``receive`` may cost is bounded: the frames beyond it wait for the next call, in their order."""

from __future__ import annotations

from engine_pair import Pair

from duobus.amqp import AttachReceived, Closed, Connection, LinkDetached
from duobus.amqp.frames import flow_frame, frame
from duobus.amqp.performatives import Attach, Close, Detach, Source, Target
from duobus.amqp.session import WORK_OF_LIFE

FLOW = flow_frame(0, (0, 100, 0, 100))


def limited(work_max: int) -> Pair:
    pair = Pair(server={"work_max": work_max}).open()
    pair.client.begin()
    pair.pump()
    assert not pair.server.is_cut
    return pair


def attach(handle: int) -> bytes:
    made = Attach(name=f"l{handle}", handle=handle, role=True, source=Source(address="q"), target=Target(address="m"))
    return frame(0, made.to_bytes())


def detach(handle: int) -> bytes:
    return frame(0, Detach(handle=handle, closed=True).to_bytes())


def calls_needed(server: Connection, data: bytes) -> int:
    server.receive(data, 0)
    calls = 1
    while server.is_cut:
        server.receive(b"", 0)
        calls += 1
    return calls


def test_flows_beyond_the_bound_wait_for_the_next_call() -> None:
    assert calls_needed(limited(10).server, FLOW * 10) == 1
    assert calls_needed(limited(10).server, FLOW * 11) == 2
    assert calls_needed(limited(10).server, FLOW * 100) == 10


def test_without_a_bound_everything_is_taken_at_once() -> None:
    pair = Pair().open()
    pair.client.begin()
    pair.pump()
    assert calls_needed(pair.server, FLOW * 5000) == 1


def test_what_begins_or_ends_something_counts_more() -> None:
    pair = limited(2 * WORK_OF_LIFE)
    found = []
    events = pair.server.receive(b"".join(attach(n) + detach(n) for n in range(3)), 0)
    while events:
        found.append([type(event) for event in events])
        events = pair.server.receive(b"", 0)
    assert found == [[AttachReceived, LinkDetached]] * 3


def test_what_comes_meanwhile_stands_behind_what_waits() -> None:
    server = limited(1).server
    names = [event.link.name for event in server.receive(attach(0) + attach(1), 0)]
    names += [event.link.name for event in server.receive(attach(2), 0)]
    names += [event.link.name for event in server.receive(b"", 0)]
    assert names == ["l0", "l1", "l2"]
    assert not server.is_cut


def test_a_frame_that_is_not_whole_is_not_waited_for_with_calls() -> None:
    server = limited(1).server
    server.receive(FLOW + FLOW[:-1], 0)
    while server.is_cut:
        server.receive(b"", 0)
    assert server.receive(FLOW[-1:], 0) == []
    assert not server.is_cut


def test_the_end_of_the_connection_ends_the_waiting() -> None:
    server = limited(1).server
    events = server.receive(frame(0, Close().to_bytes()) + FLOW * 5, 0)
    assert isinstance(events[-1], Closed)
    assert not server.is_cut
    server = limited(1).server
    events = server.receive(b"\xff" * 16 + FLOW * 5, 0)
    assert isinstance(events[-1], Closed)
    assert not server.is_cut


def test_frames_that_follow_an_open_wait_until_it_is_answered() -> None:
    pair = Pair()
    pair.client.open(0, "namespace")
    data = pair.client.take_output()
    events = pair.server.receive(data, 0)
    assert not pair.server.is_cut
    assert events
    pair.server.sasl_outcome(True)
    assert pair.server.is_cut
    pair.server.receive(b"", 0)
    pair.server.open(0)
    assert not pair.server.is_cut
