"""The list in docs/reference/http-coverage.md by number, with JavaScript's administration client, over TLS."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from kit_node import INSTALL_LIMIT_S, Node, NodeBus, node_in

from duobus.testing.server import ServerProcess
from kits.programs import KEY, LIMIT_S, SEND_ONLY

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)

RULE = {
    "claimType": "SharedAccessKey",
    "accessRights": ["Manage", "Send", "Listen"],
    "keyName": "ops",
    "primaryKey": "P" * 43 + "=",
    "secondaryKey": "S" * 43 + "=",
}
FOR_EVER = "P10675199DT2H48M5.4775807S"
QUEUE: dict[str, Any] = {
    "lockDuration": "PT13.5S",
    "maxSizeInMegabytes": 5120,
    "requiresDuplicateDetection": True,
    "defaultMessageTimeToLive": FOR_EVER,
    "deadLetteringOnMessageExpiration": True,
    "duplicateDetectionHistoryTimeWindow": "P7D",
    "maxDeliveryCount": 2_147_483_647,
    "enableBatchedOperations": False,
    "status": "Active",
    "userMetadata": "a & b <c> ü",
    "autoDeleteOnIdle": "PT5M",
    "enablePartitioning": True,
    "maxMessageSizeInKilobytes": 102_400,
    "authorizationRules": [RULE],
}
TOPIC: dict[str, Any] = {
    "defaultMessageTimeToLive": FOR_EVER,
    "maxSizeInMegabytes": 2048,
    "requiresDuplicateDetection": True,
    "duplicateDetectionHistoryTimeWindow": "PT20S",
    "enableBatchedOperations": False,
    "status": "Active",
    "userMetadata": "a & b",
    "supportOrdering": True,
    "authorizationRules": [RULE],
}
SUBSCRIPTION: dict[str, Any] = {
    "lockDuration": "PT5M",
    "requiresSession": True,
    "defaultMessageTimeToLive": FOR_EVER,
    "deadLetteringOnMessageExpiration": True,
    "deadLetteringOnFilterEvaluationExceptions": False,
    "maxDeliveryCount": 1,
    "enableBatchedOperations": False,
    "status": "Active",
    "userMetadata": "a & b",
    "autoDeleteOnIdle": "PT7M",
}

Item = Callable[..., Any]


@pytest.fixture(scope="module")
def node_bus(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBus]:
    """A broker of this module's own: others count what is in theirs."""
    bus = NodeBus(tmp_path_factory.mktemp("f1-bus"))
    with bus.process:
        yield bus


@pytest.fixture(scope="module")
def node(packages: Path, node_bus: NodeBus, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return node_in(tmp_path_factory.mktemp("f1-node"), packages, node_bus)


@pytest.fixture
def address(node_bus: NodeBus) -> str:
    return f"Endpoint=sb://localhost:{node_bus.http_port};SharedAccessKeyName=RootManageSharedAccessKey;"


@pytest.fixture
def name() -> str:
    return f"f1/{uuid.uuid4().hex}"


@pytest.fixture
def item(node: Node, node_bus: NodeBus, address: str, name: str) -> Item:
    """Runs one item of the list with the properties of this module."""

    def run(number: int, **given: Any) -> Any:
        return node.run(
            "f1",
            item=number,
            name=name,
            address=f"{address}SharedAccessKey=SAS_KEY_VALUE",
            endpoint=f"sb://localhost:{node_bus.http_port}",
            connection=node_bus.process.connection_string,
            queue=QUEUE,
            topic=TOPIC,
            subscription=SUBSCRIPTION,
            **given,
        )

    return run


def test_f1_01_every_kind_is_created_read_changed_listed_and_deleted(item: Item) -> None:
    changed = {"rule": "a = 1"}
    for kind, found in item(1).items():
        assert found == [False, True, changed.get(kind, "changed"), True, False, "MessageEntityNotFoundError"], kind


def test_f1_02_what_was_read_is_sent_back_and_every_property_is_as_before(item: Item) -> None:
    pairs = item(2)
    assert len(pairs) == 5
    for before, after in pairs:
        assert after == before
    everything, forwarding, topic, subscription, _ = (after for _, after in pairs)
    given = QUEUE | {"maxSizeInMegabytes": 16 * 5120}
    rules = given.pop("authorizationRules")
    assert {key: everything[key] for key in given} == given
    for told in (everything, forwarding, topic):
        (rule,) = told["authorizationRules"]
        assert {key: rule[key] for key in RULE} == rules[0]
    assert forwarding["forwardTo"].endswith("-target")
    assert forwarding["forwardDeadLetteredMessagesTo"].endswith("-target")
    assert {key: subscription[key] for key in SUBSCRIPTION} == SUBSCRIPTION


def test_f1_03_lists_of_any_length_are_complete_and_in_order(item: Item) -> None:
    made, lists = item(3)
    for number, (listed, pages) in zip((0, 1, 100, 101, 250), lists, strict=True):
        assert listed == sorted(made[:number], key=str.lower)
        assert sum(pages) == number
        assert set(pages[:-1]) <= {60}


def test_f1_04_names_of_every_legal_form_are_found_in_any_case(item: Item) -> None:
    tail = uuid.uuid4().hex
    names = [tail[0], f"a/b.c-d_e/{tail}", tail + "x" * 228, f"x-servicebus-transfer/{tail}", f"Mixed/{tail}"]
    assert item(4, names=names) == [[10, True, ["$Default"], "$Default"]] * len(names)


def test_f1_05_runtime_properties_of_empty_and_filled_entities(item: Item) -> None:
    empty, (queue, topic, subscription), listed = item(5)
    for found in empty:
        assert found.get("totalMessageCount", 0) == found.get("sizeInBytes", 0) == 0
    assert (queue["activeMessageCount"], queue["scheduledMessageCount"], queue["totalMessageCount"]) == (3, 1, 4)
    assert (topic["scheduledMessageCount"], topic["subscriptionCount"]) == (1, 1)
    assert (subscription["activeMessageCount"], subscription["totalMessageCount"]) == (3, 3)
    assert [one["activeMessageCount"] for one in listed] == [3]
    assert queue["accessedAt"] >= queue["createdAt"]


def test_f1_06_parameters_of_python_are_read_where_javascript_knows_their_type(
    item: Item, node_bus: NodeBus, address: str, name: str
) -> None:
    readable = {
        "@text": "x & y",
        "@int": 5,
        "@flag": True,
        "@real": 1.5,
        "@when": datetime.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - the SDK writes no zone
    }
    strange = {"@long": 1 << 40, "@span": datetime.timedelta(hours=2)}
    topic = f"{name}-rules"
    text = f"{address}SharedAccessKey=SAS_KEY_VALUE"
    ca = node_bus.process.ca
    with ServiceBusAdministrationClient.from_connection_string(text, connection_verify=ca) as client:
        client.create_topic(topic)
        for subscription, parameters in (("readable", readable), ("strange", strange), ("own", {})):
            client.create_subscription(topic, subscription)
            if parameters:
                client.create_rule(topic, subscription, "r", filter=SqlRuleFilter("a = 1", parameters))
        rules, failure, own = item(6, rules=topic)
        found = {rule["name"]: rule["filter"] for rule in rules}["r"]["sqlParameters"]
        assert {key: found[key] for key in ("@text", "@int", "@flag", "@real")} == {
            key: readable[key] for key in ("@text", "@int", "@flag", "@real")
        }
        assert found["@when"].startswith("2026-01-02T")
        # As in the cloud: one type that the client does not know breaks the list of them all.
        assert failure["code"] == "PARSE_ERROR"
        assert own["filter"]["sqlParameters"] == {
            "@a": 3,
            "@b": 1.5,
            "@c": "x & y",
            "@d": True,
            "@e": "2026-01-02T03:04:05.000Z",
        }
        # And back: what JavaScript wrote, Python reads.
        assert client.get_rule(topic, "own", "mine").filter.parameters["@a"] == 3.0


@pytest.fixture
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--emulator", "--tls-self-signed", "--quota", "entities=1")
    config = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "only"}]}]}}
    with ServerProcess(tmp_path_factory.mktemp("limited"), config=config, arguments=options) as process:
        yield process


