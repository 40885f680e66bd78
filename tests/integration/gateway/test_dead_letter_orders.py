"""``POST /{entity}/$desk`` over the wire: who may, what is refused, and what the answers say."""

from __future__ import annotations

import json
from typing import Any

from duobus.broker.entities.queue import COUNT_BITS
from duobus.model.descriptions import (
    AccessRule,
    QueueDescription,
    Right,
    SubscriptionDescription,
    TopicDescription,
)
from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, token

DEAD = "/q/$DeadLetterQueue/$desk"


async def order(http: Http, path: str = DEAD, **members: Any) -> Reply:
    return await http.ask("POST", path, json.dumps(members))


def item(text: str, **members: Any) -> dict[str, Any]:
    return {"message": {"body": {"data": [text]}}, **members}


async def done(http: Http, path: str = DEAD, **members: Any) -> dict[str, Any]:
    reply = await order(http, path, **members)
    assert reply.status == 200, reply
    found: dict[str, Any] = json.loads(reply.body)
    return found


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["message"]["body"]["data"][0] for message in answer["messages"]]


@in_loop
async def test_messages_are_buried_listed_moved_and_removed_chunk_by_chunk() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="to")) as server:
        http = await Http.connect(server.port("http") or 0)
        answer = await done(http, action="bury", items=[item(str(n), reason=f"r{n % 2}") for n in range(7)])
        assert (len(answer["moved"]), answer["skipped"]) == (7, [])
        before = None
        found, first = [], 0
        while first is not None:
            page = await done(http, action="list", first=first, limit=2, sql="DeadLetterReason = 'r0'", before=before)
            before, first = page["before"], page["next"]
            found += bodies(page)
        assert found == ["0", "2", "4", "6"]
        moved = await done(http, action="move", to="to", sql="DeadLetterReason = 'r0'", limit=3)
        assert len(moved["moved"]) == 3
        assert moved["moved"][0]["movedTo"] == 1
        again = await done(http, action="resubmit", numbers=[2], repair={"set": {"a": 1}}, messages=True)
        assert bodies(again) == ["1"]
        (there,) = (await done(http, "/q/$desk", action="list"))["messages"]
        assert (there["message"]["applicationProperties"], there["enqueuedSequenceNumber"]) == ({"a": 1}, 2)
        assert (await done(http, action="purge"))["matched"] == 3
        assert (await done(http, action="list"))["matched"] == 0
        sent = await done(http, "/to/$desk", action="send", items=[item("x"), item("y" * 300_000)])
        assert (sent["sent"], sent["refused"][0]["index"]) == (1, 1)


@in_loop
async def test_heads_tell_what_is_known_of_messages_without_what_they_hold() -> None:
    async with serving(QueueDescription(name="q")) as server:
        http = await Http.connect(server.port("http") or 0)
        await done(http, action="bury", items=[item("x", reason="r", description="d")])
        (whole,) = (await done(http, action="list"))["messages"]
        (head,) = (await done(http, action="list", heads=True))["messages"]
        assert whole.pop("message")["body"] == {"data": ["x"]}
        assert head == whole
        assert (head["reason"], head["description"]) == ("r", "d")


@in_loop
async def test_a_partial_order_passes_over_the_stores_that_are_away_and_says_so() -> None:
    queue = QueueDescription(name="q", enable_partitioning=True)
    async with serving(queue, stores=2, allow_drills=True) as server:
        http = await Http.connect(server.port("http") or 0)
        items = [{"message": {"partitionKey": f"k{n}", "body": {"data": [str(n)]}}} for n in range(40)]
        await done(http, action="bury", items=items)
        assert (await http.ask("POST", "/$duobus/stores/2/fail")).status == 200
        # The next commit in that store fails, and then the store is away.
        server.unit.brokers[2].lifecycle.show_how_it_is()
        fragments = []
        while all(one["available"] for one in fragments):
            fragments = json.loads((await http.ask("GET", "/$duobus/fragments?entity=q")).body)
        found, unavailable = await all_of(http, partial=True)
        assert 0 < len(found) < 40
        assert unavailable == [one["fragment"] for one in fragments if not one["available"]]
        # Without it nobody takes a part for the whole.
        last = (unavailable[-1] << COUNT_BITS) + 1_000
        assert (await order(http, action="list", first=last, sql="never = 1")).status == 503
        assert (await done(http, action="list", first=last, sql="never = 1", partial=True))["matched"] == 0
        assert (await http.ask("POST", "/$duobus/stores/2/heal")).status == 200


