from __future__ import annotations

import pytest
from engine_pair import Pair, frames

from duobus.amqp import (
    ACCEPTED,
    EngineMisuse,
    LinkDetached,
    SessionFlow,
    TransactionalState,
    TransferRefused,
    Transfers,
)
from duobus.codec import BATCH_FORMAT, encode


def _send(link: object, payloads: list[bytes], settled: bool = False, first: int = 1) -> int:
    return link.send_run(b"prefix..", first, [b""] * len(payloads), payloads, settled)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settled", [True, False])
def test_a_run_arrives_whole_and_in_order_in_both_directions(seed: int, settled: bool) -> None:
    pair = Pair(seed).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    _, push = pair.receiver(mine)
    bodies = [b"%d" % n * n for n in range(60)]
    heads = [b"h%d-" % n for n in range(60)]
    assert _send(out, bodies, settled) == 0
    assert push.send_run(b"12345678", 2**56 - 60, heads, bodies, settled) == 0
    pair.pump()
    for side, expected in (("server", bodies), ("client", [h + b for h, b in zip(heads, bodies, strict=True)])):
        events = pair.take(Transfers, side)
        assert [body for event in events for body in event.payloads] == expected
        assert all(event.settled is settled and event.message_format == 0 for event in events)


def test_one_read_gives_one_event_for_a_run_of_deliveries() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    _send(out, [b"a"] * 40)
    _send(out, [b"b"] * 10)
    _send(out, [b"c"] * 5, settled=True)
    events = pair.to_server(pair.client.take_output())
    assert [(event.first_delivery_id, len(event.payloads), event.settled) for event in events] == [
        (0, 50, False),
        (50, 5, True),
    ]
    assert theirs.credit == 45


def test_runs_of_links_in_different_sessions_are_collected_although_they_alternate() -> None:
    pair = Pair().open()
    links = [pair.sender(pair.session()[0], f"l{n}") for n in range(3)]
    for round_no in range(10):
        for mine, _ in links:
            _send(mine, [b"%d" % round_no])
    events = pair.to_server(pair.client.take_output())
    assert [event.link for event in events] == [theirs for _, theirs in links]
    assert all(event.payloads == [b"%d" % n for n in range(10)] for event in events)
    assert all(theirs.credit == 90 for _, theirs in links)


def test_delivery_ids_are_contiguous_over_all_links_of_a_session() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    ends = [pair.receiver(mine, f"r{n}")[1] for n in range(4)]
    firsts = [_send(end, [b"x", b"y" * 70_000 if n == 2 else b"y"]) for n, end in enumerate(ends)]
    assert firsts == [0, 2, 4, 6]
    # The message format stands in the first frame of a delivery.
    ids = [frame[3][1] for frame in frames(pair.server.take_output()) if frame[2] == 0x14 and frame[3][3] is not None]
    assert ids == list(range(8))


def test_each_frame_of_a_large_delivery_names_its_tag() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine)
    push.send_run(b"ABCDEFGH", 1, [b""], [b"x" * 200_000], False)
    tags = [frame[3][2] for frame in frames(pair.server.take_output()) if frame[2] == 0x14]
    assert tags == [b"ABCDEFGH" + (1).to_bytes(8, "big")] * 4


def test_delivery_ids_wrap_at_thirty_two_bits() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    mine.next_delivery_id = 2**32 - 3
    assert _send(out, [b"%d" % n for n in range(6)]) == 2**32 - 3
    events = pair.to_server(pair.client.take_output())
    assert [(event.first_delivery_id, len(event.payloads)) for event in events] == [(2**32 - 3, 6)]
    assert theirs.credit == 94
    assert mine.next_delivery_id == 3


def test_tags_are_a_prefix_and_a_counter_of_sixteen_bytes() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine)
    push.send_run(b"ABCDEFGH", 258, [b"", b""], [b"x", b"y"], False)
    tags = [frame[3][2] for frame in frames(pair.server.take_output()) if frame[2] == 0x14]
    assert tags == [b"ABCDEFGH" + bytes((0, 0, 0, 0, 0, 0, 2, 2)), b"ABCDEFGH" + bytes((0, 0, 0, 0, 0, 0, 2, 3))]


