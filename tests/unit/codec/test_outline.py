"""Large parts of a described list are passed over by their sizes; what is small is decoded as always."""

from __future__ import annotations

import struct
import time

import pytest

from duobus.codec import DecodeError, Described, PassedOver, Symbol, ULong, decode, decode_outline, encode
from duobus.codec.outline import FIELDS_MAX, PART_BYTES_MAX, WHOLE_BYTES_MAX

NONE: frozenset[object] = frozenset()
LARGE = {Symbol(f"key-{index}"): index for index in range(1000)}


def listed(*fields: object, code: int = 0x12) -> bytes:
    return encode(Described(ULong(code), list(fields)))


def outline(data: bytes, whole: frozenset[object] = NONE) -> object:
    value, end = decode_outline(b"12345" + data + b"tail", 5, 5 + len(data), whole)
    assert end == 5 + len(data)
    return value


def test_a_list_that_is_not_large_is_decoded_whole() -> None:
    data = listed("name", {Symbol("key"): [1, 2, {3: 4}]}, None)
    assert outline(data) == decode(data)[0]


def test_large_maps_of_a_large_list_are_passed_over_and_the_rest_is_decoded() -> None:
    value = outline(listed("name", 7, LARGE, {Symbol("small"): 1}))
    assert isinstance(value, Described)
    name, number, proxied, small = value.value
    assert (name, number, small) == ("name", 7, {"small": 1})
    assert isinstance(proxied, PassedOver)
    assert (proxied.code, decode(proxied.raw)[0]) == (0xD1, LARGE)


def test_long_texts_are_decoded_for_they_cost_nothing() -> None:
    value = outline(listed("n" * 40_000, Symbol("s" * 20_000), b"b" * 5000))
    assert isinstance(value, Described)
    assert [len(item) for item in value.value] == [40_000, 20_000, 5000]


def test_a_terminus_is_taken_apart_likewise() -> None:
    terminus = Described(ULong(0x28), ["queue", LARGE, [1] * 2000])
    value = outline(listed("name", terminus))
    assert isinstance(value, Described)
    source = value.value[1]
    assert source.descriptor == 0x28
    assert source.value[0] == "queue"
    assert [item.code for item in source.value[1:]] == [0xD1, 0xD0]


def test_a_large_described_value_within_a_terminus_is_passed_over() -> None:
    terminus = Described(ULong(0x28), ["queue", Described(ULong(0x26), [LARGE])])
    value = outline(listed("name", terminus))
    assert isinstance(value, Described)
    assert value.value[1].value[1].code == 0


def test_a_list_that_is_wanted_whole_is_decoded_whole() -> None:
    data = listed(1, LARGE, code=0x15)
    assert outline(data, frozenset({0x15})) == decode(data)[0]


def test_what_follows_a_small_list_does_not_make_it_large() -> None:
    data = listed("name", [1, 2])
    value, end = decode_outline(data + bytes(60_000), 0, len(data) + 60_000, NONE)
    assert (value, end) == (decode(data)[0], len(data))


def test_the_bounds_are_met_exactly() -> None:
    padding = encode("p" * WHOLE_BYTES_MAX)
    for size, is_proxied in ((PART_BYTES_MAX, False), (PART_BYTES_MAX + 1, True)):
        part = b"\xd0" + struct.pack(">II", size - 5, size - 9) + b"\x40" * (size - 9)
        body = padding + part
        data = b"\x00\x53\x12\xd0" + struct.pack(">II", len(body) + 4, 2) + body
        value = outline(data)
        assert isinstance(value, Described)
        assert isinstance(value.value[1], PassedOver) is is_proxied


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 60_000,
        b"\x00\x53\x12" * 20_000,
        b"\x00\xd1" + struct.pack(">II", 50_000, 2) + bytes(60_000),
        b"\xd0" + struct.pack(">II", 50_000, 1) + bytes(60_000),
        b"\x00\x53\x12\xd1" + struct.pack(">II", 50_000, 2) + b"\x40" * 60_000,
        b"\x00\x53\x12\xd0" + struct.pack(">II", 50_000, FIELDS_MAX + 1) + b"\x40" * 60_000,
        b"\x00\x53\x12\xd0" + struct.pack(">II", 50_000, 3) + b"\x40" * 60_000,
        b"\x00\x53\x12\xd0" + struct.pack(">II", 50_000, 1) + b"\xd1" + struct.pack(">I", 60_000) + bytes(60_000),
        b"\x00\x53\x12\xd0" + struct.pack(">II", 2**32 - 1, 1) + b"\x40" * 60_000,
        b"\x00\x53\x12\xd0" + struct.pack(">II", 50_000, 1) + b"\x00\x53\x28" * 19_000,
        b"\x00\x53\x12\xb0" + struct.pack(">I", 50_000) + bytes(60_000),
        b"\x00\x53",
        b"\x00",
        b"",
    ],
)
def test_sizes_and_counts_that_lie_are_refused_at_once(data: bytes) -> None:
    began = time.process_time()
    with pytest.raises(DecodeError):
        decode_outline(data, 0, len(data), NONE)
    assert time.process_time() - began < 0.05
