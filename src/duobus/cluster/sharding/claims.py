"""Claims of a sharded queue: made of what its shards claim under the same id.

As in one server, an id that any shard knows is told as it is, and nothing more is claimed under it. A new claim takes
as much of each shard as of the others: each tells what it has before any of it is claimed. Shards are asked at the same
time, since each answers only when its store has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    bounded,
)

#: Between two looks for messages that a claim waits for, in seconds.
PAUSE_S: Final = 0.1

#: Asks one shard for what a body says: the body of the answer.
Ask = Callable[[int, dict[Any, Any]], Awaitable[dict[Any, Any]]]

#: Answers by shard; an error for those that have no server.
_Answers = dict[int, dict[Any, Any] | StoreUnavailable]


async def claim(ask: Ask, shards: Sequence[Sequence[int]], body: dict[Any, Any]) -> dict[str, Any]:
    """Claim messages of all shards, or tell what is claimed already.

    Args:
        ask: Asks a shard.
        shards: The numbers of the fragments of each shard.
        body: Of the request.

    Raises:
        ServiceBusError: An argument is wrong, or a shard has refused.
        StoreUnavailable: No shard has a server.
    """
    loop = asyncio.get_running_loop()
    messages = bounded(body, "max-count", None, 0, CLAIM_MESSAGES_MAX)
    size = bounded(body, "max-bytes", CLAIM_BYTES_DEFAULT, 1, CLAIM_BYTES_MAX)
    least = bounded(body, "min-count", 1, 0, CLAIM_MESSAGES_MAX)
    end_s = loop.time() + bounded(body, "max-wait", 0, 0, CLAIM_WAIT_MS_MAX) / 1000
    asked = {**body, "max-wait": Int(0)}
    look = {**asked, "max-count": Int(0)}
    while True:
        answers = await _asked(ask, dict.fromkeys(range(len(shards)), look))
        _demand_one(answers)
        if not messages or _claimed(answers):
            break
        waiting = {index: _waiting(answer) for index, answer in answers.items()}
        is_over = loop.time() + PAUSE_S >= end_s
        if sum(waiting.values()) >= max(least, 1) or is_over:
            shares = fair_shares(messages, waiting)
            total = max(1, sum(shares.values()))
            # Each at least a byte, which is a message.
            budgets = {
                index: {**asked, "max-count": Int(share), "max-bytes": Int(max(1, size * share // total))}
                for index, share in shares.items()
                if share
            }
            answers.update(await _asked(ask, budgets))
            # Somebody else may have been given what was there a moment ago.
            if is_over or _claimed(answers):
                break
        await asyncio.sleep(PAUSE_S)
    return _told(shards, answers)


def fair_shares(limit: int, waiting: Mapping[int, int]) -> dict[int, int]:
    """Divide a limit among shards, none more than it has; what one does not have, the others may take."""
    shares: dict[int, int] = {}
    left = limit
    for place, index in enumerate(sorted(waiting, key=lambda index: waiting[index])):
        shares[index] = min(waiting[index], -(-left // (len(waiting) - place)))
        left -= shares[index]
    return shares


async def _asked(ask: Ask, bodies: Mapping[int, dict[Any, Any]]) -> _Answers:
    """Ask shards at the same time, each for its own.

    Raises:
        ServiceBusError: A shard has refused; all others have answered.
    """
    found = await asyncio.gather(*(ask(index, body) for index, body in bodies.items()), return_exceptions=True)
    answers: _Answers = {}
    for index, answer in zip(bodies, found, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, StoreUnavailable):
            raise answer
        answers[index] = answer
    return answers


def _claimed(answers: _Answers) -> int:
    return sum(int(answer.get("message-count") or 0) for answer in answers.values() if isinstance(answer, dict))


def _waiting(answer: dict[Any, Any] | StoreUnavailable) -> int:
    return int(answer.get("available-count") or 0) if isinstance(answer, dict) else 0


def _told(shards: Sequence[Sequence[int]], answers: _Answers) -> dict[str, Any]:
    """What is told of all shards together."""
    told: dict[str, Any] = {"message-count": 0, "size": 0, "available-count": 0, "fragments": [], "unavailable": []}
    for index, answer in sorted(answers.items()):
        if isinstance(answer, dict):
            _add(told, answer)
            continue
        told["unavailable"] += [Int(number) for number in shards[index]]
    return told


def _demand_one(answers: _Answers) -> None:
    """Demand that a shard has a server.

    Raises:
        StoreUnavailable: None of them has one.
    """
    away = [answer for answer in answers.values() if isinstance(answer, StoreUnavailable)]
    if away and len(away) == len(answers):
        raise away[0]


def _add(told: dict[str, Any], part: dict[Any, Any]) -> None:
    for name in ("message-count", "size", "available-count"):
        told[name] += int(part.get(name) or 0)
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
    answers = await _asked(ask, dict.fromkeys(range(len(shards)), body))
    totals: dict[str, Any] = {}
    for answer in answers.values():
        if isinstance(answer, StoreUnavailable):
            raise answer
        for name, number in answer.items():
            totals[str(name)] = totals.get(str(name), 0) + int(number)
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
