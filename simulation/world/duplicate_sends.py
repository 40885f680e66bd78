"""What simulated senders do where duplicates are detected: they send again what they sent before, as if in doubt.

All dice are of their own, so that seeds that were found before keep what they drew.
"""

from __future__ import annotations

import random

import msgspec

from duobus.amqp import Link
from duobus.model.descriptions import QueueDescription
from simulation.world.client import SimulatedClient
from simulation.world.message import Message

#: Windows that end within a run, and one that does not.
WINDOWS_MS = (1_000, 4_000, 60_000)


def with_detection(queues: list[QueueDescription], seed: int) -> list[QueueDescription]:
    """The queues of a scenario, some of them with duplicate detection."""
    rng = random.Random(f"duplicates:{seed}")
    return [
        msgspec.structs.replace(
            queue,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window_ms=rng.choice(WINDOWS_MS),
        )
        if rng.random() < 0.4
        else queue
        for queue in queues
    ]


def window_of(queue: QueueDescription) -> int | None:
    """For how long a queue remembers ids; None when it does not."""
    return queue.duplicate_detection_history_time_window_ms if queue.requires_duplicate_detection else None


class Repeats:
    """What one sender has sent to an entity that detects duplicates."""

    __slots__ = ("_rng", "_sent", "_watches")

    def __init__(self, seed: str, queue: QueueDescription) -> None:
        self._rng = random.Random(seed)
        self._sent: list[Message] = []
        self._watches = queue.requires_duplicate_detection

    async def repeat(self, client: SimulatedClient, link: Link, entity: str, messages: list[Message]) -> None:
        """Note what was sent just now, and perhaps send something of before once more."""
        if not self._watches:
            return
        self._sent += [message for message in messages if not message.ping]
        if self._sent and self._rng.random() < 0.4:
            await client.send(link, entity, self._rng.choices(self._sent, k=self._rng.choice((1, 1, 4))))
