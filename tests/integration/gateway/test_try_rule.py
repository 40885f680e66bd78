"""``POST /$duobus/try-rule``: a rule on a message, the rules of a subscription, and what is refused."""

from __future__ import annotations

import json
from typing import Any

from duobus.model.descriptions import (
    AccessRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.server.composition import Server
from duobus.server.operations.rule_trials import CHANGED_MAX, RULES_MAX
from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, token

LISTENS = AccessRule(name="listens", primary_key="see" * 9, secondary_key="saw" * 9, rights=int(Right.LISTEN))
SENDS = AccessRule(name="sends", primary_key="put" * 9, secondary_key="set" * 9, rights=int(Right.SEND))
MESSAGE = {
    "properties": {"subject": "hi", "messageId": "m1"},
    "applicationProperties": {"price": 12, "who": "bob"},
    "body": {"data": ["{}"]},
}


async def ask(server: Server, form: Any, authorization: str | None = None, entity: str = "") -> Reply:
    http = await Http.connect(server.port("http") or 0)
    body = form if isinstance(form, bytes) else json.dumps(form)
    query = f"?entity={entity}" if entity else ""
    return await http.ask(
        "POST", f"/$duobus/try-rule{query}", body, headers={"Authorization": authorization or token()}
    )


async def told(server: Server, form: Any, entity: str = "") -> Any:
    reply = await ask(server, form, entity=entity)
    assert reply.status == 200, reply
    return json.loads(reply.text)


async def with_topic(server: Server, *rules: RuleDescription) -> None:
    subscriptions = (
        SubscriptionDescription(name="s", rules=rules),
        SubscriptionDescription(name="plain"),
    )
    access = (LISTENS, SENDS)
    topic = TopicDescription(name="t", subscriptions=subscriptions, authorization_rules=access)
    await server.unit.topics.create_topic("ns", topic)


@in_loop
async def test_a_rule_is_tried_and_the_message_shown_as_its_action_leaves_it() -> None:
    async with serving() as server:
        found = await told(
            server,
            {
                "filter": {"sql": "price > @least", "parameters": {"@least": 10}},
                "action": "SET price = price * @times; SET sys.Label = 'new'; REMOVE who",
                "actionParameters": {"@times": {"type": "int", "value": "2"}},
                "message": MESSAGE,
            },
        )
        assert (found["matches"], found["mistake"], found["error"], found["actionError"]) == (True, None, None, None)
        assert [(term["text"], term["start"], term["end"], term["value"]) for term in found["terms"]] == [
            ("price > @least", 1, 14, True),
            ("price", 1, 5, 12),
            ("@least", 9, 14, 10),
        ]
        assert found["message"]["applicationProperties"] == {"price": 24, "RuleName": "tried"}
        assert found["message"]["properties"] == {"subject": "new", "messageId": "m1"}
        assert found["message"]["body"] == {"data": ["{}"]}
        plain = await told(server, {"message": MESSAGE})
        assert (plain["matches"], plain["terms"], plain["message"]) == (True, [], None)
        assert (await told(server, {"filter": {"isTrue": False}, "message": {}}))["matches"] is False
        correlated = await told(server, {"filter": {"correlation": {"Label": "hi"}}, "message": MESSAGE})
        assert (correlated["matches"], correlated["terms"][0]["kind"]) == (True, "equality")


@in_loop
async def test_a_mistake_is_an_answer_with_its_place() -> None:
    async with serving() as server:
        found = await told(server, {"filter": {"sql": "price >"}, "message": MESSAGE})
        assert found["matches"] is None
        assert (found["mistake"]["part"], found["mistake"]["position"]) == ("filter", 8)
        found = await told(server, {"action": "SET 1", "message": MESSAGE})
        assert (found["mistake"]["part"], found["mistake"]["position"]) == ("action", 5)


@in_loop
async def test_the_rules_of_a_subscription_tell_which_of_them_match() -> None:
    async with serving() as server:
        await with_topic(
            server,
            RuleDescription(name="dear", filter_type="Sql", sql_filter="price > 100"),
            RuleDescription(name="bob", filter_type="Sql", sql_filter="who = 'bob'", sql_action="SET seen = true"),
            RuleDescription(name="odd", filter_type="Sql", sql_filter="who + 1 = 2"),
        )
        found = await told(server, {"message": MESSAGE}, "T/Subscriptions/S")
        assert (found["entity"], found["matches"], found["leftOut"]) == ("t/Subscriptions/s", True, 0)
        assert [(row["rule"], row["matches"], row["hasAction"]) for row in found["rules"]] == [
            ("bob", True, True),
            ("odd", None, False),
            ("dear", False, False),
        ]
        assert found["rules"][0]["message"]["applicationProperties"]["seen"] is True
        assert "no meaning" in found["rules"][1]["error"]
        plain = await told(server, {"message": {}}, "t/Subscriptions/plain")
        assert [(row["rule"], row["matches"]) for row in plain["rules"]] == [("$Default", True)]


@in_loop
async def test_of_many_rules_those_that_match_are_told_first_and_the_rest_is_counted() -> None:
    async with serving() as server:
        number = RULES_MAX + 200
        rules = [
            RuleDescription(
                name=f"r{index}",
                filter_type="Sql",
                sql_filter="price > 1" if index % 40 == 39 else "price > 100",
                sql_action="SET seen = 1",
            )
            for index in range(number)
        ]
        await with_topic(server, *rules)
        found = await told(server, {"message": MESSAGE}, "t/Subscriptions/s")
        assert (len(found["rules"]), found["leftOut"]) == (RULES_MAX, 200)
        taken = [row for row in found["rules"] if row["matches"]]
        assert taken == found["rules"][: number // 40]
        assert len([row for row in taken if row["message"]]) == CHANGED_MAX


@in_loop
async def test_listen_is_enough_and_on_the_entity_for_its_rules() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(LISTENS,))) as server:
        await with_topic(server)
        listens, sends = (token("t", rule=rule.name, key=rule.primary_key) for rule in (LISTENS, SENDS))
        form, path = {"message": MESSAGE}, "t/Subscriptions/s"
        assert (await ask(server, form, listens, path)).status == 200
        assert (await ask(server, form, sends, path)).status == 401
        assert (await ask(server, form, listens)).status == 401
        assert (await ask(server, form, token(key="wrong"), path)).status == 401


