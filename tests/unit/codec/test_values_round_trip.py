from __future__ import annotations

import math
import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.codec import (
    COUNT_MAX,
    DEPTH_MAX,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    EncodeError,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
    skip,
)

_RANGES: dict[type, tuple[int, int]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    int: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
}

_numbers = {kind: st.integers(low, high).map(kind) for kind, (low, high) in _RANGES.items()}
_by_kind: dict[type, st.SearchStrategy[Any]] = {
    **_numbers,
    float: st.floats(allow_nan=False),
    Float32: st.floats(allow_nan=False, width=32).map(Float32),
    Char: st.characters().map(Char),
    Decimal32: st.binary(min_size=4, max_size=4).map(Decimal32),
    Decimal64: st.binary(min_size=8, max_size=8).map(Decimal64),
    Decimal128: st.binary(min_size=16, max_size=16).map(Decimal128),
    uuid.UUID: st.uuids(),
    bytes: st.binary(max_size=300),
    str: st.text(max_size=100),
    Symbol: st.text(st.characters(max_codepoint=127), max_size=100).map(Symbol),
    bool: st.booleans(),
}
_scalars = st.one_of(st.none(), *_by_kind.values())
_keys = st.one_of(_by_kind[str], _by_kind[Symbol], _by_kind[ULong])
_arrays = st.sampled_from(list(_by_kind)).flatmap(
    lambda kind: st.lists(_by_kind[kind], max_size=6).map(lambda items: Array(kind, items))
)
_values = st.recursive(
    st.one_of(_scalars, _arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_keys, inner, max_size=5),
        st.builds(Described, st.one_of(_by_kind[ULong], _by_kind[Symbol]), inner),
        st.lists(st.dictionaries(_keys, inner, max_size=3), max_size=3).map(lambda maps: Array(dict, maps)),
        st.lists(st.lists(inner, max_size=3), max_size=3).map(lambda lists: Array(list, lists)),
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, c) and same(b, d) for (a, b), (c, d) in zip(left.items(), right.items(), strict=True)
        )
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, Array):
        return left.kind is right.kind and same(left.items, right.items)
    return bool(left == right)


@settings(max_examples=300, deadline=None)
@given(_values)
def test_decode_after_encode_gives_the_same_value_and_types(value: Any) -> None:
    encoded = encode(value)
    decoded, end = decode(encoded)
    assert same(decoded, value)
    assert end == len(encoded) == skip(encoded)


@settings(max_examples=100, deadline=None)
@given(_values, st.binary(max_size=8))
def test_decoding_a_view_in_the_middle_of_a_buffer_stops_behind_the_value(value: Any, around: bytes) -> None:
    data = memoryview(around + encode(value) + around)
    decoded, end = decode(data, len(around))
    assert same(decoded, value)
    assert end == len(data) - len(around)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_decode_error(data: bytes) -> None:
    for read in (decode, skip):
        try:
            read(data)
        except DecodeError:
            continue


@settings(max_examples=300, deadline=None)
@given(_values, st.data())
def test_a_value_with_one_changed_byte_raises_nothing_but_a_decode_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(encoded)
    except DecodeError:
        return


@settings(max_examples=200, deadline=None)
@given(_values, st.data())
def test_a_truncated_value_is_always_refused(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    with pytest.raises(DecodeError):
        decode(cut)
    with pytest.raises(DecodeError):
        skip(cut)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=20), st.one_of(st.text(), _by_kind[UInt], _by_kind[int], st.uuids()), max_size=5)
)
def test_pyamqp_reads_what_the_encoder_writes(value: dict[str, Any]) -> None:
    encoded = encode(value)
    rest, decoded = pyamqp_decode._DECODE_BY_CONSTRUCTOR[encoded[0]](memoryview(encoded)[1:])
    assert len(rest) == 0
    plain = {key.encode(): item.encode() if isinstance(item, str) else item for key, item in value.items()}
    assert decoded == plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(7), "5307"),
        (-1, "55ff"),
        (128, "810000000000000080"),
        (Int(-128), "5480"),
        (Timestamp(1), "830000000000000001"),
        ("é", "a102c3a9"),
        (Symbol("a"), "a30161"),
        (b"", "a000"),
        ([], "45"),
        ({}, "c10100"),
        ([None, []], "c003024045"),
        (uuid.UUID(int=1), "98" + "00" * 15 + "01"),
        (Array(type(None), []), "e0020040"),
        (Array(int, []), "e0020081"),
        (Array(Symbol, []), "e00200b3"),
        (Array(Symbol, [Symbol("ab")]), "e00801b3000000026162"),
        (Array(Timestamp, [1]), "e00a01830000000000000001"),
        (Array(bool, [True, False]), "e00402560100"),
        (Array(list, [[], [None]]), "e01302d0000000040000000000000005000000" + "0140"),
        (Array(Described, [Described(ULong(5), "x")]), "e00a01005305b10000000178"),
        (Described(ULong(0x24), []), "00532445"),
    ],
)
def test_each_value_has_its_smallest_well_known_encoding(value: Any, expected: str) -> None:
    assert encode(value).hex() == expected


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UInt(-1),
        ULong(2**64),
        2**63,
        Char("ab"),
        Char(""),
        "\ud800",
        Symbol("é"),
        Decimal32(b"123"),
        object(),
        [set()],
        Array(int, ["text"]),
        Array(int, [2**70]),
        Array(type(None), [None]),
        Array(Described, [Described(ULong(1), 1), Described(ULong(2), 1)]),
        [None] * (COUNT_MAX + 1),
    ],
)
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(value)


def test_nesting_is_allowed_up_to_the_limit_and_not_beyond() -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    assert decode(encode(value))[0] == value
    with pytest.raises(EncodeError, match="nested"):
        encode([value])
    deep = encode(value)
    for _ in range(2):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + deep
    with pytest.raises(DecodeError, match="nested"):
        decode(deep)
    described = b"\x00\x53\x01" * 100_000 + b"\x40"
    with pytest.raises(DecodeError, match="nested"):
        decode(described)
    assert skip(described) == len(described)


def test_subclasses_encode_as_their_nearest_known_parent() -> None:
    class Colour(int):
        pass

    assert encode(Colour(3)) == encode(3)
    assert encode((1, 2)) == encode([1, 2])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("e0020540", "fit"),  # five nulls that take no room
        ("f0000000050000ffff45", "fit"),  # 65,535 empty lists in ten bytes
        ("d0000000080001000140404040", "65536"),
        ("c00302a1", "truncated|fit"),
        ("c003014040", "left over"),
        ("c10201a1", "without a value|truncated"),
        ("c10904a10161" + "40" + "a10161" + "40", "twice"),
        ("c1030245" + "40", "compound"),
        ("a101ff", "UTF-8"),
        ("a301ff", "ASCII"),
        ("5602", "boolean"),
        ("7300110000", "Unicode"),
        ("730000d800", "Unicode"),
        ("e00301" + "00" + "40", "truncated|missing"),
        ("e0020157", "unknown|constructor"),
        ("ff", "unknown constructor"),
        ("", "missing"),
        ("d0ffffffffffffffff", "truncated"),
    ],
)
def test_malformed_values_are_refused_with_a_reason(data: str, match: str) -> None:
    with pytest.raises(DecodeError, match=match):
        decode(bytes.fromhex(data))


def test_nan_and_infinities_survive_as_doubles() -> None:
    assert math.isnan(decode(encode(math.nan))[0])
    assert decode(encode(-math.inf))[0] == -math.inf
