"""The SDK's administration clients on topics, subscriptions and rules."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from kit_admin import Admin
from kit_bus import Bus, unique
from kit_sdk import Face, within_the_limit

TOPIC: dict[str, Any] = {
    "auto_delete_on_idle": datetime.timedelta(minutes=7),
    "default_message_time_to_live": datetime.timedelta(minutes=11, seconds=2),
    "duplicate_detection_history_time_window": datetime.timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_partitioning": True,
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "support_ordering": True,
    "user_metadata": "a & b",
    "max_message_size_in_kilobytes": 1536,
    "status": "Active",
}
SUBSCRIPTION: dict[str, Any] = {
    "auto_delete_on_idle": datetime.timedelta(minutes=7),
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": datetime.timedelta(minutes=11),
    "enable_batched_operations": False,
    "lock_duration": datetime.timedelta(seconds=13),
    "max_delivery_count": 14,
    "requires_session": True,
    "user_metadata": "a & b",
    "status": "ReceiveDisabled",
}


@pytest.fixture(params=["sync", "asyncio"])
def admin(request: pytest.FixtureRequest, bus: Bus) -> Admin:
    return Admin(request.param, bus)


def told(description: Any, properties: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(description, name) for name in properties}


async def names(client: Face, method: str, *arguments: str) -> list[str]:
    pages = getattr(client.inner, method)(*arguments)
    if hasattr(pages, "__aiter__"):
        return [found.name async for found in pages]
    return [found.name for found in pages]


@within_the_limit
async def test_every_property_of_a_topic_and_a_subscription_is_read_back_and_sent_back(admin: Admin) -> None:
    topic = f"managed/{unique()}"
    async with admin.client() as client:
        await client.create_topic(topic, **TOPIC)
        read = await client.get_topic(topic)
        assert told(read, TOPIC) == {**TOPIC, "max_size_in_megabytes": 16 * 3072}
        await client.update_topic(read)
        assert told(await client.get_topic(topic), TOPIC) == told(read, TOPIC)
        await client.create_subscription(topic, "One", **SUBSCRIPTION)
        one = await client.get_subscription(topic, "one")
        assert told(one, SUBSCRIPTION) == SUBSCRIPTION
        one.max_delivery_count = 15
        await client.update_subscription(topic, one)
        changed = {**SUBSCRIPTION, "max_delivery_count": 15}
        assert told(await client.get_subscription(topic, "ONE"), SUBSCRIPTION) == changed
        assert await names(client, "list_subscriptions", topic) == ["One"]
        assert topic in await names(client, "list_topics")
        assert (await client.get_topic_runtime_properties(topic)).subscription_count == 1
        runtime = await client.get_subscription_runtime_properties(topic, "One")
        assert (runtime.active_message_count, runtime.total_message_count) == (0, 0)
        with pytest.raises(ResourceExistsError):
            await client.create_subscription(topic, "one")
        await client.delete_subscription(topic, "One")
        for call in (
            lambda: client.get_subscription(topic, "One"),
            lambda: client.delete_subscription(topic, "One"),
            lambda: client.update_subscription(topic, one),
        ):
            with pytest.raises(ResourceNotFoundError):
                await call()
        await client.delete_topic(topic)


PARAMETERS = {
    "@text": "x & y",
    "@int": 5,
    "@long": 1 << 40,
    "@flag": True,
    "@real": 1.5,
    "@when": datetime.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - the SDK writes no zone
    "@span": datetime.timedelta(hours=2),
}


@pytest.mark.parametrize(
    ("filtering", "action"),
    [
        (TrueRuleFilter(), None),
        (FalseRuleFilter(), None),
        (SqlRuleFilter("a = @int AND b = '&<>'", PARAMETERS), SqlRuleAction("SET x = @text", PARAMETERS)),
        (
            CorrelationRuleFilter(
                correlation_id="c",
                message_id="m",
                to="t",
                reply_to="r",
                label="l",
                session_id="s",
                reply_to_session_id="rs",
                content_type="ct",
                properties={name[1:]: value for name, value in PARAMETERS.items()},
            ),
            None,
        ),
    ],
    ids=["true", "false", "sql", "correlation"],
)
def test_a_rule_of_every_kind_is_created_read_listed_changed_and_deleted(
    admin: Admin, filtering: Any, action: Any
) -> None:
    @within_the_limit
    async def scenario() -> None:
        topic = f"managed/{unique()}"
        async with admin.client() as client:
            await client.create_topic(topic)
            await client.create_subscription(topic, "s")
            assert await names(client, "list_rules", topic, "s") == ["$Default"]
            await client.create_rule(topic, "s", "Mine", filter=filtering, action=action)
            rule = await client.get_rule(topic, "s", "mine")
            assert type(rule.filter) is type(filtering)
            # The text of a true or false filter says nothing, and every client has its own.
            members = {"sql_expression", "parameters"} if type(filtering) is SqlRuleFilter else set()
            if isinstance(filtering, CorrelationRuleFilter):
                members = set(filtering.__dict__)
            for name in members:
                assert (getattr(rule.filter, name) or None) == (getattr(filtering, name) or None), name
            if action is not None:
                assert (rule.action.sql_expression, rule.action.parameters) == (action.sql_expression, PARAMETERS)
            rule.filter = SqlRuleFilter("z = 1")
            await client.update_rule(topic, "s", rule)
            assert (await client.get_rule(topic, "s", "Mine")).filter.sql_expression == "z = 1"
            assert await names(client, "list_rules", topic, "s") == ["$Default", "Mine"]
            with pytest.raises(HttpResponseError) as wrong:
                await client.create_rule(topic, "s", "wrong", filter=SqlRuleFilter("a = = b"))
            assert wrong.value.status_code == 400
            for name in ("$Default", "Mine"):
                await client.delete_rule(topic, "s", name)
            assert await names(client, "list_rules", topic, "s") == []
            await client.delete_topic(topic)

    scenario()
