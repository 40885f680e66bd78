"""The JavaScript SDK's administration client, unmodified, over TLS with the generated authority."""

from __future__ import annotations

from typing import Any

import pytest
from kit_node import INSTALL_LIMIT_S, POOL, Node, NodeBus

from kits.programs import LIMIT_S

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)

#: Every property of a queue that can be set, with a value that is not its default.
PROPERTIES: dict[str, Any] = {
    "lockDuration": "PT13S",
    "maxSizeInMegabytes": 2048,
    "requiresDuplicateDetection": True,
    "requiresSession": True,
    "defaultMessageTimeToLive": "P1DT0.5S",
    "deadLetteringOnMessageExpiration": True,
    "duplicateDetectionHistoryTimeWindow": "PT12M",
    "maxDeliveryCount": 14,
    "enableBatchedOperations": False,
    "status": "SendDisabled",
    "userMetadata": "a & b <c> ü",
    "autoDeleteOnIdle": "PT7M",
    "enablePartitioning": True,
    "maxMessageSizeInKilobytes": 1536,
    "authorizationRules": [
        {
            "claimType": "SharedAccessKey",
            "accessRights": ["Manage", "Send", "Listen"],
            "keyName": "ops",
            "primaryKey": "P" * 43 + "=",
            "secondaryKey": "S" * 43 + "=",
        }
    ],
}


@pytest.fixture(scope="module")
def found(node: Node, node_bus: NodeBus) -> dict[str, Any]:
    """What the program has found out."""
    frame = f"Endpoint=sb://localhost:{node_bus.http_port};SharedAccessKeyName=RootManageSharedAccessKey;"
    return node.run(
        "administration",
        address=f"{frame}SharedAccessKey=SAS_KEY_VALUE",
        wrong=f"{frame}SharedAccessKey=wrong",
        queue="managed/From.javascript",
        properties=PROPERTIES,
        changes={"maxDeliveryCount": 3, "lockDuration": "PT5M", "status": "Active"},
    )


def rules_of(queue: dict[str, Any]) -> list[Any]:
    names = ("keyName", "primaryKey", "secondaryKey", "accessRights", "claimType")
    return [tuple(rule[name] for name in names) for rule in queue.get("authorizationRules", [])]


def test_every_property_of_a_queue_is_created_and_read_back(found: dict[str, Any]) -> None:
    for queue in (found["created"], found["read"], found["unchanged"]):
        told = {name: queue[name] for name in PROPERTIES if name != "authorizationRules"}
        expected = PROPERTIES | {"maxSizeInMegabytes": 16 * 2048}
        del expected["authorizationRules"]
        assert told == expected
        rights = ["Manage", "Send", "Listen"]
        assert rules_of(queue) == [("ops", "P" * 43 + "=", "S" * 43 + "=", rights, "SharedAccessKey")]
        assert queue.get("forwardTo") is None
        assert (queue["availabilityStatus"], queue["enableExpress"]) == ("Available", False)


def test_a_change_is_made_and_one_that_cannot_be_is_refused(found: dict[str, Any]) -> None:
    changed = found["changed"]
    assert (changed["maxDeliveryCount"], changed["lockDuration"], changed["status"]) == (3, "PT5M", "Active")
    assert changed["requiresSession"] is True
    assert found["refused"]["code"] == "ServiceError", found["refused"]


def test_runtime_properties_and_the_namespace_are_read(found: dict[str, Any]) -> None:
    runtime = found["runtime"]
    assert (runtime["totalMessageCount"], runtime["activeMessageCount"], runtime["sizeInBytes"]) == (0, 0, 0)
    assert found["namespace"]["name"] == "sbemulatorns"
    assert found["namespace"]["messagingSku"] == "Premium"


def test_lists_are_complete_in_pages_of_any_size(found: dict[str, Any]) -> None:
    total = sum(number for number, _ in POOL.values()) + 1
    assert len(found["listed"]) == total
    assert "managed/From.javascript" in found["listed"]
    assert sorted(found["runtimes"]) == sorted(found["listed"])
    assert (sum(found["pages"]), set(found["pages"][:-1])) == (total, {7})


