"""Runs the claim engine for one stream. The module knows neither Spark nor the SDK.

Every step that changes the broker is taken here, in the order of the protocol and through an ``Access``, so that tests
can replace the ``Access`` and end the process between any two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from duobus.spark.claims.engine import ClaimEngine, Due, Seen
from duobus.spark.offsets import Claim, ClaimOffset, Key

#: Half a second each (``Access.pause``) for the longest lock that there is, 300 s, and what clocks are wrong by.
PAUSES_MAX: Final = 610
#: Messages of the batch by which a stream gets its name, where the broker claims from the next one on: this process
#: receives their bodies, and their locks have to last until Spark has written them down. One request defers so many.
NAMING_BATCH_MAX: Final = 500

_log = logging.getLogger("duobus.spark")


class Access(Protocol):
    """The operations of the broker that a claim needs. Every operation may be called again after it failed."""

    def receive(self, limit: int, wait_ms: int) -> Claim:
        """Receive and hold messages, at most ``limit``, and wait for the first one for a limited time."""

    def defer(self, claim: Claim) -> tuple[Claim, int | None]:
        """Defer the held messages of a claim; return those that are certainly deferred, and by how much counts rose.

        On return no deferral of the other messages is on its way any more, unless ``may_still_defer`` says so.
        """

    def may_still_defer(self) -> bool:
        """Whether the latest ``defer`` was interrupted without an answer, so that the broker may still execute it."""

    def seen(self, claim: Claim) -> Mapping[Key, Mapping[int, Seen]]:
        """Peek at messages by number; messages that are gone are missing in the result."""

    def remove(self, claim: Claim) -> None:
        """Remove deferred messages for good; numbers of messages that are gone, or not deferred, are ignored."""

    def held_until_ms(self) -> int | None:
        """When the last lock of the held messages ends, by the broker's clock; None if that is not known."""

    def is_past(self, instant_ms: int) -> bool:
        """Whether an instant of the broker's clock has passed for certain."""

    def pause(self) -> None:
        """Wait a moment."""

    def let_go(self) -> None:
        """Give held messages back that will not be deferred any more."""

    def claims(self) -> bool:
        """Whether the broker claims: it defers messages under an id and tells their numbers."""

    def claim(self, offset: ClaimOffset, batch: int, limit: int, wait_ms: int) -> tuple[Claim, int]:
        """Have the broker claim messages for a batch, by the ids of an offset; what has these ids already comes first.

        Returns:
            The messages, and how many ids were used.
        """

    def claimed(self, offset: ClaimOffset) -> Claim | None:
        """The messages that the broker has under the ids of a batch; None: an entity has no claims any more."""

    def settle(self, claim: Claim, ids: tuple[str, ...]) -> bool:
        """Remove the messages of claims at the broker; those that are gone are ignored. False as for ``claimed``."""

    def beside(self, work: Callable[[], bool]) -> AbstractContextManager[Callable[[], bool]]:
        """Do work with ``settle`` at the same time as what is done in the context, where that is ``claim``.

        The context gives a function that waits for the work, and returns or raises what the work did.
        """

    def planned(self) -> None:
        """The messages that were claimed go to tasks: they are not given back any more."""


class ClaimPlan(NamedTuple):
    """The plan from which tasks are made.

    Attributes:
        claim: The deferred messages of a batch.
        dropped: Number of further messages that were listed.
    """

    claim: Claim
    dropped: int


