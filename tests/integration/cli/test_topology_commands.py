"""``duobus topology`` against real server processes: out of one, into another, and once more without a change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)
from click.testing import CliRunner, Result

from duobus.cli.main import main
from duobus.cli.remote import Remote, operate
from duobus.console.namespace.sdk_forms import entity_form
from duobus.testing.server import ServerProcess


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with (
        ServerProcess(tmp_path_factory.mktemp("one")) as one,
        ServerProcess(tmp_path_factory.mktemp("other")) as other,
    ):
        with Remote(one.connection_string, None, None).administration("all") as client:
            fill(client)
        yield one, other


def test_what_was_made_before_a_failure_is_told(tmp_path: Path) -> None:
    rule = {"name": "cut", "filter": {"type": "sql", "sqlExpression": "no filter ("}}
    topic = {"name": "t", "subscriptions": [{"name": "s", "rules": [rule]}]}
    document = {"kind": "duobus-topology", "version": 1, "queues": [{"name": "q"}], "topics": [topic]}
    with ServerProcess(tmp_path) as server:
        failed = run(server, "import", "-", given=json.dumps(document), status=1)
        made = [json.loads(line)["path"] for line in failed.stdout.splitlines()]
        assert made[:2] == ["q", "t"]
        assert failed.stderr.startswith(f"Done before the failure: create {len(made)}, update 0, delete 0.\nError: ")


def fill(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("end", requires_session=False, lock_duration="PT30S")
    client.create_queue("a/parted", enable_partitioning=True, max_delivery_count=3, user_metadata="ünïcode")
    client.create_queue("start", forward_to="end", forward_dead_lettered_messages_to="a/parted")
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="reader",
        primary_key="cHJpbWFyeSBrZXk=",
        secondary_key="c2Vjb25kYXJ5IGtleQ==",
        rights=["Listen"],
    )
    client.create_queue("guarded", authorization_rules=[rule])
    client.create_topic("t", requires_duplicate_detection=True, default_message_time_to_live="PT1H")
    client.create_subscription("t", "s", forward_to="end", max_delivery_count=2)
    client.delete_rule("t", "s", "$Default")
    client.create_rule("t", "s", "sql", filter=SqlRuleFilter("a > @x", {"@x": 5}), action=SqlRuleAction("SET b = 1"))
    client.create_rule(
        "t", "s", "correlation", filter=CorrelationRuleFilter(label="l", properties={"n": 5, "text": "x", "flag": True})
    )
    client.create_subscription("t", "none")
    client.delete_rule("t", "none", "$Default")
    client.create_rule("t", "none", "never", filter=FalseRuleFilter())
    client.create_subscription("t", "all")


def run(server: ServerProcess, *words: str, status: int = 0, given: str = "") -> Result:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, ["topology", *words], env=environment, input=given)
    assert result.exit_code == status, (result.output, result.exception)
    assert "SAS_KEY_VALUE" not in result.output
    return result


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_namespace_is_made_again_and_nothing_is_left_to_do(servers: tuple[ServerProcess, ServerProcess]) -> None:
    one, other = servers
    text = run(one, "export").stdout
    assert "cHJpbWFyeSBrZXk" not in text
    would = run(other, "import", "-", "--dry-run", given=text)
    assert {record["operation"] for record in records(would)} == {"create", "update", "delete"}
    assert json.loads(run(other, "export").stdout)["queues"] == []
    done = run(other, "import", "-", given=text)
    assert records(done) == records(would)
    assert run(other, "export").stdout == text
    again = run(other, "import", "-", given=text)
    assert (again.stdout, again.stderr.strip()) == ("", "Done: create 0, update 0, delete 0. Left: 0.")


def test_a_change_is_shown_as_what_it_is_and_will_be_and_then_made(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    one, _ = servers
    text = run(one, "export", "--with-keys").stdout
    found = json.loads(text)
    queues = {queue["name"]: queue for queue in found["queues"]}
    queues["end"]["lockDuration"] = "PT20S"
    queues["start"]["forwardTo"] = "a/parted"
    queues["a/parted"]["enablePartitioning"] = False
    queues["guarded"]["authorizationRules"][0]["primaryKey"] = "bmV3IGtleQ=="
    rules = next(one for one in found["topics"][0]["subscriptions"] if one["name"] == "s")["rules"]
    rules[1] = {"name": "sql", "filter": {"type": "sql", "sqlExpression": "a > 6"}}
    shown = run(one, "import", "-", "--dry-run", given=json.dumps(found), status=7)
    steps = {(record["operation"], record["path"]): record["changes"] for record in records(shown)}
    assert steps == {
        ("update", "end"): {"lockDuration": ["PT30S", "PT20S"]},
        ("conflict", "a/parted"): {"enablePartitioning": [True, False]},
        ("update", "start"): {"forwardTo": ["end", "a/parted"]},
        ("update", "guarded"): {"authorizationRules": ["***", "***"]},
        ("update", "t/s/sql"): {
            "filter": [
                {"type": "sql", "sqlExpression": "a > @x", "parameters": {"@x": 5}},
                {"type": "sql", "sqlExpression": "a > 6"},
            ],
            "action": [{"sqlExpression": "SET b = 1"}, None],
        },
    }
    queues["a/parted"]["enablePartitioning"] = True
    run(one, "import", "-", given=json.dumps(found))
    assert json.loads(run(one, "export", "--with-keys").stdout) == found
    # And back, for the other tests.
    run(one, "import", "-", given=text)


def test_what_the_file_does_not_have_goes_only_when_that_is_asked_for(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    one, other = servers
    text = run(one, "export").stdout
    run(other, "import", "-", given=text)
    found = json.loads(text)
    found["queues"] = [queue for queue in found["queues"] if queue["name"] != "guarded"]
    del found["topics"][0]["subscriptions"][0]
    assert run(other, "import", "-", given=json.dumps(found)).stdout == ""
    run(other, "import", "-", "--prune", given=json.dumps(found), status=2)
    pruned = run(other, "import", "-", "--prune", "--yes", given=json.dumps(found))
    assert [(one["operation"], one["path"]) for one in records(pruned)] == [("delete", "t/all"), ("delete", "guarded")]
    assert json.loads(run(other, "export").stdout) == found


def test_the_emulators_file_goes_both_ways(servers: tuple[ServerProcess, ServerProcess], tmp_path: Path) -> None:
    one, other = servers
    exported = run(one, "export", "--format", "config")
    assert "t/s/sql" in exported.stderr
    config = exported.stdout.replace("@x", "5")
    file = tmp_path / "Config.json"
    # With a comment, as the emulator's own.
    file.write_text("// exported\n" + config)
    run(other, "import", str(file), "--prune", "--yes")
    assert json.loads(run(other, "export", "--format", "config").stdout) == json.loads(config)
    assert run(other, "import", str(file)).stdout == ""


def test_what_is_no_topology_is_refused_with_its_place(servers: tuple[ServerProcess, ServerProcess]) -> None:
    one, _ = servers
    assert "neither a topology" in run(one, "import", "-", given="{}", status=1).stderr
    wrong = {"kind": "duobus-topology", "version": 1, "queues": [{"name": "q", "lockduration": "PT1M"}]}
    assert (
        "$.queues[0]: there is no property 'lockduration'"
        in run(one, "import", "-", given=json.dumps(wrong), status=1).stderr
    )
    config = '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": 5}]}]}}'
    assert "Queues[0]" in run(one, "import", "-", given=config, status=1).stderr


@pytest.mark.parametrize(
    ("told", "message_kib", "of_one"),
    [
        (16_384, 256, 1024),
        (81_920, 256, 5120),
        (2048, 1024, 1024),
        (10_240, 1024, 5120),
        (81_920, 1024, 40_960),
        (163_840, 1024, 81_920),
        (16_384, 1024, 1024),
        (1, 256, 1),
    ],
)
def test_a_partitioned_entity_is_exported_with_the_size_of_one_of_16_or_2_partitions(
    told: int, message_kib: int, of_one: int
) -> None:
    about = {"enable_partitioning": True, "max_size_in_megabytes": told, "max_message_size_in_kilobytes": message_kib}
    found = entity_form("queue", SimpleNamespace(name="q", **about), with_keys=False)
    assert found["maxSizeInMegabytes"] == of_one


def test_relays_with_their_rules_and_keys_go_from_one_namespace_into_another(tmp_path: Path) -> None:
    rule = {"keyName": "own", "primaryKey": "one", "secondaryKey": "two", "rights": ["Listen", "Send"]}
    about = {"userMetadata": "mine", "senders": "http", "authorizationRules": [rule]}
    (tmp_path / "from").mkdir()
    (tmp_path / "into").mkdir()
    with ServerProcess(tmp_path / "from") as one, ServerProcess(tmp_path / "into") as other:
        first, second = (Remote(server.connection_string, None, None) for server in (one, other))
        operate(first, "PUT", "relays/shop/web", None, about)
        plain = json.loads(run(one, "export").stdout)
        assert plain["relays"] == [
            {
                "name": "shop/web",
                "requiresClientAuthorization": True,
                "userMetadata": "mine",
                "status": "Active",
                "senders": "http",
            }
        ]
        whole = run(one, "export", "--with-keys").stdout
        told = records(run(other, "import", "-", "-o", "jsonl", given=whole))
        assert [(step["operation"], step["kind"], step["path"]) for step in told] == [("create", "relay", "shop/web")]
        assert '"one"' not in json.dumps(told)
        found = operate(second, "GET", "relays/shop/web", {"keys": "true"})["authorizationRules"]
        assert [item | {"rights": sorted(item["rights"])} for item in found] == [rule]
        assert records(run(other, "import", "-", "-o", "jsonl", given=whole)) == []
        operate(second, "PUT", "relays/shop/web", None, {"senders": "any", "status": "Disabled"})
        (step,) = records(run(other, "import", "-", "-o", "jsonl", given=whole))
        assert step["changes"] == {"status": ["Disabled", "Active"], "senders": ["any", "http"]}
        # A Config.json has the relays, too.
        config = run(one, "export", "--format", "config", "--with-keys").stdout
        assert records(run(other, "import", "-", "-o", "jsonl", given=config)) == []
        operate(second, "PUT", "relays/more", None, {})
        (gone,) = records(run(other, "import", "-", "--prune", "--yes", "-o", "jsonl", given=whole))
        assert (gone["operation"], gone["kind"], gone["path"]) == ("delete", "relay", "more")
        assert [one["name"] for one in operate(second, "GET", "relays")] == ["shop/web"]
