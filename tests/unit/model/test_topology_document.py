"""A topology document whose rules are not what they should be: one sentence says where and what is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duobus.errors import ConfigurationError
from duobus.model.topology.changes import TopologyChanges
from duobus.model.topology.document import document, parse_document, to_config

GOOD = [
    {"name": "none"},
    {"name": "empty", "filter": None, "action": None},
    {"name": "true", "filter": {"type": "true"}},
    {"name": "false", "filter": {"type": "false"}},
    {
        "name": "sql",
        "filter": {"type": "sql", "sqlExpression": "a = @a", "parameters": {"@a": 1}},
        "action": {"sqlExpression": "SET a = @b", "parameters": {"@b": "x"}},
    },
    {"name": "correlation", "filter": {"type": "correlation", "label": "x", "properties": {"p": True}}},
]
RULE = "$.topics[0].subscriptions[0].rules[0]"
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"filter": "1=1"}, f"{RULE}.filter: an object is needed."),
    ({"filter": ["sql"]}, f"{RULE}.filter: an object is needed."),
    ({"filter": {"type": "SQL"}}, f"{RULE}.filter.type: 'sql', 'correlation', 'true' or 'false' is needed."),
    ({"filter": {"type": ["sql"]}}, f"{RULE}.filter.type: 'sql', 'correlation', 'true' or 'false' is needed."),
    ({"filter": {"type": "sql"}}, f"{RULE}.filter.sqlExpression: a text is needed."),
    ({"filter": {"type": "sql", "sqlExpression": 7}}, f"{RULE}.filter.sqlExpression: a text is needed."),
    ({"filter": {"type": "true", "sqlExpression": "a"}}, f"{RULE}.filter: there is no member 'sqlExpression'."),
    ({"filter": {"type": "correlation", "subject": "a"}}, f"{RULE}.filter: there is no member 'subject'."),
    ({"filter": {"type": "correlation", "label": 7}}, f"{RULE}.filter.label: a text is needed."),
    ({"filter": {"type": "correlation", "properties": [1]}}, f"{RULE}.filter.properties: an object is needed."),
    ({"action": "SET a = 1"}, f"{RULE}.action: an object is needed."),
    ({"action": {"parameters": {}}}, f"{RULE}.action.sqlExpression: a text is needed."),
    ({"action": {"sqlExpression": "a", "parameters": "b"}}, f"{RULE}.action.parameters: an object is needed."),
]


def parsed(rules: list[dict[str, Any]], **queue: Any) -> None:
    subscription = {"name": "s", "rules": rules}
    found = document([{"name": "q", **queue}], [{"name": "t", "subscriptions": [subscription]}])
    parse_document(json.dumps(found).encode(), None)


def test_rules_of_every_kind_are_taken() -> None:
    parsed(GOOD)


@pytest.mark.parametrize(("members", "sentence"), FAULTS)
def test_a_rule_that_is_none_is_refused_with_its_place_and_what_is_needed(
    members: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed([{"name": "r"} | members])
    assert str(refused.value) == sentence


def test_a_value_of_a_rule_that_has_no_such_type_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"\.filter\.properties\.p: "):
        parsed([{"name": "r", "filter": {"type": "correlation", "properties": {"p": {"$int": "no number"}}}}])


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ("k", "$.queues[0].authorizationRules: a list is needed."),
        (["k"], "$.queues[0].authorizationRules[0]: an object is needed."),
        ([{"keyName": "k"}], "$.queues[0].authorizationRules[0].primaryKey: a text is needed."),
        (
            [{"keyName": "k", "primaryKey": "p", "secondaryKey": "s", "rights": "Send"}],
            "$.queues[0].authorizationRules[0].rights: a list of texts is needed.",
        ),
    ],
)
def test_an_access_rule_that_is_none_is_refused_with_its_place_and_what_is_needed(rules: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed([], authorizationRules=rules)
    assert str(refused.value) == sentence


RELAY = {
    "name": "shop/web",
    "requiresClientAuthorization": True,
    "status": "Active",
    "senders": "any",
    "userMetadata": "mine",
    "authorizationRules": [
        {"keyName": "own", "primaryKey": "one", "secondaryKey": "two", "rights": ["Listen", "Send"]},
    ],
}


def test_relays_go_into_a_configuration_and_come_back_the_same() -> None:
    found = document([], [], [RELAY])
    config = to_config(found, "ns")
    again, warnings = parse_document(json.dumps(config).encode(), None)
    assert (again, warnings) == (found, ())
    # The emulator has no relays, and a file for the emulator does not speak of them.
    assert "Relays" not in to_config(document([], [], []), "ns")["UserConfig"]["Namespaces"][0]


@pytest.mark.parametrize(
    ("relays", "text"),
    [
        ({}, "$.relays: a list is needed."),
        ([{"status": "Active"}], "$.relays[0]: an object with a name is needed."),
        ([{"name": "r", "colour": "red"}], "$.relays[0]: There is no property 'colour' of a relay."),
        ([{"name": "r", "senders": "some"}], "$.relays[0]: "),
        ([{"name": "r", "authorizationRules": [{"keyName": "x"}]}], "$.relays[0].authorizationRules[0].primaryKey"),
    ],
)
def test_a_document_with_a_wrong_relay_is_refused_with_its_place(relays: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_document(json.dumps(document([], [], []) | {"relays": relays}).encode(), None)
    assert str(refused.value).startswith(text)


def test_relays_are_made_last_and_deleted_only_by_a_document_that_speaks_of_relays() -> None:
    there = document([{"name": "q"}], [], [RELAY, {"name": "old", "status": "Active"}])
    wanted = document([{"name": "shop/web/queue"}], [], [RELAY | {"senders": "http"}, {"name": "new"}])

    def steps(present: Any, wanted: Any) -> list[tuple[str, str, str]]:
        found = TopologyChanges(present, wanted, prunes=True).steps()
        return [(step.operation, step.kind, "/".join(step.names)) for step in found]

    assert steps(there, wanted) == [
        ("create", "queue", "shop/web/queue"),
        ("create", "relay", "new"),
        ("update", "relay", "shop/web"),
        ("delete", "queue", "q"),
        ("delete", "relay", "old"),
    ]
    assert steps(there, document([{"name": "q"}], [])) == []
    fixed = document([{"name": "q"}], [], [RELAY | {"requiresClientAuthorization": False}])
    assert ("conflict", "relay", "shop/web") in steps(there, fixed)