def test_tags_of_all_frames_of_a_link_differ_after_a_lossy_decoding() -> None:
    pair = Pair(client={"max_frame_size": 512}).open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine, credit=1000)
    for first in range(1, 601, 200):
        # Every tenth goes in several frames, which is another way through the engine.
        bodies = [b"x" * (1000 if n % 10 == 9 else 1) for n in range(200)]
        push.send_run(b"\x80\x81\xfe\xff\xe4\xb8\xf0\x9f", 2**20 - 300 + first, [b""] * 200, bodies, False)
    written = [frame for frame in frames(pair.server.take_output()) if frame[2] == 0x14 and frame[3][3] is not None]
    assert len({frame[3][2].decode("utf-8", "replace") for frame in written}) == len(written) == 600


def test_the_tag_of_a_settled_delivery_is_there_and_empty() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine)
    push.send_run(b"ABCDEFGH", 258, [b"h"] * 2, [b"x", b"y" * 100_000], True)
    fields = [frame[3] for frame in frames(pair.server.take_output()) if frame[2] == 0x14]
    assert [field[2] for field in fields] == [b"", b"", b""]
    assert all(field[4] is True for field in fields)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [65_400, 65_536, 70_000, 300_000])
def test_large_messages_cross_in_several_frames_both_ways(seed: int, size: int) -> None:
    pair = Pair(seed).open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    _, push = pair.receiver(mine)
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    _send(out, [b"small", body, b"after"])
    push.send_run(b"12345678", 1, [b"head", b"head"], [body, b""], False)
    pair.pump()
    assert [payload for event in pair.take(Transfers) for payload in event.payloads] == [b"small", body, b"after"]
    assert [payload for event in pair.take(Transfers, "client") for payload in event.payloads] == [
        b"head" + body,
        b"head",
    ]
    assert theirs.credit == 97
    assert pair.server.partial_bytes == 0
    assert all(len(frame[5]) <= 65_536 - 8 for frame in frames(pair.sent_by_server))


def test_a_small_frame_limit_of_the_peer_is_obeyed() -> None:
    pair = Pair(client={"max_frame_size": 512}).open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine)
    push.send_one(b"tag", b"x" * 5_000, False)
    written = frames(pair.server.take_output())
    assert all(len(frame[5]) + 8 <= 512 for frame in written)
    assert [frame[3][1] for frame in written] == [0] * len(written)
    assert [frame[3][5] for frame in written] == [True] * (len(written) - 1) + [False]
    assert sum(len(frame[4]) for frame in written) == 5_000


def test_large_deliveries_of_two_links_may_be_interleaved() -> None:
    pair = Pair(server={"max_frame_size": 1_000}).open()
    mine, _ = pair.session()
    first, _ = pair.sender(mine, "a")
    second, _ = pair.sender(mine, "b")
    _send(first, [b"1" * 3_000])
    one = _raw_frames(pair.client.take_output())
    _send(second, [b"2" * 3_000])
    two = _raw_frames(pair.client.take_output())
    mixed = [frame for both in zip(one, two, strict=True) for frame in both]
    events = pair.to_server(b"".join(mixed))
    assert [event.payloads for event in events] == [[b"1" * 3_000], [b"2" * 3_000]]


def _raw_frames(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def test_the_batch_format_is_told_apart() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    out.send_one(b"1", b"plain", False)
    out.send_one(b"2", b"batch", False, BATCH_FORMAT)
    out.send_one(b"3", b"plain", False)
    events = pair.to_server(pair.client.take_output())
    assert [(event.message_format, event.payloads) for event in events] == [
        (0, [b"plain"]),
        (BATCH_FORMAT, [b"batch"]),
        (0, [b"plain"]),
    ]


def test_a_transfer_with_a_state_is_an_event_of_its_own() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    out.send_one(b"1", b"a", False)
    out.send_one(b"2", b"b", False, state=TransactionalState(b"txn"))
    out.send_one(b"3", b"c" * 100_000, False, state=TransactionalState(b"txn", ACCEPTED))
    out.send_one(b"4", b"d", False)
    events = pair.to_server(pair.client.take_output())
    assert [event.state for event in events] == [
        None,
        TransactionalState(b"txn"),
        TransactionalState(b"txn", ACCEPTED),
        None,
    ]
    assert [event.first_delivery_id for event in events] == [0, 1, 2, 3]
    assert theirs.credit == 96


def test_a_message_above_the_limit_of_the_link_is_reported_and_the_link_goes_on() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, max_message_size=1_000)
    _send(out, [b"a", b"b" * 1_000, b"c" * 1_001, b"d" * 200_000, b"e"])
    pair.pump()
    refused = pair.take(TransferRefused)
    assert [(event.delivery_id, event.size, event.settled) for event in refused] == [
        (2, 1_001, False),
        (3, 200_000, False),
    ]
    assert refused[0].link is theirs
    assert [len(p) for event in pair.take(Transfers) for p in event.payloads] == [1, 1_000, 1]
    assert pair.server.partial_bytes == 0
    assert theirs.is_attached
    assert theirs.credit == 95