def test_f1_07_every_failure_has_the_code_of_the_contract(
    node_bus: NodeBus, node: Node, address: str, name: str, limited: ServerProcess, tmp_path_factory: Any
) -> None:
    own = address.replace(f":{node_bus.http_port}", f":{limited.ready['http_port']}")
    both = tmp_path_factory.mktemp("authorities") / "ca.pem"
    with open(node_bus.process.ca) as first, open(limited.ca) as second:  # noqa: PTH123 - two texts
        both.write_text(first.read() + second.read())
    found = Node(node.folder, str(both)).run(
        "f1",
        item=7,
        name=name,
        address=f"{address}SharedAccessKey=SAS_KEY_VALUE",
        wrong=f"{address}SharedAccessKey=wrong",
        sends=f"Endpoint=sb://localhost:{node_bus.http_port};SharedAccessKeyName={SEND_ONLY};SharedAccessKey={KEY}",
        limited=f"{own}SharedAccessKey=SAS_KEY_VALUE",
    )
    assert found.pop("exists") is False
    assert {kind: one["code"] for kind, one in found.items()} == {
        "value": "ServiceError",
        "immutable": "ServiceError",
        "filter": "ServiceError",
        "conflict": "MessageEntityAlreadyExistsError",
        "missing": "MessageEntityNotFoundError",
        "update": "MessageEntityNotFoundError",
        "remove": "MessageEntityNotFoundError",
        "parent": "MessageEntityNotFoundError",
        "key": "UnauthorizedRequestError",
        "right": "UnauthorizedRequestError",
        "quota": "QuotaExceededError",
        "feed": "MessageEntityNotFoundError",
    }


def test_f1_08_a_change_whose_answer_was_lost_succeeds_when_it_comes_again(item: Item, name: str) -> None:
    made, lost, ids = item(8)
    assert (made, lost) == (f"{name}-again", ["PUT", "DELETE"])
    # Each came twice, with the id that it had before.
    assert (ids[0], ids[2]) == (ids[1], ids[3])
    assert len(ids) == 4


def test_f1_09_tokens_of_an_entity_open_it_with_either_key_and_no_other(item: Item, name: str) -> None:
    assert item(9) == [f"{name}-orders", "UnauthorizedRequestError"] * 2


def test_f1_11_forwarding_is_told_as_it_was_sent_and_can_be_set_changed_and_cleared(
    item: Item, node_bus: NodeBus
) -> None:
    chain, told, forward, dead, wrong = item(11)
    targets = [*chain[1:], chain[5], chain[5], chain[0], chain[0]]
    # As it was sent: the SDK makes an absolute address of a bare name, and the third was one without a port.
    hosts = ["localhost" if index == 2 else f"localhost:{node_bus.http_port}" for index in range(len(targets))]
    assert told == [f"sb://{host}/{target}" for host, target in zip(hosts, targets, strict=True)]
    assert (forward, dead) == (None, None)
    assert [one["code"] for one in wrong] == ["ServiceError"] * 2
