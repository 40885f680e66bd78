"""Moves in transactions on a broker that is killed at any moment: every output is there once (I8, I14)."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from kit_bus import Bus, until
from kit_place import coordinator, declare, discharge, outcome, put

from duobus.amqp import (
    ACCEPTED,
    Dispositions,
    Rejected,
    TransactionalState,
    Transfers,
)
from duobus.codec import build_message
from duobus.server.settings import EMULATOR_KEY
from kits.raw_client import RULE, RawClient

INPUTS, KILLS = 400, 4


def connect(bus: Bus) -> RawClient:
    """A connection with all rights."""
    return RawClient(bus.port, mechanism="PLAIN", response=f"\0{RULE}\0{EMULATOR_KEY}".encode())


class Mover:
    """Moves dead letters back to their queue, or via it to another, each as two messages in one transaction."""

    def __init__(self, client: RawClient, queue: str, destination: str) -> None:
        self._client = client
        self._coordinator = coordinator(client)
        via = {"com.microsoft:transfer-destination-address": destination} if destination != queue else None
        self._out = client.sender(queue, properties=via)
        self._letters = client.receiver(f"{queue}/$DeadLetterQueue")
        self._letters.grant(10)

    def move_all(self, number: int) -> None:
        """Move so many."""
        client = self._client
        for _ in range(number):
            delivery_id, payload = self._next()
            txn = declare(client, self._coordinator)
            client.session.disposition(True, delivery_id, delivery_id, TransactionalState(txn, ACCEPTED), False)
            name = payload[payload.rfind(b"in-") :]
            for half in (b"a", b"b"):
                put(client, self._out, build_message(None, data=name + half), TransactionalState(txn))
            assert discharge(client, self._coordinator, txn) == ACCEPTED

    def _next(self) -> tuple[int, bytes]:
        event = self._client.wait(Transfers, 2.0, where=lambda event: event.link is self._letters)
        delivery_id, payload = event.first_delivery_id, event.payloads.pop(0)
        if event.payloads:
            event.first_delivery_id += 1
            self._client.events.insert(0, event)
        if self._letters.credit < 5:
            self._letters.grant(10)
        return delivery_id, payload


def fill(bus: Bus, queue: str) -> None:
    """Put the inputs into the dead-letter queue."""
    with connect(bus) as client:
        sender, receiver = client.sender(queue), client.receiver(queue)
        last = [put(client, sender, build_message(None, data=b"in-%d-" % number)) for number in range(INPUTS)][-1]
        outcome(client, last)
        receiver.grant(INPUTS)
        ids = [delivery_id for delivery_id, _ in client.receive(receiver, INPUTS)]
        client.session.disposition(True, ids[0], ids[-1], Rejected(None), False)
        client.wait(Dispositions, where=lambda event: not event.role)


def everything(bus: Bus, queue: str) -> Counter[bytes]:
    """Every message of a queue, completed."""
    found: Counter[bytes] = Counter()
    with connect(bus) as client:
        receiver = client.receiver(queue)
        receiver.grant(10_000)
        while True:
            client.pump(0.5)
            events = [event for event in client.events if isinstance(event, Transfers)]
            if not events:
                return found
            for event in events:
                client.events.remove(event)
                found.update(payload[payload.rfind(b"in-") :] for payload in event.payloads)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("destination", ["plain-0", "plain-1"])
def test_every_output_is_there_once_however_often_the_broker_is_killed(tmp_path: Path, destination: str) -> None:
    rng = random.Random(8)
    bus = Bus(tmp_path)
    queue = "plain-0"
    with bus.process:
        fill(bus, queue)
        for _ in range(KILLS):
            killer = threading.Timer(rng.uniform(0.0, 0.2), bus.process.kill)
            with connect(bus) as client:
                mover = Mover(client, queue, destination)
                mover.move_all(1)
                killer.start()
                # It ends in the middle of something, whichever that is.
                with contextlib.suppress(AssertionError, OSError):
                    mover.move_all(INPUTS)
            killer.join()
            bus.process.start()
        until(lambda: bus.metric("duobus_messages_to_forward", queue) == 0, 10.0)
        moved = everything(bus, destination)
        rest = sum(everything(bus, f"{queue}/$DeadLetterQueue").values())
    assert sum(moved.values()) == 2 * (INPUTS - rest)
    assert set(moved.values()) == {1}
    names = Counter(name[:-1] for name in moved)
    assert set(names.values()) == {2}
    assert len(names) >= KILLS
