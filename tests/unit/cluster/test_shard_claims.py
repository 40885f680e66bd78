"""A claim over shards: fair shares of what each has, at the same time, and shards without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from duobus.cluster.sharding.claims import claim, fair_shares, free
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, StoreUnavailable
from simulation.world.loop import SimulationLoop

SHARDS = ((0, 1), (2, 3), (4, 5))


class Shards:
    """Three shards that answer after a while, as owners do, and what each was asked for."""

    def __init__(self, *waiting: int) -> None:
        self.waiting = list(waiting)
        self.claimed = [0] * len(waiting)
        self.away: set[int] = set()
        self.leaves: set[int] = set()
        self.bodies: list[tuple[int, dict[Any, Any]]] = []

    async def ask(self, index: int, body: dict[Any, Any]) -> dict[Any, Any]:
        """Answer as an owner does, a second later."""
        self.bodies.append((index, body))
        await asyncio.sleep(1)
        if index in self.away:
            raise StoreUnavailable("away")
        if body.get("max-count") and index in self.leaves:
            raise StoreUnavailable("left")
        if not self.claimed[index]:
            self.claimed[index] = min(self.waiting[index], int(body.get("max-count") or 0))
            self.waiting[index] -= self.claimed[index]
        number = self.claimed[index]
        return {
            "message-count": number,
            "size": 10 * number,
            "available-count": self.waiting[index],
            "fragments": [{"fragment": SHARDS[index][0]}] if number else [],
            "unavailable": [],
        }

    async def claim(self, **members: int) -> dict[str, Any]:
        """Claim messages."""
        body = {"claim-id": "c", **{name.replace("_", "-"): value for name, value in members.items()}}
        return await claim(self.ask, SHARDS, body)


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run() -> None:
        loop = SimulationLoop()
        try:
            loop.run(test(), time_limit_s=300)
        finally:
            loop.close()

    return run


@pytest.mark.parametrize(
    ("limit", "waiting", "shares"),
    [
        (9, (100, 100, 100), (3, 3, 3)),
        (10, (100, 2, 100), (4, 2, 4)),
        (10, (1, 1, 1), (1, 1, 1)),
        (2, (5, 5, 5), (1, 1, 0)),
        (10, (0, 0, 50), (0, 0, 10)),
    ],
)
def test_a_limit_is_shared_fairly_and_what_one_does_not_have_goes_to_the_others(
    limit: int, waiting: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    found = fair_shares(limit, dict(enumerate(waiting)))
    assert tuple(found[index] for index in range(len(waiting))) == shares


@virtual
async def test_shards_are_asked_at_the_same_time_once_for_what_they_have_and_once_for_their_shares() -> None:
    shards = Shards(50, 2, 50)
    began_s = asyncio.get_running_loop().time()
    told = await shards.claim(max_count=20, max_bytes=2_000)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2)
    assert shards.claimed == [9, 2, 9]
    assert (told["message-count"], told["size"], told["available-count"]) == (20, 200, 82)
    assert [part["fragment"] for part in told["fragments"]] == [0, 2, 4]
    sizes = {index: int(body["max-bytes"]) for index, body in shards.bodies[3:]}
    assert sizes == {0: 900, 1: 200, 2: 900}


@virtual
async def test_an_id_that_a_shard_knows_is_told_as_it_is() -> None:
    shards = Shards(50, 50, 50)
    await shards.claim(max_count=3)
    assert (await shards.claim(max_count=30))["message-count"] == 3
    assert shards.claimed == [1, 1, 1]


@virtual
async def test_a_claim_waits_for_as_many_messages_as_it_wants_and_then_takes_what_there_is() -> None:
    shards = Shards(1, 1, 0)
    told = await shards.claim(max_count=10, min_count=3, max_wait=5_000)
    assert told["message-count"] == 2
    assert asyncio.get_running_loop().time() == pytest.approx(6, abs=1.5)
    other = Shards(0, 0, 0)
    waiting = asyncio.ensure_future(other.claim(max_count=10, min_count=3, max_wait=60_000))
    await asyncio.sleep(10)
    other.waiting[1] = 4
    assert (await waiting)["message-count"] == 4
    assert asyncio.get_running_loop().time() < 20


@virtual
async def test_a_shard_that_loses_its_server_is_named_and_the_others_are_claimed_from() -> None:
    shards = Shards(50, 50, 50)
    shards.away = {0}
    shards.leaves = {1}
    told = await shards.claim(max_count=10)
    assert told["message-count"] == 5
    assert [int(number) for number in told["unavailable"]] == [0, 1, 2, 3]


@virtual
async def test_without_any_server_a_claim_is_refused_at_once() -> None:
    shards = Shards(50, 50, 50)
    shards.away = {0, 1, 2}
    with pytest.raises(StoreUnavailable):
        await shards.claim(max_count=10, max_wait=60_000)
    assert asyncio.get_running_loop().time() == pytest.approx(1)


@virtual
async def test_a_settlement_reaches_all_shards_that_have_a_server_before_it_is_refused() -> None:
    shards = Shards(5, 5, 5)
    shards.away = {0}
    with pytest.raises(StoreUnavailable):
        await free(shards.ask, SHARDS, {"claim-id": "c"})
    assert sorted(index for index, _ in shards.bodies) == [0, 1, 2]
    assert asyncio.get_running_loop().time() == pytest.approx(1)


@pytest.mark.parametrize("members", [{"max_count": -1}, {"max_count": 20_001}, {"max_count": 1, "max_wait": 60_001}])
def test_arguments_outside_of_their_limits_are_refused_as_by_one_server(members: dict[str, int]) -> None:
    @virtual
    async def asked() -> None:
        shards = Shards(1, 1, 1)
        with pytest.raises((ArgumentOutOfRange, ArgumentInvalid)):
            await shards.claim(**members)
        assert shards.bodies == []

    asked()