def test_failures_have_the_codes_of_the_cloud(found: dict[str, Any]) -> None:
    assert found["exists"] == [True, False]
    codes = {name: found[name]["code"] for name in ("conflict", "missing", "missingUpdate", "missingDelete")}
    assert codes == {
        "conflict": "MessageEntityAlreadyExistsError",
        "missing": "MessageEntityNotFoundError",
        "missingUpdate": "MessageEntityNotFoundError",
        "missingDelete": "MessageEntityNotFoundError",
    }
    assert found["unauthorized"]["code"] == "UnauthorizedRequestError", found["unauthorized"]


TOPIC: dict[str, Any] = {
    "maxSizeInMegabytes": 2048,
    "requiresDuplicateDetection": True,
    "defaultMessageTimeToLive": "P1DT0.5S",
    "duplicateDetectionHistoryTimeWindow": "PT12M",
    "enableBatchedOperations": False,
    "status": "Active",
    "userMetadata": "a & b",
    "autoDeleteOnIdle": "PT7M",
    "enablePartitioning": True,
    "supportOrdering": True,
    "maxMessageSizeInKilobytes": 1536,
}
SUBSCRIPTION: dict[str, Any] = {
    "lockDuration": "PT13S",
    "requiresSession": True,
    "defaultMessageTimeToLive": "P1DT0.5S",
    "deadLetteringOnMessageExpiration": True,
    "deadLetteringOnFilterEvaluationExceptions": False,
    "maxDeliveryCount": 14,
    "enableBatchedOperations": False,
    "status": "ReceiveDisabled",
    "userMetadata": "a & b",
    "autoDeleteOnIdle": "PT7M",
}


def test_topics_subscriptions_and_rules_are_managed_as_well(node: Node, node_bus: NodeBus) -> None:
    frame = f"Endpoint=sb://localhost:{node_bus.http_port};SharedAccessKeyName=RootManageSharedAccessKey;"
    found = node.run(
        "administration_topics",
        address=f"{frame}SharedAccessKey=SAS_KEY_VALUE",
        topic="managed/Topic",
        topicProperties=TOPIC,
        properties=SUBSCRIPTION,
    )
    for topic in (found["createdTopic"], found["readTopic"]):
        assert {name: topic[name] for name in TOPIC} == TOPIC | {"maxSizeInMegabytes": 16 * 2048}
    for subscription in (found["created"], found["read"]):
        assert {name: subscription[name] for name in SUBSCRIPTION} == SUBSCRIPTION
    rules = {rule["name"]: rule for rule in found["rules"]}
    assert list(rules) == ["$Default", "correlation", "sql"]
    assert found["got"]["filter"]["sqlExpression"] == "1=1"
    assert rules["sql"]["filter"]["sqlExpression"] == "a = @x"
    assert rules["sql"]["filter"]["sqlParameters"] == {"@x": 5, "@y": "t", "@z": True}
    assert rules["sql"]["action"]["sqlExpression"] == "SET b = 2"
    correlation = rules["correlation"]["filter"]
    assert (correlation["correlationId"], correlation["subject"]) == ("c", "s")
    assert correlation["applicationProperties"] == {"p": 1.5, "q": "x"}
    assert found["changed"]["filter"]["sqlExpression"] == "c = 3"
    assert (found["withRule"], found["ruled"]) == ("ruled", ["mine"])
    assert found["subscriptions"] == ["One", "ruled"]
    assert "managed/Topic" in found["topics"]
    assert found["topicRuntime"]["subscriptionCount"] == 2
    assert [runtime["activeMessageCount"] for runtime in found["runtimes"]] == [0, 0]
    assert found["exists"] == [True, True, True, False, False, False]
    assert found["conflict"]["code"] == "MessageEntityAlreadyExistsError"
    assert found["missing"]["code"] == "MessageEntityNotFoundError"
