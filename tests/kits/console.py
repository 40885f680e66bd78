"""A broker and a console in the test's own process, and a client that has signed in with chosen rights."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html import unescape
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientSession, CookieJar, FormData
from aiohttp.test_utils import TestServer
from jinja2 import FileSystemBytecodeCache

from duobus.clock import Clock, Entropy
from duobus.console.application import CONSOLE, Console, build_app
from duobus.console.screens import SCREENS
from duobus.console.settings import ConsoleSettings
from duobus.console.visits import Route, Screen
from duobus.model.descriptions import AccessRule, QueueDescription, Right, TopicDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY, NamespaceConfig, Settings, load_settings
from kits.gateway import RULE
from kits.programs import CACHE

#: Compiled templates, for all processes and for the next run; what has changed since is compiled anew.
TEMPLATES = CACHE / "templates"
SENDER = AccessRule(name="sender", primary_key="put" * 9, secondary_key="set" * 9, rights=int(Right.SEND))
LISTENER = AccessRule(name="listener", primary_key="see" * 9, secondary_key="saw" * 9, rights=int(Right.LISTEN))
#: Rules by the right that a test wants.
RULES = {
    "manage": (RULE, EMULATOR_KEY),
    "send": ("sender", SENDER.primary_key),
    "listen": ("listener", LISTENER.primary_key),
}


class Page(NamedTuple):
    """An answer of the console."""

    status: int
    text: str
    headers: Any

    def __repr__(self) -> str:
        """Short, for the failures of tests."""
        return f"<Page {self.status}: {self.words[:600]}>"

    @property
    def json(self) -> Any:
        """The answer of a request for JSON."""
        return json.loads(self.text)

    @property
    def words(self) -> str:
        """What a person reads on the page: without tags and styles, blanks put together."""
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", self.text)).split())


class ConsoleClient:
    """A person with a browser that keeps cookies and runs no scripts.

    Attributes:
        url: Of the console, without a slash at the end.
        server: The broker; its ``unit`` makes entities at once.
        console: The console itself.
        session: Its client of HTTP, with the cookies.
    """

    def __init__(self, session: ClientSession, url: str, server: Server, console: Console) -> None:
        self.url = url
        self.server = server
        self.console = console
        self.session = session

    @property
    def place(self) -> str:
        """How the sign-in page calls the namespace."""
        return f"localhost:{self.server.port('amqp')}"

    @property
    def csrf(self) -> str:
        """The token of the only session."""
        (session,) = self.console.sessions.all()
        return session.csrf

    async def ask(self, method: str, path: str, **options: Any) -> Page:
        """Send one request as it is; redirects are not followed."""
        async with self.session.request(method, self.url + path, allow_redirects=False, **options) as response:
            return Page(response.status, (await response.read()).decode(errors="replace"), response.headers)

    async def get(self, path: str, **headers: str) -> Page:
        """A page."""
        return await self.ask("GET", path, headers={"Accept": "text/html"} | headers)

    async def data(self, path: str) -> Any:
        """What a program gets that asks for JSON."""
        page = await self.ask("GET", path, headers={"Accept": "application/json"})
        assert page.status == 200, page
        return page.json

    async def part(self, path: str) -> Page:
        """What htmx gets."""
        return await self.get(path, **{"HX-Request": "true"})

    async def post(self, path: str, fields: dict[str, Any] | FormData | None = None, **headers: str) -> Page:
        """Send a form of the console, with its token."""
        own = {"X-CSRF-Token": self.csrf, "Origin": self.url, "Accept": "text/html"}
        return await self.ask("POST", path, data=fields or {}, headers=own | headers)

    async def form_token(self) -> str:
        """The token of the sign-in form."""
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.get("/sign-in")).text)
        assert found is not None
        return found[1]

    async def sign_in(self, right: str = "manage") -> Page:
        """Sign in with the rule that has this right."""
        name, key = RULES[right]
        return await self.sign_in_with(kind="key", namespace=self.place, rule=name, key=key)

    async def sign_in_with_code(self, place: str) -> Page:
        """Sign in with the access code of the console."""
        name = place.partition("sb://")[2].partition(";")[0].rstrip("/")
        return await self.sign_in_with(kind="code", namespace=name, code=self.console.access_code)

    async def sign_in_with(self, **fields: str) -> Page:
        """Sign in with these fields of the form."""
        return await self.ask("POST", "/sign-in", data={"csrf": await self.form_token()} | fields)


@asynccontextmanager
async def broker(
    *queues: QueueDescription, topics: Sequence[TopicDescription] = (), **options: Any
) -> AsyncIterator[Server]:
    """A broker with everything in memory, and with rules for each right."""
    chosen: dict[str, Any] = {"data": None, "ephemeral": True, "emulator": True, "stores": 2}
    chosen |= {"port": 0, "tls_port": 0, "http_port": 0, "allow_drills": True} | options
    settings = load_settings(Settings(**chosen))
    namespace = NamespaceConfig(name="ns", queues=queues, topics=tuple(topics), rules=(SENDER, LISTENER))
    server = Server(msgspec.structs.replace(settings, namespaces=(namespace,)), Clock(), Entropy())
    await server.start()
    try:
        yield server
    finally:
        for peer in list(server.amqp.peers):
            # Clients of tests do not wait for the server's close, so it need not wait for theirs.
            peer.abort()
        await server.stop()


def connection_string(server: Server, right: str = "manage") -> str:
    """The connection string of the rule that has this right."""
    name, key = RULES[right]
    return (
        f"Endpoint=sb://localhost:{server.port('amqp')};SharedAccessKeyName={name};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true;"
    )


@asynccontextmanager
async def console(
    *queues: QueueDescription,
    right: str | None = "manage",
    topics: Sequence[TopicDescription] = (),
    clock: Clock | None = None,
    screens: tuple[Screen, ...] = SCREENS,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[ConsoleClient]:
    """A broker, a console for it, and a client that has signed in.

    Args:
        queues: In the namespace.
        right: ``manage``, ``listen`` or ``send``: of the key that signs in; None for somebody who has not signed in.
        topics: In the namespace.
        clock: Of the console.
        screens: Of the console.
        options: Of the broker.
        settings: Of the console.
    """
    async with (
        broker(*queues, topics=topics, **(options or {})) as server,
        console_of(server, right=right, clock=clock, screens=screens, **settings) as client,
    ):
        yield client


@asynccontextmanager
async def console_of(
    server: Server,
    *,
    right: str | None = "manage",
    clock: Clock | None = None,
    screens: tuple[Screen, ...] = SCREENS,
    **settings: Any,
) -> AsyncIterator[ConsoleClient]:
    """A console for a broker that is there, and a client that has signed in."""
    async with console_at(
        connection_string(server), server, right=right, clock=clock, screens=screens, **settings
    ) as client:
        yield client


@asynccontextmanager
async def console_at(
    place: str,
    server: Any = None,
    *,
    right: str | None = "manage",
    clock: Clock | None = None,
    screens: tuple[Screen, ...] = SCREENS,
    **settings: Any,
) -> AsyncIterator[ConsoleClient]:
    """A console for the namespace of a connection string, and a client that has signed in.

    Without a broker in the test's own process, the client signs in with the access code.
    """
    chosen = ConsoleSettings(**{"port": 0, "connection_string": place} | settings)
    application = build_app(chosen, clock=clock, screens=screens)
    # Each test has a console of its own. To compile its templates would take more time than all the rest of the test.
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    application[CONSOLE]._pages._environment.bytecode_cache = FileSystemBytecodeCache(str(TEMPLATES))
    async with TestServer(application) as served, ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
        url = str(served.make_url("/")).rstrip("/")
        client = ConsoleClient(session, url, server, application[CONSOLE])
        if right is not None:
            page = await (client.sign_in_with_code(place) if server is None else client.sign_in(right))
            assert page.status == 303, page
        yield client


@asynccontextmanager
async def stream_of(client: ConsoleClient, path: str) -> AsyncIterator[AsyncIterator[Any]]:
    """The data of the events of a live page."""

    async def events(response: Any) -> AsyncIterator[Any]:
        async for line in response.content:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    async with client.session.get(client.url + path, headers={"Accept": "text/event-stream"}) as response:
        assert response.status == 200, await response.text()
        yield events(response)


def routes(client: ConsoleClient, method: str) -> list[Route]:
    """Every route of every screen with this method."""
    return [route for screen in client.console.screens for route in screen.routes if route.method == method]


def address_of(route: Route, value: str = "orders") -> str:
    """An address that a route answers: the parts that vary are this value, or what else the route takes."""

    def part(found: re.Match[str]) -> str:
        pattern = found[2] or "[^/]+"
        return next(one for one in (value, "1", *pattern.split("|"), "0" * 32) if re.fullmatch(pattern, one))

    return re.sub(r"{(\w+)(?::([^{}]*(?:{[^{}]*}[^{}]*)*))?}", part, route.path)


async def page_addresses(client: ConsoleClient, *values: str) -> list[str]:
    """An address of every page of every screen, for each value that a route may have in it; live streams are none."""
    found = ["/missing"]
    for route in routes(client, "GET"):
        for value in values if "{" in route.path else ("",):
            address = address_of(route, value)
            async with client.session.get(client.url + address, headers={"Accept": "text/html"}) as response:
                if response.content_type == "text/html":
                    found.append(address)
    return list(dict.fromkeys(found))
