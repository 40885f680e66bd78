"""A server that joins others is ready when clients find what its configuration asks for, whoever creates that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from kit_cluster import Cluster, until

from kits.postgres import running_postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "orders"}],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
            }
        ],
        "Logging": {"Type": "File"},
    }
}
AWAITED = "entities of the configuration are awaited"


def test_a_server_is_ready_once_the_owner_of_the_stores_has_created_what_the_configuration_asks_for(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    with running_postgres(durable=True) as postgres:
        # One store, which the first server has: it creates whatever there is to be, and its configuration has nothing.
        cluster = Cluster(
            tmp_path,
            postgres,
            servers=2,
            stores=1,
            more=lambda number: ["--config", str(config)] if number else [],
        )
        try:
            cluster.start(0)
            cluster.await_ready(0)
            cluster.await_served(0)
            cluster.start(1)
            until(lambda: AWAITED in cluster.log_of(1))
            assert "number=3 entities=orders, news, news/Subscriptions/all" in cluster.log_of(1)
            assert not (cluster.folder_of(1) / "ready.json").exists()
            with cluster.admin(0) as admin:
                admin.create_queue("orders")
                admin.create_topic("news")
                admin.create_subscription("news", "all")
            cluster.await_ready(1)
            assert "ready without" not in cluster.log_of(1)
            with cluster.client(1, retry_total=0) as client:
                with client.get_queue_sender("orders") as sender:
                    sender.send_messages(ServiceBusMessage("first"))
                with client.get_subscription_receiver("news", "all", max_wait_time=1) as receiver:
                    assert receiver.receive_messages() == []
        finally:
            cluster.close()
