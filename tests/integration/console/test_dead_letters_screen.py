"""Dead letters on the screen: what they died of, repair, runs, undo, and files."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import FormData
from azure.servicebus import ServiceBusMessage

from duobus.console.screens.dead_letters.job_files import JobFiles
from duobus.console.screens.dead_letters.jobs import LINE_BYTES_MAX
from duobus.model.descriptions import AccessRule, QueueDescription, Right, SubscriptionDescription, TopicDescription
from duobus.model.options import HttpOptions
from kits.console import ConsoleClient, Page, broker, console, console_of
from kits.gateway import in_loop
from kits.hostile_texts import HOSTILE

CAUSE = "Order # has no currency"


def orders(number: int, start: int = 0) -> list[dict[str, Any]]:
    """Dead letters of three causes, one after the other."""
    found = []
    for n in range(start, start + number):
        reason, description = (
            ("NoCurrency", f"Order {n} has no currency\n  at Shop.Price({n})"),
            ("Timeout", f"System.TimeoutException: no answer within {n} ms"),
            ("MaxDeliveryCountExceeded", "Message could not be consumed after 10 delivery attempts."),
        )[n % 3]
        body = {"order": n, "total": f"{n}.00"}
        form = {
            "properties": {"messageId": f"m{n}", "contentType": "application/json"},
            "applicationProperties": {"region": "north"},
            "body": {"data": [json.dumps(body)]},
        }
        found.append({"message": form, "reason": reason, "description": description})
    return found


async def bury(client: ConsoleClient, items: list[dict[str, Any]], path: str = "orders") -> None:
    """Make dead letters by the cheapest way there is."""
    (session,) = client.console.sessions.all()
    for start in range(0, len(items), 500):
        order = {"action": "bury", "items": items[start : start + 500]}
        await session.namespace.operation("POST", f"/{path}/$DeadLetterQueue/$desk", body=order)


def undo_modes(folder: Path) -> list[int]:
    return [path.stat().st_mode & 0o777 for path in folder.glob("p.dead-letters/*.undo")]


async def counts(client: ConsoleClient, path: str = "orders") -> tuple[int, int]:
    (session,) = client.console.sessions.all()
    rows = await session.namespace.operation("GET", "/$duobus/entities", query={"prefix": path})
    (row,) = [one for one in rows if one["entity"] == path]
    return row["active"], row["deadLetter"]


async def ended(client: ConsoleClient, url: str) -> dict[str, Any]:
    """A run when it has ended; each question waits for the next news of the run."""
    while True:
        found: dict[str, Any] = (await client.data(url))["run"]
        if found["has_ended"]:
            return found
        await client.ask("GET", f"{url}/events")


async def begun(client: ConsoleClient, fields: dict[str, Any] | Iterable[tuple[str, str]], url: str = "") -> str:
    answer = await client.post(url or "/dead-letter-runs", FormData(fields))
    assert answer.status == 303, answer.words
    return str(answer.headers["Location"])


@in_loop
async def test_entities_are_listed_by_their_dead_letters_and_grouped_by_cause(tmp_path: Path) -> None:
    topic = TopicDescription(name="prices", subscriptions=(SubscriptionDescription(name="alerts"),))
    async with console(
        QueueDescription(name="orders"), QueueDescription(name="eu/refunds"), topics=[topic], profiles=tmp_path / "p"
    ) as client:
        assert "No dead letters" in (await client.get("/dead-letters")).words
        assert "No dead letters" in (await client.get("/dead-letters/orders")).words
        await bury(client, orders(9))
        await bury(client, orders(12), "eu/refunds")
        await bury(client, orders(3), "prices/Subscriptions/alerts")
        found = await client.data("/dead-letters")
        assert [(one["path"], one["deadLetter"]) for one in found["entities"]] == [
            ("eu/refunds", 12),
            ("orders", 9),
            ("prices/Subscriptions/alerts", 3),
        ]
        assert (found["looked"], found["total"]) == (3, 24)
        causes = (await client.data("/dead-letter-causes"))["groups"]
        assert len(causes) == 9
        assert {one["count"] for one in causes} == {4, 3, 1}
        groups = (await client.data("/dead-letters/eu/refunds"))["groups"]
        assert {(one["reason"], one["cause"], one["count"]) for one in groups} == {
            ("NoCurrency", CAUSE, 4),
            ("Timeout", "System.TimeoutException: no answer within # ms", 4),
            ("MaxDeliveryCountExceeded", "Message could not be consumed after # delivery attempts.", 4),
        }
        assert "Order # has no currency" in (await client.part("/dead-letter-causes")).words


GROUP = {"path": "orders", "reason": "NoCurrency", "cause": CAUSE}


@in_loop
async def test_a_cause_is_repaired_tried_resubmitted_and_undone(tmp_path: Path) -> None:
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, orders(30))
        page = await client.data(f"/dead-letters/orders?{urlencode(GROUP)}")
        assert (page["count"], len(page["messages"])) == (10, 10)
        body = json.loads(page["body"]["text"]) | {"currency": "EUR"}
        repair = GROUP | {
            "sample": str(page["sample"]["sequenceNumber"]),
            "body": json.dumps(body),
            "body_was": page["body"]["text"],
            "set": "attempt := 2",
            "action": "resubmit",
        }
        difference = await client.post("/dead-letter-repairs/orders", repair)
        assert difference.status == 200
        assert '+ "currency": "EUR"' in difference.words
        tried = await begun(client, repair)
        found = await ended(client, tried)
        assert (found["state"], found["done"], found["left"]) == ("done", 10, 0)
        assert await counts(client) == (0, 30)
        done = await begun(client, {}, f"{tried}/run")
        found = await ended(client, done)
        assert (found["state"], found["done"], found["recorded"]) == ("done", 10, 10)
        assert await counts(client) == (10, 20)
        (session,) = client.console.sessions.all()
        listed = await session.namespace.operation("POST", "/orders/$desk", body={"action": "list"})
        assert {json.loads(one["message"]["body"]["data"][0])["currency"] for one in listed["messages"]} == {"EUR"}
        assert {one["message"]["applicationProperties"]["attempt"] for one in listed["messages"]} == {2}
        assert undo_modes(tmp_path) == [0o600]
        undone = await ended(client, await begun(client, {}, f"{done}/undo"))
        assert (undone["state"], undone["done"]) == ("done", 10)
        assert await counts(client) == (0, 30)
        assert (await client.post(f"{done}/undo")).status == 409
        groups = (await client.data("/dead-letters/orders"))["groups"]
        assert [one["count"] for one in groups] == [10, 10, 10]


async def tried(client: ConsoleClient, **fields: str) -> dict[str, Any]:
    """A dry run that has ended."""
    return await ended(client, await begun(client, {"path": "orders", "action": "resubmit", "all": "1"} | fields))


async def done(client: ConsoleClient, found: dict[str, Any], **fields: str) -> dict[str, Any]:
    """What came of the run that a dry run leads to."""
    return await ended(client, await begun(client, fields, f"{found['url']}/run"))


@in_loop
async def test_a_listen_key_looks_and_removes_and_a_send_key_sees_nothing(tmp_path: Path) -> None:
    async with (
        broker(QueueDescription(name="orders")) as server,
        console_of(server, profiles=tmp_path / "a") as manager,
        console_of(server, right="listen", profiles=tmp_path / "b") as client,
        console_of(server, right="send", profiles=tmp_path / "c") as sender,
    ):
        await bury(manager, orders(3))
        page = await client.get("/dead-letters/orders?all=1")
        assert page.status == 200
        assert "takes the right Send" in page.words
        assert "Show the difference" not in page.text
        fields = {"path": "orders", "action": "resubmit"}
        assert "needs the right Send" in (await client.post("/dead-letter-runs", fields)).words
        assert (await client.post("/dead-letter-repairs/orders", fields)).status == 403
        found = await tried(client, action="purge")
        gone = await done(client, found, confirm="orders")
        assert (gone["done"], gone["can_undo"]) == (3, False)
        assert "right Listen" in (await sender.get("/dead-letters")).words


@in_loop
async def test_messages_are_deleted_only_when_the_name_is_typed_and_come_back_by_an_undo(tmp_path: Path) -> None:
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, orders(6))
        found = await tried(client, action="purge")
        assert (await client.post(f"{found['url']}/run", {"confirm": "order"})).status == 422
        assert await counts(client) == (0, 6)
        gone = await done(client, found, confirm="orders")
        assert await counts(client) == (0, 0)
        other_console = JobFiles(tmp_path / "p.dead-letters")
        assert other_console.hold(gone["id"])
        refused = await ended(client, await begun(client, {}, f"{gone['url']}/undo"))
        assert (refused["state"], refused["note"]) == ("failed", "Another console of this machine is undoing this run.")
        other_console.release(gone["id"])
        await ended(client, await begun(client, {}, f"{gone['url']}/undo"))
        assert await counts(client) == (0, 6)


@in_loop
async def test_chosen_messages_move_and_what_does_not_fit_is_left_with_its_reason(tmp_path: Path) -> None:
    queues = [QueueDescription(name=name) for name in ("orders", "parked")]
    async with console(*queues, profiles=tmp_path / "p") as client:
        broken = {"message": {"body": {"data": ['{"order": NaN']}}, "reason": "poison", "description": None}
        await bury(client, [*orders(4), broken])
        numbers = [one["sequenceNumber"] for one in (await client.data("/dead-letters/orders?all=1"))["messages"]]
        chosen = [("number", str(number)) for number in (numbers[0], numbers[1], numbers[4])]
        fields = [("path", "orders"), ("action", "move"), *chosen]
        sample = ("sample", str(numbers[0]))
        refused = await client.post("/dead-letter-runs", FormData([*fields, sample, ("set", "nonsense = kept\nwrong")]))
        assert refused.status == 422
        assert "Name the queue or topic" in refused.words
        assert "Line 2 is not of the form" in refused.words
        assert "nonsense = kept" in refused.words
        patch = ("patch", '[{"op": "add", "path": "/ok", "value": true}]')
        found = await ended(client, await begun(client, [*fields, ("target", "parked"), patch]))
        assert (found["done"], found["left"]) == (2, 1)
        assert [reason for reason, _ in found["reasons"]] == ["The body is no JSON, so that no JSON patch fits."]
        moved = await done(client, found)
        assert (moved["done"], moved["left"], await counts(client, "parked")) == (2, 1, (2, 0))
        mended = {"find": "NaN", "with": "5}", "number": str(numbers[4])}
        mended = await done(client, await tried(client, **mended))
        assert (mended["done"], await counts(client)) == (1, (1, 2))
        nowhere = await tried(client, action="move", target="nowhere")
        failed = await done(client, nowhere)
        assert failed["state"] == "failed"
        assert "nowhere" in failed["note"]
        assert await counts(client) == (1, 2)


@in_loop
async def test_a_run_pauses_goes_on_and_stops_and_loses_nothing(tmp_path: Path) -> None:
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, orders(12))
        found = await tried(client)
        url = await begun(client, {"rate": "4"}, f"{found['url']}/run")
        await client.post(f"{url}/pause")
        while (await client.data(url))["run"]["state"] != "paused":
            await client.ask("GET", "/dead-letter-runs")
        at_rest = (await client.data(url))["run"]["done"]
        assert await counts(client) == (at_rest, 12 - at_rest)
        assert "Go on" in (await client.get(url)).words
        await client.post(f"{url}/go-on")
        await client.post(f"{url}/stop")
        run = await ended(client, url)
        assert run["state"] == "stopped"
        assert run["done"] < 12
        assert await counts(client) == (run["done"], 12 - run["done"])
        rest = await ended(client, await begun(client, {}, f"{url}/again"))
        assert (rest["is_dry"], rest["done"]) == (True, 12 - run["done"])
        assert (await client.post(f"{rest['url']}/again")).status == 409
        assert "The run had ended already." in (await client.post(f"{url}/stop", Accept="application/json")).text


@in_loop
async def test_two_people_run_over_the_same_dead_letters_and_each_message_is_moved_once(tmp_path: Path) -> None:
    async with (
        broker(QueueDescription(name="orders")) as server,
        console_of(server, profiles=tmp_path / "a") as one,
        console_of(server, profiles=tmp_path / "b") as other,
    ):
        await bury(one, orders(900))
        both = [await tried(client) for client in (one, other)]
        found = await asyncio.gather(done(one, both[0]), done(other, both[1]))
        assert sum(run["done"] for run in found) == 900
        assert {run["state"] for run in found} == {"done"}
        assert await counts(one) == (900, 0)
        undone = [
            await ended(client, await begun(client, {}, f"{run['url']}/undo"))
            for client, run in zip((one, other), found, strict=True)
            if run["done"]
        ]
        assert sum(run["done"] for run in undone) == 900
        assert await counts(one) == (0, 900)


@in_loop
async def test_a_console_that_ends_in_the_middle_leaves_a_run_that_the_next_console_undoes(tmp_path: Path) -> None:
    async with broker(QueueDescription(name="orders")) as server:
        async with console_of(server, profiles=tmp_path / "p") as client:
            await bury(client, orders(10))
            found = await tried(client)
            url = await begun(client, {"rate": "5"}, f"{found['url']}/run")
            while not (await client.data(url))["run"]["done"]:
                pass
        async with console_of(server, profiles=tmp_path / "p") as client:
            (run, _) = (await client.data("/dead-letter-runs"))["runs"]
            assert (run["state"], run["url"], run["can_undo"]) == ("interrupted", url, True)
            assert await counts(client) == (run["done"], 10 - run["done"])
            await ended(client, await begun(client, {}, f"{url}/undo"))
            assert await counts(client) == (0, 10)


@in_loop
async def test_a_run_waits_for_a_broker_that_restarts_and_goes_on(tmp_path: Path) -> None:
    kept = {"data": tmp_path / "bus", "ephemeral": False}
    async with broker(QueueDescription(name="orders"), **kept) as server:
        ports = {"port": server.port("amqp"), "http_port": server.port("http")}
        async with console_of(server, profiles=tmp_path / "p") as client:
            await bury(client, orders(12))
            found = await tried(client)
            url = await begun(client, {"rate": "6"}, f"{found['url']}/run")
            while not (await client.data(url))["run"]["done"]:
                pass
            await server.stop()
            while (await client.data(url))["run"]["state"] != "held up":
                pass
            assert "does not answer" in (await client.get(url)).words
            async with broker(QueueDescription(name="orders"), **kept, **ports) as again:
                run = await ended(client, url)
                assert (run["state"], run["done"], run["note"]) == ("done", 12, "")
                client.server = again
                assert await counts(client) == (12, 0)
                session = client.console.sessions.all()[0]
                changes = (await session.namespace.operation("GET", "/$duobus/audit"))["changes"]
                assert ("resubmit", "orders", "console") in {
                    (one["operation"], one["path"], one["door"]) for one in changes
                }


@in_loop
async def test_a_download_comes_back_by_an_upload(tmp_path: Path) -> None:
    queues = [QueueDescription(name=name) for name in ("orders", "again")]
    async with console(*queues, profiles=tmp_path / "p") as client:
        await bury(client, orders(5))
        file = await client.get(f"/dead-letter-files/orders?{urlencode({'sql': 'sys.SequenceNumber > 0'})}")
        assert file.headers["Content-Disposition"] == 'attachment; filename="orders-dead-letters.jsonl"'
        lines = [json.loads(line) for line in file.text.splitlines()]
        assert [line["entity"] for line in lines] == ["orders/$DeadLetterQueue"] * 5

        async def uploaded(text: str, **fields: str) -> dict[str, Any]:
            form = FormData({"path": "again"} | fields)
            form.add_field("file", text.encode(), filename="messages.jsonl")
            answer = await client.post("/dead-letter-files", form)
            assert answer.status == 303, answer.words
            return await ended(client, str(answer.headers["Location"]))

        assert (await uploaded(file.text))["done"] == 5
        assert (await uploaded(file.text, **{"as": "dead"}))["done"] == 5
        assert await counts(client, "again") == (5, 5)
        again = (await client.get("/dead-letter-files/again?all=1")).text.splitlines()
        assert [json.loads(line)["message"] for line in again] == [line["message"] for line in lines]
        broken = await uploaded(file.text.splitlines()[0] + "\nnonsense\n")
        assert (broken["state"], broken["note"].startswith("Line 2 is no exported message.")) == ("failed", True)


@in_loop
async def test_a_line_as_long_as_the_limit_is_brought_and_a_longer_one_is_refused_before_anything_is(
    tmp_path: Path,
) -> None:
    async with console(QueueDescription(name="again", max_message_size_bytes=100 << 20), profiles=tmp_path / "p") as client:

        def line(length: int) -> str:
            empty = json.dumps({"message": {"body": {"data": [""]}}})
            return json.dumps({"message": {"body": {"data": ["A" * ((length - len(empty)) // 4 * 4)]}}})

        async def uploaded(*lines: str, **fields: str) -> Page:
            form = FormData({"path": "again"} | fields)
            form.add_field("file", io.BytesIO("\n".join(lines).encode()), filename="messages.jsonl")
            return await client.post("/dead-letter-files", form)

        answer = await uploaded(line(400), line(LINE_BYTES_MAX), line(400))
        run = await ended(client, str(answer.headers["Location"]))
        assert (run["state"], run["done"], run["note"]) == ("done", 3, "")
        assert await counts(client, "again") == (3, 0)
        refused = await uploaded(line(400), line(LINE_BYTES_MAX + 8))
        assert refused.status == 413
        assert "Line 2 of the file has more than 7.938 MiB" in refused.words
        assert "Nothing was brought. The page Send" in refused.words
        assert await counts(client, "again") == (3, 0)
        assert "A line has at most 7.9 MiB" in (await client.get("/dead-letters/again")).words


async def dead_letter_by_sdk(client: ConsoleClient, items: list[dict[str, Any]]) -> None:
    """Make dead letters with a receiver, as every namespace can."""
    messaging = client.console.sessions.all()[0].namespace.messaging
    async with messaging.get_queue_sender("orders") as sender:
        bodies = [one["message"]["body"]["data"][0] for one in items]
        await sender.send_messages([ServiceBusMessage(body) for body in bodies])
    async with messaging.get_queue_receiver("orders") as receiver:
        left = list(items)
        while left:
            for message in await receiver.receive_messages(len(left), max_wait_time=5):
                why = left.pop(0)
                await receiver.dead_letter_message(message, reason=why["reason"], error_description=why["description"])


@in_loop
async def test_without_what_only_duobus_has_the_sdk_does_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("duobus.dead_letters.sdk_backend._WAIT_S", 0.2)
    options = {"http": HttpOptions(operations=False)}
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p", options=options) as client:
        await dead_letter_by_sdk(client, orders(6))
        found = await client.data("/dead-letters")
        assert [(one["path"], one["deadLetter"]) for one in found["entities"]] == [("orders", 6)]
        assert [one["count"] for one in (await client.data("/dead-letters/orders"))["groups"]] == [2, 2, 2]
        page = await client.data(f"/dead-letters/orders?{urlencode(GROUP)}")
        repair = GROUP | {"set": "a=b", "sample": str(page["sample"]["sequenceNumber"])}
        assert "+ a = b" in (await client.post("/dead-letter-repairs/orders", repair)).words
        tried_by_sdk = await ended(client, await begun(client, repair))
        assert (tried_by_sdk["done"], tried_by_sdk["undoable"]) == (2, False)
        assert "cannot be undone" in (await client.get(tried_by_sdk["url"])).words
        run = await done(client, tried_by_sdk)
        assert (run["state"], run["done"], run["can_undo"]) == ("done", 2, False)
        assert (await client.data("/dead-letters"))["total"] == 4


@in_loop
async def test_hostile_texts_are_shown_as_texts_and_their_groups_are_found(tmp_path: Path) -> None:
    texts = [*HOSTILE[:40], "%_\\'' AND 1=1", "\n\n  late line 7", "\x00\x01", "a" * 5000, "", "é#7"]
    items: list[dict[str, Any]] = [
        {
            "message": {
                "properties": {"messageId": text[:100] or "x", "subject": text[:100] or None},
                "applicationProperties": {text[:60] or "x": text},
                "body": {"data": [text]},
            },
            "reason": text[:200] or None,
            "description": text,
        }
        for text in texts
    ]
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, items)
        groups = (await client.data("/dead-letters/orders"))["groups"]
        assert sum(group["count"] for group in groups) == len(texts)
        for group in groups:
            page = await client.get(group["url"])
            assert page.status == 200
            assert f"{group['count']} dead letter" in page.words, group
            assert "<script>window" not in page.text
            assert "<img src=x" not in page.text
        for path in ("no/such", quote("a b?c#d"), "%00", "orders/Subscriptions/x"):
            assert (await client.get(f"/dead-letters/{path}")).status in {400, 404, 422}
        wrong = await client.get(f"/dead-letters/orders?{urlencode({'sql': 'a = ('})}")
        assert wrong.status == 400
        assert (await client.get("/dead-letter-runs/0123456789abcdef")).status == 404
        strange = {"path": "orders", "sample": "x", "expected": "-1", "number": "1e5", "action": "resubmit"}
        assert (await client.post("/dead-letter-repairs/orders", strange)).status == 409
        assert (await client.post("/dead-letter-runs", strange | {"action": "burn"})).status == 422
        assert (await client.post("/dead-letter-runs", strange)).status == 303
        assert (await client.get("/dead-letter-runs/..%2F..%2Fx")).status == 404


@in_loop
async def test_messages_that_are_too_large_to_be_read_are_listed_all_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, [orders(1)[0] | {"message": {"body": {"data": ["x" * 9_000]}}}])
        monkeypatch.setattr("duobus.dead_letters.client.ANSWER_BYTES_MAX", 2_000)
        page = await client.get("/dead-letters/orders?all=1")
        assert page.status == 200
        assert "so large that the console does not read them" in page.words
        assert "Order 0 has no currency" in page.words


@in_loop
async def test_transfer_dead_letters_have_a_page_of_their_own(tmp_path: Path) -> None:
    queues = [
        QueueDescription(name="orders", forward_to="visits"),
        QueueDescription(name="visits", requires_session=True),
    ]
    async with console(*queues, profiles=tmp_path / "p") as client:
        messaging = client.console.sessions.all()[0].namespace.messaging
        async with messaging.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"no session {n}") for n in range(3)])
        while True:
            rows = (await client.data("/dead-letters"))["entities"]
            if rows and rows[0]["transferDeadLetter"] == 3:
                break
        (group,) = (await client.data("/dead-letter-causes"))["groups"]
        assert (group["isTransfer"], group["reason"], group["count"]) == (True, "SessionIdIsNull", 3)
        assert "No dead letters" in (await client.get("/dead-letters/orders")).words
        assert "Transfer dead letters" in (await client.get(group["url"])).words
        found = await tried(client, transfer="1", action="purge")
        assert (await done(client, found, confirm="orders"))["done"] == 3
        assert (await client.data("/dead-letters"))["total"] == 0


@in_loop
async def test_dead_letters_of_the_stores_that_are_there_are_shown_while_another_store_is_away(tmp_path: Path) -> None:
    queue = QueueDescription(name="orders", enable_partitioning=True)
    options = {"stores": 2, "allow_drills": True}
    async with console(queue, profiles=tmp_path / "p", options=options) as client:
        items = orders(60)
        for number, item in enumerate(items):
            item["message"]["partitionKey"] = f"k{number}"
        await bury(client, items)
        (session,) = client.console.sessions.all()
        await session.namespace.operation("POST", "/$duobus/stores/2/fail")
        fragments: list[dict[str, Any]] = []
        while all(one["available"] for one in fragments):
            # Who asks how the server is has it look at stores that have nothing to do.
            await session.namespace.operation("GET", "/health")
            fragments = await session.namespace.operation("GET", "/$duobus/fragments", query={"entity": "orders"})
        away = sum(not one["available"] for one in fragments)
        page = await client.get("/dead-letters/orders")
        assert f"{away} fragments are in a store that is away" in page.words
        found = await client.data("/dead-letters/orders")
        assert (0 < found["looked"] < 60, found["away"]) == (True, away)
        listed = await client.data("/dead-letters/orders?all=1")
        assert (listed["count"], listed["away"], listed["is_complete"]) == (found["looked"], away, False)
        await session.namespace.operation("POST", "/$duobus/stores/2/heal")


@in_loop
async def test_pages_of_messages_follow_each_other_and_have_every_message_once(tmp_path: Path) -> None:
    async with console(QueueDescription(name="orders"), profiles=tmp_path / "p") as client:
        await bury(client, orders(330))
        url: str | None = f"/dead-letters/orders?{urlencode({'reason': GROUP['reason'], 'cause': CAUSE})}"
        numbers, sizes = [], []
        while url:
            page = await client.data(url)
            assert (page["count"], page["is_complete"]) == (110, True)
            sizes.append(len(page["messages"]))
            numbers += [one["sequenceNumber"] for one in page["messages"]]
            url = page["next"]
        assert sizes == [50, 50, 10]
        assert numbers == sorted(set(numbers))


@in_loop
async def test_a_key_of_one_queue_leads_to_its_dead_letters_and_resubmits_them(tmp_path: Path) -> None:
    rule = AccessRule(name="own", primary_key="own" * 9, secondary_key="two" * 9, rights=int(Right.LISTEN | Right.SEND))
    async with (
        broker(QueueDescription(name="orders", authorization_rules=(rule,))) as server,
        console_of(server, profiles=tmp_path / "a") as manager,
        console_of(server, right=None, profiles=tmp_path / "b") as client,
    ):
        await bury(manager, orders(3))
        text = (
            f"Endpoint=sb://localhost:{server.port('amqp')};SharedAccessKeyName=own;SharedAccessKey={'own' * 9};"
            "UseDevelopmentEmulator=true;EntityPath=orders"
        )
        await client.sign_in_with(kind="connection", connection_string=text)
        assert (await client.get("/dead-letters")).headers["Location"] == "/dead-letters/orders"
        run = await done(client, await tried(client))
        assert (run["done"], run["can_undo"], await counts(manager)) == (3, False, (3, 0))