@in_loop
async def test_wrong_forms_are_refused_with_a_sentence() -> None:
    async with serving(QueueDescription(name="q")) as server:
        await with_topic(server)
        for form, status, words in (
            (b"", 400, "not JSON"),
            (b"[" * 100_000, 400, "not JSON"),
            (b"\xff", 400, "not JSON"),
            ([], 400, "is an object"),
            ({}, 400, "needs a message"),
            ({"message": 1}, 400, "Detail"),
            ({"message": {}, "what": 1}, 400, "has no member 'what'"),
            ({"message": {}, "filter": "1=1"}, 400, "filter is an object"),
            ({"message": {}, "filter": {"sql": 1}}, 400, "text of an SQL filter"),
            ({"message": {}, "filter": {"sql": "1=1", "correlation": {}}}, 400, "one of"),
            ({"message": {}, "action": []}, 400, "text of an SQL action"),
            ({"message": {}, "filter": {"sql": "a=@b", "parameters": {"b": []}}}, 400, "type and value"),
            (b" " * 300_000, 403, "larger than"),
        ):
            reply = await ask(server, form)
            assert (reply.status, words in reply.text) == (status, True), (form, reply.text)
        for form, entity, status, words in (
            ({"message": {}}, "q", 400, "has no rules"),
            ({"message": {}}, "t", 400, "has no rules"),
            ({"message": {}}, "t/Subscriptions/none", 404, "could not be found"),
            ({"message": {}, "action": "SET a=1"}, "t/Subscriptions/s", 400, "there are message"),
        ):
            reply = await ask(server, form, entity=entity)
            assert (reply.status, words in reply.text) == (status, True), (form, entity, reply)
