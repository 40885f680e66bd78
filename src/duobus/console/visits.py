"""What a screen is made of: its routes, the request that a route answers, and what the route answers with."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from aiohttp import web
from multidict import MultiDict, MultiDictProxy

from duobus.console.namespace.failures import NamespaceError
from duobus.console.sessions import Session

if TYPE_CHECKING:
    from duobus.clock import Clock
    from duobus.console.namespace.client import NamespaceClient
    from duobus.console.uploads import Upload

#: The field of a form in which a person types the name of what is about to be destroyed.
CONFIRM_FIELD: Final = "confirm"
_log = logging.getLogger("duobus.console")
_NO_HEADERS: Final[Mapping[str, str]] = {}
_NOTHING: Final[MultiDictProxy[str]] = MultiDictProxy(MultiDict())


class Refusal(Exception):
    """The console itself does not do what was asked for, and says why in a sentence.

    Attributes:
        status: The status of HTTP.
        text: The sentence.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = int(status)
        self.text = text


@runtime_checkable
class Closable(Protocol):
    """What a screen keeps for all sessions and has to end with the console."""

    async def close(self) -> None:
        """End it."""


class View(NamedTuple):
    """What a page shows.

    Attributes:
        template: The template, as ``overview/page.html``.
        title: Of the page.
        data: What the template gets under these names, and what a client with ``Accept: application/json`` gets.
        status: Of HTTP; 422 for a form that has to be corrected.
        headers: More headers of the answer.
    """

    template: str
    title: str
    data: dict[str, Any]
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = _NO_HEADERS


class Redirect(NamedTuple):
    """Where a person goes after a change.

    Attributes:
        url: A path of the console.
        notice: A sentence that the next page shows once.
        kind: ``done``, ``info``, ``warning`` or ``error``; for the look of the notice.
    """

    url: str
    notice: str = ""
    kind: str = "done"


class NamespaceOpener(Protocol):
    """Opens other namespaces beside that of a session."""

    def saved(self, session: Session) -> list[str]:
        """Names of the namespaces that the person may open by name."""

    async def open(self, session: Session, *, name: str, connection_string: str) -> NamespaceClient:
        """Open one; see ``Visit.other``."""


class Visit:
    """One request by a signed-in person.

    Attributes:
        request: The request of aiohttp.
        session: The session of the person; what a screen keeps for the person is in ``session.memory``.
        namespace: The namespace of the session.
        query: Parameters of the URL.
        form: Fields of a POST, whose CSRF token has been checked.
        files: Uploaded files by the names of their fields, on disk; gone with the request unless the screen keeps one.
        match: Parts of the path, as the route names them.
        shared: What all sessions share, by the name of the screen; empty at the start of the console.
    """

    def __init__(
        self,
        request: web.Request,
        session: Session,
        *,
        render: Callable[[str, Mapping[str, Any]], str],
        opener: NamespaceOpener,
        shared: dict[str, Any],
        form: MultiDictProxy[str] = _NOTHING,
        files: Mapping[str, Upload] | None = None,
    ) -> None:
        self.request = request
        self.session = session
        self.form = form
        self.files: Mapping[str, Upload] = files or {}
        self.query: MultiDictProxy[str] = MultiDictProxy(MultiDict(request.query))
        self.match: Mapping[str, str] = request.match_info
        self.shared = shared
        self._render = render
        self._opener = opener

    @property
    def namespace(self) -> NamespaceClient:
        """The namespace of the session."""
        return self.session.namespace

    @property
    def clock(self) -> Clock:
        """The clock of the console."""
        return self.session.namespace.clock

    @property
    def wants_fragment(self) -> bool:
        """Whether htmx asks for a part of the page, which it puts into the page that is there."""
        return is_fragment(self.request)

    @property
    def wants_json(self) -> bool:
        """Whether a program asks."""
        return is_json(self.request)

    def confirmed(self, name: str) -> None:
        """Go on only when the person has typed the name of what is about to be destroyed.

        Raises:
            Refusal: The person has not.
        """
        if self.form.get(CONFIRM_FIELD, "") != name:
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"Nothing was changed: type the name {name} to confirm this."
            )

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """A whole number of the URL, brought between two bounds; the default for anything else."""
        try:
            return max(least, min(most, int(self.query.get(name, ""))))
        except ValueError:
            return default

    @property
    def saved_namespaces(self) -> list[str]:
        """Names by which the person may open other namespaces; none for who came with a key of their own."""
        return self._opener.saved(self.session)

    async def other(self, *, name: str = "", connection_string: str = "") -> NamespaceClient:
        """Another namespace, open beside that of the session until the session ends.

        Args:
            name: One of ``saved_namespaces``.
            connection_string: In place of the name.

        Raises:
            Refusal: The person may not open it, or the text is no connection string.
            NamespaceError: It does not answer, or does not take the key.
        """
        return await self._opener.open(self.session, name=name, connection_string=connection_string)

    async def write_down(self, operation: str, kind: str, path: str, *, note: str = "") -> None:
        """Put what the person did into the audit log of a duobus, where the server does not do so by itself.

        The log takes lines from keys with the right Manage only, and a bounded number a second. What was done is done,
        so that a line that is not taken is no error for the person; the console's own log tells.
        """
        if not (self.namespace.is_duobus and self.namespace.rights.manage):
            return
        line = {"operation": operation, "kind": kind, "path": path} | ({"note": note} if note else {})
        try:
            await self.namespace.operation("POST", "/$duobus/audit", body=line)
        except NamespaceError as error:
            _log.info("%s of %s %r is not in the audit log: %s", operation, kind, path, error.text)

    def render(self, template: str, data: Mapping[str, Any]) -> str:
        """A part of a page as text, as an event carries one."""
        return self._render(template, data)


