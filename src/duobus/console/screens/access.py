"""Who may do what, and how the server shows who the server is: access rules with their keys, and the certificate.

The rules of a queue, topic or relay are on the page of that entity, whose forms lead here as well.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from duobus.console.formats import entity_url
from duobus.console.namespace.access_rules import RIGHTS, WHICH, AccessRules
from duobus.console.observation.findings import certificate_of
from duobus.console.visits import Redirect, Refusal, Screen, View, Visit

#: First part of the address of the page of a relay.
RELAY_PAGE: Final = "relay"

screen: Final = Screen("access", label="Access", key="k", order=200)


@screen.get("/access", right="manage", only_duobus=True)
async def show(visit: Visit) -> View:
    """The rules of the namespace, and the certificate of the server."""
    return await _page(visit, None)


async def _page(visit: Visit, shown: dict[str, Any] | None) -> View:
    server = await visit.namespace.operation("GET", "/$duobus/server")
    rules = [] if visit.namespace.entity else await AccessRules(visit.namespace).listed()
    data = {
        "entity": "",
        "access_rules": rules,
        "shown": shown,
        "own_rule": own_rule(visit, ""),
        "certificate": certificate_of(server.get("certificate"), visit.clock.now_ms()),
    }
    return View("access/page.html", "Access", data)


def own_rule(visit: Visit, entity: str) -> str:
    """Name of the rule of this place with which the person is signed in; empty when that is a rule of another place."""
    return visit.namespace.rule_name if visit.namespace.entity.lower() == entity.lower() else ""


def shown_keys(visit: Visit, entity: str, name: str, keys: tuple[str, str]) -> dict[str, Any]:
    """The keys of a rule, for the page that shows them."""
    text = f"Endpoint=sb://{visit.namespace.name}/;SharedAccessKeyName={name};SharedAccessKey={keys[0]}"
    return {
        "rule": name,
        "primary": keys[0],
        "secondary": keys[1],
        "connection_string": text + (f";EntityPath={entity}" if entity else ""),
    }


@screen.post("/access/{rule}/show", right="manage", only_duobus=True)
async def show_keys(visit: Visit) -> View:
    """Show the keys of a rule of the namespace when somebody asks for them. As of every page, browsers keep no copy."""
    name = visit.match["rule"]
    keys = await AccessRules(visit.namespace).keys(name)
    # The path that the server gives to changes of this rule in the same log.
    await visit.write_down("show keys", "access rule", f"AuthorizationRules/{name}")
    return await _page(visit, shown_keys(visit, "", name, keys))


@screen.post("/access/add", right="manage")
async def add(visit: Visit) -> Redirect:
    """Add a rule with two new keys."""
    name = visit.form.get("name", "").strip()
    if not name:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "An access rule needs a name.")
    await _rules(visit).add(name, _rights(visit))
    return _done(visit, f"The access rule {name} is there, with two new keys.")


@screen.post("/access/{rule}/rights", right="manage")
async def set_rights(visit: Visit) -> Redirect:
    """Give a rule other rights."""
    name, rights = visit.match["rule"], _rights(visit)
    await _rules(visit).set_rights(name, rights)
    words = f"the right {rights[0]}" if len(rights) == 1 else f"the rights {', '.join(rights)}"
    return _done(visit, f"The access rule {name} has {words} now.")


@screen.post("/access/{rule}/rotate", right="manage", destructive=True)
async def rotate(visit: Visit) -> Redirect:
    """Replace a key; the key that was there opens nothing any more, and so the name of the rule is asked for."""
    name, which = visit.match["rule"], visit.form.get("which", "")
    if which not in WHICH:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Say which key is to be replaced: primary or secondary.")
    visit.confirmed(name)
    await _rules(visit).rotate(name, which)
    return _done(visit, f"The {which} key of {name} is a new one. Whoever used the old one needs the new one.")


@screen.post("/access/{rule}/delete", right="manage", destructive=True)
async def delete(visit: Visit) -> Redirect:
    """Remove a rule whose name was typed."""
    name = visit.match["rule"]
    visit.confirmed(name)
    await _rules(visit).remove(name)
    return _done(visit, f"The access rule {name} is deleted.")


def _rules(visit: Visit) -> AccessRules:
    return AccessRules(visit.namespace, visit.form.get("entity", ""))


def _rights(visit: Visit) -> list[str]:
    found: list[str] = [right for right in RIGHTS if right in visit.form.getall("rights", [])]
    if not found:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "An access rule needs at least one right.")
    return found


def _done(visit: Visit, notice: str) -> Redirect:
    entity = visit.form.get("entity", "")
    # Which screen the entity has: the form says so of a relay.
    place = RELAY_PAGE if visit.form.get("page") == RELAY_PAGE else "entities"
    return Redirect(entity_url(entity, place, tab="access") if entity else "/access", notice=notice)