class ClaimRunner:
    """The claims of one stream, in the process that runs it.

    Args:
        engine: Decides what is to be done.
        access: Executes the operations.
    """

    def __init__(self, engine: ClaimEngine, access: Access) -> None:
        self._engine = engine
        self._access = access

    def initial(self) -> dict[str, Any]:
        """The offset of a new stream."""
        return self._engine.initial().to_json()

    def latest(self, start_form: Any, limit: int, wait_ms: int, *, is_only: bool = False) -> tuple[Any, int]:
        """Claim a batch; return its offset, or ``start`` if there is no message, and the number of claimed messages.

        ``is_only``: no further batch follows in this run, so that this one has to take what there is.

        Nothing is deferred yet, unless by the broker under an id that this process or a later one asks for again: an
        offset that Spark does not write down must leave nothing behind.
        """
        start = self._engine.read(start_form)
        due = self._engine.due(start)
        parts = 0
        if start.stream is not None and self._access.claims():
            received, parts = self._claimed_next(start, due, limit, wait_ms)
        else:
            self._settle(due)
            if not is_only and self._engine.will_name(start):
                limit = min(limit, NAMING_BATCH_MAX)
            received = self._access.receive(limit, wait_ms)
        count = sum(len(numbers) for numbers in received.values())
        if not count:
            return start_form, 0
        until_ms = None if parts else self._access.held_until_ms()
        return self._engine.form_of(self._engine.claimed(start, received, until_ms, parts)), count

    def _claimed_next(self, start: ClaimOffset, due: Due | None, limit: int, wait_ms: int) -> tuple[Claim, int]:
        """Claim the next batch while the one before is settled: neither has to know of the other, and both wait."""
        if due is None or not due.ids:
            self._settle(due)
            return self._access.claim(start, start.batch + 1, limit, wait_ms)
        with self._access.beside(partial(self._is_settled_by_ids, due)) as is_settled:
            claimed = self._access.claim(start, start.batch + 1, limit, wait_ms)
            if not is_settled():
                self._settle_by_numbers(due)
        return claimed

    def plan(self, start_form: Any, end_form: Any) -> ClaimPlan:
        """Fix the messages of a batch, once and for all; after a restart find them again."""
        start, end = self._engine.read(start_form), self._engine.read(end_form)
        if start == end:
            return ClaimPlan({}, 0)
        self._settle(self._engine.due(start, end))
        known: ClaimPlan | None = self._engine.plan_of(end)
        if known is not None:
            return known
        if end.parts:
            return self._planned(end, end.claim if self._engine.holds(end) else self._claimed(end))
        deferred: Claim = {}
        until_ms = end.until_ms
        if self._engine.holds(end):
            deferred, counted = self._access.defer(end.claim)
            until_ms = end.until_ms if self._access.may_still_defer() else None
            if counted is not None:
                self._engine.counted = counted
        missing = without(end.claim, deferred)
        if missing:
            seen = self._seen_at_rest(missing, end.batch, until_ms)
            found = self._engine.ours(ClaimOffset(end.at, end.batch, missing, end.counted), seen)
            deferred = {key: {**deferred.get(key, {}), **found.get(key, {})} for key in {**deferred, **found}}
        return self._planned(end, deferred)

    def _claimed(self, end: ClaimOffset) -> Claim:
        """What is left of a batch that the broker has claimed for an earlier process."""
        found = self._access.claimed(end) if self._access.claims() else None
        if found is None:
            # A broker that claims no more, of an earlier version, has deferred messages like any others.
            return self._engine.ours(end, self._access.seen(end.claim))
        return {
            key: members
            for key, numbers in end.claim.items()
            if (members := {number: mark for number, mark in numbers.items() if number in found.get(key, {})})
        }

    def _planned(self, end: ClaimOffset, deferred: Claim) -> ClaimPlan:
        dropped = sum(len(numbers) for numbers in without(end.claim, deferred).values())
        if dropped and end.parts:
            _log.warning("%d messages of batch %d are claimed no more", dropped, end.batch)
        elif dropped:
            _log.warning(
                "%d messages of batch %d were not deferred in time; a later batch claims them", dropped, end.batch
            )
        plan = ClaimPlan(deferred, dropped)
        self._engine.planned(end, deferred, plan)
        self._access.planned()
        self._access.let_go()
        return plan

    def _seen_at_rest(self, claim: Claim, batch: int, until_ms: int | None) -> Mapping[Key, Mapping[int, Seen]]:
        """Look at messages when nothing can defer them any more on behalf of the same batch.

        Another process may run with the same checkpoint, started by mistake or not ended yet; or a request of this one
        may be at the broker still. What is deferred after this look would be settled with a batch that was read without
        it.

        Args:
            claim: Of the batch.
            batch: Which.
            until_ms: When the locks of the batch have ended; None: nothing is deferred by them any more.
        """
        waits = 0
        while True:
            # A checkpoint may say any time; no lock lasts longer than five minutes.
            is_over = until_ms is None or waits >= PAUSES_MAX or self._access.is_past(until_ms)
            seen = self._access.seen(claim)
            locked = 0 if is_over else self._engine.locked(claim, seen)
            if not locked:
                return seen
            if not waits:
                _log.warning(
                    "%d messages of batch %d are still locked as they were claimed; another process may be alive and "
                    "use this checkpoint too. Waiting until they are deferred or their locks end",
                    locked,
                    batch,
                )
            self._access.pause()
            waits += 1

    def unsettled(self) -> int:
        """How many messages this process has deferred and not settled yet."""
        return self._engine.unsettled()

    def commit(self, end_form: Any) -> None:
        """Settle a committed batch; a settlement that fails is repeated at the next sign of progress."""
        try:
            self._settle(self._engine.due(self._engine.read(end_form), at_commit=True))
        except Exception:  # noqa: BLE001 - of whatever kind; see below
            # An error here would fail the query, and the next start settles it.
            _log.warning("settling failed; it is done with the next batch", exc_info=True)

    def _settle(self, due: Due | None) -> None:
        if due is not None and not self._is_settled_by_ids(due):
            self._settle_by_numbers(due)

    def _is_settled_by_ids(self, due: Due) -> bool:
        claim = due.claim
        if claim and due.ids and self._access.claims() and self._access.settle(claim, due.ids):
            self._engine.settled(due.batch)
            return True
        return False

    def _settle_by_numbers(self, due: Due) -> None:
        claim = due.claim
        if not due.is_certain and claim:
            # Whose they are is told by the offset that they come from, without what the next batch keeps.
            claim = self._engine.ours(ClaimOffset("", due.batch, claim), self._access.seen(claim))
        if claim:
            self._access.remove(claim)
        self._engine.settled(due.batch)


def without(claim: Claim, other: Claim) -> Claim:
    """The messages of a claim that another claim does not have."""
    left: Claim = {}
    for key, numbers in claim.items():
        others = other.get(key, {})
        members = {} if others is numbers else {n: count for n, count in numbers.items() if n not in others}
        if members:
            left[key] = members
    return left
