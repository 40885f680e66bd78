"""The namespaces of a console: which is open, which are saved, and how a person goes to another one.

Only a person who came with the access code may open a saved namespace or change what is saved: whoever came with a key
of their own has just the rights of that key.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

from aiohttp import web

from duobus.console.namespace.address import NamespaceAddress
from duobus.console.profiles import NamespaceEntry, NamespaceList, Profile
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit
from duobus.errors import ArgumentInvalid, ConfigurationError

_NOT_YOURS = (
    "Saved namespaces are for those who signed in with the access code of the console. Sign out, then sign in with the "
    "code, or with the connection string of the other namespace."
)


class SessionStarter(Protocol):
    """Begins a session in place of another one."""

    async def begin(
        self, request: web.Request, address: NamespaceAddress, *, is_operator: bool, url: str
    ) -> web.StreamResponse:
        """Ask a namespace, begin a session, and send the browser to a page."""


def namespaces_screen(known: NamespaceList, starter: SessionStarter) -> Screen:
    """The screen for the namespaces that a console knows."""
    screen = Screen("namespaces", label="Namespaces", key="n", order=900)

    @screen.get("/namespaces")
    async def show(visit: Visit) -> View:
        entries = [
            {
                "name": one.name,
                "host": one.address.netloc,
                "is_saved": one.is_saved,
                "is_open": _is_open(visit, one.address),
            }
            for one in _read(known)
            if one.address.key
        ]
        is_operator = visit.session.is_operator
        data = {
            "entries": entries if is_operator else [],
            "is_operator": is_operator,
            "has_file": known.has_file,
            "open_name": visit.namespace.name,
            "open_rule": visit.namespace.rule_name,
            "open_is_duobus": visit.namespace.is_duobus,
        }
        return View("namespaces/page.html", "Namespaces", data)

    @screen.post("/namespaces/open")
    async def open_other(visit: Visit) -> web.StreamResponse:
        _demand_operator(visit)
        name = visit.form.get("name", "")
        address = next((one.address for one in _read(known) if one.name == name and one.address.key), None)
        if address is None:
            raise Refusal(HTTPStatus.NOT_FOUND, f"The console knows no namespace {name}.")
        return await starter.begin(visit.request, address, is_operator=True, url="/")

    @screen.post("/namespaces/add")
    async def add(visit: Visit) -> Redirect:
        _demand_operator(visit)
        name = visit.form.get("name", "").strip()
        try:
            known.add(Profile(name, visit.form.get("connection_string", "").strip()))
        except (ArgumentInvalid, ConfigurationError) as error:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
        return Redirect("/namespaces", notice=f"{name} is saved.")

    @screen.post("/namespaces/remove", destructive=True)
    async def remove(visit: Visit) -> Redirect:
        _demand_operator(visit)
        name = visit.form.get("name", "")
        visit.confirmed(name)
        try:
            known.remove(name)
        except ConfigurationError as error:
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None
        return Redirect("/namespaces", notice=f"{name} is no longer saved. The namespace itself is as it was.")

    return screen


def _is_open(visit: Visit, address: NamespaceAddress) -> bool:
    own = visit.namespace.address
    return own.is_same_place(address) and own.rule_name == address.rule_name


def _demand_operator(visit: Visit) -> None:
    if not visit.session.is_operator:
        raise Refusal(HTTPStatus.FORBIDDEN, _NOT_YOURS)


def _read(known: NamespaceList) -> list[NamespaceEntry]:
    try:
        return known.read()
    except ConfigurationError as error:
        raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None
