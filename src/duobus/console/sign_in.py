"""Signing in with a key, and signing out.

A person brings a connection string, or name and key of an access rule for the namespace that the operator offers. The
namespace itself decides about the key. A namespace whose key the console has already, from its command line or from a
profile, is opened by the access code that the console prints at its start: whoever reads that may read the key as well.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.client import NamespaceClient, open_namespace
from duobus.console.namespace.failures import NamespaceError
from duobus.console.pages import Pages, local_path, redirection
from duobus.console.profiles import NamespaceList, Profiles
from duobus.console.security import CSRF_FIELD, demand_same_origin, demand_token
from duobus.console.sessions import Session, Sessions
from duobus.console.settings import ConsoleSettings
from duobus.console.visits import Refusal, View, is_json
from duobus.errors import ArgumentInvalid, ConfigurationError

#: What the emulator and ``duobus serve --emulator`` take; the key is public.
EMULATOR: Final = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)

#: A page that asks while nobody is there says so in this header.
UNATTENDED_HEADER: Final = "X-Unattended"
#: How the form says what the person brings.
_BY_KEY: Final = "key"
_BY_CODE: Final = "code"


class SignIn:
    """The pages and forms for signing in and out.

    Args:
        settings: Which namespace is offered, and how cookies are made.
        pages: Makes what goes out.
        sessions: Where a session begins and ends.
        clock: For the clients of namespaces.
        cookie: Name of the session's cookie.
        code: The access code that the console has printed.

    Attributes:
        known: The namespaces that the console knows.
    """

    def __init__(
        self, settings: ConsoleSettings, pages: Pages, sessions: Sessions, *, clock: Clock, cookie: str, code: str
    ) -> None:
        self._settings = settings
        self._pages = pages
        self._sessions = sessions
        self._clock = clock
        self._cookie = cookie
        self._form_cookie = f"{cookie}-form"
        self._code = code
        text = settings.connection_string
        self.known = NamespaceList(
            None if text is None else NamespaceAddress(text, settings.management_url),
            None if settings.profiles is None else Profiles(settings.profiles),
        )

    # -- who asks ---------------------------------------------------------------------------------------------------

    async def session_of(self, request: web.Request) -> Session | None:
        """The session of a request; None when the person has not signed in, or not for too long."""
        return await self._sessions.find(request.cookies.get(self._cookie), is_use=not _is_unattended(request))

    def demand(self, request: web.Request) -> web.StreamResponse:
        """What somebody gets who has to sign in first."""
        if is_json(request):
            error = {"status": 401, "text": "Sign in first.", "trackingId": None}
            return web.json_response({"error": error}, status=HTTPStatus.UNAUTHORIZED)
        if request.method != "GET":
            return redirection(request, "/sign-in")
        if "text/event-stream" in request.headers.get("Accept", ""):
            # A page that is open tells the person; the sign-in page would be no stream.
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="Sign in first.\n")
        place = request.headers.get("HX-Current-URL", "") if "HX-Request" in request.headers else request.path_qs
        return redirection(request, _with_next("/sign-in", place))

    # -- pages ------------------------------------------------------------------------------------------------------

    async def show(self, request: web.Request) -> web.StreamResponse:
        """``GET /sign-in``."""
        if await self.session_of(request) is not None:
            return redirection(request, local_path(request.query.get("next", "/")))
        return self._form(request, {"next": request.query.get("next", "/")})

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        """``POST /sign-in``: ask the namespace, and begin a session under a new name."""
        demand_same_origin(request, self._settings)
        form = await request.post()
        given = {name: value for name, value in form.items() if isinstance(value, str)}
        token = request.cookies.get(self._form_cookie, "")
        if not token:
            # The page with the form was open for longer than the cookie, or the browser takes none.
            return self._form(request, given, Refusal(HTTPStatus.FORBIDDEN, "Please try again; cookies have to be on."))
        demand_token(request, given.get(CSRF_FIELD), token)
        try:
            address = self._address(given)
            is_operator = given.get("kind") == _BY_CODE
            return await self.begin(request, address, is_operator=is_operator, url=local_path(given.get("next", "/")))
        except (ArgumentInvalid, ConfigurationError) as error:
            return self._form(request, given, Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)))
        except (Refusal, NamespaceError) as error:
            return self._form(request, given, error)

    async def begin(
        self, request: web.Request, address: NamespaceAddress, *, is_operator: bool, url: str
    ) -> web.StreamResponse:
        """Ask a namespace, begin a session under a new name in place of the browser's, and go to a page.

        Raises:
            NamespaceError: The namespace does not answer, or does not take the key.
        """
        namespace = await open_namespace(address, self._settings.ca, self._clock)
        await self._sessions.end(request.cookies.get(self._cookie, ""))
        session = await self._sessions.add(namespace, is_operator=is_operator)
        response = redirection(request, url)
        self._set_cookie(response, self._cookie, session.id)
        response.del_cookie(self._form_cookie, path="/")
        return response

    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        """``POST /sign-out``: end the session on this side, and forget its name in the browser."""
        demand_same_origin(request, self._settings)
        session = await self.session_of(request)
        if session is not None:
            form = await request.post()
            demand_token(request, _text(form, CSRF_FIELD), session.csrf)
            await self._sessions.end(session.id)
        response = redirection(request, "/sign-in")
        response.del_cookie(self._cookie, path="/")
        return response

    # -- other namespaces -------------------------------------------------------------------------------------------

    def saved(self, session: Session) -> list[str]:
        """Names of the namespaces that the person may open by name."""
        try:
            return [one.name for one in self.known.read() if one.address.key] if session.is_operator else []
        except ConfigurationError as error:
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None

    async def open(self, session: Session, *, name: str, connection_string: str) -> NamespaceClient:
        """Open another namespace beside that of a session.

        Raises:
            Refusal: The person may not open it, or the text is no connection string.
            NamespaceError: It does not answer, or does not take the key.
        """
        try:
            if name:
                if name not in self.saved(session):
                    raise Refusal(HTTPStatus.NOT_FOUND, f"You have no saved namespace {name}.")
                address = next(one.address for one in self.known.read() if one.name == name)
            else:
                address = self._chosen(connection_string)
        except (ArgumentInvalid, ConfigurationError) as error:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
        found = session.others.get(address.text)
        if found is not None:
            return found
        return await session.add_other(await open_namespace(address, self._settings.ca, self._clock))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _address(self, given: Mapping[str, str]) -> NamespaceAddress:
        """The namespace and the key that a filled form means."""
        kind = given.get("kind", "")
        if kind in {_BY_KEY, _BY_CODE}:
            name = given.get("namespace", "")
            address = next((one.address for one in self.known.read() if one.name == name), None)
            if address is None:
                raise ArgumentInvalid("Choose one of the namespaces of this console.")
            if kind == _BY_KEY:
                return address.with_key(given.get("rule", "").strip(), given.get("key", "").strip())
            if not hmac.compare_digest(given.get("code", "").strip().encode(), self._code.encode()):
                raise Refusal(
                    HTTPStatus.FORBIDDEN, "This is not the access code that the console has printed at its start."
                )
            if not address.key:
                raise ArgumentInvalid("The console has no key for this namespace: sign in with a rule's name and key.")
            return address
        return self._chosen(given.get("connection_string", ""))

    def _chosen(self, text: str) -> NamespaceAddress:
        address = NamespaceAddress(text)
        if not address.key or not address.rule_name:
            raise ArgumentInvalid("The connection string has no SharedAccessKeyName and SharedAccessKey.")
        known = next((one.address for one in self.known.read() if one.address.netloc == address.netloc), None)
        if known is not None:
            return NamespaceAddress(text, known.management_url)
        if not self._settings.takes_any_namespace:
            raise Refusal(HTTPStatus.FORBIDDEN, "This console opens only the namespaces that its operator has named.")
        return address

    def _form(
        self, request: web.Request, given: Mapping[str, str], error: Refusal | NamespaceError | None = None
    ) -> web.Response:
        try:
            offered = self.known.read()
        except ConfigurationError as fault:
            offered = []
            error = error or Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(fault))
        status = HTTPStatus.OK if error is None else error.status
        if is_json(request) and error is not None:
            told = {"status": status, "text": error.text, "trackingId": getattr(error, "tracking_id", None)}
            return web.json_response({"error": told}, status=status)
        csrf = self._sessions.token()
        data: dict[str, Any] = {
            # Never a key or a code: what was typed there has to be typed again.
            "given": {name: given.get(name, "") for name in ("kind", "namespace", "rule")},
            "next": local_path(given.get("next", "/")),
            "offered": [{"name": one.name, "has_key": bool(one.address.key)} for one in offered],
            "takes_any": self._settings.takes_any_namespace or bool(offered),
            "emulator": EMULATOR if self._settings.takes_any_namespace else "",
            "error": None if error is None else {"text": error.text, "tracking": getattr(error, "tracking_id", None)},
        }
        response = self._pages.open_page(request, View("sign_in/page.html", "Sign in", data, status), csrf)
        self._set_cookie(response, self._form_cookie, csrf)
        return response

    def _set_cookie(self, response: web.StreamResponse, name: str, value: str) -> None:
        response.set_cookie(name, value, path="/", httponly=True, samesite="Strict", secure=self._settings.is_secure)


def _is_unattended(request: web.Request) -> bool:
    """Whether a page asks by itself, as it does from time to time while nobody looks at it.

    The script of the page says so when no key was pressed and no pointer moved for a while; live events come without
    anybody's doing in any case.
    """
    is_stream = request.headers.get("Accept", "") == "text/event-stream"
    return is_stream or request.headers.get(UNATTENDED_HEADER) == "true"


def _with_next(url: str, place: str) -> str:
    parts = urlsplit(place)
    path = local_path(parts.path + (f"?{parts.query}" if parts.query else ""))
    return url if path == "/" else f"{url}?{urlencode({'next': path})}"


def _text(form: Mapping[str, Any], name: str) -> str | None:
    value = form.get(name)
    return value if isinstance(value, str) else None
