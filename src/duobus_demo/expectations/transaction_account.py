"""TransactionAccount: tasks, the transactions that turned them into results, and what came of both; for use by threads.

A task is named ``SESSION:NUMBER``. Each transaction that is tried for it is an *attempt*, ``TASK/NUMBER``, and its
result carries the attempt's name. So it is known of each result which transaction it came from.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

#: What is shown of each kind of faults.
SHOWN: Final = 5


class Outcome(StrEnum):
    """What a client knows of an attempt."""

    #: A commit was never asked for: the connection broke before, or the broker refused.
    UNFINISHED = "unfinished"
    #: A commit was asked for and not answered.
    UNKNOWN = "unknown"
    COMMITTED = "committed"
    #: On purpose.
    ROLLED_BACK = "rolled_back"
    #: The broker has rolled it back.
    REFUSED = "refused"


#: Of these a result may come out.
_MAY_BE_DONE: Final = frozenset((Outcome.COMMITTED, Outcome.UNKNOWN))


class Result(NamedTuple):
    """A result that came out.

    Attributes:
        attempt: The attempt that sent it.
        number: Its sequence number.
    """

    attempt: str
    number: int

    @property
    def task(self) -> str:
        """The task that it is the result of."""
        return self.attempt.rpartition("/")[0]


class Faults(NamedTuple):
    """What must not be, in words.

    Attributes:
        lost: Tasks without a result, and committed attempts without theirs.
        doubled: Tasks with more than one result.
        undone: Results of attempts that were rolled back, or never committed.
        left: Tasks that are still there beside their result.
        out_of_order: Results that came after one of a later task of their session.
    """

    lost: list[str]
    doubled: list[str]
    undone: list[str]
    left: list[str]
    out_of_order: list[str]


def judge(
    tasks: Collection[str], attempts: Mapping[str, Outcome], results: Sequence[Result], left: Iterable[str]
) -> Faults:
    """Return what is wrong: each task has exactly one result, in the order of tasks, and nothing else is there.

    Args:
        tasks: That were acknowledged.
        attempts: By name, the outcome of each.
        results: In the order in which they came out, each message once.
        left: Tasks that lie in their queue in the end.
    """
    of_tasks: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        of_tasks[result.task].append(result)
    out = {result.attempt for result in results}
    committed = [name for name, outcome in attempts.items() if outcome is Outcome.COMMITTED]
    return Faults(
        lost=[task for task in tasks if task not in of_tasks]
        + [f"{name}, which was committed" for name in committed if name not in out],
        doubled=[f"{task}: {_named(found)}" for task, found in of_tasks.items() if len(found) > 1],
        undone=[
            f"{result.attempt}, {outcome or 'never tried'}"
            for result in results
            if (outcome := attempts.get(result.attempt)) not in _MAY_BE_DONE
        ],
        left=[f"{task}: {_named(of_tasks[task])}" for task in left if task in of_tasks],
        out_of_order=_out_of_order(results),
    )


def _out_of_order(results: Sequence[Result]) -> list[str]:
    found: list[str] = []
    last: dict[str, int] = {}
    for result in results:
        session, _, number = result.task.rpartition(":")
        before = last.get(session, -1)
        if int(number) < before:
            found.append(f"{session}: {number} after {before}")
        last[session] = max(before, int(number))
    return found


def _named(results: Iterable[Result]) -> str:
    return ", ".join(f"{result.attempt} as {result.number}" for result in results)


class TransactionAccount:
    """What the workers enter, and what is wrong of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._attempts: dict[str, Outcome] = {}
        # By sequence number: one message that is received again is the same result.
        self._results: dict[Result, None] = {}
        self._done: set[str] = set()
        self._left: set[str] = set()
        self._has_looked = False

    def acknowledged(self, task: str) -> None:
        """The broker has this task."""
        with self._lock:
            self._tasks.add(task)

    def begin(self, task: str) -> str:
        """Return the name of a new attempt."""
        with self._lock:
            self._tries[task] += 1
            attempt = f"{task}/{self._tries[task]}"
            self._attempts[attempt] = Outcome.UNFINISHED
            return attempt

    def note(self, attempt: str, outcome: Outcome) -> None:
        """What is known of an attempt by now."""
        with self._lock:
            self._attempts[attempt] = outcome

    def received(self, attempt: str, number: int) -> None:
        """A result came out under a sequence number."""
        with self._lock:
            result = Result(attempt, number)
            self._results[result] = None
            self._done.add(result.task)

    def left(self, tasks: Iterable[str]) -> None:
        """These tasks lie in their queue in the end."""
        with self._lock:
            self._left.update(tasks)

    def looked(self) -> None:
        """All tasks that lie in their queue in the end were entered."""
        with self._lock:
            self._has_looked = True

    def counts(self) -> dict[str, int]:
        """Acknowledged tasks, and tasks with a result."""
        with self._lock:
            return {"tasks": len(self._tasks), "results": len(self._done)}

    def is_whole(self) -> bool:
        """Whether all acknowledged tasks have a result."""
        with self._lock:
            return self._tasks <= self._done

    def faults(self) -> Faults:
        """What is wrong; see ``judge``."""
        with self._lock:
            return judge(sorted(self._tasks), self._attempts, list(self._results), sorted(self._left))

    def report(self) -> dict[str, Any]:
        """The counts of a result: tasks, results, attempts by outcome and faults by kind; and the first faults.

        ``is_looked`` says whether all that was left in the end is known.
        """
        found = self.faults()._asdict()
        with self._lock:
            outcomes = Counter(self._attempts.values())
            return {
                "tasks": len(self._tasks),
                "results": len(self._results),
                **{str(outcome): outcomes[outcome] for outcome in Outcome},
                **{kind: len(faults) for kind, faults in found.items()},
                "is_looked": self._has_looked,
                "faults": [f"{kind} {one}" for kind, faults in found.items() for one in faults[:SHOWN]],
            }
