"""The entity screens against a broker: table, tree, one entity, forms, rules, import and export."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from aiohttp import FormData
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import SqlRuleFilter

from duobus.console.namespace.client import NamespaceClient
from duobus.console.namespace.failures import NamespaceError
from duobus.model.descriptions import (
    AccessRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.model.options import HttpOptions
from kits.console import ConsoleClient, broker, console, console_of
from kits.gateway import in_loop

EVENTS = TopicDescription(name="events", subscriptions=(SubscriptionDescription(name="billing"),))
BILLING = "events/Subscriptions/billing"


def namespace_of(client: ConsoleClient) -> NamespaceClient:
    (session,) = client.console.sessions.all()
    return session.namespace


def fields_in(text: str) -> dict[str, str]:
    """What a browser would send of the form that has most fields."""
    forms = re.findall(r"<form .*?</form>", text, re.DOTALL)
    form = max(forms, key=lambda found: found.count("name="))
    found = {}
    for tag in re.findall(r"<input [^>]*>", form):
        named = re.search(r' name="([^"]+)"', tag)
        valued = re.search(r' value="([^"]*)"', tag)
        if named and 'type="checkbox"' not in tag:
            found[named[1]] = unescape(valued[1]) if valued else ""
    for name, inside in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        chosen = re.search(r'<option value="([^"]*)" selected>', inside) or re.search(
            r'<option value="([^"]*)"', inside
        )
        found[name] = unescape(chosen[1]) if chosen else ""
    for name, inside in re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL):
        found[name] = unescape(inside)
    return found


# -- table and tree ---------------------------------------------------------------------------------------------


@in_loop
async def test_an_empty_namespace_says_what_to_do() -> None:
    async with console() as client:
        page = await client.get("/entities")
        assert "There is no entity yet" in page.words
        assert 'href="/create/queue"' in page.text
        assert (await client.data("/entities"))["entities"] == []
        assert "Nothing is here" in (await client.get("/entities?view=tree")).words


@in_loop
async def test_entities_are_listed_with_their_numbers_and_dead_letters_in_colour_and_words() -> None:
    async with console(QueueDescription(name="orders"), topics=[EVENTS]) as client:
        messaging = namespace_of(client).messaging
        async with messaging.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with messaging.get_queue_receiver("orders") as receiver:
            (first, *_) = await receiver.receive_messages(1, max_wait_time=5)
            await receiver.dead_letter_message(first)
        data = await client.data("/entities")
        assert [(row["path"], row["kind"], row["status"]) for row in data["entities"]] == [
            ("events", "topic", "Active"),
            (BILLING, "subscription", "Active"),
            ("orders", "queue", "Active"),
        ]
        orders = data["entities"][2]
        assert (orders["active"], orders["dead_letters"]) == (1, 1)
        page = await client.get("/entities")
        assert re.search(r'<a class="alarm" href="/dead-letters/orders">1 dead</a>', page.text)
        assert "3 entities · 1 with dead letters" in page.words
        only = await client.data("/entities?dead=true")
        assert [row["path"] for row in only["entities"]] == ["orders"]
        (events, orders) = (await client.data("/entities?view=tree"))["nodes"]
        assert (events["entities"], orders["dead_letters"]) == (2, 1)


@in_loop
async def test_ten_thousand_entities_are_shown_a_page_at_a_time_without_a_request_for_each() -> None:
    async with console(QueueDescription(name="orders")) as client:
        namespace = namespace_of(client)
        numbers = (await namespace.operation("GET", "/$duobus/entities"))[0]
        many = [numbers | {"entity": f"team-{i % 20}/queue-{i:05}", "deadLetter": i % 3} for i in range(10_000)]
        asked: list[str] = []

        async def operation(method: str, path: str, **_: Any) -> Any:
            asked.append(f"{method} {path}")
            return many if path == "/$duobus/entities" else {}

        namespace.operation = operation  # type: ignore[method-assign]
        page = await client.data("/entities?sort=dead&order=desc&skip=200")
        assert (len(page["entities"]), page["total"], page["entities"][0]["dead_letters"]) == (100, 10_000, 2)
        assert "skip=100" in page["previous"]
        assert "skip=300" in page["next"]
        # Beyond the end, as after deletions: the last page.
        assert (await client.data("/entities?skip=99999999"))["skip"] == 9_900
        assert (await client.data("/entities?q=QUEUE-0999"))["total"] == 10
        assert len((await client.data("/entities?view=tree"))["nodes"]) == 20
        # A moment's searches are answered from what was read once.
        assert sorted(asked) == ["GET /$duobus/entities", "GET /$duobus/server"]


@in_loop
async def test_a_namespace_with_nothing_but_what_azure_offers_is_listed_by_the_sdk() -> None:
    queues = [QueueDescription(name=f"queue-{i:03}") for i in range(101)]
    async with console(*queues, topics=[EVENTS], options={"http": HttpOptions(operations=False)}) as client:
        data = await client.data("/entities")
        assert data["is_sdk"]
        assert (len(data["entities"]), data["entities"][0]["status"]) == (100, "Active")
        rest = await client.data(data["next"])
        assert [row["path"] for row in rest["entities"]] == ["queue-100"]
        found = await client.data("/entities?q=queue-09")
        assert [row["path"] for row in found["entities"]] == [f"queue-{i:03}" for i in range(90, 100)]
        (topic,) = (await client.data("/entities?kind=topic"))["entities"]
        assert (topic["path"], topic["subscriptions"]) == ("events", 1)
        subscriptions = await client.data("/entities/events?tab=subscriptions")
        assert [row["path"] for row in subscriptions["subscriptions"]] == [BILLING]
        page = await client.get(f"/entities/{BILLING}?tab=rules")
        assert "$Default" in page.words
        assert "Fragments" not in page.words
        assert "Try" not in page.words
        assert (await client.get(f"/try-rule/{BILLING}")).status == 404
        # A mistake is told by the place in the broker's own sentence.
        refused = await client.post(f"/create/rule/{BILLING}", {"name": "r", "filter": "sql", "sql": "a =\n= 1"})
        assert (refused.status, "Filter, line 2, column 1" in refused.words) == (422, True)


@in_loop
async def test_entities_of_another_server_of_the_same_namespace_are_listed_as_well() -> None:
    async with console(QueueDescription(name="near"), QueueDescription(name="far"), topics=[EVENTS]) as client:
        namespace = namespace_of(client)
        ask = namespace.operation

        async def operation(method: str, path: str, **options: Any) -> Any:
            # Servers that share a catalog tell of themselves alone.
            if path == "/$duobus/fragments":
                raise NamespaceError(404, "There is no queue 'far' at this server.")
            found = await ask(method, path, **options)
            return [one for one in found if one["entity"] == "near"] if path == "/$duobus/entities" else found

        namespace.operation = operation  # type: ignore[method-assign]
        data = await client.data("/entities")
        assert [row["path"] for row in data["entities"]] == ["far", "near"]
        assert "Several servers" in (await client.get("/entities?view=tree")).words
        assert (await client.data("/entities/far"))["numbers"]["active"] == 0
        subscriptions = await client.data("/entities/events?tab=subscriptions")
        assert [row["path"] for row in subscriptions["subscriptions"]] == [BILLING]
        assert "Another server holds them" in (await client.get("/entities/far?tab=fragments")).words


@in_loop
async def test_a_key_with_listen_sees_numbers_and_nothing_that_changes_anything() -> None:
    async with console(QueueDescription(name="orders"), topics=[EVENTS], right="listen") as client:
        page = await client.get("/entities")
        assert "orders" in page.words
        assert "Create" not in page.words
        entity = await client.get("/entities/orders")
        assert "Active 0" in entity.words
        assert "Delete" not in entity.words
        assert "Properties" not in entity.words
        assert (await client.get("/entities/none")).status == 404
        assert f'href="/try-rule/{BILLING}"' in (await client.get(f"/entities/{BILLING}")).text
        for path in ("/create/queue", "/edit/orders", "/topology", f"/rules/{BILLING}/Rules/$Default"):
            assert (await client.get(path)).status == 403, path
        for path in (
            "/create/queue",
            "/edit/orders",
            "/entities/orders/delete",
            "/entities/orders/status",
            "/entities/orders/access-rules/r/show",
            f"/create/rule/{BILLING}",
            "/topology/plan",
            "/topology/apply",
            "/topology/prune",
        ):
            assert (await client.post(path, {"confirm": "orders", "status": "Disabled"})).status == 403, path
        assert client.server.unit.namespace("ns").queues["orders"].description.status == "Active"


@in_loop
async def test_a_key_with_send_sees_no_entities() -> None:
    async with console(QueueDescription(name="orders"), right="send") as client:
        assert (await client.get("/entities")).status == 403
        assert "/entities" not in (await client.get("/")).text


@in_loop
async def test_a_key_of_one_entity_opens_the_page_of_that_entity() -> None:
    rule = AccessRule(name="own", primary_key="own" * 12, secondary_key="two" * 12, rights=int(Right.MANAGE))
    queues = [QueueDescription(name="orders", authorization_rules=(rule,)), QueueDescription(name="other")]
    async with console(*queues, right=None) as client:
        text = (
            f"Endpoint=sb://{client.place};SharedAccessKeyName=own;SharedAccessKey={rule.primary_key};"
            "EntityPath=orders;UseDevelopmentEmulator=true"
        )
        assert (await client.sign_in_with(kind="text", connection_string=text)).status == 303
        page = await client.get("/entities")
        assert (page.status, page.headers["Location"]) == (303, "/entities/orders")
        data = await client.data("/entities/orders")
        assert (data["kind"], data["numbers"]["active"]) == ("queue", 0)
        assert "Fragments" not in (await client.get("/entities/orders")).words
        assert (await client.get("/entities/other")).status in (401, 403)
        assert (await client.post("/entities/other/status", {"status": "Disabled"})).status in (401, 403)


# -- one entity -------------------------------------------------------------------------------------------------


@in_loop
async def test_an_entity_tells_its_properties_with_durations_in_words_and_its_targets_as_links() -> None:
    queues = [
        QueueDescription(name="orders"),
        QueueDescription(name="in", forward_to="orders", lock_duration_ms=90_000),
    ]
    async with console(*queues, topics=[EVENTS]) as client:
        page = await client.get("/entities/in")
        assert "1 m 30 s" in page.words
        assert '<a href="/entities/orders">orders</a>' in page.text
        properties = await client.get("/entities/in?tab=properties")
        assert "Lock duration 1 m 30 s PT1M30S" in properties.words
        data = await client.data("/entities/in?tab=properties")
        assert (data["kind"], data["form"]["forwardTo"]) == ("queue", "orders")
        fragments = await client.data("/entities/orders?tab=fragments")
        assert [one["fragment"] for one in fragments["fragments"]] == [0]
        assert (await client.data("/entities/events?tab=subscriptions"))["subscriptions"][0]["name"] == "billing"
        assert (await client.get("/entities/none")).status == 404
        assert (await client.get("/entities/events/Subscriptions/none")).status == 404


@in_loop
async def test_a_status_is_changed_by_a_button() -> None:
    async with console(QueueDescription(name="orders"), topics=[EVENTS]) as client:
        changed = await client.post("/entities/orders/status", {"status": "SendDisabled"})
        assert changed.status == 303
        page = await client.get("/entities/orders")
        assert "orders now has the status Send disabled." in page.words
        assert (await client.data("/entities"))["entities"][2]["status"] == "SendDisabled"
        refused = await client.post("/entities/events/status", {"status": "ReceiveDisabled"})
        assert refused.status == 422


@in_loop
async def test_an_entity_is_deleted_only_when_its_name_is_typed() -> None:
    async with console(QueueDescription(name="a/b"), topics=[EVENTS]) as client:
        assert (await client.post("/entities/a%2Fb/delete", {"confirm": "a"})).status == 422
        assert (await client.post("/entities/a/b/delete", {})).status == 422
        assert (await client.post("/entities/a/b/delete", {"confirm": "a/b"})).status == 303
        # Somebody else was quicker.
        assert (await client.post("/entities/a/b/delete", {"confirm": "a/b"})).status == 404
        gone = await client.post(f"/entities/{BILLING}/Rules/$Default/delete", {"confirm": f"{BILLING}/Rules/$Default"})
        assert gone.headers["Location"] == f"/entities/{BILLING}?tab=rules"
        assert "No message reaches it" in (await client.get(f"/entities/{BILLING}?tab=rules")).words
        assert (await client.post(f"/entities/{BILLING}/delete", {"confirm": BILLING})).status == 303
        assert (await client.post("/entities/events/delete", {"confirm": "events"})).status == 303
        assert (await client.data("/entities"))["entities"] == []


@in_loop
async def test_keys_are_in_a_page_only_after_show_and_the_audit_log_tells_of_it() -> None:
    rule = AccessRule(name="r1", primary_key="one" * 12, secondary_key="two" * 12, rights=int(Right.SEND))
    async with console(QueueDescription(name="orders", authorization_rules=(rule,))) as client:
        hidden = await client.get("/entities/orders?tab=access")
        assert "r1 Send" in hidden.words
        assert "oneone" not in hidden.text + json.dumps(await client.data("/entities/orders?tab=properties"))
        assert (await client.get("/entities/orders/access-rules/r1/show")).status == 404
        namespace, lines = namespace_of(client), []
        ask = namespace.operation

        async def operation(method: str, path: str, **options: Any) -> Any:
            lines.append((method, path, options.get("body")))
            return await ask(method, path, **options)

        namespace.operation = operation  # type: ignore[method-assign]
        shown = await client.post("/entities/orders/access-rules/r1/show")
        line = {"operation": "show keys", "kind": "access rule", "path": "orders/r1"}
        assert ("POST", "/$duobus/audit", line) in lines
        assert "one" * 12 in shown.text
        assert ";EntityPath=orders" in shown.text
        assert shown.headers["Cache-Control"] == "no-store"
        assert (await client.post("/entities/orders/access-rules/none/show")).status == 404


# -- forms ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_queue_is_created_copied_and_changed_by_forms() -> None:
    async with console() as client:
        form = fields_in((await client.get("/create/queue")).text)
        created = await client.post(
            "/create/queue", form | {"name": "eu/orders", "lockDuration": "2m", "requiresSession": "true"}
        )
        assert (created.status, created.headers["Location"]) == (303, "/entities/eu/orders")
        copied = fields_in((await client.get("/create/queue?copy=eu/orders")).text)
        assert (copied["name"], copied["lockDuration"], copied["requiresSession"]) == ("eu/orders-copy", "2 m", "true")
        assert (await client.post("/create/queue", copied)).status == 303
        edited = fields_in((await client.get("/edit/eu/orders-copy")).text)
        # What cannot change has no field.
        assert "requiresSession" not in edited
        changed = await client.post("/edit/eu/orders-copy", edited | {"lockDuration": "90 s", "userMetadata": "<b>"})
        assert changed.status == 303
        data = await client.data("/entities/eu/orders-copy?tab=properties")
        assert (data["form"]["lockDuration"], data["form"]["userMetadata"]) == ("PT1M30S", "<b>")
        page = await client.get("/entities/eu/orders-copy?tab=properties")
        assert "&lt;b&gt;" in page.text
        again = fields_in((await client.get("/edit/eu/orders-copy")).text)
        assert (await client.post("/edit/eu/orders-copy", again)).status == 303
        assert "Nothing was changed" in (await client.get("/entities/eu/orders-copy")).words
        cleared = await client.post("/edit/eu/orders-copy", again | {"userMetadata": ""})
        assert cleared.status == 303
        assert (await client.data("/entities/eu/orders-copy"))["form"].get("userMetadata") is None


@in_loop
async def test_a_partitioned_queue_keeps_its_size_when_it_is_copied_or_edited() -> None:
    async with console(QueueDescription(name="wide", enable_partitioning=True)) as client:
        copied = fields_in((await client.get("/create/queue?copy=wide")).text)
        assert (copied["maxSizeInMegabytes"], copied["enablePartitioning"]) == ("1024", "true")
        assert (await client.post("/create/queue", copied)).status == 303
        edited = fields_in((await client.get("/edit/wide")).text)
        assert (await client.post("/edit/wide", edited | {"maxDeliveryCount": "3"})).status == 303
        forms = [(await client.data(f"/entities/{name}"))["form"] for name in ("wide", "wide-copy")]
        assert [form["maxSizeInMegabytes"] for form in forms] == [1024, 1024]


@in_loop
async def test_a_topic_is_copied_with_its_subscriptions_and_a_subscription_with_its_rules() -> None:
    red = RuleDescription(name="red", filter_type="Sql", sql_filter="colour = 'red'", sql_action="SET a = 1")
    billing = SubscriptionDescription(name="billing", lock_duration_ms=30_000, rules=(red,))
    async with console(topics=[TopicDescription(name="events", subscriptions=(billing,))]) as client:
        form = fields_in((await client.get("/create/topic?copy=events")).text)
        assert (form["name"], form["copied"]) == ("events-copy", "events")
        assert (await client.post("/create/topic", form | {"with_inner": "true"})).status == 303
        assert (await client.post("/create/topic", form | {"name": "bare"})).status == 303
        form = fields_in((await client.get(f"/create/subscription/events?copy={BILLING}")).text)
        assert (await client.post("/create/subscription/events", form | {"with_inner": "true"})).status == 303
        topics = {topic["name"]: topic for topic in (await client.get("/topology/export")).json["topics"]}
        assert topics["bare"]["subscriptions"] == []
        assert topics["events-copy"]["subscriptions"] == topics["events"]["subscriptions"][:1]
        one, other = topics["events"]["subscriptions"]
        assert (other["name"], other["rules"], other["lockDuration"]) == ("billing-copy", one["rules"], "PT30S")


@in_loop
async def test_topics_and_subscriptions_are_created_and_changed_by_forms() -> None:
    async with console(topics=[EVENTS]) as client:
        for address, path in (
            ("/create/topic", "news"),
            ("/create/subscription/events", "events/Subscriptions/news"),
        ):
            form = fields_in((await client.get(address)).text)
            assert (await client.post(address, form | {"name": "news"})).status == 303
            edited = fields_in((await client.get(f"/edit/{path}")).text)
            assert (await client.post(f"/edit/{path}", edited | {"defaultMessageTimeToLive": "1 h"})).status == 303
            assert (await client.data(f"/entities/{path}"))["form"]["defaultMessageTimeToLive"] == "PT1H"


REFUSALS = [
    ("lockDuration", "20m", "LockDuration (ms) is 1200000"),
    ("lockDuration", "soon", "is no duration"),
    ("maxDeliveryCount", "0", "MaxDeliveryCount is 0"),
    ("forwardTo", "nowhere", "does not exist"),
    ("name", "a<script>b", "holds '<'"),
    ("name", "orders", "exists already"),
    ("name", "", "A name is needed"),
]


@in_loop
async def test_a_refusal_stands_at_its_field_and_nothing_typed_is_lost() -> None:
    async with console(QueueDescription(name="orders")) as client:
        for name, value, told in REFUSALS:
            typed = {"name": "fresh", "userMetadata": "mine", "maxDeliveryCount": "7"} | {name: value}
            refused = await client.post("/create/queue", typed)
            assert refused.status == 422
            fault = re.search(rf'<p class="error" id="field-{name}-error">([^<]*)</p>', refused.text)
            assert fault is not None, (name, value)
            assert told in unescape(fault[1])
            assert "TrackingId" not in fault[1]
            kept = fields_in(refused.text)
            assert {field: kept[field] for field in typed} == typed
            assert "<script>b" not in refused.text
        assert "fresh" not in client.server.unit.namespace("ns").queues


@in_loop
async def test_a_change_that_somebody_else_made_meanwhile_is_shown_and_not_overwritten() -> None:
    async with console(QueueDescription(name="orders")) as client:
        mine = fields_in((await client.get("/edit/orders")).text)
        theirs = dict(mine)
        assert (await client.post("/edit/orders", theirs | {"maxDeliveryCount": "3"})).status == 303
        conflict = await client.post("/edit/orders", mine | {"lockDuration": "30 s"})
        assert conflict.status == 409
        assert "Maximum delivery count 10 3 left alone" in conflict.words
        assert client.server.unit.namespace("ns").queues["orders"].description.lock_duration_ms == 60_000
        again = fields_in(conflict.text)
        assert (again["lockDuration"], again["maxDeliveryCount"]) == ("30 s", "3")
        assert (await client.post("/edit/orders", again)).status == 303
        form = (await client.data("/entities/orders"))["form"]
        assert (form["lockDuration"], form["maxDeliveryCount"]) == ("PT30S", 3)
        assert (await client.post("/edit/orders", {"kind": "queue", "shown": "["})).status == 422


@in_loop
async def test_what_was_typed_for_an_entity_that_is_deleted_meanwhile_is_not_lost() -> None:
    async with console(QueueDescription(name="orders")) as client:
        form = fields_in((await client.get("/edit/orders")).text)
        assert (await client.post("/entities/orders/delete", {"confirm": "orders"})).status == 303
        refused = await client.post("/edit/orders", form | {"userMetadata": "mine"})
        assert (refused.status, fields_in(refused.text)["userMetadata"]) == (422, "mine")
        assert "Nothing was changed." in refused.words


# -- rules ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_rule_is_created_changed_and_guarded_against_somebody_else() -> None:
    async with console(topics=[EVENTS]) as client:
        rule = {"name": "red", "filter": "sql", "sql": "colour = 'red'", "action": "SET sys.Label = 'r'"}
        assert (await client.post(f"/create/rule/{BILLING}", rule)).status == 303
        twice = await client.post(f"/create/rule/{BILLING}", rule)
        assert (twice.status, "has a rule 'red' already" in twice.words) == (422, True)
        mine = fields_in((await client.get(f"/rules/{BILLING}/Rules/red")).text)
        assert (mine["sql"], mine["action"]) == ("colour = 'red'", "SET sys.Label = 'r'")
        other = mine | {"filter": "correlation", "label": "order", "properties": "size = 5", "action": ""}
        assert (await client.post(f"/rules/{BILLING}/Rules/red", other)).status == 303
        rules = (await client.data(f"/entities/{BILLING}?tab=rules"))["rules"]
        changed = next(one for one in rules if one["name"] == "red")
        assert changed["form"] == {
            "name": "red",
            "filter": {"type": "correlation", "label": "order", "properties": {"size": 5}},
        }
        conflict = await client.post(f"/rules/{BILLING}/Rules/red", mine | {"sql": "1=0"})
        assert (conflict.status, "Subject (label) = order AND size = 5" in conflict.words) == (409, True)
        assert fields_in(conflict.text)["sql"] == "1=0"
        assert (await client.get(f"/rules/{BILLING}/Rules/none")).status == 404
        # What a form cannot write is told before it is lost.
        late = SqlRuleFilter("sys.EnqueuedTimeUtc > @day", {"@day": datetime(2026, 1, 1, tzinfo=UTC)})
        await namespace_of(client).administration.create_rule("events", "billing", "late", filter=late)
        assert "The value of @day is a time" in (await client.get(f"/rules/{BILLING}/Rules/late")).words


@in_loop
async def test_a_mistake_in_a_rule_is_told_by_line_and_column_while_it_is_typed_and_when_it_is_saved() -> None:
    async with console(topics=[EVENTS]) as client:
        wrong = {"name": "r", "filter": "sql", "sql": "colour = 'red' AND\r\nsize >> 5"}
        checked = await client.post("/check-rule", wrong)
        assert "Filter, line 2, column 7" in checked.words
        assert "<html" not in checked.text
        saved = await client.post(f"/create/rule/{BILLING}", wrong)
        assert (saved.status, "Filter, line 2, column 7" in saved.words) == (422, True)
        action = await client.post("/check-rule", {"filter": "true", "action": "SET x + 1"})
        assert "Action, line 1, column 7" in action.words
        good = {"name": "r", "filter": "sql", "sql": "colour = 'red' AND\r\nsize > 5"}
        assert "can be made as it stands" in (await client.post("/check-rule", good)).words


@in_loop
async def test_a_rule_is_tried_on_a_message_with_what_each_term_came_to_and_what_the_action_changed() -> None:
    async with console(topics=[EVENTS], right="manage") as client:
        address = f"/try-rule/{BILLING}"
        typed = {
            "filter": "sql",
            "sql": "colour = 'red' AND (size > 5 OR age > 1)",
            "action": "SET size = size + 1; REMOVE colour",
            "m_properties": "colour = red\nsize = 9",
        }
        page = await client.post(address, typed, Accept="application/json")
        one = page.json["one"]
        assert one["matches"] is True
        terms = {term["text"]: (term["type"], term["value"], term["depth"]) for term in one["terms"]}
        assert terms["size > 5"] == ("boolean", True, 2)
        assert terms["age > 1"][0] == "unknown"
        changes = {change["name"]: (change["before"], change["after"]) for change in one["changes"]}
        assert changes["size"] == (9, 10)
        assert changes["colour"] == ("red", None)
        shown = await client.post(address, typed)
        assert "Matches" in shown.words
        assert "age > 1 unknown" in shown.words
        # Lines end as they were typed, and not as browsers send them.
        lines = {"filter": "sql", "sql": "text = 'a\r\nb'", "m_properties": '{"text": "a\\nb"}'}
        assert (await client.post(address, lines, Accept="application/json")).json["one"]["matches"] is True
        # Nothing was made by it.
        assert len((await client.data(f"/entities/{BILLING}?tab=rules"))["rules"]) == 1


@in_loop
async def test_all_rules_of_a_subscription_are_tried_on_a_message_that_is_there() -> None:
    rules = (
        RuleDescription(name="red", filter_type="Sql", sql_filter="colour = 'red'", sql_action="SET seen = 1"),
        RuleDescription(name="all", filter_type="True"),
        RuleDescription(name="none", filter_type="Sql", sql_filter="colour = 'blue'"),
    )
    topic = TopicDescription(name="events", subscriptions=(SubscriptionDescription(name="billing", rules=rules),))
    async with console(topics=[topic], right="listen") as client:
        address = f"/try-rule/{BILLING}"
        empty = await client.post(address, {"peek": "true"})
        assert (empty.status, "no message to peek" in empty.words) == (422, True)
        async with broker_sender(client) as sender:
            message = ServiceBusMessage("x", subject="<i>", application_properties={"colour": "red", "size": 5})
            await sender.send_messages(message)
        peeked = await client.post(address, {"peek": "true"})
        fields = fields_in(peeked.text)
        assert fields["m_properties"].splitlines()[:2] == ["colour = red", "size = 5"]
        assert fields["m_subject"] == "<i>"
        tried = (await client.post(address, fields, Accept="application/json")).json["several"]
        assert tried["matches"] is True
        assert {rule["rule"]: rule["matches"] for rule in tried["rules"]} == {"red": True, "all": True, "none": False}
        assert "Reaches the subscription" in (await client.post(address, fields)).words
        wrong = await client.post(address, {"m_properties": "colour"})
        assert (wrong.status, "Line 1" in wrong.words) == (422, True)
        far = await client.post(address, {"peek": "true", "number": "9" * 30})
        assert far.status == 422


@asynccontextmanager
async def broker_sender(client: ConsoleClient) -> AsyncIterator[Any]:
    """A sender to the topic with the right for it."""
    async with (
        console_of(client.server) as manager,
        namespace_of(manager).messaging.get_topic_sender("events") as sender,
    ):
        yield sender


# -- import and export ------------------------------------------------------------------------------------------


def uploaded(document: Any, **fields: str) -> FormData:
    form = FormData(fields)
    form.add_field("file", json.dumps(document).encode(), filename="namespace.json")
    return form


async def finished(client: ConsoleClient) -> dict[str, Any]:
    """What the page of an import tells when the import has ended."""
    async with asyncio.timeout(60):
        while True:
            told: dict[str, Any] = (await client.data("/topology"))["plan"]
            if told["state"] != "running":
                return told
            await asyncio.sleep(0.01)


@in_loop
async def test_an_exported_document_makes_the_same_entities_elsewhere_after_a_dry_run() -> None:
    async with console(QueueDescription(name="orders", lock_duration_ms=30_000), topics=[EVENTS]) as client:
        exported = await client.get("/topology/export")
        assert "attachment" in exported.headers["Content-Disposition"]
        document = exported.json
        config = (await client.get("/topology/export?format=config")).json
    for contents in (document, config):
        async with console(QueueDescription(name="orders")) as client:
            assert (await client.post("/topology/plan", uploaded(contents))).status == 303
            plan = (await client.data("/topology"))["plan"]
            steps = {(step["operation"], step["path"]) for step in plan["steps"]}
            assert {("update", "orders"), ("create", "events"), ("create", "events/billing")} <= steps
            # Shown, and not done.
            assert len((await client.data("/entities"))["entities"]) == 1
            assert "What would change" in (await client.get("/topology")).words
            assert (await client.post("/topology/apply")).status == 303
            assert (await finished(client))["state"] == "done"
            made = (await client.get("/topology/export")).json
            assert made["queues"] == document["queues"]
            # A Config.json has no words for a True filter, and makes an SQL filter of it.
            rule = made["topics"][0]["subscriptions"][0]["rules"][0]
            assert rule["filter"]["type"] == ("sql" if contents is config else "true")
            if contents is document:
                assert made == document
            assert (await client.post("/topology/apply")).status == 409


@in_loop
async def test_what_the_document_lacks_is_deleted_only_when_the_name_of_the_namespace_is_typed() -> None:
    document = {"kind": "duobus-topology", "version": 1, "queues": [], "topics": []}
    async with console(QueueDescription(name="orders")) as client:
        assert (await client.post("/topology/plan", uploaded(document))).status == 303
        assert (await client.data("/topology"))["plan"]["total"] == 0
        assert (await client.post("/topology/plan", uploaded(document, prune="true"))).status == 303
        assert (await client.post("/topology/apply")).status == 422
        assert (await client.post("/topology/prune", {"confirm": "orders"})).status == 422
        assert len((await client.data("/entities"))["entities"]) == 1
        assert (await client.post("/topology/prune", {"confirm": namespace_of(client).name})).status == 303
        assert (await finished(client))["done"] == {"delete": 1}
        assert (await client.data("/entities"))["entities"] == []


@in_loop
async def test_a_plan_that_no_longer_fits_is_shown_anew_in_place_of_being_done() -> None:
    document = {"kind": "duobus-topology", "version": 1, "queues": [{"name": "fresh"}], "topics": []}
    async with console() as client:
        assert (await client.post("/topology/plan", uploaded(document))).status == 303
        assert (await client.post("/create/queue", {"name": "fresh"})).status == 303
        assert (await client.post("/topology/apply")).status == 303
        page = await client.get("/topology")
        assert "Somebody has changed entities meanwhile" in page.words
        assert "Nothing: the namespace is as the document describes it." in page.words


NO_DOCUMENTS = [
    ("", "Choose a file"),
    ("{", "line 1"),
    ('{"kind": "other"}', "neither a topology"),
    ('{"kind": "duobus-topology", "version": 1, "queues": [{"name": "a", "colour": 1}]}', "no property 'colour'"),
    ("[" * 100_000, "nested too deeply"),
]


@in_loop
async def test_a_file_that_is_no_document_is_refused_with_its_place() -> None:
    async with console() as client:
        for text, told in NO_DOCUMENTS:
            refused = await client.post("/topology/plan", {"text": text})
            assert (refused.status, told in refused.words) == (422, True), (text[:20], refused.words)


@in_loop
async def test_an_import_that_the_broker_refuses_stops_and_says_what_was_done() -> None:
    queues = [{"name": "a"}, {"name": "b", "lockDuration": "PT1H"}, {"name": "c"}]
    async with console() as client:
        document = {"kind": "duobus-topology", "version": 1, "queues": queues, "topics": []}
        assert (await client.post("/topology/plan", uploaded(document))).status == 303
        assert (await client.post("/topology/apply")).status == 303
        told = await finished(client)
        assert (told["state"], told["done"]) == ("failed", {"create": 1})
        assert "LockDuration" in told["failure"]["text"]
        assert "Done: 1 create" in (await client.get("/topology")).words


@in_loop
async def test_a_document_with_values_that_cannot_be_meant_stops_with_a_sentence() -> None:
    malformed = [
        ({"queues": [{"name": "a", "authorizationRules": [{}]}]}, "authorizationRules[0]"),
        (
            {"topics": [{"name": "t", "subscriptions": [{"name": "s", "rules": [{"name": "r", "filter": 5}]}]}]},
            "filter",
        ),
    ]
    wrong = [
        {"queues": [{"name": "a", "forwardTo": 5}]},
        {"queues": [{"name": "a", "lockDuration": "x"}]},
    ]
    async with console() as client:
        for entities, place in malformed:
            document = {"kind": "duobus-topology", "version": 1, "queues": [], "topics": []} | entities
            refused = await client.post("/topology/plan", uploaded(document))
            assert (refused.status, place in refused.text) == (422, True), refused.text
        for entities in wrong:
            document = {"kind": "duobus-topology", "version": 1, "queues": [], "topics": []} | entities
            assert (await client.post("/topology/plan", uploaded(document))).status == 303
            assert (await client.post("/topology/apply")).status == 303
            told = await finished(client)
            assert told["state"] == "failed"
            assert told["failure"]["text"], entities
            assert (await client.post("/topology/discard")).status == 303


@in_loop
async def test_an_entity_with_a_part_in_a_lost_store_says_so_and_a_change_that_is_refused_is_not_lost() -> None:
    async with console(QueueDescription(name="orders")) as client:
        form = fields_in((await client.get("/edit/orders")).text)
        for store in (1, 2):
            await namespace_of(client).operation("POST", f"/$duobus/stores/{store}/fail")
        # The server notices the loss when a message is sent.
        with pytest.raises(NamespaceError):
            await namespace_of(client).operation("POST", "/orders/messages", body="lost")
        refused = await client.post("/edit/orders", form | {"lockDuration": "2m"})
        assert (refused.status, fields_in(refused.text)["lockDuration"]) == (422, "2m")
        page = await client.get("/entities/orders")
        assert "A store that holds a part of this queue is away" in page.words
        assert "Store away" in (await client.get("/entities")).words


# -- restart ----------------------------------------------------------------------------------------------------


@in_loop
async def test_while_the_broker_is_away_the_screens_say_so_and_nothing_typed_is_lost() -> None:
    async with broker(QueueDescription(name="orders")) as server, console_of(server) as client:
        form = fields_in((await client.get("/edit/orders")).text)
        await server.stop()
        for path in ("/entities", "/entities/orders", "/edit/orders"):
            page = await client.get(path)
            assert (page.status, "does not answer" in page.words) == (502, True), path
        refused = await client.post("/edit/orders", form | {"userMetadata": "mine"})
        assert (refused.status, fields_in(refused.text)["userMetadata"]) == (422, "mine")
