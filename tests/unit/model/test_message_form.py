"""Messages as JSON: every AMQP type and kind of body comes back as it was."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.codec import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    build_message,
    encode,
)
from duobus.errors import ArgumentInvalid
from duobus.model.json.messages import form_of, message_of
from duobus.model.json.patch import parse_patch, patched
from duobus.model.json.repair import parse_repair, resendable
from duobus.model.json.values import from_json, to_json
from duobus.model.metadata import MessageMetadata

VALUES = [
    *(kind(5) for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int, int)),
    ULong(2**64 - 1),
    -(2**63),
    Timestamp(1_700_000_000_123),
    Timestamp(-(2**63)),
    1.5,
    Float32(0.25),
    True,
    None,
    "text",
    "$uint",
    Symbol("symbol"),
    Char("é"),
    uuid.UUID(int=9),
    b"\x00\xff",
    Decimal32(b"1234"),
    Decimal64(b"12345678"),
    Decimal128(b"1234567812345678"),
    [1, "a", [UInt(1)]],
    {"a": 1, "b": {"c": []}},
    {"$uint": 5},
    {Symbol("s"): 1, UInt(2): "x"},
    Described(ULong(3), [1]),
    Array(UInt, [UInt(1), UInt(2)]),
    Array(Symbol, [Symbol("a")]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_of_any_type_comes_back_with_its_type(value: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(value))))
    assert type(again) is type(value)
    assert encode(again) == encode(value)


def test_numbers_that_json_does_not_have_come_back() -> None:
    for value in (math.inf, -math.inf, Float32("inf")):
        assert from_json(json.loads(json.dumps(to_json(value), allow_nan=False))) == value
    assert math.isnan(from_json(to_json(math.nan)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_json_is_taken_for_something_else(value: Any) -> None:
    assert from_json(to_json(value)) == value


@given(JSON)
def test_any_json_is_a_value_or_refused(value: Any) -> None:
    try:
        found = from_json(value)
    except ArgumentInvalid:
        return
    encode(found)


@pytest.mark.parametrize(
    "body",
    [
        {"data": [b"text"]},
        {"data": [b"\xff\x00", b"", b"more"]},
        {"sequences": [[1, "a"], [UInt(2)]]},
        {"body_value": {"a": [None, b"x"]}},
        {"body_value": None},
        {},
    ],
    ids=repr,
)
def test_a_message_comes_back_byte_by_byte(body: dict[str, Any]) -> None:
    fields = [
        "id",
        b"user",
        "to",
        "s",
        "r",
        uuid.UUID(int=1),
        Symbol("a/b"),
        Symbol("gzip"),
        Timestamp(1),
        Timestamp(2),
    ]
    properties = {f"p{index}": value for index, value in enumerate(VALUES[:20])}
    bare = build_message([*fields, "session", UInt(7), "rg"], properties, **body)
    pairs = {Symbol("x-opt-a"): UInt(1), Symbol("x-b"): "c"}
    metadata = MessageMetadata(
        ttl_ms=5_000,
        scheduled_ms=1_700_000_000_000,
        partition_key="session",
        via_partition_key="v",
        session_id="session",
        priority=9,
        annotations=b"".join(encode(part) for pair in pairs.items() for part in pair),
        annotations_count=4,
        durable=True,
        has_expiry=True,
    )
    form = json.loads(json.dumps(form_of(bare, metadata)))
    assert message_of(form) == (bare, metadata)


def test_what_cannot_be_read_is_kept_as_it_is() -> None:
    bare = build_message(["id"], data=b"x") + b"\x00\x53\x78\xc1"
    form = form_of(bare, None)
    assert list(form) == ["raw"]
    with pytest.raises(ArgumentInvalid):
        message_of(form)
    assert message_of({"raw": form_of(bare[:-4], None) and "AFN1oAF4"})[0] == b"\x00\x53\x75\xa0\x01x"


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": [1]}], {"a": 1, "b": [1]}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/0", "value": 9}], {"a": [9, 2]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "", "value": 5}], 5),
    ],
)
def test_a_json_patch_does_what_the_standard_says(document: Any, patch: Any, result: Any) -> None:
    assert patched(document, parse_patch(patch)) == result


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "remove", "path": "/none"}],
        [{"op": "replace", "path": "/none", "value": 1}],
        [{"op": "add", "path": "/list/3", "value": 1}],
        [{"op": "add", "path": "/list/01", "value": 1}],
        [{"op": "add", "path": "/one/two", "value": 1}],
        [{"op": "test", "path": "/one", "value": True}],
        [{"op": "move", "from": "/list", "path": "/list/0"}],
        [{"op": "add", "path": "one", "value": 1}],
        [{"op": "add", "path": "/a"}],
        {"op": "add"},
    ],
)
def test_a_json_patch_that_does_not_fit_changes_nothing(patch: Any) -> None:
    document = {"one": 1, "list": [1, 2]}
    with pytest.raises(ArgumentInvalid):
        patched(document, parse_patch(patch))
    assert document == {"one": 1, "list": [1, 2]}


def test_a_repair_changes_what_it_names_and_nothing_else() -> None:
    bare = build_message(["id", None, None, "s"], {"Keep": 1, "Drop": 2, "DeadLetterReason": "old"}, data=b'{"a": 1}')
    metadata = MessageMetadata(
        session_id="one", partition_key="one", reason="r", priority=3, overlay=encode({"laid": "over"})
    )
    repair = parse_repair(
        {
            "set": {"new": {"$uint": 1}},
            "remove": ["drop"],
            "properties": {"subject": None, "groupId": "two"},
            "patch": [{"op": "add", "path": "/b", "value": 2}],
        }
    )
    after, with_metadata = resendable(bare, metadata, repair, keeps_reason=False)
    assert form_of(after, with_metadata) == {
        "header": {"priority": 3},
        "partitionKey": "two",
        "properties": {"messageId": "id", "groupId": "two"},
        "applicationProperties": {"Keep": 1, "laid": "over", "new": {"$uint": 1}},
        "body": {"data": ['{"a":1,"b":2}']},
    }
    assert (with_metadata.session_id, with_metadata.reason) == ("two", None)


def repaired(body: bytes | str, /, **asked: Any) -> Any:
    """The body of a message after a repair; text is an AMQP value, bytes are data."""
    form = {"body": {"value": body}} if isinstance(body, str) else {"body": {"data": [body.decode()]}}
    payload, metadata = message_of(form)
    found = form_of(*resendable(payload, metadata, parse_repair(asked), keeps_reason=False))["body"]
    return found["value"] if isinstance(body, str) else found["data"][0]


def test_text_in_a_body_is_replaced_and_the_patch_comes_last() -> None:
    replace = [{"find": "NaN", "with": "null"}, {"find": "null", "with": "7"}]
    assert repaired(b'{"a": NaN, "b": NaN}', replace=replace) == '{"a": 7, "b": 7}'
    assert repaired('{"a": NaN}', replace=replace) == '{"a": 7}'
    patch = [{"op": "add", "path": "/b", "value": 2}]
    assert repaired(b'{"a": NaN}', replace=replace, patch=patch) == '{"a":7,"b":2}'
    assert repaired(b"broken", body='{"a": 1}', patch=patch) == '{"a":1,"b":2}'
    assert repaired(b"broken", body="") == ""


@pytest.mark.parametrize(
    "asked",
    [
        {"body": 5},
        {"body": "x" * ((1 << 20) + 1)},
        {"replace": {"find": "a", "with": "b"}},
        {"replace": [{"find": "", "with": "b"}]},
        {"replace": [{"find": "a"}]},
        {"replace": [{"find": "a", "with": "b", "all": True}]},
        {"replace": [{"find": "a", "with": 5}]},
        {"replace": [{"find": "a", "with": "b"}] * 21},
        {"replace": [{"find": "a", "with": "b" * 4_097}]},
    ],
)
def test_a_repair_of_text_that_is_none_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid):
        parse_repair(asked)


def test_a_body_in_which_the_text_is_not_found_or_that_would_grow_too_large_is_refused() -> None:
    with pytest.raises(ArgumentInvalid, match="does not contain 'x'"):
        repaired(b"abc", replace=[{"find": "x", "with": "y"}])
    with pytest.raises(ArgumentInvalid, match="would have more than"):
        repaired(b"a" * 1_000, replace=[{"find": "a", "with": "b" * 4_000}])
    payload, metadata = message_of({"body": {"data": ["a", "b"]}})
    with pytest.raises(ArgumentInvalid, match="several sections, so that no text can be changed"):
        resendable(payload, metadata, parse_repair({"body": "x"}), keeps_reason=False)
