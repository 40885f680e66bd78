"""Connections whose other end fell silent: they are closed after the idle time, their locks are free.

The idle time of the broker is minutes long, so the clock of its connections is moved; broker time, which locks
follow, is not: what frees them is the end of the connection.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from kit_faults import until
from kit_silence import Wire, holder

from duobus.gateway.amqp.server import IDLE_TIME_OUT_MS
from duobus.testing.broker import BrokerThread
from duobus.testing.namespace import Broker, Namespace

pytestmark = pytest.mark.timeout(60)

QUEUE = "orders"


class Stage:
    """A namespace with one message in one queue, and the clock of its connections."""

    def __init__(self, thread: BrokerThread, namespace: Namespace) -> None:
        self.thread = thread
        self.namespace = namespace
        namespace.create_queue(QUEUE, lock_duration=timedelta(minutes=5))
        self.send()

    def send(self) -> None:
        """One message."""
        client = ServiceBusClient.from_connection_string(self.namespace.connection_string)
        with client, client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(ServiceBusMessage("m"))

    def is_locked(self) -> bool:
        """Whether somebody holds the message."""
        (message,) = self.namespace.messages(QUEUE)
        return message.is_locked

    def idle(self, ms: int) -> None:
        """Let time pass for connections; the broker looks at them about twice a second."""
        self.thread.host.clock.moved_ms += ms

    def receive(self) -> int:
        """Receive and complete the message; returns its delivery count."""
        client = ServiceBusClient.from_connection_string(self.namespace.connection_string)
        with client, client.get_queue_receiver(QUEUE) as receiver:
            (message,) = receiver.receive_messages(max_wait_time=20)
            receiver.complete_message(message)
            return int(message.delivery_count or 0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A broker of its own, since its clock is moved."""
    thread = BrokerThread()
    broker = Broker(thread)
    broker.start()
    try:
        with broker.namespace() as namespace:
            yield Stage(thread, namespace)
    finally:
        broker.stop()


def test_the_locks_of_a_client_that_is_stopped_are_free_after_the_idle_time(stage: Stage) -> None:
    with holder(stage.namespace.connection_string, QUEUE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert stage.is_locked()
        stage.idle(2 * IDLE_TIME_OUT_MS + 1000)
        until(lambda: not stage.is_locked(), 5)
        assert stage.receive() == 1


def test_the_locks_behind_a_cut_wire_are_free_after_the_idle_time_and_not_before(stage: Stage) -> None:
    text = stage.namespace.connection_string
    (port,) = re.findall(r"localhost:(\d+)", text)
    wire = Wire(int(port))
    try:
        with holder(text.replace(f":{port};", f":{wire.port};"), QUEUE):
            wire.cut()
            stage.idle(IDLE_TIME_OUT_MS)
            # Two rounds of the broker over its connections.
            with pytest.raises(AssertionError):
                until(lambda: not stage.is_locked(), 1.2)
            stage.idle(IDLE_TIME_OUT_MS + 1000)
            until(lambda: not stage.is_locked(), 5)
            assert stage.receive() == 1
    finally:
        wire.close()
