"""Claims of an entity: messages of all fragments that are deferred under an id, told again, settled and released.

A claim takes as much of each fragment as of the others, so that no fragment is left behind. All of it is durable before
it is told. A fragment whose store is away is passed over and named. Messages of a claim stay in memory, so a claim ends
with those that are there already where there is no room for more of them (``MemoryRoom``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from duobus.broker.entities.purge import CommandReply
from duobus.broker.pager import MESSAGE_BYTES, WINDOW_BYTES_SHORT
from duobus.errors import MessageNotFound, StoreUnavailable
from duobus.fragment.claims.commands import (
    CLAIMED_MAX,
    ClaimBudget,
    ClaimMessages,
    ReleaseClaim,
    SettleClaim,
    forget_if_empty,
    has_members,
    members_of,
)
from duobus.fragment.message import MAIN, QueuedMessage

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.commands import Command
    from duobus.fragment.source import Source

#: Commands of one fragment that are under way together: so many fill a commit.
COMMANDS_MAX: Final = 2

_COUNT: Final = attrgetter("count")


class ClaimPart(NamedTuple):
    """What a claim has in one fragment, in order of number.

    Attributes:
        fragment: Number of the fragment.
        counts: Of the messages.
        sizes: Bytes of each message.
        deliveries: Delivery count of each message.
        oldest_ms: When the first of them was enqueued.
    """

    fragment: int
    counts: list[int]
    sizes: list[int]
    deliveries: list[int]
    oldest_ms: int


class Claimed(NamedTuple):
    """A claim as it is.

    Attributes:
        parts: Of the fragments that have messages of it.
        away: Numbers of the fragments whose store was away; they may have more.
    """

    parts: list[ClaimPart]
    away: list[int]


class Freed(NamedTuple):
    """What became of the messages of a claim.

    Attributes:
        done: Messages that were removed; for a release those that were given back.
        returned: Messages of a claim that was settled which were not to be removed, and were given back.
        busy: Messages that somebody holds, who knows their numbers.
    """

    done: int
    returned: int
    busy: int


class ClaimSummary(NamedTuple):
    """An open claim: its id, how many messages it has, and their bytes."""

    claim_id: str
    messages: int
    size: int


async def claim(
    handles: Sequence[FragmentHandle], source_no: int, sub_queue: int, claim_id: str, messages: int, size: int
) -> Claimed:
    """Defer available messages under an id; a claim that is there already is told as it is.

    Args:
        handles: The fragments.
        source_no: The source in each of them.
        sub_queue: Where.
        claim_id: The id.
        messages: Messages of a new claim at most; 0 makes none.
        size: Bytes of their payloads at most; one message may pass it.

    Raises:
        QuotaExceeded: Too many claims are open.
        StoreUnavailable: The store of every fragment is away, or a store failed meanwhile.
    """
    online = [handle for handle in handles if handle.online]
    if not online:
        raise handles[0].unavailable()
    if any(has_members(_source_of(handle, source_no), claim_id, sub_queue) for handle in online):
        # What the index names may be in a commit under way: nobody is told of it before that is durable.
        nothing = ClaimBudget(0, 0)
        await _done([_command(handle, source_no, sub_queue, claim_id, nothing) for handle in online])
    else:
        await _claim_new(online, source_no, sub_queue, claim_id, ClaimBudget(messages, size))
    there = [handle for handle in online if handle.online]
    parts = [_part(handle, source_no, sub_queue, claim_id) for handle in there]
    # One that came back meanwhile was not asked, so it counts as away.
    told = {handle.number for handle in there}
    return Claimed(
        [part for part in parts if part is not None], [handle.number for handle in handles if handle.number not in told]
    )


async def _claim_new(
    online: Sequence[FragmentHandle], source_no: int, sub_queue: int, claim_id: str, budget: ClaimBudget
) -> None:
    candidates = online
    in_memory = {handle: _source_of(handle, source_no).sub_queues[sub_queue].available() for handle in online}
    while not budget.is_spent:
        asked = [handle for handle in candidates if await _has_more(handle, source_no, sub_queue)]
        if not asked:
            return
        share = -(-budget.messages // len(asked))
        number = min(COMMANDS_MAX, -(-share // CLAIMED_MAX))
        commands = [
            _command(handle, source_no, sub_queue, claim_id, budget, share) for _ in range(number) for handle in asked
        ]
        await _done(commands)
        for command in commands:
            in_memory[command.handle] -= len(command.messages)
            command.handle.note_kept(sum([len(message.payload) + MESSAGE_BYTES for message in command.messages]))
        # What is claimed stays in memory. So without room a claim has what was there when it began, and a little more.
        candidates = [handle for handle in asked if in_memory[handle] > 0 or not _is_short_of_room(handle)]


def _is_short_of_room(handle: FragmentHandle) -> bool:
    fragment = handle.fragment
    return fragment is None or fragment.window_bytes <= WINDOW_BYTES_SHORT


def _command(
    handle: FragmentHandle, source_no: int, sub_queue: int, claim_id: str, budget: ClaimBudget, limit: int = 0
) -> ClaimMessages:
    return ClaimMessages(handle, source_no, None, sub_queue=sub_queue, claim_id=claim_id, budget=budget, limit=limit)


def _part(handle: FragmentHandle, source_no: int, sub_queue: int, claim_id: str) -> ClaimPart | None:
    found = _members(handle, source_no, sub_queue, claim_id)
    if not found:
        return None
    found.sort(key=_COUNT)
    return ClaimPart(
        handle.number,
        [message.count for message in found],
        [len(message.payload) for message in found],
        [message.deliveries for message in found],
        min([message.enqueued_ms for message in found]),
    )


async def settle(
    handles: Sequence[FragmentHandle],
    source_no: int,
    sub_queue: int,
    claim_id: str,
    told: set[int] | None,
) -> Freed:
    """Remove the messages of a claim for good; a claim that is not there is no error.

    Args:
        handles: The fragments.
        source_no: The source in each of them.
        sub_queue: Where.
        claim_id: The id.
        told: Numbers of the fragments whose messages are removed. Those of other fragments become active again: their
            store was away when the claim was told, so nobody knows of them. None: all are removed.

    Raises:
        StoreUnavailable: The store of a fragment is away, or failed meanwhile; the others were settled.
    """

    async def one(handle: FragmentHandle) -> Freed:
        if told is not None and handle.number not in told:
            return await _returned(handle, source_no, sub_queue, claim_id, is_counted=False)
        commands = [
            SettleClaim(handle, source_no, None, sub_queue=sub_queue, claim_id=claim_id, counts=some)
            for some in _pieces(handle, source_no, claim_id)
        ]
        await _done(commands)
        return Freed(sum(len(command.messages) for command in commands), 0, sum(command.busy for command in commands))

    return await _freed(handles, source_no, claim_id, one)


async def release(
    handles: Sequence[FragmentHandle], source_no: int, sub_queue: int, claim_id: str, *, is_counted: bool
) -> Freed:
    """Give the messages of a claim back to all receivers; a claim that is not there is no error.

    Args:
        handles: The fragments.
        source_no: The source in each of them.
        sub_queue: Where.
        claim_id: The id.
        is_counted: Whether the claim counts as a delivery of each message.

    Raises:
        StoreUnavailable: The store of a fragment is away, or failed meanwhile; the others were given back.
    """

    async def one(handle: FragmentHandle) -> Freed:
        freed = await _returned(handle, source_no, sub_queue, claim_id, is_counted=is_counted)
        return Freed(freed.returned, 0, freed.busy)

    return await _freed(handles, source_no, claim_id, one)


async def _returned(
    handle: FragmentHandle, source_no: int, sub_queue: int, claim_id: str, *, is_counted: bool
) -> Freed:
    """Give messages of one fragment back."""
    commands = [
        ReleaseClaim(
            handle, source_no, None, sub_queue=sub_queue, claim_id=claim_id, counts=some, is_counted=is_counted
        )
        for some in _pieces(handle, source_no, claim_id)
    ]
    await _done(commands)
    return Freed(0, sum(len(command.messages) for command in commands), sum(command.busy for command in commands))


async def _freed(
    handles: Sequence[FragmentHandle], source_no: int, claim_id: str, free: Callable[[FragmentHandle], Awaitable[Freed]]
) -> Freed:
    """Free what a claim has in each fragment, at the same time: those of one store share commits.

    Raises:
        StoreUnavailable: The store of a fragment is away, or failed meanwhile; the others were freed.
    """
    found = await asyncio.gather(*map(free, handles), return_exceptions=True)
    freed: list[Freed] = []
    for handle, part in zip(handles, found, strict=True):
        if isinstance(part, Freed):
            _tidy(handle, source_no, claim_id)
            freed.append(part)
    # What went wrong otherwise says more than that a store is away.
    errors = [part for part in found if isinstance(part, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, StoreUnavailable)):
        raise error
    return Freed(*map(sum, zip(*freed, strict=True)))


def summaries(
    handles: Iterable[FragmentHandle], source_no: int, sub_queue: int, prefix: str
) -> tuple[list[ClaimSummary], list[int]]:
    """The open claims whose ids begin with a prefix, by id, and the numbers of the fragments that are away."""
    found: dict[str, tuple[int, int]] = {}
    away: list[int] = []
    for handle in handles:
        if not handle.online:
            away.append(handle.number)
            continue
        for claim_id in _source_of(handle, source_no).claims:
            if not claim_id.startswith(prefix):
                continue
            members = _members(handle, source_no, sub_queue, claim_id)
            if members:
                messages, size = found.get(claim_id, (0, 0))
                found[claim_id] = messages + len(members), size + sum(message.size for message in members)
    return [ClaimSummary(claim_id, *found[claim_id]) for claim_id in sorted(found)], away


def waiting(handles: Iterable[FragmentHandle], source_no: int, sub_queue: int) -> int:
    """Messages that a claim would find now, those included that lie in the store only."""
    number = 0
    for handle in handles:
        if handle.online:
            source = _source_of(handle, source_no)
            number += source.sub_queues[sub_queue].available() + (source.tail_count if sub_queue == MAIN else 0)
    return number


async def _done(commands: Sequence[Command]) -> None:
    """Have some commands done, each durable on return."""
    replies: list[CommandReply] = []
    for command in commands:
        reply = CommandReply()
        command.reply = reply
        replies.append(reply)
        command.handle.submit(command)
    # All of them are waited for, also when one has failed: what the others did is known then.
    for reply in replies:
        await reply.answer()
    for command in commands:
        if command.error is not None:
            raise command.error


async def _has_more(handle: FragmentHandle, source_no: int, sub_queue: int) -> bool:
    """Whether a fragment has further messages to claim; brings more of its paged tail into memory."""
    if not handle.online:
        return False
    source = _source_of(handle, source_no)
    queued = source.sub_queues[sub_queue]
    if queued.available() > 0:
        return True
    if sub_queue != MAIN or not source.tail_count:
        return False
    fragment = handle.fragment
    assert fragment is not None
    await handle.read_ahead(fragment)
    return handle.online and _source_of(handle, source_no).sub_queues[sub_queue].available() > 0


def _members(handle: FragmentHandle, source_no: int, sub_queue: int, claim_id: str) -> list[QueuedMessage]:
    return members_of(_source_of(handle, source_no), sub_queue, claim_id)


def _tidy(handle: FragmentHandle, source_no: int, claim_id: str) -> None:
    if handle.online:
        forget_if_empty(_source_of(handle, source_no), claim_id)


def _pieces(handle: FragmentHandle, source_no: int, claim_id: str) -> list[list[int]]:
    """What the index names for a claim, for some commands; each looks at the messages themselves."""
    counts = _source_of(handle, source_no).claims.get(claim_id, [])
    return [counts[at : at + CLAIMED_MAX] for at in range(0, len(counts), CLAIMED_MAX)]


def _source_of(handle: FragmentHandle, source_no: int) -> Source:
    fragment = handle.fragment
    if fragment is None:
        raise handle.unavailable()
    source = fragment.sources.get(source_no)
    if source is None:
        raise MessageNotFound("The subscription is gone, and its messages with it.")
    return source


class ClaimWatcher:
    """Waits for messages to claim; a watcher of a credit scheduler.

    Args:
        number: Tells how many there are.
    """

    __slots__ = ("_came", "_number")

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._came = asyncio.Event()

    def offered(self) -> None:
        """See AvailabilityWatcher."""
        self._came.set()

    async def until(self, least: int) -> None:
        """Wait until so many messages are there."""
        while self._number() < least:
            self._came.clear()
            await self._came.wait()


class Turns:
    """Lets who has the same key have turns, one after the other."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait until nobody else with this key has the turn."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
