"""Topics, subscriptions and rules over HTTP: managed, published to, received from."""

from __future__ import annotations

import re

from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, entry, token

SQL = '<Filter i:type="SqlFilter"><SqlExpression>{}</SqlExpression></Filter>'
KEY = "a key of the tests"


def titles(reply: Reply) -> list[str]:
    return re.findall(r'<entry.*?<title type="text">(.*?)</title>', reply.text)


def subscription(inside: str = "") -> str:
    return entry(inside, "SubscriptionDescription")


def rule(inside: str, name: str = "r") -> str:
    return entry(f"{inside}<Name>{name}</Name>", "RuleDescription")


@in_loop
async def test_a_topic_with_its_subscriptions_and_rules_lives_as_a_queue_does() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        created = await http.ask(
            "PUT", "/a/T", entry("<MaxSizeInMegabytes>2048</MaxSizeInMegabytes>", "TopicDescription")
        )
        assert created.status == 201, created.text
        assert "<SubscriptionCount>0</SubscriptionCount>" in created.text
        assert (await http.ask("PUT", "/a/t", entry())).status == 409
        assert (await http.ask("PUT", "/q", entry(kind="TopicDescription"))).status == 409
        made = await http.ask("PUT", "/a%2Ft/subscriptions/S", subscription("<LockDuration>PT13S</LockDuration>"))
        assert made.status == 201, made.text
        assert "<id>http://localhost/a/T/Subscriptions/S</id>" in made.text
        assert '<title type="text">S</title>' in made.text
        assert (await http.ask("PUT", "/a/t/Subscriptions/s", subscription())).status == 409
        rules = await http.ask("GET", "/a/t/subscriptions/s/rules?$skip=0&$top=100")
        assert titles(rules) == ["$Default"]
        assert "<id>http://localhost/a/T/Subscriptions/S/Rules/$Default</id>" in rules.text
        put = await http.ask("PUT", "/a/t/subscriptions/s/rules/R", rule(SQL.format("a = 1"), "R"))
        assert put.status == 201, put.text
        assert '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression>' in put.text
        changed = await http.ask("PUT", "/a/t/subscriptions/s/rules/r", rule(SQL.format("a = 2")), {"If-Match": "*"})
        assert changed.status == 200
        assert "<SqlExpression>a = 2<" in (await http.ask("GET", "/a/T/Subscriptions/S/Rules/r")).text
        wrong = await http.ask("PUT", "/a/t/subscriptions/s/rules/w", rule(SQL.format("a = = 2"), "w"))
        assert wrong.status == 400
        assert (await http.ask("DELETE", "/a/t/subscriptions/s/rules/$Default")).status == 200
        assert titles(await http.ask("GET", "/a/t/subscriptions/s/rules")) == ["R"]
        updated = await http.ask("PUT", "/a/t/subscriptions/s", subscription(), {"If-Match": "*"})
        assert "<LockDuration>PT1M<" in updated.text
        # Rules are no part of a subscription's description: they stay.
        assert titles(await http.ask("GET", "/a/t/subscriptions/s/rules")) == ["R"]
        assert titles(await http.ask("GET", "/$Resources/topics")) == ["a/T"]
        assert titles(await http.ask("GET", "/$Resources/queues")) == ["q"]
        assert titles(await http.ask("GET", "/a/t/Subscriptions")) == ["S"]
        assert "<SubscriptionCount>1<" in (await http.ask("GET", "/A/T")).text
        assert (await http.ask("DELETE", "/a/t/subscriptions/s")).status == 200
        for path in ("/a/t/subscriptions/s", "/a/t/subscriptions/s/rules/r", "/none/subscriptions/s"):
            assert (await http.ask("GET", path)).status == 404
            assert (await http.ask("DELETE", path)).status == 404
        assert (await http.ask("PUT", "/none/subscriptions/s", subscription())).status == 404
        for path in ("/none/subscriptions", "/a/t/subscriptions/s/rules"):
            empty = await http.ask("GET", path)
            assert (empty.status, titles(empty)) == (200, [])
        assert (await http.ask("DELETE", "/a/t")).status == 200
        assert titles(await http.ask("GET", "/$Resources/topics")) == []


