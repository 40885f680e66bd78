"""What is to be done with dead letters, how fast, and what came of the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from duobus.clock import Clock
from duobus.model.json.plan import BRINGING, LIMIT_DEFAULT, SEND, DeadLetterPlan, parse_plan

if TYPE_CHECKING:
    from duobus.dead_letters.undo_file import UndoFile

#: Hears of the numbers of messages that are dead letters again.
Note = Callable[[list[int]], None]
#: Whether a message is meant, by its record, beyond what the plan says.
Predicate = Callable[[dict[str, Any]], bool]

#: Messages that were left and are told singly; of further ones only the number.
SKIPPED_MAX: Final = 10_000


class Totals:
    """What has become of messages.

    Attributes:
        moved: How many were done with.
        left: How many were not.
        gone: How many were not there any more: somebody else has taken them, or the answer to an order that was given
            twice was lost the first time.
        skipped: Which were left, and why.
    """

    def __init__(self) -> None:
        self.moved = 0
        self.left = 0
        self.gone = 0
        self.skipped: list[dict[str, Any]] = []

    def skip(self, number: int | None, reason: str) -> None:
        """Count one that was left."""
        self.left += 1
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append({"sequenceNumber": number, "reason": reason})

    def skip_all(self, numbers: list[int], reason: str) -> None:
        """Count several."""
        for number in numbers:
            self.skip(number, reason)


class Work:
    """What is to be done, where, to how many messages.

    Args:
        plan: Which messages are meant, and what becomes of them.
        entity: A queue, or the topic of a subscription.
        subscription: None for a queue.
        is_transfer: The messages are transfer dead letters.
        limit: Most messages in all; None for no bound.
        chunk: Messages of one order.
        is_client_side: The SDK is to do the work.
        takes: Says of each message that the plan means whether it is meant; None for all.

    Attributes:
        action: The plan's.
        path: Of the queue or subscription.
        address: Where the messages are.
        named: The path as a person says it.
        unavailable: Numbers of the fragments that a partial plan has passed over so far.
    """

    def __init__(
        self,
        plan: DeadLetterPlan,
        entity: str,
        subscription: str | None = None,
        *,
        is_transfer: bool = False,
        limit: int | None = None,
        chunk: int = LIMIT_DEFAULT,
        is_client_side: bool = False,
        takes: Predicate | None = None,
    ) -> None:
        self.plan = plan
        self.action = plan.action
        self.entity = entity
        self.subscription = subscription
        self.is_transfer = is_transfer
        self.named = entity if subscription is None else f"{entity}/{subscription}"
        self.path = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
        sub_queue = "/$Transfer/$DeadLetterQueue" if is_transfer else "/$DeadLetterQueue"
        self.address = self.path if plan.action == SEND else self.path + sub_queue
        self.limit = limit
        self.chunk = chunk
        self.is_client_side = is_client_side
        self.takes = takes
        self.unavailable: set[int] = set()

    @classmethod
    def of_members(cls, members: dict[str, Any], entity: str, subscription: str | None = None, **options: Any) -> Self:
        """The work of a plan as JSON, with the other arguments of the class.

        Raises:
            ArgumentInvalid: The plan is none.
        """
        action = members["action"]
        plan = DeadLetterPlan(action=action) if action in BRINGING else parse_plan(members)
        return cls(plan, entity, subscription, **options)


class Executor(Protocol):
    """What does the work: the server, or the SDK."""

    #: Whether what is done can be undone.
    can_undo: bool

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """The messages that are meant, by pages; nothing is done to them."""

    def run(self, pace: Pace, undo: UndoFile | None) -> Totals:
        """Do it."""

    def bring(self, chunk: list[dict[str, Any]], totals: Totals, note: Note | None) -> None:
        """Send messages, or make dead letters of them; ``note`` hears of those that are dead letters again."""


class Pace:
    """Keeps work to a rate.

    Args:
        rate: Messages a second; None for no bound.

    Attributes:
        totals: What has become of messages until the last step.
    """

    def __init__(self, rate: int | None, clock: Clock | None = None) -> None:
        self._rate = rate
        self.totals = Totals()
        self._clock = clock or Clock()
        self._started_ms = self._clock.monotonic_ms()

    def step(self, totals: Totals) -> None:
        """So much is done in all: wait until the rate allows more."""
        self.totals = totals
        if self._rate is not None:
            ahead_s = totals.moved / self._rate - (self._clock.monotonic_ms() - self._started_ms) / 1000
            if ahead_s > 0:
                self.wait(ahead_s)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        threading.Event().wait(seconds)
