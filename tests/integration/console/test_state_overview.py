"""The start page: what is unwell, rates and counts, for each kind of key and against Azure's requests alone."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

from azure.servicebus import ServiceBusMessage

from duobus.clock import Clock
from duobus.console.observation import observer as observation
from duobus.model.descriptions import QueueDescription, TopicDescription
from duobus.model.options import HttpOptions
from kits.console import ConsoleClient, broker, console, console_of
from kits.gateway import in_loop

HOSTILE = "<script>alert(1)</script>&'\""


async def send(client: ConsoleClient, queue: str, *bodies: str) -> None:
    """Send messages as an application does."""
    session = client.console.sessions.all()[0]
    async with session.namespace.messaging.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(body) for body in bodies])


async def look_again(client: ConsoleClient) -> None:
    """Let the console look at the namespace now, and not in ten seconds."""
    (observer,) = client.console.shared["observers"].values()
    observer._due_ms = 0
    await observer.refresh(client.console.sessions.all()[0].namespace)


@in_loop
async def test_an_empty_namespace_is_well_and_says_what_will_appear() -> None:
    async with console() as client:
        page = await client.get("/")
        assert page.status == 200
        assert "All is well" in page.words
        assert "Nothing is going on" in page.words
        assert "Stores open 2 of 2" in page.words
        data = await client.data("/")
        assert (data["queues"], data["topics"], data["rates"]["sent"]) == (0, 0, None)


@in_loop
async def test_rates_and_the_busiest_entity_appear_with_the_second_look() -> None:
    async with console(QueueDescription(name="orders"), QueueDescription(name="idle")) as client:
        await client.get("/")
        await send(client, "orders", "1", "2", "3")
        await look_again(client)
        data = await client.data("/")
        assert data["active"] == 3
        assert data["rates"]["sent"] > 0
        assert [one["path"] for one in data["busiest"]] == ["orders"]
        assert data["rate_chart"]["series"][0]["label"] == "In"
        page = await client.get("/?span=day")
        assert 'href="/entities/orders"' in page.text
        assert "Active messages 3" in page.words


@in_loop
async def test_a_store_that_is_away_is_the_first_thing_on_the_page() -> None:
    async with console(QueueDescription(name="orders")) as client:
        await client.get("/")
        (session,) = client.console.sessions.all()
        await session.namespace.operation("POST", "/$duobus/stores/1/fail")
        await look_again(client)
        data = await client.data("/")
        assert data["findings"][0]["kind"] in {"bad", "warning"}
        assert "tore 1" in data["findings"][0]["title"]
        assert 'href="/stores/1"' in (await client.get("/")).text


@in_loop
async def test_sessions_of_one_namespace_share_what_was_counted_and_other_keys_do_not() -> None:
    async with broker(QueueDescription(name="orders")) as server, console_of(server) as client:
        await client.get("/")
        await client.get("/")
        assert len(client.console.shared["observers"]) == 1
        (observer,) = client.console.shared["observers"].values()
        assert observer.number == 1
        assert observer.watchers == 1
        await client.ask("POST", "/sign-out", data={"csrf": client.csrf}, headers={"Origin": client.url})
        await client.sign_in("listen")
        data = await client.data("/")
        assert (data["queues"], data["stores"]) == (1, None)
        assert len(client.console.shared["observers"]) == 2
        assert (observer.watchers, observer.reading) == (0, None)


@in_loop
async def test_a_key_that_may_only_send_is_told_why_it_sees_nothing() -> None:
    async with console(QueueDescription(name="orders"), right="send") as client:
        page = await client.get("/")
        assert "This key sees no numbers" in page.words
        assert "observers" not in client.console.shared


@in_loop
async def test_a_namespace_with_nothing_but_azures_requests_is_counted_by_its_administration() -> None:
    topics = [TopicDescription(name="events")]
    async with console(
        QueueDescription(name="orders"), topics=topics, options={"http": HttpOptions(operations=False)}
    ) as client:
        await send(client, "orders", "1", "2")
        page = await client.get("/")
        assert "Active messages 2" in page.words
        assert "the difference of two counts" in page.words
        for word in ("Connections", "Stores open", "Metrics", "messages sent"):
            assert word not in page.words
        data = await client.data("/")
        assert (data["queues"], data["topics"], data["server"]) == (1, 1, {})


@in_loop
async def test_while_the_broker_is_away_the_last_counts_stay_with_a_word_and_after_a_restart_rates_begin_anew() -> None:
    async with broker(QueueDescription(name="orders")) as server, console_of(server) as client:
        await client.get("/")
        (observer,) = client.console.shared["observers"].values()
        observer.failed("broker is away")
        page = await client.get("/")
        assert "The namespace does not answer broker is away" in page.words
        assert "Queues 1" in page.words
        await look_again(client)
        assert "does not answer" not in (await client.get("/")).words


@in_loop
async def test_observers_of_namespaces_that_nobody_looks_at_are_forgotten() -> None:
    async with console() as client:
        clock = Clock()
        others = {number: observation.Observer(clock, is_duobus=True, sees_stores=True) for number in range(60)}
        client.console.shared["observers"] = others
        await client.get("/")
        assert len(client.console.shared["observers"]) <= observation.OBSERVERS_MAX


@in_loop
async def test_hostile_names_are_text() -> None:
    async with console(QueueDescription(name="orders")) as client:
        await client.get("/")
        (observer,) = client.console.shared["observers"].values()
        reading = observer.reading
        assert reading is not None
        counts = reading.entities["orders"]._replace(active=5, dead=5)
        observer.take(reading._replace(at_ms=reading.at_ms + 10, entities={HOSTILE: counts}))
        page = await client.get("/")
        assert "<script>alert" not in page.text
        assert HOSTILE in page.words


@in_loop
async def test_over_a_restart_of_the_broker_counts_go_on_and_rates_begin_anew() -> None:
    queue = QueueDescription(name="orders")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(broker(queue))
        port = first.port("amqp")
        client = await stack.enter_async_context(console_of(first))
        await client.get("/")
        await send(client, "orders", "1")
        await look_again(client)
        assert (await client.data("/"))["rates"]["sent"] > 0
        for peer in list(first.amqp.peers):
            peer.abort()
        await first.stop()
        await look_again(client)
        page = await client.get("/")
        assert "The namespace does not answer" in page.words
        assert "Active messages 1" in page.words
        assert (await client.get("/stores")).status == 502
        await stack.enter_async_context(broker(queue, port=port))
        await look_again(client)
        data = await client.data("/")
        assert (data["active"], data["rates"]["sent"], data["failure"]) == (0, None, "")
        assert "The server was started" in (await client.get("/")).words


@in_loop
async def test_ten_thousand_entities_are_counted_and_the_busiest_ten_are_named() -> None:
    async with console(QueueDescription(name="orders")) as client:
        await client.get("/")
        (observer,) = client.console.shared["observers"].values()
        reading = observer.reading
        assert reading is not None
        counts = reading.entities["orders"]
        many = {f"queue-{index:05}": counts._replace(active=index) for index in range(10_000)}
        observer.take(reading._replace(at_ms=reading.at_ms + 10_000, entities=many))
        data = await client.data("/")
        assert (data["queues"], data["active"]) == (10_000, sum(range(10_000)))
        assert [one["path"] for one in data["busiest"]] == [f"queue-{9_999 - index:05}" for index in range(10)]


@in_loop
async def test_an_open_page_gets_what_has_changed_and_nothing_else() -> None:
    async with console(QueueDescription(name="orders")) as client:
        number = (await client.data("/"))["number"]
        async with client.session.get(f"{client.url}/overview/events?seen={number}") as stream:
            assert await stream.content.readuntil(b"\n\n") == b"retry: 3000\n\n"
            await send(client, "orders", "1")
            await look_again(client)
            text = b""
            while b"overview-busy" not in text:
                text += await stream.content.readuntil(b"\n\n")
            targets = [json.loads(line[6:])["target"] for line in text.decode().splitlines() if line[:5] == "data:"]
            assert targets[-2:] == ["#overview-figures", "#overview-busy"]
            assert 'href=\\"/entities/orders\\"' in text.decode()


@in_loop
async def test_a_look_that_comes_between_the_page_and_its_stream_is_shown() -> None:
    async with console(QueueDescription(name="orders")) as client:
        number = (await client.data("/"))["number"]
        await send(client, "orders", "1")
        await look_again(client)
        async with client.session.get(f"{client.url}/overview/events?seen={number}") as stream:
            text = b""
            while b"overview-busy" not in text:
                text += await stream.content.readuntil(b"\n\n")
            assert b"#overview-findings" in text
