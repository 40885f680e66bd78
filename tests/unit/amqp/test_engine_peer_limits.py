"""What one peer may make the engine hold: sessions, names, and unfinished deliveries beside the largest one."""

from __future__ import annotations

import pytest
from engine_pair import Pair

from duobus.amqp import Closed, EngineMisuse, SessionEnded, TransferRefused, Transfers
from duobus.amqp.frames import frame
from duobus.amqp.performatives import Attach, Begin, Transfer
from duobus.amqp.session import NAME_MAX
from duobus.codec import Described, ULong


def test_a_session_beyond_the_limit_ends_the_connection() -> None:
    pair = Pair(server={"sessions_max": 3}).open()
    for _ in range(3):
        pair.session()
    pair.client.begin()
    pair.pump()
    (closed,) = pair.take(Closed)
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    with pytest.raises(EngineMisuse):
        pair.client.begin()


def test_limits_raised_after_the_login_hold_from_then_on() -> None:
    pair = Pair(server={"sessions_max": 1}).open()
    pair.session()
    pair.server.settings.sessions_max = 2
    pair.session()
    assert not pair.take(Closed)


def test_a_link_name_beyond_the_limit_ends_its_session() -> None:
    pair = Pair().open()
    begin = Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    attach = Attach(name="n" * (NAME_MAX + 1), handle=0, role=True)
    pair.to_server(frame(0, begin.to_bytes()) + frame(0, attach.to_bytes()))
    (ended,) = pair.take(SessionEnded)
    assert ended.error.condition == "amqp:invalid-field"


def _pieces(handle: int, number: int, count: int, **options: object) -> bytes:
    fields = {"handle": handle, "delivery_id": number, "delivery_tag": b"t", "message_format": 0, "more": True}
    return b"".join(frame(0, Transfer(**fields | options).to_bytes() + b"x" * 1_000) for _ in range(count))


def _end(handle: int, number: int) -> bytes:
    fields = {"handle": handle, "delivery_id": number, "delivery_tag": b"t", "message_format": 0}
    return frame(0, Transfer(**fields).to_bytes())


def test_unfinished_deliveries_beside_the_largest_are_refused_and_the_link_lives() -> None:
    pair = Pair(server={"partial_room": 5_000}).open()
    mine, _ = pair.session()
    (big, big_theirs), (small, small_theirs) = pair.sender(mine, "big"), pair.sender(mine, "small")
    for link in (big_theirs, small_theirs):
        link.grant(10)
    pair.to_server(_pieces(big.handle, 0, 100))
    pair.to_server(_pieces(small.handle, 1, 4))
    assert not pair.take(TransferRefused)
    held = pair.server.partial_bytes
    pair.to_server(_pieces(small.handle, 1, 2))
    # Given up at once, told at its end; the largest goes on.
    assert pair.server.partial_bytes < held - 4_000
    pair.to_server(_end(small.handle, 1) + _end(big.handle, 0))
    (refused,) = pair.take(TransferRefused)
    assert (refused.link, refused.size) == (small_theirs, 6_000)
    (whole,) = pair.take(Transfers)
    assert len(whole.payloads[0]) == 100_000
    assert pair.server.partial_bytes == 0


def test_the_state_of_an_unfinished_delivery_is_kept_in_short() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    theirs.grant(10)
    huge = Described(ULong(0x27), [None, None, {f"k{index}": index for index in range(500)}])
    pair.to_server(_pieces(out.handle, 0, 1, state=Described(ULong(0x34), [b"t" * 1_000, huge])))
    kept = theirs._partial.state
    assert (len(kept.txn_id), kept.outcome) == (64, None)
    pair.to_server(_end(out.handle, 0))
    assert pair.take(Transfers)[0].state == kept
