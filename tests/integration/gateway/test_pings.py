"""A ping is an empty message of its own content type, and nobody is ever given one, whichever way it came (PN13)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessageNotFoundError

from duobus.broker import MAIN
from duobus.codec import Symbol, build_message
from duobus.gateway.waits import ResultWaiter
from duobus.ha.sdk import prompt_client
from duobus.model import batches
from duobus.model.batches import SendBatch
from duobus.model.descriptions import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from kits.gateway import in_loop, serving, settled
from kits.http_client import Http

PING = {"Content-Type": batches.CONTENT_TYPE}
BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
LATER = '{"ScheduledEnqueueTimeUtc":"Wed, 02 Jul 2036 01:32:27 GMT","TimeToLive":1}'
BARE = build_message([None] * 6 + [Symbol(batches.CONTENT_TYPE)], data=b"")


def stored(server: Server, queue: str = "q") -> int:
    """Messages of a queue, of every kind."""
    totals, _ = server.unit.namespace("ns").queues[queue].numbers()
    return sum(totals)


def metered(server: Server, kind: str) -> int:
    return sum(record.messages for record in server.metering.take(0) if record.kind == kind)


@in_loop
async def test_a_ping_over_http_is_accepted_metered_and_not_kept() -> None:
    parted = QueueDescription(name="p", enable_partitioning=True)
    sessions = QueueDescription(name="s", requires_session=True)
    async with serving(QueueDescription(name="q"), parted, sessions) as server:
        http = await Http.connect(server.port("http") or 0)
        for queue in "qps":
            for headers in (PING, PING | {"BrokerProperties": LATER}, PING | {"Own": "1"}):
                assert (await http.ask("POST", f"/{queue}/messages", b"", headers)).status == 201
            assert stored(server, queue) == 0
        assert metered(server, "ping") == 9
        # One with a body is an ordinary message, as one of another type is.
        assert (await http.ask("POST", "/q/messages", b"x", PING)).status == 201
        assert (await http.ask("POST", "/q/messages", b"", {"Content-Type": "text/plain"})).status == 201
        assert stored(server) == 2


@in_loop
async def test_pings_in_a_batch_over_http_are_not_kept_and_the_others_are() -> None:
    async with serving(QueueDescription(name="q")) as server:
        http = await Http.connect(server.port("http") or 0)
        one = {"Body": "", "BrokerProperties": {"ContentType": batches.CONTENT_TYPE}}
        batch = [one, {"Body": "a"}, one, {"Body": "b", "BrokerProperties": {"Label": "l"}}]
        assert (await http.ask("POST", "/q/messages", json.dumps(batch), BATCH)).status == 201
        assert [(await http.ask("DELETE", "/q/messages/head")).text for _ in range(2)] == ["a", "b"]
        assert (await http.ask("POST", "/q/messages", json.dumps([one, one]), BATCH)).status == 201
        assert stored(server) == 0
        assert metered(server, "ping") == 2


@in_loop
async def test_no_subscription_gets_a_ping_that_came_over_http() -> None:
    async with serving(QueueDescription(name="q")) as server:
        await server.unit.topics.create_topic("ns", TopicDescription(name="t"))
        rule = RuleDescription(name="all", filter_type="True")
        about = SubscriptionDescription(name="s", rules=(rule,))
        subscription = await server.unit.topics.create_subscription("ns", "t", about)
        http = await Http.connect(server.port("http") or 0)
        for headers in (PING, PING | {"BrokerProperties": LATER}, {"Content-Type": "text/plain"}):
            assert (await http.ask("POST", "/t/messages", b"", headers)).status == 201
        assert len(await subscription.peek(MAIN, 1, 10)) == 1, "the one that is no ping"
        assert sum(server.unit.namespace("ns").topics["t"].numbers()[0]) == 0, "none is scheduled"
        assert metered(server, "ping") == 2


@in_loop
async def test_pings_that_are_scheduled_are_accepted_and_not_kept() -> None:
    async with serving(QueueDescription(name="q")) as server:
        text = (
            f"Endpoint=sb://localhost:{server.port('amqp')};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
        )
        at = datetime.now(UTC) + timedelta(hours=1)

        def one() -> ServiceBusMessage:
            return ServiceBusMessage(b"", content_type=batches.CONTENT_TYPE, scheduled_enqueue_time_utc=at)

        async with (
            prompt_client(ServiceBusClient.from_connection_string(text, retry_total=0)) as client,
            client.get_queue_sender("q") as sender,
        ):
            numbers = await sender.schedule_messages([one(), ServiceBusMessage("x"), one()], at)
            assert len(numbers) == 3
            assert stored(server) == 1, "the one that is no ping"
            await sender.cancel_scheduled_messages(numbers[1])
            assert stored(server) == 0
            assert len(await sender.schedule_messages(one(), at)) == 1
            with pytest.raises(MessageNotFoundError):
                await sender.cancel_scheduled_messages(numbers[0])
            await sender.send_messages(one())
            await sender.send_messages([one(), one()])
        assert stored(server) == 0


@in_loop
async def test_the_desk_makes_no_ping_appear() -> None:
    async with serving(QueueDescription(name="q")) as server:
        http = await Http.connect(server.port("http") or 0)

        async def done(path: str, **members: Any) -> dict[str, Any]:
            reply = await http.ask("POST", path, json.dumps(members))
            assert reply.status == 200, reply
            found: dict[str, Any] = json.loads(reply.body)
            return found

        form = {"properties": {"contentType": {"$symbol": batches.CONTENT_TYPE}}, "body": {"data": [""]}}
        assert (await done("/q/$desk", action="send", items=[{"message": form}]))["sent"] == 1
        dead = "/q/$DeadLetterQueue/$desk"
        forgotten = await done(dead, action="bury", items=[{"message": form}])
        assert (forgotten["moved"], forgotten["skipped"][0]["reason"]) == ([], batches.TEXT)
        assert stored(server) == 0
        empty = {"message": {"body": {"data": [""]}}}
        assert len((await done(dead, action="bury", items=[empty]))["moved"]) == 1
        repair = {"properties": {"contentType": {"$symbol": batches.CONTENT_TYPE}}}
        moved = await done(dead, action="resubmit", repair=repair)
        assert (moved["moved"], moved["skipped"][0]["reason"]) == ([], batches.TEXT)
        assert (await done("/q/$desk", action="list"))["matched"] == 0


@in_loop
async def test_a_ping_that_an_earlier_version_stored_ends_where_it_would_be_forwarded() -> None:
    async with serving(QueueDescription(name="q", forward_to="to"), QueueDescription(name="to")) as server:
        waiting = ResultWaiter()
        server.unit.namespace("ns").queues["q"].send(SendBatch(0, [BARE, build_message(data=b"x")], True, waiting))
        await waiting.results(1)
        await settled(lambda: stored(server) == 0)
        fragment = server.unit.namespace("ns").queues["to"].fragments[0].fragment
        assert fragment is not None
        wanted = [build_message(data=b"x")]
        await settled(lambda: [message.payload for message in fragment.sources[0].sub_queues[MAIN].ready] == wanted)