async def all_of(http: Http, **members: Any) -> tuple[list[str], list[int]]:
    """Every message, page by page, and what the last answer says of fragments that are away."""
    found: list[str] = []
    first: int | None = 0
    unavailable: list[int] = []
    while first is not None:
        page = await done(http, action="list", first=first, limit=500, **members)
        found += bodies(page)
        first, unavailable = page["next"], page["unavailable"]
    return found, unavailable


@in_loop
async def test_each_action_needs_its_rights() -> None:
    rights = {"listen": Right.LISTEN, "send": Right.SEND, "both": Right.LISTEN | Right.SEND}
    rules = tuple(
        AccessRule(name=name, primary_key="one key", secondary_key="other key", rights=int(right))
        for name, right in rights.items()
    )
    queue = QueueDescription(name="q", authorization_rules=rules)
    other = QueueDescription(name="to", authorization_rules=rules)
    allowed = {
        "list": {"listen", "both"},
        "purge": {"listen", "both"},
        "resubmit": {"both"},
        "bury": set(),
        "move": set(),
    }
    async with serving(queue, other) as server:
        http = await Http.connect(server.port("http") or 0)
        for action, who in allowed.items():
            extra: dict[str, Any] = {"items": [item("x")]} if action == "bury" else {}
            extra |= {"to": "to"} if action == "move" else {}
            for name in rights:
                http.authorization = token("q", rule=name, key="one key")
                assert (await order(http, action=action, **extra)).status == (200 if name in who else 401)
        http.authorization = token("q", rule="listen", key="one key")
        body = json.dumps({"action": "move", "to": "to"})
        there = {"ServiceBusSupplementaryAuthorization": token("to", rule="send", key="one key")}
        assert (await http.ask("POST", DEAD, body, there)).status == 200
        http.authorization = None
        assert (await order(http, action="list")).status == 401


@in_loop
async def test_what_is_wrong_with_an_order_is_said_and_nothing_is_done() -> None:
    topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),))
    async with serving(QueueDescription(name="q")) as server:
        await server.unit.topics.create_topic("ns", topic)
        http = await Http.connect(server.port("http") or 0)
        await done(http, action="bury", items=[item("x")])
        wrong: list[dict[str, Any]] = [
            {},
            {"action": "burn"},
            {"action": "resubmit", "heads": True},
            {"action": "list", "limit": 501},
            {"action": "list", "limit": True},
            {"action": "list", "first": -1},
            {"action": "list", "numbers": ["1"]},
            {"action": "list", "sql": "a = ("},
            {"action": "list", "json": "a = 1"},
            {"action": "list", "unknown": 1},
            {"action": "list", "repair": {}},
            {"action": "move"},
            {"action": "resubmit", "to": "q"},
            {"action": "resubmit", "repair": {"sets": {}}},
            {"action": "resubmit", "repair": {"set": {"a": {"$uint": -1}}}},
            {"action": "resubmit", "repair": {"patch": [{"op": "jump"}]}},
            {"action": "bury", "items": []},
            {"action": "bury", "items": [{"message": {"body": {"data": [5]}}}]},
            {"action": "bury", "items": [{"message": {"properties": {"contentType": {"$symbol": "é"}}}}]},
            {"action": "send", "items": [item("x")]},
        ]
        for members in wrong:
            reply = await order(http, **members)
            assert (reply.status, b"SubCode=40000" in reply.body) == (400, True), (members, reply)
        assert (await http.ask("POST", DEAD, b"[" * 100_000)).status == 400
        for path, status in (("/none/$desk", 404), ("/t/$desk", 400), ("/t/Subscriptions/s/$desk", 200)):
            assert (await order(http, path, action="list")).status == status
        assert (await order(http, action="move", to="none")).status == 404
        assert (await order(http, "/q/$desk", action="purge", numbers=[])).status == 200
        assert (await done(http, action="list"))["matched"] == 1
        # As a name it stays one.
        assert (await http.ask("POST", "/t/Subscriptions/$desk")).status == 405
