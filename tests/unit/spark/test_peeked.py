"""The decoder of peeked messages gives the rows that the SDK's decoder gives, or leaves the message to it."""

from __future__ import annotations

import struct
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duobus.spark import peek_decoder
from duobus.spark.claims.lock_handles import is_deferred
from duobus.spark.errors import EntityError
from duobus.spark.peek_decoder import ALL, APPLICATION, PROPERTIES, MessageDecoder, Peeked
from duobus.spark.rows import Rows, Source, rows_of, size_of
from duobus.spark.schema import COLUMNS
from duobus.spark.source.partition_reader import wish_of
from duobus.spark.source.peek_pages import HIDDEN, Page, Wish, by_sdk
from duobus.spark.source.settings import reading_of, source_options

SOURCE = Source("namespace", "queue")
RECEIVER: Any = SimpleNamespace(entity_path="queue", _amqp_transport=PyamqpTransport)


def decoded(data: bytes, **wish: Any) -> Peeked | None:
    """A message as the first of an answer."""
    return MessageDecoder(**wish).decoded(data)


def schema(*names: str) -> Any:
    """A schema without a JVM, which parses the DDL otherwise."""
    from pyspark.sql import types

    simple = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType(
        [types.StructField(name, simple[kind]) for name, kind in COLUMNS if name in names or not names]
    )


def variable(code: int, data: bytes) -> bytes:
    """A binary, string or symbol."""
    return bytes([code]) + (struct.pack(">I", len(data)) if code >= 0xB0 else bytes([len(data)])) + data


def compound(code: int, items: list[bytes]) -> bytes:
    """A list or map; a code of the small kind is widened when it has to be."""
    content = b"".join(items)
    if code < 0xD0 and len(content) < 255 and len(items) < 256:
        return bytes([code, len(content) + 1, len(items)]) + content
    return bytes([code | 0x10]) + struct.pack(">II", len(content) + 4, len(items)) + content


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def symbol(text: str) -> bytes:
    return variable(0xA3, text.encode())


def long(number: int) -> bytes:
    return b"\x81" + struct.pack(">q", number)


def timestamp(number: int) -> bytes:
    return b"\x83" + struct.pack(">q", number)


def annotated(more: dict[str, bytes]) -> bytes:
    """Annotations with a number, and others."""
    entries = {"x-opt-sequence-number": long(7)} | more
    return section(0x72, compound(0xC1, [part for name, value in entries.items() for part in (symbol(name), value)]))


WIDTHS = {1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55), 2: (0x60, 0x61), 4: (0x70, 0x71, 0x72), 8: (0x80, 0x81, 0x82, 0x83)}
CONSTANTS = [b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x56\x00", b"\x56\x01", b"\x56\x02"]
TEXTS = st.one_of(st.text(max_size=6).map(str.encode), st.binary(max_size=6))
TEXT = st.builds(variable, st.sampled_from([0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3]), TEXTS)
FIXED = st.one_of(
    *(
        st.builds(lambda code, data: bytes([code]) + data, st.sampled_from(codes), st.binary(min_size=n, max_size=n))
        for n, codes in WIDTHS.items()
    ),
    st.binary(min_size=16, max_size=16).map(lambda data: b"\x98" + data),
)
SIMPLE = st.sampled_from(CONSTANTS) | TEXT | FIXED
NESTED = st.one_of(
    st.lists(SIMPLE, max_size=3).map(lambda items: compound(0xC0, items)),
    st.tuples(SIMPLE, SIMPLE).map(lambda pair: compound(0xC1, list(pair))),
    st.just(b"\x45"),
    st.builds(lambda name, value: b"\x00" + name + value, TEXT, SIMPLE),
    st.just(variable(0xA3, b"com.microsoft:timespan")).map(lambda name: b"\x00" + name + long(5)),
    st.just(b"\x73\x00\x00\x00\x41"),
)
ANY = st.one_of(SIMPLE, SIMPLE, SIMPLE, NESTED)
NUMBERS = st.integers(0, 1 << 48).map(long)
INSTANTS = st.integers(0, 1 << 42).map(timestamp)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1).map(timestamp) | ANY
STATES = st.integers(-1, 4).map(lambda state: struct.pack(">Bb", 0x54, state))
NAMES = st.sampled_from([b"DeadLetterReason", b"DeadLetterErrorDescription", b"a", b"b", b"\xff", b"\xfe"])
HEADER = st.tuples(
    st.just(b"\x41"),
    st.just(b"\x50\x04"),
    st.integers(0, (1 << 32) - 1).map(lambda ms: b"\x70" + struct.pack(">I", ms)) | st.just(b"\x40"),
    st.just(b"\x42"),
    st.integers(0, 9).map(lambda count: bytes([0x52, count])),
).map(list)
DATA = st.lists(st.builds(variable, st.sampled_from([0xA0, 0xB0]), st.binary(max_size=40)), min_size=1, max_size=3).map(
    lambda parts: b"".join(section(0x75, part) for part in parts)
)
ODD_BODY = st.one_of(
    ANY.map(lambda value: section(0x77, value)),
    st.lists(ANY, max_size=3).map(lambda items: section(0x76, compound(0xC0, items))),
    ANY.map(lambda value: section(0x75, value)),
    st.just(b""),
)
FOOT = section(0x78, compound(0xC1, [symbol("x"), long(1)]))
DELIVERY = section(0x71, compound(0xC1, [symbol("x"), long(1)]))


