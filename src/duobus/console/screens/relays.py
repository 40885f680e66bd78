"""Relays: the list with their numbers, one of them with its listeners, and the forms that make, change and delete one.

Relays are entities that only a duobus has. Numbers and listeners are those of the connected server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from duobus.console.events import Event, stream_events
from duobus.console.formats import as_datetime, entity_path, entity_url
from duobus.console.namespace.access_rules import AccessRules
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.access import RELAY_PAGE, own_rule, shown_keys
from duobus.console.screens.entities.fields import Difference, Field, merged, place_of, plain_sentence
from duobus.console.screens.live_part import live_part
from duobus.console.visits import Outcome, Redirect, Refusal, Screen, View, Visit, of_one_server
from duobus.model.properties import Form
from duobus.model.relay.description import ANY, HTTP, SENDERS, STATUSES, WEBSOCKET

screen: Final = Screen("relays", label="Relays", key="r", order=65)

_RELAYS: Final = "/$duobus/relays"
#: Rows of a page of the list, and of the table of listeners.
_ROWS_MAX: Final = 100
#: Time between two looks of a page that is open, in seconds.
_LOOK_S: Final = 2.0
#: Longest of what a form may say was shown.
_SHOWN_MAX: Final = 16 << 10
_SENDER_LABELS: Final = {ANY: "WebSocket and HTTP", HTTP: "HTTP only", WEBSOCKET: "WebSocket only"}
_YES_NO: Final = (("true", "Yes"), ("false", "No"))

_FIELDS: Final = (
    Field(
        "requiresClientAuthorization",
        "Senders need a token",
        Form.FLAG,
        "Without it everybody who reaches the server can send.",
        "true",
        _YES_NO,
        True,
        "RequiresClientAuthorization",
    ),
    Field(
        "senders",
        "Kinds of senders",
        Form.TEXT,
        "Some listeners fail on the kind that they do not know.",
        ANY,
        tuple((name, _SENDER_LABELS[name]) for name in SENDERS),
        False,
        "Senders",
    ),
    Field(
        "status",
        "Status",
        Form.STATUS,
        "A disabled relay closes its connections and takes no other.",
        STATUSES[0],
        tuple((status, status) for status in STATUSES),
        False,
        "Status",
    ),
    Field("userMetadata", "User metadata", Form.TEXT, "Any text of the owner.", "", (), False, "UserMetadata"),
)


# -- the list ---------------------------------------------------------------------------------------------------


@screen.get("/relays", right="listen", only_duobus=True)
async def show(visit: Visit) -> View:
    """The list."""
    return View("relays/page.html", "Relays", await _list(visit) | await of_one_server(visit))


@screen.get("/relays/events", right="listen", only_duobus=True)
async def events(visit: Visit) -> web.StreamResponse:
    """What changes in the list."""
    return await stream_events(visit, _changes(visit, "relays/rows.html", partial(_list, visit)))


async def _list(visit: Visit) -> dict[str, Any]:
    if visit.namespace.entity:
        # A key of one entity sees that entity alone; of a queue or topic there is nothing to show here.
        found = [one for one in [await _known(visit, visit.namespace.entity)] if one is not None]
    else:
        found = await visit.namespace.operation("GET", _RELAYS)
    words = visit.query.get("q", "")
    chosen = [one for one in found if all(word in _text_of(one) for word in words.lower().split())]
    skip = visit.number("skip", 0, most=max(0, len(chosen) - 1)) // _ROWS_MAX * _ROWS_MAX
    return {
        "relays": [_row(one) for one in chosen[skip : skip + _ROWS_MAX]],
        "q": words,
        "found": len(chosen),
        "all": len(found),
        "totals": {name: sum(one[name] for one in chosen) for name in ("listeners", "joined", "waiting", "bytes")},
        "first": skip + 1,
        "previous": _list_url(words, skip - _ROWS_MAX) if skip else "",
        "next": _list_url(words, skip + _ROWS_MAX) if skip + _ROWS_MAX < len(chosen) else "",
        "events": "/relays/events" + _query(q=words, skip=skip),
    }


def _text_of(relay: Mapping[str, Any]) -> str:
    return f"{relay['name']}\n{relay.get('userMetadata') or ''}\n{relay['status']}".lower()


def _row(relay: Mapping[str, Any]) -> dict[str, Any]:
    """A relay as pages show it: with its answers summed by what they mean for a service."""
    requests = {int(status): number for status, number in relay["requests"].items()}
    return {
        **relay,
        "senders_text": _SENDER_LABELS.get(relay["senders"], relay["senders"]),
        "requests_total": sum(requests.values()),
        "requests_failed": sum(number for status, number in requests.items() if status >= HTTPStatus.BAD_REQUEST),
        "requests": [[status, requests[status]] for status in sorted(requests)],
    }


def _list_url(words: str, skip: int) -> str:
    return "/relays" + _query(q=words, skip=max(0, skip))


def _query(**values: Any) -> str:
    kept = {name: value for name, value in values.items() if value}
    return f"?{urlencode(kept)}" if kept else ""


def _changes(visit: Visit, template: str, look: Callable[[], Awaitable[dict[str, Any]]]) -> AsyncIterator[Event]:
    return live_part(visit, template, look, screen="relays", pause_s=_LOOK_S)


# -- one relay --------------------------------------------------------------------------------------------------


@screen.get("/relay/{path:.+}", right="listen", only_duobus=True)
async def show_one(visit: Visit) -> View:
    """A tab of the page of a relay."""
    relay = await _read(visit, visit.match["path"])
    return await _page(visit, relay, visit.query.get("tab", ""), None)


async def _page(visit: Visit, relay: dict[str, Any], tab: str, shown: dict[str, Any] | None) -> View:
    path = relay["name"]
    entries = [("overview", "Overview", entity_url(path, RELAY_PAGE))]
    if visit.namespace.rights.manage:
        entries.append(("access", "Access rules", entity_url(path, RELAY_PAGE, tab="access")))
    tab = tab if tab in [name for name, _, _ in entries] else "overview"
    data: dict[str, Any] = {"entity": path, "tab": tab, "tabs_of_relay": entries} | _about(relay)
    if tab == "access":
        data |= {
            "access_rules": await AccessRules(visit.namespace, path).listed(),
            "rules_page": RELAY_PAGE,
            "shown": shown,
            "own_rule": own_rule(visit, path),
        }
    return View("relays/one.html", path, data | await of_one_server(visit))


def _about(relay: Mapping[str, Any]) -> dict[str, Any]:
    """What a page of one relay shows of it."""
    listening = relay.get("listening")
    rows = None if listening is None else [_listener(one) for one in listening[:_ROWS_MAX]]
    return {
        "relay": _row({name: value for name, value in relay.items() if name != "listening"}),
        # None where the key may not see who listens.
        "listening": rows,
        "events": entity_url(relay["name"], "relay-events"),
    }


def _listener(one: Mapping[str, Any]) -> dict[str, Any]:
    """A listener with its end as the countdown of the page reads it; None where the right does not end."""
    end = None if one["untilMs"] is None else as_datetime(one["untilMs"])
    return {**one, "until": None if end is None else end.isoformat()}


@screen.get("/relay-events/{path:.+}", right="listen", only_duobus=True)
async def events_of_one(visit: Visit) -> web.StreamResponse:
    """What changes at one relay."""

    async def look() -> dict[str, Any]:
        return _about(await _read(visit, visit.match["path"]))

    return await stream_events(visit, _changes(visit, "relays/about.html", look))


async def _known(visit: Visit, path: str) -> dict[str, Any] | None:
    """A relay; None where there is none of this name."""
    try:
        found: dict[str, Any] = await visit.namespace.operation("GET", _target(path))
    except NamespaceError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None
    return found


async def _read(visit: Visit, path: str) -> dict[str, Any]:
    found = await _known(visit, path)
    if found is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no relay {path}.")
    return found


def _target(path: str) -> str:
    return f"{_RELAYS}/{path}"


@screen.post("/relay/{path:.+}/access-rules/{rule}/show", right="manage", only_duobus=True)
async def show_keys(visit: Visit) -> View:
    """Show the keys of an access rule when somebody asks for them. As of every page, browsers keep no copy."""
    relay, name = await _read(visit, visit.match["path"]), visit.match["rule"]
    keys = await AccessRules(visit.namespace, relay["name"]).keys(name)
    await visit.write_down("show keys", "access rule", f"{relay['name']}/{name}")
    return await _page(visit, relay, "access", shown_keys(visit, relay["name"], name, keys))


# -- changes ----------------------------------------------------------------------------------------------------


@screen.get("/create/relay", right="manage", only_duobus=True)
async def new(visit: Visit) -> View:
    """An empty form, or one that holds the properties of the relay that is copied."""
    texts = dict.fromkeys((field.name for field in _FIELDS), "")
    copied = visit.query.get("copy", "")
    if not copied:
        return _form(_sheet("", {"name": ""} | texts))
    relay = await _read(visit, copied)
    sheet = _sheet("", {"name": f"{relay['name']}-copy"} | _texts_of(relay))
    return _form(sheet | {"title": f"Copy {relay['name']}", "cancel": entity_url(relay["name"], RELAY_PAGE)})


@screen.post("/create/relay", right="manage", only_duobus=True)
async def create(visit: Visit) -> Outcome:
    """Create a relay."""
    name = visit.form.get("name", "").strip()
    texts = _typed(visit)
    sheet = _sheet("", {"name": name} | texts)
    if not name:
        return _form(sheet | {"faults": {"name": "A name is needed."}}, HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        wanted = {one: _value(one, text) for one, text in texts.items() if text}
        await visit.namespace.operation("PUT", _target(name), query={"must": "new"}, body=wanted)
    except NamespaceError as error:
        return _refused(sheet, error)
    return Redirect(entity_url(name, RELAY_PAGE), notice=f"The relay {name} is created.")


@screen.get("/edit-relay/{path:.+}", right="manage", only_duobus=True)
async def edit(visit: Visit) -> View:
    """The form of a relay that is there."""
    relay = await _read(visit, visit.match["path"])
    texts = _texts_of(relay)
    return _form(_sheet(relay["name"], texts) | {"shown": json.dumps(texts)})


@screen.post("/edit-relay/{path:.+}", right="manage", only_duobus=True)
async def change(visit: Visit) -> Outcome:
    """Change what differs from what is there, unless somebody else has changed the relay meanwhile."""
    path = visit.match["path"]
    shown = _shown(visit)
    typed = {field.name: shown.get(field.name, "") for field in _FIELDS if field.is_fixed} | {
        name: text for name, text in _typed(visit).items() if not _is_fixed(name)
    }
    now = _texts_of(await _read(visit, path))
    others = [
        Difference(field.name, field.label, shown.get(field.name, ""), now[field.name], typed[field.name])
        for field in _FIELDS
        if shown.get(field.name, "") != now[field.name]
    ]
    if others:
        sheet = _sheet(path, merged(shown, now, typed)) | {"shown": json.dumps(now)}
        conflict = [one._asdict() for one in others]
        return _form(sheet | {"conflict": conflict}, HTTPStatus.CONFLICT)
    wanted = {name: _value(name, text) for name, text in typed.items() if text != now[name]}
    if not wanted:
        notice = "Nothing was changed: everything is as it was."
        return Redirect(entity_url(path, RELAY_PAGE), notice=notice, kind="info")
    try:
        await visit.namespace.operation("PUT", _target(path), query={"must": "there"}, body=wanted)
    except NamespaceError as error:
        return _refused(_sheet(path, typed) | {"shown": json.dumps(shown)}, error)
    return Redirect(entity_url(path, RELAY_PAGE), notice=f"{path} is changed.")


@screen.post("/relay/{path:.+}/status", right="manage", only_duobus=True)
async def set_status(visit: Visit) -> Redirect:
    """Activate or disable a relay."""
    path, wanted = visit.match["path"], visit.form.get("status", "")
    if wanted not in STATUSES:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"A relay can have the status {' or '.join(STATUSES)}.")
    await visit.namespace.operation("PUT", _target(path), query={"must": "there"}, body={"status": wanted})
    return Redirect(entity_url(path, RELAY_PAGE), notice=f"{path} now has the status {wanted}.")


@screen.post("/relay/{path:.+}/delete", right="manage", only_duobus=True, destructive=True)
async def delete(visit: Visit) -> Redirect:
    """Delete a relay whose name was typed."""
    path = visit.match["path"]
    visit.confirmed(path)
    await visit.namespace.operation("DELETE", _target(path))
    return Redirect("/relays", notice=f"The relay {path} is deleted.")


def _is_fixed(name: str) -> bool:
    return any(field.name == name and field.is_fixed for field in _FIELDS)


def _typed(visit: Visit) -> dict[str, str]:
    return {field.name: visit.form.get(field.name, "").strip() for field in _FIELDS}


def _texts_of(relay: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the fields for a relay."""
    values = {field.name: relay.get(field.name) for field in _FIELDS}
    return {
        name: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


def _value(name: str, text: str) -> Any:
    """The value of a text of the form; an empty one takes the value away."""
    field = next(field for field in _FIELDS if field.name == name)
    if field.form is Form.FLAG:
        return text == "true"
    return text or (field.default or None)


def _shown(visit: Visit) -> dict[str, str]:
    text = visit.form.get("shown", "")
    try:
        found = json.loads(text) if len(text) <= _SHOWN_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "The form does not say what was shown: load the page anew.")
    return {str(name): str(value) for name, value in found.items()}


