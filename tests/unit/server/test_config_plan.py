"""What a start with ``--config-mode apply`` finds out, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duobus.errors import ConfigurationError
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC, AccessRule, QueueDescription, RuleDescription, to_json
from duobus.model.topology.config_file import NamespaceConfig, parse_config
from duobus.server.topology.plan import NamespacePlan, present_entities
from duobus.server.topology.record import FILE_NAME, OwnedEntity, read_record, write_record
from duobus.storage.catalog_rows import DELETING, LIVE, EntityRow


def config(queues: list[dict[str, Any]] | None = None, topics: list[dict[str, Any]] | None = None) -> NamespaceConfig:
    namespace = {"Name": "sbemulatorns", "Queues": queues or [], "Topics": topics or []}
    return parse_config(json.dumps({"UserConfig": {"Namespaces": [namespace]}})).namespaces[0]


def queue(name: str, **properties: Any) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


def topic(name: str, *subscriptions: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {"Name": name, "Properties": properties, "Subscriptions": list(subscriptions)}


def rule(name: str, expression: str) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


def rows_of(asked: NamespaceConfig, state: str = LIVE) -> list[EntityRow]:
    """The catalog of a server that has created what a file says; ids in the order of the file, from 1."""
    found: list[tuple[str, str, bytes]] = [(QUEUE, one.name, to_json(one)) for one in asked.queues]
    for one in asked.topics:
        found.append((TOPIC, one.name, to_json(one)))
        found.extend((SUBSCRIPTION, f"{one.name}/Subscriptions/{two.name}", to_json(two)) for two in one.subscriptions)
    return [
        EntityRow(number, asked.name, kind, path, about, state, 1, ())
        for number, (kind, path, about) in enumerate(found, 1)
    ]


def owned_of(asked: NamespaceConfig) -> dict[int, OwnedEntity]:
    """The record of the same server."""
    rules: list[tuple[str, ...]] = [tuple(one.name for one in found.authorization_rules) for found in asked.queues]
    for found in asked.topics:
        rules.append(())
        rules.extend(tuple(one.name for one in two.rules) for two in found.subscriptions)
    return {
        row.entity_id: OwnedEntity(row.entity_id, row.namespace, row.path, names)
        for row, names in zip(rows_of(asked), rules, strict=True)
    }


def plan(before: NamespaceConfig, after: NamespaceConfig, owned: dict[int, OwnedEntity] | None = None) -> NamespacePlan:
    there = present_entities(before.name, rows_of(before))
    return NamespacePlan(after, there, owned_of(before) if owned is None else owned)


def told(found: NamespacePlan) -> list[tuple[str, str, str]]:
    return [(step.operation, step.kind, "/".join(step.names)) for step in found.steps]


FULL = config(
    [queue("orders", LockDuration="PT30S", ForwardTo="all"), queue("all", RequiresSession=False)],
    [topic("news", {"Name": "one", "Properties": {}}, {"Name": "two", "Rules": [rule("big", "size > 1")]})],
)


def test_the_same_file_leaves_nothing_to_do() -> None:
    assert told(plan(FULL, FULL)) == []


def test_an_empty_catalog_gets_each_queue_and_topic_with_all_that_belongs_to_them() -> None:
    found = plan(config(), FULL)
    assert told(found) == [("create", "queue", "orders"), ("create", "queue", "all"), ("create", "topic", "news")]
    assert told(plan(config(), config())) == []


def test_a_property_that_the_file_changes_or_no_longer_mentions_is_changed() -> None:
    before = config([queue("orders", LockDuration="PT30S", ForwardTo="all", UserMetadata="old"), queue("all")])
    found = plan(before, config([queue("Orders", MaxDeliveryCount=7), queue("all")]))
    changes: dict[str, Any] = {}
    for step in found.updates:
        changes |= step.changes
    assert changes == {
        "lockDuration": ["PT30S", "PT1M"],
        "forwardTo": ["all", None],
        "userMetadata": ["old", None],
        "maxDeliveryCount": [3, 7],
    }
    wanted = found.wanted(found.updates[0])
    assert isinstance(wanted, QueueDescription)
    assert (wanted.lock_duration_ms, wanted.forward_to, wanted.max_delivery_count) == (60_000, None, 7)


def test_what_a_file_has_no_member_for_stays_when_something_else_is_changed() -> None:
    before = config([], [topic("news")])
    (row,) = rows_of(before)
    about = row.description.replace(
        b'"enable_subscription_partitioning":false', b'"enable_subscription_partitioning":true'
    )
    there = present_entities(before.name, [EntityRow(1, row.namespace, TOPIC, "news", about, LIVE, 1, ())])
    found = NamespacePlan(config([], [topic("news", UserMetadata="new")]), there, {})
    assert getattr(found.wanted(found.updates[0]), "enable_subscription_partitioning") is True  # noqa: B009


@pytest.mark.parametrize("element", ["RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning"])
def test_a_property_that_cannot_change_is_a_conflict(element: str) -> None:
    found = plan(config([queue("orders")]), config([queue("orders", **{element: True})]))
    assert found.conflicts == [f"{element} true for the queue 'orders', where it is false"]
    assert found.steps == []


def test_a_queue_cannot_become_a_topic() -> None:
    assert plan(config([queue("x")]), config([], [topic("X")])).conflicts == ["'X' as a topic, which is a queue"]


def test_what_the_file_no_longer_has_is_deleted_and_what_it_never_had_is_not() -> None:
    before = config([queue("orders"), queue("mine")], [topic("news", {"Name": "one"}, {"Name": "mine"})])
    owned = {number: entity for number, entity in owned_of(before).items() if "mine" not in entity.path}
    assert told(plan(before, config([], [topic("news")]), owned)) == [
        ("delete", "subscription", "news/one"),
        ("delete", "queue", "orders"),
    ]
    assert told(plan(before, config(), {})) == []


def test_an_entity_that_was_deleted_and_created_again_by_a_client_is_not_the_file_s() -> None:
    before = config([queue("orders")])
    former = {7: OwnedEntity(7, before.name, "orders")}
    assert told(plan(before, config(), former)) == []


def test_an_entity_that_is_being_deleted_is_not_there() -> None:
    before = config([queue("orders")])
    there = present_entities(before.name, rows_of(before, DELETING))
    assert told(NamespacePlan(before, there, owned_of(before))) == [("create", "queue", "orders")]


def test_rules_follow_the_file_and_those_of_clients_stay() -> None:
    before = config([], [topic("news", {"Name": "one"}), topic("more", {"Name": "one", "Rules": [rule("a", "x = 1")]})])
    after = config(
        [],
        [
            topic("news", {"Name": "one", "Rules": [rule("big", "size > 1")]}),
            topic("more", {"Name": "one", "Rules": [rule("a", "x = 2")]}),
        ],
    )
    found = plan(before, after)
    assert told(found) == [
        ("create", "rule", "news/one/big"),
        ("delete", "rule", "news/one/$Default"),
        ("update", "rule", "more/one/a"),
    ]
    assert found.rule(found.updates[2]) == RuleDescription(name="a", filter_type="Sql", sql_filter="x = 2")
    others = {number: OwnedEntity(number, one.namespace, one.path) for number, one in owned_of(before).items()}
    assert ("delete", "rule", "news/one/$Default") not in told(plan(before, after, others))


def test_an_action_that_comes_changes_or_goes_changes_its_rule() -> None:
    def with_action(expression: str | None) -> NamespaceConfig:
        one = rule("a", "x = 1")
        if expression is not None:
            one["Properties"]["Action"] = {"SqlExpression": expression}
        return config([], [topic("news", {"Name": "one", "Rules": [one]})])

    for before, after in ((None, "SET y = 1"), ("SET y = 1", "SET y = 2"), ("SET y = 2", None)):
        found = plan(with_action(before), with_action(after))
        assert told(found) == [("update", "rule", "news/one/a")]
        assert found.rule(found.updates[0]).sql_action == after
    assert told(plan(with_action("SET y = 1"), with_action("SET y = 1"))) == []


def test_access_rules_of_an_entity_follow_the_file_and_those_of_clients_stay() -> None:
    def key(name: str, text: str) -> dict[str, Any]:
        return {"KeyName": name, "PrimaryKey": text, "Rights": ["Send"]}

    before = config([queue("orders", AuthorizationRules=[key("files", "1"), key("clients", "2"), key("gone", "3")])])
    owned = {1: OwnedEntity(1, before.name, "orders", ("files", "gone"))}
    after = config([queue("orders", AuthorizationRules=[key("files", "other")])])
    found = plan(before, after, owned)
    (step,) = found.updates
    wanted = found.wanted(step)
    assert isinstance(wanted, QueueDescription)
    assert [(one.name, one.primary_key) for one in wanted.authorization_rules] == [("files", "other"), ("clients", "2")]
    assert all(isinstance(one, AccessRule) for one in wanted.authorization_rules)
    # Keys are not told.
    assert step.record()["changes"] == {"authorizationRules": ["***", "***"]}


def test_the_order_of_access_rules_makes_no_difference() -> None:
    keys = [{"KeyName": name, "PrimaryKey": "k", "Rights": ["Listen"]} for name in "ab"]
    before, after = (config([queue("q", AuthorizationRules=order)]) for order in (keys, keys[::-1]))
    assert told(plan(before, after)) == []


def test_a_record_is_read_as_it_was_written_and_says_nothing_about_another_catalog(tmp_path: Path) -> None:
    assert read_record(tmp_path, 5) == {}
    owned = owned_of(FULL)
    write_record(tmp_path, 5, owned)
    assert read_record(tmp_path, 5) == owned
    assert read_record(tmp_path, 6) == {}
    assert read_record(None, 5) == {}
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    # As after a power cut in the middle of the next one.
    (tmp_path / FILE_NAME).with_suffix(".tmp").write_text("half")
    write_record(tmp_path, 5, {})
    assert read_record(tmp_path, 5) == {}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "\xff"])
def test_a_damaged_record_ends_the_start_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match="Delete it: then the next start deletes no entity"):
        read_record(tmp_path, 5)