def written(section_code: int, code: int, items: list[bytes], is_wide: bool) -> bytes:
    """A section of a list or map."""
    return section(section_code, compound(code | 0x10 if is_wide else code, items))


def optional(section_code: int, code: int, items: Any) -> Any:
    """A section that is there or not."""
    return st.just(b"") | st.builds(written, st.just(section_code), st.just(code), items, st.booleans())


def messages(*, odd: bool) -> Any:
    """Messages, of which the odd ones may have anything anywhere."""
    value = ANY if odd else SIMPLE
    times, numbers, states = (TIMES, NUMBERS | ANY, STATES | ANY) if odd else (INSTANTS, NUMBERS, STATES)
    text = ANY if odd else st.builds(variable, st.sampled_from([0xA1, 0xB1]), TEXTS)
    annotations = {
        "x-opt-enqueued-time": times,
        "x-opt-scheduled-enqueue-time": times,
        "x-opt-enqueue-sequence-number": numbers,
        "x-opt-message-state": states,
        "x-opt-partition-key": value,
        "x-opt-deadletter-source": value,
        "x-opt-something-else": value,
    }
    named = st.tuples(st.builds(variable, st.sampled_from([0xA1, 0xB1]), NAMES) | text, value)
    return st.tuples(
        optional(0x70, 0xC0, st.lists(ANY, max_size=6) if odd else HEADER),
        st.sampled_from([b"", DELIVERY]),
        st.fixed_dictionaries({}, optional=annotations).map(annotated),
        optional(0x73, 0xC0, st.lists(value, max_size=14 if odd else 13)),
        optional(0x74, 0xC1, st.lists(named, max_size=4).map(lambda pairs: [part for pair in pairs for part in pair])),
        ODD_BODY if odd else DATA,
        st.sampled_from([b"", FOOT]),
    ).map(b"".join)


@cache
def all_rows() -> Rows:
    return rows_of(schema())


def row_of(message: Any) -> dict[str, Any]:
    (batch,) = all_rows().batches(SOURCE, [message])
    (row,) = batch.to_pylist()
    return dict(row)


@settings(max_examples=300, deadline=None)
@given(messages(odd=False) | messages(odd=True))
def test_a_message_of_any_shape_gives_the_row_of_the_sdk_or_is_left_to_it(data: bytes) -> None:
    found = decoded(data)
    if found is None:
        return
    expected = by_sdk(data, RECEIVER)
    assert isinstance(expected, ServiceBusReceivedMessage)
    assert repr(_row_or_error(found)) == repr(_row_or_error(expected))
    assert (size_of(found), is_deferred(found)) == (size_of(expected), is_deferred(expected))
    assert found.sequence_number == expected.sequence_number


