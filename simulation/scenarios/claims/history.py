"""What clients of a queue with claims were told, and what of it contradicts itself.

The rules: a message is with one claim at a time, and with no receiver meanwhile; a claim that is told again names what
it named, with the same delivery counts, and no more; what was settled never comes again, and what was released does;
and each message that was accepted comes out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

from duobus.broker.entities.queue import COUNT_BITS

#: Whatever may become of a message, beside that it comes out.
Told = Mapping[int, int]


class ClaimHistory:
    """The books of one run; what is wrong is in ``wrong``, in words.

    Attributes:
        accepted: Numbers of the messages that the broker has acknowledged to their senders.
        doubtful: Messages whose sending was not answered.
        expiring: Messages with a time to live, which may be gone when they were never read.
        cleared: Whether somebody has purged the queue: what was available then may be gone.
        maybe: Sequence numbers whose removal was asked for and not answered.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.accepted: set[int] = set()
        self.doubtful: set[int] = set()
        self.expiring: set[int] = set()
        self.cleared = False
        self.maybe: set[int] = set()
        self._claims: dict[str, dict[int, int]] = {}
        #: Claims that were told when fragments were away, which may have more of them.
        self._away: dict[str, set[int]] = {}
        #: Claims that somebody wanted to end: what they have may be anywhere.
        self._ending: set[str] = set()
        self._with: dict[int, str] = {}
        self._gone: dict[int, str] = {}
        self._out: Counter[int] = Counter()

    def _say(self, what: str) -> None:
        self.wrong.append(what)

    # -- what the broker says -----------------------------------------------------------------------------------

    def claimed(self, claim_id: str, told: Told, away: Set[int]) -> None:
        """The broker has told what a claim has."""
        for number in told:
            self._is_there(number, f"claim {claim_id}")
            other = self._with.get(number)
            if other not in (None, claim_id) and other not in self._ending:
                self._say(f"message {number} is with claim {claim_id} and with claim {other}")
        before = self._claims.get(claim_id)
        if not before:
            # An id that has nothing claims anew.
            self._claims[claim_id], self._away[claim_id] = dict(told), set(away)
        else:
            if claim_id not in self._ending:
                self._again(claim_id, before, told, away)
            self._claims[claim_id] = {**before, **told}
            self._away[claim_id] |= away
        for number in told:
            self._with[number] = claim_id

    def _again(self, claim_id: str, before: Told, told: Told, away: Set[int]) -> None:
        if {number >> COUNT_BITS for number in before} <= away:
            # No fragment that is there knows the claim, so it is made anew; what it had comes back when it is settled.
            return
        for number, deliveries in told.items():
            if number not in before:
                if number >> COUNT_BITS not in self._away[claim_id]:
                    self._say(f"claim {claim_id} has message {number}, of which it did not tell before")
            elif before[number] != deliveries:
                self._say(f"claim {claim_id}: message {number} was delivered {before[number]} times, then {deliveries}")

    def missing(self, claim_id: str, numbers: Iterable[int]) -> None:
        """A task has not found what a claim told it has."""
        for number in numbers:
            self._say(f"claim {claim_id} has lost message {number}")

    def received(self, number: int) -> None:
        """A receiver was given a message."""
        self._is_there(number, "a receiver")
        other = self._with.get(number)
        if other is not None and other not in self._ending:
            self._say(f"message {number} was handed to a receiver and is with claim {other}")

    def _is_there(self, number: int, who: str) -> None:
        if number in self._gone:
            self._say(f"message {number} was {self._gone[number]} and is back, with {who}")

    def ending(self, claim_id: str) -> None:
        """Somebody asks for a claim to be settled or released."""
        self._ending.add(claim_id)

    def settled(self, claim_id: str, told: Iterable[int], removed: int, *, is_first: bool) -> None:
        """A claim is settled, and what it told is removed.

        Args:
            claim_id: Which.
            told: Numbers of its messages in the fragments that were settled.
            removed: How many messages the broker says it has removed.
            is_first: Nothing was asked for before that may have removed some of them.
        """
        numbers = set(told)
        if is_first and removed != len(numbers):
            self._say(f"of claim {claim_id} {removed} messages were removed, and it told of {len(numbers)}")
        for number in numbers:
            self._gone[number] = f"settled with claim {claim_id}"
        self._closed(claim_id)

    def released(self, claim_id: str, returned: int, *, is_first: bool) -> None:
        """A claim is released, and its messages are available."""
        told = len(self._claims.get(claim_id, {}))
        if is_first and returned != told and not self._away.get(claim_id):
            self._say(f"of claim {claim_id} {returned} messages came back, and it told of {told}")
        self._closed(claim_id)

    def _closed(self, claim_id: str) -> None:
        for number in self._claims.pop(claim_id, {}):
            if self._with.get(number) == claim_id:
                del self._with[number]
        self._away.pop(claim_id, None)
        self._ending.discard(claim_id)

    # -- where messages went ------------------------------------------------------------------------------------

    def removed(self, number: int, uid: int) -> None:
        """A receiver has removed a message, and knows it."""
        self._gone[number] = "completed"
        self._out[uid] += 1

    def handed_over(self, batches: Iterable[Iterable[int]]) -> None:
        """A stream has ended with these batches in its sink."""
        for batch in batches:
            self._out.update(batch)

    def finish(self, claims: int, rows: int, numbers: list[int]) -> list[str]:
        """All is over; return what is wrong.

        Args:
            claims: Claims that the broker still tells of.
            rows: Messages in the stores.
            numbers: Messages of each kind by the broker's counters.
        """
        for uid in sorted(self.accepted - set(self._out)):
            if uid not in self.expiring and not self.cleared and not self.maybe:
                self._say(f"{uid} was acknowledged and never came out")
        for uid, times in sorted(self._out.items()):
            if times > 1:
                self._say(f"{uid} came out {times} times")
            if uid not in self.accepted | self.doubtful:
                self._say(f"{uid} came out and was never sent")
        if claims:
            self._say(f"{claims} claims are open at the end")
        if rows or any(numbers):
            self._say(f"{rows} messages are in the stores at the end, and the counters say {numbers}")
        return self.wrong
