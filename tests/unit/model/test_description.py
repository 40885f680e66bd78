"""Descriptions: what may be set, by kind and tier."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, InternalError
from duobus.model.descriptions import (
    AccessRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_access_rule,
    check_queue,
    check_topic,
    from_json,
    to_json,
)
from duobus.model.tiers import CLOUD, EMULATOR


def _queue(**changes: Any) -> QueueDescription:
    return QueueDescription(name="q", **changes)


def test_the_defaults_of_a_queue_are_the_clouds() -> None:
    queue = check_queue(_queue())
    assert queue.lock_duration_ms == 60_000
    assert queue.max_delivery_count == 10
    assert queue.default_message_time_to_live_ms is None
    assert queue.duplicate_detection_history_time_window_ms == 600_000
    assert queue.max_message_size_bytes == 262_144
    assert queue.max_size_in_megabytes == 1024
    assert not queue.enable_partitioning
    assert queue.status == "Active"


def test_the_emulators_defaults_differ_where_its_schema_says() -> None:
    assert EMULATOR.delivery_count_default == 3
    assert EMULATOR.time_to_live_ms_default == 3_600_000
    assert EMULATOR.duplicate_window_ms_default == 20_000
    assert EMULATOR.lock_duration_ms_default == CLOUD.lock_duration_ms_default == 60_000


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_duration_ms": 4999},
        {"lock_duration_ms": 300_001},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2**31},
        {"default_message_time_to_live_ms": 999},
        {"duplicate_detection_history_time_window_ms": 19_999},
        {"duplicate_detection_history_time_window_ms": 7 * 86_400_000 + 1},
        {"auto_delete_on_idle_ms": 299_999},
        {"user_metadata": "x" * 1025},
        {"max_message_size_bytes": 102_400 * 1024 + 1},
        {"max_message_size_bytes": 0},
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentOutOfRange):
        check_queue(_queue(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_duration_ms": 5000},
        {"lock_duration_ms": 300_000},
        {"max_delivery_count": 2**31 - 1},
        {"default_message_time_to_live_ms": 1000},
        {"duplicate_detection_history_time_window_ms": 20_000},
        {"auto_delete_on_idle_ms": 300_000},
        {"user_metadata": "x" * 1024},
        {"max_size_in_megabytes": 81_920},
        {"status": "SendDisabled"},
        {"forward_to": "other/queue"},
    ],
)
def test_a_value_at_the_edge_of_its_range_is_accepted(changes: dict[str, Any]) -> None:
    check_queue(_queue(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_size_in_megabytes": 1025},
        {"status": "Creating"},
        {"requires_session": True, "redelivery_delay_ms": 1_000},
        {"requires_session": True, "delayed_abandon": True},
        {"enable_express": True, "requires_duplicate_detection": True},
        {"forward_to": "sb://elsewhere/q"},
        {"name": "a//b"},
    ],
)
def test_properties_that_cannot_be_meant_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid):
        check_queue(msgspec.structs.replace(_queue(), **changes))


def test_a_queue_comes_back_from_json_as_it_was() -> None:
    queue = _queue(
        enable_partitioning=True,
        user_metadata="ü",
        authorization_rules=(AccessRule(name="r", primary_key="a", secondary_key="b", rights=3),),
    )
    assert from_json(to_json(queue), QueueDescription) == queue


def test_stored_json_holds_defaults_and_survives_unknown_members() -> None:
    stored = msgspec.json.decode(to_json(_queue()))
    assert stored["lock_duration_ms"] == 60_000
    stored["from_the_future"] = 1
    assert from_json(msgspec.json.encode(stored), QueueDescription) == _queue()


def test_damaged_json_is_our_own_fault() -> None:
    for data in (b"", b"[]", b'{"name": 1}', b"\xff"):
        with pytest.raises(InternalError):
            from_json(data, QueueDescription)


def test_a_topic_is_stored_whole_with_rules_and_filters() -> None:
    rule = RuleDescription(
        name="r", filter_type="Correlation", correlation_filter={"Label": "x", "Properties": {"a": 1}}
    )
    topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s", rules=(rule,)),))
    assert from_json(to_json(check_topic(topic)), TopicDescription) == topic


def test_a_bad_subscription_makes_its_topic_refused() -> None:
    for subscription in (
        SubscriptionDescription(name="a/b"),
        SubscriptionDescription(name="s", lock_duration_ms=1),
        SubscriptionDescription(name="s", rules=(RuleDescription(name="r", sql_filter="x" * 1025),)),
    ):
        with pytest.raises((ArgumentInvalid, ArgumentOutOfRange)):
            check_topic(TopicDescription(name="t", subscriptions=(subscription,)))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"primary_key": ""},
        {"secondary_key": ""},
        {"rights": 0},
        {"rights": 8},
        {"rights": int(Right.MANAGE)},
    ],
)
def test_an_access_rule_that_would_be_unsafe_is_refused(changes: dict[str, Any]) -> None:
    rule = AccessRule(name="r", primary_key="a", secondary_key="b", rights=7)
    assert check_access_rule(rule) is rule
    with pytest.raises(ArgumentInvalid):
        check_access_rule(msgspec.structs.replace(rule, **changes))


def test_keys_never_show_in_the_representation_of_a_rule() -> None:
    queue = _queue(
        authorization_rules=(AccessRule(name="r", primary_key="CANARY1", secondary_key="CANARY2", rights=7),)
    )
    assert "CANARY" not in repr(queue)
