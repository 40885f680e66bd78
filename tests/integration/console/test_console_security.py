"""What other pages, other names and other people cannot do with the console."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

import pytest
from aiohttp import FormData, web

from duobus.console.events import Event, stream_events
from duobus.console.security import known_hosts
from duobus.console.settings import ConsoleSettings
from duobus.console.visits import Redirect, Screen, View, Visit
from duobus.model.descriptions import QueueDescription
from duobus.testing.broker import MovableClock
from kits.console import RULES, ConsoleClient, address_of, broker, console, console_of, routes
from kits.gateway import in_loop

QUEUE = QueueDescription(name="orders")
LISTED = {"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cache-Control"}


def trial(called: list[str]) -> Screen:
    """A screen with a route for each kind of use, which notes that it was reached."""
    screen = Screen("trial", label="Trial")

    async def answer(visit: Visit) -> View:
        called.append(visit.request.path)
        return View("failure.html", "Trial", {"failure": {"text": "reached", "tracking_id": None}})

    async def leave(visit: Visit) -> Redirect:
        called.append(visit.request.path)
        visit.confirmed("orders")
        return Redirect(visit.form.get("to", "/"), notice="Gone.")

    for right in ("send", "listen", "manage"):
        screen.get(f"/trial/{right}", right=right)(answer)
        screen.post(f"/trial/{right}", right=right)(answer)
    screen.get("/trial/duobus", only_duobus=True)(answer)
    screen.post("/trial/gone", destructive=True)(leave)
    return screen


# -- changes that another page asks for -------------------------------------------------------------------------------


@in_loop
async def test_no_change_happens_without_the_token_of_the_session() -> None:
    called: list[str] = []
    async with console(QUEUE, screens=(trial(called),)) as client:
        for route in routes(client, "POST"):
            for token in ("", "x", client.console.access_code):
                page = await client.post(address_of(route), {"confirm": "orders"}, **{"X-CSRF-Token": token})
                assert page.status == HTTPStatus.FORBIDDEN, route.path
        assert called == []


@in_loop
async def test_every_route_of_every_screen_that_changes_something_wants_the_token() -> None:
    async with console(QUEUE) as client:
        found = routes(client, "POST")
        assert found
        for route in found:
            page = await client.ask("POST", address_of(route), data={"confirm": "orders"})
            assert page.status == HTTPStatus.FORBIDDEN, route.path


@in_loop
async def test_the_token_of_another_session_is_none() -> None:
    async with broker(QUEUE) as server, console_of(server) as one, console_of(server) as other:
        page = await one.post("/namespaces/open", {}, **{"X-CSRF-Token": other.csrf})
        assert page.status == HTTPStatus.FORBIDDEN


@in_loop
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_of_another_page_is_refused_even_with_the_token(headers: dict[str, str]) -> None:
    called: list[str] = []
    async with console(QUEUE, screens=(trial(called),)) as client:
        assert (await client.post("/trial/manage", **headers)).status == HTTPStatus.FORBIDDEN
        assert (await client.post("/sign-out", **headers)).status == HTTPStatus.FORBIDDEN
        assert called == []
        assert len(client.console.sessions) == 1


@in_loop
async def test_signing_in_wants_the_token_of_the_form_that_this_browser_got() -> None:
    async with console(QUEUE, right=None) as client:
        name, key = RULES["manage"]
        fields = {"kind": "key", "namespace": client.place, "rule": name, "key": key}
        assert (await client.ask("POST", "/sign-in", data=fields)).status == HTTPStatus.FORBIDDEN
        await client.form_token()
        assert (await client.ask("POST", "/sign-in", data=fields | {"csrf": "x"})).status == HTTPStatus.FORBIDDEN
        assert len(client.console.sessions) == 0


# -- headers ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_no_answer_can_be_framed_sniffed_or_kept() -> None:
    async with console(QUEUE) as client:
        paths = ["/sign-in", "/missing", "/static/console.js", "/static/missing", "/healthz"]
        paths += [address_of(route) for route in routes(client, "GET")]
        for path in paths:
            async with asyncio.timeout(60):
                page = await first_of(client, path)
            assert set(page) >= LISTED, path
            assert page["X-Frame-Options"] == "DENY"
            assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
            assert page["Cache-Control"] == ("no-cache" if path.startswith("/static/") else "no-store")
            assert "Server" not in page


async def first_of(client: ConsoleClient, path: str) -> Any:
    """The headers of an answer whose body may have no end."""
    async with client.session.get(client.url + path, allow_redirects=False) as response:
        return dict(response.headers)


@in_loop
async def test_a_file_is_kept_by_browsers_as_long_as_its_contents_are_the_same() -> None:
    async with console(QUEUE, right=None) as client:
        marks = dict(re.findall(r'"/static/([\w./]+)\?v=([0-9a-f]{16})"', (await client.get("/sign-in")).text))
        assert {"console.css", "console.js", "icon.svg", "vendor/htmx.min.js"} <= set(marks)
        for name, mark in marks.items():
            kept = await client.get(f"/static/{name}?v={mark}")
            assert hashlib.sha256(kept.text.encode()).hexdigest().startswith(mark)
            assert "immutable" in kept.headers["Cache-Control"]
            assert (await client.get(f"/static/{name}")).headers["Cache-Control"] == "no-cache"
        assert (await client.get("/static/missing.js?v=1")).headers["Cache-Control"] == "no-cache"


@in_loop
async def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    async with console(QUEUE, right=None) as client:
        policy = (await client.get("/sign-in")).headers["Content-Security-Policy"]
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules["default-src"] == "'none'"
        assert {rules[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
        assert "unsafe" not in policy
        assert "http" not in policy


@in_loop
async def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    async with console(QUEUE) as client:
        for route in routes(client, "GET"):
            page = await first_page(client, address_of(route))
            assert not re.search(r"<script(?![^>]*(\bsrc=|application/json))", page), route.path
            assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on", page), route.path


async def first_page(client: ConsoleClient, path: str) -> str:
    async with client.session.get(client.url + path, headers={"Accept": "text/html"}) as response:
        return await response.text() if response.content_type == "text/html" else ""


# -- where a browser is sent ------------------------------------------------------------------------------------------

ELSEWHERE = (
    "//evil.example",
    "https://evil.example/",
    "/\\evil.example",
    "\\\\evil.example",
    "javascript:alert(1)",
    "/%0d%0aSet-Cookie:%20a=b",
    "/\r\nSet-Cookie: a=b",
    "/\t/evil.example",
    "evil.example",
    "",
)


@in_loop
async def test_nobody_is_sent_to_another_site_after_signing_in() -> None:
    async with console(QUEUE, right=None) as client:
        name, key = RULES["manage"]
        for place in ELSEWHERE:
            page = await client.sign_in_with(kind="key", namespace=client.place, rule=name, key=key, next=place)
            assert page.status == HTTPStatus.SEE_OTHER
            assert is_here(page.headers["Location"]), place
            assert "a=b" not in page.headers.getall("Set-Cookie", []), place
            again = await client.ask("GET", "/sign-in", params={"next": place})
            assert is_here(again.headers["Location"]), place
            await client.post("/sign-out")


@in_loop
async def test_nobody_is_sent_to_another_site_after_a_change() -> None:
    async with console(QUEUE, screens=(trial([]),)) as client:
        for place in ELSEWHERE:
            page = await client.post("/trial/gone", {"confirm": "orders", "to": place})
            assert page.status == HTTPStatus.SEE_OTHER
            assert is_here(page.headers["Location"]), place


@in_loop
async def test_a_page_of_htmx_elsewhere_does_not_become_the_way_back() -> None:
    async with console(QUEUE, right=None) as client:
        page = await client.get("/", **{"HX-Request": "true", "HX-Current-URL": "http://evil.example//evil.example/x"})
        assert is_here(page.headers["HX-Redirect"])


def is_here(url: str) -> bool:
    return re.fullmatch(r"/(?![/\\])[!-~]*", url) is not None and "evil.example//" not in url


# -- files ------------------------------------------------------------------------------------------------------------


@in_loop
async def test_no_file_but_the_console_s_own_is_sent() -> None:
    async with console(QUEUE, right=None) as client:
        for path in (
            "/static/../application.py",
            "/static/%2e%2e/application.py",
            "/static/..%2fapplication.py",
            "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
            "/static//etc/passwd",
            "/static/vendor/../../settings.py",
            "/static/..\\application.py",
            "/static/console.css%00.py",
            "/static/",
            "/static/vendor",
        ):
            # As it is: a client would tidy the path up.
            reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
            assert answer.split()[1] in {"400", "403", "404"}, path
            assert "root:" not in answer
            assert "import" not in answer


# -- sessions ---------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_session_name_that_somebody_else_put_into_the_browser_is_never_used() -> None:
    async with console(QUEUE, right=None) as client:
        name = next(iter((await client.sign_in()).headers.getall("Set-Cookie"))).split("=")[0]
        await client.post("/sign-out")
        planted = {"Cookie": f"{name}=chosen-by-somebody-else"}
        assert (await client.ask("GET", "/", headers=planted)).status == HTTPStatus.SEE_OTHER
        await client.sign_in()
        first = client.console.sessions.all()[0].id
        await client.post("/sign-out")
        await client.sign_in()
        second = client.console.sessions.all()[0].id
        assert "chosen" not in first
        assert first != second
        old = {"Cookie": f"{name}={first}"}
        client.session.cookie_jar.clear()
        assert (await client.ask("GET", "/", headers=old)).status == HTTPStatus.SEE_OTHER


@in_loop
async def test_signing_in_again_ends_the_session_before() -> None:
    async with console(QUEUE) as client:
        first = client.console.sessions.all()[0]
        page = await client.post("/namespaces/open", {"name": client.place})
        assert page.status == HTTPStatus.FORBIDDEN
        await client.post("/sign-out")
        await client.sign_in_with(kind="code", namespace=client.place, code=client.console.access_code)
        before = client.console.sessions.all()[0]
        assert (await client.post("/namespaces/open", {"name": client.place})).status == HTTPStatus.SEE_OTHER
        (after,) = client.console.sessions.all()
        assert first.ended.is_set()
        assert before.ended.is_set()
        assert len({first.id, before.id, after.id}) == 3
        assert len({first.csrf, before.csrf, after.csrf}) == 3


@in_loop
async def test_cookies_are_kept_from_scripts_and_from_other_sites() -> None:
    async with broker(QUEUE) as server:
        for public, is_secure in ((None, False), ("https://console.example.com", True)):
            async with console_of(server, right=None, public_url=public) as client:
                cookies = (await client.get("/sign-in")).headers.getall("Set-Cookie")
                if not is_secure:
                    cookies += (await client.sign_in()).headers.getall("Set-Cookie")[:1]
                for cookie in cookies:
                    assert "HttpOnly" in cookie
                    assert "SameSite=Strict" in cookie
                    assert ("Secure" in cookie) == is_secure


@in_loop
async def test_a_session_ends_when_nobody_uses_it_and_after_a_day_s_work_in_any_case() -> None:
    clock = MovableClock()
    async with console(QUEUE, clock=clock, idle_s=600, absolute_s=3_600) as client:
        (session,) = client.console.sessions.all()
        for _ in range(6):
            assert (await client.get("/namespaces")).status == HTTPStatus.OK
            clock.moved_ms += 599_000
        assert (await client.get("/namespaces")).status == HTTPStatus.OK
        clock.moved_ms += 6_000
        page = await client.get("/namespaces?x=1")
        assert (page.status, page.headers["Location"]) == (HTTPStatus.SEE_OTHER, "/sign-in?next=%2Fnamespaces%3Fx%3D1")
        assert session.ended.is_set()
        await client.sign_in()
        clock.moved_ms += 600_000
        # Without a request, too: its connections to the namespace would stay open.
        await client.console.sessions.sweep()
        assert len(client.console.sessions) == 0


@in_loop
@pytest.mark.parametrize("headers", [{"X-Unattended": "true"}, {"Accept": "text/event-stream"}])
async def test_what_a_page_asks_for_by_itself_does_not_keep_a_session_alive(headers: dict[str, str]) -> None:
    clock = MovableClock()
    async with console(QUEUE, clock=clock, idle_s=600) as client:
        for _ in range(3):
            clock.moved_ms += 199_000
            assert (await client.ask("GET", "/namespaces", headers=headers)).status == HTTPStatus.OK
        clock.moved_ms += 4_000
        page = await client.ask("GET", "/namespaces", headers=headers)
        # The page behind a stream tells the person; the sign-in page would be no stream.
        is_stream = "Accept" in headers
        assert page.status == (HTTPStatus.UNAUTHORIZED if is_stream else HTTPStatus.SEE_OTHER)


@in_loop
async def test_one_session_more_than_there_may_be_ends_the_one_that_rested_longest() -> None:
    clock = MovableClock()
    async with broker(QUEUE) as server, console_of(server, clock=clock, sessions_max=2) as client:
        (first,) = client.console.sessions.all()
        for _ in range(2):
            clock.moved_ms += 1_000
            client.session.cookie_jar.clear()
            await client.sign_in()
        assert first.ended.is_set()
        assert len(client.console.sessions) == 2


@in_loop
async def test_a_live_page_ends_with_its_session() -> None:
    screen = Screen("live", label="Live")

    async def source() -> AsyncIterator[Event]:
        yield Event("row", {"number": 1})
        await asyncio.Event().wait()

    @screen.get("/live")
    async def live(visit: Visit) -> web.StreamResponse:
        return await stream_events(visit, source())

    async with console(QUEUE, screens=(screen,)) as client, client.session.get(client.url + "/live") as response:
        assert response.headers["X-Frame-Options"] == "DENY"
        assert await response.content.readuntil(b"\n\n") == b"retry: 3000\n\n"
        assert await response.content.readuntil(b"\n\n") == b'event: row\ndata: {"number":1}\n\n'
        await client.post("/sign-out")
        assert b"event: ended" in await response.content.read()


# -- rights -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_what_a_key_may_not_do_is_refused_before_anything_happens() -> None:
    for right in ("send", "listen"):
        called: list[str] = []
        async with console(QUEUE, right=right, screens=(trial(called),)) as client:
            for asked in ("send", "listen", "manage"):
                expected = HTTPStatus.OK if asked == right else HTTPStatus.FORBIDDEN
                assert (await client.get(f"/trial/{asked}")).status == expected
                assert (await client.post(f"/trial/{asked}")).status == expected
            assert set(called) == {f"/trial/{right}"}


@in_loop
async def test_a_listen_key_is_refused_by_every_route_that_wants_more() -> None:
    async with console(QUEUE, right="listen") as client:
        for method in ("GET", "POST"):
            for route in routes(client, method):
                if route.right in ("send", "manage"):
                    page = await (client.post if method == "POST" else client.get)(address_of(route))
                    assert page.status == HTTPStatus.FORBIDDEN, route.path
                    assert (route.right or "").title() in page.words


@in_loop
async def test_what_only_duobus_has_is_a_page_that_says_so_elsewhere() -> None:
    called: list[str] = []
    async with console(QUEUE, screens=(trial(called),)) as client:
        (session,) = client.console.sessions.all()
        assert (await client.get("/trial/duobus")).status == HTTPStatus.OK
        session.namespace.is_duobus = False
        page = await client.get("/trial/duobus")
        assert page.status == HTTPStatus.NOT_FOUND
        assert "Only a duobus has this" in page.words


@in_loop
async def test_nothing_is_destroyed_before_its_name_is_typed() -> None:
    called: list[str] = []
    async with console(QUEUE, screens=(trial(called),)) as client:
        assert (await client.post("/trial/gone")).status == HTTPStatus.UNPROCESSABLE_ENTITY
        assert called == []
        page = await client.post("/trial/gone", {"confirm": "Orders"})
        assert page.status == HTTPStatus.UNPROCESSABLE_ENTITY
        assert "Nothing was changed" in page.words
        assert (await client.post("/trial/gone", {"confirm": "orders"})).status == HTTPStatus.SEE_OTHER
        assert "Gone." in (await client.get("/namespaces")).words
        assert "Gone." not in (await client.get("/namespaces")).words


# -- names and sizes --------------------------------------------------------------------------------------------------


@in_loop
async def test_a_console_answers_to_its_own_names_only() -> None:
    async with console(QUEUE, public_url="https://console.example.com", right=None) as client:
        port = client.url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "localhost@evil.example"):
            page = await client.get("/sign-in", Host=host)
            assert page.status in {HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.BAD_REQUEST}, host
            assert "form" not in page.text
        for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", f"[::1]:{port}", "console.example.com"):
            assert (await client.get("/sign-in", Host=host)).status == HTTPStatus.OK, host


def test_a_console_that_listens_everywhere_still_has_its_own_names_only() -> None:
    assert known_hosts(ConsoleSettings(host="0.0.0.0")) == {"localhost", "127.0.0.1", "::1"}
    assert "10.1.2.3" in known_hosts(ConsoleSettings(host="10.1.2.3"))


@in_loop
async def test_a_console_that_others_reach_opens_only_the_namespaces_of_its_operator() -> None:
    async with console(QUEUE, right=None, any_namespace=False) as client:
        name, key = RULES["manage"]
        text = f"Endpoint=sb://169.254.169.254;SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"
        page = await client.sign_in_with(kind="text", connection_string=text)
        assert page.status == HTTPStatus.FORBIDDEN
        assert "only the namespaces that its operator has named" in page.words
        known = text.replace("169.254.169.254", client.place)
        assert (await client.sign_in_with(kind="text", connection_string=known)).status == HTTPStatus.SEE_OTHER
    assert not ConsoleSettings(host="0.0.0.0").takes_any_namespace
    assert not ConsoleSettings(public_url="https://console.example.com").takes_any_namespace
    assert ConsoleSettings().takes_any_namespace


@in_loop
async def test_a_request_that_is_too_large_is_refused_with_a_page() -> None:
    called: list[str] = []
    async with console(QUEUE, screens=(trial(called),), request_bytes_max=10_000) as client:
        form = FormData({"csrf": client.csrf})
        form.add_field("text", "x" * 20_000)
        page = await client.post("/trial/manage", form)
        assert page.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        assert "larger than the console reads" in page.words
        assert called == []


# -- secrets ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_no_page_holds_a_key_the_access_code_or_the_name_of_the_session() -> None:
    async with console(QUEUE, right=None) as client:
        await client.sign_in_with(kind="code", namespace=client.place, code=client.console.access_code)
        (session,) = client.console.sessions.all()
        secrets = [RULES["manage"][1], client.console.access_code, session.id]
        for route in routes(client, "GET"):
            page = await first_page(client, address_of(route))
            assert [one for one in secrets if one in page] == [], route.path
            if route.path == "/namespaces":
                assert client.place in page


@in_loop
async def test_an_error_of_the_console_itself_tells_its_number_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    screen = Screen("broken")

    @screen.get("/broken")
    async def fail(visit: Visit) -> View:
        raise RuntimeError("secret detail")

    async with console(QUEUE, screens=(screen,)) as client:
        page = await client.get("/broken?look=for")
        assert page.status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert "secret detail" not in page.text
        number = re.search(r"Tracking id ([0-9a-f]{16})", page.words)
        assert number is not None
        assert number[1] in caplog.text
        assert "look=for" not in caplog.text
