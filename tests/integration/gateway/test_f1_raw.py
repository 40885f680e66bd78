"""The list in docs/reference/http-coverage.md by number, as HTTP's own bytes: what no SDK would send stands here."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import quote

import pytest

from duobus.model.descriptions import AccessRule, QueueDescription
from duobus.server.composition import Server
from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, entry, path_of, token

UPDATE = {"If-Match": "*"}
KINDS = {
    "/f1-q": "QueueDescription",
    "/f1-t": "TopicDescription",
    "/f1-t/Subscriptions/s": "SubscriptionDescription",
    "/f1-t/Subscriptions/s/Rules/r": "RuleDescription",
}
KEY = "a key of the tests"


async def connected(server: Server, authorization: str | None = "") -> Http:
    return await Http.connect(server.port("http") or 0, authorization)


def code_of(reply: Reply) -> tuple[int, int]:
    found = re.search(r"<Detail>SubCode=(\d+)\. ", reply.text)
    return reply.status, int(found[1]) if found else 0


def titles(reply: Reply) -> list[str]:
    return re.findall(r'<entry.*?<title type="text">(.*?)</title>', reply.text)


@in_loop
async def test_f1_01_every_kind_is_created_read_changed_listed_and_deleted() -> None:
    lists = {
        "/f1-q": "/$Resources/Queues",
        "/f1-t": "/%24Resources/topics",
        "/f1-t/Subscriptions/s": "/f1-t/subscriptions/",
        "/f1-t/Subscriptions/s/Rules/r": "/F1-T/SUBSCRIPTIONS/S/RULES",
    }
    async with serving() as server:
        http = await connected(server)
        for path, kind in KINDS.items():
            missing = await http.ask("GET", path)
            # A queue or topic that is missing is a feed without entries, the rest is not found.
            assert missing.status == (404 if "/Subscriptions/" in path else 200)
            assert titles(missing) == []
            created = await http.ask("PUT", path, entry(kind=kind))
            assert (created.status, created.header("Content-Type")) == (
                201,
                "application/atom+xml;type=entry;charset=utf-8",
            )
            # As JavaScript wants it: an absolute id with capitals, in which nothing is encoded.
            assert f"<id>http://localhost{path}" in created.text
            read = await http.ask("GET", path.swapcase() + "?enrich=False&api-version=2017-04")
            # The answer to a change tells neither when it was used nor what is in it.
            told = re.sub(r"<(AccessedAt|CountDetails)\b.*?</\1>", "", read.text)
            assert (read.status, told) == (200, created.text)
            assert ("CountDetails" in read.text) == ("Description" in kind and "Rule" not in kind)
            assert (await http.ask("PUT", path, entry(kind=kind), UPDATE)).status == 200
            listed = await http.ask("GET", lists[path])
            assert path.rpartition("/")[2] in titles(listed)
            assert listed.header("Content-Type") == "application/atom+xml;type=feed;charset=utf-8"
        for path in reversed(KINDS):
            deleted = await http.ask("DELETE", path)
            assert (deleted.status, deleted.body) == (200, b"")
            gone = await http.ask("GET", path)
            if "ubscriptions" in path:
                assert code_of(gone) == (404, 40400)
            else:
                assert (gone.status, titles(gone)) == (200, [])


@in_loop
async def test_f1_02_what_was_read_is_sent_back_and_every_property_is_as_before() -> None:
    inside = (
        "<LockDuration>PT13.5S</LockDuration><MaxSizeInMegabytes>5120</MaxSizeInMegabytes>"
        "<EnablePartitioning>true</EnablePartitioning><UserMetadata>a &amp; b</UserMetadata>"
        "<ForwardTo>q</ForwardTo><MaxDeliveryCount>2147483647</MaxDeliveryCount>"
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
        "<KeyName>s</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    async with serving() as server:
        http = await connected(server)
        created = await http.ask("PUT", "/all", entry(inside))
        assert created.status == 201, created.text
        assert "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes>" in created.text
        before = (await http.ask("GET", "/all")).text
        # As Python echoes "for ever", with fewer digits.
        echoed = before.replace("2H48M5.4775807S", "2H48M5.477539S")
        assert echoed != before
        for body in (before, echoed):
            assert (await http.ask("PUT", "/all", body, UPDATE)).status == 200
            after = (await http.ask("GET", "/all")).text

            def timeless(text: str) -> str:
                return re.sub(r"<(UpdatedAt|updated)>.*?</\1>", "", text)

            assert timeless(after) == timeless(before)


@in_loop
async def test_f1_03_lists_of_any_length_are_complete_and_in_order() -> None:
    async with serving() as server:
        http = await connected(server)
        await http.ask("DELETE", "/q")
        made: list[str] = []
        for number in (0, 1, 100, 101, 250):
            while len(made) < number:
                made.append(f"{'Nn'[len(made) % 2]}{len(made) * 7919 % 1000:03}")
                assert (await http.ask("PUT", f"/{made[-1]}", entry())).status == 201
            found: list[str] = []
            target: str | None = "/$Resources/queues?$skip=0&$top=100&api-version=2021-05"
            while target is not None:
                page = await http.ask("GET", target)
                found += titles(page)
                head = page.text.partition("<entry")[0]
                links = re.findall(r'<link rel="(\w+)" href="(.*?)"/>', head)
                assert [rel for rel, _ in links] == (["self", "next"] if len(links) == 2 else ["self"])
                target = links[1][1].replace("&amp;", "&").removeprefix("http://localhost") if len(links) == 2 else None
                assert target is None or ("$skip=" in target and "$top=100" in target)
            assert found == sorted(made, key=str.lower)
        assert titles(await http.ask("GET", "/$Resources/queues?$top=0")) == []
        for wrong in ("$top=-1", "$skip=x"):
            assert (await http.ask("GET", f"/$Resources/queues?{wrong}")).status == 400


@in_loop
async def test_f1_04_names_of_every_legal_form_are_found_in_any_case_and_others_refused() -> None:
    async with serving() as server:
        http = await connected(server)
        for name in ("a", "a/b.c-d_e", "x" * 260, "x-servicebus-transfer/0", "Mixed/Case~1"):
            assert (await http.ask("PUT", path_of(name), entry())).status == 201
            for path in (path_of(name.swapcase()), "/" + quote(name, safe="").lower(), path_of(name) + "/"):
                read = await http.ask("GET", path)
                assert f'<title type="text">{name}</title>' in read.text, path
            assert (await http.ask("DELETE", path_of(name.upper()))).status == 200
        await http.ask("PUT", "/t", entry(kind="TopicDescription"))
        await http.ask("PUT", "/t/subscriptions/" + "s" * 50, entry(kind="SubscriptionDescription"))
        rule = await http.ask("GET", f"/t/subscriptions/{'S' * 50}/rules/%24default")
        assert "/Rules/$Default</id>" in rule.text
        for wrong in ("x" * 261, "a b", "-a", "a-", "a//b", "a/../b", "a/rules/b", "é", "a%00", "a\\b"):
            assert (await http.ask("PUT", "/" + quote(wrong, safe="/%"), entry())).status == 400, wrong
        for wrong in ("s" * 51, "a%2Fb"):
            created = await http.ask("PUT", f"/t/subscriptions/{wrong}", entry(kind="SubscriptionDescription"))
            assert created.status == 400, wrong


@in_loop
async def test_f1_05_runtime_numbers_of_empty_and_filled_entities() -> None:
    later = {"BrokerProperties": '{"ScheduledEnqueueTimeUtc":"Wed, 02 Jul 2036 01:32:27 GMT"}'}
    async with serving() as server:
        http = await connected(server)
        await http.ask("PUT", "/t", entry(kind="TopicDescription"))
        await http.ask("PUT", "/t/subscriptions/s", entry(kind="SubscriptionDescription"))

        async def counts(path: str) -> list[int]:
            text = (await http.ask("GET", path)).text
            return [int(number) for number in re.findall(r"<d2p1:\w+Count>(\d+)<", text)]

        async def accessed(path: str) -> str:
            found = re.search("<AccessedAt>(.*?)</AccessedAt>", (await http.ask("GET", path)).text)
            return found[1] if found else ""

        paths = ("/q", "/t", "/t/subscriptions/s")
        assert [await counts(path) for path in paths] == [[0] * 5] * 3
        assert [await accessed(path) for path in paths[:2]] == ["0001-01-01T00:00:00Z"] * 2
        # A subscription was accessed when it was created.
        created = await accessed("/t/subscriptions/s")
        assert f"<CreatedAt>{created}</CreatedAt>" in (await http.ask("GET", "/t/subscriptions/s")).text
        for path in ("/q", "/t"):
            for headers in ({}, {}, later):
                assert (await http.ask("POST", f"{path}/messages", b"x", headers)).status == 201
        assert [await counts(path) for path in paths] == [[2, 0, 1, 0, 0], [0, 0, 1, 0, 0], [2, 0, 0, 0, 0]]
        today = time.strftime("%Y-%m-%dT%H", time.gmtime())
        assert (await accessed("/q")).startswith(today)
        assert (await accessed("/t")).startswith(today)
        # What is fanned out to a subscription is no access to it; receiving is.
        assert await accessed("/t/subscriptions/s") == created
        assert (await http.ask("DELETE", "/t/subscriptions/s/messages/head?timeout=5")).status == 200
        assert (await accessed("/t/subscriptions/s")).startswith(today)


VALUES = [
    ("string", "x &amp; y"),
    ("int", "5"),
    ("long", "1099511627776"),
    ("boolean", "true"),
    ("double", "1.5"),
    ("dateTime", "2026-01-02T03:04:05"),
    ("duration", "PT2H"),
]


@in_loop
async def test_f1_06_values_of_every_type_come_back_as_they_were_whatever_their_prefix() -> None:
    async with serving() as server:
        http = await connected(server)
        await http.ask("PUT", "/t", entry(kind="TopicDescription"))
        await http.ask("PUT", "/t/subscriptions/s", entry(kind="SubscriptionDescription"))
        for prefix in ("d6p1", "l28", "x"):
            pairs = "".join(
                f'<KeyValueOfstringanyType><Key>@{kind}</Key><Value i:type="{prefix}:{kind}" '
                f'xmlns:{prefix}="http://www.w3.org/2001/XMLSchema">{text}</Value></KeyValueOfstringanyType>'
                for kind, text in VALUES
            )
            inside = (
                f'<Filter i:type="SqlFilter"><SqlExpression>a = @int</SqlExpression><Parameters>{pairs}</Parameters>'
                "</Filter><Name>r</Name>"
            )
            created = await http.ask("PUT", f"/t/subscriptions/s/rules/{prefix}", entry(inside, "RuleDescription"))
            assert created.status == 201, created.text
            # Four characters before the colon: JavaScript cuts them off.
            assert re.findall(r'<Value [^>]*i:type="d6p1:(\w+)">(.*?)</Value>', created.text) == VALUES


@in_loop
async def test_f1_07_every_failure_has_the_status_and_code_of_the_contract() -> None:
    rules = (AccessRule(name="own", primary_key=KEY, secondary_key=KEY, rights=2),)
    now = int(time.time())
    async with serving(QueueDescription(name="q", authorization_rules=rules)) as server:
        http = await connected(server)
        wrong = entry("<LockDuration>soon</LockDuration>")
        for method, path, body, headers, expected in (
            ("PUT", "/a", "<entry", {}, (400, 40000)),
            ("PUT", "/a", wrong, {}, (400, 40000)),
            ("PUT", "/q", entry("<RequiresSession>true</RequiresSession>"), UPDATE, (400, 40000)),
            ("PUT", "/a", entry("<ForwardTo>none</ForwardTo>"), {}, (400, 40400)),
            ("PUT", "/q", entry(), {}, (409, 40900)),
            ("PUT", "/Q", entry(kind="TopicDescription"), {}, (409, 40900)),
            ("PUT", "/none", entry(), UPDATE, (404, 40400)),
            ("DELETE", "/none", "", {}, (404, 40400)),
            ("PUT", "/none/subscriptions/s", entry(kind="SubscriptionDescription"), {}, (404, 40400)),
            ("PATCH", "/q", "", {}, (405, 40000)),
            ("GET", "/q", "", {"Authorization": ""}, (401, 40102)),
            ("GET", "/q", "", {"Authorization": token(key="wrong")}, (401, 40103)),
            ("GET", "/q", "", {"Authorization": token("other")}, (401, 40104)),
            ("GET", "/q", "", {"Authorization": "SharedAccessSignature sr=x"}, (401, 40105)),
            ("GET", "/q", "", {"Authorization": token(expires_s=now - 400)}, (401, 40106)),
            ("PUT", "/q", entry(), {**UPDATE, "Authorization": token("q", rule="own", key=KEY)}, (401, 40100)),
        ):
            reply = await http.ask(method, path, body, headers)
            found = re.findall(r"SubCode=(\d+)\.", reply.text)
            assert (reply.status, int(found[-1])) == expected, (method, path, reply.text)
            assert reply.header("Content-Type") == "application/xml; charset=utf-8"
            assert reply.text.startswith(f"<Error><Code>{reply.status}</Code><Detail>SubCode=")
            assert "TrackingId:" in reply.text
        # What a read is told stands alone: tests of an SDK want nothing in front of these words.
        unread = await http.ask("GET", "/q", "", {"Authorization": token("q", rule="own", key=KEY)})
        assert unread.status == 401
        assert unread.text.startswith("<Error><Code>401</Code><Detail>Manage,EntityRead claims required")
        assert "TrackingId:" in unread.text
        empty = await http.ask("GET", "/none/subscriptions")
        assert (empty.status, titles(empty)) == (200, [])
        for path in ("/none", "/q/$DeadLetterQueue"):
            missing = await http.ask("GET", path)
            assert (missing.status, titles(missing)) == (200, [])
            assert missing.header("Content-Type") == "application/atom+xml;type=feed;charset=utf-8"


@in_loop
async def test_f1_08_a_request_that_comes_again_with_its_id_is_answered_as_before() -> None:
    async with serving() as server:
        http = await connected(server)
        for path, kind in KINDS.items():
            same = {"x-ms-client-request-id": f"one {path}"}
            first = await http.ask("PUT", path, entry(kind=kind), same)
            again = await http.ask("PUT", path, entry(kind=kind), same)
            assert (first.status, again.status, again.body) == (201, 201, first.body)
            for other in ({}, {"x-ms-client-request-id": f"two {path}"}):
                assert (await http.ask("PUT", path, entry(kind=kind), other)).status == 409
        for path in reversed(KINDS):
            same = {"x-ms-client-request-id": f"gone {path}"}
            assert [(await http.ask("DELETE", path, b"", same)).status for _ in range(2)] == [200, 200]
            assert (await http.ask("DELETE", path)).status == 404


@in_loop
async def test_f1_09_tokens_of_every_form_are_good_for_what_they_name_and_nothing_else() -> None:
    rule = AccessRule(name="own", primary_key=KEY, secondary_key="another", rights=7)
    queues = [QueueDescription(name="orders", authorization_rules=(rule,)), QueueDescription(name="orders2")]
    now = int(time.time())
    async with serving(*queues) as server:
        http = await connected(server, None)

        async def status(authorization: str, path: str = "/orders") -> int:
            return (await http.ask("GET", path, b"", {"Authorization": authorization})).status

        parts = token("orders").removeprefix("SharedAccessSignature ").split("&")
        lower = "SharedAccessSignature " + "&".join(sorted(parts))
        for good in (token(), token(expires_s=now - 60), "Bearer " + token(), lower, token("orders?a=b")):
            assert await status(good) == 200
        for key in (KEY, "another"):
            assert await status(token("", rule="own", key=key)) == 200
            assert await status(token("", rule="own", key=key), "/orders2") == 401
        assert await status(token("orders"), "/orders2") == 401
        assert await status(token("orders"), "/orders%2f..%2forders2") == 400
        assert await status(token("ORDERS")) == 200


@in_loop
async def test_f1_11_forwarding_is_told_as_it_was_sent_and_can_be_cleared() -> None:
    async with serving() as server:
        http = await connected(server)
        for target in ("q", "sb://localhost/q", "https://localhost:1234/Q/", "amqps://ns.example.net/q"):
            inside = f"<ForwardTo>{target}</ForwardTo>"
            reply = await http.ask("PUT", "/f", entry(inside))
            if reply.status == 409:
                reply = await http.ask("PUT", "/f", entry(inside), UPDATE)
            assert f"<ForwardTo>{target}</ForwardTo>" in reply.text, (target, reply.text)
            assert f"<ForwardTo>{target}</ForwardTo>" in (await http.ask("GET", "/f")).text
        cleared = await http.ask("PUT", "/f", entry(), UPDATE)
        assert "ForwardTo" not in cleared.text
        itself = await http.ask("PUT", "/f", entry("<ForwardTo>f</ForwardTo>"), UPDATE)
        assert itself.status == 200
        for wrong in ("none", "sb://elsewhere.example/q", "t/subscriptions/s"):
            assert (await http.ask("PUT", "/g", entry(f"<ForwardTo>{wrong}</ForwardTo>"))).status == 400
        # Whoever forwards may send there: the header's token counts, the request's own without one.
        header = {"ServiceBusSupplementaryAuthorization": token("other")}
        assert (await http.ask("PUT", "/g", entry("<ForwardTo>q</ForwardTo>"), header)).status == 401


@in_loop
async def test_f1_12_what_cannot_change_is_refused_and_kept_where_it_is_left_out() -> None:
    async with serving(QueueDescription(name="s", requires_session=True, enable_partitioning=True)) as server:
        http = await connected(server)
        for name in ("RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning"):
            value = "true" if name == "RequiresDuplicateDetection" else "false"
            assert code_of(await http.ask("PUT", "/s", entry(f"<{name}>{value}</{name}>"), UPDATE)) == (400, 40000)
        kept = await http.ask("PUT", "/s", entry(), UPDATE)
        assert "<RequiresSession>true<" in kept.text
        assert "<EnablePartitioning>true<" in kept.text


@pytest.mark.parametrize("source", ["/q", "/t/subscriptions/s", "/T/Subscriptions/S"])
def test_f1_14_a_message_is_sent_locked_renewed_unlocked_and_completed(source: str) -> None:
    @in_loop
    async def scenario() -> None:
        async with serving() as server:
            http = await connected(server)
            await http.ask("PUT", "/t", entry(kind="TopicDescription"))
            await http.ask("PUT", "/t/subscriptions/s", entry(kind="SubscriptionDescription"))
            target = "/q" if source == "/q" else "/t"
            properties = {"cuStom": '"a\\"b"', "Plain": "High", "N": "7", "F": "true", "D": "1.5"}
            sent = await http.ask("POST", f"{target}/messages?timeout=60&api-version=2013-10", b"body", properties)
            assert (sent.status, sent.body) == (201, b"")
            got = await http.ask("POST", f"{source}/messages/head?timeout=5", b"", {"Content-Length": "0"})
            assert (got.status, got.body) == (201, b"body")
            expected = {"cuStom": '"a\\"b"', "Plain": '"High"', "N": "7", "F": "true", "D": "1.5"}
            assert {name: value for name, value in got.headers if name in expected} == expected
            location = (got.header("Location") or "").removeprefix("http://localhost")
            assert re.fullmatch(r"/(q|t/subscriptions/s)/messages/\d+/[0-9a-f-]{36}", location, re.IGNORECASE)
            assert "/messages/" in location
            about: dict[str, Any] = json.loads(got.header("BrokerProperties") or "")
            assert (about["DeliveryCount"], about["State"], len(about["LockToken"])) == (1, "Active", 36)
            assert [(await http.ask(method, location)).status for method in ("POST", "PUT", "PUT")] == [200, 200, 404]
            again = await http.ask("POST", f"{source}/messages/head?timeout=5")
            assert json.loads(again.header("BrokerProperties") or "")["DeliveryCount"] == 2
            location = (again.header("Location") or "").removeprefix("http://localhost")
            assert [(await http.ask("DELETE", location)).status for _ in range(2)] == [200, 404]
            started = time.monotonic()
            assert (await http.ask("DELETE", f"{source}/messages/head?timeout=1")).status == 204
            assert time.monotonic() - started > 0.9
            batch = json.dumps([{"Body": "a", "UserProperties": {"x": 1}}, {"Body": "b"}])
            kind = {"Content-Type": "application/vnd.microsoft.servicebus.json;charset=utf-8"}
            assert (await http.ask("POST", f"{target}/messages", batch, kind)).status == 201
            removed = [await http.ask("DELETE", f"{source}/messages/head?timeout=5") for _ in range(2)]
            assert [(one.status, one.body) for one in removed] == [(200, b"a"), (200, b"b")]
            assert "LockToken" not in (removed[0].header("BrokerProperties") or "")
            for method, path, body, status in (
                ("POST", "/none/messages", b"x", 410),
                ("POST", "/none/messages/head?timeout=0", b"", 410),
                ("POST", f"{target}/messages", b"x" * 300_000, 403),
                ("POST", f"{source}/$DeadLetterQueue/messages/head?timeout=0", b"", 204),
                ("DELETE", f"{source}/$deadletterqueue/messages/head?timeout=0", b"", 204),
                ("DELETE", f"{source}/$Transfer/$DeadLetterQueue/messages/head?timeout=0", b"", 204),
            ):
                assert (await http.ask(method, path, body)).status == status, path

    scenario()