def _row_or_error(message: Any) -> Any:
    try:
        return row_of(message)
    except Exception as error:  # noqa: BLE001 - any is the row of a message that has none
        return type(error)


ORDINARY = (
    section(0x70, compound(0xC0, [b"\x41", b"\x50\x04", b"\x70\x00\x01\x00\x00", b"\x42", b"\x52\x03"]))
    + annotated({"x-opt-enqueued-time": timestamp(1_700_000_000_123), "x-opt-message-state": b"\x54\x01"})
    + section(0x73, compound(0xC0, [variable(0xA1, b"id"), b"\x40", variable(0xA1, b"to")]))
    + section(0x74, compound(0xC1, [variable(0xA1, b"n"), long(5), variable(0xA1, b"t"), variable(0xA1, "é".encode())]))
    + section(0x75, variable(0xB0, b"x" * 300))
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(ORDINARY) - 1), st.integers(0, 255), st.booleans())
@example(2, 0x77, False)
def test_a_message_with_a_wrong_byte_or_cut_short_gives_the_row_of_the_sdk_too(at: int, byte: int, cut: bool) -> None:
    data = ORDINARY[:at] if cut else ORDINARY[:at] + bytes([byte]) + ORDINARY[at + 1 :]
    found = decoded(data)
    if found is not None:
        assert repr(_row_or_error(found)) == repr(_row_or_error(by_sdk(data, RECEIVER)))


def with_long(data: bytes, name: str, number: int) -> bytes:
    """A message with another value of eight bytes in its annotations; the same one if it has no such value."""
    before, key, after = data.partition(symbol(name))
    return before + key + after[:1] + struct.pack(">q", number) + after[9:] if after[:1] in (b"\x81", b"\x83") else data


NO_SECTIONS: frozenset[int] = frozenset()
LONGS = st.integers(0, 1 << 44) | st.integers(-(1 << 63), (1 << 63) - 1)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-something-else"]), LONGS),
    st.tuples(st.integers(0, 200), st.integers(0, 255)),
)


def changed(data: bytes, change: Any) -> bytes:
    """A message with another number, time or byte."""
    where, value = change
    if isinstance(where, str):
        return with_long(data, where, value)
    return data[:where] + bytes([value]) + data[where + 1 :] if where < len(data) else data[:-1]


@settings(max_examples=200, deadline=None)
@given(
    messages(odd=False) | messages(odd=True), st.lists(CHANGES, max_size=8), st.sampled_from([ALL, frozenset[int]()])
)
def test_a_message_behind_others_that_are_nearly_alike_is_decoded_as_if_it_were_the_first(
    data: bytes, changes: list[Any], sections: frozenset[int]
) -> None:
    decoder = MessageDecoder(sections=sections)
    for one in (data, data, *(changed(data, change) for change in changes), data):
        assert decoder.decoded(one) == decoded(one, sections=sections)


