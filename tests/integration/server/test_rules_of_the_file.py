"""Access rules of a namespace follow the configuration file: what is taken out of it opens nothing any more."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from duobus.clock import Clock, Entropy
from duobus.model.descriptions import AccessRule
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.catalog.sqlite import SqliteCatalog

ROOT = "RootManageSharedAccessKey"


def rule(name: str, key: str) -> dict[str, object]:
    return {"KeyName": name, "PrimaryKey": key, "Rights": ["Send"]}


def start(data: Path, *rules: dict[str, object], has_file: bool = True) -> dict[str, str]:
    """Start a server with these rules in its file, and stop it; returns the keys that it takes."""
    data.mkdir(exist_ok=True)
    file = data.parent / "Config.json"
    file.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "duobus", "AuthorizationRules": list(rules)}]}}))

    async def whole() -> dict[str, str]:
        settings = Settings(data=data, port=0, http_port=0, stores=1, config=file if has_file else None)
        server = Server(load_settings(settings), Clock(), Entropy())
        try:
            await server.start()
            return {rule.name: rule.primary_key for rule in server.default.rules}
        finally:
            await server.stop()

    return asyncio.run(whole())


def kept(data: Path) -> dict[str, str]:
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        return {rule.name: rule.primary_key for row in catalog.read().namespaces for rule in row.rules}


def test_a_rule_that_is_taken_out_of_the_file_is_removed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    first = start(data, rule("stays", "one"), rule("leaves", "two"))
    assert set(first) == {ROOT, "stays", "leaves"}
    assert start(data, rule("stays", "other")) == {ROOT: first[ROOT], "stays": "other"} == kept(data)
    said = [record for record in caplog.records if record.message == "access rule removed"]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert start(data) == {ROOT: first[ROOT]} == kept(data)
    assert start(data, rule("leaves", "two"))["leaves"] == "two"


def test_a_rule_with_the_time_of_its_making_outlives_files_and_one_of_the_file_has_its_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    start(data, rule("both", "of the file"))
    made = AccessRule(name="made", primary_key="mine", secondary_key="mine", rights=1, created_at_ms=5)
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        catalog.change_rules(
            "duobus",
            lambda rules: (
                *(msgspec.structs.replace(one, primary_key="newer", modified_at_ms=9) for one in rules),
                made,
            ),
        )
    assert start(data, rule("both", "of the file")) == {ROOT: "newer", "both": "of the file", "made": "mine"}
    said = [record for record in caplog.records if record.message == "access rule as in the file again"]
    assert len(said) == 1
    assert start(data) == {ROOT: "newer", "made": "mine"} == kept(data)


def test_a_start_without_any_rule_that_may_manage_makes_the_default_one_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = start(data, rule("sends", "one"))
    with closing(SqliteCatalog(data / "catalog.db")) as catalog:
        catalog.change_rules("duobus", lambda rules: tuple(one for one in rules if one.name != ROOT))
    again = start(data, rule("sends", "one"))
    assert set(again) == {ROOT, "sends"}
    assert again[ROOT] != first[ROOT]
    assert start(data, has_file=False) == again


def test_a_start_without_the_file_leaves_rules_as_they_are(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = start(data, rule("stays", "one"), rule(ROOT, "given"))
    assert start(data, has_file=False) == first
    # It cannot be told from one that the server made, whose key clients have.
    assert start(data, rule("stays", "one")) == first
