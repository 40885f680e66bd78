"""The management API over the wire: what each request is answered."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from duobus.model.descriptions import AccessRule, QueueDescription
from duobus.model.options import HttpOptions
from duobus.model.tiers import BASIC
from kits.gateway import in_loop, serving, settled
from kits.http_client import Http, entry, token

KEY = "a key of the tests"


def element(text: str, name: str) -> str | None:
    found = re.search(f"<{name}>(.*?)</{name}>", text)
    return None if found is None else found[1]


@in_loop
async def test_a_queue_is_created_read_changed_listed_and_deleted() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        created = await http.ask(
            "PUT", "/Some/Queue?api-version=2021-05", entry("<MaxDeliveryCount>3</MaxDeliveryCount>")
        )
        assert created.status == 201
        assert created.header("Content-Type") == "application/atom+xml;type=entry;charset=utf-8"
        assert "<id>http://localhost/Some/Queue</id>" in created.text
        assert '<title type="text">Some/Queue</title>' in created.text
        assert element(created.text, "MaxDeliveryCount") == "3"
        again = await http.ask("PUT", "/some/queue", entry())
        assert again.status == 409
        assert "<Detail>SubCode=40900. " in again.text
        # Another case, an encoded slash, and any api-version or none.
        for path in ("/some/queue", "/SOME%2Fqueue", "/Some/Queue/?enrich=False&api-version=1900-01"):
            read = await http.ask("GET", path)
            assert read.status == 200
            assert re.sub(r"<(AccessedAt|CountDetails)\b.*?</\1>", "", read.text) == created.text
        changed = await http.ask("PUT", "/some/queue", entry("<LockDuration>PT30S</LockDuration>"), {"If-Match": "*"})
        assert changed.status == 200
        assert (element(changed.text, "LockDuration"), element(changed.text, "MaxDeliveryCount")) == ("PT30S", "10")
        listed = await http.ask("GET", "/$Resources/Queues?$skip=0&$top=100")
        assert listed.header("Content-Type") == "application/atom+xml;type=feed;charset=utf-8"
        assert re.findall(r'<title type="text">(.*?)</title>', listed.text) == ["Queues", "q", "Some/Queue"]
        deleted = await http.ask("DELETE", "/some/queue")
        assert (deleted.status, deleted.body) == (200, b"")
        missing = await http.ask("GET", "/some/queue")
        assert missing.status == 200
        assert "<entry" not in missing.text
        assert '<title type="text">Publicly Listed Services</title>' in missing.text
        for method, headers in (("DELETE", {}), ("PUT", {"If-Match": "*"})):
            missing = await http.ask(method, "/some/queue", entry(), headers)
            assert missing.status == 404
            assert missing.text.startswith("<Error><Code>404</Code><Detail>SubCode=40400. Not Found. The messaging")
            assert re.search(r"TrackingId:[\w-]+_G0, SystemTracker:ns:/some/queue, Timestamp:", missing.text)


@in_loop
async def test_a_list_of_250_comes_complete_and_in_order_page_by_page() -> None:
    queues = [QueueDescription(name=f"Q{number:03}") for number in range(250)]
    async with serving(*queues) as server:
        http = await Http.connect(server.port("http") or 0)
        found: list[str] = []
        target: str | None = "/$Resources/queues?$skip=0&$top=100"
        pages = 0
        while target is not None:
            page = await http.ask("GET", target)
            found += re.findall(r'<entry.*?<title type="text">(.*?)</title>', page.text)
            links = re.findall(r'<link rel="(\w+)" href="([^"]*)"/>', page.text.partition("<entry")[0])
            assert [rel for rel, _ in links] in (["self", "next"], ["self"])
            following = dict(links).get("next")
            if following is not None:
                assert re.fullmatch(r"http://localhost/\$Resources/queues\?\$skip=\d+&amp;\$top=100", following)
            target = following and following.replace("http://localhost", "").replace("&amp;", "&")
            pages += 1
        assert found == [queue.name for queue in queues]
        assert pages == 3
        some = await http.ask("GET", "/$Resources/queues?$filter=startswith(path,%20'q00')%20eq%20true&%24top=5")
        assert re.findall(r'<entry.*?<title type="text">(.*?)</title>', some.text) == found[:5]
        for wrong in ("$skip=-1", "$top=x", "$filter=MessageCount%20gt%205"):
            assert (await http.ask("GET", f"/$Resources/queues?{wrong}")).status == 400


@in_loop
async def test_what_a_client_has_read_it_can_send_back_and_nothing_changes() -> None:
    rule = AccessRule(name="ops", primary_key="p&k", secondary_key="s", rights=7)
    queue = QueueDescription(
        name="x",
        enable_partitioning=True,
        max_size_in_megabytes=3072,
        authorization_rules=(rule,),
        user_metadata="<&>",
        default_message_time_to_live_ms=5_000,
        redelivery_delay_ms=1_000,
    )
    async with serving(queue) as server:
        http = await Http.connect(server.port("http") or 0)
        before = await http.ask("GET", "/x")
        assert element(before.text, "MaxSizeInMegabytes") == str(16 * 3072)
        changed = await http.ask("PUT", "/x", before.body, {"If-Match": "*"})
        assert changed.status == 200
        after = await http.ask("GET", "/x")
        moved = re.compile(r"<(updated|UpdatedAt)>.*?</\1>")
        assert moved.sub("", after.text) == moved.sub("", before.text)
        assert server.unit.namespace("ns").queues["x"].description.redelivery_delay_ms == 1_000


@in_loop
async def test_what_cannot_change_is_refused_and_kept_where_it_is_left_out() -> None:
    async with serving(QueueDescription(name="x", requires_session=True, enable_partitioning=True)) as server:
        http = await Http.connect(server.port("http") or 0)
        for inside in (
            "<RequiresSession>false</RequiresSession>",
            "<EnablePartitioning>false</EnablePartitioning>",
            "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>",
        ):
            refused = await http.ask("PUT", "/x", entry(inside), {"If-Match": "*"})
            assert refused.status == 400
            assert "property of an existing Queue cannot be changed" in refused.text
            assert "SubCode=40000." in refused.text
        kept = await http.ask("PUT", "/x", entry(), {"If-Match": "anything"})
        assert (element(kept.text, "RequiresSession"), element(kept.text, "EnablePartitioning")) == ("true", "true")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/a", "no xml", 400, "40000"),
        ("/a", '<!DOCTYPE x [<!ENTITY a "b">]><entry>&a;</entry>', 400, "40000"),
        ("/a", entry("<LockDuration>P25D</LockDuration>"), 400, "40000"),
        ("/a", entry("<MaxSizeInMegabytes>17</MaxSizeInMegabytes>"), 400, "40000"),
        ("/a", entry("<Status>Creating</Status>"), 400, "40000"),
        ("/a", entry("<UserMetadata>" + "x" * 1025 + "</UserMetadata>"), 400, "40000"),
        ("/a", entry("<ForwardTo>sb://elsewhere/q</ForwardTo>"), 400, "40000"),
        ("/a", entry(kind="NamespaceInfo"), 400, "40000"),
        ("/a", entry("x" * 300_000), 403, "40300"),
        ("/a*b", entry(), 400, "40000"),
        ("/-a", entry(), 400, "40000"),
        ("/a/../b", entry(), 400, "40000"),
        ("/a//b", entry(), 400, "40000"),
        ("/a%00", entry(), 400, "40000"),
        ("/a%0d%0aX:y", entry(), 400, "40000"),
        ("/" + "a" * 261, entry(), 400, "40000"),
        ("/", entry(), 400, "40000"),
        ("/a/subscriptions/s", entry(), 400, "40000"),
    ],
    ids=range(18),
)
def test_a_wrong_description_or_name_is_refused(path: str, body: str, status: int, code: str) -> None:
    @in_loop
    async def scenario() -> None:
        async with serving() as server:
            http = await Http.connect(server.port("http") or 0)
            reply = await http.ask("PUT", path, body)
            assert reply.status == status, reply.text
            assert reply.text.startswith(f"<Error><Code>{status}</Code><Detail>SubCode={code}.")
            assert reply.header("Content-Type") == "application/xml; charset=utf-8"
            assert list(server.unit.namespace("ns").queues) == ["q"]

    scenario()


@in_loop
async def test_names_of_every_legal_form_are_created_and_found() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        for name in (
            "a",
            "a/b.c-d_e",
            "x" * 260,
            "x-servicebus-transfer/0",
            "txt/.-_123",
            "a~b",
            "subscriptions",
            "messages",
        ):
            created = await http.ask("PUT", "/" + name.replace("/", "%2F"), entry())
            assert created.status == 201, (name, created.text)
            assert f"<id>http://localhost/{name}</id>" in created.text
            assert (await http.ask("GET", "/" + name.upper())).status == 200, name


@in_loop
async def test_a_request_that_comes_again_with_its_id_gets_its_first_answer() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        first_id, second_id = {"x-ms-client-request-id": "1"}, {"x-ms-client-request-id": "2"}
        created = await http.ask("PUT", "/a", entry(), first_id)
        assert await http.ask("PUT", "/a", entry(), first_id) == created._replace(headers=created.headers)
        assert (await http.ask("PUT", "/a", entry(), second_id)).status == 409
        other = await http.ask("PUT", "/a", entry("<MaxDeliveryCount>2</MaxDeliveryCount>"), first_id)
        assert other.status == 409
        deleted_id = {"x-ms-client-request-id": "3"}
        assert [(await http.ask("DELETE", "/a", b"", deleted_id)).status for _ in range(2)] == [200, 200]
        assert (await http.ask("DELETE", "/a", b"", second_id)).status == 404


@in_loop
async def test_a_creation_goes_on_when_its_client_goes_away() -> None:
    async with serving() as server:
        port = server.port("http") or 0
        leaving = await Http.connect(port)
        await leaving.start("PUT", "/a", entry("<EnablePartitioning>true</EnablePartitioning>"))
        leaving.stream.drop()
        await settled(lambda: "a" in server.unit.namespace("ns").queues or not server.rest)
        assert server.unit.namespace("ns").queues["a"].is_partitioned


@in_loop
async def test_runtime_numbers_are_those_of_the_queue() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        for _ in range(3):
            assert (await http.ask("POST", "/q/messages", b"12345")).status == 201
        later = '{"ScheduledEnqueueTimeUtc":"Wed, 02 Jul 2036 01:32:27 GMT"}'
        assert (await http.ask("POST", "/q/messages", b"", {"BrokerProperties": later})).status == 201
        assert (await http.ask("POST", "/q/messages/head")).status == 201
        read = await http.ask("GET", "/q")
        assert element(read.text, "MessageCount") == "4"
        assert element(read.text, "d2p1:ActiveMessageCount") == "3"
        assert element(read.text, "d2p1:ScheduledMessageCount") == "1"
        assert int(element(read.text, "SizeInBytes") or 0) > 15
        assert element(read.text, "EntityAvailabilityStatus") == "Available"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", element(read.text, "CreatedAt") or "")


@in_loop
async def test_the_namespace_is_told_to_everybody_with_a_good_token() -> None:
    rule = AccessRule(name="sends", primary_key=KEY, secondary_key=KEY, rights=2)
    async with serving(QueueDescription(name="q", authorization_rules=(rule,))) as server:
        http = await Http.connect(server.port("http") or 0)
        found = await http.ask("GET", "/$namespaceinfo?api-version=2021-05")
        order = re.findall(r"<(\w+)>[^<]", found.text.partition("<NamespaceInfo")[2])
        assert order == [
            "Alias",
            "CreatedTime",
            "MessagingSKU",
            "MessagingUnits",
            "ModifiedTime",
            "Name",
            "NamespaceType",
        ]
        assert element(found.text, "Name") == "ns"
        assert (await http.ask("PUT", "/$namespaceinfo", entry())).status == 405
        assert (await http.ask("PATCH", "/q", entry())).status == 405
        assert (await http.ask("DELETE", "/$Resources/queues")).status == 405


@in_loop
async def test_tokens_are_taken_in_every_form_of_the_contract_and_no_other() -> None:
    rule = AccessRule(name="own", primary_key=KEY, secondary_key="another", rights=7)
    queues = [QueueDescription(name="orders", authorization_rules=(rule,)), QueueDescription(name="orders2")]
    now = int(time.time())
    async with serving(*queues) as server:
        http = await Http.connect(server.port("http") or 0, None)

        async def asked(authorization: str, path: str = "/orders", header: str = "Authorization") -> tuple[int, str]:
            reply = await http.ask("GET", path, b"", {header: authorization})
            code = re.search(r"SubCode=(\d+)\.", reply.text)
            return reply.status, "" if code is None else code[1]

        good = (200, "")
        assert await asked(token()) == good
        assert await asked("Bearer " + token()) == good
        assert await asked(token(), header="ServiceBusAuthorization") == good
        assert await asked(token(expires_s=now - 60)) == good
        assert await asked(token("orders")) == good
        assert await asked(token("Orders/")) == good
        # The whole address in lower case with its query, as JavaScript signs it.
        assert await asked(token("orders?api-version=2021-05&%24top=1")) == good
        assert await asked(token("%24resources/queues?x=1"), "/%24Resources/queues") == good
        assert await asked(token("$resources/queues"), "/$Resources/queues") == good
        parts = token("orders").removeprefix("SharedAccessSignature ").split("&")
        assert await asked("sharedaccesssignature  " + "&".join(reversed(parts))) == good
        # Rules of the entity: both keys, and for nothing else.
        assert await asked(token("orders", rule="own", key=KEY)) == good
        assert await asked(token("", rule="own", key="another")) == good
        assert await asked(token("", rule="own", key=KEY), "/orders2") == (401, "40103")
        assert await asked(token("orders2", rule="own", key=KEY)) == (401, "40104")

        assert await asked("") == (401, "40102")
        assert await asked("Basic eDp5") == (401, "40105")
        assert await asked("SharedAccessSignature sr=x") == (401, "40105")
        assert await asked(token(key="wrong")) == (401, "40103")
        assert await asked(token(rule="nobody")) == (401, "40103")
        assert await asked(token(expires_s=now - 302)) == (401, "40106")
        assert await asked(token("orders"), "/orders2") == (401, "40104")
        assert await asked(token("orders"), "/$Resources/queues") == (401, "40104")
        assert await asked(token("../orders")) == (401, "40104")


@in_loop
async def test_a_right_that_is_missing_is_named() -> None:
    rules = tuple(AccessRule(name=f"r{right}", primary_key=KEY, secondary_key=KEY, rights=right) for right in (1, 2, 3))
    async with serving(QueueDescription(name="q", authorization_rules=rules)) as server:
        http = await Http.connect(server.port("http") or 0, None)

        async def asked(method: str, path: str, right: int) -> tuple[int, str]:
            authorization = token("q", rule=f"r{right}", key=KEY)
            reply = await http.ask(method, path, entry(), {"Authorization": authorization})
            return reply.status, reply.text

        for right in (1, 2, 3):
            status, text = await asked("GET", "/q", right)
            assert status == 401
            # Nothing stands before these words: programs look for them with the end of the tag.
            assert "<Detail>Manage,EntityRead claims required for this operation" in text
        assert (await asked("POST", "/q/messages", 2))[0] == 201
        assert "'Send' claim(s)" in (await asked("POST", "/q/messages", 1))[1]
        assert "'Listen' claim(s)" in (await asked("DELETE", "/q/messages/head?timeout=0", 2))[1]
        assert (await asked("DELETE", "/q/messages/head?timeout=0", 1))[0] == 200


@in_loop
async def test_a_changed_key_counts_at_once() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        rule = (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
            "<KeyName>s</KeyName><PrimaryKey>{}</PrimaryKey><SecondaryKey>x</SecondaryKey></AuthorizationRule>"
            "</AuthorizationRules>"
        )
        assert (await http.ask("PUT", "/q", entry(rule.format("one")), {"If-Match": "*"})).status == 200
        sender = {"Authorization": token("q", rule="s", key="one")}
        assert (await http.ask("POST", "/q/messages", b"", sender)).status == 201
        assert (await http.ask("PUT", "/q", entry(rule.format("two")), {"If-Match": "*"})).status == 200
        assert (await http.ask("POST", "/q/messages", b"", sender)).status == 401


@in_loop
async def test_no_token_nor_key_is_in_an_error() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0, token(key="wrong key"))
        reply = await http.ask("GET", "/q")
        assert "wrong" not in reply.text.replace("signature is wrong", "")
        assert "sig" not in reply.text.replace("signature", "").replace("Signature", "")


@in_loop
async def test_an_operator_may_choose_a_tier_and_strict_versions() -> None:
    options = HttpOptions(tier=BASIC, strict_api_version=True)
    async with serving(QueueDescription(name="p", enable_partitioning=True), http=options) as server:
        http = await Http.connect(server.port("http") or 0)
        created = await http.ask("PUT", "/a", entry())
        assert element(created.text, "DefaultMessageTimeToLive") == "P14D"
        assert "basic tier" in (await http.ask("PUT", "/b", entry("<RequiresSession>true</RequiresSession>"))).text
        assert (await http.ask("GET", "/p")).status == 400
        assert (await http.ask("GET", "/p?api-version=2013-10")).status == 200
        assert (await http.ask("POST", "/p/messages?api-version=2012-01", b"")).status == 400
        assert (await http.ask("GET", "/a")).status == 200


@in_loop
async def test_what_cannot_be_done_on_all_fragments_is_not_begun() -> None:
    async with serving(QueueDescription(name="p", enable_partitioning=True), stores=2) as server:
        http = await Http.connect(server.port("http") or 0)
        queue = server.unit.namespace("ns").queues["p"]
        lost = queue.fragments[3]
        for _ in range(40):
            assert (await http.ask("POST", "/p/messages", b"x")).status == 201
        assert element((await http.ask("GET", "/p")).text, "MessageCount") == "40"
        fragment, lost.fragment = lost.fragment, None
        try:
            read = await http.ask("GET", "/p")
            assert element(read.text, "EntityAvailabilityStatus") == "Limited"
            assert element(read.text, "MessageCount") == "40"
            for method, headers in (("DELETE", {}), ("PUT", {"If-Match": "*"})):
                refused = await http.ask(method, "/p", read.body, headers)
                assert refused.status == 503
                assert "SubCode=50004." in refused.text
                assert refused.header("Retry-After") == "2"
        finally:
            lost.fragment = fragment
        assert (await http.ask("DELETE", "/p")).status == 200


@in_loop
async def test_a_body_is_asked_for_only_when_it_may_come_and_not_waited_for_otherwise() -> None:
    async with serving() as server:
        port = server.port("http") or 0
        welcome = await Http.connect(port)
        waiting = {"Expect": "100-continue", "Content-Length": str(len(entry()))}
        await welcome.start("PUT", "/a", b"", waiting)
        assert (await welcome.reply()).status == 100
        await welcome.stream.write(entry().encode())
        assert (await welcome.reply()).status == 201
        stranger = await Http.connect(port, None)
        assert (await stranger.ask("PUT", "/b", b"", waiting)).status == 401
        large = await Http.connect(port)
        assert (
            await large.ask("PUT", "/b", b"", {"Expect": "100-continue", "Content-Length": "1000000000"})
        ).status == 403


@in_loop
async def test_a_body_in_chunks_is_read_and_a_bad_framing_or_host_refused() -> None:
    async with serving() as server:
        port = server.port("http") or 0
        http = await Http.connect(port)
        body = entry().encode()
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        created = await http.ask("PUT", "/a", chunks, {"Transfer-Encoding": "chunked", "Content-Length": ""})
        assert created.status == 201
        for headers in ({"Host": "a b"}, {"Host": "x/y"}, {"Host": "a<b"}, {"Host": "a:b"}):
            other = await Http.connect(port)
            assert (await other.ask("GET", "/q", b"", headers)).status == 400
        broken = await Http.connect(port)
        reply = await broken.ask("PUT", "/b", b"zz\r\n", {"Transfer-Encoding": "chunked", "Content-Length": ""})
        assert reply.status == 400


@in_loop
async def test_every_port_has_the_api_and_tells_its_own_scheme() -> None:
    async with serving() as server:
        for name in ("amqp", "http"):
            http = await Http.connect(server.port(name) or 0)
            assert "<id>http://localhost/q</id>" in (await http.ask("GET", "/q")).text


@in_loop
async def test_many_changes_at_once_are_told_to_come_again_and_none_is_lost() -> None:
    async with serving() as server:
        port = server.port("http") or 0
        connections = [await Http.connect(port) for _ in range(100)]
        replies = await asyncio.gather(
            *(http.ask("PUT", f"/n{number}", entry()) for number, http in enumerate(connections))
        )
        made = {f"n{number}" for number, reply in enumerate(replies) if reply.status == 201}
        assert {reply.status for reply in replies} <= {201, 503}
        assert set(server.unit.namespace("ns").queues) == made | {"q"}
