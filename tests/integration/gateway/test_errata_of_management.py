"""The management API as upstream's live tests have it."""

from __future__ import annotations

import re

import pytest

from duobus.model.descriptions import AccessRule, QueueDescription
from duobus.server.composition import Server
from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, entry, token

KEY = "a key of the tests"
UPDATE = {"If-Match": "*"}
SENDS = AccessRule(name="sends", primary_key=KEY, secondary_key=KEY, rights=2)


async def connected(server: Server, authorization: str | None = "") -> Http:
    return await Http.connect(server.port("http") or 0, authorization)


def element(reply: Reply, name: str) -> str | None:
    found = re.search(f"<{name}>(.*?)</{name}>", reply.text)
    return None if found is None else found[1]


def is_feed_without_entries(reply: Reply) -> bool:
    assert reply.header("Content-Type") == "application/atom+xml;type=feed;charset=utf-8"
    return reply.status == 200 and "<entry" not in reply.text and "Publicly Listed Services" in reply.text


async def with_topic(http: Http) -> None:
    assert (await http.ask("PUT", "/topic-1", entry(kind="TopicDescription"))).status == 201
    assert (await http.ask("PUT", "/topic-1/Subscriptions/s", entry(kind="SubscriptionDescription"))).status == 201


@in_loop
async def test_a_missing_queue_or_topic_is_a_feed_without_entries_and_a_missing_subscription_not_found() -> None:
    async with serving() as server:
        http = await connected(server)
        await with_topic(http)
        for path in ("/missing", "/missing/below", "/q/$DeadLetterQueue"):
            assert is_feed_without_entries(await http.ask("GET", path)), path
        for path, name in (
            ("/topic-1/Subscriptions/name", "topic-1|name"),
            ("/missing/subscriptions/name", "missing|name"),
            ("/topic-1/Subscriptions/s/Rules/r", "topic-1|s|r"),
        ):
            reply = await http.ask("GET", path)
            assert reply.status == 404
            assert f"SubCode=40400. Not Found. Entity 'ns:Topic:{name}' was not found." in reply.text
            assert "TrackingId:" in reply.text


@in_loop
async def test_who_may_not_manage_is_told_so_in_the_service_s_words() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(SENDS,))) as server:
        http = await connected(server)
        await with_topic(http)
        rules = (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
            f"<KeyName>sends</KeyName><PrimaryKey>{KEY}</PrimaryKey></AuthorizationRule></AuthorizationRules>"
        )
        assert (await http.ask("PUT", "/topic-1", entry(rules, "TopicDescription"), UPDATE)).status == 200
        part = "SubCode=40100: Unauthorized : Unauthorized access for '{}' operation"
        for method, path, body, told in (
            ("GET", "/q", "", "Manage,EntityRead claims required for this operation"),
            ("PUT", "/q", entry(), "Authorization failed for specified action: Manage,EntityWrite"),
            ("DELETE", "/q", "", "Authorization failed for specified action: Manage,EntityDelete."),
            ("GET", "/topic-1", "", "Manage,EntityRead claims required for this operation"),
            ("GET", "/topic-1/Subscriptions/s", "", part.format("GetSubscription")),
            ("GET", "/topic-1/Subscriptions/missing", "", part.format("GetSubscription")),
            ("GET", "/topic-1/Subscriptions", "", part.format("EnumerateSubscriptions")),
            ("PUT", "/topic-1/Subscriptions/s", entry(), part.format("CreateOrUpdateSubscription")),
            ("DELETE", "/topic-1/Subscriptions/s", "", part.format("DeleteSubscription")),
            ("GET", "/topic-1/Subscriptions/s/Rules", "", part.format("EnumerateRules")),
            ("PUT", "/topic-1/Subscriptions/s/Rules/r", entry(), part.format("CreateOrUpdateRule")),
        ):
            first = path.split("/")[1]
            own = {"Authorization": token(first, rule="sends", key=KEY)}
            reply = await http.ask(method, path, body, own)
            assert reply.status == 401, (method, path, reply.text)
            text = reply.text.replace("&apos;", "'")
            before = "" if told.startswith("Manage") else "SubCode=40100. Unauthorized. "
            assert text.startswith(f"<Error><Code>401</Code><Detail>{before}{told}"), (method, path, text)
            # Programs read the words about parts of topics in the first line.
            assert reply.reason == (told if "operation" in told and before else "Unauthorized"), (method, path)


@in_loop
async def test_who_may_not_manage_hears_of_a_missing_queue_as_others_do_and_who_has_no_good_token_nothing() -> None:
    sends = ("sends", KEY)
    config_rule = AccessRule(name="sends", primary_key=KEY, secondary_key=KEY, rights=2)
    async with serving() as server:
        server.amqp.authorizer.namespace_of("ns").rules["sends"] = config_rule
        http = await connected(server)
        own = {"Authorization": token("", rule=sends[0], key=sends[1])}
        assert is_feed_without_entries(await http.ask("GET", "/missing", "", own))
        assert (await http.ask("GET", "/q", "", own)).status == 401
        assert (await http.ask("PUT", "/missing", entry(), own)).status == 401
        for wrong in (token("", key="wrong"), token("other"), "nonsense"):
            assert (await http.ask("GET", "/missing", "", {"Authorization": wrong})).status == 401


