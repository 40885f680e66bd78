"""The claim protocol as a pure engine: values go in, decisions come out (decision 0020).

The messages of a claim are received under peek-lock and recorded; Spark writes the claim's offset down; only then are
the messages deferred. Tasks peek at the deferred messages, any number of times. When the batch is in the commit log the
messages are removed by number. So the checkpoint names every deferred message, and a message that the checkpoint names
and that is not deferred was never read.

A broker that claims by itself defers the messages under an id and tells their numbers. The id is made of the offset
before, so a process that is started again asks by the same id for what an earlier one has claimed and not written down.

The engine belongs to one process, the source runner. After a restart the engine reads its state from the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from duobus.spark.errors import CheckpointError
from duobus.spark.offsets import Claim, ClaimOffset, Key, Numbers, deliveries_of, life_of

#: Batches that a process remembers having planned: the present one and the one before are asked for.
REMEMBERED: Final = 2
#: Offsets that a process keeps as it has read them: the batch that is claimed, and the one before.
OFFSETS_KEPT: Final = 2


class Seen(NamedTuple):
    """The state of a message as a peek shows it.

    Attributes:
        life: The life of its fragment in which it was deferred, where the count alone does not say who deferred it.
    """

    is_deferred: bool
    deliveries: int
    life: int | None = None


class Due(NamedTuple):
    """The messages that are to be settled now.

    Attributes:
        batch: Number of their batch.
        claim: Their sequence numbers.
        is_certain: Whether this query deferred them. Otherwise peek first, and settle what ``ours`` returns: a message
            that an earlier process did not defer may have been received and deferred by another receiver since.
        ids: The claims at the broker that have the messages; empty: they were received and deferred.
    """

    batch: int
    claim: Claim
    is_certain: bool
    ids: tuple[str, ...] = ()


class ClaimEngine:
    """The claims of a source runner, and the state of each.

    Args:
        at: The namespace.
        entities: The entities that the stream reads; None for a pattern, which any entity may have matched.
        settles_early: Whether to settle at every sign of progress, and not only at ``commit``.
        counted: By how much a deferral raises the delivery count; None: it has to be found out.
        new_name: Makes the name of a stream that has none; None: no broker claims for the stream.
    """

    def __init__(
        self,
        at: str,
        entities: tuple[str, ...] | None,
        *,
        settles_early: bool = True,
        counted: int | None = None,
        new_name: Callable[[], str] | None = None,
    ) -> None:
        self._at = at
        self._entities = None if entities is None else frozenset(entities)
        self._settles_early = settles_early
        self._settled = 0
        self._held: ClaimOffset | None = None
        self._planned: dict[int, Claim] = {}
        self._plans: list[tuple[ClaimOffset, Any]] = []
        self._new_name = new_name
        #: Offsets of late, by their forms: each is asked for several times, and a million numbers take a second.
        self._read: list[tuple[Any, ClaimOffset]] = []
        self.counted = counted

    def initial(self) -> ClaimOffset:
        """The beginning of a new stream; a constant, because Spark asks for it twice."""
        return ClaimOffset(self._at)

    def read(self, form: Any) -> ClaimOffset:
        """Read an offset that Spark gives back.

        Raises:
            CheckpointError: It is no offset of this mode, or belongs to another namespace or other entities.
        """
        known = next((offset for other, offset in self._read if other == form), None)
        if known is not None:
            return known
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
        self._remember(form, offset)
        return offset

    def _remember(self, form: Any, offset: ClaimOffset) -> None:
        self._read = [*self._read[1 - OFFSETS_KEPT :], (form, offset)]

    def due(self, start: ClaimOffset, keep: ClaimOffset | None = None, *, at_commit: bool = False) -> Due | None:
        """The messages of a committed batch that still have to be settled; None: no messages.

        Args:
            start: The offset of the committed batch.
            keep: The next batch, if there is one: messages that both list are read again by the next one, and stay.
            at_commit: Whether this is the signal ``commit``.
        """
        planned = self._planned.get(start.batch)
        # What another process planned comes from the logs, so it is durable, and its commit may have been lost.
        is_told = self._settles_early or at_commit or planned is None
        if start.batch <= self._settled or not is_told:
            return None
        kept = {} if keep is None else keep.claim
        claim = {
            key: _without(numbers, kept.get(key, {}))
            for key, numbers in (start.claim if planned is None else planned).items()
        }
        ids = ids_of(start)
        return Due(start.batch, {key: numbers for key, numbers in claim.items() if numbers}, planned is not None, ids)

    def settled(self, batch: int) -> None:
        """Remember that everything up to a batch is settled, because idle polls would ask 85 times a second."""
        self._settled = max(self._settled, batch)
        self._planned = {other: claim for other, claim in self._planned.items() if other > batch}

    def will_name(self, start: ClaimOffset) -> bool:
        """Whether the offset of the batch after this one is the first that has a name."""
        return start.stream is None and self._new_name is not None

    def claimed(self, start: ClaimOffset, received: Claim, until_ms: int | None = None, parts: int = 0) -> ClaimOffset:
        """Return the offset of a batch; nothing of it may be deferred by this process before Spark has written it down.

        Args:
            start: The batch before it.
            received: The messages that the batch claims.
            until_ms: When the last of their locks ends, if that is known.
            parts: Claims at the broker that the messages are of; 0: they were received.
        """
        counted = self.counted if self.counted is not None else start.counted
        stream = start.stream
        if self.will_name(start):
            assert self._new_name is not None
            # From the next batch on: an id that no offset has made would be forgotten with this process.
            stream = self._new_name()
        self._held = ClaimOffset(self._at, start.batch + 1, received, counted, until_ms, stream, parts)
        return self._held

    def form_of(self, offset: ClaimOffset) -> dict[str, Any]:
        """What Spark writes down; the engine remembers whose form it is."""
        form = offset.to_json()
        self._remember(form, offset)
        return form

    def plan_of(self, end: ClaimOffset) -> Any:
        """The plan that was made in this process for exactly this batch, or None."""
        return next((plan for planned, plan in self._plans if planned == end), None)

    def holds(self, end: ClaimOffset) -> bool:
        """Whether this process received the messages of the batch and may still hold their locks."""
        return self._held is not None and self._held == end

    def planned(self, end: ClaimOffset, deferred: Claim, plan: Any) -> None:
        """Remember which messages of a batch are deferred and go to tasks, and the plan for the tasks."""
        self._planned[end.batch] = deferred
        self._plans = [(other, kept) for other, kept in self._plans if other != end][1 - REMEMBERED :]
        self._plans.append((end, plan))
        self._held = None

    def unsettled(self) -> int:
        """How many messages are deferred and not settled yet, of the batches that this process planned."""
        return sum(len(numbers) for claim in self._planned.values() for numbers in claim.values())

    @staticmethod
    def locked(claim: Claim, seen: Mapping[Key, Mapping[int, Seen]]) -> int:
        """How many messages the process that claimed them may still hold and defer (decision 0030).

        A lock that ended counts as a delivery. So a message that is still held has the count that it was received with.
        """
        return sum(
            not found.is_deferred and found.deliveries == deliveries_of(count)
            for key, numbers in claim.items()
            for number, count in numbers.items()
            if (found := seen.get(key, {}).get(number)) is not None
        )

    def ours(self, offset: ClaimOffset, seen: Mapping[Key, Mapping[int, Seen]]) -> Claim:
        """The messages of a batch that an earlier process of this query deferred.

        A message that the process did not defer became active again when its lock ended, which counts as a delivery.
        Another receiver that has deferred it since did so with a higher count, so it does not count as ours; or, where
        the broker was killed and has forgotten that delivery, in a later life of the fragment.
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


def _without(numbers: Numbers, others: Numbers) -> Numbers:
    """Numbers without some others; the same object where there are none of these."""
    if not others or numbers.keys().isdisjoint(others):
        return numbers
    return {number: mark for number, mark in numbers.items() if number not in others}


def ids_of(offset: ClaimOffset) -> tuple[str, ...]:
    """The claims at the broker that a batch is made of."""
    return tuple(offset.claim_id(offset.batch, part) for part in range(offset.parts))


def _is_of(seen: Seen, mark: int, allowed: tuple[int, ...]) -> bool:
    """Whether a message is deferred by who received it with this mark."""
    if not seen.is_deferred or seen.deliveries - deliveries_of(mark) not in allowed:
        return False
    # Without the one or the other, of another broker or an earlier release, the count has to do.
    return seen.life is None or not life_of(mark) or seen.life == life_of(mark)
