"""Descriptions of every kind to XML and back, and XML that means harm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duobus.errors import ArgumentInvalid, ServiceBusError
from duobus.gateway.rest.atom.request_origin import RequestOrigin
from duobus.gateway.rest.atom.xml import documents
from duobus.gateway.rest.atom.xml.entity import (
    Filters,
    default_rule_of,
    read_queue,
    read_subscription,
    read_topic,
    write_queue,
    write_subscription,
    write_topic,
)
from duobus.gateway.rest.atom.xml.reader import (
    ATTRIBUTES_MAX,
    DEPTH_MAX,
    ELEMENTS_MAX,
    INSTANCE,
    SERVICE_BUS,
    Element,
    read_xml,
)
from duobus.gateway.rest.atom.xml.rule import read_rule, write_rule
from duobus.gateway.rest.atom.xml.runtime_info import RuntimeInfo
from duobus.gateway.rest.atom.xml.typed_values import READERS, VALUES_MAX
from duobus.model.descriptions import (
    AccessRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    TypedValue,
    check_queue,
    check_subscription,
    check_topic,
)

NOW_MS = 1_800_000_000_123
PLACE = RequestOrigin("https", "bus.example:5300", "ns", lambda host: host == "bus.example")

RULES = (
    AccessRule(
        name="ops",
        primary_key="a&b<c>",
        secondary_key='d"e',
        rights=7,
        created_at_ms=NOW_MS - 5_000,
        modified_at_ms=NOW_MS - 4_000,
    ),
    AccessRule(name="sends", primary_key="k", secondary_key="l", rights=2, created_at_ms=1, modified_at_ms=2),
)

QUEUE = QueueDescription(
    name="A/b.c-d_e",
    lock_duration_ms=13_000,
    max_size_in_megabytes=2048,
    requires_duplicate_detection=True,
    requires_session=True,
    default_message_time_to_live_ms=86_400_000 * 3 + 500,
    dead_lettering_on_message_expiration=True,
    duplicate_detection_history_time_window_ms=60_000,
    max_delivery_count=77,
    enable_batched_operations=False,
    authorization_rules=RULES,
    status="SendDisabled",
    user_metadata="ü & <\n\t\"'>",
    support_ordering=True,
    auto_delete_on_idle_ms=600_000,
    enable_partitioning=True,
    forward_dead_lettered_messages_to="dead",
    forward_dead_lettered_messages_to_sent="https://bus.example/dead",
    max_message_size_bytes=1024 * 1024,
    created_at_ms=NOW_MS - 10_000,
    updated_at_ms=NOW_MS,
    accessed_at_ms=NOW_MS - 1_000,
    redelivery_delay_ms=None,
)
TOPIC = TopicDescription(
    name="T",
    default_message_time_to_live_ms=1_000,
    max_size_in_megabytes=5120,
    requires_duplicate_detection=True,
    duplicate_detection_history_time_window_ms=7 * 86_400_000,
    enable_batched_operations=False,
    filtering_messages_before_publishing=True,
    authorization_rules=RULES[1:],
    status="Disabled",
    user_metadata="m",
    support_ordering=False,
    auto_delete_on_idle_ms=300_000,
    enable_partitioning=True,
    enable_subscription_partitioning=True,
    max_message_size_bytes=2048 * 1024,
    created_at_ms=NOW_MS - 10_000,
    updated_at_ms=NOW_MS,
)
SUBSCRIPTION = SubscriptionDescription(
    name="s",
    lock_duration_ms=300_000,
    requires_session=True,
    default_message_time_to_live_ms=90_061_500,
    dead_lettering_on_message_expiration=True,
    dead_lettering_on_filter_evaluation_exceptions=False,
    max_delivery_count=2_147_483_647,
    enable_batched_operations=False,
    status="ReceiveDisabled",
    forward_dead_lettered_messages_to="x/y",
    forward_dead_lettered_messages_to_sent="x/y",
    auto_delete_on_idle_ms=86_400_000,
    user_metadata="meta",
    created_at_ms=NOW_MS - 10_000,
    updated_at_ms=NOW_MS,
)


def described(kind: str, inside: str) -> Element:
    """A description as a client would send back what it has read."""
    url = PLACE.url("x")
    text = documents.entry(kind, inside, url=url, title="x", author="ns", created_at_ms=NOW_MS, updated_at_ms=NOW_MS)
    return documents.read_entry(text.encode())


def element(kind: str, inside: str) -> Element:
    return read_xml(f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inside}</{kind}>'.encode())


def new_key() -> str:
    return "generated"


def queue_of(inside: str, kept: QueueDescription | None = None) -> QueueDescription:
    return read_queue(element("QueueDescription", inside), "q", kept, PLACE, new_key, NOW_MS)


def test_a_queue_written_and_read_again_is_the_same_in_every_property() -> None:
    check_queue(QUEUE)
    node = described(documents.QUEUE, write_queue(QUEUE, RuntimeInfo(), PLACE))
    assert read_queue(node, QUEUE.name, QUEUE, PLACE, new_key, NOW_MS) == QUEUE
    # Also for somebody who makes another queue of it, but for the times.
    copied = read_queue(node, QUEUE.name, None, PLACE, new_key, NOW_MS)
    own = {"created_at_ms": NOW_MS, "accessed_at_ms": 0, "authorization_rules": copied.authorization_rules}
    assert copied == msgspec.structs.replace(QUEUE, **own)
    assert [(rule.name, rule.primary_key, rule.rights) for rule in copied.authorization_rules] == [
        ("ops", "a&b<c>", 7),
        ("sends", "k", 2),
    ]


def test_a_topic_written_and_read_again_is_the_same_in_every_property() -> None:
    check_topic(TOPIC)
    node = described(documents.TOPIC, write_topic(TOPIC, RuntimeInfo(), Filters(3, 4, 5)))
    assert read_topic(node, TOPIC.name, TOPIC, new_key, NOW_MS) == TOPIC
    told = [node.text_of(f"{name}Count") for name in ("Subscription", "SqlFilter", "CorrelationFilter")]
    assert told == ["3", "4", "5"]


def test_a_subscription_written_and_read_again_is_the_same_in_every_property() -> None:
    check_subscription(SUBSCRIPTION)
    node = described(documents.SUBSCRIPTION, write_subscription(SUBSCRIPTION, RuntimeInfo(), PLACE))
    assert read_subscription(node, "s", SUBSCRIPTION, PLACE, NOW_MS) == SUBSCRIPTION


@pytest.mark.parametrize(
    ("written", "order"),
    [
        (
            write_queue(msgspec.structs.replace(QUEUE, requires_session=False, forward_to="f"), RuntimeInfo(), PLACE),
            "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
            "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount "
            "EnableBatchedOperations SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status "
            "ForwardTo UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle "
            "EnablePartitioning ForwardDeadLetteredMessagesTo EntityAvailabilityStatus EnableExpress "
            "MaxMessageSizeInKilobytes",
        ),
        (
            write_topic(TOPIC, RuntimeInfo(), Filters(0, 0, 0)),
            "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection "
            "DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing "
            "IsAnonymousAccessible AuthorizationRules Status UserMetadata CreatedAt UpdatedAt AccessedAt "
            "SupportOrdering CountDetails SubscriptionCount SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle "
            "EnablePartitioning EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress "
            "MaxMessageSizeInKilobytes",
        ),
        (
            write_subscription(msgspec.structs.replace(SUBSCRIPTION, forward_to="f"), RuntimeInfo(), PLACE),
            "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
            "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status "
            "ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle "
            "EntityAvailabilityStatus UserMetadata",
        ),
    ],
    ids=["queue", "topic", "subscription"],
)
def test_elements_are_written_in_the_order_of_the_cloud(written: str, order: str) -> None:
    assert [child.name for child in element("D", written).children] == order.split()


def test_what_a_request_leaves_out_has_its_default() -> None:
    assert queue_of("") == QueueDescription(name="q", created_at_ms=NOW_MS, updated_at_ms=NOW_MS)


def test_an_update_replaces_all_but_what_cannot_change_and_what_has_no_element() -> None:
    kept = msgspec.structs.replace(QUEUE, requires_session=False, redelivery_delay_ms=1_000, delayed_abandon=True)
    found = queue_of("", kept)
    assert found == QueueDescription(
        name=kept.name,
        requires_duplicate_detection=True,
        enable_partitioning=True,
        created_at_ms=kept.created_at_ms,
        updated_at_ms=NOW_MS,
        accessed_at_ms=kept.accessed_at_ms,
        redelivery_delay_ms=1_000,
        delayed_abandon=True,
    )


def test_elements_are_read_in_any_order_and_strange_or_nil_ones_left_alone() -> None:
    found = queue_of(
        '<Unknown><LockDuration>PT9S</LockDuration></Unknown><o:MaxDeliveryCount xmlns:o="other">9</o:MaxDeliveryCount>'
        '<MaxDeliveryCount>3</MaxDeliveryCount><ForwardTo i:nil="true"/><UserMetadata/>'
        "<MessageCount>nonsense</MessageCount><LockDuration> PT10S </LockDuration><RequiresSession>1</RequiresSession>"
    )
    assert (found.max_delivery_count, found.lock_duration_ms, found.requires_session) == (3, 10_000, True)
    assert (found.forward_to, found.user_metadata) == (None, None)


@pytest.mark.parametrize(
    "inside",
    [
        "<LockDuration>P1Y</LockDuration>",
        "<LockDuration>-PT1M</LockDuration>",
        "<LockDuration>soon</LockDuration>",
        "<LockDuration>P10675199DT2H48M5.4775807S</LockDuration>",
        "<MaxDeliveryCount>ten</MaxDeliveryCount>",
        "<MaxDeliveryCount>" + "9" * 30 + "</MaxDeliveryCount>",
        "<RequiresSession>perhaps</RequiresSession>",
        "<ForwardTo>sb://elsewhere.example/q</ForwardTo>",
        "<ForwardTo>http://[::1/q</ForwardTo>",
        "<ForwardTo>a//b</ForwardTo>",
        "<ForwardTo>a?b</ForwardTo>",
    ],
)
def test_a_wrong_value_is_told_with_the_name_of_its_element(inside: str) -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        queue_of(inside)
    name = inside[1:].partition(">")[0]
    assert name in str(caught.value) or "name" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["P10675199DT2H48M5.4775807S", "P10675199DT2H48M5.477539S", "P10675199D", "P99999999D"]
)
def test_a_duration_that_comes_back_a_little_changed_is_for_ever_still(text: str) -> None:
    found = queue_of(f"<DefaultMessageTimeToLive>{text}</DefaultMessageTimeToLive>")
    assert found.default_message_time_to_live_ms is None


@pytest.mark.parametrize(
    "text",
    [
        "t/u",
        "sb://bus.example/t/u",
        "sb://bus.example:5671/t/u/",
        "https://bus.example/t%2Fu",
        "AMQPS://bus.example/t/u",
    ],
)
def test_a_forwarding_target_is_a_name_or_an_address_of_this_namespace_and_told_as_it_was_sent(text: str) -> None:
    found = queue_of(f"<ForwardTo>{text}</ForwardTo><AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle>")
    assert found.forward_to == "t/u"
    written = element("Q", write_queue(found, RuntimeInfo(), PLACE))
    assert written.text_of("ForwardTo") == text
    # It is never idle, as the broker receives from it; it is told as it was set all the same.
    assert written.text_of("AutoDeleteOnIdle") == "PT5M"


def test_a_forwarding_target_that_no_client_has_sent_or_that_is_another_now_is_told_as_an_address() -> None:
    found = queue_of("<ForwardTo>https://bus.example/T</ForwardTo>")
    for changed in (
        msgspec.structs.replace(found, forward_to="other", forward_to_sent=None),
        msgspec.structs.replace(found, forward_to="other"),
    ):
        assert element("Q", write_queue(changed, RuntimeInfo(), PLACE)).text_of("ForwardTo") == (
            "sb://bus.example:5300/other"
        )


def test_an_answer_to_a_change_tells_neither_use_nor_counts() -> None:
    for written in (
        write_queue(QUEUE, RuntimeInfo(), PLACE, is_answer=True),
        write_topic(TOPIC, RuntimeInfo(), Filters(0, 0, 0), is_answer=True),
        write_subscription(SUBSCRIPTION, RuntimeInfo(), PLACE, is_answer=True),
    ):
        assert "AccessedAt" not in written
        assert "CountDetails" not in written
        assert "<UpdatedAt>" in written


def test_a_subscription_was_accessed_when_it_was_created_and_a_queue_never() -> None:
    subscription = element("S", write_subscription(SUBSCRIPTION, RuntimeInfo(), PLACE))
    assert subscription.text_of("AccessedAt") == subscription.text_of("CreatedAt")
    queue = element("Q", write_queue(QueueDescription(name="q", created_at_ms=NOW_MS), RuntimeInfo(), PLACE))
    assert queue.text_of("AccessedAt") == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(("sent", "stored"), [(2048, 2048), (32768, 2048), (1024, 1024), (16384, 1024)])
def test_the_size_of_a_partitioned_queue_is_told_16_times_and_taken_both_ways(sent: int, stored: int) -> None:
    kept = QueueDescription(name="q", enable_partitioning=True, max_size_in_megabytes=2048)
    found = queue_of(f"<MaxSizeInMegabytes>{sent}</MaxSizeInMegabytes>", kept)
    assert found.max_size_in_megabytes == stored
    assert element("Q", write_queue(found, RuntimeInfo(), PLACE)).text_of("MaxSizeInMegabytes") == str(16 * stored)


def test_unset_texts_are_left_out_and_never_empty() -> None:
    written = write_queue(QueueDescription(name="q"), RuntimeInfo(), PLACE)
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo", "UserMetadata"):
        assert name not in written
    assert "nil" not in written


def test_values_stay_within_what_the_dotnet_client_can_read() -> None:
    queue = QueueDescription(name="q", duplicate_detection_history_time_window_ms=5_000)
    assert "<DuplicateDetectionHistoryTimeWindow>PT20S<" in write_queue(queue, RuntimeInfo(), PLACE)


def test_counts_have_one_attribute_and_a_prefix_on_every_child() -> None:
    numbers = RuntimeInfo(5, 4, 3, 2, 1, size_bytes=99, availability="Limited")
    node = element("Q", write_queue(QUEUE, numbers, PLACE))
    details = next(child for child in node.children if child.name == "CountDetails")
    assert list(details.prefixes) == ["d2p1"]
    assert [(child.name, child.text) for child in details.children] == [
        ("ActiveMessageCount", "5"),
        ("DeadLetterMessageCount", "4"),
        ("ScheduledMessageCount", "3"),
        ("TransferMessageCount", "2"),
        ("TransferDeadLetterMessageCount", "1"),
    ]
    assert (node.text_of("MessageCount"), node.text_of("SizeInBytes")) == ("15", "99")
    assert node.text_of("EntityAvailabilityStatus") == "Limited"


def test_a_topic_tells_only_what_is_scheduled() -> None:
    node = element("T", write_topic(TOPIC, RuntimeInfo(5, 4, 3), Filters(0, 0, 0)))
    details = next(child for child in node.children if child.name == "CountDetails")
    assert [child.text for child in details.children] == ["0", "0", "3", "0", "0"]


def test_access_rules_keep_their_keys_and_get_some_where_they_have_none_and_times_only_when_they_are_sent() -> None:
    inside = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
        "<CreatedTime>2026-11-21T00:20:27.1234567Z</CreatedTime><ModifiedTime>0001-01-01T00:00:00</ModifiedTime>"
        "<KeyName>sends</KeyName></AuthorizationRule><AuthorizationRule><Rights><AccessRights>Listen</AccessRights>"
        "</Rights><KeyName>new</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    kept = msgspec.structs.replace(QUEUE, requires_session=False)
    sends, new = queue_of(inside, kept).authorization_rules
    assert sends == msgspec.structs.replace(RULES[1], created_at_ms=1_795_220_427_123, modified_at_ms=0)
    written = write_queue(queue_of(inside, kept), RuntimeInfo(), PLACE)
    assert written.count("CreatedTime>") == 2
    assert "ModifiedTime" not in written
    with pytest.raises(ArgumentInvalid, match="CreatedTime"):
        queue_of(inside.replace("2026-11-21", "soon"))
    assert (new.primary_key, new.secondary_key, new.rights) == ("generated", "generated", 1)
    assert (new.created_at_ms, new.modified_at_ms) == (0, 0)


@pytest.mark.parametrize(
    "inside",
    [
        "<KeyName>a b</KeyName>",
        "<KeyName/>",
        "<KeyName>k</KeyName><PrimaryKey>%s</PrimaryKey>" % ("x" * 257),
        "<KeyName>k</KeyName><Rights><AccessRights>Fly</AccessRights></Rights>",
    ],
)
def test_a_wrong_access_rule_is_refused(inside: str) -> None:
    with pytest.raises(ArgumentInvalid):
        queue_of(f"<AuthorizationRules><AuthorizationRule>{inside}</AuthorizationRule></AuthorizationRules>")


# -- rules ------------------------------------------------------------------------------------------------------

VALUES = {
    "string": " a & b ",
    "int": "-2147483648",
    "long": "9223372036854775807",
    "short": "-1",
    "byte": "127",
    "unsignedInt": "4294967295",
    "unsignedLong": "18446744073709551615",
    "unsignedShort": "1",
    "unsignedByte": "255",
    "double": "1.5E300",
    "float": "INF",
    "decimal": "0.10",
    "boolean": "true",
    "dateTime": "2026-01-02T03:04:05",
    "duration": "P1DT2H",
    "guid": "7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547",
    "base64Binary": "AAEC",
}
PARAMETERS = {f"@{name}": TypedValue(name, text) for name, text in VALUES.items()}


PROPERTIES = {key: {"type": one.type, "value": one.value} for key, one in PARAMETERS.items()}


@pytest.mark.parametrize(
    "rule",
    [
        RuleDescription(name="$Default"),
        RuleDescription(name="f", filter_type="False"),
        RuleDescription(name="s", filter_type="Sql", sql_filter="a < @int AND b = '&'", sql_parameters=PARAMETERS),
        RuleDescription(
            name="a", filter_type="Sql", sql_filter="1=1", sql_action="SET x = @string", action_parameters=PARAMETERS
        ),
        RuleDescription(
            name="c",
            filter_type="Correlation",
            correlation_filter={
                "CorrelationId": "c",
                "MessageId": "m",
                "To": "t",
                "ReplyTo": "r",
                "Label": "l",
                "SessionId": "s",
                "ReplyToSessionId": "rs",
                "ContentType": "ct",
                "Properties": PROPERTIES,
            },
        ),
    ],
    ids=lambda rule: str(rule.name),
)
def test_a_rule_written_and_read_again_is_the_same_in_every_property(rule: RuleDescription) -> None:
    assert read_rule(described(documents.RULE, write_rule(rule))) == rule


def test_a_null_property_of_a_correlation_filter_which_amqp_can_bring_is_not_written() -> None:
    given = RuleDescription(
        name="a", filter_type="Correlation", correlation_filter={"Label": "l", "Properties": {"k": None, "n": "v"}}
    )
    read = read_rule(described(documents.RULE, write_rule(given)))
    assert read.correlation_filter == {"Label": "l", "Properties": {"n": {"type": "string", "value": "v"}}}


def test_every_type_of_a_value_has_a_reader() -> None:
    assert set(VALUES) == set(READERS)


def test_values_are_written_as_the_javascript_sdk_wants_them() -> None:
    written = write_rule(
        RuleDescription(name="s", filter_type="Sql", sql_filter="x", sql_parameters={"@x": TypedValue("int", "1")})
    )
    assert '<Filter i:type="SqlFilter">' in written
    assert '<Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema" i:type="d6p1:int">1</Value>' in written


def test_a_rule_as_python_sends_it_is_read() -> None:
    node = read_xml(
        b'<RuleDescription xmlns="%s" xmlns:xsi="%s"><Filter xsi:type="SqlFilter"><SqlExpression>a=@x</SqlExpression>'
        b"<CompatibilityLevel>20</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@x</Key>"
        b'<Value xsi:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1</Value>'
        b"</KeyValueOfstringanyType></Parameters><RequiresPreprocessing>true</RequiresPreprocessing></Filter>"
        b'<Action xsi:type="SqlRuleAction"><SqlExpression>SET b=1</SqlExpression></Action><Name>r1</Name>'
        b"</RuleDescription>" % (SERVICE_BUS.encode(), INSTANCE.encode())
    )
    assert read_rule(node) == RuleDescription(
        name="r1",
        filter_type="Sql",
        sql_filter="a=@x",
        sql_parameters={"@x": TypedValue("int", "1")},
        sql_action="SET b=1",
    )


def test_a_subscription_may_bring_the_rule_that_stands_in_for_the_default_one() -> None:
    node = element(
        "SubscriptionDescription",
        '<DefaultRuleDescription><Filter i:type="FalseFilter"/><Name>mine</Name></DefaultRuleDescription>',
    )
    rule = default_rule_of(node)
    assert rule is not None
    assert read_rule(rule) == RuleDescription(name="mine", filter_type="False")
    assert default_rule_of(element("SubscriptionDescription", "")) is None


@pytest.mark.parametrize(
    "inside",
    [
        "<Filter/>",
        '<Filter i:type="SqlFilterExpression"/>',
        '<Filter i:type="SqlFilter"/>',
        '<Filter i:type="CorrelationFilter"/>',
        '<Action i:type="SqlRuleAction"/>',
        '<Action i:type="Explode"/>',
    ],
)
def test_an_unknown_or_empty_filter_or_action_is_refused(inside: str) -> None:
    with pytest.raises(ArgumentInvalid):
        read_rule(element("RuleDescription", inside))


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int", "2147483648"),
        ("int", "1.5"),
        ("int", "9" * 5000),
        ("boolean", "yes"),
        ("dateTime", "yesterday"),
        ("guid", "x"),
        ("double", "1,5"),
        ("duration", "P1X"),
        ("base64Binary", "?"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused(type_name: str, text: str) -> None:
    pair = (
        f'<KeyValueOfstringanyType><Key>k</Key><Value i:type="x:{type_name}">{text}</Value></KeyValueOfstringanyType>'
    )
    node = element("RuleDescription", f'<Filter i:type="CorrelationFilter"><Properties>{pair}</Properties></Filter>')
    with pytest.raises(ArgumentInvalid, match=type_name):
        read_rule(node)


def test_an_unknown_type_reads_as_a_string_and_too_many_values_are_refused() -> None:
    pair = '<KeyValueOfstringanyType><Key>k{}</Key><Value i:type="x:wide">v</Value></KeyValueOfstringanyType>'
    frame = '<Filter i:type="CorrelationFilter"><Properties>{}</Properties></Filter>'
    read = read_rule(element("RuleDescription", frame.format(pair.format(1))))
    assert read.correlation_filter == {"Properties": {"k1": {"type": "string", "value": "v"}}}
    many = "".join(pair.format(number) for number in range(VALUES_MAX + 1))
    with pytest.raises(ArgumentInvalid, match="more than"):
        read_rule(element("RuleDescription", frame.format(many)))


# -- documents and hostile XML ----------------------------------------------------------------------------------


def test_a_feed_has_two_links_when_a_page_follows_and_else_one() -> None:
    more = read_xml(documents.feed("Queues", ["<entry/>"], url="u?a&b", following="n", updated_at_ms=1).encode())
    links = [child.attributes for child in more.children if child.name == "link"]
    assert [(link["", "rel"], link["", "href"]) for link in links] == [("self", "u?a&b"), ("next", "n")]
    last = read_xml(documents.feed("Queues", [], url="u", following=None, updated_at_ms=1).encode())
    assert [child.attributes["", "rel"] for child in last.children if child.name == "link"] == ["self"]


def test_an_error_is_told_without_a_namespace_and_escaped() -> None:
    assert documents.error_body(409, "SubCode=40900. <&>") == (
        "<Error><Code>409</Code><Detail>SubCode=40900. &lt;&amp;&gt;</Detail></Error>"
    )


def test_what_xml_cannot_hold_is_replaced() -> None:
    written = write_queue(QueueDescription(name="q", user_metadata="a\x00b\ud800c\ufffe"), RuntimeInfo(), PLACE)
    assert element("Q", written).text_of("UserMetadata") == "a\ufffdb\ufffdc\ufffd"


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><entry>&b;</entry>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><entry>&f;</entry>'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no xml",
        "<entry>",
        "<a></b>",
        BOMB,
        OUTSIDE,
        "<!DOCTYPE entry><entry/>",
        "<entry>&undefined;</entry>",
        "<a>" * (DEPTH_MAX + 1) + "</a>" * (DEPTH_MAX + 1),
        "<a>" + "<b/>" * ELEMENTS_MAX + "</a>",
        "<a " + " ".join(f'a{number}="1"' for number in range(ATTRIBUTES_MAX + 1)) + "/>",
        "<a " + " ".join(f'xmlns:a{number}="u{number}"' for number in range(ATTRIBUTES_MAX + 1)) + "/>",
        '<?xml version="1.0" encoding="klingon"?><a/>',
        "<a>\x00</a>",
        "<entry/>",
        '<entry xmlns="http://www.w3.org/2005/Atom"><content/></entry>',
        "<feed><content><QueueDescription/></content></feed>",
    ],
    ids=range(17),
)
def test_xml_that_is_broken_or_means_harm_is_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalid):
        documents.read_entry(text.encode())


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(ArgumentInvalid):
        read_xml(b"<a>\xff\xfe\xff</a>")


def test_no_bytes_lead_to_anything_but_an_element_or_a_refusal() -> None:
    """Pieces of documents in any order, from a fixed seed."""
    import random

    pieces: list[Any] = [
        b"<entry>",
        b"</entry>",
        b"<a",
        b">",
        b"/>",
        b"&amp;",
        b"&",
        b"<![CDATA[",
        b"]]>",
        b"<?x",
        b"?>",
    ]
    pieces += [b"<!--", b"-->", b'xmlns="u"', b"x:y", b"\xc3\xa4", b"\xff", b"\x00", b" ", b'"', b"<!ENTITY a 'b'>"]
    chance = random.Random(7)
    for _ in range(3_000):
        data = b"".join(chance.choices(pieces, k=chance.randrange(12)))
        try:
            read_xml(data)
        except ServiceBusError:
            continue
