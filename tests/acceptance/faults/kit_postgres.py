"""A broker over PostgreSQL and a sender that never gives up, for tests that take PostgreSQL away or change it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_faults import Outcomes, until

from duobus.testing.postgres_server import PostgresError, PostgresServer
from duobus.testing.server import ServerProcess, queues_config

QUEUE = "queue"
#: Messages of a list, which is stored as a whole or not at all.
TOGETHER = 20


class Bus:
    """A broker whose only store is in PostgreSQL, and a sender that never gives up."""

    def __init__(self, folder: Path, *addresses: str) -> None:
        options = ["--emulator", "--log-format", "json"]
        for address in addresses:
            options += ["--store", address]
        self.process = ServerProcess(folder, config=queues_config({QUEUE: {}}), arguments=options)
        self.outcomes = Outcomes()
        self._is_over = threading.Event()
        self._sent = 0

    @contextmanager
    def client(self) -> Iterator[ServiceBusClient]:
        """An SDK client that shows every error at once."""
        with ServiceBusClient.from_connection_string(self.process.connection_string, retry_total=0) as client:
            yield client

    @contextmanager
    def traffic(self) -> Iterator[Callable[[int], None]]:
        """Send and receive meanwhile; yields what waits until so many more messages were acknowledged."""
        threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in threads:
            thread.start()
        try:
            yield self._more
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _more(self, number: int) -> None:
        goal = len(self.outcomes.acknowledged) + number
        until(lambda: len(self.outcomes.acknowledged) >= goal, 40)

    def _send(self) -> None:
        while not self._is_over.is_set():
            try:
                with self.client() as client, client.get_queue_sender(QUEUE) as sender:
                    while not self._is_over.is_set():
                        names = [f"{self._sent + index:032d}" for index in range(TOGETHER)]
                        self._sent += TOGETHER
                        self.outcomes.unknown.update(names)
                        sender.send_messages([ServiceBusMessage(f"{name}:xx") for name in names])
                        self.outcomes.acknowledged.update(names)
            except ServiceBusError:
                time.sleep(0.05)

    def _receive(self) -> None:
        while not self._is_over.is_set():
            try:
                with self.client() as client, client.get_queue_receiver(QUEUE) as receiver:
                    while not self._is_over.is_set():
                        for message in receiver.receive_messages(max_message_count=10, max_wait_time=0.5):
                            # Here and not below: whether it was completed need not become known.
                            self.outcomes.completed.append(self.outcomes.name_of(message))
                            receiver.complete_message(message)
            except ServiceBusError:
                time.sleep(0.05)

    def verify(self) -> None:
        """Empty the queue; every acknowledged message came. One of unknown outcome may have come, too."""
        with self.client() as client:
            self.outcomes.drain(client, QUEUE)
        assert self.outcomes.acknowledged <= set(self.outcomes.completed), "an acknowledged message is lost"
        assert len(self.outcomes.acknowledged) > 0


def start_again(postgres: PostgresServer) -> None:
    """After a kill, what is left of the old server has to go first."""
    for _ in range(50):
        try:
            postgres.start()
        except PostgresError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(postgres.log_tail())


def can_send(bus: Bus, client: ServiceBusClient) -> bool:
    try:
        with client.get_queue_sender(QUEUE) as sender:
            return bus.outcomes.send(sender)
    except ServiceBusError:
        return False