def _sheet(path: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """A form as it is to be shown; that of a relay that is there has its path."""
    return {
        "kind": RELAY_PAGE,
        "topic": "",
        "is_new": not path,
        "action": f"/edit-relay/{entity_path(path)}" if path else "/create/relay",
        "cancel": entity_url(path, RELAY_PAGE) if path else "/relays",
        "title": f"Edit {path}" if path else "Create a relay",
        "texts": dict(texts),
        "groups": [{"title": "Relay", "fields": [field._asdict() for field in _FIELDS]}],
        "faults": {},
        "failure": None,
        "shown": "",
        "conflict": [],
        "copied": "",
        "with_inner": False,
    }


def _form(sheet: dict[str, Any], status: int = HTTPStatus.OK) -> View:
    return View("entities/form.html", sheet["title"], sheet, status)


def _refused(sheet: dict[str, Any], error: NamespaceError) -> View:
    """The form again, with everything that was typed and with what the namespace said, at its field if there is one."""
    place = place_of(error.text, _FIELDS, sheet["texts"])
    sentence = plain_sentence(error.text)
    told = {
        "faults": {place: sentence} if place else {},
        "failure": {"text": sentence, "tracking_id": error.tracking_id},
    }
    return _form(sheet | told, HTTPStatus.UNPROCESSABLE_ENTITY)
