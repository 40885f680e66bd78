"""The quick way to a message's properties gives what the codec gives, or gives up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duobus.codec import (
    DecodeError,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    application_properties,
    build_message,
    decode,
    with_made_id,
)
from duobus.codec.sections import PROPERTIES, find_section
from duobus.rules.message_view import values_of
from duobus.rules.property_reader import quick_properties, quick_user
from duobus.rules.system_properties import COUNT, FIELDS

VALUES = st.one_of(
    st.text(max_size=4),
    st.text(min_size=90, max_size=300),
    st.booleans(),
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-200, 200).map(Int),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 300).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-9, 9).map(Short),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.integers(-(2**60), 2**60).map(Timestamp),
    st.uuids(),
    st.binary(max_size=5),
    st.text("abc", max_size=3).map(Symbol),
)
MAPS = st.dictionaries(st.text(max_size=5), VALUES, max_size=5)
TEXT = st.none() | st.text(max_size=5)
FIELD_LISTS = st.lists(TEXT | st.text("ab", max_size=3).map(Symbol) | st.just(ULong(7)), max_size=13)


def typed(values: dict[str, Any]) -> list[tuple[str, type, Any]]:
    return [(name, type(value), value) for name, value in values.items()]


@given(MAPS, st.none() | st.lists(TEXT, max_size=4))
def test_user_properties(properties: dict[str, Any], fields: list[Any] | None) -> None:
    payload = build_message(fields, properties, data=b"body")
    found = quick_user(payload)
    if found is not None:
        assert typed(found) == typed(values_of(application_properties(payload)))
    # Short ones are all it is made for, and it takes them.
    assert found is not None or len(payload) > 230


@given(FIELD_LISTS)
def test_system_properties(fields: list[Any]) -> None:
    payload = build_message(fields, data=b"body")
    system: list[Any] = [None] * COUNT
    if quick_properties(payload, system):
        present = {place: fields[index] for place, index in FIELDS.items() if index < len(fields)}
        assert {place: system[place] for place in present} == present
        assert {type(value) for value in system} <= {str, type(None)}
    else:
        assert system == [None] * COUNT


@given(MAPS, FIELD_LISTS, st.data())
def test_bytes_that_were_changed_are_read_as_the_codec_reads_them(
    properties: dict[str, Any], fields: list[Any], data: st.DataObject
) -> None:
    payload = bytearray(build_message(fields, properties, data=b"body"))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(payload[: data.draw(st.integers(len(payload) // 2, len(payload)))])
    quick = quick_user(changed)
    if quick is not None:
        try:
            general = values_of(application_properties(changed))
        except DecodeError:
            raise AssertionError("the codec refuses what was read quickly") from None
        assert repr(typed(quick)) == repr(typed(general))
    system: list[Any] = [None] * COUNT
    if quick_properties(changed, system):
        _, value, _ = find_section(changed, PROPERTIES)
        found = decode(changed, value)[0]
        for place, index in FIELDS.items():
            assert system[place] == (found[index] if index < len(found) else None)


@given(FIELD_LISTS)
def test_an_id_that_the_broker_gave_is_read_quickly_too(fields: list[Any]) -> None:
    text = "0123456789abcdef" * 2
    payload = build_message([None, *fields[1:]], data=b"body")
    row, expected = [None] * COUNT, [None] * COUNT
    if quick_properties(build_message([text, *fields[1:]], data=b"body"), expected):
        assert quick_properties(with_made_id(payload, 0, text.encode()), row)
        assert row == expected
        assert text in row
