"""Creating, copying and changing queues, topics and subscriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from duobus.console.formats import entity_path, entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.entities.calls import change_entity, create_entity, read_entity, read_rules
from duobus.console.screens.entities.entity import tier
from duobus.console.screens.entities.fields import (
    Difference,
    changes_of,
    differences,
    fields_of,
    groups_of,
    merged,
    place_of,
    plain_sentence,
    texts_of,
    typed_form,
)
from duobus.console.screens.entities.inventory import forget_rows
from duobus.console.screens.entities.paths import EntityPath, parse_path
from duobus.console.screens.entities.topology import make, read_subscriptions
from duobus.console.visits import Outcome, Redirect, Refusal, Screen, View, Visit
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC
from duobus.model.topology.changes import TopologyChanges

screen: Final = Screen("entities")

_TEMPLATE: Final = "entities/form.html"
#: Longest of what a form may say was shown.
_SHOWN_MAX: Final = 64 << 10
#: Rules that go with a copy of a subscription, as many as a topic may have.
_RULES_COPIED: Final = 100_000
#: How long the subscriptions and rules of a copy may take, in seconds.
_COPY_S: Final = 300.0


class _Sheet(NamedTuple):
    """A form as it is to be shown.

    Attributes:
        kind: Of the entity.
        action: Where the form goes.
        title: Of the page.
        texts: What stands in the fields.
        topic: Of a subscription; empty for everything else.
        is_new: Whether an entity is to be created.
        faults: What is wrong, by the name of the field.
        failure: What is wrong otherwise: a sentence and a tracking id.
        shown: What the fields held when the form was shown first.
        cancel: Where to go without a change.
        conflict: What somebody else has changed since.
        copied: Path of the entity that is copied.
        with_inner: Whether its subscriptions and rules are copied as well.
    """

    kind: str
    action: str
    title: str
    texts: Mapping[str, str]
    topic: str
    is_new: bool
    cancel: str
    faults: Mapping[str, str] = {}
    failure: tuple[str, str | None] | None = None
    shown: Mapping[str, str] = {}
    conflict: tuple[Difference, ...] = ()
    copied: str = ""
    with_inner: bool = True


async def _view(visit: Visit, sheet: _Sheet, status: int = HTTPStatus.OK) -> View:
    groups = groups_of(sheet.kind, await tier(visit))
    data = sheet._asdict() | {
        "groups": [{"title": group.title, "fields": [field._asdict() for field in group.fields]} for group in groups],
        "texts": dict(sheet.texts),
        "shown": json.dumps(sheet.shown),
        "conflict": [one._asdict() for one in sheet.conflict],
        "failure": None
        if sheet.failure is None
        else {"text": plain_sentence(sheet.failure[0]), "tracking_id": sheet.failure[1]},
    }
    return View(_TEMPLATE, sheet.title, data, status)


# -- create and copy --------------------------------------------------------------------------------------------


@screen.get("/create/queue", right="manage")
@screen.get("/create/topic", right="manage")
async def new(visit: Visit) -> View:
    """An empty form, or one that holds the properties of the entity that is copied."""
    return await _view(visit, await _new_sheet(visit, _kind_in(visit), ""))


@screen.get("/create/subscription/{topic:.+}", right="manage")
async def new_subscription(visit: Visit) -> View:
    """The same for a subscription."""
    return await _view(visit, await _new_sheet(visit, SUBSCRIPTION, visit.match["topic"]))


def _kind_in(visit: Visit) -> str:
    """The kind that the address says."""
    return TOPIC if visit.request.path.endswith(f"/{TOPIC}") else QUEUE


async def _new_sheet(visit: Visit, kind: str, topic: str) -> _Sheet:
    copied = visit.query.get("copy", "")
    texts: dict[str, str] = dict.fromkeys((field.name for field in fields_of(kind)), "")
    title = f"Create a {kind}"
    if copied:
        entity = await read_entity(visit.namespace, parse_path(copied))
        if entity.kind != kind:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{copied} is a {entity.kind}, and no {kind}.")
        texts = texts_of(kind, entity.form) | {"name": f"{entity.path.name}-copy"}
        title = f"Copy {copied}"
    action = f"/create/{kind}" if kind != SUBSCRIPTION else f"/create/subscription/{entity_path(topic)}"
    cancel = entity_url(copied) if copied else entity_url(topic, tab="subscriptions") if topic else "/entities"
    return _Sheet(kind, action, title, {"name": ""} | texts, topic, True, cancel, copied=copied)


@screen.post("/create/queue", right="manage")
@screen.post("/create/topic", right="manage")
async def create(visit: Visit) -> Outcome:
    """Create a queue or topic."""
    return await _create(visit, _kind_in(visit), "")


@screen.post("/create/subscription/{topic:.+}", right="manage")
async def create_subscription(visit: Visit) -> Outcome:
    """Create a subscription."""
    return await _create(visit, SUBSCRIPTION, visit.match["topic"])


async def _create(visit: Visit, kind: str, topic: str) -> Outcome:
    texts = _typed_texts(visit, kind) | {"name": visit.form.get("name", "").strip()}
    form, faults = typed_form(kind, texts)
    if not texts["name"]:
        faults["name"] = "A name is needed."
    action = f"/create/{kind}" if kind != SUBSCRIPTION else f"/create/subscription/{entity_path(topic)}"
    cancel = entity_url(topic, tab="subscriptions") if topic else "/entities"
    copied, with_inner = visit.form.get("copied", ""), visit.form.get("with_inner") == "true"
    title = f"Copy {copied}" if copied else f"Create a {kind}"
    sheet = _Sheet(kind, action, title, texts, topic, True, cancel, copied=copied, with_inner=with_inner)
    if faults:
        return await _view(visit, sheet._replace(faults=faults), HTTPStatus.UNPROCESSABLE_ENTITY)
    path = EntityPath(topic, texts["name"]) if topic else EntityPath(texts["name"])
    inner: list[dict[str, Any]] = []
    try:
        if copied and with_inner and kind != QUEUE:
            inner = await _inner_of(visit, parse_path(copied))
        await create_entity(visit.namespace, kind, path, form)
    except NamespaceError as error:
        return await _refused(visit, sheet, error)
    forget_rows(visit)
    notice = f"The {kind} {path.text} is created."
    try:
        await _copy_inner(visit, path, inner)
    except NamespaceError as error:
        told = f"{notice} Not everything that belongs to {copied} was copied: {plain_sentence(error.text)}"
        return Redirect(entity_url(path.text), notice=told, kind="warning")
    return Redirect(entity_url(path.text), notice=notice)


async def _inner_of(visit: Visit, path: EntityPath) -> list[dict[str, Any]]:
    """The subscriptions of a topic with their rules, or the rules of a subscription, for the copy."""
    if path.subscription is not None:
        return await read_rules(visit.namespace, path, _RULES_COPIED)
    async with visit.namespace.telling(f"topic {path.text}", _COPY_S):
        return await read_subscriptions(visit.namespace.administration, path.parent)


async def _copy_inner(visit: Visit, path: EntityPath, inner: list[dict[str, Any]]) -> None:
    """Make subscriptions and rules below an entity that was just created."""
    if not inner:
        return
    present: dict[str, Any] = {"name": path.parent, "subscriptions": []}
    wanted: dict[str, Any] = {"name": path.parent, "subscriptions": inner}
    is_topic = path.subscription is None
    if not is_topic:
        # A new subscription comes with a rule, which goes unless the other one has it, too.
        present["subscriptions"] = [{"name": path.subscription, "rules": [{"name": "$Default"}]}]
        wanted["subscriptions"] = [{"name": path.subscription, "rules": inner}]
    changes = TopologyChanges({"topics": [present]}, {"topics": [wanted]}, prunes=not is_topic)
    async with visit.namespace.telling(f"{path.text} and what belongs to it", _COPY_S):
        for step in changes.steps():
            await make(step, visit.namespace.administration)


def _typed_texts(visit: Visit, kind: str) -> dict[str, str]:
    return {field.name: visit.form.get(field.name, "").strip() for field in fields_of(kind)}


async def _refused(visit: Visit, sheet: _Sheet, error: NamespaceError) -> View:
    """The form again, with everything that was typed and with what the namespace said, at its field if there is one."""
    place = place_of(error.text, fields_of(sheet.kind), sheet.texts)
    faults = {place: plain_sentence(error.text)} if place else {}
    sheet = sheet._replace(faults=faults, failure=(error.text, error.tracking_id))
    return await _view(visit, sheet, HTTPStatus.UNPROCESSABLE_ENTITY)


# -- change -----------------------------------------------------------------------------------------------------


@screen.get("/edit/{path:.+}", right="manage")
async def edit(visit: Visit) -> View:
    """The form of an entity that is there."""
    path = parse_path(visit.match["path"])
    entity = await read_entity(visit.namespace, path)
    texts = texts_of(entity.kind, entity.form)
    return await _view(visit, _edit_sheet(entity.kind, path, texts, texts))


def _edit_sheet(kind: str, path: EntityPath, texts: Mapping[str, str], shown: Mapping[str, str]) -> _Sheet:
    return _Sheet(
        kind,
        entity_url(path.text, "edit"),
        f"Edit {path.text}",
        texts,
        path.parent if kind == SUBSCRIPTION else "",
        False,
        entity_url(path.text),
        shown=shown,
    )


@screen.post("/edit/{path:.+}", right="manage")
async def change(visit: Visit) -> Outcome:
    """Change what differs from what is there, unless somebody else has changed the entity meanwhile."""
    path = parse_path(visit.match["path"])
    shown = _shown_texts(visit)
    kind = visit.form.get("kind", "")
    if kind not in (QUEUE, TOPIC, SUBSCRIPTION):
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "The form does not say what is changed: load the page anew.")
    # What cannot change has no field; it is as it was shown.
    typed = {
        field.name: shown.get(field.name, "") if field.is_fixed else visit.form.get(field.name, "").strip()
        for field in fields_of(kind)
    }
    sheet = _edit_sheet(kind, path, typed, shown)
    form, faults = typed_form(kind, typed)
    if faults:
        return await _view(visit, sheet._replace(faults=faults), HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        entity = await read_entity(visit.namespace, path)
        now = texts_of(entity.kind, entity.form)
        others = differences(shown, now, typed)
        if others or entity.kind != kind:
            sheet = _edit_sheet(entity.kind, path, merged(shown, now, typed), now)
            return await _view(visit, sheet._replace(conflict=tuple(others)), HTTPStatus.CONFLICT)
        names = changes_of(now, typed, fields_of(kind))
        # The same duration may be written in two ways.
        names = [name for name in names if form.get(name) != typed_form(kind, now)[0].get(name)]
        if not names:
            return Redirect(entity_url(path.text), notice="Nothing was changed: everything is as it was.", kind="info")
        await change_entity(visit.namespace, entity, {name: form.get(name) for name in names})
    except NamespaceError as error:
        return await _refused(visit, sheet, error)
    forget_rows(visit)
    return Redirect(entity_url(path.text, tab="properties"), notice=f"{path.text} is changed.")


def _shown_texts(visit: Visit) -> dict[str, str]:
    text = visit.form.get("shown", "")
    try:
        found = json.loads(text) if len(text) <= _SHOWN_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "The form does not say what was shown: load the page anew.")
    return {str(name): str(value) for name, value in found.items()}
