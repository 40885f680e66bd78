"""What the simulation's receivers do with what arrives."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

from simulation.history import events as h

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duobus.amqp import Link
    from simulation.world.client import SimulatedClient
    from simulation.world.world import World

#: Share of the seeds that have a client which releases everything.
RELEASERS_SHARE: Final = 0.25
#: Share of the seeds that have a receiver which asks for no answers.
UNANSWERED_SHARE: Final = 0.25


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


def has_releaser(seed: int) -> bool:
    """Whether a seed has a client which releases everything; drawn apart from the rest of its scenario."""
    return random.Random(f"has-releaser:{seed}").random() < RELEASERS_SHARE


async def release_everything(
    world: World, entity: str, connect: Callable[[str], Awaitable[Any]], in_phase: Callable[[], bool]
) -> None:
    """One client that gives everything back at once, until its credit is used up.

    So does Python's SDK with what comes between two calls of its user: there is credit for a hundred messages, and one
    message may use up all of it.
    """
    rng = random.Random(f"releaser:{world.seed}")

    async def release(client: SimulatedClient, link: Link) -> None:
        client.grant(link, rng.choice((10, 100)))
        end = world.loop.time() + rng.choice((0.5, 2.0))
        while client.alive and world.loop.time() < end:
            client.arrived.clear()
            for item in list(client.received):
                await client.settle(item, h.RELEASE, asks_on=rng.random() < 0.3)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.arrived.wait(), 0.1)
        await asyncio.sleep(rng.choice((0.0, 1.5)))

    await _receive("releaser", entity, connect, in_phase, release)


async def _receive(
    name: str,
    entity: str,
    connect: Callable[[str], Awaitable[Any]],
    in_phase: Callable[[], bool],
    act: Callable[[SimulatedClient, Link], Awaitable[None]],
) -> None:
    """A receiver that acts again and again, and connects anew when its connection is lost."""
    while in_phase():
        client = await connect(name)
        if client is None:
            return
        with contextlib.suppress(ConnectionError, TimeoutError):
            link = await client.receiver(entity)
            while in_phase() and client.alive:
                await act(client, link)
        client.close()
        await asyncio.sleep(0.1)


def has_unanswered(seed: int) -> bool:
    """Whether a seed has a receiver which asks for no answers; drawn apart from the rest of its scenario."""
    return random.Random(f"has-unanswered:{seed}").random() < UNANSWERED_SHARE


async def settle_unanswered(
    world: World, entity: str, connect: Callable[[str], Awaitable[Any]], in_phase: Callable[[], bool]
) -> None:
    """One receiver that settles for itself and asks for no answer, as that of Python's SDK does up to 7.14."""
    rng = random.Random(f"unanswered:{world.seed}")

    async def settle(client: SimulatedClient, link: Link) -> None:
        client.grant(link, rng.choice((1, 10)))
        client.arrived.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.arrived.wait(), 0.5)
        for item in list(client.received):
            outcome = rng.choices((h.COMPLETE, h.ABANDON), (9, 1))[0]
            client.settle_unanswered(item, outcome)
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.02)))
        await asyncio.sleep(rng.choice((0.0, 0.3)))

    await _receive("unanswered", entity, connect, in_phase, settle)
