"""From what a screen answers to what goes out: a page, a part of a page, or JSON."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from contextvars import ContextVar
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from duobus.console.formats import FILTERS
from duobus.console.namespace.rights import Rights
from duobus.console.sessions import Session
from duobus.console.visits import Redirect, Screen, View, is_fragment, is_json

#: Names of the cookie with the colours, and its values; the script of the page sets the cookie.
THEME_COOKIE: Final = "duobus-console-theme"
_THEMES: Final = frozenset({"light", "dark"})
#: htmx runs without eval and without styles of its own, asks the console only, keeps no page in the browser's storage,
#: and puts a refusal where notices are.
HTMX_SETTINGS: Final = {
    "allowEval": False,
    "allowScriptTags": False,
    "includeIndicatorStyles": False,
    "selfRequestsOnly": True,
    "historyCacheSize": 0,
    "refreshOnHistoryMiss": True,
    "responseHandling": [
        {"code": "204", "swap": False},
        {"code": "[23]..", "swap": True},
        {"code": "422", "swap": True, "error": False},
        {"code": "[45]..", "swap": True, "error": True, "target": "#notices", "swapOverride": "innerHTML"},
    ],
}

#: Characters of the mark of a file's contents.
_MARK_LENGTH: Final = 16
#: The CSRF token of the page that is being made, for the macro of forms.
_csrf: ContextVar[str] = ContextVar("duobus_console_csrf", default="")


class NavigationEntry(NamedTuple):
    """A line of the navigation."""

    name: str
    label: str
    url: str
    key: str


class Failure(NamedTuple):
    """What went wrong with a request, for a page and for JSON.

    Attributes:
        status: Of HTTP.
        text: A sentence.
        tracking_id: By which the refusal is found in the logs of the namespace, or of the console.
    """

    status: int
    text: str
    tracking_id: str | None = None


class Pages:
    """Makes what goes out."""

    def __init__(self) -> None:
        self._screens: tuple[Screen, ...] = ()
        self._version = version("duobus")
        self._marks: dict[str, str] = {}
        self._environment = Environment(
            loader=PackageLoader("duobus.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(csrf_token=_csrf.get, static_url=self._static_url)

    def add(self, screens: tuple[Screen, ...]) -> None:
        """Put screens into the navigation."""
        self._screens = tuple(sorted((*self._screens, *screens), key=lambda screen: screen.order))

    def render(self, template: str, data: Mapping[str, Any], csrf: str = "") -> str:
        """A template as text."""
        token = _csrf.set(csrf)
        try:
            return self._environment.get_template(template).render(data)
        finally:
            _csrf.reset(token)

    def answer(self, request: web.Request, session: Session, screen: Screen, view: View) -> web.Response:
        """What goes out for a view."""
        if is_json(request):
            return _json(view.data, view.status, view.headers)
        return self._page(request, view, csrf=session.csrf, session=session, current=screen.name)

    def redirect(self, request: web.Request, session: Session, outcome: Redirect) -> web.Response:
        """What goes out after a change; the notice waits for the next page."""
        url = local_path(outcome.url)
        if is_json(request):
            return _json({"location": url, "notice": outcome.notice}, HTTPStatus.OK, {})
        if outcome.notice:
            session.add_notice(outcome.notice, outcome.kind)
        return redirection(request, url)

    def open_page(self, request: web.Request, view: View, csrf: str) -> web.Response:
        """A page for somebody who has not signed in."""
        return self._page(request, view, csrf=csrf, session=None, current="")

    def failure(self, request: web.Request, session: Session | None, failure: Failure) -> web.Response:
        """What goes out when something went wrong."""
        if is_json(request):
            error = {"status": failure.status, "text": failure.text, "trackingId": failure.tracking_id}
            return _json({"error": error}, failure.status, {})
        phrase = HTTPStatus(failure.status).phrase
        data = {"failure": failure}
        if is_fragment(request):
            # Wherever the answer would have gone, what was there stays: a notice tells of the failure.
            place = {"HX-Retarget": "#notices", "HX-Reswap": "innerHTML"}
            return _html(self.render("parts/failure.html", data), failure.status, place)
        view = View("failure.html", phrase, data, failure.status)
        return self._page(request, view, csrf="" if session is None else session.csrf, session=session, current="")

    def _page(
        self, request: web.Request, view: View, *, csrf: str, session: Session | None, current: str
    ) -> web.Response:
        theme = request.cookies.get(THEME_COOKIE, "")
        fragment = is_fragment(request)
        frame: dict[str, Any] = {
            "title": view.title,
            "fragment": fragment,
            "theme": theme if theme in _THEMES else "",
            "htmx_settings": msgspec.json.encode(HTMX_SETTINGS).decode(),
            "csrf": csrf,
            "version": self._version,
            "current": current,
            "path": request.path,
            "notices": [] if session is None else session.take_notices(),
            "namespace": None if session is None else session.namespace,
            "is_duobus": session is not None and session.namespace.is_duobus,
            "rights": _NO_RIGHTS if session is None else session.namespace.rights,
            "navigation": [] if session is None else self.navigation(session),
        }
        return _html(self.render(view.template, frame | view.data, csrf), view.status, view.headers)

    def navigation(self, session: Session) -> list[NavigationEntry]:
        """The screens that the person can use."""
        found = []
        for screen in self._screens:
            route = screen.entrance
            if screen.label is None or route is None:
                continue
            if session.namespace.rights.has(route.right) and (session.namespace.is_duobus or not route.only_duobus):
                found.append(NavigationEntry(screen.name, screen.label, route.path, screen.key))
        return found

    def _static_url(self, name: str) -> str:
        """The address of a file, with a mark of its contents: browsers keep the file until the contents change."""
        mark = self._marks.get(name)
        if mark is None:
            contents = static_folder().joinpath(name).read_bytes()
            mark = self._marks[name] = hashlib.sha256(contents).hexdigest()[:_MARK_LENGTH]
        return f"/static/{quote(name)}?v={mark}"


_NO_RIGHTS: Final = Rights(send=False, listen=False, manage=False)


def static_folder() -> Any:
    """The folder with what browsers load beside the pages."""
    return importlib.resources.files("duobus.console") / "static"


def redirection(request: web.Request, url: str) -> web.Response:
    """Send a browser, or the htmx of a page, to another page of the console."""
    if is_fragment(request):
        return web.Response(status=HTTPStatus.OK, headers={"HX-Redirect": url})
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": url})


def local_path(url: str) -> str:
    """The address when it is a path of the console; the start page for everything else.

    A browser takes two slashes at the beginning for another host, a backslash for a slash, and control characters for
    nothing.
    """
    is_local = url.startswith("/") and not url.startswith(("//", "/\\")) and url.isprintable() and "\\" not in url
    return quote(url, safe="/?#[]@!$&'()*+,;=:%~", errors="replace") if is_local else "/"


def _html(text: str, status: int, headers: Mapping[str, str]) -> web.Response:
    # Half of a surrogate pair, which a namespace may hold, is no text: a question mark stands for it.
    body = text.encode("utf-8", "replace")
    return web.Response(body=body, status=status, headers=dict(headers), content_type="text/html", charset="utf-8")


def _json(data: Any, status: int, headers: Mapping[str, str]) -> web.Response:
    try:
        body = msgspec.json.encode(data, enc_hook=_plain)
    except UnicodeEncodeError:
        # JSON can write half of a surrogate pair, escaped.
        body = json.dumps(msgspec.to_builtins(data, enc_hook=_plain), ensure_ascii=True).encode()
    return web.Response(
        body=body, status=status, headers=dict(headers), content_type="application/json", charset="utf-8"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Markup):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
