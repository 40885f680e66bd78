"""The messages of an entity in the console: looked at, searched, shown one by one, and downloaded."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from duobus.console.screens.messages import list_page
from duobus.console.screens.messages.node import NODES_MAX, node_for
from duobus.model.descriptions import QueueDescription, TopicDescription
from duobus.model.options import HttpOptions
from duobus.model.tiers import PREMIUM_PARTITIONED
from kits.console import ConsoleClient, console, console_of, stream_of
from kits.gateway import in_loop
from kits.hostile_texts import HOSTILE

ORDERS = QueueDescription(name="orders")


def namespace_of(client: ConsoleClient) -> Any:
    """The client of the only session's namespace."""
    (session,) = client.console.sessions.all()
    return session.namespace


async def sent(client: ConsoleClient, *messages: Any, to: str = "orders") -> None:
    """Send messages as a program would."""
    async with namespace_of(client).messaging.get_queue_sender(to) as sender:
        await sender.send_messages(list(messages))


def numbers(data: Any) -> list[int]:
    return [row["number"] for row in data["rows"]]


@in_loop
async def test_pages_of_messages_follow_one_another_and_nothing_is_locked() -> None:
    async with console(ORDERS) as client:
        empty = await client.get("/messages/orders")
        assert "No messages here" in empty.words
        await sent(client, *(ServiceBusMessage(f"body {number}", message_id=f"m-{number}") for number in range(30)))
        first = await client.data("/messages/orders?count=25")
        assert numbers(first) == list(range(1, 26))
        second = await client.data(f"/messages/orders?count=25&from={first['next']}")
        assert (numbers(second), second["next"]) == (list(range(26, 31)), None)
        page = await client.get("/messages/orders?count=25")
        assert "/messages/orders?count=25&amp;from=26&amp;trail=0" in page.text
        back = await client.get("/messages/orders?count=25&from=26&trail=0")
        assert "/messages/orders?count=25&amp;from=0" in back.text
        async with namespace_of(client).messaging.get_queue_receiver("orders") as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=5)
            assert message.delivery_count == 0


@in_loop
async def test_a_search_says_how_far_it_looked_and_a_wrong_filter_is_told_at_its_field() -> None:
    async with console(ORDERS) as client:
        await sent(
            client,
            *(
                ServiceBusMessage(json.dumps({"n": number}), application_properties={"colour": "red", "n": number})
                for number in range(40)
            ),
        )
        found = await client.data("/messages/orders?sql=n%20%3E%2030&path=%24.n%20%3C%2035&text=n")
        assert (numbers(found), found["looked"]) == ([32, 33, 34, 35], 40)
        wrong = await client.get("/messages/orders?sql=n%20%3E")
        assert wrong.status == 422
        assert 'aria-invalid="true"' in wrong.text
        columns = await client.get("/messages/orders?columns=number,body,property:colour&property=n&count=1")
        assert "Number Body colour n 1" in columns.words
        assert (await client.data("/messages/orders?columns=id&count=1"))["rows"][0]["size"] is None


@in_loop
async def test_each_place_has_its_own_messages() -> None:
    async with console(ORDERS) as client:
        await sent(client, *(ServiceBusMessage(f"{number}", message_id=f"m-{number}") for number in range(4)))
        messaging = namespace_of(client).messaging
        async with messaging.get_queue_receiver("orders") as receiver:
            first, second, *_ = await receiver.receive_messages(2, max_wait_time=5)
            await receiver.dead_letter_message(first, reason="TooOld", error_description="It was late.")
            await receiver.defer_message(second)
        async with messaging.get_queue_sender("orders") as sender:
            await sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
        places = ("active", "deferred", "scheduled", "deadletter", "transfer")
        found = [numbers(await client.data(f"/messages/orders?place={place}")) for place in places]
        assert found == [[3, 4], [2], [5], [1], []]
        dead = await client.get("/messages/orders?place=deadletter&number=1")
        assert "Dead-letter reason TooOld" in dead.words
        assert "It was late." in dead.words
        missing = await client.get("/messages/none")
        assert (missing.status, "There is no entity none." in missing.words) == (404, True)


