"""HTTP with a part of an entity away: items 13 and 16 of the list in docs/reference/http-coverage.md (I31, PE4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.cli.remote import Remote
from duobus.clock import Clock
from duobus.model.access_rules import sign_token
from duobus.testing.server import ServerProcess

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "spread", "Properties": {"EnablePartitioning": True}}],
            }
        ]
    }
}
SICK = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("lost"),
        config=CONFIG,
        arguments=("--emulator", "--stores", "4", "--allow-drills", "--store-patience", "1"),
    ) as process:
        yield process


@pytest.fixture
def sick(server: ServerProcess) -> Iterator[int]:
    """A store that fails, as the server knows."""
    duobus(server, "store", "fail", str(SICK))
    # The server meets it with the next call.
    for key in range(32):
        send(server, str(key), {"PartitionKey": str(key)})
    yield SICK
    duobus(server, "store", "heal", str(SICK))


def duobus(server: ServerProcess, *words: str) -> list[dict[str, Any]]:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def ask(server: ServerProcess, method: str, path: str, **options: Any) -> requests.Response:
    base = f"http://localhost:{server.ready['http_port']}"
    token = sign_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", Clock().now_ms() // 1000 + 300)
    headers = {"Authorization": token, **options.pop("headers", {})}
    return requests.request(method, f"{base}/{path}", headers=headers, timeout=30, **options)


def send(server: ServerProcess, body: str, properties: dict[str, str]) -> int:
    headers = {"BrokerProperties": json.dumps(properties)}
    return ask(server, "POST", "spread/messages", data=body, headers=headers).status_code


def administration(server: ServerProcess) -> Any:
    return Remote(server.connection_string, None, None).administration("test")


def test_f1_13_an_update_while_a_fragment_is_away_is_503_with_nothing_done_and_get_says_limited(
    server: ServerProcess, sick: int
) -> None:
    with administration(server) as client:
        assert isinstance(client, ServiceBusAdministrationClient)
        queue = client.get_queue("spread")
        assert str(queue.availability_status) == "Limited"
        before = queue.max_delivery_count
        queue.max_delivery_count = before + 1
        with pytest.raises(HttpResponseError) as refused:
            client.update_queue(queue, retry_total=0)
        assert refused.value.status_code == 503
        assert client.get_queue("spread").max_delivery_count == before
        with pytest.raises(HttpResponseError) as refused:
            client.delete_queue("spread", retry_total=0)
        assert refused.value.status_code == 503
        duobus(server, "store", "heal", str(sick))
        while duobus(server, "store", "list")[sick - 1]["state"] != "open":
            pass
        assert str(client.get_queue("spread").availability_status) == "Available"
        client.update_queue(queue)
        assert client.get_queue("spread").max_delivery_count == before + 1


def test_f1_16_unkeyed_sends_are_201_keyed_to_a_lost_fragment_503_and_a_receive_drains_the_others_before_204(
    server: ServerProcess, sick: int
) -> None:
    while ask(server, "DELETE", "spread/messages/head?timeout=0").status_code == 200:
        pass
    assert {send(server, f"unkeyed {number}", {}) for number in range(40)} == {201}
    keyed = {str(key): send(server, f"keyed {key}", {"PartitionKey": str(key)}) for key in range(32)}
    assert set(keyed.values()) == {201, 503}
    wanted = {f"unkeyed {number}" for number in range(40)}
    wanted |= {f"keyed {key}" for key, status in keyed.items() if status == 201}
    found = set()
    while (answer := ask(server, "DELETE", "spread/messages/head?timeout=0")).status_code == 200:
        found.add(answer.text)
    assert answer.status_code == 204
    assert found == wanted


@pytest.mark.parametrize("how", ["fail", "stall"])
def test_entities_are_created_changed_and_deleted_while_a_store_fails_or_stalls(
    server: ServerProcess, how: str
) -> None:
    duobus(server, "store", how, str(SICK))
    try:
        with administration(server) as client:
            for number in range(4):
                client.create_queue(f"plain-{number}")
            client.create_queue("parted", enable_partitioning=True)
            client.create_topic("topic", enable_partitioning=True)
            client.create_subscription("topic", "sub")
            client.create_rule("topic", "sub", "extra")
            queue = client.get_queue("plain-0")
            queue.max_delivery_count = 3
            client.update_queue(queue)
            assert client.get_queue("plain-0").max_delivery_count == 3
            assert {client.get_queue(name).availability_status for name in ("plain-3", "parted")} == {"Available"}
            assert ask(server, "POST", "plain-1/messages", data="m").status_code == 201
            client.delete_rule("topic", "sub", "extra")
            client.delete_subscription("topic", "sub")
            client.delete_topic("topic")
            for name in ("parted", *(f"plain-{number}" for number in range(4))):
                client.delete_queue(name)
    finally:
        duobus(server, "store", "heal", str(SICK))
        while duobus(server, "store", "list")[SICK - 1]["state"] != "open":
            pass
