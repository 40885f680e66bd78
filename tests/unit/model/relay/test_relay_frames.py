"""Frames of WebSockets: what a client sends is understood in whatever parts it comes, and broken rules are seen."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.model.relay.frames import (
    BINARY,
    CLOSE,
    PING,
    PROTOCOL_ERROR,
    TEXT,
    Control,
    FrameDecoder,
    FrameError,
    Piece,
    accept_key,
    close_payload,
    frame,
    head,
    masked_frame,
    read_close,
)

KEY = b"\x01\x02\x03\xfe"


def masked(opcode: int, data: bytes, *, is_last: bool = True) -> bytes:
    """A frame of a client."""
    start = bytearray(head(opcode, len(data), is_last=is_last))
    start[1] |= 0x80
    return bytes(start) + KEY + bytes(byte ^ KEY[index % 4] for index, byte in enumerate(data))


def read(*parts: bytes) -> list[Piece | Control]:
    """What these parts mean, one after the other."""
    decoder = FrameDecoder()
    return [event for part in parts for event in decoder.feed(part)]


def whole(events: list[Piece | Control]) -> list[tuple[int, bytes]]:
    """Messages and control frames, with the pieces of each message together."""
    found: list[tuple[int, bytes]] = []
    message = b""
    for event in events:
        if isinstance(event, Control):
            found.append((event.opcode, event.data))
            continue
        assert event.is_first == (not message) or event.data == b"" or message
        message = event.data if event.is_first else message + event.data
        if event.is_last:
            found.append((event.opcode, message))
            message = b""
    return found


def test_the_key_of_the_standard_gives_the_answer_of_the_standard() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("size", [0, 1, 3, 4, 125, 126, 65_535, 65_536, 200_001])
def test_a_frame_of_any_size_is_read_as_it_was_sent(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assert read(masked(BINARY, data)) == [Piece(BINARY, data, True, True)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([TEXT, BINARY, PING]), st.binary(max_size=120)), max_size=5),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_the_parts_in_which_bytes_come_do_not_matter(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(masked(opcode, payload) for opcode, payload in sent)
    parts: list[bytes] = []
    pos = 0
    while pos < len(data):
        size = sizes[len(parts) % len(sizes)]
        parts.append(data[pos : pos + size])
        pos += size
    assert whole(read(*parts)) == sent


def test_a_message_in_fragments_is_one_message_even_with_a_ping_between() -> None:
    first, second = masked(TEXT, b"a", is_last=False), masked(0, b"b", is_last=False)
    events = read(first, masked(PING, b"p"), second, masked(0, b""))
    assert events == [
        Piece(TEXT, b"a", True, False),
        Control(PING, b"p"),
        Piece(TEXT, b"b", False, False),
        Piece(TEXT, b"", False, True),
    ]


@pytest.mark.parametrize(
    "data",
    [
        frame(TEXT, b"no mask"),
        b"\xc1\x80" + KEY,
        masked(3, b""),
        masked(0, b"nothing before"),
        masked(TEXT, b"a", is_last=False) + masked(TEXT, b"b"),
        masked(PING, b"x" * 126),
        masked(CLOSE, b"", is_last=False),
        b"\x82\xff" + struct.pack("!Q", 1 << 63) + KEY,
    ],
)
def test_a_broken_rule_is_an_error_with_the_code_to_close_with(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        read(data)
    assert caught.value.code == PROTOCOL_ERROR


def test_a_head_that_announces_much_holds_no_memory() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(b"\x82\xff" + struct.pack("!Q", 1 << 39) + KEY)) == []
    (piece,) = decoder.feed(b"\0" * 1000)
    assert isinstance(piece, Piece)
    assert (len(piece.data), piece.is_last) == (1000, False)


def test_a_close_frame_has_a_code_and_a_reason_that_fit() -> None:
    assert read_close(close_payload(4001, "why \u00e9")) == (4001, "why \u00e9")
    assert read_close(b"") == (1005, "")
    assert close_payload(1006, "never sent") == b""
    code, reason = read_close(close_payload(1000, "\u00e9" * 100))
    assert (code, len(reason.encode())) == (1000, 122)


@pytest.mark.parametrize("data", [b"\x03", b"\x03\xed", b"\x03\xe8\xff", b"\x00\x01"])
def test_a_close_frame_that_breaks_the_rules_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        read_close(data)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 70_000])
def test_a_frame_of_a_client_is_read_by_a_server_and_one_of_a_server_by_a_client(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    sent = masked_frame(BINARY, data[:size], KEY, is_last=False)
    assert sent == masked(BINARY, data[:size], is_last=False)
    client = FrameDecoder(is_of_client=False)
    assert list(client.feed(frame(BINARY, data[:size], is_last=False))) == [Piece(BINARY, data[:size], True, False)]


def test_a_client_refuses_a_frame_with_a_mask() -> None:
    with pytest.raises(FrameError, match="has a mask"):
        list(FrameDecoder(is_of_client=False).feed(masked(BINARY, b"x")))