@in_loop
async def test_a_message_is_shown_with_the_types_of_amqp_and_downloaded_whole() -> None:
    async with console(ORDERS) as client:
        await sent(
            client,
            AmqpAnnotatedMessage(
                data_body=gzip.compress(b'{"price": 1.10}'),
                properties={"message_id": "m", "content_type": "application/json", "content_encoding": "gzip"},
                application_properties={"count": {"TYPE": "USHORT", "VALUE": 7}, "name": "Ada"},
            ),
        )
        page = await client.get("/messages/orders?number=1")
        assert "count ushort 7 name string Ada" in page.words
        assert '"price": 1.10' in page.words
        body = await client.ask("GET", "/messages/orders?number=1&download=body")
        assert body.headers["Content-Disposition"] == 'attachment; filename="message-1.bin"'
        assert body.headers["Content-Security-Policy"]
        line = await client.ask("GET", "/messages/orders?number=1&download=message")
        record = json.loads(line.text)
        assert record["sequenceNumber"] == 1
        assert record["message"]["applicationProperties"] == {"count": {"$ushort": 7}, "name": "Ada"}
        assert await client.data("/messages/orders?number=1") == record
        gone = await client.get("/messages/orders?number=2")
        assert gone.status == 404
        assert "no message 2" in gone.words


@in_loop
async def test_a_management_node_tells_messages_with_and_without_bodies_and_of_one_session() -> None:
    async with console(QueueDescription(name="visits", requires_session=True)) as client:
        await sent(client, *(ServiceBusMessage("body", session_id=name) for name in "abb"), to="visits")
        (session,) = client.console.sessions.all()
        node = await node_for(session, "visits")
        assert [one.body_kind for one in await node.peek(0, 10)] == ["data"] * 3
        assert [one.body_kind for one in await node.peek(0, 10, with_bodies=False)] == [""] * 3
        assert len(await node.peek(0, 10, session_id="b")) == 2
        for number in range(NODES_MAX + 1):
            await node_for(session, f"q{number}")
        assert await node_for(session, "visits") is not node


@in_loop
async def test_bodies_of_values_and_sequences_keep_their_types() -> None:
    async with console(ORDERS) as client:
        await sent(client, AmqpAnnotatedMessage(value_body={"a": {"TYPE": "UINT", "VALUE": 1}}))
        await sent(client, AmqpAnnotatedMessage(sequence_body=[[1, "x"], [True]]))
        assert '"a": { "$uint": 1 }' in (await client.get("/messages/orders?number=1")).words
        assert "sequence, 2 sections" in (await client.get("/messages/orders?number=2")).words


@in_loop
async def test_a_large_body_is_shown_in_part_and_downloaded_whole() -> None:
    big = QueueDescription(name="big", max_message_size_bytes=20_000 << 10)
    async with console(big, options={"http": HttpOptions(tier=PREMIUM_PARTITIONED)}) as client:
        await sent(client, ServiceBusMessage(b"x" * 8_000_000), to="big")
        page = await client.get("/messages/big?number=1")
        assert "Only the first 256 KiB are shown" in page.words
        assert len(page.text) < 400_000
        body = await client.ask("GET", "/messages/big?number=1&download=body")
        assert len(body.text) == 8_000_000
        assert numbers(await client.data("/messages/big")) == [1]


@in_loop
async def test_hostile_names_and_bodies_are_shown_as_text() -> None:
    async with console(ORDERS) as client:
        texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
        await sent(
            client,
            *(
                ServiceBusMessage(text, subject=text[:100], application_properties={text[:50]: text[:500]})
                for text in texts
            ),
        )
        listed = await client.get("/messages/orders?columns=number,subject,body&count=200")
        shown = [await client.get(f"/messages/orders?number={number}") for number in range(1, len(texts), 9)]
        for page in (listed, *shown):
            assert page.status == 200
            # Of the console itself: a mark in the frame, and scripts from files.
            text = page.text.replace('<svg aria-hidden="true"', "")
            assert not re.search(r"<(script>|img|svg|iframe|b>|object|base|form action=http)", text)


