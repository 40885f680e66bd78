"""The runtime API over the wire: every kind of request, raw and beside AMQP."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from typing import Any

import msgspec
import pytest

from duobus.codec import Symbol, Timestamp, application_properties, build_message, scan
from duobus.gateway.rest.runtime import receive as receiving
from duobus.model.descriptions import AccessRule, QueueDescription, Right
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving, settled
from kits.http_client import Http, Reply, token

PARTED = QueueDescription(name="p", enable_partitioning=True)
LATER = '{"ScheduledEnqueueTimeUtc":"Wed, 02 Jul 2036 01:32:27 GMT"}'


def http_port(server: Server) -> int:
    return server.port("http") or 0


def about(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.header("BrokerProperties") or "{}")
    return found


def lock_of(reply: Reply) -> str:
    """The path of a locked message."""
    return (reply.header("Location") or "").removeprefix("http://localhost")


@in_loop
async def test_a_message_is_sent_locked_and_completed_with_all_that_it_carries() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        properties = (
            '{"MessageId":"m1","Label":"L","CorrelationId":"c","ReplyTo":"r","To":"t","TimeToLive":10.5,'
            '"ReplyToSessionId":"rs","PartitionKey":"k"}'
        )
        headers = {
            "BrokerProperties": properties,
            "Content-Type": "text/plain; charset=utf-8",
            "Priority": "High",
            "cuStom-Case": '"a \\"b\\""',
            "Number": "42",
            "Real": "1.5",
            "Flag": "true",
            "When": '"Wed, 02 Jul 2014 01:32:27 GMT"',
        }
        sent = await http.ask("POST", "/q/messages?timeout=60&api-version=2013-10", b"\x00body\xff", headers)
        assert (sent.status, sent.body) == (201, b"")
        got = await http.ask("POST", "/Q/Messages/Head?timeout=5")
        assert (got.status, got.body) == (201, b"\x00body\xff")
        assert got.header("Content-Type") == "text/plain; charset=utf-8"
        own = dict(got.headers)
        assert own["Priority"] == '"High"'
        assert own["cuStom-Case"] == '"a \\"b\\""'
        assert (own["Number"], own["Real"], own["Flag"]) == ("42", "1.5", "true")
        assert own["When"] == '"Wed, 02 Jul 2014 01:32:27 GMT"'
        found = about(got)
        date = re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
        assert date.fullmatch(found.pop("EnqueuedTimeUtc"))
        assert date.fullmatch(found.pop("LockedUntilUtc"))
        lock = found.pop("LockToken")
        assert str(uuid.UUID(lock)) == lock
        assert found == {
            "MessageId": "m1",
            "Label": "L",
            "CorrelationId": "c",
            "ReplyTo": "r",
            "To": "t",
            "TimeToLive": 10.5,
            "ReplyToSessionId": "rs",
            "PartitionKey": "k",
            "DeliveryCount": 1,
            "SequenceNumber": 1,
            "EnqueuedSequenceNumber": 1,
            "State": "Active",
        }
        assert got.header("Location") == f"http://localhost/q/messages/1/{lock}"
        assert (await http.ask("DELETE", lock_of(got))).status == 200
        again = await http.ask("DELETE", lock_of(got))
        assert again.status == 404
        assert "SubCode=40400." in again.text
        assert (await http.ask("DELETE", "/q/messages/head?timeout=0")).status == 204


@in_loop
async def test_a_locked_message_is_unlocked_renewed_and_named_by_either_id() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        await http.ask("POST", "/q/messages", b"x", {"BrokerProperties": '{"MessageId":"a/b c"}'})
        got = await http.ask("POST", "/q/messages/head")
        lock = about(got)["LockToken"]
        assert (await http.ask("POST", lock_of(got))).status == 200
        assert (await http.ask("POST", f"/q/messages/a%2Fb%20c/{lock}")).status == 200
        for wrong in (f"/q/messages/2/{lock}", f"/q/messages/other/{lock}", f"/q/messages/1/{uuid.uuid4()}"):
            for method in ("POST", "PUT", "DELETE"):
                assert (await http.ask(method, wrong)).status == 404
        assert (await http.ask("PUT", "/q/messages/1/no-guid")).status == 400
        assert (await http.ask("PUT", f"/q/messages/a%2Fb%20c/{lock}")).status == 200
        for method in ("POST", "PUT", "DELETE"):
            assert (await http.ask(method, lock_of(got))).status == 404
        second = await http.ask("POST", "/q/messages/head")
        assert about(second)["DeliveryCount"] == 2


@in_loop
async def test_receive_and_delete_tells_no_lock() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        await http.ask("POST", "/q/messages", b"x")
        got = await http.ask("DELETE", "/q/messages/head")
        assert (got.status, got.body) == (200, b"x")
        assert got.header("Location") is None
        assert not {"LockToken", "LockedUntilUtc"} & set(about(got))
        assert len(about(got)["MessageId"]) == 32
        assert (await http.ask("DELETE", "/q/messages/head?timeout=0.05")).status == 204


@in_loop
async def test_a_poll_ends_soon_after_its_key_was_taken_away_and_leaves_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "CHECK_S", 0.05)
    rule = AccessRule(name="app", primary_key="K" * 44, secondary_key="L" * 44, rights=int(Right.LISTEN))
    guarded = QueueDescription(name="g", authorization_rules=(rule,))
    async with serving(guarded) as server:
        own, other = await Http.connect(http_port(server)), await Http.connect(http_port(server))
        own.authorization = token("g", rule="app", key="K" * 44)
        for method in ("POST", "DELETE"):
            waiting = asyncio.ensure_future(own.ask(method, "/g/messages/head"))
            await settled(lambda: any(server.unit.namespace("ns").queues["g"].schedulers[0].receivers))
            await asyncio.sleep(0.15)
            assert not waiting.done()
            await server.unit.update_queue("ns", msgspec.structs.replace(guarded, authorization_rules=()))
            async with asyncio.timeout(60):
                assert (await waiting).status == 401
            await other.ask("POST", "/g/messages", b"x")
            assert (await other.ask("DELETE", "/g/messages/head")).body == b"x"
            await server.unit.update_queue("ns", guarded)


@in_loop
async def test_a_poll_waits_for_a_message_and_no_longer_than_it_was_told() -> None:
    async with serving() as server:
        http, other = await Http.connect(http_port(server)), await Http.connect(http_port(server))
        start = time.monotonic()
        assert (await http.ask("POST", "/q/messages/head?timeout=0.3")).status == 204
        assert time.monotonic() - start > 0.25
        waiting = asyncio.ensure_future(http.ask("POST", "/q/messages/head"))
        await settled(lambda: any(server.unit.namespace("ns").queues["q"].schedulers[0].receivers))
        await other.ask("POST", "/q/messages", b"x")
        assert (await waiting).body == b"x"
        for wrong in ("soon", "-1", "nan"):
            assert (await other.ask("POST", f"/q/messages/head?timeout={wrong}")).status == 400


@in_loop
async def test_whoever_goes_away_while_waiting_gets_nothing_and_costs_no_delivery() -> None:
    async with serving() as server:
        queue = server.unit.namespace("ns").queues["q"]
        for method in ("POST", "DELETE"):
            leaving = await Http.connect(http_port(server))
            await leaving.start(method, "/q/messages/head")
            await settled(lambda: bool(queue.schedulers[0].receivers))
            leaving.stream.drop()
            await settled(lambda: not queue.schedulers[0].receivers)
        http = await Http.connect(http_port(server))
        await http.ask("POST", "/q/messages", b"x")
        got = await http.ask("POST", "/q/messages/head?timeout=0")
        assert (got.body, about(got)["DeliveryCount"]) == (b"x", 1)


@in_loop
async def test_on_a_partitioned_queue_nothing_is_said_to_be_empty_while_any_fragment_has_something() -> None:
    """PE19."""
    async with serving(PARTED, stores=4) as server:
        http = await Http.connect(http_port(server))
        for number in range(40):
            key = {} if number % 2 else {"BrokerProperties": json.dumps({"PartitionKey": f"k{number}"})}
            assert (await http.ask("POST", "/p/messages", str(number), key)).status == 201
        found = set()
        for _ in range(40):
            got = await http.ask("DELETE", "/p/messages/head?timeout=0")
            assert got.status == 200
            found.add(int(got.body))
        assert found == set(range(40))
        assert (await http.ask("DELETE", "/p/messages/head?timeout=0")).status == 204


@in_loop
async def test_sends_with_a_key_of_a_lost_fragment_wait_and_others_go_elsewhere() -> None:
    async with serving(PARTED) as server:
        http = await Http.connect(http_port(server))
        queue = server.unit.namespace("ns").queues["p"]
        lost = queue.placement.keyed(b"ss1")
        fragment, lost.fragment = lost.fragment, None
        try:
            keyed = await http.ask("POST", "/p/messages", b"x", {"BrokerProperties": '{"PartitionKey":"s1"}'})
            assert keyed.status == 503
            assert "SubCode=50004." in keyed.text
            assert keyed.header("Retry-After") == "2"
            assert [(await http.ask("POST", "/p/messages", b"x")).status for _ in range(20)] == [201] * 20
        finally:
            lost.fragment = fragment


@in_loop
async def test_a_batch_is_stored_as_a_whole_or_not_at_all() -> None:
    kind = {"Content-Type": "application/vnd.microsoft.servicebus.json; charset=utf-8", "Ignored": "header"}
    async with serving(QueueDescription(name="q"), PARTED) as server:
        http = await Http.connect(http_port(server))
        batch = [
            {
                "Body": "ä",
                "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"},
                "UserProperties": {"P": "Low"},
            },
            {"Body": "second"},
        ]
        assert (await http.ask("POST", "/q/messages", json.dumps(batch), kind)).status == 201
        first, second = [await http.ask("DELETE", "/q/messages/head") for _ in range(2)]
        assert (first.text, about(first)["Label"], about(first)["TimeToLive"]) == ("ä", "M1", 40)
        assert first.header("P") == '"Low"'
        assert second.text == "second"
        assert second.header("Ignored") is None
        wrong = [{"Body": "x"}, {"Body": "y", "UserProperties": {"P": [1]}}]
        assert (await http.ask("POST", "/q/messages", json.dumps(wrong), kind)).status == 400
        # On a partitioned queue one fragment takes all of it.
        parted = [{"Body": "x", "BrokerProperties": {"PartitionKey": str(number)}} for number in range(20)]
        refused = await http.ask("POST", "/p/messages", json.dumps(parted), kind)
        assert refused.status == 400
        assert "one batch for each key" in refused.text
        for queue in ("q", "p"):
            assert (await http.ask("DELETE", f"/{queue}/messages/head?timeout=0")).status == 204


@in_loop
async def test_dead_letters_are_received_at_their_own_address() -> None:
    async with serving(QueueDescription(name="a/b", max_delivery_count=1)) as server:
        http = await Http.connect(http_port(server))
        await http.ask("POST", "/a%2Fb/messages", b"x", {"P": "1"})
        got = await http.ask("POST", "/a/b/messages/head")
        assert got.header("Location") == f"http://localhost/a/b/messages/1/{about(got)['LockToken']}"
        await http.ask("PUT", lock_of(got))
        dead = await http.ask("POST", "/a/b/$DeadLetterQueue/messages/head")
        assert (dead.status, dead.body) == (201, b"x")
        assert lock_of(dead).startswith("/a/b/$deadletterqueue/messages/1/")
        assert dead.header("DeadLetterReason") == '"MaxDeliveryCountExceeded"'
        assert dead.header("P") == "1"
        assert (await http.ask("DELETE", lock_of(dead))).status == 200
        assert (await http.ask("POST", "/a/b/$deadletterqueue/messages", b"x")).status == 400


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("POST", "/none/messages", {}, 410, "41000"),
        ("DELETE", "/none/messages/head", {}, 410, "41000"),
        ("DELETE", f"/none/messages/1/{uuid.UUID(int=1)}", {}, 410, "41000"),
        ("POST", "/q/subscriptions/s/messages/head", {}, 410, "41000"),
        ("POST", "/q/$management/messages", {}, 400, "40000"),
        ("GET", "/q/messages/head", {}, 405, "40000"),
        ("POST", "/off/messages", {}, 403, "40301"),
        ("DELETE", "/off/messages/head", {}, 403, "40301"),
        ("POST", "/s/messages/head", {}, 400, "40000"),
        ("POST", "/s/messages", {}, 400, "40000"),
        ("POST", "/q/messages", {"BrokerProperties": "{"}, 400, "40000"),
        ("POST", "/q/messages", {"BrokerProperties": '{"SessionId":"a","PartitionKey":"b"}'}, 400, "40000"),
        ("POST", "/q/messages", {"P": '"no end'}, 400, "40000"),
        ("POST", "/q/messages", {"Content-Length": "262145"}, 403, "40300"),
        ("POST", "/q/messages", {f"P{number}": "x" * 30_000 for number in range(3)}, 403, "40300"),
    ],
)
def test_a_request_that_cannot_be_done_says_why(
    method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    queues = (
        QueueDescription(name="q"),
        QueueDescription(name="off", status="Disabled"),
        QueueDescription(name="s", requires_session=True),
    )

    @in_loop
    async def scenario() -> None:
        async with serving(*queues) as server:
            http = await Http.connect(http_port(server))
            reply = await http.ask(method, path, b"", headers)
            assert reply.status == status, reply.text
            assert f"SubCode={code}." in reply.text

    scenario()


@in_loop
async def test_the_token_is_looked_at_before_anything_else() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server), None)
        for path in ("/q/messages", "/none/messages"):
            assert (await http.ask("POST", path)).status == 401
        http.authorization = token("q")
        assert (await http.ask("POST", "/q2/messages")).status == 401


@in_loop
async def test_a_header_cannot_be_smuggled_into_a_response() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        amqp = Client(await TcpStream.connect(http_port(server)))
        link = await amqp.sender()
        properties = {"Evil": "x\r\nSet-Cookie: a=b\r\n\r\nbody", "Content-Length": 1, "a\r\nb": 1, "ok": "€"}
        payload = build_message(
            ["id\r\nX: y", None, None, "label\r\nX: y", None, None, Symbol("text/plain\r\nX: y")], properties, data=b"x"
        )
        amqp.engine  # noqa: B018 - the link below is its
        link.send_one(b"1", payload, False)
        await amqp.flush()
        got = await http.ask("POST", "/q/messages/head")
        assert (got.status, got.body) == (201, b"x")
        names = [name.lower() for name, _ in got.headers]
        assert not {"set-cookie", "x", "a", "b"} & set(names)
        assert names.count("content-length") == 1
        assert got.header("Evil") == '"x\\u000d\\u000aSet-Cookie: a=b\\u000d\\u000a\\u000d\\u000abody"'
        assert about(got)["Label"] == "label\r\nX: y"
        assert got.header("Content-Type") == "application/octet-stream"


@in_loop
async def test_a_message_that_http_cannot_tell_whole_is_received_all_the_same() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        amqp = Client(await TcpStream.connect(http_port(server)))
        link = await amqp.sender()
        odd = [
            # Scheduled before all times; a property whose name is a number; a value that is no UTF-8.
            build_message(["1"], data=b"x", annotations={"x-opt-scheduled-enqueue-time": Timestamp(-(1 << 62))}),
            build_message(["2"]) + b"\x00\x53\x74\xc1\x05\x02\x54\x01\x54\x02" + build_message(data=b"x"),
            build_message(["3"]) + b"\x00\x53\x77\xa1\x02\xff\xff",
        ]
        for payload in odd:
            link.send_one(uuid.uuid4().bytes, payload, False)
        await amqp.flush()
        for number in range(1, 4):
            got = await http.ask("POST", "/q/messages/head?timeout=5")
            assert (got.status, about(got)["MessageId"]) == (201, str(number)), got
            assert (await http.ask("DELETE", lock_of(got))).status == 200


@in_loop
async def test_what_is_sent_over_http_is_received_over_amqp_and_the_other_way_round() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        properties = (
            '{"MessageId":"m","Label":"L","SessionId":"s","CorrelationId":"c","To":"t","ReplyTo":"r","TimeToLive":9}'
        )
        headers = {"BrokerProperties": properties, "Content-Type": "application/json", "Count": "7", "Text": '"x"'}
        await http.ask("POST", "/q/messages", b"{}", headers)
        amqp = Client(await TcpStream.connect(http_port(server)))
        receiver = await amqp.receiver(credit=1)
        _, encoded = await amqp.receive(receiver)
        found = scan(encoded)
        assert (found.message_id, found.subject, found.group_id, found.correlation_id) == ("m", "L", "s", "c")
        assert (found.to, found.reply_to, found.content_type, found.ttl_ms) == ("t", "r", "application/json", 9_000)
        assert application_properties(encoded[found.bare :]) == {"Count": 7, "Text": "x"}
        sender = await amqp.sender()
        bodies: list[Any] = [
            {"data": [b"a", b"b"]},
            {"body_value": "text"},
            {"body_value": b"bytes"},
            {"body_value": 5},
        ]
        for body in [*bodies, {"sequences": [[1]]}, {}]:
            sender.send_one(uuid.uuid4().bytes, build_message(["id"], **body), False)
        await amqp.flush()
        got = [await http.ask("DELETE", "/q/messages/head") for _ in range(6)]
        assert [reply.body for reply in got][:3] == [b"ab", b"text", b"bytes"]
        assert got[3].body == b"\x55\x05"
        assert got[4].body.startswith(b"\x00\x53\x76")
        assert got[5].body == b""


@in_loop
async def test_scheduled_messages_wait_and_expired_ones_are_gone() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        await http.ask("POST", "/q/messages", b"later", {"BrokerProperties": LATER})
        await http.ask("POST", "/q/messages", b"short", {"BrokerProperties": '{"TimeToLive":0.05}'})
        await asyncio.sleep(0.1)
        assert (await http.ask("POST", "/q/messages/head?timeout=0")).status == 204
        got = await http.ask("GET", "/q")
        assert "<d2p1:ScheduledMessageCount>1<" in got.text


@in_loop
async def test_one_connection_serves_many_requests_and_usage_is_counted() -> None:
    async with serving() as server:
        http = await Http.connect(http_port(server))
        for _ in range(50):
            assert (await http.ask("POST", "/q/messages", b"x" * 70_000)).status == 201
        for _ in range(50):
            assert (await http.ask("DELETE", "/q/messages/head")).status == 200
        assert (await http.ask("DELETE", "/q/messages/head?timeout=0")).status == 204
        totals = server.metering.totals
        assert totals["ns", "q", "send"][0::2] == [50, 100]
        assert totals["ns", "q", "receive"][0::2] == [50, 100]
        assert totals["ns", "q", "empty-receive"][2] == 1


@in_loop
async def test_a_namespace_past_its_rate_is_told_to_come_again() -> None:
    from duobus.broker import Throttle
    from duobus.clock import Clock

    async with serving() as server:
        server.unit.namespace("ns").throttle = Throttle("ns", 5, Clock())
        http = await Http.connect(http_port(server))
        statuses = [(await http.ask("POST", "/q/messages", b"x")).status for _ in range(8)]
        assert set(statuses) == {201, 503}


@in_loop
async def test_a_body_that_drips_is_given_up() -> None:
    from duobus.gateway.rest import fast_sends as express
    from duobus.gateway.rest import request_bodies as bodies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "BODY_TIMEOUT_S", 0.2)
        # After two of these the general server takes over a request of which something is missing.
        patch.setattr(express, "SWEEP_S", 0.1)
        async with serving() as server:
            slow = await Http.connect(http_port(server))
            await slow.start("POST", "/q/messages", b"x", {"Content-Length": "100"})
            reply = await slow.reply()
            assert reply.status == 500
            assert "did not arrive" in reply.text


@in_loop
async def test_large_and_odd_heads_are_refused_and_the_server_lives_on() -> None:
    async with serving() as server:
        for headers in (
            {"X": "x" * 40_000},
            {f"h{number}": "1" for number in range(600)},
            {"a b": "1"},
            {"X": "a\x00b"},
        ):
            odd = await Http.connect(http_port(server))
            assert (await odd.ask("POST", "/q/messages", b"", headers)).status == 400
        for target in ("/" + "a" * 20_000, "*", "q"):
            odd = await Http.connect(http_port(server))
            try:
                assert (await odd.ask("GET", target)).status in (400, 404, 410)
            except ConnectionError:
                continue
        http = await Http.connect(http_port(server))
        assert (await http.ask("POST", "/q/messages", b"x")).status == 201