@in_loop
async def test_a_queue_that_forwards_tells_its_auto_delete_as_it_was_set_and_stays() -> None:
    async with serving() as server:
        http = await connected(server)
        await with_topic(http)
        inside = "<ForwardTo>https://localhost/q</ForwardTo><AutoDeleteOnIdle>PT5M</AutoDeleteOnIdle>"
        for path, kind in (("/f", "QueueDescription"), ("/topic-1/Subscriptions/f", "SubscriptionDescription")):
            assert element(await http.ask("PUT", path, entry(inside, kind)), "AutoDeleteOnIdle") == "PT5M"
            read = await http.ask("GET", path)
            assert (element(read, "AutoDeleteOnIdle"), element(read, "ForwardTo")) == ("PT5M", "https://localhost/q")
        home = server.unit.namespace("ns")
        for queue in (home.queues["f"], home.topics["topic-1"].subscriptions["f"]):
            assert queue.idle is not None
            assert queue.idle.limit_ms is None


@in_loop
async def test_an_entity_that_requires_sessions_may_forward() -> None:
    async with serving() as server:
        http = await connected(server)
        await with_topic(http)
        inside = "<RequiresSession>true</RequiresSession><ForwardTo>q</ForwardTo>"
        for path, kind in (("/f", "QueueDescription"), ("/topic-1/Subscriptions/f", "SubscriptionDescription")):
            assert (await http.ask("PUT", path, entry(inside, kind))).status == 201
        in_session = {"BrokerProperties": '{"SessionId":"a"}'}
        for path in ("/f/messages", "/topic-1/messages"):
            assert (await http.ask("POST", path, path, in_session)).status == 201
        arrived = [(await http.ask("DELETE", "/q/messages/head?timeout=5")) for _ in range(2)]
        assert sorted(reply.text for reply in arrived) == ["/f/messages", "/topic-1/messages"]
        assert all('"SessionId":"a"' in (reply.header("BrokerProperties") or "") for reply in arrived)


@in_loop
async def test_a_topic_counts_the_filters_of_its_subscriptions() -> None:
    async with serving() as server:
        http = await connected(server)

        async def counts() -> list[str | None]:
            topic = await http.ask("GET", "/topic-1?api-version=2024-05")
            return [element(topic, f"{name}Count") for name in ("Subscription", "SqlFilter", "CorrelationFilter")]

        await with_topic(http)
        assert await counts() == ["1", "1", "0"]
        for number, inside in enumerate(
            (
                '<Filter i:type="CorrelationFilter"><Label>x</Label></Filter>',
                '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>',
                '<Filter i:type="FalseFilter"></Filter>',
            )
        ):
            path = f"/topic-1/Subscriptions/s/Rules/r{number}"
            assert (await http.ask("PUT", path, entry(inside, "RuleDescription"))).status == 201
        assert await counts() == ["1", "3", "1"]
        await http.ask("DELETE", "/topic-1/Subscriptions/s/Rules/r0")
        assert await counts() == ["1", "3", "0"]
        await http.ask("DELETE", "/topic-1/Subscriptions/s")
        assert await counts() == ["0", "0", "0"]


@in_loop
async def test_an_answer_to_a_put_tells_neither_use_nor_counts_and_a_subscription_was_used_from_the_beginning() -> None:
    async with serving() as server:
        http = await connected(server)
        for path, kind in (
            ("/new", "QueueDescription"),
            ("/t", "TopicDescription"),
            ("/t/Subscriptions/s", "SubscriptionDescription"),
        ):
            for headers in ({}, UPDATE):
                answer = await http.ask("PUT", path, entry(kind=kind), headers)
                assert "<AccessedAt" not in answer.text
                assert "<CountDetails" not in answer.text
            read = await http.ask("GET", path)
            assert "<CountDetails" in read.text
            created, accessed = element(read, "CreatedAt"), element(read, "AccessedAt")
            assert accessed == (created if "Subscriptions" in path else "0001-01-01T00:00:00Z")


@in_loop
async def test_an_access_rule_has_the_times_that_its_client_has_sent_and_no_others() -> None:
    rule = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>{}"
        "<KeyName>s</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    async with serving() as server:
        http = await connected(server)
        answer = await http.ask("PUT", "/new", entry(rule.format("")))
        read = await http.ask("GET", "/new")
        for reply in (answer, read):
            assert (element(reply, "CreatedTime"), element(reply, "ModifiedTime")) == (None, None)
        times = "<CreatedTime>2026-01-02T03:04:05.123Z</CreatedTime><ModifiedTime>2026-01-03T03:04:05Z</ModifiedTime>"
        await http.ask("PUT", "/new", entry(rule.format(times)), UPDATE)
        read = await http.ask("GET", "/new")
        assert element(read, "CreatedTime") == "2026-01-02T03:04:05.123Z"
        assert element(read, "ModifiedTime") == "2026-01-03T03:04:05.000Z"


@pytest.mark.parametrize("name", ["RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning"])
def test_what_cannot_change_is_refused_in_the_service_s_words(name: str) -> None:
    async def test() -> None:
        async with serving() as server:
            http = await connected(server)
            reply = await http.ask("PUT", "/q", entry(f"<{name}>true</{name}>"), UPDATE)
            assert reply.status == 400
            assert f"The value for the {name} property of an existing Queue cannot be changed" in reply.text

    in_loop(test)()


@in_loop
async def test_partitioning_of_a_topic_that_cannot_change_has_words_of_its_own() -> None:
    async with serving() as server:
        http = await connected(server)
        await with_topic(http)
        body = entry("<EnablePartitioning>true</EnablePartitioning>", "TopicDescription")
        reply = await http.ask("PUT", "/topic-1", body, UPDATE)
        assert reply.status == 400
        assert "SubCode=40000. Bad Request. Partitioning cannot be changed for Topic. " in reply.text
