"""The operations of ``$management`` on claims: an extension, for the service has none.

Whoever reads much in parallel needs the numbers of messages in one place and their bodies in another. A claim defers
messages for everybody and tells their numbers, and no body travels.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from duobus.broker import MAIN, Claimed, ClaimPart, ClaimWatcher
from duobus.codec import Int, Timestamp
from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, NotAllowed
from duobus.gateway.amqp.arguments import demand, integer_of, items_of, text_of
from duobus.gateway.amqp.entity_status import demand_receiving
from duobus.model.metering import RECEIVE, SETTLE

if TYPE_CHECKING:
    from duobus.gateway.amqp.management.node import ManagementNode

Answer = tuple[int, Any]

#: Messages of one claim; a claim of more is made of several.
CLAIM_MESSAGES_MAX: Final = 20_000
#: Bytes of the messages of one claim, and how many a client gets that names no number.
CLAIM_BYTES_MAX, CLAIM_BYTES_DEFAULT = 256 << 20, 64 << 20
#: Characters of the id of a claim.
CLAIM_ID_LENGTH_MAX: Final = 128
#: How long a claim may wait for messages.
CLAIM_WAIT_MS_MAX: Final = 60_000
#: Claims of one page of list-claims.
CLAIMS_PAGE_MAX: Final = 100

_RUN: Final = struct.Struct(">QI")
_REPEATED: Final = struct.Struct(">II")


async def claim(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Defer available messages under an id, and tell which; the same id again tells the same."""
    queue, sub_queue = node.queue, node.address.sub_queue
    claim_id = _claim_id(node, body)
    demand_receiving(queue, sub_queue)
    messages = bounded(body, "max-count", None, 0, CLAIM_MESSAGES_MAX)
    size = bounded(body, "max-bytes", CLAIM_BYTES_DEFAULT, 1, CLAIM_BYTES_MAX)
    least = bounded(body, "min-count", 1, 0, CLAIM_MESSAGES_MAX)
    wait_ms = bounded(body, "max-wait", 0, 0, CLAIM_WAIT_MS_MAX)
    if wait_ms and messages:
        claimed = await queue.claim(sub_queue, claim_id, 0, size)
        if not claimed.parts:
            await _wait(node, least, wait_ms)
    claimed = await queue.claim(sub_queue, claim_id, messages, size)
    number = sum(len(part.counts) for part in claimed.parts)
    # Their bodies are read, and metered, by whoever has the numbers.
    node.peer.meter(queue, RECEIVE, number, 0, 1, sub_queue)
    return 200, _told(claimed, number) | {"available-count": queue.waiting(sub_queue)}


async def _wait(node: ManagementNode, least: int, wait_ms: int) -> None:
    queue, sub_queue = node.queue, node.address.sub_queue
    watcher = ClaimWatcher(lambda: queue.waiting(sub_queue))
    scheduler = queue.schedulers[sub_queue]
    scheduler.watchers[watcher] = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await watcher.until(max(least, 1))
    finally:
        del scheduler.watchers[watcher]


async def settle(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Remove the messages of a claim, and give those back of which the client was not told."""
    sub_queue = node.address.sub_queue
    claim_id = _claim_id(node, body)
    given = body.get("fragments")
    told = None
    if given is not None:
        told = {demand(item, int, "'fragments' must be an array of integers.") for item in items_of(given)}
    freed = await node.queue.settle_claim(sub_queue, claim_id, told)
    node.peer.meter(node.queue, SETTLE, freed.done, 0, 1, sub_queue)
    return 200, {"message-count": freed.done, "returned-count": freed.returned, "locked-count": freed.busy}


async def release(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Give the messages of a claim back to all receivers."""
    sub_queue = node.address.sub_queue
    claim_id = _claim_id(node, body)
    freed = await node.queue.release_claim(sub_queue, claim_id, is_counted=body.get("count-delivery") is not False)
    node.peer.meter(node.queue, SETTLE, freed.done, 0, 1, sub_queue)
    return 200, {"message-count": freed.done, "locked-count": freed.busy}


async def list_claims(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """The open claims, by their ids."""
    prefix = text_of(body, "prefix") or ""
    skip = integer_of(body, "skip", 0)
    top = integer_of(body, "top", CLAIMS_PAGE_MAX)
    if skip < 0 or top < 1:
        raise ArgumentInvalid("'skip' must be at least 0, 'top' at least 1.")
    found, away = node.queue.claims(node.address.sub_queue, prefix)
    page = found[skip : skip + min(top, CLAIMS_PAGE_MAX)]
    claims = [{"claim-id": one.claim_id, "message-count": one.messages, "size": one.size} for one in page]
    return 200, {"claims": claims, "unavailable": [Int(number) for number in away]}


def _claim_id(node: ManagementNode, body: dict[Any, Any]) -> str:
    """The id of the claim that a request is about.

    Raises:
        NotAllowed: The messages belong to sessions.
        ArgumentInvalid: There is no id, or it is too long.
    """
    if node.queue.description.requires_session and node.address.sub_queue == MAIN:
        raise NotAllowed(
            f"The {node.queue.kind} '{node.queue.path}' requires sessions, whose messages are their holders'. A claim "
            "takes none of them. Accept a session instead."
        )
    claim_id = demand(body.get("claim-id"), str, "'claim-id' must be a string.")
    if not 0 < len(claim_id) <= CLAIM_ID_LENGTH_MAX:
        raise ArgumentInvalid(f"'claim-id' must have 1 to {CLAIM_ID_LENGTH_MAX} characters.")
    return str(claim_id)


def bounded(body: dict[Any, Any], name: str, default: int | None, least: int, most: int) -> int:
    """An integer of a request that has limits.

    Raises:
        ArgumentOutOfRange: It is outside of them.
        ArgumentInvalid: It is none, or is missing where there is no default.
    """
    value = integer_of(body, name, default)
    if not least <= value <= most:
        raise ArgumentOutOfRange(f"'{name}' is {value}; it must be from {least} to {most}.")
    return value


# -- packed: a map for each message would be most of a reply -----------------------------------------------------


def _told(claimed: Claimed, number: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "message-count": number,
        "size": sum(sum(part.sizes) for part in claimed.parts),
        "fragments": [_packed(part) for part in claimed.parts],
        "unavailable": [Int(away) for away in claimed.away],
    }
    if claimed.parts:
        told["oldest-enqueued-time"] = Timestamp(min(part.oldest_ms for part in claimed.parts))
    return told


def _packed(part: ClaimPart) -> dict[str, Any]:
    sizes = array("I", part.sizes)
    sizes.byteswap()
    return {
        "fragment": Int(part.fragment),
        "numbers": pack_counts(part.counts),
        "sizes": sizes.tobytes(),
        "delivery-counts": b"".join(_REPEATED.pack(count, len(list(same))) for count, same in groupby(part.deliveries)),
    }


def pack_counts(counts: Iterable[int]) -> bytes:
    """Ascending counts as runs: the first count in eight bytes, how many follow each other in four."""
    packed: list[bytes] = []
    first = end = -1
    for count in counts:
        if count != end:
            if end > first:
                packed.append(_RUN.pack(first, end - first))
            first = count
        end = count + 1
    if end > first:
        packed.append(_RUN.pack(first, end - first))
    return b"".join(packed)
