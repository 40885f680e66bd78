from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus._pyamqp import performatives as pyamqp
from azure.servicebus._pyamqp._decode import decode_frame
from azure.servicebus._pyamqp._encode import encode_frame
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected
from engine_pair import Pair, frames

from duobus import amqp
from duobus.amqp import (
    ACCEPTED,
    RELEASED,
    AttachReceived,
    Dispositions,
    Error,
    LinkFlow,
    SessionBegun,
    Source,
    Target,
    Transfers,
)
from duobus.codec import Described, UInt, build_message, encode
from duobus.compiled import compiled_rooms

_FIELDS = {
    0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1, 0x40: 1, 0x41: 3, 0x44: 2,
}  # fmt: skip


def _everything_a_server_writes() -> bytes:
    pair = Pair(server={"properties": {"product": "duobus"}}).open()
    mine, theirs = pair.session()
    _, into = pair.sender(mine, max_message_size=262_144, properties={"com.microsoft:max-message-batch-size": UInt(9)})
    _, push = pair.receiver(mine, credit=20)
    push.send_run(b"12345678", 1, [b"", b""], [b"small", b"x" * 70_000], False)
    push.send_one(b"t" * 32, b"m", True, state=amqp.TransactionalState(b"t", ACCEPTED))
    for state in (
        None,
        ACCEPTED,
        RELEASED,
        amqp.Rejected(),
        amqp.Rejected(Error("com.microsoft:server-busy")),
        amqp.Rejected(Error("com.microsoft:server-busy", "x" * 400, {"a": "b"})),
        amqp.Modified(True, False, {"k": 1}),
        amqp.TransactionalState(b"t", amqp.Rejected(Error("amqp:internal-error", "d"))),
    ):
        into.settle(1, 300, state)
        theirs.disposition(False, 1, 1, state, True)
    push.drained()
    into.flow()
    mine.attach_receiver("refused", Source(address="q"), Target())
    pair.pump()
    pair.take(AttachReceived)[0].link.refuse("amqp:not-found", "The messaging entity could not be found")
    push.detach("amqp:link:detach-forced", "idle")
    into.detach()
    pair.pump()
    theirs.end("amqp:internal-error", "why")
    pair.pump()
    pair.session()[1].end()
    pair.server.tick(10**9)
    pair.pump()
    other = Pair().open()
    other.server.close("amqp:connection:forced", "bye")
    other.pump()
    return pair.sent_by_server + other.sent_by_server + pair.server.take_output()


def test_every_frame_has_all_fields_and_a_short_descriptor() -> None:
    seen = set()
    for kind, _, code, fields, _, raw in frames(_everything_a_server_writes()):
        if kind < 0 or not raw:
            continue
        assert raw[:2] == b"\x00\x53"
        assert raw[2] == code
        assert raw[3] in (0xC0, 0xD0)
        assert len(fields) == _FIELDS[code], hex(code)
        seen.add(code)
    assert seen == set(_FIELDS) - {0x41}


def test_every_error_has_all_three_elements() -> None:
    errors: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, Described):
            if value.descriptor == 0x1D:
                errors.append(value.value)
            collect(value.value)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    for _, _, _, fields, _, raw in frames(_everything_a_server_writes()):
        collect(fields)
        assert raw.count(b"\x00\x53\x1d\x45") == 0
    assert len(errors) >= 9
    assert all(len(error) == 3 and isinstance(error[1], str) for error in errors)


def test_pyamqp_reads_every_frame_and_sees_the_same() -> None:
    for kind, _, code, fields, payload, raw in frames(_everything_a_server_writes()):
        if kind < 0 or not raw:
            continue
        decoded_code, decoded = decode_frame(memoryview(raw))
        assert decoded_code == code
        if code == 0x14:
            assert bytes(decoded.pop()) == payload
            assert decoded[:3] == fields[:3]
        assert len(decoded) == _FIELDS[code]
        if code == 0x15 and isinstance(fields[4], Described) and fields[4].descriptor == 0x25:
            assert list(decoded[4]) == ["rejected"]
            assert len(decoded[4]["rejected"]) == 1


def test_a_refused_attach_has_null_termini_for_pyamqp() -> None:
    attaches = [fields for _, _, code, fields, _, _ in frames(_everything_a_server_writes()) if code == 0x12]
    refused = next(fields for fields in attaches if fields[0] == "refused")
    assert refused[5] is None
    assert refused[6] is None
    assert refused[9] == 0


