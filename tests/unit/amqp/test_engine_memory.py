"""What the engine keeps of messages, and for how long: not longer than a read, and not twice."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from engine_pair import Pair

from duobus.amqp import Connection, Link, Transfers

MIB = 1 << 20


@pytest.mark.parametrize("size", [10, 300_000, 3 * MIB])
def test_once_a_read_is_over_its_messages_are_the_owners_alone(size: int) -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    out.send_one(b"t", bytes(size), False)
    pair.pump()
    (event,) = pair.take(Transfers)
    holders = [owner for owner in gc.get_referrers(event) if isinstance(owner, (Link, Connection))]
    assert holders == []


def test_runs_are_collected_anew_after_each_read() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    for number in range(3):
        out.send_one(b"a", b"%d" % number, False)
        out.send_one(b"b", b"%d" % number, False)
        (event,) = pair.to_server(pair.client.take_output())
        assert (event.first_delivery_id, event.payloads) == (2 * number, [b"%d" % number] * 2)
    assert pair.server.running == []


def _peak(pair: Pair, body: bytes) -> tuple[int, bytes]:
    """Most bytes allocated while the server takes a message in, and the message."""
    out, _ = pair.sender(pair.session()[0])
    out.send_one(b"t", body, False)
    output = pair.client.take_output()
    pieces = [output[pos : pos + 50_000] for pos in range(0, len(output), 50_000)]
    tracemalloc.start()
    try:
        events = []
        for piece in pieces:
            events += pair.server.receive(piece, pair.now_ms)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (event,) = events
    (payload,) = event.payloads
    return peak, payload


@pytest.mark.parametrize("frame_size", [4_096, 65_536])
def test_a_message_of_many_frames_is_put_together_without_a_second_copy(frame_size: int) -> None:
    body = bytes(range(256)) * (16 * MIB // 256)
    pair = Pair(server={"max_frame_size": frame_size, "incoming_window": 100_000}).open()
    peak, payload = _peak(pair, body)
    assert payload == body
    # The buffer grows by an eighth at a time.
    assert peak < 1.25 * len(body)
    assert pair.server.partial_bytes == 0


def test_tiny_frames_cost_what_they_take_until_they_are_gathered() -> None:
    pair = Pair(server={"max_frame_size": 512, "incoming_window": 100_000}).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    body = bytes(range(256)) * (2 * MIB // 256)
    out.send_one(b"t", body, False)
    output = pair.client.take_output()
    held = received = 0
    payload = b""
    for pos in range(0, len(output), 10_000):
        for event in pair.server.receive(output[pos : pos + 10_000], pair.now_ms):
            (payload,) = event.payloads
        received += 10_000
        held = max(held, pair.server.partial_bytes)
        assert pair.server.partial_bytes <= 1.15 * received + 10_000
    assert payload == body
    assert len(body) * 0.95 < held <= len(body)
    assert pair.server.partial_bytes == 0
