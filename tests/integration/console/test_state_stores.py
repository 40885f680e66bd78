"""Stores, fragments, drills, moves and backups in the console."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse

from duobus.console.screens import stores
from duobus.model.descriptions import QueueDescription
from duobus.model.options import HttpOptions
from kits.console import ConsoleClient, broker, console, console_of
from kits.gateway import in_loop

PARTITIONED = QueueDescription(name="orders", enable_partitioning=True)


def on_disk(folder: Path) -> dict[str, Any]:
    """Options of a broker with a data folder, whose stores can be backed up and whose log is kept."""
    return {"ephemeral": False, "data": folder / "data", "backup_to": folder / "backups"}


@in_loop
async def test_stores_are_listed_with_their_fragments_and_a_name_that_is_hostile_is_text() -> None:
    async with console(PARTITIONED, QueueDescription(name="<b>&")) as client:
        data = await client.data("/stores")
        assert [row["state"] for row in data["rows"]] == ["open", "open"]
        assert sum(row["fragments"] for row in data["rows"]) == sum(row["fragments"] for row in data["heat"])
        page = await client.get("/stores")
        assert "&lt;b&gt;&amp;" in page.text
        assert "<b>&" not in page.text
        assert "There was no backup" not in page.words
        assert (await client.get("/stores/7")).status == 404


@in_loop
async def test_a_drill_needs_the_typed_name_and_tells_what_clients_saw_until_it_is_healed() -> None:
    async with console(PARTITIONED) as client:
        await client.get("/stores")
        assert (await client.post("/stores/1/fail", {"confirm": "1"})).status == 422
        assert (await client.data("/stores"))["drills"] == []
        assert (await client.post("/stores/1/fail", {"confirm": "store 1"})).status == 303
        page = await client.get("/stores/1")
        assert "is failing now, until somebody heals it" in page.words
        assert "Store 1 is failing" in page.words
        (drill,) = (await client.data("/stores/1"))["drills"]
        assert (drill["mode"], drill["is_over"], drill["errors"]) == ("failing", False, {})
        # Somebody else heals the store: the drill is over all the same.
        (session,) = client.console.sessions.all()
        await session.namespace.operation("POST", "/$duobus/stores/1/heal")
        (drill,) = (await client.data("/stores/1"))["drills"]
        assert drill["is_over"]
        assert (await client.post("/stores/1/heal")).status == 303


@in_loop
async def test_without_allowed_drills_there_are_no_buttons_and_the_server_refuses() -> None:
    async with console(PARTITIONED, options={"allow_drills": False}) as client:
        page = await client.get("/stores/1")
        assert "Drills need a server with --allow-drills" in page.words
        assert "/stores/1/fail" not in page.text
        refused = await client.post("/stores/1/fail", {"confirm": "store 1"})
        assert refused.status == 400
        assert "does not allow drills" in refused.words


async def moved(client: ConsoleClient) -> list[dict[str, Any]]:
    """The moves of the queue after the one that is under way."""
    while True:
        moves: list[dict[str, Any]] = (await client.data("/stores/fragments/orders"))["moves"]
        if all(move["state"] != "running" for move in moves):
            return moves


@in_loop
async def test_a_fragment_is_moved_and_a_wrong_store_is_refused_in_the_words_of_the_broker() -> None:
    async with console(PARTITIONED) as client:
        before = (await client.data("/stores/fragments/orders"))["fragments"]
        first = before[0]
        target = next(fragment["store"] for fragment in before if fragment["store"] != first["store"])
        form = {"fragment": str(first["fragment"]), "to": str(target)}
        assert (await client.post("/stores/moves/orders", form)).status == 303
        (move,) = await moved(client)
        assert (move["state"], move["to"]) == ("done", target)
        after = (await client.data("/stores/fragments/orders"))["fragments"]
        assert after[0]["store"] == target
        page = await client.get("/stores/fragments/orders")
        assert f"from store {first['store']} to {target}" in page.words
        assert (await client.post("/stores/moves/orders", {"fragment": "0", "to": "99"})).status in {400, 404}
        assert (await client.post("/stores/moves/orders", {"fragment": "<b>", "to": ""})).status == 400
        assert (await client.get("/stores/fragments/nowhere")).status == 404


@in_loop
async def test_what_people_do_here_is_in_the_audit_log(tmp_path: Path) -> None:
    async with console(PARTITIONED, options=on_disk(tmp_path)) as client:
        assert "Nothing was changed yet" not in (await client.get("/audit?operation=fail")).words
        await client.post("/stores/2/stall", {"confirm": "store 2"})
        await client.post("/stores/2/heal")
        await client.post("/stores/backup")
        rows = (await client.data("/audit"))["rows"]
        assert [(row["kind"], row["operation"]) for row in rows[:3]] == [
            ("backup", "update"), ("store", "update"), ("store", "update"),
        ]  # fmt: skip
        assert {row["who"] for row in rows[:3]} == {"RootManageSharedAccessKey"}
        chosen = (await client.data("/audit?operation=update&who=root&path=2"))["rows"]
        assert [row["path"] for row in chosen] == ["2/heal", "2/stall"]
        assert (await client.data("/audit?who=nobody"))["rows"] == []
        assert "Nothing like this" in (await client.get("/audit?who=nobody")).words
        page = await client.get("/audit")
        assert "2/stall" in page.words
        assert "the server" in page.words
        assert 'path="></a>' not in page.text
        state = (await client.data("/stores"))["backup"]["state"]
        assert state in {"running", "done"}


@in_loop
async def test_a_server_in_memory_says_that_it_keeps_no_log_and_makes_no_backup() -> None:
    async with console(PARTITIONED) as client:
        assert "There is no audit log to read" in (await client.get("/audit")).words
        assert "nothing to back up" in (await client.get("/stores")).words
        assert (await client.post("/stores/backup")).status == 400


@in_loop
async def test_keys_without_manage_see_neither_stores_nor_log_and_azure_has_neither() -> None:
    for right in ("send", "listen"):
        async with console(right=right) as client:
            for path in ("/stores", "/stores/1", "/stores/fragments/orders", "/stores/events", "/audit"):
                assert (await client.get(path)).status == 403, path
            for path in ("/stores/1/fail", "/stores/1/heal", "/stores/backup", "/stores/moves/orders"):
                assert (await client.post(path, {"confirm": "store 1"})).status == 403, path
    async with console(options={"http": HttpOptions(operations=False)}) as client:
        for path in ("/stores", "/audit"):
            assert (await client.get(path)).status == 404, path


@in_loop
async def test_the_page_of_an_entity_hears_how_far_a_move_is() -> None:
    async with console(PARTITIONED) as client:
        first = (await client.data("/stores/fragments/orders"))["fragments"][0]
        target = 1 if first["store"] == 2 else 2
        await client.post("/stores/moves/orders", {"fragment": str(first["fragment"]), "to": str(target)})
        async with client.session.get(f"{client.url}/stores/moves/events/orders") as stream:
            await stream.content.readuntil(b"\n\n")
            text = await stream.content.readuntil(b"\n\n")
            assert b"#stores-moves" in text
            assert f"from store {first['store']} to {target}".encode() in text


@in_loop
async def test_an_open_page_tells_that_the_broker_is_away_and_goes_on_after_its_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "_CALM_S", 0.02)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(broker(PARTITIONED))
        client = await stack.enter_async_context(console_of(first))
        stream = await stack.enter_async_context(client.session.get(f"{client.url}/stores/events"))
        await stream.content.readuntil(b"\n\n")
        await first.stop()
        assert b"does not answer" in await heard(stream, "#stores-failure")
        await stack.enter_async_context(broker(PARTITIONED, port=first.port("amqp")))
        assert b'"html":""' in await heard(stream, "#stores-failure")


@in_loop
async def test_the_first_look_of_an_open_page_is_sent_whole() -> None:
    """A store may have failed since the page was made."""
    async with console(PARTITIONED) as client, client.session.get(f"{client.url}/stores/events") as stream:
        for target in ("states", "heat", "drills", "moves", "backup"):
            await heard(stream, f"#stores-{target}")


async def heard(stream: ClientResponse, target: str) -> bytes:
    """The next event for a part of the page."""
    while f'"{target}"'.encode() not in (event := await stream.content.readuntil(b"\n\n")):
        assert event, "the stream has ended"
    return event
