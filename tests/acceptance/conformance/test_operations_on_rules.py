"""Operations of a subscription's ``$management`` node about its rules, with the types of the contract (10.8)."""

from __future__ import annotations

from typing import Any

import pytest
from kit_place import Place, Reply, ask, message, outcome, refusal

from duobus.codec import Int, build_message
from kits.raw_client import RawClient

SUBSCRIPTION = "t/Subscriptions/s"
RULE, SQL_FILTER, TRUE_FILTER, CORRELATION_FILTER = (
    0x0000013700000004,
    0x000001370000006,
    0x000001370000007,
    0x000001370000009,
)
NO_ACTION, SQL_ACTION = 0x0000013700000005, 0x0000013700000006


def add(client: RawClient, name: str, **description: Any) -> Reply:
    body = {"rule-name": name, "rule-description": {key.replace("_", "-"): each for key, each in description.items()}}
    return ask(client, "add-rule", body, queue=SUBSCRIPTION)


def remove(client: RawClient, name: str) -> Reply:
    return ask(client, "remove-rule", {"rule-name": name}, queue=SUBSCRIPTION)


def listed(client: RawClient, top: int = 100, skip: int = 0) -> Reply:
    return ask(client, "enumerate-rules", {"top": Int(top), "skip": Int(skip)}, queue=SUBSCRIPTION)


def sql(expression: str) -> dict[str, str]:
    return {"expression": expression}


@pytest.fixture
def rules(place: Place) -> Place:
    """A topic with one subscription that takes everything."""
    place.create_topic("t", subscriptions=("s",))
    return place


def publish(client: RawClient, body: bytes) -> str:
    """Send a message to the topic; the condition of its refusal, or nothing."""
    return refusal(outcome(client, client.send(client.sender("t"), message(body))))


def test_add_rule_is_in_force_for_the_next_message(rules: Place) -> None:
    with rules.client() as client:
        assert remove(client, "$Default").status == 200
        assert add(client, "none", sql_filter=sql("1=0"), sql_rule_action=None).status == 200
        assert publish(client, b"not taken") == ""
        assert rules.bodies(SUBSCRIPTION) == []
        assert add(client, "all", correlation_filter={"label": "x", "properties": {}}).status == 200
        assert add(client, "some", sql_filter=sql("1=1"), sql_rule_action=sql("SET n = 1")).status == 200
        assert publish(client, b"taken") == ""
        assert rules.bodies(SUBSCRIPTION) == [b"taken"]


def test_add_rule_takes_null_properties_and_lists_them_and_takes_an_empty_action(rules: Place) -> None:
    with rules.client() as client:
        assert remove(client, "$Default").status == 200
        members = dict.fromkeys(("correlation-id", "message-id", "to", "reply-to", "session-id", "content-type"))
        for number, (properties, action) in enumerate(
            [(None, {}), ({}, None), ({"color": None}, {"expression": None}), ({"color": None, "n": Int(1)}, {})]
        ):
            described = {**members, "label": f"x{number}", "properties": properties}
            reply = add(client, f"r{number}", correlation_filter=described, sql_rule_action=action)
            assert reply.status == 200, reply
        for rule in listed(client).body["rules"]:
            described = rule["rule-description"]
            assert described.value[1].descriptor == NO_ACTION
            assert described.value[0].value[4] == f"x{described.value[2][1:]}"
            properties = {"r2": {"color": None}, "r3": {"color": None, "n": 1}}.get(described.value[2], {})
            assert described.value[0].value[8] == properties


