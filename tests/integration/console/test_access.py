"""Access rules and the certificate in the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duobus.model.descriptions import AccessRule, QueueDescription, Right, TopicDescription
from duobus.model.options import HttpOptions
from kits.console import ConsoleClient, console
from kits.gateway import in_loop

OWN = AccessRule(name="own", primary_key="one" * 12, secondary_key="two" * 12, rights=int(Right.SEND))
ORDERS = QueueDescription(name="orders", authorization_rules=(OWN,))
EVENTS = TopicDescription(name="events", authorization_rules=(OWN,))


async def rules(client: ConsoleClient, entity: str = "") -> dict[str, list[str]]:
    page = await client.data(f"/entities/{entity}?tab=access" if entity else "/access")
    return {rule["name"]: sorted(rule["rights"]) for rule in page["access_rules"]}


def keys_of(client: ConsoleClient, entity: str, name: str) -> tuple[str, str]:
    home = client.server.unit.namespace("ns")
    found = home.queues.get(entity) or home.topics[entity]
    about: Any = getattr(found, "about", None) or found.description
    rule = next(rule for rule in about.authorization_rules if rule.name == name)
    return rule.primary_key, rule.secondary_key


@in_loop
async def test_a_rule_of_the_namespace_is_added_shown_changed_rotated_and_deleted(tmp_path: Path) -> None:
    async with console(ORDERS, options={"ephemeral": False, "data": tmp_path}) as client:
        assert "own" not in await rules(client)
        assert (await client.post("/access/add", {"name": "app", "rights": "Send"})).status == 303
        assert (await rules(client))["app"] == ["Send"]
        hidden = await client.get("/access")
        assert "app Send" in hidden.words
        assert "SharedAccessKey=" not in hidden.text
        assert (await client.get("/access/app/show")).status in {404, 405}
        shown = await client.post("/access/app/show")
        assert "SharedAccessKeyName=app;SharedAccessKey=" in shown.text
        assert shown.headers["Cache-Control"] == "no-store"
        lines = [(one["operation"], one["path"]) for one in (await client.data("/audit"))["rows"]]
        assert {("create", "AuthorizationRules/app"), ("show keys", "AuthorizationRules/app")} <= set(lines)
        assert (await client.post("/access/app/rights", {"rights": "Listen"})).status == 303
        assert (await rules(client))["app"] == ["Listen"]
        # A key that goes, and a rule that goes, ask for the name.
        assert (await client.post("/access/app/rotate", {"which": "primary"})).status == 422
        assert (await client.post("/access/app/rotate", {"which": "third", "confirm": "app"})).status == 422
        assert (await client.post("/access/app/rotate", {"which": "primary", "confirm": "app"})).status == 303
        again = await client.post("/access/app/show")
        assert again.text != shown.text
        assert (await client.post("/access/app/delete", {"confirm": "APP"})).status == 422
        assert (await client.post("/access/app/delete", {"confirm": "app"})).status == 303
        assert "app" not in await rules(client)


@in_loop
async def test_what_the_server_refuses_is_told_in_its_words_and_changes_nothing() -> None:
    async with console() as client:
        assert (await client.post("/access/add", {"name": "x"})).status == 422
        assert (await client.post("/access/add", {"name": " ", "rights": "Send"})).status == 422
        refused = await client.post("/access/add", {"name": "a b", "rights": "Send"})
        assert refused.status == 400
        assert "letters, digits" in refused.words
        given = await client.post("/access/RootManageSharedAccessKey/delete", {"confirm": "RootManageSharedAccessKey"})
        assert given.status == 400
        assert "RootManageSharedAccessKey" in await rules(client)
        assert "of this sign-in" in (await client.get("/access")).words


@pytest.mark.parametrize("has_operations", [True, False])
@pytest.mark.parametrize("entity", ["orders", "events"])
@in_loop
async def test_rules_of_a_queue_and_of_a_topic_are_changed_on_duobus_and_by_what_azure_offers(
    entity: str, has_operations: bool
) -> None:
    options = {"http": HttpOptions(operations=has_operations)}
    async with console(ORDERS, topics=[EVENTS], options=options) as client:
        place = {"entity": entity}
        added = await client.post("/access/add", place | {"name": "app", "rights": "Manage"})
        assert added.status == 303, added
        assert added.headers["Location"] == f"/entities/{entity}?tab=access"
        assert await rules(client, entity) == {"own": ["Send"], "app": ["Listen", "Manage", "Send"]}
        assert (await client.post("/access/add", place | {"name": "app", "rights": "Send"})).status == 409
        before = keys_of(client, entity, "app")
        rotated = await client.post("/access/app/rotate", place | {"which": "secondary", "confirm": "app"})
        assert rotated.status == 303, rotated
        after = keys_of(client, entity, "app")
        assert after[0] == before[0]
        assert after[1] not in before
        assert (await client.post("/access/app/rights", place | {"rights": "Listen"})).status == 303
        assert (await rules(client, entity))["app"] == ["Listen"]
        assert keys_of(client, entity, "app") == after
        assert after[0] in (await client.post(f"/entities/{entity}/access-rules/app/show")).text
        for name in ("app", "own"):
            assert (await client.post(f"/access/{name}/delete", place | {"confirm": name})).status == 303
        assert await rules(client, entity) == {}
        assert (await client.post("/access/app/delete", place | {"confirm": "app"})).status == 404


@in_loop
async def test_where_only_azures_requests_are_there_rules_of_the_namespace_are_not_offered() -> None:
    async with console(ORDERS, options={"http": HttpOptions(operations=False)}) as client:
        assert 'href="/access"' not in (await client.get("/")).text
        refused = await client.post("/access/add", {"name": "app", "rights": "Send"})
        assert refused.status == 409
        assert "its owner changes them in the portal" in refused.words


@in_loop
async def test_a_key_without_manage_neither_sees_nor_changes_access_rules() -> None:
    async with console(ORDERS, right="listen") as client:
        assert (await client.get("/access")).status == 403
        for path in ("/access/add", "/access/own/rights", "/access/own/rotate", "/access/own/delete"):
            page = await client.post(path, {"entity": "orders", "name": "x", "rights": "Send", "confirm": "own"})
            assert page.status == 403, path
        assert keys_of(client, "orders", "own") == (OWN.primary_key, OWN.secondary_key)


@in_loop
async def test_the_certificate_of_a_server_with_tls_is_on_the_page_with_its_days_left(tmp_path: Path) -> None:
    options = {"ephemeral": False, "data": tmp_path, "tls_self_signed": True}
    async with console(options=options) as client:
        certificate = (await client.data("/access"))["certificate"]
        assert certificate["subject"] == "CN=duobus"
        assert 300 < certificate["days"] < 400
        words = (await client.get("/access")).words
        assert "CN=duobus self-signed authority" in words
        assert "days left" in words
    async with console() as client:
        assert "tells of no certificate" in (await client.get("/access")).words


@in_loop
async def test_generations_and_epochs_are_on_the_pages_of_stores_and_fragments() -> None:
    async with console(ORDERS) as client:
        (first, _) = (await client.data("/stores"))["rows"]
        assert first["generation"] >= 1
        assert "Generation" in (await client.get("/stores")).words
        for path in ("/stores/fragments/orders", "/entities/orders?tab=fragments"):
            fragments = (await client.data(path))["fragments"]
            assert all(one["epoch"] >= 1 for one in fragments), path
            assert "Epoch" in (await client.get(path)).words
        assert "Epoch" in (await client.get(f"/stores/{fragments[0]['store']}")).words
