"""What the load generator writes, read by the official client; what it reads, from bytes written by hand."""

import pytest
from azure.servicebus._pyamqp._decode import decode_frame, decode_payload

from benchmarks.load import wire
from benchmarks.load.message import BatchTemplate, FrameTemplate, Run
from benchmarks.load.wire import Described, LoadError


def one_frame(number: int = 7, now: float = 1.5, body: int = 1024, *, durable: bool = False) -> bytes:
    template = FrameTemplate(Run(), 3, body, durable=durable)
    text = b"%08x" % number
    return template.pack(
        template.start, number, template.tag_start, number, template.id_start, text, template.rest, number, now
    )


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_frame_has_the_size_that_results_are_given_for(durable: bool) -> None:
    frame = one_frame(durable=durable)
    assert len(frame) == 1106 == int.from_bytes(frame[:4], "big")


def test_the_official_client_reads_the_transfer_of_a_message() -> None:
    code, fields = decode_frame(memoryview(one_frame())[8:])
    assert code == 0x14
    assert fields[:6] == [0, 7, b"\x00\x00\x00\x07", 0, False, False]


@pytest.mark.parametrize("durable", [True, False])
def test_the_official_client_reads_header_message_id_and_body(durable: bool) -> None:
    _, fields = decode_frame(memoryview(one_frame(durable=durable))[8:])
    message = decode_payload(memoryview(fields[-1]))
    assert message.header.durable is (True if durable else None)
    assert message.properties.message_id.endswith(b"-0000003-00000007")
    assert len(message.data[0]) == 1024


def test_the_official_client_reads_each_message_of_a_batch() -> None:
    batch = BatchTemplate(Run(), 1, 256, 100)
    payload = batch.payload(2, 1.5)
    assert len(payload) == batch.size
    envelope = decode_payload(memoryview(payload))
    assert len(envelope.data) == 100
    inner = decode_payload(memoryview(envelope.data[99]))
    assert inner.properties.message_id.endswith(b"-%08x" % 299)
    assert len(inner.data[0]) == 256


def test_the_official_client_reads_flow_and_disposition() -> None:
    code, fields = decode_frame(memoryview(wire.flow(5, 6, 0, 8, 9, 500))[8:])
    assert (code, fields) == (0x13, [5, 6, 0, 8, 0, 9, 500, None, False, False, None])
    code, fields = decode_frame(memoryview(wire.accept(3, 400))[8:])
    assert code == 0x15
    assert fields[:4] == [True, 3, 400, False]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("40", None),
        ("56 01", True),
        ("41", True),
        ("43", 0),
        ("52 ff", 255),
        ("70 00 01 00 00", 65536),
        ("54 ff", -1),
        ("81 ff ff ff ff ff ff ff fe", -2),
        ("a0 02 00 01", b"\x00\x01"),
        ("b1 00 00 00 02 68 69", "hi"),
        ("a3 02 68 69", "hi"),
        ("45", []),
        ("c0 03 02 43 41", [0, True]),
        ("c1 07 02 a3 01 6b 52 05", {"k": 5}),
        ("e0 06 02 a3 01 61 01 62", ["a", "b"]),
        ("d0 00 00 00 05 00 00 00 01 42", [False]),
        ("00 53 24 45", Described(0x24, [])),
    ],
)
def test_each_kind_of_value_is_decoded_from_its_bytes(written: str, value: object) -> None:
    data = bytes.fromhex(written)
    assert wire.decode(data, 0) == (value, len(data))


def test_a_value_that_is_cut_off_is_an_error_of_the_peer() -> None:
    with pytest.raises(LoadError, match="cut off"):
        wire.decode(bytes.fromhex("70 00 01"), 0)


def test_a_rejection_is_said_with_condition_and_description() -> None:
    error = Described(wire.ERROR, ["amqp:no-room", "full", None])
    assert wire.outcome_text(Described(wire.REJECTED, [error])) == "rejected, amqp:no-room: full"
    assert wire.outcome_text(Described(0x26, [])) == "released"
    assert wire.outcome_text(None) == "no outcome"
