"""What orders to the dead-letter service cost, and in whose name."""

from __future__ import annotations

import json
from typing import Any

from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from kits.gateway import RULE, in_loop, serving
from kits.http_client import Http

DEAD = "/q/$DeadLetterQueue/$desk"
LARGE = "y" * 70_000


async def done(http: Http, path: str = DEAD, **members: Any) -> dict[str, Any]:
    reply = await http.ask("POST", path, json.dumps(members))
    assert reply.status == 200, reply
    found: dict[str, Any] = json.loads(reply.body)
    return found


def item(text: str) -> dict[str, Any]:
    return {"message": {"body": {"data": [text]}}, "reason": "r"}


def taken(server: Server) -> dict[tuple[str, str], tuple[int, int]]:
    """(entity, kind) to (messages, operations) of what was counted since it was asked last."""
    records = server.metering.take(0)
    assert {record.key for record in records} <= {RULE}
    return {(record.entity, record.kind): (record.messages, record.operations) for record in records}


@in_loop
async def test_what_the_desk_shows_moves_and_removes_is_counted() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="To")) as server:
        http = await Http.connect(server.port("http") or 0)
        await done(http, action="bury", items=[item("a"), item(LARGE), item("c"), item("d")])
        assert taken(server) == {("q", "send"): (4, 5)}
        await done(http, action="list")
        assert taken(server) == {("q", "peek"): (4, 5)}
        await done(http, action="list", messages=False)
        await done(http, action="list", first=1000)
        await done(http, action="purge", dryRun=True)
        assert taken(server) == {("q", "peek"): (0, 3)}
        await done(http, action="move", to="to", numbers=[1, 2])
        assert taken(server) == {("To", "send"): (2, 3), ("q", "settle"): (2, 2)}
        await done(http, action="resubmit", numbers=[3], messages=True)
        assert taken(server) == {("q", "peek"): (1, 1), ("q", "send"): (1, 1), ("q", "settle"): (1, 1)}
        await done(http, action="purge")
        assert taken(server) == {("q", "settle"): (1, 1)}
        await done(http, action="purge")
        assert taken(server) == {}
        await done(http, "/q/$desk", action="send", items=[item("x"), item("y" * 300_000)])
        assert taken(server) == {("q", "send"): (1, 1)}
        await done(http, "/q/$desk", action="send", items=[item("x")], dryRun=True)
        assert taken(server) == {}
