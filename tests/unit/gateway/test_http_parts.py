"""The parts of the HTTP APIs that need no server: targets, header values, BrokerProperties, pages, tiers, repeats."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest

from duobus.clock import Clock, Entropy
from duobus.codec import Symbol, Timestamp, application_properties, build_message, scan, with_made_id
from duobus.codec.sections import split_batch
from duobus.errors import ArgumentInvalid, MessageTooLarge, NotAllowed, ServerBusy, ServiceBusError
from duobus.gateway.rest.atom.paging import Page, cut, next_url, page_of
from duobus.gateway.rest.atom.resources import Resource, resource_of
from duobus.gateway.rest.repeatable_requests import REMEMBERED_MAX, REMEMBERED_MS, Done, RepeatableRequests
from duobus.gateway.rest.request_bodies import BodyBudget
from duobus.gateway.rest.request_target import PARAMETERS_MAX, TARGET_LENGTH_MAX, MethodUnknown, parse_target
from duobus.gateway.rest.runtime.broker_properties import BrokerProperties, read_header, write_header
from duobus.gateway.rest.runtime.header_values import (
    is_property,
    read_date,
    read_properties,
    read_value,
    write_date,
    write_properties,
)
from duobus.gateway.rest.runtime.requests import BATCH_MESSAGES_MAX, make_message, read_batch
from duobus.gateway.rest.runtime.routes import Call, call_of
from duobus.model.descriptions import QueueDescription, TopicDescription, check_tier
from duobus.model.metadata import MessageMetadata
from duobus.model.options import HttpOptions
from duobus.model.tiers import ALL, BASIC, PREMIUM, STANDARD, TIERS
from simulation.world.clock import SeededEntropy

# -- targets ----------------------------------------------------------------------------------------------------


def test_a_target_is_decoded_once_and_split_after_that() -> None:
    target = parse_target("/A%2Fb/%24x?%24Skip=1&$top=a+b%2B&empty")
    assert target.segments == ("A", "b", "$x")
    assert target.lower == ("a", "b", "$x")
    assert target.raw == ("a%2fb", "%24x")
    assert target.query == {"$skip": "1", "$top": "a b+", "empty": ""}
    assert parse_target("/a%252Fb").segments == ("a%2Fb",)


@pytest.mark.parametrize("text", ["/q", "/q/", "http://host:5300/q", "http://host/q/?x=1"])
def test_one_slash_at_the_end_and_an_authority_make_no_difference(text: str) -> None:
    assert parse_target(text).segments == ("q",)


@pytest.mark.parametrize(
    "text",
    [
        "/a/../b",
        "/./a",
        "/a//b",
        "/a%2F%2e%2e%2Fb",
        "/a%00b",
        "/a%0d%0ab",
        "/a\\b",
        "/a%5Cb",
        "/%ff",
        "/q?%ff=1",
        "/" + "a" * TARGET_LENGTH_MAX,
        "/q?" + "&".join(f"p{number}=1" for number in range(PARAMETERS_MAX + 1)),
    ],
)
def test_tricks_in_a_path_are_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalid):
        parse_target(text)


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/q", Resource("entity", "q")),
        ("/", Resource("entity", "")),
        ("/a/b/c", Resource("entity", "a/b/c")),
        ("/$Resources/Queues", Resource("queues")),
        ("/$resources/topics/", Resource("topics")),
        ("/$namespaceInfo", Resource("namespace")),
        ("/a/T/Subscriptions", Resource("subscriptions", "a/T")),
        ("/t/subscriptions/S", Resource("subscription", "t", "S")),
        ("/t/Subscriptions/s/Rules", Resource("rules", "t", "s")),
        ("/t/Subscriptions/s/rules/$Default", Resource("rule", "t", "s", "$Default")),
        ("/subscriptions", Resource("entity", "subscriptions")),
        ("/x/rules/y", Resource("entity", "x/rules/y")),
    ],
)
def test_the_path_of_a_management_request_is_searched_from_the_right(path: str, resource: Resource) -> None:
    assert resource_of(parse_target(path)) == resource


@pytest.mark.parametrize(
    ("method", "path", "call"),
    [
        ("POST", "/q/messages", Call("send", "q")),
        ("POST", "/a/b/Messages/", Call("send", "a/b")),
        ("POST", "/q/messages/head", Call("peek-lock", "q")),
        ("DELETE", "/q/$DeadLetterQueue/messages/HEAD", Call("receive-and-delete", "q/$DeadLetterQueue")),
        ("DELETE", "/q/messages/2/token", Call("complete", "q", "2", "token")),
        (
            "PUT",
            "/t/subscriptions/messages/messages/a%2Fb/token",
            Call("unlock", "t/subscriptions/messages", "a/b", "token"),
        ),
        ("POST", "/q/messages/a/messages/b/token", Call("renew", "q", "a/messages/b", "token")),
        ("PUT", "/messages", None),
        ("GET", "/t/subscriptions/messages", None),
    ],
)
def test_requests_for_messages_are_told_by_their_path_and_method(method: str, path: str, call: Call | None) -> None:
    assert call_of(method, parse_target(path)) == call


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/q/messages"), ("PUT", "/q/messages/head"), ("GET", "/q/messages/1/t"), ("POST", "/q/messages/1")],
)
def test_a_method_that_means_nothing_for_messages_is_refused(method: str, path: str) -> None:
    with pytest.raises(MethodUnknown):
        call_of(method, parse_target(path))


# -- header values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"text"', "text"),
        ('""', ""),
        ('"a \\"b\\" \\\\c"', 'a "b" \\c'),
        ('"\\u00e4\\ud83d"', "ä\ud83d"),
        ('"Wed, 02 Jul 2014 01:32:27 GMT"', Timestamp(1_404_264_747_000)),
        ("true", True),
        ("False", False),
        ("42", 42),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", 9223372036854775808.0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("High", "High"),
        ("1e9999", "1e9999"),
        ("12:30", "12:30"),
        ('"12"', "12"),
        ("", ""),
    ],
)
def test_a_header_becomes_a_property_of_the_type_that_it_is_written_in(text: str, value: Any) -> None:
    found = read_value(text)
    assert (type(found), found) == (type(value), value)


def test_a_quote_that_does_not_end_is_refused() -> None:
    for text in ('"', '"abc'):
        with pytest.raises(ArgumentInvalid):
            read_value(text, "Name")


def test_header_names_keep_their_case_and_those_of_http_are_no_properties() -> None:
    headers = [
        (b"Priority", b"High"),
        (b"priOrity", b"3"),
        (b"Content-Type", b"x"),
        (b"ACCEPT", b"x"),
        (b"X-Forwarded-For", b"x"),
        (b"If-Match", b"*"),
        (b"x-ms-client-request-id", b"1"),
        (b"authorization", b"secret"),
        (b"traceparent", b"00-1-2-01"),
    ]
    assert read_properties(headers) == {"Priority": "High", "priOrity": 3, "Diagnostic-Id": "00-1-2-01"}


def test_properties_become_headers_and_nothing_among_them_can_end_a_line() -> None:
    identity = uuid.UUID(int=1)
    written = write_properties(
        {
            "Text": 'a"b\\c',
            "Lines": "one\r\nSet-Cookie: x",
            "Wide": "ä€😀",
            "When": Timestamp(1_404_264_747_999),
            "Number": 7,
            "Real": 0.5,
            "Flag": True,
            "Id": identity,
            "Bytes": b"x",
            "Nothing": None,
            "List": [1],
            "Infinite": float("inf"),
            "a name": "x",
            "a\r\nname": "x",
            "Content-Length": 5,
            "transfer-encoding": "chunked",
            "Connection": "close",
            "": "x",
        }
    )
    assert dict(written) == {
        "Text": '"a\\"b\\\\c"',
        "Lines": '"one\\u000d\\u000aSet-Cookie: x"',
        "Wide": '"\\u00e4\\u20ac\\ud83d\\ude00"',
        "When": '"Wed, 02 Jul 2014 01:32:27 GMT"',
        "Number": "7",
        "Real": "0.5",
        "Flag": "true",
        "Id": f'"{identity}"',
    }


def test_any_text_survives_the_way_through_a_header() -> None:
    chance = random.Random(3)
    for _ in range(2_000):
        text = "".join(
            chr(chance.choice((10, 13, 34, 92, 117, 65, 228, 8364, 0, 127))) for _ in range(chance.randrange(8))
        )
        ((_, written),) = write_properties({"P": text})
        assert written.isascii()
        assert written.isprintable()
        assert read_value(written) == text


def test_framing_headers_are_never_properties() -> None:
    for name in ("Content-Length", "Transfer-Encoding", "Connection", "Host", "Set-Cookie", "Location", "Upgrade"):
        assert not is_property(name)


@pytest.mark.parametrize("text", ["Wed, 02 Jul 2014 01:32:27 GMT", "2014-07-02T01:32:27Z", "2014-07-02T01:32:27"])
def test_times_are_read_in_both_forms(text: str) -> None:
    found = read_date(text)
    assert found == 1_404_264_747_000
    assert write_date(found) == "Wed, 02 Jul 2014 01:32:27 GMT"


@pytest.mark.parametrize("text", ["", "soon", "Wed, 99 Jul 2014", ",", "9" * 400, "0001-01-01T00:00:00"])
def test_a_text_that_is_no_time_reads_as_none(text: str) -> None:
    assert read_date(text) is None or text.startswith("0001")


# -- BrokerProperties -------------------------------------------------------------------------------------------


def test_broker_properties_are_read_in_any_case_and_also_as_strings() -> None:
    found = read_header(
        '{"messageid":"m","LABEL":"l","TimeToLive":"10.5","ScheduledEnqueueTimeUtc":"Wed, 02 Jul 2014 01:32:27 GMT",'
        '"SessionId":"s","PartitionKey":"s","CorrelationId":5,"DeliveryCount":"x","Unknown":[1],"To":null}'
    )
    assert found == BrokerProperties(
        message_id="m",
        label="l",
        ttl_ms=10_500,
        scheduled_ms=1_404_264_747_000,
        session_id="s",
        partition_key="s",
        correlation_id="5",
    )
    assert read_header('{"TimeToLiveTimeSpan":"1.00:00:40.5"}').ttl_ms == 86_440_500
    assert read_header('{"TimeToLive":922337203685.47754}').ttl_ms is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"TimeToLive":0}',
        '{"TimeToLive":-1}',
        '{"TimeToLive":"NaN"}',
        '{"TimeToLive":true}',
        '{"TimeToLiveTimeSpan":"soon"}',
        '{"ScheduledEnqueueTimeUtc":"soon"}',
        '{"ScheduledEnqueueTimeUtc":5}',
        '{"MessageId":["x"]}',
        '{"MessageId":"' + "x" * 129 + '"}',
        '{"Label":"' + "x" * 4097 + '"}',
        '{"Label":"\\ud800"}',
        "[" * 100_000,
    ],
)
def test_wrong_broker_properties_are_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalid):
        read_header(text)


def test_a_session_id_with_another_partition_key_is_not_allowed() -> None:
    """PE11."""
    with pytest.raises(NotAllowed, match="must be equal"):
        read_header('{"SessionId":"a","PartitionKey":"b"}')


def test_broker_properties_are_written_on_one_line_of_ascii() -> None:
    written = write_header({"Label": "ä\r\n", "SequenceNumber": 1 << 62, "To": None})
    assert written == '{"Label":"\\u00e4\\r\\n","SequenceNumber":4611686018427387904}'


# -- messages ---------------------------------------------------------------------------------------------------


def test_a_request_becomes_a_message_with_its_properties_where_amqp_has_them() -> None:
    about = BrokerProperties(
        message_id="m", label="l", to="t", reply_to="r", correlation_id="c", session_id="s", reply_to_session_id="rs"
    )
    about.ttl_ms, about.via_partition_key = 5, "v"
    made = make_message(b"body", about, {"P": 1}, "text/plain", Entropy())
    found, data = split_batch(made.bare)
    assert data == [b"body"]
    assert (found.message_id, found.subject, found.to, found.reply_to) == ("m", "l", "t", "r")
    assert (found.correlation_id, found.group_id, found.reply_to_group_id) == ("c", "s", "rs")
    assert found.content_type == "text/plain"
    assert application_properties(made.bare) == {"P": 1}
    assert made.metadata == MessageMetadata(ttl_ms=5, session_id="s", via_partition_key="v")
    assert made.key == b"ss"


def test_a_message_without_an_id_gets_one_of_32_digits() -> None:
    made = make_message(b"", BrokerProperties(), {}, None, Entropy())
    identity = scan(made.bare).message_id
    assert isinstance(identity, str)
    assert len(identity) == 32
    assert int(identity, 16) >= 0
    assert made.metadata is None
    assert made.key is None


def test_properties_beyond_their_limits_are_refused() -> None:
    for properties in ({"a": "x" * 40_000}, {f"p{number}": "x" * 30_000 for number in range(3)}):
        with pytest.raises(MessageTooLarge):
            make_message(b"", BrokerProperties(), properties, None, Entropy())
    with pytest.raises(ArgumentInvalid):
        make_message(b"", BrokerProperties(), {}, "text/ä", Entropy())


def test_a_batch_is_read_with_all_its_forms_of_bodies() -> None:
    made = read_batch(
        b'[{"Body":"\xc3\xa4","BrokerProperties":{"Label":"M1","TimeToLiveTimeSpan":"0.00:00:40"},'
        b'"UserProperties":{"Priority":"Low","N":1,"F":1.5,"B":true,"Nothing":null}},'
        b'{"Body":"AAE=","IsBodyBase64":true},{"body":{"a":1}},{}]',
        Entropy(),
    )
    assert [split_batch(message.bare)[1] for message in made] == [["ä".encode()], [b"\x00\x01"], [b'{"a": 1}'], [b""]]
    assert application_properties(made[0].bare) == {"Priority": "Low", "N": 1, "F": 1.5, "B": True}
    assert scan(made[0].bare).subject == "M1"
    assert made[0].metadata == MessageMetadata(ttl_ms=40_000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b'[{"Body":"a"},{"Body":"?","IsBodyBase64":true}]',
        b'[{"UserProperties":{"a":[1]}}]',
        b'[{"UserProperties":{"a":99999999999999999999}}]',
        b'[{"BrokerProperties":5}]',
        b'[{"Body":"\\ud800"}]',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_wrong_batch_is_refused(body: bytes) -> None:
    with pytest.raises(ArgumentInvalid):
        read_batch(body, Entropy())


def test_a_batch_of_too_many_messages_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        read_batch(b"[" + b"{}," * BATCH_MESSAGES_MAX + b"{}]", Entropy())


# -- pages ------------------------------------------------------------------------------------------------------


def test_pages_are_cut_in_the_order_of_names_and_point_to_the_next() -> None:
    names = [f"Q{number:03}" for number in range(250)] + ["a"]
    page = page_of({})
    found, more = cut(reversed(names), page, str)
    assert (found[0], len(found), more) == ("a", 100, True)
    assert next_url("https://h/$Resources/queues", page) == "https://h/$Resources/queues?$skip=100&$top=100"
    found, more = cut(names, Page(200, 100), str)
    assert (len(found), more) == (51, False)
    assert cut(names, page_of({"$top": "0"}), str) == ([], False)
    assert page_of({"$top": "1000"}).top == 100


def test_a_list_can_be_cut_to_a_prefix_of_its_names() -> None:
    page = page_of({"$filter": "startswith(path, 'X-servicebus-transfer/') eq true", "$top": "1"})
    found, more = cut(["x-servicebus-transfer/1", "x-servicebus-transfer/0", "y"], page, str)
    assert (found, more) == (["x-servicebus-transfer/0"], True)
    following = parse_target(next_url("https://h/$Resources/queues", page))
    assert page_of(following.query) == Page(1, 1, "x-servicebus-transfer/")


@pytest.mark.parametrize(
    "query",
    [
        {"$skip": "-1"},
        {"$top": "ten"},
        {"$skip": "9" * 11},
        {"$filter": "MessageCount gt 5"},
        {"$filter": "startswith(path"},
    ],
)
def test_a_wrong_page_or_filter_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ArgumentInvalid):
        page_of(query)


# -- tiers and versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "changes"),
    [
        (BASIC, {"requires_session": True}),
        (BASIC, {"auto_delete_on_idle_ms": 300_000}),
        (BASIC, {"default_message_time_to_live_ms": None}),
        (BASIC, {"default_message_time_to_live_ms": 15 * 86_400_000}),
        (STANDARD, {"max_message_size_bytes": 1 << 20}),
        (STANDARD, {"max_size_in_megabytes": 10_240}),
        (PREMIUM, {"max_message_size_bytes": 1023 * 1024}),
        (PREMIUM, {"enable_express": True, "max_message_size_bytes": 1 << 20}),
    ],
)
def test_a_tier_refuses_what_it_does_not_have(tier: Any, changes: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"name": "q", "default_message_time_to_live_ms": 1_000} | changes
    with pytest.raises(ArgumentInvalid, match=tier.name):
        check_tier(QueueDescription(**whole), tier)
    check_tier(QueueDescription(**whole), ALL)


def test_the_basic_tier_has_no_topics_and_every_tier_its_own_defaults() -> None:
    with pytest.raises(ArgumentInvalid):
        check_tier(TopicDescription(name="t", default_message_time_to_live_ms=1_000), BASIC)
    for tier in TIERS.values():
        default = QueueDescription(
            name="q",
            default_message_time_to_live_ms=tier.profile.time_to_live_ms_default,
            max_message_size_bytes=tier.message_kib_default * 1024,
        )
        check_tier(default, tier)


def test_partitioned_entities_need_a_newer_version_only_when_that_is_asked_for() -> None:
    """PE7."""
    HttpOptions().demand_version({}, True)
    strict = HttpOptions(strict_api_version=True)
    strict.demand_version({"api-version": "2013-10"}, True)
    strict.demand_version({}, False)
    for query in ({}, {"api-version": "2012-03"}):
        with pytest.raises(ArgumentInvalid, match="2013-10"):
            strict.demand_version(query, True)


# -- repeats and memory -----------------------------------------------------------------------------------------


class ManualClock(Clock):
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at_ms = 1

    def monotonic_ms(self) -> int:
        return self.at_ms


def test_a_request_that_comes_again_is_answered_what_it_was_answered_first() -> None:
    async def scenario() -> None:
        clock, repeats, runs = ManualClock(), None, []
        repeats = RepeatableRequests(clock)

        async def work() -> Done:
            runs.append(1)
            await asyncio.sleep(0)
            return Done(201, f"run {len(runs)}", "")

        first, again = await asyncio.gather(repeats.once("id", (b"a",), work), repeats.once("id", (b"a",), work))
        assert first == again == await repeats.once("id", (b"a",), work)
        # Another body, another id, or none: another request.
        assert (await repeats.once("id", (b"b",), work)).text == "run 2"
        assert (await repeats.once("other", (b"a",), work)).text == "run 3"
        assert (await repeats.once(None, (b"a",), work)).text == "run 4"
        assert (await repeats.once("x" * 129, (b"a",), work)).text == "run 5"
        clock.at_ms += REMEMBERED_MS
        assert (await repeats.once("id", (b"a",), work)).text == "run 6"
        for number in range(REMEMBERED_MAX):
            await repeats.once(f"n{number}", (), work)
        assert (await repeats.once("id", (b"a",), work)).text != "run 6"
        await repeats.close()

    asyncio.run(scenario())


def test_a_failure_is_not_remembered_and_a_caller_that_leaves_stops_nothing() -> None:
    async def scenario() -> None:
        repeats, runs = RepeatableRequests(ManualClock()), []
        gate = asyncio.Event()

        async def failing() -> Done:
            runs.append("failed")
            raise ServerBusy("busy")

        async def slow() -> Done:
            await gate.wait()
            runs.append("done")
            return Done(200, "", "")

        for _ in range(2):
            with pytest.raises(ServiceBusError):
                await repeats.once("id", (), failing)
        assert runs == ["failed", "failed"]
        caller = asyncio.ensure_future(repeats.once("slow", (), slow))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert repeats.running == 1
        gate.set()
        await repeats.close()
        assert runs[-1] == "done"

    asyncio.run(scenario())


def test_bodies_beyond_the_memory_for_them_are_refused_until_there_is_room() -> None:
    room = BodyBudget(10)
    room.take(10)
    with pytest.raises(ServerBusy):
        room.take(1)
    room.give(5)
    room.take(5)
    assert room.used == 10


def test_ids_that_are_drawn_ahead_are_uuids_and_never_come_twice() -> None:
    entropy = SeededEntropy(1)
    texts = [entropy.uuid_text() for _ in range(200)]
    assert len(set(texts)) == 200
    assert all(uuid.UUID(text).version == 4 and uuid.UUID(text).hex == text for text in texts)


def test_a_plain_message_is_built_as_any_other() -> None:
    for content_type in (None, "text/plain", "x" * 300):
        built = make_message(b"body", BrokerProperties(), {}, content_type, SeededEntropy(1)).bare
        text = SeededEntropy(1).uuid_text()
        fields = [None] if content_type is None else [*[None] * 6, Symbol(content_type)]
        assert built == with_made_id(build_message(fields, data=b"body"), 0, text.encode())