@in_loop
async def test_sessions_are_listed_and_looked_at_one_by_one() -> None:
    visits = QueueDescription(name="visits", requires_session=True)
    async with console(visits, ORDERS) as client:
        assert "No session yet" in (await client.get("/sessions/visits")).words
        for name in ("c-1", "c-2", "</td><b>"):
            await sent(client, *(ServiceBusMessage(f"{name} {n}", session_id=name) for n in range(2)), to="visits")
        found = await client.data("/sessions/visits")
        assert [one["session"] for one in found["sessions"]] == ["</td><b>", "c-1", "c-2"]
        assert "<b>" not in (await client.get("/sessions/visits")).text
        looked = await client.data("/messages/visits?place=session&session=c-2")
        assert [row["session"] for row in looked["rows"]] == ["c-2", "c-2"]
        assert "There is no entity missing." in (await client.get("/sessions/missing")).words
        none = await client.get("/sessions/orders")
        assert none.status == 200
        assert "There are no sessions here" in none.words or "No session yet" in none.words


@in_loop
async def test_a_topic_leads_to_its_subscriptions() -> None:
    async with console(topics=[TopicDescription(name="prices")]) as client:
        async with namespace_of(client).telling("topic prices"):
            await namespace_of(client).administration.create_subscription("prices", "alerts")
        await sent(client, ServiceBusMessage("up"), to="prices")
        page = await client.get("/messages/prices")
        assert "/messages/prices/Subscriptions/alerts" in page.text
        assert numbers(await client.data("/messages/prices/subscriptions/alerts")) == [1]
        assert "/messages/prices" in (await client.get("/messages")).text


@in_loop
async def test_each_key_sees_what_it_may() -> None:
    async with console(ORDERS, right="listen") as client:
        page = await client.get("/messages/orders")
        assert page.status == 200
        assert "/send/orders" not in page.text
        assert (await client.get("/send/orders")).status == 403
        assert (await client.post("/send/orders", {"body": "x"})).status == 403
        assert (await client.get("/messages")).status == 200
        async with console_of(client.server, right="send") as sender:
            assert (await sender.get("/messages/orders")).headers["Location"] == "/send/orders"
            assert (await sender.get("/messages/orders?number=1")).status == 303
            for path in ("/receive/orders", "/tail/orders", "/sessions/orders", "/purge/orders"):
                assert (await sender.get(path)).status == 403, path
            form = await sender.get("/send/orders")
            assert "/receive/orders" not in form.text
            assert (await sender.post("/send/orders", {"body": "x", "count": "1"})).status == 303


@in_loop
async def test_only_the_doors_of_azure_are_enough() -> None:
    visits = QueueDescription(name="visits", requires_session=True)
    async with console(ORDERS, visits, options={"http": HttpOptions(operations=False)}) as client:
        assert not namespace_of(client).is_duobus
        await sent(client, ServiceBusMessage("a", application_properties={"x": 1}))
        await sent(client, ServiceBusMessage("b", session_id="s"), to="visits")
        assert numbers(await client.data("/messages/orders?sql=x%20%3D%201")) == [1]
        assert [one["session"] for one in (await client.data("/sessions/visits"))["sessions"]] == ["s"]
        assert "Everything" not in (await client.get("/purge/orders")).words


@in_loop
async def test_a_search_goes_on_by_itself_with_its_progress_until_it_has_found_or_seen_all() -> None:
    async with console(QueueDescription(name="orders")) as client:
        for number in range(5):
            fields = {"kind": "text", "body": "x", "count": "1000", "do": "send", "subject": f"{number}"}
            assert (await client.post("/send/orders", fields)).status == 303
        await client.post(
            "/send/orders", {"kind": "text", "body": "<b>", "count": "1", "do": "send", "subject": "needle"}
        )
        page = await client.get("/messages/orders?sql=sys.label='needle'")
        assert "Nothing found so far" in page.words
        assert "Looked at 2,000 messages, found 0; there is more to look at" in page.words
        (url,) = re.findall(r'data-events="([^"]+)"', page.text)
        heard = [data async for data in events_of(client, unescape(url))]
        assert heard[-1] == {"looked": 5_001, "found": 1}
        assert "Looked at 5,001 of about 5,001 messages, found 1; this is the end" in " ".join(
            re.sub(r"<[^>]+>", " ", heard[-2]["html"]).split()
        )
        assert "needle" in heard[-2]["html"]


