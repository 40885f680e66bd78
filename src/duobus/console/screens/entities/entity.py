"""One queue, topic or subscription: its numbers, its properties, and what belongs to it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.sdk_forms import plain
from duobus.console.screens.access import own_rule, shown_keys
from duobus.console.screens.entities.calls import Entity, change_entity, delete_entity, read_entity, read_rules
from duobus.console.screens.entities.fields import groups_of, statuses_of, texts_of, tier_of
from duobus.console.screens.entities.inventory import forget_rows, row_of, subscriptions_of
from duobus.console.screens.entities.paths import EntityPath, parse_path
from duobus.console.screens.entities.rows import PAGE_ROWS, Row, row_of_sdk
from duobus.console.screens.entities.rule_forms import rule_words
from duobus.console.visits import Outcome, Redirect, Refusal, Screen, View, Visit
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC

#: The pages of one entity; the navigation marks the screen of all entities.
screen: Final = Screen("entities")

_TEMPLATE: Final = "entities/entity.html"
#: Rules of a subscription that its page shows.
_RULES_SHOWN: Final = 1_000
#: Namespaces whose SKU was asked for, by a session.
_SKU: Final = "entities_sku"


@screen.get("/entities/{path:.+}", right="listen")
async def show(visit: Visit) -> Outcome:
    """A tab of the page of an entity."""
    path = parse_path(visit.match["path"])
    if path.rule is not None:
        return Redirect(entity_url(path.text, "rules"))
    if not visit.namespace.rights.manage:
        return await _show_numbers(visit, path)
    entity = await read_entity(visit.namespace, path, with_runtime=True)
    # A table of all numbers is no more than a table: the SDK's numbers do where the door is closed.
    row = await row_of(visit, path) or _sdk_row(entity)
    entries = _tabs(visit, entity)
    tab = visit.query.get("tab", "overview")
    if tab not in [name for name, _, _ in entries]:
        tab = "overview"
    data: dict[str, Any] = {
        "entity": path.text,
        "name": path.name,
        "kind": entity.kind,
        "topic": path.parent if entity.kind == SUBSCRIPTION else "",
        "tab": tab,
        "tabs_of_entity": entries,
        "numbers": row._asdict(),
        "form": entity.form,
        "statuses": [list(pair) for pair in statuses_of(entity.kind)],
        "times": {name: getattr(entity.runtime, f"{name}_at_utc", None) for name in ("created", "updated", "accessed")},
    }
    data |= await _contents(visit, entity, tab)
    return View(_TEMPLATE, path.text, data)


async def _show_numbers(visit: Visit, path: EntityPath) -> View:
    """What a key without the right Manage may see: numbers, where the namespace tells them."""
    row = await row_of(visit, path)
    if row is None and visit.namespace.is_duobus and not visit.namespace.entity:
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no entity {path.text}.")
    kind = row.kind if row is not None else SUBSCRIPTION if path.subscription is not None else QUEUE
    entries = [("overview", "Overview", entity_url(path.text)), *_message_tabs(kind, path)]
    if kind == SUBSCRIPTION and visit.namespace.is_duobus:
        entries.append(("rules", "Try the rules", entity_url(path.text, "try-rule")))
    data = {
        "entity": path.text,
        "name": path.name,
        "kind": kind,
        "topic": path.parent if path.subscription is not None else "",
        "tab": "overview",
        "tabs_of_entity": entries,
        "numbers": None if row is None else row._asdict(),
        "form": None,
        "statuses": [],
        "times": None,
    }
    return View(_TEMPLATE, path.text, data)


def _sdk_row(entity: Entity) -> Row:
    status = plain(entity.about.status)
    availability = plain(getattr(entity.about, "availability_status", None)) or "Available"
    return row_of_sdk(entity.kind, entity.path.text, entity.runtime, status, is_available=availability == "Available")


def _message_tabs(kind: str, path: EntityPath) -> list[tuple[str, str, str]]:
    if kind == TOPIC:
        return [("messages", "Messages", entity_url(path.text, "messages"))]
    return [
        ("messages", "Messages", entity_url(path.text, "messages")),
        ("dead", "Dead letters", entity_url(path.text, "dead-letters")),
    ]


def _tabs(visit: Visit, entity: Entity) -> list[tuple[str, str, str]]:
    path, kind = entity.path, entity.kind
    found = [
        ("overview", "Overview", entity_url(path.text)),
        ("properties", "Properties", entity_url(path.text, tab="properties")),
        *_message_tabs(kind, path),
    ]
    if kind == TOPIC:
        found.append(("subscriptions", "Subscriptions", entity_url(path.text, tab="subscriptions")))
    if kind == SUBSCRIPTION:
        found.append(("rules", "Rules", entity_url(path.text, tab="rules")))
    else:
        found.append(("access", "Access rules", entity_url(path.text, tab="access")))
    if visit.namespace.is_duobus and not visit.namespace.entity:
        found.append(("fragments", "Fragments", entity_url(path.text, tab="fragments")))
    return found


async def _contents(visit: Visit, entity: Entity, tab: str) -> dict[str, Any]:
    path = entity.path
    if tab == "properties":
        texts = texts_of(entity.kind, entity.form)
        groups = groups_of(entity.kind, await tier(visit))
        return {
            "groups": [
                {
                    "title": group.title,
                    "fields": [field._asdict() | {"text": texts[field.name]} for field in group.fields],
                }
                for group in groups
            ]
        }
    if tab == "subscriptions":
        skip = visit.number("skip", 0, most=1_000_000) // PAGE_ROWS * PAGE_ROWS
        page = await subscriptions_of(visit, path.parent, skip=skip)
        return {
            "subscriptions": [row._asdict() | {"name": row.name} for row in page.rows],
            "previous": entity_url(path.text, tab=tab, skip=skip - PAGE_ROWS) if skip else "",
            "next": entity_url(path.text, tab=tab, skip=skip + PAGE_ROWS) if page.has_more else "",
        }
    if tab == "rules":
        rules = await read_rules(visit.namespace, path, _RULES_SHOWN)
        return {
            "rules": [{"name": rule["name"], "form": rule, "words": rule_words(rule)} for rule in rules[:_RULES_SHOWN]],
            "is_cut": len(rules) > _RULES_SHOWN,
        }
    if tab == "access":
        return {"access_rules": access_rules_of(entity), "shown": None, "own_rule": own_rule(visit, path.text)}
    if tab == "fragments":
        return {"fragments": await _fragments(visit, path)}
    return {}


async def _fragments(visit: Visit, path: EntityPath) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = await visit.namespace.operation(
            "GET", "/$duobus/fragments", query={"entity": path.text}
        )
    except NamespaceError as error:
        # The entity is there, at another server of the same namespace.
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return []
    return found


def access_rules_of(entity: Entity) -> list[dict[str, Any]]:
    """The access rules of a queue or topic, without keys."""
    return [
        {"name": rule.key_name, "rights": sorted(str(plain(right)) for right in rule.rights or ())}
        for rule in entity.about.authorization_rules or ()
    ]


async def tier(visit: Visit) -> Any:
    """The tier by which defaults are told; the namespace is asked once a session."""
    sku = visit.session.memory.get(_SKU)
    if sku is None:
        try:
            async with visit.namespace.telling("the namespace"):
                found = await visit.namespace.administration.get_namespace_properties()
            sku = str(plain(found.messaging_sku) or "")
        except NamespaceError:
            sku = ""
        visit.session.memory[_SKU] = sku
    return tier_of(sku, is_duobus=visit.namespace.is_duobus)


# -- changes ----------------------------------------------------------------------------------------------------


@screen.post("/entities/{path:.+}/status", right="manage")
async def set_status(visit: Visit) -> Redirect:
    """Activate an entity, or disable it in whole or in part."""
    path = parse_path(visit.match["path"])
    entity = await read_entity(visit.namespace, path)
    wanted = visit.form.get("status", "")
    names = dict(statuses_of(entity.kind))
    if wanted not in names:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"A {entity.kind} can have the status {', '.join(names)}.")
    await change_entity(visit.namespace, entity, {"status": wanted})
    forget_rows(visit)
    return Redirect(entity_url(path.text), notice=f"{path.text} now has the status {names[wanted]}.")


@screen.post("/entities/{path:.+}/delete", right="manage", destructive=True)
async def delete(visit: Visit) -> Redirect:
    """Delete an entity whose name was typed."""
    path = parse_path(visit.match["path"])
    visit.confirmed(path.text)
    kind = "rule" if path.rule is not None else (await read_entity(visit.namespace, path)).kind
    await delete_entity(visit.namespace, kind, path)
    forget_rows(visit)
    where = "/entities"
    if path.rule is not None:
        where = entity_url(EntityPath(path.parent, path.subscription).text, tab="rules")
    elif path.subscription is not None:
        where = entity_url(path.parent, tab="subscriptions")
    return Redirect(where, notice=f"The {kind} {path.text} is deleted.")


@screen.post("/entities/{path:.+}/access-rules/{rule}/show", right="manage")
async def show_key(visit: Visit) -> View:
    """Show the keys of one access rule when somebody asks for them. As of every page, browsers keep no copy."""
    path, name = parse_path(visit.match["path"]), visit.match["rule"]
    entity = await read_entity(visit.namespace, path, with_runtime=True)
    rule = next((rule for rule in entity.about.authorization_rules or () if rule.key_name == name), None)
    if rule is None:
        raise Refusal(HTTPStatus.NOT_FOUND, f"{path.text} has no access rule {name}.")
    await visit.write_down("show keys", "access rule", f"{path.text}/{name}")
    row = await row_of(visit, path) or _sdk_row(entity)
    data: dict[str, Any] = {
        "entity": path.text,
        "name": path.name,
        "kind": entity.kind,
        "topic": "",
        "tab": "access",
        "tabs_of_entity": _tabs(visit, entity),
        "numbers": row._asdict(),
        "form": entity.form,
        "statuses": [list(pair) for pair in statuses_of(entity.kind)],
        "times": None,
        "access_rules": access_rules_of(entity),
        "shown": shown_keys(visit, path.text, name, (rule.primary_key, rule.secondary_key)),
        "own_rule": own_rule(visit, path.text),
    }
    return View(_TEMPLATE, path.text, data)
