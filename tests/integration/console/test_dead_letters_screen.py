"""Dead letters on the screen: what they died of, repair, runs, undo, and files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import FormData

from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from kits.console import ConsoleClient, console
from kits.gateway import in_loop

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
