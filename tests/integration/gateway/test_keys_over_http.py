"""``/$duobus/keys``: who may ask for which access rules, what is refused, and what an answer holds."""

from __future__ import annotations

import json
from typing import Any

from duobus.errors import StoreFailed
from duobus.model.descriptions import AccessRule, QueueDescription
from kits.gateway import RULE, in_loop, serving
from kits.http_client import Http, Reply, token

OWN = AccessRule(name="own", primary_key="own 1", secondary_key="own 2", rights=7)
SENDS = AccessRule(name="sends", primary_key="sends 1", secondary_key="sends 2", rights=2)


def found(reply: Reply) -> Any:
    assert reply.status in {200, 201}, reply.text
    # Nobody on the way keeps a key.
    assert reply.header("Cache-Control") == "no-store"
    return json.loads(reply.text)


@in_loop
async def test_a_list_has_no_keys_and_a_rule_has_both() -> None:
    async with serving(
        QueueDescription(name="Q", authorization_rules=(OWN, SENDS)), QueueDescription(name="none")
    ) as one:
        http = await Http.connect(one.port("http") or 0)
        listed = found(await http.ask("GET", "/$duobus/keys"))
        assert [(rule["entity"], rule["name"]) for rule in listed] == [(None, RULE), ("Q", "own"), ("Q", "sends")]
        assert not [name for rule in listed for name in rule if "Key" in name]
        assert found(await http.ask("GET", "/$duobus/keys?entity=none")) == []
        shown = found(await http.ask("GET", "/$duobus/keys/own?entity=q"))
        assert (shown["entity"], shown["primaryKey"], shown["secondaryKey"]) == ("Q", "own 1", "own 2")
        assert shown["rights"] == ["Listen", "Send", "Manage"]
        assert (await http.ask("GET", "/$duobus/keys?entity=nowhere")).status == 404
        assert (await http.ask("GET", "/$duobus/keys/nobody")).status == 404


@in_loop
async def test_rules_are_for_those_who_may_manage_what_they_are_of() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(OWN, SENDS)), QueueDescription(name="p")) as one:
        http = await Http.connect(one.port("http") or 0)
        asked = [
            ("GET", "/$duobus/keys{}"),
            ("GET", "/$duobus/keys/own{}"),
            ("PUT", "/$duobus/keys/new{}&rights=Send"),
            ("POST", "/$duobus/keys/own/rotate{}&which=primary"),
            ("POST", "/$duobus/keys/own/swap{}"),
            ("POST", "/$duobus/keys/own/rights{}&rights=Send"),
            ("DELETE", "/$duobus/keys/own{}"),
        ]
        for authorization in ("", token(key="wrong"), token("q", rule="sends", key=SENDS.primary_key)):
            for method, target in asked:
                reply = await http.ask(method, target.format("?entity=q"), headers={"Authorization": authorization})
                assert reply.status == 401, (method, target)
        own = {"Authorization": token("q", rule="own", key=OWN.primary_key)}
        for query in ("?entity=p", "?"):
            for method, target in asked:
                assert (await http.ask(method, target.format(query), headers=own)).status == 401, (query, method)
        found(await http.ask("PUT", "/$duobus/keys/new?entity=q&rights=Send", headers=own))
        found(await http.ask("POST", "/$duobus/keys/own/rotate?entity=q&which=primary", headers=own))
        # The key that asked is gone, and counts no more.
        assert (await http.ask("GET", "/$duobus/keys?entity=q", headers=own)).status == 401


@in_loop
async def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(OWN,))) as one:
        http = await Http.connect(one.port("http") or 0)
        before = found(await http.ask("GET", "/$duobus/keys"))
        for method, target, status in (
            ("PUT", "/$duobus/keys/new", 400),
            ("PUT", "/$duobus/keys/new?rights=Own", 400),
            ("PUT", "/$duobus/keys/a%20b?rights=Send", 400),
            ("PUT", f"/$duobus/keys/{RULE}?rights=Send", 409),
            ("POST", "/$duobus/keys/own/rotate?entity=q", 400),
            ("POST", "/$duobus/keys/own/rotate?entity=q&which=third", 400),
            ("POST", "/$duobus/keys/own/turn?entity=q", 405),
            ("POST", "/$duobus/keys/own/rights?entity=q", 400),
            ("POST", "/$duobus/keys/own/rights?entity=q&rights=Own", 400),
            ("POST", f"/$duobus/keys/{RULE}/rights?rights=Send", 400),
            ("POST", "/$duobus/keys/own?entity=q", 405),
            ("PUT", "/$duobus/keys?rights=Send", 405),
            ("DELETE", "/$duobus/keys", 405),
            ("GET", "/$duobus/keys/own/more?entity=q", 405),
            # It comes back with each start of --emulator.
            ("DELETE", f"/$duobus/keys/{RULE}", 400),
            ("POST", f"/$duobus/keys/{RULE}/swap", 400),
        ):
            reply = await http.ask(method, target)
            assert reply.status == status, (method, target, reply.text)
        assert found(await http.ask("GET", "/$duobus/keys")) == before


@in_loop
async def test_a_rule_gets_other_rights_and_its_keys_open_only_that_from_then_on() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(OWN,))) as one:
        http = await Http.connect(one.port("http") or 0)
        own = {"Authorization": token("q", rule="own", key=OWN.primary_key)}
        assert (await http.ask("GET", "/$duobus/keys?entity=q", headers=own)).status == 200
        changed = found(await http.ask("POST", "/$duobus/keys/own/rights?entity=q&rights=Send"))
        assert (changed["rights"], changed["primaryKey"]) == (["Send"], OWN.primary_key)
        assert (await http.ask("GET", "/$duobus/keys?entity=q", headers=own)).status == 401


@in_loop
async def test_a_catalog_that_cannot_be_written_changes_no_key() -> None:
    async with serving(QueueDescription(name="q", authorization_rules=(OWN,))) as one:
        http = await Http.connect(one.port("http") or 0)
        found(await http.ask("PUT", "/$duobus/keys/app?rights=Send"))
        before = found(await http.ask("GET", "/$duobus/keys/app"))

        def fail(*_: Any) -> Any:
            raise StoreFailed("the disk is full")

        one.unit.catalog.change_rules = fail  # type: ignore[method-assign] # a catalog that has failed
        one.unit.catalog.update_description = fail  # type: ignore[method-assign]
        for target in ("/$duobus/keys/app/swap", "/$duobus/keys/own/swap?entity=q"):
            reply = await http.ask("POST", target)
            assert (reply.status, "the disk is full" in reply.text) == (503, True)
        assert found(await http.ask("GET", "/$duobus/keys/app")) == before
        assert found(await http.ask("GET", "/$duobus/keys/own?entity=q"))["primaryKey"] == OWN.primary_key
