"""The part of a simulated run that is about forwarding: a chain of queues, a circle, and sends via another queue.

``hop-in`` forwards to ``hop-mid`` and that to ``hop-out``, whose dead letters go to ``graves``; ``circle`` forwards to
itself. Transactions settle what comes from ``via`` and send to ``hop-out`` via it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from duobus.amqp import Link, Source, Target
from duobus.model.descriptions import QueueDescription
from simulation.history import events as h
from simulation.parts.transactions import TransactingClient
from simulation.world.client import SimulatedClient
from simulation.world.message import Message

if TYPE_CHECKING:
    from simulation.checkers import EntityRules
    from simulation.world.world import World

#: Of ten seeds those that end so have this part; drawn apart, so that the others stay what they were.
SEEDS = (0, 9)
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
#: Where what is sent to a queue has to come out.
OUT_OF = {"hop-in": ("hop-out",), "hop-mid": ("hop-out",)}

Connect = Callable[[str, type[SimulatedClient]], Awaitable[Any]]


def forwarding_queues(seed: int, lock_ms: int) -> list[QueueDescription]:
    """The queues of a seed, those that are forwarded to first; none for most seeds."""
    if seed % 10 not in SEEDS:
        return []
    rng = random.Random(f"forwarding:{seed}")

    def queue(name: str, **properties: Any) -> QueueDescription:
        parted = rng.random() < 0.5
        return QueueDescription(name=name, lock_duration_ms=lock_ms, enable_partitioning=parted, **properties)

    return [
        queue("graves"),
        queue("hop-out", forward_dead_lettered_messages_to="graves"),
        queue("hop-mid", forward_to="hop-out"),
        queue("hop-in", forward_to="hop-mid"),
        queue("circle", forward_to="circle"),
        queue("via"),
    ]


def teach(rules: dict[str, EntityRules]) -> None:
    """Tell the checkers where messages come out."""
    if "hop-in" in rules:
        for name, places in OUT_OF.items():
            rules[name].copies_at = places
        rules["hop-out"].dead_letters_at = "graves"
        rules["hop-out"].is_sent_via = True
        rules["circle"].is_circle = True


def sub_queues_of(queue: QueueDescription) -> tuple[str, ...]:
    """From which sub-queues a queue's messages can be received."""
    first = h.MAIN if queue.forward_to is None else h.TRANSFER_DEAD_LETTER
    return first, h.DEAD_LETTER


class ForwardingClients:
    """Senders, receivers and transactors of these queues."""

    def __init__(self, world: World, connect: Connect, in_phase: Callable[[], bool], messages: int) -> None:
        self.world = world
        self._connect = connect
        self._in_phase = in_phase
        self._messages = messages

    def jobs(self) -> list[Any]:
        """What runs during the first phase."""
        return [self._sender("hop-in"), self._sender("circle"), self._receiver(), self._sender("via"), self._via()]

    async def _sender(self, entity: str) -> None:
        rng = random.Random(f"forwarded:{self.world.seed}:{entity}")
        left = self._messages
        while left > 0 and self._in_phase():
            client = await self._connect("hops", SimulatedClient)
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.sender(entity)
                while left > 0 and self._in_phase() and client.alive:
                    number = min(rng.choice((1, 2, 5)), left)
                    messages = [self._message(rng, entity, left - index) for index in range(number)]
                    left -= number
                    await client.send(link, entity, messages)
                    await asyncio.sleep(rng.choice((0.0, 0.02, 0.3)))
            client.close()
            await asyncio.sleep(0.05)

    @staticmethod
    def _message(rng: random.Random, entity: str, number: int) -> Message:
        key = f"key{rng.randint(0, 5)}" if rng.random() < 0.5 else None
        return Message(f"{entity}-{number}", rng.randbytes(rng.choice((0, 20, 200))), key)

    async def _receiver(self) -> None:
        rng = random.Random(f"hopped:{self.world.seed}")
        while self._in_phase():
            client = await self._connect("hopped", SimulatedClient)
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = await client.receiver("hop-out")
                while self._in_phase() and client.alive:
                    client.arrived.clear()
                    client.grant(link, rng.choice((1, 5)))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(client.arrived.wait(), 0.5)
                    for item in list(client.received):
                        outcome = rng.choices((h.COMPLETE, h.ABANDON, h.DEAD_LETTERED), (6, 1, 2))[0]
                        await client.settle(item, outcome)
            client.close()
            await asyncio.sleep(0.1)

    async def _via(self) -> None:
        """Settle what comes from one queue and send to another, in one transaction."""
        rng = random.Random(f"via:{self.world.seed}")
        made = 0
        while self._in_phase():
            client = await self._connect("via", ViaClient)
            if client is None:
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                await client.coordinator()
                receiver, sender = await client.receiver("via"), await client.via_sender("via", "hop-out")
                while self._in_phase() and client.alive:
                    client.arrived.clear()
                    client.grant(receiver, 1)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(client.arrived.wait(), 0.3)
                    if not client.received:
                        continue
                    item = client.received.pop(0)
                    transaction = await client.declare()
                    if transaction is None:
                        break
                    transaction.settle(item, h.COMPLETE)
                    for number in range(rng.choice((1, 2))):
                        made += 1
                        transaction.send(sender, "hop-out", Message(f"via-{made}-{number}", rng.randbytes(20), None))
                    await transaction.discharge(fail=rng.random() < 0.2)
            client.close()
            await asyncio.sleep(0.1)


class ViaClient(TransactingClient):
    """A client that sends to one queue via another."""

    async def via_sender(self, via: str, destination: str) -> Link:
        """Attach a link to send on."""
        assert self._session is not None
        self._tag += 1
        name = f"s{self._tag}"
        properties = {TRANSFER_DESTINATION: destination}
        link = self._session.attach_sender(name, Source(address=name), Target(address=via), properties=properties)
        return await self._attach(link)
