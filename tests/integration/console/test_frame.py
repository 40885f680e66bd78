"""The frame of the console: signing in, rights, pages and data, and what protects both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from duobus.console.events import QUEUED_MAX, Event, stream_events
from duobus.console.namespace.failures import NamespaceError
from duobus.console.visits import Redirect, Screen, View, Visit
from duobus.model.descriptions import QueueDescription
from duobus.model.durations import parse_duration
from kits.console import console, page_addresses
from kits.gateway import in_loop


@in_loop
async def test_somebody_who_has_not_signed_in_is_sent_to_the_sign_in_page() -> None:
    async with console(right=None) as client:
        page = await client.get("/")
        assert (page.status, page.headers["Location"]) == (303, "/sign-in")
        asked = await client.ask("GET", "/", headers={"Accept": "application/json"})
        assert (asked.status, asked.json["error"]["text"]) == (401, "Sign in first.")


@in_loop
async def test_the_overview_counts_what_is_in_the_namespace() -> None:
    async with console(QueueDescription(name="orders"), QueueDescription(name="payments")) as client:
        page = await client.get("/")
        assert page.status == 200
        assert "Queues 2" in page.words
        assert (await client.data("/"))["queues"] == 2


@in_loop
async def test_htmx_gets_the_inside_of_a_page_only() -> None:
    async with console(QueueDescription(name="orders")) as client:
        part = await client.part("/")
        assert "<title>Overview" in part.text
        assert "<html" not in part.text
        assert 'id="content"' in part.text


@in_loop
async def test_each_key_has_the_rights_that_the_namespace_gives_it() -> None:
    for right in ("manage", "listen", "send"):
        async with console(right=right) as client:
            (session,) = client.console.sessions.all()
            rights = session.namespace.rights
            is_manager = right == "manage"
            assert rights.manage == is_manager
            assert rights.listen == (is_manager or right == "listen")
            assert rights.send == (is_manager or right == "send")
            assert session.namespace.is_duobus


@in_loop
async def test_a_wrong_key_is_refused_in_the_words_of_the_broker_and_does_not_come_back_in_the_page() -> None:
    async with console(right=None) as client:
        page = await client.sign_in_with(kind="key", namespace=client.place, rule="sender", key="wrong-key-1234")
        assert page.status == 401
        assert "Tracking id" in page.words
        assert "wrong-key-1234" not in page.text
        assert len(client.console.sessions) == 0


@in_loop
async def test_the_access_code_opens_the_namespace_of_the_command_line() -> None:
    async with console(right=None) as client:
        wrong = await client.sign_in_with(kind="code", namespace=client.place, code="guess")
        assert wrong.status == 403
        right = await client.sign_in_with(kind="code", namespace=client.place, code=client.console.access_code)
        assert right.status == 303
        assert (await client.get("/")).status == 200


@in_loop
async def test_every_answer_forbids_foreign_scripts_and_frames() -> None:
    async with console() as client:
        for path in ("/", "/sign-in", "/missing", "/static/console.css"):
            page = await client.get(path)
            assert "script-src 'self'" in page.headers["Content-Security-Policy"]
            assert "unsafe" not in page.headers["Content-Security-Policy"]
            assert page.headers["X-Frame-Options"] == "DENY"
            assert page.headers["X-Content-Type-Options"] == "nosniff"


@in_loop
async def test_signing_out_needs_the_token_and_ends_the_session() -> None:
    async with console() as client:
        refused = await client.ask("POST", "/sign-out")
        assert refused.status == 403
        assert (await client.post("/sign-out")).status == 303
        assert len(client.console.sessions) == 0
        assert (await client.get("/")).status == 303


@in_loop
async def test_every_page_is_data_for_a_program() -> None:
    async with console(QueueDescription(name="orders")) as client:
        for address in await page_addresses(client, "orders"):
            asked = await client.ask("GET", address, headers={"Accept": "application/json"})
            page = await client.get(address)
            assert asked.status == page.status, address
            assert asked.headers["Content-Type"] == "application/json; charset=utf-8"
            assert isinstance(asked.json, dict)
            if page.status >= 400:
                assert set(asked.json["error"]) == {"status", "text", "trackingId"}
                assert asked.json["error"]["text"] in page.words


@in_loop
async def test_a_refusal_of_the_broker_has_its_words_and_its_tracking_id_on_the_page_in_a_part_and_as_data() -> None:
    screen = Screen("trial")

    @screen.get("/trial")
    async def show(visit: Visit) -> View:
        async with visit.namespace.telling("queue missing"):
            await visit.namespace.administration.delete_queue("missing")
        raise AssertionError

    async with console(QueueDescription(name="orders"), screens=(screen,)) as client:
        page = await client.get("/trial")
        assert page.status == 404
        number = re.search(r"Tracking id ([0-9a-zA-Z_-]{30,})", page.words)
        assert number is not None
        assert "There is no queue missing." in page.words
        part = await client.part("/trial")
        assert (part.status, "<html" in part.text, "Tracking id" in part.words) == (404, False, True)
        told = (await client.ask("GET", "/trial", headers={"Accept": "application/json"})).json["error"]
        assert re.fullmatch(r"[0-9a-zA-Z_-]{30,}", told["trackingId"])
        assert "TrackingId" not in told["text"]


@in_loop
async def test_a_door_that_does_not_answer_in_time_ends_with_a_sentence() -> None:
    screen = Screen("trial")

    @screen.get("/trial")
    async def show(visit: Visit) -> View:
        async with visit.namespace.telling("queue orders", timeout_s=0.01):
            await asyncio.Event().wait()
        raise AssertionError

    async with console(QueueDescription(name="orders"), screens=(screen,)) as client:
        page = await client.get("/trial")
        assert page.status == 504
        assert "did not answer in time about queue orders" in page.words


@in_loop
async def test_a_broker_that_is_gone_is_a_sentence_and_the_session_goes_on() -> None:
    screen = Screen("trial")

    @screen.get("/trial")
    async def show(visit: Visit) -> View:
        return View("failure.html", "Trial", {"stores": await visit.namespace.operation("GET", "/$duobus/stores")})

    async with console(QueueDescription(name="orders"), screens=(screen,)) as client:
        await client.server.stop()
        page = await client.get("/trial")
        assert page.status == 502
        assert "does not answer" in page.words
        assert (await client.get("/namespaces")).status == 200


@in_loop
async def test_a_change_by_htmx_and_by_a_program_tells_where_to_go() -> None:
    screen = Screen("trial")

    @screen.post("/trial")
    async def change(visit: Visit) -> Redirect:
        return Redirect("/namespaces", notice="Changed.")

    async with console(screens=(screen,)) as client:
        by_htmx = await client.post("/trial", **{"HX-Request": "true"})
        assert (by_htmx.status, by_htmx.headers["HX-Redirect"]) == (200, "/namespaces")
        assert "Changed." in (await client.get("/namespaces")).words
        by_program = await client.post("/trial", Accept="application/json")
        assert by_program.json == {"location": "/namespaces", "notice": "Changed."}
        assert "Changed." not in (await client.get("/namespaces")).words


@in_loop
async def test_the_navigation_has_only_what_the_key_can_use() -> None:
    wanted, shared = Screen("wanted", label="Wanted"), Screen("shared", label="Common")

    async def show(visit: Visit) -> View:
        return View("failure.html", "Shown", {"failure": {"text": "shown", "tracking_id": None}})

    wanted.get("/wanted", right="manage")(show)
    shared.get("/shared", right="listen", only_duobus=True)(show)
    for right, expected in (("manage", {"Wanted", "Common"}), ("listen", {"Common"}), ("send", set())):
        async with console(right=right, screens=(wanted, shared)) as client:
            words = (await client.get("/namespaces")).words
            assert {name for name in ("Wanted", "Common") if name in words} == expected
    async with console(screens=(wanted, shared)) as client:
        client.console.sessions.all()[0].namespace.is_duobus = False
        words = (await client.get("/namespaces")).words
        assert ("Wanted" in words, "Common" in words) == (True, False)


@in_loop
async def test_what_a_person_did_goes_into_the_audit_log_or_into_the_log_of_the_console() -> None:
    screen = Screen("trial")
    sent: list[Any] = []

    @screen.post("/trial")
    async def change(visit: Visit) -> Redirect:
        async def operation(*given: Any, **named: Any) -> Any:
            sent.append((given, named))
            raise NamespaceError(503, "Too many lines.")

        visit.namespace.operation = operation  # type: ignore[method-assign]
        await visit.write_down("settle", "queue", "orders", note="3 messages")
        return Redirect("/")

    for right in ("manage", "listen"):
        async with console(right=right, screens=(screen,)) as client:
            assert (await client.post("/trial")).status == 303
    line = {"operation": "settle", "kind": "queue", "path": "orders", "note": "3 messages"}
    assert sent == [(("POST", "/$duobus/audit"), {"body": line})]


@in_loop
async def test_what_no_console_can_read_is_refused_in_a_sentence() -> None:
    screen = Screen("trial")

    @screen.post("/trial")
    async def change(visit: Visit) -> Redirect:
        return Redirect("/")

    @screen.get("/duration")
    async def read(visit: Visit) -> View:
        parse_duration(visit.query["text"])
        raise AssertionError

    @screen.get("/raw")
    async def raw(visit: Visit) -> View:
        await visit.namespace.administration.delete_queue("missing")
        raise AssertionError

    async with console(screens=(screen,)) as client:
        for kind, body in (
            ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\ncut off"),
            ("multipart/form-data", b"--x"),
            ("application/x-www-form-urlencoded; charset=nonsense", b"a=b"),
            ("application/x-www-form-urlencoded; charset=utf-7", b"\xff=+AGH-\xfe"),
        ):
            headers = {"Content-Type": kind, "X-CSRF-Token": client.csrf}
            page = await client.ask("POST", "/trial", data=body, headers=headers)
            assert page.status in (303, 400), (kind, page)
        page = await client.get("/duration?text=soon")
        assert page.status == 422
        assert "soon" in page.words
        assert (await client.get("/raw")).status == 404


@in_loop
async def test_half_of_a_character_is_shown_and_told() -> None:
    screen = Screen("trial")

    @screen.get("/trial")
    async def show(visit: Visit) -> View:
        return View("failure.html", "T", {"failure": {"text": "half: \ud800", "tracking_id": None}})

    async with console(screens=(screen,)) as client:
        assert "half: ?" in (await client.get("/trial")).words
        assert (await client.data("/trial"))["failure"]["text"] == "half: \ud800"
        for path in ("/%ED%A0%80", "/%FF%FE", "/namespaces?x=%ED%A0%80"):
            assert (await client.get(path)).status in (200, 404)


@in_loop
async def test_a_page_that_reads_too_slowly_loses_the_oldest_events_and_is_told_so() -> None:
    screen = Screen("trial")
    sent = asyncio.Event()

    async def source() -> AsyncIterator[Event]:
        for number in range(QUEUED_MAX + 7):
            yield Event("row", number)
        sent.set()

    @screen.get("/trial")
    async def show(visit: Visit) -> web.StreamResponse:
        return await stream_events(visit, source())

    async with console(screens=(screen,)) as client, client.session.get(client.url + "/trial") as response:
        await sent.wait()
        text = (await response.read()).decode()
        assert 'event: dropped\ndata: {"count":7}' in text
        assert text.count("event: row") == QUEUED_MAX
        assert f"data: {QUEUED_MAX + 6}\n" in text


@in_loop
async def test_a_live_source_that_fails_tells_the_page_and_is_closed() -> None:
    screen = Screen("trial")
    closed = asyncio.Event()

    async def source() -> AsyncIterator[Event]:
        try:
            yield Event("row", 1)
            raise NamespaceError(503, "The store is away.", "abc")
        finally:
            closed.set()

    @screen.get("/trial")
    async def show(visit: Visit) -> web.StreamResponse:
        return await stream_events(visit, source())

    async with console(screens=(screen,)) as client, client.session.get(client.url + "/trial") as response:
        text = (await response.read()).decode()
        assert 'event: failed\ndata: {"status":503,"text":"The store is away.","trackingId":"abc"}' in text
        assert closed.is_set()


@in_loop
async def test_what_a_screen_shares_and_what_a_session_has_open_ends_with_the_console() -> None:
    screen = Screen("trial")
    ended: list[str] = []

    class Shared:
        async def close(self) -> None:
            ended.append("shared")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def release() -> None:
        ended.append("resource")

    @screen.get("/trial")
    async def show(visit: Visit) -> View:
        visit.shared["trial"] = Shared()
        visit.shared["plain"] = {"a": 1}
        visit.session.start(work(), "trial")
        visit.session.resources.push_async_callback(release)
        visit.session.memory["trial"] = 1
        return View("failure.html", "T", {"failure": {"text": "x", "tracking_id": None}})

    async with console(screens=(screen,)) as client:
        assert (await client.get("/trial")).status == 200
        (session,) = client.console.sessions.all()
        assert ended == []
    assert sorted(ended) == ["resource", "shared", "work"]
    assert session.memory == {}
