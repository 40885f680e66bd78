"""The audit log of a real server process, and ``duobus audit``, which reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from azure.servicebus.management import AuthorizationRule, TrueRuleFilter
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.cli.remote import Remote
from duobus.testing.server import ServerProcess


def audit(data: Path, *words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["audit", "--data", str(data), *words])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_change_is_told_with_who_when_from_where_and_what(tmp_path: Path) -> None:
    key = "cHJpbWFyeSBrZXk="
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="reader",
        primary_key=key,
        secondary_key=key,
        rights=["Listen"],
    )
    with ServerProcess(tmp_path / "server") as server:
        with Remote(server.connection_string, None, None).administration("all") as client:
            client.create_queue("orders", authorization_rules=[rule])
            orders = client.get_queue("orders")
            orders.max_delivery_count = 5
            orders.authorization_rules[0].primary_key = "b3RoZXIga2V5"
            client.update_queue(orders)
            client.create_topic("t")
            client.create_subscription("t", "s")
        with Remote(server.connection_string, None, None).administration("all") as client:
            client.create_rule("t", "s", "mine", filter=TrueRuleFilter())
            client.delete_rule("t", "s", "mine")
            client.delete_queue("orders")
            result = CliRunner().invoke(
                main, ["queue", "create", "t"], env={"DUOBUS_CONNECTION_STRING": server.connection_string}
            )
            assert result.exit_code == 4
        data = next(path.parent for path in (tmp_path / "server").rglob("audit"))
        # While the server runs.
        found = audit(data)
        server.kill()
    assert found == audit(data)
    assert [(one["operation"], one["kind"], one["path"], one["door"]) for one in found] == [
        ("create", "queue", "orders", "http"),
        ("update", "queue", "orders", "http"),
        ("create", "topic", "t", "http"),
        ("create", "subscription", "t/Subscriptions/s", "http"),
        ("create", "rule", "t/Subscriptions/s/Rules/mine", "http"),
        ("delete", "rule", "t/Subscriptions/s/Rules/mine", "http"),
        ("delete", "queue", "orders", "http"),
        ("create", "queue", "t", "http"),
    ]
    assert {one["who"] for one in found} == {"RootManageSharedAccessKey"}
    assert {one["from"] for one in found} <= {"127.0.0.1", "::1"}
    assert found[1]["changes"]["max_delivery_count"] == [10, 5]
    assert found[1]["changes"]["authorization_rules"][0][0]["primary_key"] == "***"
    text = b"".join(path.read_bytes() for path in (data / "audit").iterdir())
    assert key.encode() not in text
    assert b"b3RoZXIga2V5" not in text
    assert "exists already" in found[-1]["outcome"]
    assert audit(data, "--failed") == found[-1:]
    assert audit(data, "--path", "T/subscriptions/S") == found[3:6]
    assert audit(data, "--operation", "delete", "--count", "1") == [found[6]]
    assert audit(data, "--since", found[6]["at"]) == found[6:]
    assert audit(data, "--who", "nobody") == []
