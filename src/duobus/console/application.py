"""The console as a program of aiohttp: its routes, and what every request goes through."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Middleware
from azure.core.exceptions import AzureError
from multidict import MultiDictProxy

from duobus.clock import Clock, Entropy
from duobus.console.namespace.failures import NamespaceError, namespace_error
from duobus.console.pages import Failure, Pages, static_folder
from duobus.console.screens import SCREENS
from duobus.console.screens.namespaces import namespaces_screen
from duobus.console.screens.pipelines import screen as pipelines_screen
from duobus.console.security import (
    CSRF_FIELD,
    Handler,
    add_headers_to_stream,
    demand_same_origin,
    demand_token,
    protection,
)
from duobus.console.sessions import Session, Sessions
from duobus.console.settings import SETTINGS, ConsoleSettings
from duobus.console.sign_in import SignIn
from duobus.console.uploads import NO_FORM, Form, read_form
from duobus.console.visits import CONFIRM_FIELD, Closable, Redirect, Refusal, Route, Screen, View, Visit, of_one_server
from duobus.errors import ServiceBusError

_COOKIE_BITS: Final = 32

_log = logging.getLogger("duobus.console")


class Console:
    """One console.

    Args:
        settings: What the operator has chosen.
        screens: What people see.
        clock, entropy: Time and randomness.

    Attributes:
        access_code: Opens the namespaces whose keys the console has; for the terminal.
        sessions: Who has signed in.
        screens: What people see.
        shared: What screens keep for all sessions, by the name of the screen; what is closable is closed at the end.
    """

    def __init__(self, settings: ConsoleSettings, screens: tuple[Screen, ...], clock: Clock, entropy: Entropy) -> None:
        self.settings = settings
        self.shared: dict[str, Any] = {}
        self.sessions = Sessions(settings, clock, entropy)
        self.access_code = self.sessions.token()
        self._entropy = entropy
        # Browsers send a cookie to every port of a host, so that two consoles need two names.
        cookie = f"duobus-console-{settings.port or entropy.number(_COOKIE_BITS)}"
        self._pages = Pages()
        self._sign_in = SignIn(settings, self._pages, self.sessions, clock=clock, cookie=cookie, code=self.access_code)
        # Few have pipelines, so that the screen is there for those who name their folder.
        pipelines = () if settings.pipelines is None else (pipelines_screen,)
        self.screens = (*screens, *pipelines, namespaces_screen(self._sign_in.known, self._sign_in))
        self._pages.add(self.screens)

    def application(self) -> web.Application:
        """The program of aiohttp."""
        application = web.Application(
            middlewares=[protection(self.settings), self._told], client_max_size=self.settings.request_bytes_max
        )
        application.on_response_prepare.append(add_headers_to_stream)
        application.on_startup.append(self._start)
        application.on_shutdown.append(self._stop)
        router = application.router
        router.add_get("/sign-in", self._sign_in.show)
        router.add_post("/sign-in", self._sign_in.sign_in)
        router.add_post("/sign-out", self._sign_in.sign_out)
        router.add_get("/healthz", _healthy)
        router.add_static("/static", static_folder(), show_index=False, follow_symlinks=False)
        for screen in self.screens:
            for route in screen.routes:
                answer = partial(self._answer, screen, route)
                if route.method == "GET":
                    router.add_get(route.path, answer, allow_head=False)
                else:
                    router.add_post(route.path, answer)
        application[CONSOLE] = self
        application[SETTINGS] = self.settings
        return application

    async def _start(self, _application: web.Application) -> None:
        self.sessions.start()

    async def _stop(self, _application: web.Application) -> None:
        for shared in self.shared.values():
            if isinstance(shared, Closable):
                await shared.close()
        await self.sessions.close()

    # -- one request ------------------------------------------------------------------------------------------------

    async def _answer(self, screen: Screen, route: Route, request: web.Request) -> web.StreamResponse:
        session = await self._sign_in.session_of(request)
        if session is None:
            return self._sign_in.demand(request)
        form = NO_FORM
        try:
            if route.method == "POST":
                form = await self._form_of(request, route, session)
            _demand_use(route, session)
            _demand_name(route, form.fields)
            visit = Visit(
                request,
                session,
                render=partial(self._render, session),
                opener=self._sign_in,
                shared=self.shared,
                form=MultiDictProxy(form.fields),
                files=form.files,
            )
            outcome = await route.handler(visit)
            if screen.tells_of_one_server and isinstance(outcome, View):
                outcome.data.update(await of_one_server(visit))
        except (NamespaceError, Refusal) as error:
            failure = Failure(error.status, error.text, getattr(error, "tracking_id", None))
            return self._pages.failure(request, session, failure)
        except ServiceBusError as error:
            # What the person wrote is no duration, no name, no number.
            return self._pages.failure(request, session, Failure(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)))
        except AzureError as error:
            namespace = session.namespace
            said = namespace_error(error, "what was asked for", namespace.name, namespace.address.masked)
            return self._pages.failure(request, session, Failure(said.status, said.text, said.tracking_id))
        finally:
            form.end_of_request()
        if isinstance(outcome, View):
            return self._pages.answer(request, session, screen, outcome)
        if isinstance(outcome, Redirect):
            return self._pages.redirect(request, session, outcome)
        return outcome

    async def _form_of(self, request: web.Request, route: Route, session: Session) -> Form:
        """The form of a POST. Nothing of a file is read for somebody who may not send it."""
        demand_same_origin(request, self.settings)

        def admit(fields: Mapping[str, str]) -> None:
            demand_token(request, fields.get(CSRF_FIELD), session.csrf)
            _demand_use(route, session)

        return await read_form(
            request, fields_max=self.settings.request_bytes_max, file_max=route.file_max, admit=admit
        )

    def _render(self, session: Session, template: str, data: Mapping[str, Any]) -> str:
        frame = {"rights": session.namespace.rights, "is_duobus": session.namespace.is_duobus}
        return self._pages.render(template, frame | dict(data), session.csrf)

    @property
    def _told(self) -> Middleware:
        """The middleware that turns whatever goes wrong into a page in plain words."""

        @web.middleware
        async def tell(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                if error.status < HTTPStatus.BAD_REQUEST:
                    raise
                return await self._failed(request, Failure(error.status, _sentence(request, error.status)))
            except (NamespaceError, Refusal) as error:
                return await self._failed(request, Failure(error.status, error.text))
            except Exception:  # noqa: BLE001 - of any screen; the person gets a page, and the log the rest
                number = self._entropy.token(8).hex()
                # Without the query and the form, which hold what people look for and send.
                _log.exception("%s %s failed, error %s", request.method, json.dumps(request.path), number)
                return await self._failed(request, Failure(500, "The console has failed at this.", number))

        return tell

    async def _failed(self, request: web.Request, failure: Failure) -> web.StreamResponse:
        session = await self._sign_in.session_of(request)
        return self._pages.failure(request, session, failure)


#: Where an application holds its console.
CONSOLE: Final = web.AppKey("console", Console)


def build_app(
    settings: ConsoleSettings,
    *,
    screens: tuple[Screen, ...] = SCREENS,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> web.Application:
    """Put a console together; its start and stop are those of the application.

    Raises:
        ArgumentInvalid: The connection string of the settings is none.
        ConfigurationError: Another setting is wrong.
    """
    return Console(settings, screens, clock or Clock(), entropy or Entropy()).application()


async def _healthy(_request: web.Request) -> web.Response:
    return web.json_response({"status": "healthy"})


def _demand_use(route: Route, session: Session) -> None:
    """Refuse what the key of the session may not do, and what the namespace does not have."""
    if route.only_duobus and not session.namespace.is_duobus:
        raise Refusal(
            HTTPStatus.NOT_FOUND, "Only a duobus has this, and this namespace is none: it is of Azure or the emulator."
        )
    if not session.namespace.rights.has(route.right):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            f"This needs the right {(route.right or '').title()}, which the access rule "
            f"{session.namespace.rule_name} does not have. Sign in with a key that has the right.",
        )


def _demand_name(route: Route, form: Mapping[str, str]) -> None:
    """Refuse what is not confirmed."""
    if route.destructive and not form.get(CONFIRM_FIELD):
        raise Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY, "Nothing was changed: type the name of what is to go to confirm this."
        )


def _sentence(request: web.Request, status: int) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return f"The console has no page {request.path}."
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.path} does not take {request.method}."
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "This is larger than the console reads, or a form of too many fields."
    return HTTPStatus(status).phrase
