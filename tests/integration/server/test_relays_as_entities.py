"""Relays as entities: their names, their properties, and that they last over restarts and a lost catalog."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock
from duobus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    NotAllowed,
)
from duobus.model.access_rules import ADD, RuleChange
from duobus.model.address import parse_address
from duobus.model.descriptions import AccessRule, QueueDescription
from duobus.model.relay.description import HybridConnectionDescription
from duobus.model.topology.config_file import parse_config
from duobus.storage.offline.access_rules import stopped_rules
from duobus.storage.offline.catalog_rebuild import adopt
from kits.gateway import in_loop, serving
from kits.http_client import Http, token

RULE = AccessRule(name="own", primary_key="one", secondary_key="two", rights=3)


def relay(name: str = "a/relay", **properties: Any) -> HybridConnectionDescription:
    return HybridConnectionDescription(name=name, **properties)


@in_loop
async def test_queues_topics_and_relays_share_one_name_space() -> None:
    async with serving(QueueDescription(name="Q")) as server:
        relays = server.unit.relays
        relays.create("ns", relay("R/one"))
        for name in ("q", "r/ONE"):
            with pytest.raises(EntityAlreadyExists):
                relays.create("ns", relay(name))
        with pytest.raises(EntityAlreadyExists):
            await server.unit.create_queue("ns", QueueDescription(name="r/one"))
        with pytest.raises(NotAllowed):
            server.unit.namespace("ns").resolve(parse_address("r/one"))
        relays.delete("ns", "r/One")
        await server.unit.create_queue("ns", QueueDescription(name="r/one"))
        with pytest.raises(EntityNotFound):
            relays.delete("ns", "r/one")


@in_loop
async def test_properties_that_are_wrong_or_fixed_are_refused() -> None:
    async with serving() as server:
        relays = server.unit.relays
        for wrong in (
            relay("a//b"),
            relay(status="ReceiveDisabled"),
            relay(senders="some"),
            relay(authorization_rules=(RULE, RULE)),
        ):
            with pytest.raises(ArgumentInvalid):
                relays.create("ns", wrong)
        with pytest.raises(ArgumentOutOfRange):
            relays.create("ns", relay(user_metadata="x" * 1025))
        relays.create("ns", relay())
        with pytest.raises(ArgumentInvalid):
            relays.update("ns", relay(requires_client_authorization=False))


@in_loop
async def test_a_relay_lasts_over_a_restart_with_all_of_its_properties(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": tmp_path / "bus", "ephemeral": False}
    async with serving(**options) as server:
        made = server.unit.relays.create("ns", relay(user_metadata="mine", authorization_rules=(RULE,)))
        server.unit.relays.create("ns", relay("gone"))
        server.unit.relays.delete("ns", "gone")
        about = made.description
    async with serving(**options) as server:
        found = server.unit.namespace("ns").relays
        assert [one.description for one in found.values()] == [about]
        assert not server.unit.namespace("ns").unbuilt


@in_loop
async def test_a_catalog_that_is_rebuilt_from_the_stores_has_the_relays_again(tmp_path: Path) -> None:
    data = tmp_path / "bus"
    options: dict[str, Any] = {"data": data, "ephemeral": False}
    async with serving(**options) as server:
        server.unit.relays.create("ns", relay())
        server.unit.relays.create("ns", relay("gone"))
        server.unit.relays.delete("ns", "gone")
    for path in data.glob("catalog*"):
        path.unlink()
    adopt(data, Clock())
    async with serving(**options) as server:
        assert list(server.unit.namespace("ns").relays) == ["a/relay"]


@in_loop
async def test_relays_are_managed_over_http_and_changes_are_audited(tmp_path: Path) -> None:
    data = tmp_path / "bus"
    async with serving(data=data, ephemeral=False) as server:
        http = await Http.connect(server.port("http") or 0)
        made = await http.ask("PUT", "/$duobus/relays/a/b?must=new", body=b'{"userMetadata":"x"}')
        assert made.status == 201
        shown = json.loads(made.text)
        assert (shown["name"], shown["userMetadata"], shown["listeners"]) == ("a/b", "x", 0)
        assert (await http.ask("PUT", "/$duobus/relays/a/b?must=new", body=b"{}")).status == 409
        assert (await http.ask("PUT", "/$duobus/relays/c?must=there", body=b"{}")).status == 404
        assert (await http.ask("PUT", "/$duobus/relays/c", body=b'{"colour":1}')).status == 400
        assert (await http.ask("PUT", "/$duobus/relays/a/b", body=b'{"status":"Disabled"}')).status == 200
        listed = json.loads((await http.ask("GET", "/$duobus/relays")).text)
        assert [(one["name"], one["status"], one["userMetadata"]) for one in listed] == [("a/b", "Disabled", "x")]
        foreign = {"Authorization": token(key="wrong")}
        for method, target in (("GET", ""), ("GET", "/a/b"), ("PUT", "/a/b"), ("DELETE", "/a/b")):
            assert (await http.ask(method, f"/$duobus/relays{target}", headers=foreign)).status == 401
        assert (await http.ask("DELETE", "/$duobus/relays/a/b")).status == 200
        assert (await http.ask("GET", "/$duobus/relays/a/b")).status == 404
    lines = "".join(path.read_text() for path in data.rglob("audit-*.jsonl"))
    told = [json.loads(line) for line in lines.splitlines()]
    assert [line["operation"] for line in told if line.get("kind") == "relay"] == ["create", "update", "delete"]


@in_loop
async def test_a_question_about_a_relay_is_answered_by_the_server_and_not_by_a_listener() -> None:
    async with serving() as server:
        server.unit.relays.create("ns", relay(user_metadata="a<b"))
        http = await Http.connect(server.port("http") or 0)
        ask = {"X-PROCESS-AT": "ServiceBus"}
        found = await http.ask("GET", "/a/relay?api-version=2016-07", headers=ask)
        assert (found.status, found.header("Content-Type")) == (200, "application/atom+xml;type=entry;charset=utf-8")
        assert "<HybridConnectionDescription " in found.text
        assert "<ListenerCount>0</ListenerCount>" in found.text
        assert "<UserMetadata>a&lt;b</UserMetadata>" in found.text
        missing = await http.ask("GET", "/nowhere?api-version=2016-07", headers=ask)
        assert "type=feed" in (missing.header("Content-Type") or "")
        wrong = await http.ask("GET", "/a/relay", headers=ask | {"Authorization": token(key="wrong")})
        assert wrong.status == 401


def _config(relays: str) -> str:
    return f'{{"UserConfig":{{"Namespaces":[{{"Name":"ns","Queues":[{{"Name":"q"}}]{relays}}}]}}}}'


def test_a_configuration_may_have_relays_and_one_of_the_emulator_is_read_as_before() -> None:
    (plain,) = parse_config(_config("")).namespaces
    assert plain.relays == ()
    text = _config(',"Relays":[{"Name":"r","Properties":{"RequiresClientAuthorization":false,"Senders":"http"}}]')
    contents = parse_config(text)
    assert contents.namespaces[0].relays == (relay("r", requires_client_authorization=False, senders="http"),)
    assert contents.warnings == ()


@in_loop
async def test_the_access_rules_of_a_relay_are_changed_while_no_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "bus"
    options: dict[str, Any] = {"data": data, "ephemeral": False}
    async with serving(**options) as server:
        server.unit.relays.create("ns", relay(authorization_rules=(RULE,)))

    def change() -> None:
        given: dict[str, Any] = {"new_key": lambda: "new", "who": "test", "clock": Clock(), "emulator_key": ""}
        with stopped_rules(data, None, **given) as rules:
            rules.change("A/Relay", RuleChange(verb=ADD, name="more", rights=1))

    await asyncio.to_thread(change)
    async with serving(**options) as server:
        found = server.unit.relays.find("ns", "a/relay").description.authorization_rules
        assert [rule.name for rule in found] == ["own", "more"]