def test_a_null_property_of_a_correlation_filter_asks_nothing_of_a_message(rules: Place) -> None:
    with rules.client() as client:
        assert remove(client, "$Default").status == 200
        nothing_asked = add(client, "r", correlation_filter={"properties": {"color": None}})
        assert (nothing_asked.status, nothing_asked.condition) == (400, "com.microsoft:argument-error")
        assert add(client, "r", correlation_filter={"properties": {"color": None, "n": Int(1)}}).status == 200
        link = client.sender("t")
        for properties in ({"n": Int(1), "color": "red"}, {"n": Int(1)}, {"n": Int(2)}):
            sent = build_message(application_properties=properties, data=b"%d" % len(properties))
            assert refusal(outcome(client, client.send(link, sent))) == ""
        assert rules.bodies(SUBSCRIPTION) == [b"2", b"1"]


def test_add_rule_of_a_name_that_exists_is_a_conflict_and_changes_nothing(rules: Place) -> None:
    with rules.client() as client:
        again = add(client, "$default", sql_filter=sql("1=0"))
        assert again[:3] == (409, "com.microsoft:entity-already-exists", None)
        assert publish(client, b"m") == ""
        assert rules.bodies(SUBSCRIPTION) == [b"m"]


@pytest.mark.parametrize(
    "description",
    [
        {"sql_filter": sql("a = = 1")},
        {"sql_filter": sql("x" * 1025)},
        {"sql_filter": sql("1=1"), "correlation_filter": {"label": "x"}},
        {},
        {"sql_filter": "1=1"},
        {"sql_filter": sql("1=1"), "sql_rule_action": sql("SET")},
    ],
)
def test_add_rule_refuses_what_is_no_rule_and_makes_nothing(rules: Place, description: dict[str, Any]) -> None:
    with rules.client() as client:
        refused = add(client, "r", **description)
        assert refused.status == 400
        assert refused.condition in ("com.microsoft:argument-error", "com.microsoft:argument-out-of-range")
        assert len(listed(client).body["rules"]) == 1


def test_remove_rule_takes_it_out_of_force_and_knows_it_once(rules: Place) -> None:
    with rules.client() as client:
        assert remove(client, "$Default").status == 200
        assert publish(client, b"m") == ""
        assert rules.bodies(SUBSCRIPTION) == []
        again = remove(client, "$Default")
        assert (again.status, again.condition) == (404, "amqp:not-found")


def test_enumerate_rules_describes_each_by_pages(rules: Place) -> None:
    with rules.client() as client:
        add(client, "by-label", correlation_filter={"label": "x", "properties": {"n": 5}})
        add(client, "by-sql", sql_filter=sql("n > 1"), sql_rule_action=sql("SET m = 2"))
        found = [rule["rule-description"] for rule in listed(client).body["rules"]]
        assert {each.descriptor for each in found} == {RULE}
        default, by_label, by_sql = (each.value for each in found)
        assert [rule[2] for rule in (default, by_label, by_sql)] == ["$Default", "by-label", "by-sql"]
        assert (default[0].descriptor, default[1].descriptor) == (TRUE_FILTER, NO_ACTION)
        assert by_label[0].descriptor == CORRELATION_FILTER
        assert (by_label[0].value[4], by_label[0].value[8]) == ("x", {"n": 5})
        assert (by_sql[0].descriptor, by_sql[0].value[0]) == (SQL_FILTER, "n > 1")
        assert (by_sql[1].descriptor, by_sql[1].value[0]) == (SQL_ACTION, "SET m = 2")
        assert [rule["rule-description"].value[2] for rule in listed(client, 1, 1).body["rules"]] == ["by-label"]
        assert listed(client, 10, 3).status == 204


@pytest.mark.parametrize("page", [(0, 0), (1, -1)])
def test_enumerate_rules_refuses_absurd_pages(rules: Place, page: tuple[int, int]) -> None:
    with rules.client() as client:
        assert listed(client, *page)[:2] == (400, "com.microsoft:argument-error")


def test_a_message_that_no_subscription_takes_is_refused_where_the_topic_says_so(place: Place) -> None:
    place.create_topic("t", filtering_messages_before_publishing=True)
    with place.client() as client:
        assert publish(client, b"m") == "com.microsoft:no-matching-subscription"