def test_buffering_of_an_oversized_message_stops_at_the_limit() -> None:
    pair = Pair(server={"max_frame_size": 512}).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine, max_message_size=2_000)
    _send(out, [b"x" * 100_000])
    pieces = _raw_frames(pair.client.take_output())
    held = []
    for piece in pieces[:-1]:
        pair.to_server(piece)
        held.append(pair.server.partial_bytes)
    assert max(held) < 3_000
    assert held[-1] == 0
    assert isinstance(pair.to_server(pieces[-1])[-1], TransferRefused)


def test_unfinished_deliveries_beyond_the_budget_cost_the_link() -> None:
    pair = Pair(server={"max_frame_size": 512, "partial_bytes_max": 10_000}).open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    _send(out, [b"x" * 50_000])
    pair.pump()
    detached = pair.take(LinkDetached)
    assert [event.link for event in detached] == [theirs]
    assert detached[0].error.condition == "amqp:resource-limit-exceeded"
    assert pair.server.partial_bytes == 0
    assert pair.take(LinkDetached, "client")[0].error.condition == "amqp:resource-limit-exceeded"
    pair.sender(mine, "again")


def test_an_aborted_delivery_leaves_no_trace_but_its_credit() -> None:
    pair = Pair(server={"max_frame_size": 600}).open()
    mine, theirs_session = pair.session()
    out, theirs = pair.sender(mine)
    _send(out, [b"x" * 2_000])
    pieces = _raw_frames(pair.client.take_output())
    assert pair.to_server(b"".join(pieces[:-1])) == []
    assert pair.server.partial_bytes > 0
    abort = b"\x00\x53\x14\xc0\x0d\x0b\x52\x00\x40\x40\x40\x40\x42\x40\x40\x40\x41\x40"
    assert pair.to_server((8 + len(abort)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + abort) == []
    assert pair.server.partial_bytes == 0
    assert theirs.credit == 99
    _send(out, [b"next"])
    assert pair.to_server(pair.client.take_output())[0].payloads == [b"next"]
    assert theirs_session.is_open


def test_a_detach_in_the_middle_of_a_delivery_frees_what_was_kept() -> None:
    pair = Pair(server={"max_frame_size": 600}).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    _send(out, [b"x" * 2_000])
    pair.to_server(b"".join(_raw_frames(pair.client.take_output())[:-1]))
    out.detach()
    pair.to_server(pair.client.take_output())
    assert pair.server.partial_bytes == 0


def test_sending_without_credit_is_a_misuse_of_the_engine() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, credit=2)
    with pytest.raises(EngineMisuse):
        _send(out, [b""] * 3)
    _send(out, [b""] * 2)
    with pytest.raises(EngineMisuse):
        out.send_one(b"t", b"", True)
    with pytest.raises(EngineMisuse):
        theirs.send_one(b"t", b"", True)


def test_no_more_frames_leave_than_the_peers_window_takes() -> None:
    pair = Pair(client={"incoming_window": 2_048}).open()
    mine, _ = pair.session()
    _, push = pair.receiver(mine, credit=10_000)
    assert push.sendable() == 2_048
    _send(push, [b"x"] * 2_048)
    assert push.sendable() == 0
    first = _send(push, [b"y"] * 10)
    assert first == 2_048
    written = [frame for frame in frames(pair.server.take_output()) if frame[2] == 0x14]
    assert len(written) == 2_048
    raw = b"".join(_reframe(frame) for frame in written)
    pair.at_client += pair.client.receive(raw, 0)
    pair.pump()
    assert [event.session for event in pair.take(SessionFlow)] == [push.session]
    assert sum(len(event.payloads) for event in pair.take(Transfers, "client")) == 2_058
    assert push.sendable() > 1_000


def _reframe(frame: tuple[int, int, int, object, bytes, bytes]) -> bytes:
    return (8 + len(frame[5])).to_bytes(4, "big") + b"\x02\x00" + frame[1].to_bytes(2, "big") + frame[5]


