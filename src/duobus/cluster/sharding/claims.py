"""Claims of a sharded queue: made of what its shards claim under the same id.

As in one server, an id that any shard knows is told as it is, and nothing more is claimed under it. A new claim takes
as much of each shard as of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from duobus.codec import Array, Int
from duobus.errors import StoreUnavailable
from duobus.gateway.amqp.arguments import integer_of
from duobus.gateway.amqp.management.claim_operations import (
    CLAIM_BYTES_DEFAULT,
    CLAIM_BYTES_MAX,
    CLAIM_MESSAGES_MAX,
    CLAIM_WAIT_MS_MAX,
    CLAIMS_PAGE_MAX,
)

#: Between two looks for messages that a claim waits for, in seconds.
PAUSE_S: Final = 0.1

#: Asks one shard for what a body says: the body of the answer.
Ask = Callable[[int, dict[Any, Any]], Awaitable[dict[Any, Any]]]


async def claim(ask: Ask, shards: Sequence[Sequence[int]], body: dict[Any, Any]) -> dict[str, Any]:
    """Claim messages of all shards, or tell what is claimed already.

    Args:
        ask: Asks a shard.
        shards: The numbers of the fragments of each shard.
        body: Of the request.

    Raises:
        ServiceBusError: A shard has refused.
        StoreUnavailable: No shard has a server.
    """
    loop = asyncio.get_running_loop()
    wait_ms = min(max(integer_of(body, "max-wait", 0), 0), CLAIM_WAIT_MS_MAX)
    end_s = loop.time() + wait_ms / 1000
    messages = min(integer_of(body, "max-count", None), CLAIM_MESSAGES_MAX)
    size = min(integer_of(body, "max-bytes", CLAIM_BYTES_DEFAULT), CLAIM_BYTES_MAX)
    asked = {**body, "max-wait": Int(0)}
    told, away = await _of_all(ask, shards, {**asked, "max-count": Int(0)})
    while not told["fragments"] and messages:
        there = [index for index in range(len(shards)) if index not in away]
        for left in range(len(there), 0, -1):
            if messages <= told["message-count"] or size <= told["size"]:
                break
            part = -(-(messages - told["message-count"]) // left)
            budget = {"max-count": Int(part), "max-bytes": Int(size - told["size"])}
            try:
                _add(told, await ask(there[-left], {**asked, **budget}))
            except StoreUnavailable:
                told["unavailable"] += [Int(number) for number in shards[there[-left]]]
        # Nothing more can be claimed under an id that has something, however few messages these are.
        if told["message-count"] or loop.time() + PAUSE_S >= end_s:
            break
        await asyncio.sleep(PAUSE_S)
    return told


async def _of_all(ask: Ask, shards: Sequence[Sequence[int]], body: dict[Any, Any]) -> tuple[dict[str, Any], set[int]]:
    """What is told of all shards together, and which of them have no server."""
    told: dict[str, Any] = {"message-count": 0, "size": 0, "fragments": [], "unavailable": []}
    away: dict[int, StoreUnavailable] = {}
    for index, numbers in enumerate(shards):
        try:
            _add(told, await ask(index, body))
        except StoreUnavailable as error:
            away[index] = error
            told["unavailable"] += [Int(number) for number in numbers]
    if len(away) == len(shards):
        raise away[0]
    return told, set(away)


def _add(told: dict[str, Any], part: dict[Any, Any]) -> None:
    told["message-count"] += int(part.get("message-count") or 0)
    told["size"] += int(part.get("size") or 0)
    for name in ("fragments", "unavailable"):
        told[name] += _items(part.get(name))
    oldest = part.get("oldest-enqueued-time")
    if oldest is not None and (told.get("oldest-enqueued-time") is None or oldest < told["oldest-enqueued-time"]):
        told["oldest-enqueued-time"] = oldest


async def free(ask: Ask, shards: Sequence[Sequence[int]], body: dict[Any, Any]) -> dict[str, Any]:
    """Settle a claim, or give it back, in all shards.

    Raises:
        ServiceBusError: A shard has refused.
        StoreUnavailable: A shard has no server; the others have done it.
    """
    totals: dict[str, Any] = {}
    away: StoreUnavailable | None = None
    for index in range(len(shards)):
        try:
            part = await ask(index, body)
        except StoreUnavailable as error:
            away = error
            continue
        for name, number in part.items():
            totals[str(name)] = totals.get(str(name), 0) + int(number)
    if away is not None:
        raise away
    return totals


async def list_claims(ask: Ask, shards: Sequence[Sequence[int]], body: dict[Any, Any]) -> dict[str, Any]:
    """The open claims of all shards, by their ids."""
    skip, top = max(integer_of(body, "skip", 0), 0), max(integer_of(body, "top", CLAIMS_PAGE_MAX), 1)
    found: dict[str, dict[str, Any]] = {}
    unavailable: list[Any] = []
    for index, numbers in enumerate(shards):
        before = 0
        while True:
            try:
                part = await ask(index, {**body, "skip": Int(before), "top": Int(CLAIMS_PAGE_MAX)})
            except StoreUnavailable:
                unavailable += [Int(number) for number in numbers]
                break
            page = _items(part.get("claims"))
            for one in page:
                kept = found.setdefault(one["claim-id"], {**one, "message-count": 0, "size": 0})
                kept["message-count"] += int(one["message-count"])
                kept["size"] += int(one["size"])
            before += len(page)
            if len(page) < CLAIMS_PAGE_MAX:
                unavailable += _items(part.get("unavailable"))
                break
    claims = [found[claim_id] for claim_id in sorted(found)]
    return {"claims": claims[skip : skip + min(top, CLAIMS_PAGE_MAX)], "unavailable": unavailable}


def _items(value: Any) -> list[Any]:
    return [] if value is None else list(value.items if isinstance(value, Array) else value)
