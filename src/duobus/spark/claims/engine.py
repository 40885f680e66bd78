"""The claim protocol as a pure engine: values in, what to do out (decision 0020).

A claim is received under peek-lock and remembered; Spark writes its offset down; only then are the messages deferred.
Tasks look at the deferred messages, any number of times. When the batch is in the commit log they are removed by
number. So a deferred message is always named by the checkpoint, and what is listed but not deferred was never read.

The engine belongs to one process, the source runner. What it does not remember, it reads from the offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import Claim, ClaimOffset, Key, deliveries_of, life_of

#: Batches that a process remembers having planned: the present one and the one before are asked for.
REMEMBERED: Final = 4


class Seen(NamedTuple):
    """A message as a peek shows it.

    Attributes:
        life: In which life of its fragment it was deferred, where the count alone does not tell by whom.
    """

    is_deferred: bool
    deliveries: int
    life: int | None = None


class Due(NamedTuple):
    """The messages that are to be settled now.

    Attributes:
        batch: Whose.
        claim: The numbers.
        is_certain: They are ours. Otherwise look first, and settle what ``ours`` returns: a number that an earlier
            process did not come to defer may have been received and deferred by somebody else since.
    """

    batch: int
    claim: Claim
    is_certain: bool


def text_of(offset: ClaimOffset) -> str:
    """The text by which two offsets are the same."""
    return json.dumps(offset.to_json(), separators=(",", ":"))


class ClaimEngine:
    """The claims of a source runner, and what is known of each.

    Args:
        at: The namespace.
        entities: Those that the stream reads; None: it reads a pattern, and any may have been of it.
        settles_early: Settle at every sign of progress, not only at ``commit``.
        counted: By how much a deferral raises the delivery count there; None: not known, to be learned.
    """

    def __init__(
        self, at: str, entities: tuple[str, ...] | None, *, settles_early: bool = True, counted: int | None = None
    ) -> None:
        self._at = at
        self._entities = None if entities is None else frozenset(entities)
        self._settles_early = settles_early
        self._settled = 0
        self._held: ClaimOffset | None = None
        self._planned: dict[int, Claim] = {}
        self._plans: dict[str, Any] = {}
        self.counted = counted

    def initial(self) -> ClaimOffset:
        """Where a new stream begins; a constant, since Spark asks for it twice (2.4)."""
        return ClaimOffset(self._at)

    def read(self, form: Any) -> ClaimOffset:
        """Read an offset that Spark gives back.

        Raises:
            CheckpointError: It is none, or of another namespace or other entities.
        """
        offset = ClaimOffset.from_json(form)
        if offset.at != self._at:
            raise CheckpointError(
                f"The checkpoint belongs to the namespace '{offset.at}', the stream reads '{self._at}': numbers of one "
                "mean nothing in the other. Give the stream a checkpoint of its own; nothing was settled."
            )
        others = [] if self._entities is None else sorted({key.entity for key in offset.claim} - self._entities)
        if others:
            raise CheckpointError(
                f"The checkpoint has claimed messages of '{others[0]}', which the stream does not read. Read it again, "
                "or free the claim with 'duobus spark release'; nothing was settled."
            )
        return offset

    def due(self, start: ClaimOffset, keep: ClaimOffset | None = None, *, at_commit: bool = False) -> Due | None:
        """What of a batch that is in the commit log is still to be settled; None: nothing.

        Args:
            start: That batch.
            keep: The next batch, if there is one: what both list is read again by it (rule 4).
            at_commit: This is the signal ``commit``.
        """
        planned = self._planned.get(start.batch)
        # What another process planned comes from the logs, so it is durable, and its commit may have been lost.
        is_told = self._settles_early or at_commit or planned is None
        if start.batch <= self._settled or not is_told:
            return None
        kept = {} if keep is None else keep.claim
        claim = {
            key: {number: count for number, count in numbers.items() if number not in kept.get(key, {})}
            for key, numbers in (start.claim if planned is None else planned).items()
        }
        return Due(start.batch, {key: numbers for key, numbers in claim.items() if numbers}, planned is not None)

    def settled(self, batch: int) -> None:
        """Remember that everything up to a batch is settled: idle polls would ask 85 times a second."""
        self._settled = max(self._settled, batch)
        self._planned = {other: claim for other, claim in self._planned.items() if other > batch}

    def claimed(self, start: ClaimOffset, received: Claim, until_ms: int | None = None) -> ClaimOffset:
        """Return the offset of a batch; nothing of it may be deferred before Spark has written it down.

        Args:
            start: The batch before it.
            received: What it claims.
            until_ms: When the last of their locks ends, if that is known.
        """
        counted = self.counted if self.counted is not None else start.counted
        self._held = ClaimOffset(self._at, start.batch + 1, received, counted, until_ms)
        return self._held

    def plan_of(self, end: ClaimOffset) -> Any:
        """The plan that was made in this process for exactly this batch, or None."""
        return self._plans.get(text_of(end))

    def holds(self, end: ClaimOffset) -> bool:
        """Whether this process received the messages of the batch and may still hold their locks."""
        return self._held is not None and text_of(self._held) == text_of(end)

    def planned(self, end: ClaimOffset, deferred: Claim, plan: Any) -> None:
        """Remember what of a batch is deferred and goes to tasks, and the plan for them."""
        self._planned[end.batch] = deferred
        self._plans[text_of(end)] = plan
        while len(self._plans) > REMEMBERED:
            del self._plans[next(iter(self._plans))]
        self._held = None

    @staticmethod
    def locked(claim: Claim, seen: Mapping[Key, Mapping[int, Seen]]) -> int:
        """How many messages the process that claimed them may still hold, and come to defer (decision 0030).

        A lock that ended counts as a delivery, so they are active with the count that they were received with.
        """
        return sum(
            not found.is_deferred and found.deliveries == deliveries_of(count)
            for key, numbers in claim.items()
            for number, count in numbers.items()
            if (found := seen.get(key, {}).get(number)) is not None
        )

    def ours(self, offset: ClaimOffset, seen: Mapping[Key, Mapping[int, Seen]]) -> Claim:
        """Those of a batch that an earlier process deferred.

        A message that it did not come to defer became active again when its lock ended, which counts as a delivery.
        Whoever deferred it since did so with a higher count, so it is not taken for ours; or, where the broker was
        killed and has forgotten that delivery, in a later life of the fragment.
        """
        raised = offset.counted if offset.counted is not None else self.counted
        allowed = (0, 1) if raised is None else (raised,)
        found: Claim = {}
        for key, numbers in offset.claim.items():
            states = seen.get(key, {})
            members = {
                number: count
                for number, count in numbers.items()
                if number in states and _is_of(states[number], count, allowed)
            }
            if members:
                found[key] = members
        return found


def _is_of(seen: Seen, mark: int, allowed: tuple[int, ...]) -> bool:
    """Whether a message is deferred by who received it with this mark."""
    if not seen.is_deferred or seen.deliveries - deliveries_of(mark) not in allowed:
        return False
    # Without the one or the other, of another broker or an earlier release, the count has to do.
    return seen.life is None or not life_of(mark) or seen.life == life_of(mark)
