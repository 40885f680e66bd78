"""A list of maps with one binary each is encoded in one go, as the general encoder does it value by value."""

from __future__ import annotations

import pytest

from duobus.codec import COUNT_MAX, Encoded, EncodeError, decode, encode, encode_named


@pytest.mark.parametrize("number", [0, 1, 2, 20, 255, 256, 300])
@pytest.mark.parametrize("length", [0, 1, 200, 235, 236, 237, 240, 255, 256, 70_000])
def test_the_bytes_are_those_of_the_general_encoder(number: int, length: int) -> None:
    if number * length > 3_000_000:
        number = 3
    whole = bytes(index % 251 for index in range(length))
    values = [(whole[: length // 3], whole[length // 3 :])] * number
    assert encode_named("message", values) == encode([{"message": whole}] * number)


def test_what_is_encoded_stands_in_another_value_as_it_is() -> None:
    entries = encode_named("message", [(b"a", b"b"), (b"", b"c")])
    assert decode(encode({"messages": entries, "more": 1}))[0] == {
        "messages": [{"message": b"ab"}, {"message": b"c"}],
        "more": 1,
    }
    assert encode(Encoded(b"\x40")) == encode(None)


def test_too_many_are_refused() -> None:
    with pytest.raises(EncodeError):
        encode_named("message", [(b"", b"")] * (COUNT_MAX + 1))
