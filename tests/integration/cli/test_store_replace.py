"""A store that is lost for good is replaced by a command; one that comes back brings everything (IN1, I7, I31)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.cli.remote import Remote
from duobus.errors import ConfigurationError
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC
from duobus.storage.catalog.interface import Catalog
from duobus.storage.catalog.memory import MemoryCatalog
from duobus.storage.catalog.sqlite import SqliteCatalog
from duobus.storage.catalog_rows import SlotRow, StoreRow
from duobus.storage.memory import MemoryStore
from duobus.storage.replacement import COUNT_BITS, losses_of, replace_store
from duobus.testing.server import ServerProcess

KEYS = [str(number) for number in range(16)]
CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "spread", "Properties": {"EnablePartitioning": True}}],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}], "Properties": {}}],
            }
        ]
    }
}
OPTIONS = ("--emulator", "--stores", "2")


def duobus(*words: str, status: int = 0, server: ServerProcess | None = None) -> Any:
    environment = {} if server is None else {"DUOBUS_CONNECTION_STRING": server.connection_string}
    result = CliRunner().invoke(main, words, env=environment)
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()] if status == 0 else result.output


def send(client: ServiceBusClient, round_: str) -> None:
    with client.get_queue_sender("spread") as sender:
        for key in KEYS:
            sender.send_messages(ServiceBusMessage(f"{round_}-{key}", partition_key=key))
    with client.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage(round_))


def numbers(client: ServiceBusClient) -> dict[str, int]:
    """Body to sequence number of what is in the queue, which is taken out."""
    found = {}
    with client.get_queue_receiver("spread", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        while batch := receiver.receive_messages(100, max_wait_time=1):
            found.update({str(message): message.sequence_number or 0 for message in batch})
    return found


def test_a_lost_store_is_given_up_and_all_others_and_all_sequence_numbers_are_kept(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, config=CONFIG, arguments=OPTIONS)
    data = tmp_path / "data"
    with server:
        stores = {row["fragment"]: row["store"] for row in duobus("fragment", "list", "spread", server=server)}
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            send(client, "first")
            with client.get_queue_receiver("spread") as receiver:
                peeked = receiver.peek_messages(100)
        first = {str(message): message.sequence_number or 0 for message in peeked}
        # A server that runs holds the catalog.
        assert "catalog.db failed" in duobus("store", "replace", "1", "--data", str(data), "--yes", status=1)
    assert "nothing has to be given up" in duobus("store", "replace", "1", "--data", str(data), "--yes", status=1)
    for file in (data / "stores").glob("store-1.db*"):
        file.rename(tmp_path / file.name)
    with server:
        # An outage: the server runs, and gives nothing up by itself.
        states = {row["store"]: row["state"] for row in duobus("store", "list", server=server)}
        assert states == {1: "failed", 2: "open"}
    losses = duobus("store", "replace", "1", "--data", str(data), "--yes")
    lost = {loss["fragment"] for loss in losses if loss["entity"] == "spread"}
    assert lost == {number for number, store in stores.items() if store == 1}
    ranges = [
        (loss["firstSequenceNumber"], loss["lastSequenceNumber"]) for loss in losses if loss["entity"] == "spread"
    ]
    gone = {body for body, number in first.items() if any(low <= number <= high for low, high in ranges)}
    assert 0 < len(gone) < len(first)
    # It turns up again, and is not taken for anything.
    for file in tmp_path.glob("store-1.db*"):
        shutil.move(file, data / "stores" / file.name)
    with server:
        rows = duobus("store", "list", server=server)
        assert {row["store"]: row["state"] for row in rows} == {2: "open", 3: "open"}
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            send(client, "second")
            found = numbers(client)
        assert {body for body in found if body.startswith("first")} == first.keys() - gone
        assert {body for body in found if body.startswith("second")} == {f"second-{key}" for key in KEYS}
        fresh = {number >> COUNT_BITS for body, number in found.items() if body.startswith("second")} - set(stores)
        assert fresh == {loss["newFragment"] for loss in losses if loss["entity"] == "spread"} & fresh
        assert fresh
        with Remote(server.connection_string, None, None).administration("test") as administration:
            counts = administration.get_subscription_runtime_properties("news", "all")
            assert counts.active_message_count >= 1
    assert "is left alone" in server.log_path.read_text()


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    return MemoryCatalog() if request.param == "memory" else SqliteCatalog(tmp_path / "catalog.db")


def filled(catalog: Catalog) -> dict[str, int]:
    ids = {}
    for number in (1, 2):
        catalog.add_store(number, f"stores/store-{number}.db")
    for kind, path, slots in (
        (QUEUE, "parted", [SlotRow(slot, slot, 1 + slot % 2) for slot in range(4)]),
        (QUEUE, "plain", [SlotRow(0, 0, 2)]),
        (TOPIC, "t", [SlotRow(0, 0, 1)]),
        (SUBSCRIPTION, "T/Subscriptions/s", []),
        (SUBSCRIPTION, "other/Subscriptions/s", []),
    ):
        ids[path] = catalog.begin_create("n", kind, path, b"{}", slots)
        catalog.mark_live(ids[path])
    return ids


def maker(made: dict[int, MemoryStore]) -> Callable[[int], tuple[str, MemoryStore]]:
    def make(number: int) -> tuple[str, MemoryStore]:
        made[number] = MemoryStore(number)
        return f"stores/store-{number}.db", made[number]

    return make


def test_only_the_fragments_of_that_store_get_new_numbers_on_the_new_one(catalog: Catalog) -> None:
    ids = filled(catalog)
    made: dict[int, MemoryStore] = {}
    losses = replace_store(catalog, 1, maker(made))
    assert [(loss.entity, loss.slot, loss.fragment_no, loss.new_fragment_no) for loss in losses] == [
        ("parted", 0, 0, 4),
        ("parted", 2, 2, 5),
        ("t", 0, 0, 1),
    ]
    contents = catalog.read()
    assert [row.store_id for row in contents.stores] == [2, 3]
    assert contents.lost == (StoreRow(1, "stores/store-1.db"),)
    slots = {row.path: [(slot.fragment_no, slot.store_id) for slot in row.slots] for row in contents.entities}
    assert slots["parted"] == [(4, 3), (1, 2), (5, 3), (3, 2)]
    assert slots["plain"] == [(0, 2)]
    # The topic's fragment has its subscription's source, under the subscription's id.
    found = made[3].open()
    topic = next(row for row in found.fragments if row.entity_id == ids["t"])
    keys = [row.source_no for row in found.sources if row.fragment_key == topic.fragment_key]
    assert keys == [0, ids["T/Subscriptions/s"]]


def test_numbers_are_never_used_twice_however_often_a_slot_is_lost(catalog: Catalog) -> None:
    filled(catalog)
    made: dict[int, MemoryStore] = {}
    for lost in (1, 3, 4):
        replace_store(catalog, lost, maker(made))
    contents = catalog.read()
    assert [row.store_id for row in contents.stores] == [2, 5]
    assert [row.store_id for row in contents.lost] == [1, 3, 4]
    parted = next(row for row in contents.entities if row.path == "parted")
    assert [slot.fragment_no for slot in parted.slots] == [8, 1, 9, 3]


def test_a_store_that_is_not_there_cannot_be_given_up(catalog: Catalog) -> None:
    filled(catalog)
    with pytest.raises(ConfigurationError, match="There is no messaging store 7; there are 1, 2"):
        losses_of(catalog.read(), 7)


def test_a_folder_without_a_catalog_is_refused(tmp_path: Path) -> None:
    assert "no data folder" in duobus("store", "replace", "1", "--data", str(tmp_path), "--yes", status=1)
