"""Drills on a real server under traffic of the SDK: what a lost store costs (PE4, PE13, I9, I27, I28)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.testing.server import ServerProcess

#: What a send may take at most when the store that would have taken it is away (PE4).
SLOWEST_S = 15.0
ENTITIES = [
    {"Name": "spread", "Properties": {"EnablePartitioning": True}},
    {"Name": "plain-1", "Properties": {}},
    {"Name": "plain-2", "Properties": {}},
]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": ENTITIES}]}}


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("drills"), config=CONFIG, arguments=("--emulator", "--stores", "4", "--allow-drills")
    ) as process:
        yield process


def duobus(server: ServerProcess, *words: str, status: int = 0) -> Any:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()] if status == 0 else result.output


def store_of(server: ServerProcess, entity: str) -> int:
    (fragment,) = duobus(server, "fragment", "list", entity)
    return int(fragment["store"])


def until_open(server: ServerProcess, number: int) -> None:
    end_s = time.monotonic() + 60
    while duobus(server, "store", "list")[number - 1]["state"] != "open":
        assert time.monotonic() < end_s, "the store did not come back"
        time.sleep(0.1)


@pytest.mark.parametrize("drill", ["stall", "fail"])
@pytest.mark.usefixtures("either_way")
def test_a_store_lost_in_traffic_costs_its_fragments_only_and_comes_back_with_everything(
    server: ServerProcess, drill: str
) -> None:
    sick, sound = store_of(server, "plain-1"), store_of(server, "plain-2")
    assert sick != sound
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        with client.get_queue_sender("spread") as sender, client.get_queue_sender("plain-1") as other:
            for number in range(20):
                sender.send_messages(ServiceBusMessage(f"before-{number}"))
            other.send_messages(ServiceBusMessage("before"))
            duobus(server, "store", drill, str(sick))
            slowest_s = 0.0
            for number in range(40):
                began_s = time.monotonic()
                # More than the 15 s that a second choice may take, and the default (PE13).
                sender.send_messages(ServiceBusMessage(f"during-{number}"), timeout=(16, 60)[number % 2])
                slowest_s = max(slowest_s, time.monotonic() - began_s)
            assert slowest_s < SLOWEST_S
            refused = [key for key in map(str, range(16)) if not keyed_send(sender, key)]
            assert 0 < len(refused) < 16
            # The sick store's plain queue fails in every operation, and no other notices.
            with pytest.raises(ServiceBusError):
                other.send_messages(ServiceBusMessage("refused"))
        with client.get_queue_receiver("plain-1") as receiver, pytest.raises(ServiceBusError):
            receiver.peek_messages()
        with client.get_queue_sender("plain-2") as sender:
            sender.send_messages(ServiceBusMessage("sound"))
        stores = {store["store"]: store for store in duobus(server, "store", "list")}
        assert {number for number, store in stores.items() if store["state"] != "open"} == {sick}
        assert stores[sick]["drill"] == {"stall": "stalling", "fail": "failing"}[drill]
        got = received(client, "spread")
        assert any(body.startswith("during") for body in got)
        duobus(server, "store", "heal", str(sick))
        until_open(server, sick)
        got += received(client, "spread")
        wanted = [f"before-{number}" for number in range(20)] + [f"during-{number}" for number in range(40)]
        wanted += [f"key-{number}" for number in range(16) if str(number) not in refused]
        assert sorted(got) == sorted(wanted)
        assert received(client, "plain-1") == ["before"]


def keyed_send(sender: Any, key: str) -> bool:
    message = ServiceBusMessage(f"key-{key}", partition_key=key)
    try:
        sender.send_messages(message, timeout=16)
    except ServiceBusServerBusyError:
        # Definite (I28); a client that has given up raises another error.
        return False
    return True


def received(client: ServiceBusClient, entity: str) -> list[str]:
    found: list[str] = []
    with client.get_queue_receiver(entity, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        while batch := receiver.receive_messages(100, max_wait_time=1):
            found += [str(message) for message in batch]
    return found


def test_fragments_are_listed_with_their_stores(server: ServerProcess) -> None:
    fragments = duobus(server, "fragment", "list", "spread")
    assert [row["fragment"] for row in fragments] == list(range(16))
    assert {row["store"] for row in fragments} == {1, 2, 3, 4}
    assert all(row["available"] and row["messages"] == 0 for row in fragments)
    assert "no queue or topic 'nothing'" in duobus(server, "fragment", "list", "nothing", status=3)
    assert len(duobus(server, "fragment", "list")) == 18


def test_a_store_that_is_not_there_cannot_be_drilled(server: ServerProcess) -> None:
    assert "no messaging store 9" in duobus(server, "store", "stall", "9", status=3)


def test_drills_are_refused_by_a_server_that_was_not_started_for_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("no-drills"), arguments=("--emulator",)) as process:
        assert "--allow-drills" in duobus(process, "store", "fail", "1", status=1)
        assert {row["drill"] for row in duobus(process, "store", "list")} == {None}


@pytest.mark.usefixtures("either_way")
def test_a_fragment_moves_under_traffic_and_nothing_is_lost_or_comes_twice(server: ServerProcess) -> None:
    home = store_of(server, "plain-1")
    other = home % 4 + 1
    got: list[str] = []
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender("plain-1") as sender:
            for start in range(0, 2_000, 100):
                sender.send_messages([ServiceBusMessage(f"old-{number}") for number in range(start, start + 100)])
            sender.schedule_messages(ServiceBusMessage("scheduled"), datetime.now(UTC) + timedelta(seconds=3))
            with ThreadPoolExecutor(1) as beside:
                move = beside.submit(duobus, server, "fragment", "move", "plain-1", "0", "--to", str(other))
                number = 0
                while not move.done() or number < 50:
                    sender.send_messages(ServiceBusMessage(f"new-{number}"))
                    number += 1
        (moved,) = move.result()
        assert (moved["state"], moved["from"], moved["to"]) == ("done", home, other)
        assert store_of(server, "plain-1") == other
        time.sleep(3)
        got += received(client, "plain-1")
    wanted = [f"old-{index}" for index in range(2_000)] + [f"new-{index}" for index in range(number)] + ["scheduled"]
    assert sorted(got) == sorted(wanted)
    assert duobus(server, "fragment", "list", "plain-1")[0]["messages"] == 0


def test_a_move_says_what_is_wrong_with_it(server: ServerProcess) -> None:
    home = store_of(server, "plain-1")
    assert "already" in duobus(server, "fragment", "move", "plain-1", "0", "--to", str(home), status=1)
    assert "no messaging store 9" in duobus(server, "fragment", "move", "plain-1", "0", "--to", "9", status=1)
    assert "has no fragment 5" in duobus(server, "fragment", "move", "plain-1", "5", "--to", "1", status=3)
    assert "no queue or topic 'x'" in duobus(server, "fragment", "move", "x", "0", "--to", "1", status=3)
