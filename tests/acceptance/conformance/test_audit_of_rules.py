"""What ``$management`` changes of rules is in the audit log, as what HTTP changes."""

from __future__ import annotations

import uuid

from kit_bus import Bus
from kit_place import ask

from duobus.cli.remote import Remote
from duobus.telemetry.audit_log import read_audit
from kits.raw_client import RawClient


def test_rules_that_are_added_and_removed_over_amqp_are_told(bus: Bus, raw: RawClient) -> None:
    topic = f"audited-{uuid.uuid4().hex}"
    with Remote(bus.process.connection_string, None, None).administration(topic) as client:
        client.create_topic(topic)
        client.create_subscription(topic, "s")
    path = f"{topic}/Subscriptions/s"
    rule = {"rule-name": "mine", "rule-description": {"sql-filter": {"expression": "a = 1"}}}
    assert ask(raw, "add-rule", rule, queue=path).status == 200
    assert ask(raw, "add-rule", rule, queue=path).status == 409
    assert ask(raw, "remove-rule", {"rule-name": "mine"}, queue=path).status == 200
    (folder,) = bus.process.log_path.parent.rglob("audit")
    found = [one for one in read_audit(folder) if one["path"].startswith(path + "/")]
    assert [(one["operation"], one["outcome"] == "done", one["door"]) for one in found] == [
        ("create", True, "amqp"),
        ("create", False, "amqp"),
        ("delete", True, "amqp"),
    ]
    assert {(one["who"], one["from"], one["kind"]) for one in found} == {
        ("RootManageSharedAccessKey", "127.0.0.1", "rule")
    }
    assert found[0]["changes"]["sql_filter"] == [None, "a = 1"]
