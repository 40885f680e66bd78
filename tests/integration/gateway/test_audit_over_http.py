"""``/$duobus/audit``: what was changed and by whom, and what consoles write down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_overview import WATCHER, watched

from duobus.model.descriptions import AccessRule
from duobus.server.composition import Server
from duobus.server.operations.audit import LINES_PER_SECOND_MAX
from duobus.telemetry.audit_log import read_audit
from kits.gateway import RULE, in_loop, serving
from kits.http_client import Http, Reply, entry, token

LINE = {"operation": "resubmit", "kind": "messages", "path": "orders/$DeadLetterQueue", "note": "1,667 by Ann"}


async def ask(server: Server, method: str, query: str = "", form: Any = b"", rule: AccessRule | None = None) -> Reply:
    http = await Http.connect(server.port("http") or 0)
    signed = token() if rule is None else token(rule=rule.name, key=rule.primary_key)
    body = form if isinstance(form, bytes) else json.dumps(form)
    return await http.ask(method, f"/$duobus/audit{query}", body, headers={"Authorization": signed})


async def told(server: Server, query: str = "") -> Any:
    reply = await ask(server, "GET", query)
    assert reply.status == 200, reply
    return json.loads(reply.text)


@in_loop
async def test_changes_come_the_latest_first_in_pages(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False) as server:
        assert await told(server) == {"changes": [], "next": None}
        http = await Http.connect(server.port("http") or 0)
        for name in ("a", "b", "c"):
            assert (await http.ask("PUT", f"/{name}", entry())).status == 201
        assert (await http.ask("PUT", "/a", entry())).status == 409
        first = await told(server, "?limit=2")
        assert [(one["path"], one["outcome"] == "done") for one in first["changes"]] == [("a", False), ("c", True)]
        assert {one["who"] for one in first["changes"]} == {RULE}
        second = await told(server, f"?limit=2&after={first['next']}")
        assert [one["path"] for one in second["changes"]] == ["b", "a"]
        assert second["next"] is None


@in_loop
async def test_drills_moves_and_backups_are_told_of_whatever_comes_of_them(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False, allow_drills=True) as server:
        http = await Http.connect(server.port("http") or 0)
        assert (await http.ask("POST", "/$duobus/stores/1/heal")).status == 200
        assert (await http.ask("POST", "/$duobus/stores/7/fail")).status == 404
        assert (await http.ask("POST", "/$duobus/moves?entity=q&fragment=0&to=9")).status == 400
        assert (await http.ask("POST", "/$duobus/backup")).status == 400
        changes = (await told(server))["changes"]
        assert [(one["kind"], one["path"], one["outcome"] == "done") for one in changes] == [
            ("backup", "", False),
            ("move", "q", False),
            ("store", "7/fail", False),
            ("store", "1/heal", True),
        ]


@in_loop
async def test_a_console_writes_down_what_a_person_did_and_not_too_much(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False) as server:
        reply = await ask(server, "POST", form=LINE)
        assert (reply.status, json.loads(reply.text)) == (201, LINE)
        (line,) = (await told(server))["changes"]
        assert (line["operation"], line["kind"], line["path"]) == ("resubmit", "messages", LINE["path"])
        assert (line["who"], line["door"], line["outcome"]) == (RULE, "console", "done")
        assert line["changes"] == {"note": [None, LINE["note"]]}
        assert list(read_audit(tmp_path / "audit")) == [line]
        statuses = [(await ask(server, "POST", form=LINE)).status for _ in range(3 * LINES_PER_SECOND_MAX)]
        assert {201, 503} >= set(statuses)
        assert len((await told(server, "?limit=500"))["changes"]) == 1 + statuses.count(201)


@in_loop
async def test_lines_that_say_something_else_are_refused(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False) as server:
        for form, status, words in (
            (b"", 400, "not JSON"),
            ([], 400, "is an object"),
            ({}, 400, "needs operation"),
            (LINE | {"who": "me"}, 400, "no member 'who'"),
            (LINE | {"path": 1}, 400, "path is a text"),
            (LINE | {"note": "x" * 1_025}, 400, "at most 1024"),
            (b" " * 20_000, 403, "larger than"),
        ):
            reply = await ask(server, "POST", form=form)
            assert (reply.status, words in reply.text) == (status, True), (form, reply)
        for query, words in (("?after=x", "next of an earlier answer"), ("?limit=x", "whole number")):
            reply = await ask(server, "GET", query)
            assert (reply.status, words in reply.text) == (400, True)
        assert (await told(server))["changes"] == []
        assert (await ask(server, "DELETE")).status == 405


@in_loop
async def test_only_those_who_may_manage_see_the_log_and_one_in_memory_has_none() -> None:
    async with watched() as server:
        reply = await ask(server, "GET")
        assert (reply.status, "no audit log" in reply.text) == (400, True)
        for method in ("GET", "POST"):
            assert (await ask(server, method, form=LINE, rule=WATCHER)).status == 401
