from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Header, Message, Properties
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duobus.codec import (
    ABSENT,
    DecodeError,
    Described,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    annotations_section,
    application_properties,
    application_properties_section,
    build_message,
    data_section,
    encode,
    header_section,
    message_id_of,
    plain_group_id,
    plain_start,
    properties_section,
    scan,
    scan_plain,
    split_batch,
    with_application_properties,
)
from duobus.codec.group_ids import ID_SIZE_PLAIN_MAX

_BODY = b"b" * 1024
_ids = st.one_of(st.text(max_size=140), st.integers(0, 2**64 - 1).map(ULong), st.uuids(), st.binary(max_size=20))


def _properties(**values: Any) -> list[Any]:
    names = ["message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"]
    names += ["content_encoding", "absolute_expiry", "creation_time", "group_id", "group_sequence", "reply_to_group_id"]
    return [values.get(name) for name in names]


@settings(max_examples=300, deadline=None)
@example(
    header=b"",
    annotations=None,
    message_id="i" * (ID_SIZE_PLAIN_MAX + 1),
    group_id=None,
    content_type=None,
    expiry=None,
    cut=1,
    named=None,
    data=bytes(9),
    want_group_id=False,
)
@given(
    header=st.one_of(
        st.just(b""),
        st.builds(
            header_section,
            st.one_of(st.none(), st.booleans()),
            st.one_of(st.none(), st.integers(0, 255)),
            st.one_of(st.none(), st.integers(0, 2**32 - 1)),
        ),
    ),
    annotations=st.one_of(st.none(), st.dictionaries(st.sampled_from(["x-opt-a", "x-opt-b"]), st.integers(0, 9))),
    message_id=st.one_of(st.none(), _ids),
    group_id=st.one_of(st.none(), st.text(max_size=9)),
    content_type=st.one_of(st.none(), st.just(Symbol("text/plain"))),
    expiry=st.one_of(st.none(), st.just(Timestamp(5))),
    cut=st.integers(0, 13),
    named=st.one_of(st.none(), st.dictionaries(st.text(max_size=4), st.text(max_size=200), max_size=3)),
    data=st.binary(max_size=300),
    want_group_id=st.booleans(),
)
def test_the_quick_scan_agrees_with_the_thorough_one(
    header: bytes,
    annotations: dict[str, int] | None,
    message_id: Any,
    group_id: str | None,
    content_type: Symbol | None,
    expiry: Timestamp | None,
    cut: int,
    named: dict[str, str] | None,
    data: bytes,
    want_group_id: bool,
) -> None:
    fields = _properties(message_id=message_id, group_id=group_id, content_type=content_type, absolute_expiry=expiry)[
        :cut
    ]
    payload = build_message(fields, named, data=data, header=header, annotations=annotations)
    found = scan(payload)
    quick = scan_plain(payload, want_group_id)
    matters = (
        # It may have too many characters.
        (isinstance(found.message_id, str) and len(found.message_id.encode()) > ID_SIZE_PLAIN_MAX)
        or found.ttl_ms is not None
        or found.durable is not None
        or found.priority is not None
        or found.annotations is not None
        or found.content_type is not None
        or found.absolute_expiry_ms is not None
        or (want_group_id and found.group_id is not None)
    )
    assert payload[found.bare :] == build_message(fields, named, data=data)
    assert found.message_id == (message_id if cut else None)
    assert message_id_of(payload, found.bare) == found.message_id
    assert application_properties(payload[found.bare :]) == (named or {})
    assert found.body_bytes_empty is (data == b"")
    start = plain_start(quick)
    if start >= 0:
        assert not matters
        assert start == found.bare
        assert (quick < 0) is (found.message_id is None)
        assert plain_group_id(payload, start) in (None, (found.group_id or "").encode())
    elif len(data) > 8:
        assert matters


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from(
                [b"\x00\x53\x70\xc0", b"\x00\x53\x73\xc0", b"\x00Su\xa0"] + [bytes([n]) for n in range(0, 256, 5)]
            ),
            max_size=30,
        ).map(b"".join),
    ),
    st.booleans(),
)
def test_arbitrary_payloads_raise_nothing_but_decode_errors(payload: bytes, want_group_id: bool) -> None:
    quick = scan_plain(payload, want_group_id)
    for read in (scan, split_batch, message_id_of, application_properties):
        try:
            read(payload)
        except DecodeError:
            continue
    start = plain_start(quick)
    assert -1 <= start <= len(payload)
    if start >= 0:
        plain_group_id(payload, start)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_changed_byte_never_makes_a_scan_raise_anything_else(data: st.DataObject) -> None:
    payload = bytearray(
        build_message(
            ["id", None, None], {"a": 1}, data=b"x" * 20, header=header_section(True, 4, 5), annotations={"b": 2}
        )
    )
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    scan_plain(bytes(payload), True)
    try:
        scan(bytes(payload))
    except DecodeError:
        return


