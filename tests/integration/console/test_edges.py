"""Each screen when there is nothing, each action from two tabs at once, and both across restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData
from azure.servicebus import ServiceBusMessage

from duobus.console.screens import connections
from duobus.console.screens import stores as stores_screen
from duobus.console.screens.entities import topology
from duobus.console.screens.messages import tail_page
from duobus.ha.transfer import to_backlog
from duobus.model.descriptions import QueueDescription
from duobus.testing.server import ServerProcess, queues_config
from kits.console import ConsoleClient, Page, broker, connection_string, console, console_at, stream_of
from kits.gateway import in_loop

QUEUE = QueueDescription(name="orders")
#: What a page says while there is nothing to show.
EMPTY_NAMESPACE = {
    "/": "All is well",
    "/entities": "There is no entity yet",
    "/messages": "There is no entity yet",
    "/dead-letters": "No dead letters",
    "/dead-letter-causes": "There is nothing to group",
    "/dead-letter-runs": "No runs",
    "/connections": "Nobody is connected",
    "/connections/locks": "Whose locks?",
    "/relays": "There is no relay yet",
    "/stores": "There is no queue or topic yet",
    "/cluster": "It shares the namespace with no other server",
    "/pairs": "No backlog waits",
    "/audit": "There is no audit log to read",
    "/usage": "There is no metering to read",
    "/topology": "All queues, topics, subscriptions, rules and relays as one file",
}
EMPTY_QUEUE = {
    "/messages/orders": "No messages here",
    "/messages/orders?place=deadletter": "Nothing has failed for good",
    "/messages/orders?place=transfer": "Nothing waits here",
    "/messages/orders?place=scheduled": "No message waits for a later time",
    "/messages/orders?place=deferred": "No receiver has put a message aside",
    "/messages/orders?text=x": "No message here is what you look for",
    "/dead-letters/orders": "No dead letters",
    "/receive/orders": "Receive and lock",
    "/tail/orders": "New messages appear above",
    "/purge/orders": "Purge",
    "/connections/locks?entity=orders": "Nothing of orders is locked",
}


@in_loop
async def test_every_screen_of_an_empty_namespace_says_that_there_is_nothing() -> None:
    async with console() as client:
        missing = {}
        for path, words in EMPTY_NAMESPACE.items():
            page = await client.get(path)
            if page.status != 200 or words.lower() not in page.words.lower():
                missing[path] = (page.status, page.words[300:900])
        assert missing == {}


@in_loop
async def test_every_page_of_an_empty_queue_says_that_there_is_nothing() -> None:
    async with console(QUEUE) as client:
        missing = {}
        for path, words in EMPTY_QUEUE.items():
            page = await client.get(path)
            if page.status != 200 or words.lower() not in page.words.lower():
                missing[path] = (page.status, page.words[300:900])
        assert missing == {}


# -- two tabs -------------------------------------------------------------------------------------------------------


async def both(client: ConsoleClient, path: str, fields: dict[str, Any]) -> list[Page]:
    """Two tabs that send the same form at once; the answer of the one that was done first."""
    pages = await asyncio.gather(client.post(path, fields), client.post(path, fields))
    return sorted(pages, key=lambda page: page.status)


async def told_until(client: ConsoleClient, path: str, is_enough: Callable[[Any], bool]) -> Any:
    """What a page tells as soon as that is enough."""
    async with asyncio.timeout(20):
        while True:
            data = await client.data(path)
            if is_enough(data):
                return data
            await asyncio.sleep(0.02)


@in_loop
async def test_of_two_tabs_that_create_or_delete_the_same_entity_the_second_is_told() -> None:
    async with console() as client:
        made, refused = await both(client, "/create/queue", {"name": "orders"})
        # What was typed is in the form still.
        assert (made.status, refused.status) == (303, 422), refused
        assert "The entity 'orders' exists already" in refused.words, refused
        gone, refused = await both(client, "/entities/orders/delete", {"confirm": "orders"})
        assert (gone.status, refused.status) == (303, 404), refused
        assert "orders" in refused.words


@in_loop
async def test_of_two_tabs_that_begin_the_same_drill_the_second_is_told_and_one_drill_is_remembered() -> None:
    async with console(QUEUE) as client:
        begun, refused = await both(client, "/stores/1/fail", {"confirm": "store 1"})
        assert (begun.status, refused.status) == (303, 409)
        assert "Store 1 is failing already" in refused.words
        assert len((await client.data("/stores"))["drills"]) == 1
        healed = await both(client, "/stores/1/heal", {})
        assert [page.status for page in healed] == [303, 303]


@in_loop
async def test_of_two_tabs_that_run_the_same_dry_run_the_second_is_told(tmp_path: Path) -> None:
    async with console(QUEUE, profiles=tmp_path / "p") as client:
        bus = client.console.sessions.all()[0].namespace.messaging
        async with bus.get_queue_sender("orders") as sender, bus.get_queue_receiver("orders") as receiver:
            await sender.send_messages([ServiceBusMessage("x") for _ in range(20)])
            for message in await receiver.receive_messages(20, max_wait_time=5):
                await receiver.dead_letter_message(message, reason="because")
        dry = await client.post("/dead-letter-runs", {"path": "orders", "action": "resubmit", "all": "1"})
        url = dry.headers["Location"]
        await ended(client, url)
        begun, refused = await both(client, f"{url}/run", {"rate": "1"})
        assert (begun.status, refused.status) == (303, 409), refused
        assert "This is being done already" in refused.words
        await client.post(f"{begun.headers['Location']}/stop", {})


@in_loop
async def test_of_two_tabs_that_move_the_same_fragment_the_second_is_told_and_the_fragment_is_moved_once() -> None:
    async with console(QUEUE) as client:
        (fragment,) = (await client.data("/stores/fragments/orders"))["fragments"]
        form = {"fragment": "0", "to": str(3 - fragment["store"])}
        begun, refused = await both(client, "/stores/moves/orders", form)
        # While the first move is under way, or after its end: an empty fragment is moved in a few milliseconds.
        assert (begun.status, refused.status) in {(303, 400), (303, 503)}, refused
        assert "already" in refused.words if refused.status == 400 else "move" in refused.words
        told = await told_until(client, "/stores/fragments/orders", lambda data: data["moves"][0]["state"] != "running")
        assert [move["state"] for move in told["moves"]] == ["done"]
        assert told["fragments"][0]["store"] == 3 - fragment["store"]


@in_loop
async def test_of_two_tabs_that_begin_a_backup_the_second_is_told_and_one_backup_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    options = {"ephemeral": False, "data": tmp_path / "data", "backup_to": folder}
    async with console(QUEUE, options=options) as client:
        begun, refused = await both(client, "/stores/backup", {})
        assert (begun.status, refused.status) == (303, 503), refused
        assert "backup" in refused.words
        told = await told_until(client, "/stores", lambda data: data["backup"]["state"] != "running")
        assert told["backup"]["state"] == "done"
        assert len(list(folder.iterdir())) == 1


@in_loop
async def test_of_two_tabs_that_apply_the_same_plan_the_second_is_told_and_each_entity_is_made_once() -> None:
    queues = [{"name": f"q{number}"} for number in range(20)]
    document = json.dumps({"kind": "duobus-topology", "version": 1, "queues": queues, "topics": []})
    async with console() as client:
        assert (await client.post("/topology/plan", {"text": document})).status == 303
        begun, refused = await both(client, "/topology/apply", {})
        assert (begun.status, refused.status) == (303, 409), refused
        told = await told_until(client, "/topology", lambda data: data["plan"]["state"] not in {"planned", "running"})
        plan = told["plan"]
        assert (plan["state"], plan["counts"]) == ("done", {"create": 20})


@in_loop
async def test_a_second_tab_that_sees_what_the_import_of_the_first_has_made_does_not_take_it_for_a_change_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = [{"name": f"q{number}"} for number in range(5)]
    document = json.dumps({"kind": "duobus-topology", "version": 1, "queues": queues, "topics": []})
    steps_of, asked = topology._steps, 0

    async def steps(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            await told_until(client, "/topology", lambda data: data["plan"]["state"] == "done")
        return await steps_of(*given)

    monkeypatch.setattr(topology, "_steps", steps)
    async with console() as client:
        await client.post("/topology/plan", {"text": document})
        begun, refused = await both(client, "/topology/apply", {})
        assert (begun.status, refused.status) == (303, 409), refused
        plan = (await client.data("/topology"))["plan"]
        assert (plan["state"], len(plan["steps"])) == ("done", 5)


@in_loop
async def test_of_two_tabs_that_upload_the_same_dead_letters_the_second_is_told_and_none_is_doubled(
    tmp_path: Path,
) -> None:
    async with console(QUEUE, profiles=tmp_path / "p") as client:
        line = json.dumps({"message": {"body": {"data": ["eA=="]}}}).encode()

        def form(action: str) -> FormData:
            form = FormData({"path": "orders", "as": action})
            form.add_field("file", b"\n".join([line] * 7), filename="messages.jsonl")
            return form

        for action in ("dead", "send"):
            pages = await asyncio.gather(*(client.post("/dead-letter-files", form(action)) for _ in range(2)))
            begun, refused = sorted(pages, key=lambda page: page.status)
            assert (begun.status, refused.status) == (303, 409), refused
            assert "The same file was given a moment ago" in refused.words
            await ended(client, begun.headers["Location"])
        (row,) = await client.console.sessions.all()[0].namespace.operation("GET", "/$duobus/entities")
        assert (row["active"], row["deadLetter"]) == (7, 7)


@in_loop
async def test_of_two_tabs_that_run_the_syphon_the_second_is_told_and_no_message_is_doubled() -> None:
    backlog = "localhost/x-servicebus-transfer/0"
    async with broker(QueueDescription(name=backlog)) as secondary, console(QUEUE) as client:
        await client.post("/pairs/other", {"connection_string": connection_string(secondary)})
        (session,) = client.console.sessions.all()
        (other,) = session.others.values()
        async with other.messaging.get_queue_sender(backlog) as sender:
            await sender.send_messages([to_backlog(ServiceBusMessage(f"{n}"), "orders", 1) for n in range(9)])
        begun, refused = await both(client, "/pairs/syphon", {})
        assert (begun.status, refused.status) == (303, 409), refused
        assert "The syphon is running" in refused.words
        run = (await told_until(client, "/pairs", lambda data: bool(data["run"]["is_over"])))["run"]
        assert (run["carried"], run["dead"], run["failures"]) == (9, 0, {})
        (row,) = await session.namespace.operation("GET", "/$duobus/entities")
        assert row["active"] == 9


async def ended(client: ConsoleClient, url: str) -> None:
    for _ in range(400):
        if (await client.data(url))["run"]["has_ended"]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(url)


@in_loop
async def test_of_two_tabs_that_settle_the_same_message_the_second_is_told() -> None:
    async with console(QUEUE) as client:
        await client.post("/send/orders", {"kind": "text", "body": "x", "count": "1", "do": "send"})
        await client.post("/receive/orders", {"do": "receive", "wait": "2"})
        (session,) = client.console.sessions.all()
        session.notices.clear()
        await both(client, "/receive/orders", {"do": "complete", "number": "1"})
        told = {notice.kind: notice.text for notice in session.notices}
        assert len(session.notices) == 2, told
        assert told["done"] == "1 message is completed."
        assert (await client.data("/messages/orders"))["rows"] == []
        assert "1" in next(text for kind, text in told.items() if kind != "done")


# -- restarts ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_after_a_restart_of_the_console_pages_streams_and_programs_are_told_to_sign_in() -> None:
    async with broker(QUEUE) as server:
        async with console_at(connection_string(server), server) as client:
            cookies = {cookie.key: cookie.value for cookie in client.session.cookie_jar}
            port = client.console.settings.port
        async with console_at(connection_string(server), server, right=None) as client:
            assert port == client.console.settings.port
            client.session.cookie_jar.update_cookies(cookies)
            page = await client.get("/messages/orders?place=deadletter")
            assert page.status == 303
            assert page.headers["Location"] == "/sign-in?next=%2Fmessages%2Forders%3Fplace%3Ddeadletter"
            part = await client.part("/entities")
            assert part.headers["HX-Redirect"].startswith("/sign-in")
            program = await client.ask("GET", "/entities", headers={"Accept": "application/json"})
            assert (program.status, program.json["error"]["text"]) == (401, "Sign in first.")
            stream = await client.ask("GET", "/overview/events", headers={"Accept": "text/event-stream"})
            assert stream.status == 401


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("restarted")
    options = ("--emulator", "--stores", "2")
    with ServerProcess(folder, config=queues_config({"orders": {}}), arguments=options) as found:
        yield found


@asynccontextmanager
async def away(server: ServerProcess) -> AsyncIterator[None]:
    """The broker is down meanwhile, and up again afterwards."""
    await asyncio.to_thread(server.kill)
    yield
    await asyncio.to_thread(server.start)


async def until(heard: AsyncIterator[Any], words: str) -> None:
    async with asyncio.timeout(60):
        async for data in heard:
            if words in str(data):
                return
    raise AssertionError(f"The stream ended without {words!r}.")


@pytest.mark.slow
@in_loop
async def test_the_session_outlives_a_restart_of_the_broker_and_pages_say_that_it_was_away(
    server: ServerProcess,
) -> None:
    async with console_at(server.connection_string) as client:
        async with away(server):
            for path in ("/entities", "/messages/orders", "/connections", "/stores", "/dead-letters"):
                page = await client.get(path)
                assert page.status in (502, 503, 504), page
                assert "does not answer" in page.words or "cannot be reached" in page.words, page
            page = await client.get("/")
            assert (page.status, "The namespace does not answer" in page.words) == (200, True)
        for path in ("/", "/entities", "/messages/orders", "/connections", "/stores", "/dead-letters"):
            assert (await client.get(path)).status == 200, path


@pytest.mark.slow
@in_loop
async def test_live_pages_say_that_the_broker_is_away_and_go_on_when_it_is_back(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connections, tail_page):
        monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setattr(tail_page, "_AWAY_S", 0.2)
    monkeypatch.setattr(stores_screen, "_CALM_S", 0.05)
    monkeypatch.setattr(stores_screen, "_BUSY_S", 0.05)
    async with (
        console_at(server.connection_string) as client,
        stream_of(client, "/connections/events") as list_of_connections,
        stream_of(client, "/stores/events") as stores,
        stream_of(client, "/tail/orders?events=1") as tail,
    ):
        await until(tail, "Waiting for messages")
        await until(list_of_connections, "connections")
        async with away(server):
            await until(list_of_connections, "does not answer")
            await until(stores, "does not answer")
            await until(tail, "Trying again")
        form = {"kind": "text", "body": "after the restart", "count": "1", "do": "send"}
        assert (await client.post("/send/orders", form)).status == 303
        await until(tail, "after the restart")
        await until(list_of_connections, "'#connections-failure', 'html': ''")
        await until(stores, "'#stores-failure', 'html': ''")