@in_loop
async def test_what_has_been_read_of_a_topic_or_subscription_can_be_sent_back() -> None:
    moved = re.compile(r"<(updated|UpdatedAt)>.*?</\1>")
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        inside = "<EnablePartitioning>true</EnablePartitioning><UserMetadata>&lt;</UserMetadata>"
        inside += "<SupportOrdering>true</SupportOrdering>"
        await http.ask("PUT", "/t", entry(inside, "TopicDescription"))
        await http.ask("PUT", "/t/subscriptions/s", subscription("<RequiresSession>true</RequiresSession>"))
        for path in ("/t", "/t/subscriptions/s"):
            before = await http.ask("GET", path)
            assert (await http.ask("PUT", path, before.body, {"If-Match": "*"})).status == 200
            after = await http.ask("GET", path)
            assert moved.sub("", after.text) == moved.sub("", before.text)
        refused = await http.ask(
            "PUT", "/t/subscriptions/s", subscription("<RequiresSession>false</RequiresSession>"), {"If-Match": "*"}
        )
        assert refused.status == 400
        assert "property of an existing Subscription cannot be changed" in refused.text


@in_loop
async def test_a_subscription_can_be_made_with_a_rule_of_its_own() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        await http.ask("PUT", "/t", entry(kind="TopicDescription"))
        first = f"<DefaultRuleDescription>{SQL.format('colour = 1')}<Name>mine</Name></DefaultRuleDescription>"
        assert (await http.ask("PUT", "/t/subscriptions/s", subscription(first))).status == 201
        assert titles(await http.ask("GET", "/t/subscriptions/s/rules")) == ["mine"]
        broken = f"<DefaultRuleDescription>{SQL.format('((')}<Name>mine</Name></DefaultRuleDescription>"
        assert (await http.ask("PUT", "/t/subscriptions/w", subscription(broken))).status == 400
        assert (await http.ask("GET", "/t/subscriptions/w")).status == 404


@in_loop
async def test_messages_are_published_and_received_and_altered_by_rules() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        for partitioned in ("false", "true"):
            name = f"t-{partitioned}"
            about = f"<EnablePartitioning>{partitioned}</EnablePartitioning>"
            assert (await http.ask("PUT", f"/{name}", entry(about, "TopicDescription"))).status == 201
            assert (await http.ask("PUT", f"/{name}/subscriptions/All", subscription())).status == 201
            changes = "SET seen = 7; SET sys.Label = 'new'"
            action = f'<Action i:type="SqlRuleAction"><SqlExpression>{changes}</SqlExpression></Action>'
            first = f"<DefaultRuleDescription>{SQL.format('n = 1')}{action}<Name>one</Name></DefaultRuleDescription>"
            assert (await http.ask("PUT", f"/{name}/subscriptions/some", subscription(first))).status == 201
            for number in range(3):
                headers = {"n": str(number), "BrokerProperties": '{"Label":"old"}'}
                assert (await http.ask("POST", f"/{name}/messages", str(number), headers)).status == 201
            got = [await http.ask("DELETE", f"/{name}/Subscriptions/all/messages/head?timeout=0") for _ in range(4)]
            assert sorted(reply.body for reply in got) == [b"", b"0", b"1", b"2"]
            altered = await http.ask("POST", f"/{name}/subscriptions/SOME/messages/head?timeout=0")
            assert (altered.status, altered.body) == (201, b"1")
            assert altered.header("seen") == "7"
            assert '"Label":"new"' in (altered.header("BrokerProperties") or "")
            location = (altered.header("Location") or "").removeprefix("http://localhost")
            assert location.startswith(f"/{name}/subscriptions/some/messages/")
            counted = await http.ask("GET", f"/{name}/subscriptions/some")
            assert "<MessageCount>1</MessageCount>" in counted.text
            assert (await http.ask("DELETE", location)).status == 200
            assert (await http.ask("DELETE", location)).status == 404
            assert (await http.ask("POST", f"/{name}/subscriptions/some/messages", b"x")).status == 400
            assert (await http.ask("POST", f"/{name}/messages/head?timeout=0")).status == 400
            assert (await http.ask("POST", f"/{name}/subscriptions/none/messages/head")).status == 410


@in_loop
async def test_the_access_rules_of_a_topic_are_good_for_its_subscriptions_too() -> None:
    inside = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Listen</AccessRights></Rights>"
        f"<KeyName>own</KeyName><PrimaryKey>{KEY}</PrimaryKey><SecondaryKey>x</SecondaryKey></AuthorizationRule>"
        "</AuthorizationRules>"
    )
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        await http.ask("PUT", "/t", entry(inside, "TopicDescription"))
        await http.ask("PUT", "/t/subscriptions/s", subscription())
        listener = {"Authorization": token("t", rule="own", key=KEY)}
        assert (await http.ask("DELETE", "/t/subscriptions/s/messages/head?timeout=0", b"", listener)).status == 204
        assert (await http.ask("POST", "/t/messages", b"", listener)).status == 401
        narrow = {"Authorization": token("t/subscriptions/other", rule="own", key=KEY)}
        assert (await http.ask("DELETE", "/t/subscriptions/s/messages/head?timeout=0", b"", narrow)).status == 401
