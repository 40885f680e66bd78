"""What clients of simulated topics have in common: what an answer says of a message, and how a subscription is read."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from duobus.amqp import DeliveryState, Link, Rejected
from simulation.checkers.fanout import ACCEPTED, REFUSED, UNKNOWN
from simulation.scenarios.entity_life import LifeClient

#: Looks in a row that find nothing, after which a subscription is empty.
QUIET: Final = 3


class Reading:
    """How a subscription is read, over one link after another.

    Args:
        rng: Decides what is completed, and when a link is left.
        drains: All is completed, and links are kept, until nothing is left.
        in_phase: Otherwise, as long as this is true.
    """

    def __init__(self, rng: random.Random, in_phase: Callable[[], bool], *, drains: bool) -> None:
        self._rng = rng
        self._in_phase = in_phase
        self._drains = drains
        self._quiet = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is more to be done."""
        return self._quiet < QUIET if self._drains else self._in_phase()

    async def receive(self, client: LifeClient, link: Link) -> None:
        """Receive over an attached link, and complete what is to be."""
        drains = self._drains
        while client.alive and link.is_attached and self.goes_on:
            client.arrived.clear()
            client.grant(link, 20)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.arrived.wait(), 2.0 if drains else 0.4)
            items, client.received = client.received, []
            self._quiet = 0 if items else self._quiet + 1
            for item in items:
                if drains or self._rng.random() < 0.7:
                    await client.complete(item)
            if not drains and self._rng.random() < 0.1:
                break


def outcome_of(state: DeliveryState) -> str:
    """What an answer says of a message; a timeout says that nobody knows."""
    if not isinstance(state, Rejected):
        return ACCEPTED
    return UNKNOWN if state.error is not None and state.error.condition == "com.microsoft:timeout" else REFUSED
