"""The catalog, or its log, is taken away under a running broker, which is killed then (I31)."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from duobus.cli.remote import Remote
from duobus.clock import Clock
from duobus.storage.offline.catalog_rebuild import adopt
from duobus.testing.server import DemoFailed, ServerProcess


def administration(server: ServerProcess) -> ServiceBusAdministrationClient:
    return Remote(server.connection_string, None, None).administration("test")


def test_a_catalog_that_loses_its_log_loses_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=("--emulator", "--stores", "1")) as server:
        with administration(server) as manager:
            manager.create_queue("payroll")
        (tmp_path / "data" / "catalog.db-wal").unlink()
        server.kill()
        server.start()
        with administration(server) as manager:
            assert [queue.name for queue in manager.list_queues()] == ["payroll"]


def test_a_broker_whose_catalog_is_gone_refuses_to_start_until_the_catalog_is_rebuilt(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = ServerProcess(tmp_path, arguments=("--emulator", "--stores", "1"))
    with server:
        with administration(server) as manager:
            manager.create_queue("payroll")
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("payroll") as sender,
        ):
            sender.send_messages(ServiceBusMessage("a salary"))
        for path in data.glob("catalog.db*"):
            path.unlink()
        server.kill()
        with pytest.raises(DemoFailed) as refusal:
            server.start()
        text = str(refusal.value)
        assert "Traceback" not in text
        assert "duobus store adopt" in text

        assert [row.path for row in adopt(data, Clock()).contents.entities] == ["payroll"]
        server.start()
        with administration(server) as manager:
            manager.create_queue("public")
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_queue_receiver("public") as receiver:
                assert receiver.receive_messages(max_wait_time=0.5) == []
            with client.get_queue_receiver("payroll") as receiver:
                assert [str(message) for message in receiver.receive_messages(max_wait_time=5)] == ["a salary"]
