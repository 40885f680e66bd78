"""A broker that is killed has metered what it acknowledged, once (I59)."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.model.metering import RECEIVE, SEND
from duobus.telemetry.metering_log import MeteringLog
from duobus.testing.server import ServerProcess, queues_config

KILLS = 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_operations_are_metered_exactly_once_across_kills(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, config=queues_config({"q": {}}), arguments=("--emulator",)) as server:
        for _ in range(KILLS):
            with (
                ServiceBusClient.from_connection_string(server.connection_string) as client,
                client.get_queue_sender("q") as sender,
                client.get_queue_receiver("q") as receiver,
            ):
                sender.send_messages([ServiceBusMessage(str(number)) for number in range(40)])
                sender.send_messages(ServiceBusMessage(b"x" * 100_000))
                received = 0
                while received < 41:
                    for message in receiver.receive_messages(41, max_wait_time=5):
                        receiver.complete_message(message)
                        received += 1
                server.kill()
            del client, sender, receiver
            # What the SDK left open when the broker went is reported here, not in another test.
            gc.collect()
            server.start()
        server.terminate()
    records = list(MeteringLog(tmp_path / "data" / "metering").read())
    for kind in (SEND, RECEIVE):
        of_kind = [record for record in records if record.kind == kind]
        assert sum(record.operations for record in of_kind) == 42 * KILLS
        assert sum(record.messages for record in of_kind) == 41 * KILLS
    assert not list((tmp_path / "data" / "metering").glob("running-*"))
