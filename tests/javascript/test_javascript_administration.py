"""The JavaScript SDK's administration client, unmodified, over TLS with the generated authority (HTTP contract F.1)."""

from __future__ import annotations

from typing import Any

import pytest
from kit_node import INSTALL_LIMIT_S, POOL, Node, NodeBus
from kit_programs import LIMIT_S

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