@pytest.mark.parametrize(
    ("header", "properties"),
    [
        (None, Properties(message_id="m-1")),
        (Header(), Properties(message_id=uuid.UUID(int=3))),
        (Header(delivery_count=7), Properties(message_id="m-2")),
        (Header(), Properties()),
    ],
)
def test_messages_of_pyamqp_whose_header_says_nothing_are_plain(header: Header | None, properties: Properties) -> None:
    out = bytearray()
    encode_payload(out, Message(header=header, properties=properties, data=[_BODY]))
    payload = bytes(out)
    quick = scan_plain(payload, True)
    assert plain_start(quick) == scan(payload).bare >= 0
    assert scan(payload).message_id == properties.message_id
    assert (quick < 0) is (properties.message_id is None)


def test_a_session_message_of_pyamqp_is_plain_only_where_sessions_do_not_matter() -> None:
    out = bytearray()
    encode_payload(out, Message(properties=Properties(message_id="m", group_id=b"s-1".decode()), data=[_BODY]))
    payload = bytes(out)
    assert scan_plain(payload, True) == -1
    assert scan_plain(payload, False) == 0
    assert scan(payload).group_id == "s-1"


def test_pyamqp_reads_a_message_built_here() -> None:
    payload = build_message(
        _properties(message_id="m", correlation_id=uuid.UUID(int=9), content_type=Symbol("a/b"), group_id="s"),
        {"n": 1},
        data=b"hello",
        header=header_section(True, 4, 1000, True, 2),
        annotations={"x-opt-sequence-number": 7, "x-opt-enqueued-time": Timestamp(8)},
    )
    message = decode_payload(memoryview(payload))
    assert message.header.delivery_count == 2
    assert message.header.ttl == 1000
    assert message.message_annotations == {b"x-opt-sequence-number": 7, b"x-opt-enqueued-time": 8}
    assert message.properties.correlation_id == uuid.UUID(int=9)
    assert message.application_properties == {b"n": 1}
    assert message.data == [b"hello"]


def test_every_section_starts_with_a_small_descriptor() -> None:
    assert annotations_section({}).hex() == "005372c10100"
    assert header_section().hex() == "005370c006054040404040"
    assert properties_section([ULong(1)]).startswith(b"\x00\x53\x73")
    assert application_properties_section({}).startswith(b"\x00\x53\x74")
    assert data_section(b"").hex() == "005375a000"


def test_the_scan_finds_every_field_it_names() -> None:
    payload = build_message(
        _properties(
            message_id=ULong(5),
            user_id=b"u",
            to="t",
            subject="l",
            reply_to="r",
            correlation_id=b"c",
            content_type=Symbol("text/plain"),
            content_encoding=Symbol("gzip"),
            absolute_expiry=Timestamp(20),
            creation_time=Timestamp(10),
            group_id="g",
            group_sequence=UInt(1),
            reply_to_group_id="rg",
        ),
        header=header_section(True, 9, 77, False, 3),
        annotations={"k": "v"},
        body_value=None,
    )
    found = scan(payload)
    assert (found.message_id, found.user_id, found.to, found.subject, found.reply_to) == (5, b"u", "t", "l", "r")
    assert (found.correlation_id, found.content_type, found.group_id, found.reply_to_group_id) == (
        b"c",
        "text/plain",
        "g",
        "rg",
    )
    assert (found.absolute_expiry_ms, found.creation_time_ms, found.ttl_ms) == (20, 10, 77)
    assert (found.durable, found.priority, found.annotations) == (True, 9, {"k": "v"})
    assert found.body_bytes_empty
    assert type(found.message_id) is ULong