def _pyamqp_frame(performative: Any, channel: int = 1) -> bytes:
    header, body = encode_frame(performative)
    assert body is not None
    return header + channel.to_bytes(2, "big") + bytes(body)


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.client.open(0, "ns")
    pair.pump()
    pair.to_server(
        _pyamqp_frame(pyamqp.BeginFrame(None, 0, 65_536, 65_536, 255, None, None, None))  # type: ignore[no-untyped-call]
    )
    return pair


def _attach(name: str, handle: int, role: bool) -> bytes:
    return _pyamqp_frame(
        pyamqp.AttachFrame(
            name,
            handle,
            role,
            0,
            1,
            pyamqp_source("q1"),
            pyamqp_target("q1"),
            None,
            None,
            0,
            0,
            None,
            None,
            None,
        )
    )


def pyamqp_source(address: str) -> Any:
    from azure.servicebus._pyamqp.endpoints import Source as PyamqpSource

    return PyamqpSource(address=address, durable=0, expiry_policy=b"session-end", timeout=0, dynamic=False)


def pyamqp_target(address: str) -> Any:
    from azure.servicebus._pyamqp.endpoints import Target as PyamqpTarget

    return PyamqpTarget(address=address, durable=0, expiry_policy=b"session-end", timeout=0, dynamic=False)


def test_the_frames_of_pyamqp_are_understood_on_its_first_channel(pair: Pair) -> None:
    assert pair.take(SessionBegun)[0].session.channel == 1
    pair.to_server(_attach("sender", 1, False) + _attach("receiver", 2, True))
    sender, receiver = (event.link for event in pair.take(AttachReceived))
    assert sender.remote.source.address == "q1"
    assert (sender.is_sender, receiver.is_sender) == (False, True)
    assert (sender.handle, receiver.handle) == (1, 2)
    sender.accept(max_message_size=262_144)
    sender.grant(1_000)
    receiver.accept()
    flow = _pyamqp_frame(pyamqp.FlowFrame(0, 65_536, 0, 65_536, 2, None, 10, None, False, False, None))
    body = build_message(["id"], data=b"x" * 200)
    transfers = b"".join(
        _pyamqp_frame(
            pyamqp.TransferFrame(1, n, n.to_bytes(4, "big"), 0, False, False, None, None, None, None, None, body)
        )
        for n in range(20)
    )
    dispositions = b"".join(
        _pyamqp_frame(pyamqp.DispositionFrame(True, n, None, False, state, None))
        for n, state in enumerate([Accepted()] * 5 + [Modified(True, False, None)] * 2 + [Rejected(None)])
    )
    events = pair.to_server(flow + transfers + dispositions)
    assert [type(event) for event in events] == [LinkFlow, Transfers, Dispositions]
    assert receiver.credit == 10
    assert events[1].payloads == [body] * 20
    assert events[2].ranges == [
        (0, 4, False, ACCEPTED),
        (5, 6, False, amqp.Modified(True, False, None)),
        (7, 7, False, amqp.Rejected(None)),
    ]


@pytest.mark.skipif(
    "amqp" in compiled_rooms(), reason="a compiled engine calls its own methods, not what replaces them"
)
def test_the_transfers_and_dispositions_of_pyamqp_take_the_short_way(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.to_server(_attach("sender", 1, False))
    link = pair.take(AttachReceived)[0].link
    link.accept()
    link.grant(1_000)
    body = build_message(["id"], data=b"x" * 200)
    slow: list[int] = []
    monkeypatch.setattr(type(pair.server), "control", lambda self, data, pos, stop, events: slow.append(pos))
    wire = b"".join(
        _pyamqp_frame(
            pyamqp.TransferFrame(1, n, n.to_bytes(4, "big"), 0, False, False, None, None, None, None, None, body)
        )
        + _pyamqp_frame(pyamqp.DispositionFrame(True, n, n, True, Accepted(), None))
        for n in range(0, 500, 3)
    )
    events = pair.to_server(wire)
    assert slow == []
    assert sum(len(event.payloads) for event in events if isinstance(event, Transfers)) == 167


def test_the_encoding_of_a_rejection_without_error_is_the_measured_one() -> None:
    pair = Pair().open()
    mine, _ = pair.session()
    mine.disposition(False, 0, 0, amqp.Rejected(), True)
    raw = frames(pair.client.take_output())[0][5]
    assert b"\x00\x53\x25\xc0\x02\x01\x40" in raw
    assert encode([None]) == b"\xc0\x02\x01\x40"