def test_the_senders_view_of_our_window_is_replenished_at_half() -> None:
    pair = Pair(server={"incoming_window": 10}).open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine, credit=1_000)
    for n in range(20):
        assert out.sendable() >= 5
        _send(out, [b"%d" % n] * 5)
        pair.pump()
    assert sum(len(event.payloads) for event in pair.take(Transfers)) == 100


def test_frames_of_a_detached_link_do_not_wait_for_the_window() -> None:
    pair = Pair(client={"incoming_window": 4}).open()
    mine, _ = pair.session()
    first_end, first = pair.receiver(mine, "a")
    _, second = pair.receiver(mine, "b")
    _send(first, [b"1"] * 6)
    _send(second, [b"2"] * 3)
    first.detach()
    pair.pump()
    payloads = [p for event in pair.take(Transfers, "client") for p in event.payloads]
    assert payloads == [b"1"] * 4 + [b"2"] * 3
    assert not first_end.is_attached


def test_a_transfer_list_in_another_layout_means_the_same() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    _, theirs = pair.sender(mine)
    fields = [
        "43 43 a00474616730 43",
        "7000000000 5201 a0017443 41",
        "43 7000000002 a00174 40 5600",
        "5200 5203 a00174",
    ]
    counts = [4, 5, 5, 3]
    wire = b""
    for n, (text, count) in enumerate(zip(fields, counts, strict=True)):
        raw = bytes.fromhex(text)
        small = bytes((0xC0, len(raw) + 1, count))
        wide = b"\xd0" + (len(raw) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
        body = b"\x00\x53\x14" + (wide if n == 1 else small) + raw + encode(n)
        wire += (8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body
    events = pair.to_server(wire)
    assert [(event.first_delivery_id, event.settled, event.payloads) for event in events] == [
        (0, False, [encode(0)]),
        (1, True, [encode(1)]),
        (2, False, [encode(2), encode(3)]),
    ]
    assert theirs.credit == 96


def test_an_extended_frame_header_is_stepped_over() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, _ = pair.sender(mine)
    _send(out, [b"body"])
    raw = pair.client.take_output()
    longer = (len(raw) + 8).to_bytes(4, "big") + b"\x04" + raw[5:8] + b"EXTENDED" + raw[8:]
    assert pair.to_server(longer)[0].payloads == [b"body"]


def test_a_tag_that_passes_the_end_of_the_fields_is_malformed() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    pair.sender(mine)
    fields = b"\x43\x43\xa0\x01t"
    head = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 3))
    whole = b"\x00\x00\x00\x18\x02\x00\x00\x00" + head + fields + b"12345"
    assert pair.to_server(whole)[0].payloads == [b"12345"]
    torn = bytearray(whole)
    torn[17] = 3
    assert [type(event).__name__ for event in pair.to_server(bytes(torn))] == ["Closed"]


@pytest.mark.parametrize("seed", range(4))
def test_tags_of_a_run_are_kept_in_order_however_the_bytes_are_cut(seed: int) -> None:
    pair = Pair(seed).open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    theirs.tags = []
    _send(out, [b"x" * size for size in range(1, 41)], first=7)
    out.send_one(b"own", b"by itself", False)
    _send(out, [b"y"] * 3, first=50)
    pair.pump()
    expected = [b"prefix.." + (7 + index).to_bytes(8, "big") for index in range(40)]
    expected += [b"own", *(b"prefix.." + (50 + index).to_bytes(8, "big") for index in range(3))]
    assert theirs.tags == expected
    assert [len(body) for event in pair.take(Transfers) for body in event.payloads][-4:] == [9, 1, 1, 1]


def test_a_link_that_keeps_tags_is_read_as_quickly_as_any_other() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine)
    theirs.tags = []
    _send(out, [b"a"] * 40)
    data = pair.client.take_output()
    before = pair.server.work_left
    pair.to_server(data)
    # Frames that are taken one at a time are counted.
    assert pair.server.settings.work_max - pair.server.work_left <= 1, before
    assert len(theirs.tags) == 40


def test_the_tag_of_a_delivery_that_is_refused_is_forgotten() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    out, theirs = pair.sender(mine, max_message_size=100)
    theirs.tags = []
    out.send_one(b"too large", b"x" * 101, False)
    out.send_one(b"small", b"x", False)
    pair.pump()
    assert theirs.tags == [b"small"]