async def of_one_server(visit: Visit) -> dict[str, Any]:
    """For the data of a page that tells of one server of several: the server, and how many there are; else nothing."""
    servers = await visit.namespace.servers()
    return {"one_server": {"server": servers[0], "number": len(servers)}} if servers else {}


def is_fragment(request: web.Request) -> bool:
    """Whether a request wants a part of a page only."""
    headers = request.headers
    return headers.get("HX-Request") == "true" and headers.get("HX-History-Restore-Request") != "true"


def is_json(request: web.Request) -> bool:
    """Whether a request wants data in place of a page."""
    accept = request.headers.get("Accept", "")
    return "application/json" in accept and "text/html" not in accept


Outcome = View | Redirect | web.StreamResponse
Handler = Callable[[Visit], Awaitable[Outcome]]


class Route(NamedTuple):
    """An address of a screen.

    Attributes:
        method: ``GET`` or ``POST``.
        path: As of aiohttp's routes.
        handler: Answers.
        right: ``send``, ``listen``, ``manage``, or None for every signed-in person.
        only_duobus: Whether only duobus has what the screen shows.
        destructive: Whether the form has to bring a typed name, which the handler compares by ``Visit.confirmed``.
        file_max: Bytes of a file that the form may bring; 0 for a form without files, None where only the disk bounds
            the file.
    """

    method: str
    path: str
    handler: Handler
    right: str | None
    only_duobus: bool
    destructive: bool
    file_max: int | None


class Screen:
    """A screen of the console.

    Args:
        name: One word, for the folder of its templates and for the mark of the current page in the navigation.
        label: In the navigation; None for a screen that is reached from others.
        key: The letter that opens the screen after ``g``; empty for a screen that is not in the navigation.
        order: Place in the navigation, from low to high.
        tells_of_one_server: Whether the screen has its numbers from duobus's own requests, which each of several
            servers answers for itself alone; pages then say of which server they tell.
    """

    def __init__(
        self,
        name: str,
        *,
        label: str | None = None,
        key: str = "",
        order: int = 100,
        tells_of_one_server: bool = False,
    ) -> None:
        self.tells_of_one_server = tells_of_one_server
        self.name = name
        self.label = label
        self.key = key
        self.order = order
        self.routes: list[Route] = []

    @property
    def entrance(self) -> Route | None:
        """The route to which the navigation leads: the first GET without a part that varies."""
        return next((route for route in self.routes if route.method == "GET" and "{" not in route.path), None)

    def get(self, path: str, *, right: str | None = None, only_duobus: bool = False) -> Callable[[Handler], Handler]:
        """Add an address that shows something and changes nothing."""
        return self._added("GET", path, right, only_duobus, destructive=False, file_max=0)

    def post(
        self,
        path: str,
        *,
        right: str | None = None,
        only_duobus: bool = False,
        destructive: bool = False,
        file_max: int | None = 0,
    ) -> Callable[[Handler], Handler]:
        """Add an address that changes something."""
        return self._added("POST", path, right, only_duobus, destructive=destructive, file_max=file_max)

    def _added(
        self, method: str, path: str, right: str | None, only_duobus: bool, *, destructive: bool, file_max: int | None
    ) -> Callable[[Handler], Handler]:
        def decorate(handler: Handler) -> Handler:
            self.routes.append(Route(method, path, handler, right, only_duobus, destructive, file_max))
            return handler

        return decorate
