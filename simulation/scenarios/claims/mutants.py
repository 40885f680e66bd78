"""Planted bugs of claims."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeGuard
from unittest import mock

from duobus.broker.entities import claims as entity_claims
from duobus.fragment.claims import commands
from duobus.fragment.claims.commands import ClaimMessages, ReleaseClaim, SettleClaim
from duobus.fragment.message import DEFERRED, QueuedMessage, kind_of
from duobus.fragment.source import Source
from simulation.scenarios.claims.history import ClaimHistory
from simulation.scenarios.claims.scenario import ClaimWorld

#: In which a commit begins, and does not end.
BEGUN_S: Final = 0.001


@contextmanager
def forgotten_at_recovery() -> Iterator[None]:
    """The index of claims is not made again when a fragment is opened."""
    with mock.patch("duobus.fragment.fragment.note_claim"):
        yield


@contextmanager
def handed_out_twice() -> Iterator[None]:
    """What is claimed stays available."""
    original = ClaimMessages.release

    def release(self: ClaimMessages, fragment: Any, source: Source, now_ms: int) -> None:
        original(self, fragment, source, now_ms)
        for message in self.messages:
            source.sub_queues[self.sub_queue].give_back(message)

    with mock.patch.object(ClaimMessages, "release", release):
        yield


@contextmanager
def claims_again() -> Iterator[None]:
    """A claim that is there already is not told as it is: more is claimed under its id."""
    with mock.patch.object(entity_claims, "has_members", return_value=False):
        yield


@contextmanager
def any_claims_messages_settled() -> Iterator[None]:
    """A settlement accepts the numbers of other claims."""

    def free(source: Source, _sub_queue: int, _claim_id: str, counts: Sequence[int]) -> tuple[list[QueuedMessage], int]:
        claimed = [message for count in counts if _is_claimed(message := source.by_count.get(count))]
        return [message for message in claimed if not message.lock], sum(bool(message.lock) for message in claimed)

    original = SettleClaim.apply

    def apply(self: SettleClaim, *arguments: Any) -> None:
        with mock.patch.object(commands, "_free", free):
            original(self, *arguments)

    def pieces(handle: Any, source_no: int, claim_id: str) -> list[list[int]]:
        if sys._getframe(1).f_code.co_name == "one":
            source = entity_claims._source_of(handle, source_no)
            return [[count for count, message in source.by_count.items() if _is_claimed(message)]]
        return kept(handle, source_no, claim_id)

    kept = entity_claims._pieces
    with mock.patch.object(SettleClaim, "apply", apply), mock.patch.object(entity_claims, "_pieces", pieces):
        yield


def _is_claimed(message: QueuedMessage | None) -> TypeGuard[QueuedMessage]:
    return (
        message is not None
        and kind_of(message.state) == DEFERRED
        and message.metadata is not None
        and message.metadata.claim is not None
    )


@contextmanager
def dropped_by_release() -> Iterator[None]:
    """What is released is available to nobody."""

    def release(self: ReleaseClaim, _fragment: Any, _source: Source, _now_ms: int) -> None:
        for message in self.messages:
            message.lock = 0

    with mock.patch.object(ReleaseClaim, "release", release):
        yield


@contextmanager
def counted_when_claimed() -> Iterator[None]:
    """A claim counts as a delivery when it is told, and in memory alone."""
    original = ClaimMessages.release

    def release(self: ClaimMessages, fragment: Any, source: Source, now_ms: int) -> None:
        original(self, fragment, source, now_ms)
        for message in self.messages:
            message.deliveries += 1

    with mock.patch.object(ClaimMessages, "release", release):
        yield


@contextmanager
def told_before_it_is_durable() -> Iterator[None]:
    """Nobody waits for the commit of a claim."""
    original = entity_claims._done

    async def done(some: Any) -> None:
        if all(isinstance(one, ClaimMessages) for one in some):
            for one in some:
                one.handle.submit(one)
            await asyncio.sleep(BEGUN_S)
            return
        await original(some)

    with mock.patch.object(entity_claims, "_done", done):
        yield


@contextmanager
def untold_removed() -> Iterator[None]:
    """A settlement removes what lies in fragments of which the claim did not tell."""
    original = entity_claims.settle

    async def settle(handles: Any, source_no: int, sub_queue: int, claim_id: str, _told: Any) -> Any:
        return await original(handles, source_no, sub_queue, claim_id, None)

    with mock.patch.object(entity_claims, "settle", settle):
        yield


@contextmanager
def came_back_taken_for_asked() -> Iterator[None]:
    """A fragment that comes back while a claim is told counts as one that had nothing of it."""
    original = entity_claims.claim

    async def claim(handles: Any, *rest: Any) -> Any:
        found = await original(handles, *rest)
        return found._replace(away=[handle.number for handle in handles if not handle.online])

    with mock.patch.object(entity_claims, "claim", claim):
        yield


@contextmanager
def away_taken_for_gone() -> Iterator[None]:
    """A driver that was started again drops what a fragment has that is away, and settles it with the batch."""
    with mock.patch.object(ClaimWorld, "waits_for_away", False), mock.patch.object(ClaimHistory, "missing"):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "claim-forgotten-at-recovery": forgotten_at_recovery,
    "claim-handed-out-twice": handed_out_twice,
    "claims-again-under-an-id": claims_again,
    "settles-messages-of-other-claims": any_claims_messages_settled,
    "release-drops": dropped_by_release,
    "claim-counted-in-memory": counted_when_claimed,
    "claim-told-before-it-is-durable": told_before_it_is_durable,
    "untold-removed": untold_removed,
    "away-taken-for-gone": away_taken_for_gone,
    "came-back-taken-for-asked": came_back_taken_for_asked,
}
