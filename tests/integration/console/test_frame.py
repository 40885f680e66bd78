"""The frame of the console: signing in, rights, pages and data, and what protects both."""

from __future__ import annotations

from duobus.model.descriptions import QueueDescription
from kits.console import console
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