@pytest.mark.parametrize("body", [None, [], "", b""])
def test_bodies_without_content_count_as_empty(body: Any) -> None:
    assert scan(build_message(body_value=body)).body_bytes_empty
    assert not scan(build_message(body_value="x")).body_bytes_empty
    assert scan(build_message(["id"])).body_bytes_empty


def test_sections_with_long_or_symbolic_descriptors_are_understood() -> None:
    long_form = bytes.fromhex("00800000000000000073") + encode(["id"])
    symbolic = b"\x00" + encode(Symbol("amqp:data:binary")) + encode(b"x" * 300)
    found = scan(long_form + symbolic)
    assert found.message_id == "id"
    assert scan_plain(long_form + symbolic, False) in (-1, 0)


@pytest.mark.parametrize(
    "payload",
    [
        data_section(b"x") + properties_section(["id"]),
        data_section(b"x") + encode(Described(ULong(0x77), 1)),
        encode(Described(ULong(0x77), 1)) * 2,
        header_section() * 2,
        b"\x00\x53\x79\x40",
        b"\x00\x53\x6f\x40",
        b"\x00\x53\x74" + encode([1]),
        b"\x00\x53\x75" + encode("text"),
        b"\x00\x53\x75",
        b"\x00\x53",
        b"\x00",
        b"\x40",
        data_section(b"x") + b"\x00",
        data_section(b"x" * 20)[:-1],
        b"\x00\x53\x70" + encode([True, None, 5]),
        b"\x00\x53\x70" + encode([None] * 6),
        b"\x00\x53\x73" + encode([1.5]),
        b"\x00\x53\x73" + encode([None] * 14),
        b"\x00\x53\x72" + encode({5: 1}),
        b"\x00" + encode(Symbol("amqp:unknown")) + b"\x40",
    ],
)
def test_illegal_messages_are_refused_by_the_thorough_scan(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        scan(payload)


@pytest.mark.parametrize("cut", range(1, 20))
def test_the_quick_scan_never_passes_a_message_that_ends_early(cut: int) -> None:
    payload = build_message(["id"], data=b"x" * 20, header=header_section())
    assert scan_plain(payload, True) > 0
    assert scan_plain(payload[:-cut], True) == -1


def test_a_batch_gives_its_messages_in_order() -> None:
    messages = [build_message([f"m{n}"], data=b"x" * n) for n in range(300)]
    envelope, split = split_batch(build_message(["m0"], data=messages, annotations={"x-opt-partition-key": "k"}))
    assert split == messages
    assert envelope.annotations == {"x-opt-partition-key": "k"}
    assert split_batch(build_message(["m0"]))[1] == []
    with pytest.raises(DecodeError, match="batch"):
        split_batch(build_message(body_value="x"))


def test_application_properties_are_overlaid_and_all_else_stays() -> None:
    properties, body = properties_section(["id", None, None]), data_section(_BODY)
    untouched = properties + application_properties_section({"a": 1, "b": Timestamp(5)}) + body
    changed = with_application_properties(untouched, {"a": "new", Symbol("DeadLetterReason"): "r"})
    assert application_properties(changed) == {"a": "new", "b": 5, "DeadLetterReason": "r"}
    assert type(application_properties(changed)["b"]) is Timestamp
    assert changed.startswith(properties)
    assert changed.endswith(body)
    assert with_application_properties(untouched, {}) is untouched


@pytest.mark.parametrize("front", [b"", properties_section(["id"])])
@pytest.mark.parametrize("body", [b"", data_section(b"x")])
def test_application_properties_are_inserted_at_their_place(front: bytes, body: bytes) -> None:
    changed = with_application_properties(front + body, {"k": 1})
    assert changed == front + application_properties_section({"k": 1}) + body
    scan(changed)


def test_application_properties_with_names_that_are_not_strings_are_refused() -> None:
    with pytest.raises(DecodeError, match="name"):
        application_properties(b"\x00\x53\x74" + encode({1: 2}))


def test_a_body_of_sequences_may_repeat() -> None:
    payload = build_message(sequences=[[1], [2, 3]], body_value=ABSENT)
    assert not scan(payload).body_bytes_empty


@pytest.mark.parametrize(
    "front",
    [
        b"\x00\x53\x70\x45",
        b"\x00\x53\x70" + encode([None, None]),
        b"",
        bytes.fromhex("005370c00805404040560152" + "07"),
        b"\x00\x53\x72\xc1\x01\x00",
        header_section() + annotations_section({}),
        b"\x00\x53\x71" + encode({}),
    ],
)
@pytest.mark.parametrize(
    "properties", [b"", b"\x00\x53\x73\x45", properties_section(["id"]), properties_section([None])]
)
@pytest.mark.parametrize(
    "named", [b"", application_properties_section({}), application_properties_section({"n": "x" * 300})]
)
@pytest.mark.parametrize("body", [b"", data_section(b""), data_section(b"x" * 300), b"\x00\x53\x77\x40"])
def test_every_way_to_say_nothing_gives_the_same_bare_message(
    front: bytes, properties: bytes, named: bytes, body: bytes
) -> None:
    bare = properties + named + body
    payload = front + bare
    assert scan(payload).bare == len(front)
    quick = scan_plain(payload, True)
    assert quick == -1 or (quick < 0) is (scan(payload).message_id is None)
    if plain_start(quick) != len(front):
        # What the quick look may leave to the thorough one: rare spellings, and tiny messages.
        assert b"\x00\x53\x71" in front or len(bare) < 8 or len(payload) < 12
    assert scan_plain(payload + b"\x00", True) == -1


@pytest.mark.parametrize("code", [0x70, 0x71, 0x72, 0x73, 0x74])
def test_a_section_in_front_of_the_body_has_a_limit(code: int) -> None:
    content: Any = [None, None, None, None, None, "x" * 70_000] if code in (0x70, 0x73) else {"k": "x" * 70_000}
    payload = bytes((0, 0x53, code)) + encode(content) + data_section(b"x" * 70_000)
    assert scan_plain(payload, False) in ((-1,) if code != 0x73 else (-1, 0))
    with pytest.raises(DecodeError, match="allowed"):
        scan(payload)


def test_a_wide_list_of_properties_is_left_to_the_thorough_scan() -> None:
    fields = encode(["id", None, "x" * 300])
    assert fields[0] == 0xD0
    payload = b"\x00\x53\x73" + fields + data_section(b"x" * 20)
    assert scan_plain(payload, False) == -1
    assert scan(payload).message_id == "id"
    assert message_id_of(payload, 0) == "id"
    assert message_id_of(b"\x00\x53\x73" + b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00", 0) is None
    assert message_id_of(data_section(b"x"), 0) is None
    assert message_id_of(b"", 0) is None


@pytest.mark.parametrize("torn", [b"\x00\x53\x73\xc0", b"\x00\x53\x73\xd0", b"\x00\x53\x73\xd0\x00\x00"])
def test_properties_that_end_before_their_first_field_have_no_message_id(torn: bytes) -> None:
    assert message_id_of(torn) is None


def test_the_group_id_of_an_ordinary_message_is_found_without_the_thorough_scan() -> None:
    payload = build_message(_properties(message_id="m", group_id="session"), None, data=b"x")
    assert plain_group_id(payload, scan_plain(payload, False)) == b"session"
    for with_metadata in (None, "x" * 129):
        payload = build_message(_properties(message_id="m", group_id=with_metadata), None, data=b"x")
        assert plain_group_id(payload, scan(payload).bare) is None
