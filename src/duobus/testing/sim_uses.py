"""What the simulation's receivers do with what arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duobus.testing import history as h

if TYPE_CHECKING:
    import random

    from duobus.testing.sim_client import SimulatedClient


async def use(client: SimulatedClient, rng: random.Random, deferred: list[tuple[str, int]], *, removing: bool) -> None:
    """Do with what arrived what applications do, good and bad; what is put aside is noted in ``deferred``."""
    if removing:
        client.received.clear()
        return
    for item in list(client.received):
        if not client.alive:
            return
        draw = rng.random()
        if draw < 0.08:
            # Not settled at all: the lock runs out.
            client.received.remove(item)
            continue
        if draw < 0.12:
            await client.renew(item)
            continue
        if draw < 0.2:
            await asyncio.sleep(rng.choice((0.1, 1.0, 3.5)))
        outcome = rng.choices((h.COMPLETE, h.ABANDON, h.RELEASE, h.DEFER, h.DEAD_LETTERED), (12, 2, 1, 1, 1))[0]
        management = outcome != h.RELEASE and rng.random() < 0.1
        done = await client.settle(item, outcome, management=management)
        if outcome == h.DEFER and (done or rng.random() < 0.5):
            deferred.append((item.event.entity, item.event.seq))