@in_loop
async def test_a_search_that_is_stopped_releases_its_place_and_only_a_few_go_on_at_a_time() -> None:
    async with console(QueueDescription(name="orders")) as client:
        (session,) = client.console.sessions.all()
        await client.post("/send/orders", {"kind": "text", "body": "x", "count": "1", "do": "send"})
        session.memory["messages-searches"] = list_page.SEARCHES_MAX
        (told,) = [data async for data in events_of(client, "/messages/orders?sql=sys.label='x'&events=1")]
        assert "Stop another one first" in told["text"]
        session.memory["messages-searches"] = 0
        assert [data async for data in events_of(client, "/messages/orders?sql=sys.label='x'&events=1")][-1] == {
            "looked": 1,
            "found": 0,
        }
        assert session.memory["messages-searches"] == 0


async def events_of(client: ConsoleClient, path: str) -> AsyncIterator[Any]:
    async with stream_of(client, path) as heard:
        async for data in heard:
            yield data


@in_loop
async def test_messages_of_the_stores_that_are_there_are_shown_while_another_store_is_away() -> None:
    queue = QueueDescription(name="orders", enable_partitioning=True)
    async with console(queue, options={"stores": 2, "allow_drills": True}) as client:
        (session,) = client.console.sessions.all()
        async with session.namespace.messaging.get_queue_sender("orders") as sender:
            for number in range(60):
                await sender.send_messages(ServiceBusMessage(f"{number}", partition_key=f"k{number}"))
        operation = session.namespace.operation
        whole = await client.data("/messages/orders?count=200")
        assert (len(whole["rows"]), whole["missing"]) == (60, None)
        await operation("POST", "/$duobus/stores/2/fail")
        fragments: list[dict[str, Any]] = []
        while all(one["available"] for one in fragments):
            # Who asks how the server is has it look at stores that have nothing to do.
            await operation("GET", "/health")
            fragments = await operation("GET", "/$duobus/fragments", query={"entity": "orders"})
        away = [{"fragment": one["fragment"], "store": 2} for one in fragments if not one["available"]]
        lost = {one["fragment"] for one in away}
        readable = [row["number"] for row in whole["rows"] if row["number"] >> 48 not in lost]
        assert 0 < len(readable) < 60

        # To the end, which the broker answers with an error, by pages, and by a search.
        found = await client.data("/messages/orders?count=200")
        assert ([row["number"] for row in found["rows"]], found["next"]) == (readable, None)
        assert found["missing"]["fragments"] == away
        first = await client.data("/messages/orders?count=1")
        assert (len(first["rows"]), first["missing"]["fragments"]) == (1, away)
        searched = await client.data("/messages/orders?count=200&text=5")
        assert (searched["looked"], searched["missing"]["fragments"]) == (len(readable), away)
        page = await client.get("/messages/orders?count=200")
        assert f"fragments {', '.join(str(one['fragment']) for one in away)} in store 2" in page.words
        assert "this is the end of what can be read" in page.words
        nothing = await client.get(f"/messages/orders?from={16 << 48}")
        assert nothing.status == 200
        for place in ("deadletter", "scheduled", "deferred"):
            empty = await client.data(f"/messages/orders?place={place}")
            assert (empty["rows"], empty["missing"]["fragments"]) == ([], away), place
        gone = next(row["number"] for row in whole["rows"] if row["number"] >> 48 in lost)
        one = await client.get(f"/messages/orders?number={gone}")
        assert (one.status, "Store 2 is away, which holds message" in one.words) == (503, True)

        # The live tail begins, says so, and shows what comes to the stores that are there.
        async with client.session.get(f"{client.url}/tail/orders?events=1") as stream:
            seen = b""
            while b"event: absence" not in seen:
                seen += await stream.content.readany()
            assert b"is away" in seen
            key = next(row["partitionKey"] for row in whole["rows"] if row["number"] in readable)
            async with session.namespace.messaging.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("new", partition_key=key, message_id="the new one"))
            while b"the new one" not in seen:
                seen += await stream.content.readany()

        # Without the right to be told which parts are away, the look itself tells that some are.
        async with console_of(client.server, right="listen") as listener:
            told = await listener.data("/messages/orders?count=200")
            assert (len(told["rows"]), told["missing"]["fragments"]) == (len(readable) + 1, [])
            assert "StoreUnavailable" in told["missing"]["text"]
        await operation("POST", "/$duobus/stores/2/heal")
