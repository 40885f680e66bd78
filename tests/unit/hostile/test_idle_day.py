"""A day without traffic, in virtual time: heartbeats keep every connection, and no receiver has gone deaf."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duobus.amqp import Closed, Connection, ConnectionSettings, LinkAttached, Source, Target, Transfers, plain_response
from duobus.codec import build_message
from duobus.gateway.amqp import server
from duobus.model.descriptions import QueueDescription
from simulation.world.world import World

DAY_S = 24 * 3600
RECEIVERS = 6


class Idle(asyncio.Protocol):
    """A receiver with credit that sends and expects heartbeats, and a sender on the same session."""

    def __init__(self, world: World, queue: str) -> None:
        self.world = world
        self.queue = queue
        self.received: list[bytes] = []
        self.attached = 0
        self.heard = 0
        self.errors: list[Any] = []
        settings = ConnectionSettings(
            queue,
            mechanisms=("PLAIN",),
            sasl_response=plain_response(world.rule, world.key),
            idle_time_out_ms=120_000,
        )
        self.engine = Connection(settings, acceptor=False)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.engine.open(self.world.loop.time_ms(), hostname=self.world.HOST)
        session = self.engine.begin()
        self.receiver = session.attach_receiver("r", Source(address=self.queue), Target(address="me"))
        self.sender = session.attach_sender("s", Source(address="me"), Target(address=self.queue))
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        for event in self.engine.receive(data, self.world.loop.time_ms()):
            self.on(event)
        self.flush()

    def on(self, event: Any) -> None:
        if isinstance(event, LinkAttached):
            self.attached += 1
            if event.link is self.receiver:
                event.link.grant(10)
        elif isinstance(event, Transfers):
            self.received += event.payloads
        elif isinstance(event, Closed):
            self.errors.append(event.error)

    def flush(self) -> None:
        output = self.engine.take_output()
        if output:
            self.transport.write(output)

    async def keep_alive(self) -> None:
        while not self.engine.is_closed:
            await asyncio.sleep(20)
            for event in self.engine.tick(self.world.loop.time_ms()):
                self.on(event)
            self.flush()


def test_no_receiver_is_deaf_after_a_day_without_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    # Looked at twice a second in earnest; a day of that would be 172,800 rounds of nothing.
    monkeypatch.setattr(server, "SWEEP_S", 20.0)
    queues = [QueueDescription(name=f"q{number}") for number in range(RECEIVERS)]
    world = World(1, queues, 1)

    async def day() -> None:
        world.start()
        await asyncio.sleep(5)
        loop = asyncio.get_running_loop()
        clients: list[Idle] = []
        for queue in queues:
            name = queue.name
            _, client = await loop.create_connection(lambda name=name: Idle(world, name), world.HOST, world.PORT)
            clients.append(client)
        beating = [loop.create_task(client.keep_alive()) for client in clients]
        await asyncio.sleep(1)
        assert [client.attached for client in clients] == [2] * RECEIVERS
        before = [client.heard for client in clients]
        await asyncio.sleep(DAY_S)
        assert [client.errors for client in clients] == [[]] * RECEIVERS
        # Heartbeats came all day, at least one in every idle time-out.
        assert all(client.heard - start >= DAY_S / 120 for client, start in zip(clients, before, strict=True))
        for client in clients:
            client.sender.send_one(b"t", build_message([client.queue], data=client.queue.encode()), False)
            client.flush()
        await asyncio.sleep(5)
        for client in clients:
            assert len(client.received) == 1
            assert client.queue.encode() in client.received[0]
        for task in beating:
            task.cancel()

    try:
        world.loop.run(day(), time_limit_s=DAY_S + 100)
    finally:
        world.loop.close()
