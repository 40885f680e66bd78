"""A server that is killed in the middle of a resubmit loses nothing and doubles nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.testing.server import ServerProcess

NUMBER = 600
KILLS = 4


def run(server: ServerProcess, *words: str) -> int:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    return CliRunner().invoke(main, words, env=environment).exit_code


@pytest.mark.slow
@pytest.mark.parametrize("partitioning", ["false", "true"])
def test_killed_in_the_middle_of_a_resubmit_every_message_is_there_once(tmp_path: Path, partitioning: str) -> None:
    with ServerProcess(tmp_path / "server") as server:
        assert run(server, "queue", "create", "q", "--enable-partitioning", partitioning) == 0
        with ServiceBusClient.from_connection_string(server.connection_string) as client:
            with client.get_queue_sender("q") as sender:
                sender.send_messages([ServiceBusMessage(str(n), message_id=str(n)) for n in range(NUMBER)])
            with client.get_queue_receiver("q") as receiver:
                left = NUMBER
                while left:
                    for message in receiver.receive_messages(left, max_wait_time=10):
                        receiver.dead_letter_message(message, reason="r")
                        left -= 1
        words = ("dlq", "resubmit", "q", "--yes", "--chunk", "3")
        interrupted = 0
        for kill in range(KILLS):
            timer = threading.Timer(0.15 + 0.1 * kill, server.kill)
            timer.start()
            interrupted += run(server, *words) != 0
            timer.join()
            server.start()
        assert interrupted
        assert run(server, *words) == 0
        found: list[str] = []
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_receiver("q", receive_mode="receiveanddelete") as receiver,
        ):
            while got := receiver.receive_messages(200, max_wait_time=2):
                found += [str(message) for message in got]
        assert sorted(found, key=int) == [str(n) for n in range(NUMBER)]