@pytest.fixture
def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is read value by value from its first byte on."""
    reads: list[bytes] = []
    read = MessageDecoder._whole

    def counted(decoder: MessageDecoder, data: bytes) -> Peeked:
        reads.append(data)
        return read(decoder, data)

    monkeypatch.setattr(MessageDecoder, "_whole", counted)
    return reads


def test_of_messages_that_differ_in_number_time_and_what_follows_only_the_first_is_read_whole(
    whole_reads: list[bytes],
) -> None:
    decoder = MessageDecoder()
    for number in range(1, 20):
        data = with_long(with_long(ORDINARY, "x-opt-sequence-number", number), "x-opt-enqueued-time", 1_000 * number)
        data = data.replace(b"\xa1\x02id", b"\xa1\x02%02d" % number)
        found = decoder.decoded(data)
        assert found is not None
        assert (found.sequence_number, found.message_id) == (number, f"{number:02}")
        assert (found.enqueued_time, found.expires_at) == (1_000_000 * number, 1_000_000 * number + 65_536_000)
    assert len(whole_reads) == 1


def test_an_answer_whose_messages_all_begin_in_other_ways_is_read_whole_and_soon_not_tried_any_more(
    whole_reads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []
    find = peek_decoder._places
    monkeypatch.setattr(peek_decoder, "_places", lambda data, end: tried.append(data) or find(data, end))  # type: ignore[func-returns-value]
    decoder = MessageDecoder()
    for number in range(20):
        key = {"x-opt-partition-key": variable(0xA1, b"%d" % number), "x-opt-enqueued-time": timestamp(5)}
        found = decoder.decoded(annotated(key) + section(0x75, variable(0xB0, b"x")))
        assert found is not None
        assert found.partition_key == str(number)
    assert (len(whole_reads), len(tried)) == (20, 5)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoder_fail(data: bytes) -> None:
    assert decoded(data) is None or decoded(data) == decoded(data)


def test_an_ordinary_message_is_not_left_to_the_sdk() -> None:
    row = row_of(decoded(ORDINARY))
    assert (row["body"], row["body_type"], row["message_id"], row["to"]) == (b"x" * 300, "data", "id", "to")
    assert (row["state"], row["delivery_count"], row["sequence_number"]) == ("deferred", 3, 7)
    assert row["application_properties"] == [("n", "5"), ("t", "é")]
    assert row["application_property_types"] == [("n", "long")]
    assert row["expires_at"].timestamp() == pytest.approx(1_700_000_000.123 + 65.536)


def test_bodies_of_values_described_values_and_late_instants_are_left_to_the_sdk() -> None:
    body = section(0x75, variable(0xA0, b"x"))
    described = section(0x74, compound(0xC1, [variable(0xA1, b"a"), b"\x00" + symbol("b") + long(1)]))
    for data in (
        annotated({}) + section(0x77, b"\x41"),
        annotated({}) + described + body,
        annotated({"x-opt-enqueued-time": timestamp(253_402_300_799_999)}) + body,
        annotated({}),
        body,
    ):
        assert decoded(data) is None


def test_a_count_that_promises_more_than_there_is_costs_nothing() -> None:
    promised = section(0x72, b"\xd1" + struct.pack(">II", 20, 0xFFFF_FFFE) + b"\x40" * 16)
    assert decoded(promised + section(0x75, variable(0xA0, b"x"))) is None


def test_a_page_of_both_kinds_becomes_one_batch_with_the_same_rows() -> None:
    other = annotated({"x-opt-enqueued-time": timestamp(1_700_000_000_123)}) + section(0x77, variable(0xA1, b"v"))
    page = list(Page([ORDINARY, other, ORDINARY], RECEIVER))
    assert [type(message) is Peeked for message in page] == [True, False, True]
    (mixed,) = rows_of(schema()).batches(SOURCE, page)
    (plain,) = rows_of(schema()).batches(SOURCE, [by_sdk(data, RECEIVER) for data in (ORDINARY, other, ORDINARY)])
    assert mixed.equals(plain)


@pytest.mark.parametrize("include_body", [True, False])
@pytest.mark.parametrize("names", [("body_type", "sequence_number"), ("body", "state"), ("application_properties",)])
def test_columns_are_chosen_alike_for_both_kinds(names: tuple[str, ...], include_body: bool) -> None:
    rows = rows_of(schema(*names), include_body=include_body)
    mixed, plain = (decoded(ORDINARY), by_sdk(ORDINARY, RECEIVER))
    (found,) = rows.batches(SOURCE, [mixed])
    (expected,) = rows.batches(SOURCE, [plain])
    (both,) = rows.batches(SOURCE, [mixed, plain])
    assert found.equals(expected)
    assert both.slice(0, 1).equals(expected)
    assert both.slice(1, 1).equals(expected)


def test_a_message_that_nobody_can_decode_is_an_error_that_names_the_entity() -> None:
    with pytest.raises(EntityError, match="'queue' holds a message that the SDK cannot decode"):
        by_sdk(annotated({"x": b"\x73\x00\x00\x00\x41"}), RECEIVER)


def test_a_page_tells_its_highest_number_and_may_be_empty() -> None:
    assert Page([], RECEIVER).last is None
    assert list(Page([], RECEIVER)) == []
    assert Page([ORDINARY], RECEIVER).last == 7


def test_the_sdk_has_what_a_page_is_asked_for_with() -> None:
    """Without it pages come by the public method: right, but slow."""
    text = "Endpoint=sb://localhost;SharedAccessKeyName=name;SharedAccessKey=key"
    with ServiceBusClient.from_connection_string(text) as client:
        receiver = client.get_queue_receiver("queue")
        assert [name for name in HIDDEN if not hasattr(receiver, name)] == []


def test_a_message_that_was_sent_without_its_body_has_an_empty_one() -> None:
    bodiless = ORDINARY[: ORDINARY.index(b"\x00\x53\x75")]
    found = decoded(bodiless, has_body=False)
    assert found is not None
    assert found == decoded(ORDINARY)._replace(body=b"")  # type: ignore[union-attr]
    assert decoded(bodiless) is None
    assert decoded(ORDINARY, has_body=False) is None


#: An ordinary message in which every section tells something, and the header its time to live, too.
TELLING = (
    section(0x70, compound(0xC0, [b"\x41", b"\x50\x04", b"\x70\x00\x01\x00\x00", b"\x42", b"\x52\x03"]))
    + annotated({"x-opt-enqueued-time": timestamp(1_700_000_000_123), "x-opt-partition-key": variable(0xA1, b"key")})
    + section(0x73, compound(0xC0, [variable(0xA1, b"%d" % number) for number in range(13)]))
    + section(
        0x74,
        compound(
            0xC1,
            [
                *(variable(0xA1, b"DeadLetterReason"), variable(0xA1, b"why")),
                *(variable(0xA1, b"DeadLetterErrorDescription"), variable(0xA1, b"how")),
            ],
        ),
    )
    + section(0x75, variable(0xB0, b"x" * 300))
)


def wish_for(name: str) -> Wish:
    place = {"connectionString": "Endpoint=sb://bus.example;SharedAccessKeyName=n;SharedAccessKey=a2V5", "queue": "q"}
    return wish_of(reading_of(source_options(place, "browse"), schema(name)))


@pytest.mark.parametrize("name", [name for name, _ in COLUMNS])
def test_each_column_comes_out_of_the_sections_that_are_decoded_for_it_alone(name: str) -> None:
    found = decoded(TELLING, sections=wish_for(name).sections)
    (row,), (whole,) = (
        next(iter(rows_of(schema(name)).batches(SOURCE, [message]))).to_pylist()
        for message in (found, decoded(TELLING))
    )
    assert row == whole
    assert len(wish_for(name).sections) <= 1


@pytest.mark.parametrize(
    ("code", "empty"),
    [
        (peek_decoder.HEADER, {"delivery_count": None, "time_to_live_ms": None, "expires_at": None}),
        (
            PROPERTIES,
            dict.fromkeys(
                [
                    *("message_id", "session_id", "correlation_id", "subject", "content_type", "to", "reply_to"),
                    "reply_to_session_id",
                ]
            ),
        ),
        (
            APPLICATION,
            dict.fromkeys(["application_properties", "dead_letter_reason", "dead_letter_error_description"]),
        ),
    ],
)
def test_a_section_that_no_column_needs_is_passed_over_and_the_rest_is_as_ever(
    code: int, empty: dict[str, None]
) -> None:
    whole, found = decoded(TELLING), decoded(TELLING, sections=ALL - {code})
    assert whole is not None
    assert found is not None
    assert all(getattr(whole, name) for name in empty)
    assert found == whole._replace(**empty)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", sorted(ALL))
def test_a_section_that_is_passed_over_ends_where_it_says(code: int) -> None:
    at = TELLING.index(bytes([0, 0x53, code])) + 3
    for wrong in (0x40, 0xA0):
        other = bytearray(TELLING)
        other[at] = wrong
        assert decoded(bytes(other), sections=frozenset()) is None
    longer = bytearray(TELLING)
    longer[at + 1] += 1
    assert decoded(bytes(longer), sections=frozenset()) is None
    none = TELLING[:at] + b"\x45" + TELLING[at + 2 + TELLING[at + 1] :]
    assert (decoded(none, sections=frozenset()) is None) is False
