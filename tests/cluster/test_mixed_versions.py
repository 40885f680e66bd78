"""A server of an earlier commit and one of today share a catalog: each passes on to the other what is not its own.

``DUOBUS_OLD_COMMIT`` names another commit. Skipped where the clone does not hold it.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from azure.servicebus import ServiceBusMessage
from kit_cluster import Cluster
from kit_postgres import running_postgres

ROOT: Final = Path(__file__).parents[2]
COMMIT: Final = os.environ.get("DUOBUS_OLD_COMMIT", "e97fde9")


class Mixed(Cluster):
    """Server 0 runs the package in the folder ``old``."""

    old = Path()

    def words(self, number: int) -> list[str]:
        return ["env", f"PYTHONPATH={self.old}"] if number == 0 else []


@pytest.mark.slow
def test_servers_of_two_versions_pass_messages_on_to_each_other(tmp_path: Path) -> None:
    archive = subprocess.run(["git", "archive", COMMIT, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone does not hold {COMMIT}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path / "old", filter="data")
    with running_postgres(durable=True) as postgres:
        cluster = Mixed(tmp_path, postgres, servers=2, stores=2)
        cluster.old = tmp_path / "old" / "src"
        try:
            for number in (0, 1):
                cluster.start(number)
                cluster.await_ready(number)
            cluster.await_served()
            for number, queue in ((0, "a"), (1, "b")):
                with cluster.admin(number) as admin:
                    admin.create_queue(queue)
                    admin.create_queue(f"to-{queue}", forward_to=queue)
            for number in (0, 1):
                with cluster.client(number) as client:
                    for queue in ("a", "b"):
                        for target in (queue, f"to-{queue}"):
                            with client.get_queue_sender(target) as sender:
                                sender.send_messages(ServiceBusMessage(f"{target} by {number}"))
            for number, queue in ((1, "a"), (0, "b")):
                found: set[str] = set()
                with cluster.client(number) as client, client.get_queue_receiver(queue) as receiver:
                    while len(found) < 4 and (batch := receiver.receive_messages(4, max_wait_time=5)):
                        for message in batch:
                            receiver.complete_message(message)
                            found.add(str(message))
                assert found == {f"{to}{queue} by {by}" for to in ("", "to-") for by in (0, 1)}
        finally:
            for number in (0, 1):
                cluster.kill(number)
