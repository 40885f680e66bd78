"""Patience: a messaging store that does not answer in time counts as failed, although no call has raised (PE4, PE13).

A stalled disk raises nothing: its thread just does not come back, for seconds or for days. Whoever waits for it gets
StoreFailed when the patience is over, as if the call had raised it, and what happens from there on is what happens
after every failure: memory is discarded, keyless runs go elsewhere with a tombstone, the store is closed, opened and
recovered as soon as its thread comes back (I27, I56). What the stalled call did then shows in the last commit number.

Long before that the store is *late*: what could be stored elsewhere and has not been handed to its thread yet no longer
waits for it, and who would take messages for good is served elsewhere (I29). Otherwise it would wait for the call under
way and then for its own, twice the patience of a store that is not given up, or many times it where more waits than one
commit takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from duobus.broker.protocols import Writer
from duobus.errors import StoreFailed
from duobus.model.quotas import STORE_PATIENCE_S

T = TypeVar("T")

#: A call that has taken so long is late. No healthy disk does that to a commit, and it leaves most of the 5 s that a
#: send without a key may take in all (PE4), and half of the second in which a receiver gets what is elsewhere (I29).
LATE_S: Final = 0.5
#: What a commit may take from its handing over to its answer, in patiences of the store: the time of PE4 less what it
#: takes to send what it holds elsewhere.
COMMIT_PATIENCES: Final = 1.5
#: How long a refusal may wait until a store has made sure that the messages cannot appear any more: what is left of the
#: time of PE4 when a commit has had all of its patience.
REFUSAL_S: Final = 0.5
#: How long messages are sent on from one store that failed to the next; what fails later than that is refused.
RERUN_S: Final = 5.0
#: What deletes a whole entity may have millions of rows to delete.
LONG_S: Final = 60.0
#: How long a server that is told to stop waits for a store to close.
CLOSE_S: Final = 10.0
#: For opening and recovery, which take as long as they take: nobody waits for an answer of theirs.
ENDLESS_S: Final = float("inf")


class _Ticket:
    """One call that was handed over.

    Attributes:
        done: Whom to tell; None when somebody has been told that the store stalls.
        patience_s: How long it may take once nothing is before it.
        due_s: When it has to be answered in any case.
        is_dropped: It had not begun when the store stalled: it never will.
    """

    __slots__ = ("done", "due_s", "is_dropped", "patience_s")

    def __init__(self, done: Callable[[Any, BaseException | None], None], patience_s: float) -> None:
        self.done: Callable[[Any, BaseException | None], None] | None = done
        self.patience_s = patience_s
        self.due_s = ENDLESS_S
        self.is_dropped = False


class PatientWriter:
    """A writer whose calls are given up when they take too long.

    One timer at most, however many calls there are, and none while there are none.

    Args:
        loop: Whose clock counts.
        writer: Runs the calls, in order; all of them come through here.
        patience_s: How long a call may take, in seconds, unless ``submit`` says otherwise.
        late: Told once of each call that has been the first in line for LATE_S and may take longer.
        prompt: Told when such a call has come to a good end, before whoever waits for it is.

    Attributes:
        is_late: The call under way is such a one.
        is_stalled: A call was given up, and nothing has come back since.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        patience_s: float = STORE_PATIENCE_S,
        late: Callable[[], None] | None = None,
        prompt: Callable[[], None] | None = None,
    ) -> None:
        self.patience_s = patience_s
        self.is_late = False
        self.is_stalled = False
        self._late = late
        self._prompt = prompt
        self._loop = loop
        self._writer = writer
        self._tickets: deque[_Ticket] = deque()
        self._first_since_s = 0.0
        self._commit: _Ticket | None = None
        self._commit_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def submit(
        self,
        call: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
        patience_s: float | None = None,
    ) -> None:
        """See ``Writer.submit``; ``done`` gets StoreFailed when the call is given up.

        ``patience_s``: of this call; None for that of the writer.
        """
        self._submit(_Ticket(done, self.patience_s if patience_s is None else patience_s), call)

    def commit(self, call: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """As ``submit``, for the one commit under way: it is given up COMMIT_PATIENCES after this, too."""
        self._commit = ticket = _Ticket(done, self.patience_s)
        self._commit_since_s = self._loop.time()
        if all(other.patience_s <= self.patience_s for other in self._tickets):
            # Behind what may take longer on a healthy disk, its own patience is all there is.
            ticket.due_s = self._commit_since_s + COMMIT_PATIENCES * self.patience_s
        self._submit(ticket, call)

    def _submit(self, ticket: _Ticket, call: Callable[[], Any]) -> None:
        if not self._tickets:
            self._first_since_s = self._loop.time()
        self._tickets.append(ticket)
        self._watch()
        self._writer.submit(partial(_run, ticket, call), partial(self._answered, ticket))

    def end(self) -> None:
        """Give nothing up any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.patience_s = ENDLESS_S

    def _answered(self, ticket: _Ticket, result: Any, error: BaseException | None) -> None:
        done = ticket.done
        self.is_stalled = False
        if done is None:
            return
        # In order: what was not given up is the first one.
        self._tickets.popleft()
        if ticket is self._commit:
            self._commit = None
        self._first_since_s = self._loop.time()
        was_late, self.is_late = self.is_late, False
        self._watch()
        if was_late and error is None and self._prompt is not None:
            self._prompt()
        done(result, error)

    def _watch(self) -> None:
        if not self._tickets or self._tickets[0].patience_s == ENDLESS_S:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        over_s = min(self._first_since_s + self._allowance_s(), self._due_s())
        if self._timer is not None:
            # It was set for what came before: it looks again when it finds that it is too early.
            if self._timer.when() <= over_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(over_s, self._look)

    def _allowance_s(self) -> float:
        """How long the first call may take before something is done about it."""
        patience_s = self._tickets[0].patience_s
        return patience_s if self._late is None or self.is_late else min(patience_s, LATE_S)

    def _due_s(self) -> float:
        return ENDLESS_S if self._commit is None else self._commit.due_s

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if self._tickets:
            if now_s >= min(self._first_since_s + self._tickets[0].patience_s, self._due_s()):
                self._give_up()
            elif now_s >= self._first_since_s + self._allowance_s() and self._late is not None:
                self.is_late = True
                self._late()
        self._watch()

    def _give_up(self) -> None:
        self.is_late = False
        self.is_stalled = True
        tickets, self._tickets = self._tickets, deque()
        since_s = self._first_since_s if self._commit is None else min(self._first_since_s, self._commit_since_s)
        waited_s = self._loop.time() - since_s
        self._commit = None
        error = StoreFailed(f"the store stalls: no answer within {waited_s:.1f} seconds")
        waiting = []
        for index, ticket in enumerate(tickets):
            # The first one is under way and may yet come to its end; the others never begin.
            ticket.is_dropped = index > 0
            if ticket.done is not None:
                waiting.append(ticket.done)
            ticket.done = None
        for done in waiting:
            done(None, error)


def _run(ticket: _Ticket, call: Callable[[], T]) -> T:
    if ticket.is_dropped:
        raise StoreFailed("given up before it began, because the store stalled")
    return call()
